"""What workers of a pool do with output, coroutines, uploads and their folders, without processes of their own."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Worker
from distributed.protocol.core import dumps, loads

from spotmpi.agent import launchers, preload, protocol
from spotmpi.agent.clock import CLOCK
from spotmpi.agent.context import AgentContext, in_run_folder
from spotmpi.agent.launch import Location
from spotmpi.agent.plan import COORDINATOR, NODE, POSTPROCESS, WORKER, Command, Member
from spotmpi.agent.replicas import Replicas, process_ids
from spotmpi.core.certificates import run_certificates, write_certificates
from spotmpi.pools.dask_client import PoolClient
from spotmpi.programs.pool import call, files, worker
from spotmpi.programs.pool.call import CallFailure
from spotmpi.programs.pool.output import LEFT_OUT, RATE, ForwardedStream
from spotmpi.programs.pool.scheduler import CallsPlugin, PoolScheduler
from spotmpi.programs.pool.settings import security, settings, versions

NOT_UTF8 = b"caf\xe9.txt".decode(errors="surrogateescape")


class Events:
    """Takes events as Dask's worker does, which packs them with msgpack for the scheduler."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log_event(self, topic: str, message: Any) -> None:
        dumps({"op": "log-event", "topic": topic, "msg": message})
        self.lines += message["lines"]


def test_the_name_of_a_file_that_is_not_utf8_can_be_printed() -> None:
    events, below = Events(), io.StringIO()
    print("read", NOT_UTF8, file=ForwardedStream(below, "stdout", events, 0))
    assert events.lines == ["read caf\\udce9.txt"]
    assert below.getvalue() == f"read {NOT_UTF8}\n"


def test_programs_find_on_stdout_what_every_text_stream_has() -> None:
    events, bytes_below = Events(), io.BytesIO()
    stream = ForwardedStream(io.TextIOWrapper(bytes_below, encoding="ascii"), "stdout", events, 0)
    stream.reconfigure(encoding="utf-8", errors="replace")  # as programs do
    stream.buffer.write(b"\xff raw, ")
    print("caf\udce9", file=stream)
    assert (stream.encoding, stream.errors) == ("utf-8", "replace")
    assert bytes_below.getvalue() == b"\xff raw, caf?\n"
    assert events.lines == ["caf\\udce9"]
    assert not hasattr(stream, "_unknown")


def test_drivers_get_a_part_of_what_is_printed_too_fast() -> None:
    events, below, now = Events(), io.StringIO(), [0.0]
    stream = ForwardedStream(below, "stdout", events, 0, lambda: now[0])
    lines = [f"{index:0999}" for index in range(3 * RATE // 1000)]
    print("\n".join(lines), file=stream)
    at_once = RATE // 1000 + 1
    assert events.lines == [*lines[:at_once], LEFT_OUT]
    assert below.getvalue() == "\n".join(lines) + "\n", "the log has all"
    print("still too fast", file=stream)
    now[0] += 1.0
    print("later", file=stream)
    assert events.lines[at_once:] == [LEFT_OUT, "later"]


def test_drivers_get_the_last_state_of_a_line_that_is_overwritten() -> None:
    """A progress bar is one line of thousands of states, of which drivers got the first ones."""
    events, below = Events(), io.StringIO()
    stream = ForwardedStream(below, "stderr", events, 0)
    for count in range(2000):
        stream.write(f"\r{count:>4}/2000")
    stream.write("\r2000/2000\n")
    for count in range(3):
        stream.write(f"{count}/3\r")
    stream.write("\nend\r\n")
    assert events.lines == ["2000/2000", "2/3", "end"]
    assert below.getvalue().count("\r") == 2005


def test_drivers_get_what_a_call_prints_without_the_end_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """They got it with the first line of a later call, if there was one."""
    events, below = Events(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", ForwardedStream(below, "stdout", events, 0))
    monkeypatch.setattr(sys, "stderr", ForwardedStream(io.StringIO(), "stderr", events, 0))
    for text in ("accuracy: ", "0.9", " "):
        pickle.loads(call.execute(call.pack("print", call.pack_function(print), (text,), {"end": ""})))
    asyncio.run(call.execute_async(call.pack("wait", call.pack_function(print_and_wait), (), {})))
    with pytest.raises(call.CallFailure):
        call.execute(call.pack("fail", call.pack_function(print_and_fail), (), {}))
    assert events.lines == ["accuracy:", "0.9", "waited", "failing"]
    assert below.getvalue() == "accuracy: 0.9 waited"


async def print_and_wait() -> None:
    print("waited", end="")


def print_and_fail() -> None:
    print("failing", end="", file=sys.stderr)
    raise ValueError


HEARTBEAT = threading.Event()


async def block() -> tuple[bool, str]:
    """Block like computing does; the thread in which it does."""
    return HEARTBEAT.wait(60), threading.current_thread().name


LEFT: list[asyncio.Task[None]] = []


async def leave_an_exiting_task() -> None:
    async def leave() -> None:
        sys.exit(3)

    LEFT.append(asyncio.get_running_loop().create_task(leave()))


async def loop_of_a_call() -> int:
    return id(asyncio.get_running_loop())


async def exit_itself() -> None:
    sys.exit(3)


async def cancel_itself() -> None:
    raise asyncio.CancelledError("no more")


def interrupt() -> None:
    raise KeyboardInterrupt


def packed(function: Callable[..., Any]) -> bytes:
    return call.pack("call", call.pack_function(function), (), {})


def execute_async(function: Callable[..., Any]) -> Any:
    return pickle.loads(asyncio.run(call.execute_async(packed(function))))


def test_a_coroutine_that_blocks_does_not_block_the_event_loop_of_its_worker() -> None:
    async def beat() -> Any:
        task = asyncio.ensure_future(call.execute_async(packed(block)))
        await asyncio.sleep(0.01)
        HEARTBEAT.set()
        return await task

    assert pickle.loads(asyncio.run(beat())) == (True, "spotmpi-calls")


def test_coroutines_share_one_event_loop_which_survives_tasks_that_they_leave() -> None:
    first = execute_async(loop_of_a_call)
    execute_async(leave_an_exiting_task)
    assert execute_async(loop_of_a_call) == first
    assert isinstance(LEFT.pop().exception(), SystemExit)


@pytest.mark.parametrize(
    ("function", "message"), [(exit_itself, r"the call exited: sys\.exit\(3\)"), (cancel_itself, "CancelledError")]
)
def test_what_ends_a_coroutine_is_its_error(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(CallFailure) as failure:
        execute_async(function)
    with pytest.raises(RuntimeError, match=message):
        raise pickle.loads(failure.value.packed)


def test_a_call_that_raises_keyboard_interrupt_ends_neither_worker_nor_driver() -> None:
    with pytest.raises(CallFailure) as failure:
        call.execute(packed(interrupt))
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        raise pickle.loads(failure.value.packed)


@pytest.fixture
def worker_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "folder", str(tmp_path / "worker"))
    monkeypatch.setattr(files, "_numbers", {})
    return tmp_path / "worker"


def test_the_latest_upload_counts_whatever_the_clocks_of_drivers_say(
    worker_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for workers that come later; and a name need not be UTF-8."""

    async def upload() -> None:
        async with PoolScheduler(protocol="inproc", dashboard=False) as scheduler:
            plugin = CallsPlugin(scheduler, 1, None)
            scheduler.add_plugin(plugin)
            async with Worker(scheduler.address, nthreads=1, memory_limit=0, dashboard=False):
                for clock, version in ((9e9, b"1"), (1e9, b"2"), (5e9, b"3")):
                    monkeypatch.setattr("time.time", lambda clock=clock: clock)
                    for name in ("scan.py", NOT_UTF8):
                        await driver_of(scheduler).upload(name, {name: files.File(version)})
            assert {path.read_bytes() for path in worker_folder.iterdir()} == {b"3"}
            monkeypatch.setattr(files, "_numbers", {})
            for path in worker_folder.iterdir():
                path.unlink()
            async with Worker(scheduler.address, nthreads=1, memory_limit=0, dashboard=False):
                assert {path.read_bytes() for path in worker_folder.iterdir()} == {b"3"}

    asyncio.run(upload())
    assert (worker_folder / NOT_UTF8).exists()


def test_a_worker_whose_image_has_another_dask_ends_the_run_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_certificates(tmp_path / "pool", run_certificates("x-1"))
    monkeypatch.setenv(protocol.ENV_POOL_TLS, str(folder))

    async def describe() -> dict[str, Any]:
        return {"versions": {**versions(), "distributed": "2020.1.0"}}

    async def join() -> int:
        options: dict[str, Any] = {"protocol": "tls", "security": security(str(folder)), "dashboard_address": ":0"}
        async with PoolScheduler(host="127.0.0.1", port=0, **options) as scheduler:
            scheduler.handlers["spotmpi_pool"] = describe
            member = Member(POSTPROCESS, 0)
            values = {"worker": member, "address": scheduler.address, "folder": str(tmp_path / "work"), "host": None}
            return await worker.work(argparse.Namespace(**values, timeout=10.0))

    with dask.config.set(settings()):
        assert asyncio.run(join()) == protocol.NOT_RETRYABLE
    own = f"distributed {versions()['distributed']} here and 2020.1.0 in the image of node 0"
    reason = f"{own}: give these workers an image with the same"
    assert reason in capsys.readouterr().out


def driver_of(scheduler: PoolScheduler) -> PoolClient:
    """A driver's client over a connection that packs messages as TLS does."""

    class Remote:
        def __getattr__(self, name: str) -> Any:
            async def ask(**arguments: Any) -> Any:
                arguments = loads(dumps(arguments))
                return loads(dumps(await scheduler.handlers[name](**arguments)))

            return ask

    client = PoolClient.__new__(PoolClient)
    client.scheduler = Remote()  # type: ignore[assignment]
    return client


@pytest.mark.parametrize(
    ("uploaded", "forgotten"),
    [
        ({"scan.py": b"1"}, {"scan", "scan.inner"}),
        ({"scan.cpython-311-x86_64-linux-gnu.so": b""}, {"scan", "scan.inner"}),
        ({"scan/__init__.py": b"1", "scan/rows.csv": b"2"}, {"scan", "scan.inner"}),
        ({"scan.pt": b"1"}, set()),
        ({"scan/rows.csv": b"1"}, set()),
        ({"sys.py": b"1"}, set()),
        ({"__main__.py": b"1"}, set()),
    ],
)
def test_an_upload_of_data_that_is_called_as_a_module_leaves_the_module_alone(
    worker_folder: Path, monkeypatch: pytest.MonkeyPatch, uploaded: dict[str, bytes], forgotten: set[str]
) -> None:
    """torch.pt makes no worker import torch again, which fails."""
    monkeypatch.setattr(sys, "modules", {**sys.modules, "scan": sys, "scan.inner": sys})
    before = set(sys.modules)
    name = next(iter(uploaded)).partition("/")[0]
    packed = files.pack(name, {path: files.File(content) for path, content in uploaded.items()})
    files.UploadedFiles(*packed, 1).setup(None)
    assert before - set(sys.modules) == forgotten


def test_of_uploads_that_arrive_in_another_order_the_one_with_the_greatest_number_counts(worker_folder: Path) -> None:
    for number in (1, 3, 2):
        key, contents = files.pack("scan.py", {"scan.py": files.File(str(number).encode())})
        files.UploadedFiles(key, contents, number).setup(None)
    assert (worker_folder / "scan.py").read_text() == "3"


def test_a_file_can_be_executed_on_workers_if_and_only_if_it_can_be_here(worker_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    script = tmp_path / "tools" / "run.sh"
    script.write_text("#!/bin/sh\n")
    for number, mode in enumerate((0o755, 0o644), 1):
        script.chmod(mode)
        files.UploadedFiles(*files.pack("tools", files.read(script.parent)), number).setup(None)
        assert os.access(worker_folder / "tools" / "run.sh", os.X_OK) == bool(mode & 0o100)


def test_an_upload_that_a_worker_cannot_write_is_an_error_of_the_driver(worker_folder: Path) -> None:
    worker_folder.write_text("a file in the place of the folder")

    async def upload() -> None:
        async with PoolScheduler(protocol="inproc", dashboard=False) as scheduler:
            CallsPlugin(scheduler, 1, None)
            async with Worker(scheduler.address, nthreads=1, memory_limit=0, dashboard=False):
                with pytest.raises(FileExistsError):
                    await driver_of(scheduler).upload("scan.py", {"scan.py": files.File(b"1")})

    asyncio.run(upload())


@pytest.fixture
def local_workers(tmp_path: Path) -> Callable[[], Replicas]:
    """Makes the workers of an attempt of a run on this machine."""
    code = tmp_path / "code"
    (code / "lib").mkdir(parents=True)
    (code / "scan.py").write_text("1")
    (code / "lib" / "newest").symlink_to("../scan.py")
    roles = [{"name": role, "restart": "each", "count": 1, "environment": {}} for role in (WORKER, POSTPROCESS)]
    plan: Any = {"run": tmp_path.name, "hosts": ["127.0.0.1"], "roles": roles, "pool_python": None}
    context = AgentContext(plan, COORDINATOR, 0, None, in_run_folder(str(tmp_path), "/nowhere", "/nowhere"), CLOCK)
    return lambda: Replicas(context, Location("python3", control=str(tmp_path)))


def test_workers_of_roles_with_the_same_variables_share_a_fork_server_and_the_first_forks_the_scheduler() -> None:
    one, four = {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "4"}
    environments = {WORKER: one, "prepare": four, POSTPROCESS: one}
    roles = [{"name": name, "restart": "each", "environment": each} for name, each in environments.items()]
    plan: Any = {"roles": roles, "environment": {}}

    servers = preload.of_workers(plan, "/work", "/usr/bin/python3")

    command = ["/usr/bin/python3", "-m", launchers.POOL_WORKER]
    first = preload.ForkServer("/work/fork-0.sock", command, [], one)
    second = preload.ForkServer("/work/fork-1.sock", command, [], four)
    assert {role: server._replace(modules=[]) for role, server in servers.items()} == {
        WORKER: first,
        "prepare": second,
        POSTPROCESS: first,
    }
    assert servers[WORKER].modules == [launchers.POOL_WORKER, launchers.POOL_SCHEDULER]
    assert servers["prepare"].modules == [launchers.POOL_WORKER]


@pytest.mark.parametrize(
    ("command", "threads", "modules", "shares"),
    [
        (["/usr/bin/python3", "-m", "spotmpi.streams.rank"], "1", launchers.PIPELINE_MODULES, True),
        (["/usr/bin/python3", "-m", "spotmpi.streams.rank"], "4", launchers.PIPELINE_MODULES, False),
        (["/usr/bin/python3", "-m", "spotmpi.streams.rank"], "1", ["mpi4py.MPI"], False),
        (["python3", "-m", "spotmpi.streams.rank"], "1", launchers.PIPELINE_MODULES, False),
        (["/usr/bin/python3", "train.py"], "1", launchers.PIPELINE_MODULES, False),
    ],
)
def test_workers_share_the_fork_server_of_the_ranks_of_a_pipeline_with_their_interpreter_and_variables(
    command: list[str], threads: str, modules: list[str], shares: bool
) -> None:
    gang = {"name": NODE, "restart": "gang", "command": command, "environment": {}}
    role = {"name": WORKER, "restart": "each", "environment": {"OMP_NUM_THREADS": "1"}}
    environment = {"OMP_NUM_THREADS": threads}
    plan: Any = {"roles": [gang, role], "environment": environment, "preload": modules}

    server = preload.of_workers(plan, "/work", "/usr/bin/python3")[WORKER]

    ranks = preload.of_ranks(plan, "/work")
    own = [launchers.POOL_WORKER, launchers.POOL_SCHEDULER]
    assert ranks is not None and (server.path == ranks.path) == shares
    assert server.modules == ([*modules, *own] if shares else own)


def test_what_calls_wrote_stays_when_the_process_of_their_worker_is_started_again(
    local_workers: Callable[[], Replicas], tmp_path: Path
) -> None:
    workers, folder = local_workers(), tmp_path / "worker-0"
    workers._command(Member(WORKER, 0))
    (folder / "results.csv").write_text("of an hour")
    (folder / "scan.py").write_text("uploaded")
    workers._command(Member(WORKER, 0))
    assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == {
        "results.csv": "of an hour",
        "scan.py": "uploaded",
    }


def test_another_attempt_has_the_code_of_its_run_and_what_calls_wrote(
    local_workers: Callable[[], Replicas], tmp_path: Path
) -> None:
    folder = tmp_path / "worker-0"
    local_workers()._command(Member(WORKER, 0))
    (folder / "results.csv").write_text("of an hour")
    (tmp_path / "code" / "scan.py").write_text("2")
    local_workers()._command(Member(WORKER, 0))
    assert ((folder / "scan.py").read_text(), (folder / "results.csv").read_text()) == ("2", "of an hour")
    assert (folder / "lib" / "newest").read_text() == "2"


def test_the_workers_are_as_many_as_was_requested_last_and_each_has_its_process_id_in_a_file(
    local_workers: Callable[[], Replicas], tmp_path: Path
) -> None:
    workers = local_workers()
    own = Member(POSTPROCESS, 0)
    assert workers.members() == [Member(WORKER, 0), own]
    for text, count in (("3", 3), ("0", 1), ("many", 1)):
        (tmp_path / "workers").write_text(text)
        assert workers.members() == [*(Member(WORKER, number) for number in range(count)), own], text
    started: list[Member] = []

    def start(command: Command) -> Any:
        started.append(command["member"])
        return SimpleNamespace(pid=10 + len(started))

    workers.supervise(start, lambda member, end: None)
    assert not started
    (tmp_path / "address.json").write_text('{"process": 7}')
    workers.supervise(start, lambda member, end: None)
    assert started == [Member(WORKER, 0), own]
    assert dict(process_ids(str(tmp_path))) == {COORDINATOR: 7, Member(WORKER, 0): 11, own: 12}
