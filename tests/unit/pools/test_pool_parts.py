"""Parts of pools that need no process: certificates, limits of drivers, keys, and what a call becomes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import io
import itertools
import logging
import os
import pickle
import pty
import re
import ssl
import stat
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from distributed.comm.core import CommClosedError
from distributed.comm.tcp import convert_stream_closed_error
from distributed.core import clean_exception, error_message
from tornado.iostream import StreamClosedError

from spotmpi.agent import protocol, record
from spotmpi.agent.plan import POSTPROCESS, WORKER, Member
from spotmpi.api.pools import ExistingRun, NewRun, pool, resize
from spotmpi.core.certificates import run_certificates, write_certificates
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.pools import calls
from spotmpi.pools import pool as pool_module
from spotmpi.pools.calls import Call
from spotmpi.pools.connection import SchedulerConnection, _refusal
from spotmpi.pools.dask_client import remote_error
from spotmpi.pools.engine import Engine
from spotmpi.pools.errors import PoolError, PoolLost
from spotmpi.pools.pool import Pool, PoolSummary
from spotmpi.pools.progress import ProgressBar, for_map
from spotmpi.pools.results import ResultFetcher
from spotmpi.programs.pool import call
from spotmpi.programs.pool.files import File
from spotmpi.programs.pool.scheduler import DriverWatch
from spotmpi.programs.pool.settings import (
    quiet_loggers,
    security,
    settings,
    version_difference,
    versions,
    worker_member,
)


def test_a_run_has_a_certificate_of_its_own_authority_that_is_valid_by_any_clock() -> None:
    texts = run_certificates("scan-1")
    authority, certificate = (
        x509.load_pem_x509_certificate(texts[name].encode()) for name in (protocol.TLS_CA, protocol.TLS_CERTIFICATE)
    )
    certificate.verify_directly_issued_by(authority)
    assert certificate.not_valid_before_utc == datetime(1970, 1, 1, tzinfo=UTC)
    assert certificate.not_valid_after_utc == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    other = x509.load_pem_x509_certificate(run_certificates("scan-1")[protocol.TLS_CA].encode())
    with pytest.raises(InvalidSignature):
        certificate.verify_directly_issued_by(other)


def test_only_their_owner_can_read_the_files_of_certificates(tmp_path: Path) -> None:
    folder = write_certificates(tmp_path / "pool", run_certificates("scan-1"))
    write_certificates(folder, run_certificates("scan-1"))  # of a resumed run
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    context = ssl.create_default_context(cafile=str(folder / protocol.TLS_CA))
    context.load_cert_chain(folder / protocol.TLS_CERTIFICATE, folder / protocol.TLS_KEY)


def test_a_log_of_keys_that_cannot_be_written_is_named_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool ended with FileNotFoundError of a path that nobody had given to it."""
    folder = str(write_certificates(tmp_path / "pool", run_certificates("scan-1")))
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert security(folder).get_connection_args("client")["ssl_context"].keylog_filename == str(tmp_path / "keys")
    absent = str(tmp_path / "absent" / "keys")
    monkeypatch.setenv("SSLKEYLOGFILE", absent)
    message = f"SSLKEYLOGFILE = '{absent}' cannot be written (No such file or directory): unset the variable, or name"
    with pytest.raises(OSError, match=re.escape(message)):
        security(folder)


def test_the_certificates_of_a_run_satisfy_a_strict_check_on_both_ends(tmp_path: Path) -> None:
    """As contexts of Python 3.13 do it by default; Dask's are milder."""
    folder = write_certificates(tmp_path, run_certificates("scan-1"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = []
    for purpose, pipes in (
        (ssl.Purpose.SERVER_AUTH, (to_client, to_server)),
        (ssl.Purpose.CLIENT_AUTH, (to_server, to_client)),
    ):
        context = ssl.create_default_context(purpose, cafile=str(folder / protocol.TLS_CA))
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(folder / protocol.TLS_CERTIFICATE, folder / protocol.TLS_KEY)
        ends.append(context.wrap_bio(*pipes, server_side=purpose is ssl.Purpose.CLIENT_AUTH))
    client, server = ends
    for end in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert {client.version(), server.version()} == {"TLSv1.3"}
    assert all(str(end.getpeercert()).count("scan-1") == 2 for end in ends)  # of the pool, by its authority


@pytest.mark.parametrize("closed", [True, False])
def test_what_dask_leaves_unread_in_a_connection_prints_nothing(
    closed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def opened(engine: Engine) -> None: ...

    monkeypatch.setattr(Engine, "_open", opened)
    gc.collect()  # what other tests left
    caplog.clear()
    engine = Engine("tls://127.0.0.1:1", "")
    unread = engine._loop.create_future()
    lost = engine._loop.create_future()
    failed = threading.Event()
    engine._loop.call_soon_threadsafe(unread.set_exception, TimeoutError("Timeout"))
    engine._loop.call_soon_threadsafe(lost.set_exception, ZeroDivisionError("a defect"))
    engine._loop.call_soon_threadsafe(failed.set)
    assert failed.wait(60)

    if closed:
        engine.close()
    del unread
    gc.collect()
    assert caplog.text == ""

    del lost
    gc.collect()
    assert ("ZeroDivisionError: a defect" in caplog.text) is not closed
    engine.close()


def test_a_connection_that_takes_too_long_to_end_prints_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """A driver that had sent 300 MB printed that of Dask's client, which it had cancelled itself."""
    quiet_loggers()
    for error in (asyncio.CancelledError(), ZeroDivisionError("a defect")):
        try:
            raise error
        except BaseException as caught:
            logging.getLogger("distributed.client").exception(caught)
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


def test_a_pool_ends_without_a_first_driver_and_some_time_after_the_last_one() -> None:
    watch = DriverWatch(start=600.0, limit=1800.0, now=0.0)
    assert watch.reason(False, 599.0) is None
    assert watch.reason(False, 600.0) == "no driver connected within limits.start (10m)"
    assert watch.reason(True, 700.0) is None
    assert watch.reason(False, 2499.0) is None
    assert watch.reason(False, 2500.0) == "no driver for 30m (limits.driver)"


def test_a_pool_may_end_with_its_driver_or_wait_without_a_limit() -> None:
    at_once = DriverWatch(start=600.0, limit=0.0, now=0.0)
    assert at_once.reason(True, 5.0) is None
    assert at_once.reason(False, 5.1) == "no driver for 0s (limits.driver)"
    assert DriverWatch(start=None, limit=None, now=0.0).reason(False, 1e9) is None


def test_versions_that_differ_are_named_with_both() -> None:
    own, other = ({**versions(), "python": version} for version in ("3.11", "3.12"))
    assert version_difference(own, own) is None
    assert version_difference(own, other) == "python 3.11 here and 3.12 in the pool"


def test_reclaims_do_not_count_as_failures_of_calls() -> None:
    assert settings(7)["distributed.scheduler.allowed-failures"] == 7


def test_a_worker_is_known_by_role_and_number_in_its_name() -> None:
    assert worker_member("worker-12-a9f3") == Member(WORKER, 12)
    assert worker_member("postprocess-0-a9f3") == Member(POSTPROCESS, 0)
    assert worker_member("tls://10.0.0.1:80") is None


def test_a_key_names_function_driver_map_and_index() -> None:
    key = calls.key("scan", "9f", 4, 12)
    assert calls.split_key(key) == ("scan", ("9f", 4), 12)
    assert (call.driver_of(key), call.driver_of("sum-0123")) == ("9f", "")


def test_a_call_is_bytes_and_so_is_its_result() -> None:
    packed = call.pack("pow", call.pack_function(pow), (2, 5), {"mod": 7})
    assert pickle.loads(call.execute(packed)) == 4


def test_a_call_sees_the_attributes_that_a_class_of_the_program_had_when_it_was_sent() -> None:
    class Settings:
        rate = 0

    def rate() -> int:
        return Settings.rate

    def send(value: int, function: Callable[..., Any], *args: Any) -> bytes:
        Settings.rate = value
        return call.pack("call", call.pack_function(function), args, {})

    other = send(2, repr, Settings())
    sent = [send(1, rate), send(2, rate), send(1, rate), other, send(1, rate)]
    assert sent[0] == sent[2] == sent[4], "the function is not loaded again"

    results = [pickle.loads(call.execute(each)) for each in sent]

    assert (results[:3], results[4]) == ([1, 2, 1], 1)


def test_a_class_keeps_what_calls_of_one_function_set() -> None:
    class Cache:
        calls = 0

    def count() -> int:
        Cache.calls += 1
        return Cache.calls

    sent = call.pack("count", call.pack_function(count), (), {})
    assert [pickle.loads(call.execute(sent)) for _ in range(3)] == [1, 2, 3]


def test_a_result_leaves_the_classes_of_the_program_as_they_are() -> None:
    """A notebook's class had the attributes and methods of the time of the call again, with other globals."""

    class Point(Exception):
        scale = 1

        def scaled(self) -> int:
            return self.scale

    def fail() -> None:
        raise Point

    packed = call.execute(call.pack("point", call.pack_function(Point), (), {}))
    with pytest.raises(call.CallFailure) as failure:
        call.execute(call.pack("fail", call.pack_function(fail), (), {}))
    Point.scale, method = 2, Point.scaled
    results: list[Any] = []
    fetcher = ResultFetcher(bool, print, lambda sent, future, result: results.append(result), int)

    fetcher.deliver(Call(calls.key("scan", "9f", 0, 0), b"call"), None, packed)
    results.append(remote_error(Call(calls.key("scan", "9f", 0, 1)), failure.value, None))

    assert all(isinstance(each, Point) and each.scaled() == 2 for each in results) and len(results) == 2
    assert Point.scaled is method


class Unpicklable(Exception):
    def __reduce__(self) -> str:
        raise TypeError


def recur() -> None:
    recur()


def unpicklable() -> None:
    raise Unpicklable("no way")


def of_another_module() -> None:
    module = types.ModuleType("redis_of_the_image")
    sys.modules[module.__name__] = module
    module.Error = type("Error", (Exception,), {"__module__": module.__name__})  # type: ignore[attr-defined]
    raise module.Error("no server")


class Nameless:
    def __repr__(self) -> str:
        sys.exit(4)


class NamelessExit(BaseException):
    __repr__ = __str__ = Nameless.__repr__


def raise_nameless() -> None:
    raise NamelessExit


def exit_nameless() -> None:
    raise SystemExit(Nameless())


def raise_with_closed_stderr() -> None:
    """A call that has closed what its error is written to; its worker has no other."""
    stderr = io.TextIOWrapper(io.BytesIO())
    stderr.close()
    vars(sys)["__stderr__"] = stderr
    raise ValueError("closed")


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (recur, RecursionError, "maximum recursion depth exceeded"),
        (unpicklable, PoolError, r"\(it cannot be pickled\):\n(.*\n)*.*Unpicklable: no way"),
        (of_another_module, PoolError, r"\(No module named 'redis_of_the_image'\):\n(.*\n)*redis.*Error: no server"),
        (lambda: exec("raise ValueError('x' * 99999)"), ValueError, "x{99999}$"),
        (lambda: sys.exit(3), RuntimeError, r"the call exited: sys\.exit\(3\)"),
        (lambda: b"\xff".decode(), UnicodeDecodeError, "'utf-8' codec can't decode byte 0xff in position 0"),
        (lambda: compile("a b", "model.py", "exec"), SyntaxError, r"invalid syntax \(model.py, line 1\)"),
        (exit_nameless, RuntimeError, "the call exited: .*<a Nameless, whose representation raises SystemExit>"),
        (lambda: exec("raise KeyboardInterrupt"), RuntimeError, r"the call raised KeyboardInterrupt\(\)"),
        (raise_nameless, RuntimeError, "<a NamelessExit, whose representation raises SystemExit>"),
        (raise_with_closed_stderr, ValueError, "closed"),
    ],
)
def test_what_a_call_raises_reaches_the_driver_whatever_it_is(
    function: Callable[[], None], kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "__stderr__", sys.__stderr__)  # for the one that closes it
    with pytest.raises(call.CallFailure) as failure:
        call.execute(call.pack("call", call.pack_function(function), (), {}))
    sys.modules.pop("redis_of_the_image", None)  # the driver has no such module
    message = error_message(failure.value)  # as Dask sends it, and as its client takes it
    assert message["traceback"]
    _, error, trace = clean_exception(message["exception"].data, message["traceback"].data)
    with pytest.raises(kind, match=text):
        raise remote_error(Call(calls.key("scan", "9f", 0, 0)), error, trace)


def test_a_result_that_exits_when_it_is_loaded_is_the_error_of_its_call() -> None:
    sent = Call(calls.key("scan", "9f", 0, 0), b"call")
    ends: list[BaseException] = []
    fetcher = ResultFetcher(bool, print, lambda call, future, error: ends.append(error), int)
    fetcher.deliver(sent, None, pickle.dumps(Exiting()))
    assert isinstance(ends[0], SystemExit)


class Exiting:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_workers_that_join_and_leave_between_two_looks_are_not_lost() -> None:
    messages: list[str] = []
    connection = SchedulerConnection("", "", "", None, None, messages.append)
    connection._joined = 2
    answers = []
    for joined, seconds, limit in ((3, 13, None), (3, 13, 600.0), (3, 599, 600.0), (4, 601, 600.0), (4, 601, 600.0)):
        connection._last_worker = time.monotonic() - seconds
        description = {"workers": {}, "joined": joined, "size": 2, "occupied": [], "replacement_limit": limit}
        answers.append(asyncio.run(connection.check_workers(description, {None})))
    assert answers == [*[None] * 4, "nodes 1 to 2: all 2 workers are lost for 600 s"]
    assert messages == ["waiting: all 2 workers are lost; calls wait up to 10m (limits.start) for replacements"]
    description = {"workers": {}, "joined": 4, "size": 2, "occupied": [], "replacement_limit": None}
    assert asyncio.run(connection.check_workers(description, {None})) == "nodes 1 to 2: all 2 workers are lost for 12 s"


def test_calls_that_wait_for_cancelled_ones_alone_say_so() -> None:
    """A worker executes a cancelled call to its end, and the calls behind it waited without a word."""
    messages: list[str] = []
    connection = SchedulerConnection("", "", "", None, None, messages.append)

    def look(occupied: Sequence[int] | None, workers: int = 2, awaited: Any = (None,)) -> None:
        known = {} if occupied is None else {"occupied": occupied}
        description = {
            "workers": dict.fromkeys(range(workers)),
            "joined": 2,
            "size": 2,
            "occupied": [],
            "replacement_limit": 600.0,
            **known,
        }
        for _ in range(3):
            assert asyncio.run(connection.check_workers(description, awaited)) is None
            if connection._occupied is not None:
                connection._occupied -= 13

    look([0])  # the other one takes calls
    look([0, 1], awaited=())
    look([0, 1])
    look(None)
    look([0], workers=1)
    look([], workers=0)
    assert messages == [
        "waiting: all 2 workers still execute calls that were cancelled; others wait until one has ended",
        "waiting: the only worker still executes a call that was cancelled; others wait until it has ended",
    ]


@pytest.mark.parametrize(("buffersize", "expected"), [(None, 4), (9, 9), (3, 3)])
def test_a_map_begins_with_few_calls_since_their_results_may_be_large(buffersize: int | None, expected: int) -> None:
    sent: list[Call] = []
    opened = Pool(None)  # type: ignore[arg-type]
    opened._engine = types.SimpleNamespace(  # type: ignore[assignment]
        connection=types.SimpleNamespace(description={"size": 2}), driver="9f", is_copy=False, submit=sent.extend
    )
    opened.map(len, itertools.repeat(bytes(10)), buffersize=buffersize)
    assert len(sent) == expected
    for wrong in (0, 2.5, float("nan")):
        with pytest.raises(
            ValueError, match=f"buffersize = {wrong}: a map has at least one call in flight, and a whole"
        ):
            opened.map(len, [], buffersize=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="map needs at least one iterable"):
        opened.map(len)


def test_an_upload_of_the_folder_above_has_the_name_of_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were written above the folder of each worker, where the keys of the run are on this machine."""
    (tmp_path / "flow" / "inner").mkdir(parents=True)
    (tmp_path / "flow" / "scan.py").write_text("1")
    monkeypatch.chdir(tmp_path / "flow" / "inner")
    uploads: list[tuple[str, dict[str, File]]] = []
    opened = Pool(None)  # type: ignore[arg-type]
    opened._engine = types.SimpleNamespace(  # type: ignore[assignment]
        is_copy=False, upload=lambda *upload: uploads.append(upload)
    )
    for path in ("..", "../inner/..", tmp_path / "flow"):
        opened.upload(path)
    assert uploads == [("flow", {"flow/scan.py": File(b"1")})] * 3
    with pytest.raises(ValueError, match="path = '/': a file or folder with a name"):
        opened.upload("/")


def test_items_whose_number_cannot_be_told_have_a_bar_without_it() -> None:
    class Items(list[int]):
        def __len__(self) -> int:
            raise NotImplementedError("as of a data set that is a stream")

    bar = for_map("abs", [Items([1])], True)
    assert bar is not None and bar._total == 0


@pytest.mark.parametrize("endless", [itertools.repeat(2), itertools.count(), itertools.cycle("ab")])
def test_an_endless_iterable_beside_items_leaves_the_bar_its_end(endless: Iterable[Any]) -> None:
    bars = [for_map("pow", iterables, True) for iterables in ([range(9), endless], [endless], [iter([]), endless])]
    assert [bar and bar._total for bar in bars] == [9, 0, 0]


def test_a_call_that_is_given_a_pool_or_a_future_says_what_to_give_it() -> None:
    future = Call(calls.key("scan", "9f", 0, 0), b"call")
    with pytest.raises(TypeError, match=r"an argument of abs .*: the future of scan is of its .* its result\(\)"):
        call.pack("abs", call.pack_function(abs), (future,), {})
    opened = Pool(None)  # type: ignore[arg-type]
    for bound in (opened.submit, lambda: opened):
        with pytest.raises(TypeError, match=r"the function .*: a pool is of its driver .*spotmpi\.pool\(\) gives"):
            call.pack_function(bound)


def test_each_value_of_a_run_on_every_worker_may_come_from_any_iterable() -> None:
    def submit(batch: Sequence[Call]) -> None:
        for each in batch:
            each.finish(pickle.loads(call.execute(each.payload)))

    opened = Pool(None)  # type: ignore[arg-type]
    opened._engine = types.SimpleNamespace(  # type: ignore[assignment]
        is_copy=False, driver="9f", workers=lambda: {"size": 2}, submit=submit
    )
    assert opened.run(abs, each=(value for value in (-1, -2))) == {0: 1, 1: 2}
    with pytest.raises(ValueError, match="each has 3 values for 2 workers"):
        opened.run(abs, each=dict.fromkeys("abc").values())


def test_one_file_or_override_may_be_given_without_a_list() -> None:
    """Each letter of a path was taken for a file, and its dot for the whole folder."""
    for files, overrides in (("~nobody-here/a.py", "limits.driver=1m"), (Path("scan.py"), ["limits.driver=1m"])):
        new = pool(workers=1, files=files, overrides=overrides)._connection
        assert isinstance(new, NewRun)
        assert new._overrides == ["pool.count=1", f'files+=["{Path.cwd()}/{files}"]', "limits.driver=1m"]


@pytest.mark.parametrize(("state", "expected"), [(record.LOST, PoolLost), (record.FAILED, SpotmpiError)])
def test_a_run_that_is_lost_before_its_pool_is_open_is_a_lost_pool(
    monkeypatch: pytest.MonkeyPatch, state: str, expected: type[Exception]
) -> None:
    """Whoever builds a data set started another one only where it was lost later."""

    def ended(run: str) -> Any:
        raise SpotmpiError(f"run {run} {state}: its agent died")

    backend = types.SimpleNamespace(
        pool_address=ended, state=lambda run: types.SimpleNamespace(id=run, state=state), events=lambda run, follow: ()
    )
    prepared = backend, types.SimpleNamespace(launcher="pool"), {"run": "scan-1", "notes": ()}
    stopped: list[str] = []
    monkeypatch.setattr("spotmpi.api.pools.runs.prepare", lambda *values: prepared)
    monkeypatch.setattr("spotmpi.api.pools.submit", lambda *values: None)
    monkeypatch.setattr("spotmpi.api.pools.stopping.stop_run", lambda backend, run, *values: stopped.append(run))
    with pytest.raises(expected, match=f"^run scan-1 {state}: its agent died$"):
        pool(workers=1).open()
    assert stopped == ["scan-1"]


def test_a_number_is_no_source_of_a_pool() -> None:
    with pytest.raises(InputError, match="source = 3: needs a spec or the id of a pool: workers=3 is their number"):
        pool(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2.5, 4 / 2, float("nan"), "2"])
def test_a_pool_is_scaled_to_whole_numbers_alone(workers: Any) -> None:
    """n / 2 is a float, which the scheduler would keep as the size: nothing could be asked of the pool any more."""
    with pytest.raises(ValueError, match=re.escape(f"workers = {workers!r}: a pool has at least one worker")):
        Pool(None).scale(workers)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs to be 1 or more"):
        resize("scan-1", workers)
    with pytest.raises(InputError, match=r"workers = .*: needs to be 1 or more"):
        pool(workers=workers)


def test_a_resize_that_the_scheduler_does_not_hear_of_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another version of Dask here, calls to the workers that left waited for ever without a word."""
    asked: list[tuple[str, int, str]] = []
    backend = types.SimpleNamespace(
        state=lambda run: types.SimpleNamespace(id="scan-1", folder=str(tmp_path)),
        resize=lambda *values: asked.append(values),
        pool_address=lambda run: contextlib.nullcontext(types.SimpleNamespace(url="tls://node-0", tls="")),
    )
    monkeypatch.setattr("spotmpi.api.pools.targets.backend_of", lambda run, on: backend)
    errors = [PoolLost("it does not answer"), *(PoolError("distributed 2026.8 here") for _ in range(2))]

    def refuse(url: str, tls: str) -> Engine:
        raise errors.pop(0)

    monkeypatch.setattr("spotmpi.api.pools.Engine", refuse)
    (tmp_path / "spec.toml").write_text('launcher = "pool"')
    resize("scan", 2)  # it is not up yet
    with pytest.raises(SpotmpiError, match="scan-1 gets 2 workers, but its scheduler could not be told: distributed"):
        resize("scan", 2)
    (tmp_path / "spec.toml").write_text('command = ["train"]')
    resize("scan", 2)  # any worker of a stream takes its batches
    assert asked == [("scan-1", 2, WORKER)] * 3


def test_an_answer_that_did_not_come_in_time_has_a_reason_in_words() -> None:
    """It was said as "the scheduler does not answer ()"."""
    assert _refusal("tls://h:1", TimeoutError()) == "the scheduler at tls://h:1 does not answer: no answer in time"
    assert _refusal("tls://h:1", ConnectionResetError()).endswith("does not answer: ConnectionResetError")


@pytest.mark.parametrize(
    "error", [TimeoutError("Timed out trying to connect to tls://resnet-ssl-1:8786 after 5 s"), OSError("certificate")]
)
def test_a_host_that_is_called_as_tls_is_no_refusal(error: Exception) -> None:
    text = _refusal("tls://resnet-ssl-1:8786", error)
    assert text == f"the scheduler at tls://resnet-ssl-1:8786 does not answer: {error}"
    error.__cause__ = CommClosedError("in TLS")
    error.__cause__.__cause__ = ssl.SSLError(1, "tlsv1 alert unknown ca")
    assert "refused this driver: its certificates are not those of the run" in _refusal("tls://resnet-1:8786", error)


def test_a_pool_whose_opening_is_cancelled_is_closed() -> None:
    class Waiting:
        run, outlives = "", False
        begun, ended = threading.Event(), threading.Event()

        def open(self, output: object) -> Engine:
            self.begun.set()
            assert self.ended.wait(60), "nobody ends the run"
            raise SpotmpiError("run scan-1 stopped: closed by its driver")

        def resize(self, workers: int) -> None: ...

        def summary(self) -> PoolSummary:
            return PoolSummary()

        def close(self) -> None:
            self.ended.set()

    async def cancel() -> None:
        opening = asyncio.ensure_future(Pool(Waiting()).__aenter__())
        await asyncio.to_thread(Waiting.begun.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(cancel())
    assert Waiting.ended.is_set()


def test_an_asynchronous_call_is_awaited() -> None:
    async def double(value: int) -> int:
        return 2 * value

    assert call.is_async(double) and not call.is_async(pow)
    packed = call.pack("double", call.pack_function(double), (4,), {})
    assert pickle.loads(asyncio.run(call.execute_async(packed))) == 8


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (pow, "pow"),
        (lambda: 0, "lambda"),
        (int, "int"),
        (functools.partial(functools.partial(pow, 2), 3), "pow"),
        (mock.Mock(), "Mock"),  # which has any attribute, such as another function in it
    ],
)
def test_a_function_has_a_name_for_people(function: object, name: str) -> None:
    assert call.function_name(function) == name  # type: ignore[arg-type]


def test_a_map_that_takes_longer_shows_how_far_it_is() -> None:
    stream, now = io.StringIO(), [0.0]
    bar = ProgressBar("scan", 4, stream, lambda: now[0])
    for seconds in (0.5, 1.0, 1.1, 2.0):
        now[0] = seconds
        bar.advance()
    bar.end()
    assert stream.getvalue().split("\r") == [
        "",
        f"scan: [{'#' * 15:<30}] 2/4 (2/s)",
        f"scan: [{'#' * 30}] 4/4 (2/s)",
        f"scan: [{'#' * 30}] 4/4 (2/s)\n",
    ]


def test_a_bar_on_a_terminal_that_was_closed_costs_no_result() -> None:
    stream = io.StringIO()
    bar = ProgressBar("scan", 2, stream, iter([0.0, 2.0, 3.0]).__next__)
    stream.close()
    bar.advance()
    bar.end()


def test_a_short_map_and_one_that_nobody_watches_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert for_map("scan", [range(3)], None) is None
    bar = for_map("scan", [range(3), iter(())], True)
    assert bar
    bar.advance()
    bar.end()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_a_worker_prints_is_shown_in_the_encoding_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding))
    pool_module._print_lines(str, 1, "stdout", ["na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{SNOWMAN}"])
    letter = "\\xef" if encoding == "ascii" else "\xef"
    assert shown.getvalue().decode(encoding) == f"[worker 1] na{letter}ve \\u2603\n"


def test_what_a_worker_prints_does_not_act_on_the_terminal_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A function may print what a server has sent, as one that tests it."""
    terminal, other = pty.openpty()
    with os.fdopen(other, "w") as stdout, (tmp_path / "out").open("w+") as stderr:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        connect = mock.Mock(return_value=mock.Mock(is_copy=False))
        monkeypatch.setattr(ExistingRun, "open", connect)
        pool("pool-1").open()
        for stream in ("stdout", "stderr"):
            connect.call_args.args[0](1, stream, ["\x1b]0;owned\x07\x1b[31mred"])
        shown, written = os.read(terminal, 1000).decode(), (tmp_path / "out").read_text()
    os.close(terminal)
    assert shown == "[worker 1] \\x1b]0;owned\\x07\x1b[31mred\x1b[0m\r\n"
    assert written == "[worker 1] \x1b]0;owned\x07\x1b[31mred\n"


def test_an_unknown_authority_is_a_refusal_though_dask_raises_it_without_its_cause() -> None:
    """With TLS 1.3 it comes with the first message: it was said as "does not answer: in <TLS (closed) ...>"."""
    alert = ssl.SSLError(1, "tlsv1 alert unknown ca")
    alert.reason = "TLSV1_ALERT_UNKNOWN_CA"

    def read() -> None:  # as `distributed.comm.tcp.TCP.read`
        try:
            raise StreamClosedError(real_error=alert)
        except StreamClosedError as error:
            convert_stream_closed_error("<TLS (closed)>", error)

    with pytest.raises(CommClosedError) as raised:
        read()
    assert "refused this driver: its certificates are not those of the run" in _refusal("tls://h:1", raised.value)


def test_a_call_of_a_pool_without_async_says_how_to_await_it() -> None:
    """Python alone says that the object cannot be used in an await expression."""
    call = Call(calls.key("scan", "9f", 0, 0))

    async def wait(several: bool) -> None:
        await (asyncio.gather(call) if several else call)

    for several in (False, True):
        with pytest.raises(TypeError, match=r"take its result\(\), or open the pool with `async with spotmpi.pool"):
            asyncio.run(wait(several))
    assert not call.done()
