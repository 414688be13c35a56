"""What node 0 has in memory is soon in that of the next node, and comes back from there: complete, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import __main__, checkpoint_copies, checkpoint_memory, network, processes, protocol, worker
from spotmpi.agent import checkpoint_files as files
from spotmpi.agent.checkpoint_copies import PATIENCE, Copies, Exchange
from spotmpi.agent.checkpoint_files import newest_iteration
from spotmpi.agent.clock import CLOCK
from spotmpi.agent.context import AgentContext, Mounts
from spotmpi.agent.plan import NODE, Member
from spotmpi.agent.stop_requests import PreemptionNotice
from spotmpi.checkpoint.memory import Memory
from tests.clocks import SetClock
from tests.contract.processes import wait_until
from tests.testbed.web import free_pair, free_port
from tests.unit.agent.gang import LIMIT, Gang
from tests.unit.agent.peer_ends import RUN, identity

SIZE = 16_000_000  # bytes: more than what the sockets on the way buffer


def state_of(iteration: int) -> bytes:
    return hashlib.sha256(str(iteration).encode()).digest() * (SIZE // 32)


def write(folder: Path, *iterations: int, said: bytes | None = None) -> None:
    """Checkpoints in *folder*, as rank 0 writes them; *said* is the state that their manifests describe."""
    for iteration in iterations:
        temporary, data = folder / ".writing-test", state_of(iteration)
        temporary.mkdir(parents=True)
        (temporary / files.STATE).write_bytes(data)
        described = {"bytes": len(data), "sha256": hashlib.sha256(said or data).hexdigest()}
        manifest = {"iteration": iteration, "identity": {"seed": 0}, "files": {files.STATE: described}}
        files.publish(str(temporary), str(folder / files.name_of(iteration)), manifest, durable=False)


@pytest.fixture
def copies() -> Iterator[Callable[..., Copies]]:
    """Makes the `Copies` of a folder, closed at the end."""
    opened: list[Copies] = []

    def make(folder: Path, run: str = RUN, authority: str = RUN, **more: Any) -> Copies:
        opened.append(Copies(run, str(folder), identity(run, authority), **more))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def served(tmp_path: Path, copies: Callable[..., Copies]) -> tuple[Path, int]:
    """The memory of node 0, empty, and the port on which it is served."""
    folder, port = tmp_path / "node-0", free_port()
    copies(folder).serve(port)
    return folder, port


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_the_newest_one_is_copied_as_it_is(tmp_path: Path, served: tuple[Path, int], copies: Any) -> None:
    folder, port = served
    write(folder, 3, 4)

    assert copies(tmp_path / "copy").fetch("127.0.0.1", port, 3) == 4

    assert names(tmp_path / "copy") == ["iteration-000000004"]
    copied = tmp_path / "copy" / "iteration-000000004"
    manifest = files.read_manifest(str(copied))
    assert manifest == files.read_manifest(str(folder / copied.name))
    assert files.read_state(str(copied), manifest) == state_of(4)
    assert names(folder) == ["iteration-000000003", "iteration-000000004"], "no link is left"


def test_nothing_newer_is_nothing(tmp_path: Path, served: tuple[Path, int], copies: Any) -> None:
    folder, port = served
    ours = copies(tmp_path / "copy")
    assert ours.fetch("127.0.0.1", port, -1) is None
    write(folder, 4)
    assert ours.fetch("127.0.0.1", port, 4) is None
    assert names(tmp_path / "copy") == []


def test_the_next_node_follows_and_keeps_two(tmp_path: Path, served: tuple[Path, int], copies: Any) -> None:
    folder, port = served
    copy = tmp_path / "copy"
    copies(copy).follow("127.0.0.1", port)
    for iteration in (1, 2, 5):
        write(folder, iteration)
        wait_until(lambda: newest_iteration(str(copy)) == iteration)  # noqa: B023
        files.remove(str(folder / files.name_of(iteration)))

    wait_until(lambda: names(copy) == ["iteration-000000002", "iteration-000000005"])  # the first is removed after it


class Recorded(threading.Event):
    """An event that nobody sets, with the seconds for which it was waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return super().wait(timeout)


class Asked(SetClock):
    """A clock that tells when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def uptime(self) -> float:
        self.asked.set()
        return super().uptime()


def test_what_comes_after_a_long_wait_is_followed_by_no_long_pause(tmp_path: Path, copies: Any) -> None:
    """As at each start of ranks: for as long as they had taken, what they did then was not copied."""
    folder, copy, port, clock, asked = tmp_path / "node-0", tmp_path / "copy", free_port(), SetClock(), Asked()
    copies(folder, clock=asked).serve(port)
    ours = copies(copy, clock=clock)
    ours._stopped = stopped = Recorded()
    ours.follow("127.0.0.1", port)
    assert asked.asked.wait(LIMIT)
    clock.seconds += 0.9
    write(folder, 1)
    wait_until(lambda: newest_iteration(str(copy)) == 1 and stopped.waits)
    assert stopped.waits[0] == checkpoint_copies._LEAST_PAUSE


def test_a_successor_of_node_0_is_followed_like_its_predecessor(tmp_path: Path, copies: Any) -> None:
    port, copy = free_port(), tmp_path / "copy"
    copies(copy).follow("127.0.0.1", port)
    first = copies(tmp_path / "first")
    first.serve(port)
    write(tmp_path / "first", 1)
    wait_until(lambda: newest_iteration(str(copy)) == 1)
    first.close()

    write(tmp_path / "second", 2)
    copies(tmp_path / "second").serve(port)

    wait_until(lambda: newest_iteration(str(copy)) == 2)


def test_one_that_is_being_sent_has_a_link_until_it_has_been(tmp_path: Path, served: tuple[Path, int]) -> None:
    """By which rank 0 knows not to write over it."""
    folder, port = served
    write(folder, 7)
    state = folder / "iteration-000000007" / files.STATE
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        identity().connecting.wrap_socket(plain) as secure,
        secure.makefile("rb") as stream,
    ):
        secure.sendall(json.dumps({"run": RUN, "newer": 1, "wait": 0}).encode() + b"\n")
        stream.readline()
        assert state.stat().st_nlink == 2
        files.remove(str(folder / "iteration-000000007"))
        assert stream.read(SIZE) == state_of(7)[:SIZE]
    wait_until(lambda: names(folder) == [])


def test_a_damaged_one_never_becomes_complete(tmp_path: Path, served: tuple[Path, int], copies: Any) -> None:
    folder, port = served
    write(folder, 8, said=b"something else")

    with pytest.raises(files.Damaged, match="does not match its checksum in the manifest"):
        copies(tmp_path / "copy").fetch("127.0.0.1", port, 0)

    assert names(tmp_path / "copy") == []


def test_of_a_checkpoint_without_a_size_nothing_is_read(tmp_path: Path) -> None:
    """A size below 0 would read all that comes at once."""

    def read(size: int) -> bytes:
        pytest.fail("it is read")

    described = {"bytes": -1, "sha256": "0" * 64}
    with pytest.raises(files.Damaged, match="bytes: -1 is not a size"):
        files.receive(read, {"iteration": 3, "files": {files.STATE: described}}, str(tmp_path), "digits-1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sent", [0, 1, 1_000_000])
def test_a_half_copied_one_never_becomes_complete(tmp_path: Path, copies: Any, sent: int) -> None:
    """Node 0 is lost in the middle; the checkpoint of before stays."""
    copy, port = tmp_path / "copy", free_port()
    write(copy, 1, 2)
    write(tmp_path / "node-0", 3)
    manifest = files.read_manifest(str(tmp_path / "node-0" / "iteration-000000003"))
    listener = network.listen(port)

    def answer() -> None:
        with listener.accept()[0] as plain, identity().accepting.wrap_socket(plain, server_side=True) as secure:
            secure.recv(1000)
            secure.sendall(json.dumps({"manifest": manifest}).encode() + b"\n" + state_of(3)[:sent])

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises((OSError, files.Damaged)):
        copies(copy).fetch("127.0.0.1", port, 2)
    thread.join()
    listener.close()

    assert names(copy) == ["iteration-000000002"]


@pytest.mark.parametrize(("run", "authority"), [("other-1", RUN), (RUN, "other-1")])
def test_another_run_gets_nothing(
    tmp_path: Path, served: tuple[Path, int], copies: Any, run: str, authority: str
) -> None:
    folder, port = served
    write(folder, 1)
    with pytest.raises(OSError):
        copies(tmp_path / "copy", run, authority).fetch("127.0.0.1", port, 0)

    assert names(tmp_path / "copy") == []


def test_strangers_and_nonsense_do_not_keep_the_next_node_from_its_copy(
    tmp_path: Path, served: tuple[Path, int], copies: Any
) -> None:
    folder, port = served
    write(folder, 1)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(checkpoint_copies._MOST_CONNECTIONS - 1)]
    for nonsense in (b"{}", b"[1]", b'{"run": "plain-1"}', b'{"run": "plain-1", "newer": [], "wait": 0}', b"x"):
        wait_until(lambda: _ends(port, nonsense + b"\n"))  # noqa: B023

    def fetch() -> int | None:
        try:
            return int(copies(tmp_path / "copy").fetch("127.0.0.1", port, 0))
        except (OSError, ssl.SSLError):
            return None  # the connection before has not been counted as ended

    assert wait_until(fetch) == 1
    for each in silent:
        each.close()


@pytest.mark.parametrize("lack", ["pod", "folder"])
def test_too_little_memory_is_a_line_and_nothing_is_copied(
    tmp_path: Path,
    served: tuple[Path, int],
    copies: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lack: str,
) -> None:
    folder, port = served
    write(folder, 1)
    (tmp_path / "memory.max").write_text("1000000")
    (tmp_path / "memory.current").write_text("0")
    if lack == "folder":
        usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(checkpoint_copies, "_RETRY_INTERVAL", 0.01)
    ours = copies(tmp_path / "copy", cgroup=str(tmp_path) if lack == "pod" else None)
    tries: list[Any] = []
    copy = ours._copy

    def try_once(*arguments: Any, **more: Any) -> int | None:
        tries.append(arguments)
        return copy(*arguments, **more)  # type: ignore[no-any-return]

    monkeypatch.setattr(ours, "_copy", try_once)
    ours.follow("127.0.0.1", port)
    wait_until(lambda: len(tries) > 3)

    line = "checkpoints of node 0 are not copied: one of 16.0 MB does not fit into 1.0 MB of memory\n"
    assert capsys.readouterr().err == line
    assert names(tmp_path / "copy") == []


SAVING = """
import os, sys, time, spotmpi
if os.environ["RANK"] != "0":
    sys.exit()
found = spotmpi.checkpoint.load(broadcast=lambda value: value)
iteration, text = found or (0, "")
for iteration in range(iteration + 1, 10_000):
    text += str(iteration)
    spotmpi.checkpoint.save(iteration, text)
    time.sleep(0.02)
    if found:
        sys.exit(text != "".join(str(number) for number in range(1, iteration + 1)))
"""


def test_a_successor_of_node_0_goes_on_from_what_the_next_node_has_in_memory(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = gang(sys.executable, "-c", SAVING, checkpoint={"memory": "1", "every": "1h"})
    own, copy = (tmp_path / f"node-{node}" / "spotmpi" / "memory" / "checkpoints" for node in (0, 1))
    run.until("a copy on node 1", lambda: newest_iteration(str(copy)) >= 5)
    run.agents[0].kill()  # with its pod, so that only the next node has anything
    run.agents[1].wait(LIMIT)
    shutil.rmtree(own)
    copied = newest_iteration(str(copy))

    run.start(1, restart_count=1)
    run.until("node 1", lambda: _listens(run.copies_port + 1))
    run.start(0, restart_count=1)

    assert run.agents[0].wait(LIMIT) == 0, (tmp_path / "output-0-1").read_text()
    assert f"checkpoint of iteration {copied} copied from the memory of node 1" in (tmp_path / "output-0-1").read_text()
    second = json.loads((run.paths.attempts / "2" / "node-0.json").read_text())
    assert second["resumed_iteration"] == copied
    assert [path.name for path in run.paths.checkpoints.iterdir()] == [files.name_of(copied + 1)], "at the end"


def test_a_next_node_that_outlives_node_0_gives_its_successor_what_it_has_in_memory(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = gang(sys.executable, "-c", SAVING, started=0, checkpoint={"memory": "1", "every": "1h"})
    run.plan["replaces_nodes"] = True
    for node in (0, 1):
        run.start(node)
    own, copy = (tmp_path / f"node-{node}" / "spotmpi" / "memory" / "checkpoints" for node in (0, 1))
    run.until("a copy on node 1", lambda: newest_iteration(str(copy)) >= 5)
    run.agents[0].kill()
    run.agents[0].wait(LIMIT)
    shutil.rmtree(own)

    run.start(0, restart_count=1)

    assert run.agents[0].wait(LIMIT) == 0, (tmp_path / "output-0-1").read_text()
    second = json.loads((run.paths.attempts / "2" / "node-0.json").read_text())
    assert second["resumed_iteration"] >= 5
    text = f"checkpoint of iteration {second['resumed_iteration']} copied from the memory of node 1"
    assert text in (tmp_path / "output-0-1").read_text()
    assert run.agents[1].poll() is None


class Gate:
    """Passes connections to *port* on to *target* once it is open; before it ends them, and counts those.

    As the network of a cluster, which may know the address of a new pod only after a while.
    """

    def __init__(self, port: int, target: int) -> None:
        self.refused, self.is_open = 0, False
        self._target = target
        self._listener = network.listen(port)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()[0]
            try:
                assert self.is_open
                other = socket.create_connection(("127.0.0.1", self._target))
            except (AssertionError, OSError):
                self.refused += 1
                connection.close()
                continue
            for source, to in ((connection, other), (other, connection)):
                threading.Thread(target=self._pass_on, args=(source, to), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
        for each in (source, to):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_nothing_is_trained_before_the_next_node_can_copy_it_nor_before_its_copy_is_back(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    """Else the loss of node 0 soon after a start costs all that the attempt has done."""
    run = gang(sys.executable, "-c", SAVING, started=0, checkpoint={"memory": "1", "every": "1h"})
    run.plan["replaces_nodes"] = True
    own, copy = (tmp_path / f"node-{node}" / "spotmpi" / "memory" / "checkpoints" for node in (0, 1))
    first, second = free_pair(), free_pair()
    to_node_0, to_node_1 = Gate(second, first), Gate(first + 1, second + 1)
    run.copies_port = second
    run.start(1)
    run.copies_port = first
    run.start(0)

    run.until("node 0", lambda: _listens(first))
    before = to_node_0.refused
    run.until("two tries", lambda: to_node_0.refused > before + 2)
    assert "started" not in [event.kind for event in run.events()], "an attempt of which nothing is copied"
    to_node_0.is_open = True
    run.until("a copy on node 1", lambda: newest_iteration(str(copy)) >= 1)
    run.agents[0].kill()
    run.agents[0].wait(LIMIT)
    shutil.rmtree(own)
    copied = newest_iteration(str(copy))

    to_node_0.is_open = False
    run.start(0, restart_count=1)
    run.until("two tries of the next node 0", lambda: to_node_1.refused > 2)
    assert "started" not in [event.kind for event in run.events(restart_count=1)]
    to_node_0.is_open = to_node_1.is_open = True

    assert run.agents[0].wait(LIMIT) == 0, (tmp_path / "output-0-1").read_text()
    second_attempt = json.loads((run.paths.attempts / "2" / "node-0.json").read_text())
    assert second_attempt["resumed_iteration"] == copied >= 1


def test_an_attempt_does_not_wait_for_long_for_copies_that_never_come(
    tmp_path: Path, copies: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    exchange, port = Exchange(free_pair()), free_port()
    context: Any = context_of(tmp_path, Member(NODE, 1))
    exchange.begin(context)
    node_0: Any = SimpleNamespace(address="127.0.0.1")
    exchange.begin(context, node_0)
    clock = SetClock(0.0)

    def serve() -> bool:
        clock.seconds += 1.0
        return clock.seconds < 100

    try:
        exchange.wait(clock, serve)
        assert clock.seconds == PATIENCE + 1.0
        exchange.wait(clock, serve)
        assert clock.seconds == PATIENCE + 1.0, "not again"
    finally:
        exchange.close()
    assert capsys.readouterr().err.count(f"has not answered on port {exchange._port} for 5 s") == 1, port


def test_node_0_gives_up_a_next_node_that_does_not_answer(
    tmp_path: Path, copies: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoint_copies, "PATIENCE", 0.2)
    exchange = Exchange(free_pair())
    context: Any = context_of(tmp_path, Member(NODE, 0), restart_count=1)
    try:
        exchange.begin(context)
        assert exchange.missing() == "asks node 1 for the newest checkpoint in its memory (tries for 0.2 s)"
        wait_until(lambda: exchange.missing() is None)
        wait_until(lambda: "no checkpoint from the memory of node 1: " in capsys.readouterr().err)
    finally:
        exchange.close()


def test_a_follower_turns_to_the_next_node_0_though_it_has_not_heard_of_the_end_of_the_last(
    tmp_path: Path, copies: Any
) -> None:
    """A machine that is gone sends nothing, not even that."""
    copy, ours = tmp_path / "copy", copies(tmp_path / "copy")
    silent = network.listen(0)
    ours.follow("127.0.0.1", silent.getsockname()[1])
    accepted = silent.accept()[0]
    with identity().accepting.wrap_socket(accepted, server_side=True):
        wait_until(ours.connected.is_set)
        write(tmp_path / "next", 5)
        port = free_port()
        copies(tmp_path / "next").serve(port)
        began = time.monotonic()
        ours.follow("127.0.0.1", port)
        wait_until(lambda: newest_iteration(str(copy)) == 5)
        assert time.monotonic() < began + checkpoint_copies._TIMEOUT / 2
    silent.close()


def test_a_start_of_rank_0_leaves_what_its_agent_is_sending(tmp_path: Path) -> None:
    """Which removes that itself: two that do at once had ended all checkpoints in memory."""
    unfinished, sent = (tmp_path / name for name in (".writing-000000001-plain-1-77", f"{files.SENT}7-plain-1-1"))
    for folder in (unfinished, sent):
        folder.mkdir()
    Memory(str(tmp_path), "1", RUN).prepare()
    assert names(tmp_path) == [sent.name]


def context_of(folder: Path, member: Member, **more: Any) -> AgentContext:
    """That of an agent of two nodes, each of which is lost alone."""
    environment = {protocol.ENV_CHECKPOINT_MEMORY_PATH: str(folder / "memory")}
    plan: Any = {"run": RUN, "environment": environment, "hosts": ["127.0.0.1"] * 2, "replaces_nodes": True}
    mounts = Mounts("", str(folder / "work"), str(folder / "runs"), "", "")
    return AgentContext(plan, member, more.pop("restart_count", 0), identity(RUN), mounts, CLOCK, **more)


def _ends(port: int, request: bytes) -> bool:
    """Whether a connection is ended for *request*; not, where earlier ones have not been counted as ended yet."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            identity().connecting.wrap_socket(plain) as secure,
        ):
            secure.sendall(request)
            return secure.recv(1) == b""
    except OSError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_what_an_earlier_copy_left_unfinished_takes_no_memory(
    tmp_path: Path, served: tuple[Path, int], copies: Any
) -> None:
    folder, port = served
    write(folder, 2)
    left = tmp_path / "copy" / f".writing-000000001-{RUN}-77"
    left.mkdir(parents=True)
    (left / files.STATE).write_bytes(os.urandom(10))

    assert copies(tmp_path / "copy").fetch("127.0.0.1", port, 0) == 2
    assert names(tmp_path / "copy") == ["iteration-000000002"]


def test_what_agents_copy_from_memory_at_their_end_leaves_as_many_on_the_volume_as_are_kept(tmp_path: Path) -> None:
    """Attempts that end before rank 0 writes to the volume would fill it, one checkpoint for each."""
    memory, volume = tmp_path / "memory", tmp_path / "volume"
    environment = {
        protocol.ENV_CHECKPOINT_MEMORY_PATH: str(memory),
        protocol.ENV_CHECKPOINT_PATH: str(volume),
        protocol.ENV_CHECKPOINT_KEEP: "2",
    }
    plan = {"environment": environment, "run": RUN}
    context: Any = SimpleNamespace(plan=plan, folder=str(tmp_path), environment_file=str(tmp_path / "none"))
    volume.mkdir()
    for iteration in (1, 2, 3, 4):
        write(memory, iteration)
        checkpoint_memory.preserve(context)
    assert names(volume) == [files.name_of(3), files.name_of(4)]


@pytest.mark.parametrize(
    ("on_slurm", "code", "iterations"),
    [(True, protocol.INTERRUPTED, [7]), (True, 0, []), (False, protocol.INTERRUPTED, [])],
    ids=["it lost node 0", "the run has ended", "a pod, which stays"],
)
def test_on_slurm_the_next_node_copies_what_it_has_to_the_volume_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_slurm: bool, code: int, iterations: list[int]
) -> None:
    memory, volume = tmp_path / "memory", tmp_path / "volume"
    for name in ("adopt_orphans", "protect_output", "kill_descendants"):
        monkeypatch.setattr(processes, name, lambda: None)
    environment = {
        protocol.ENV_CHECKPOINT_MEMORY_PATH: str(memory),
        protocol.ENV_CHECKPOINT_PATH: str(volume),
        protocol.ENV_CHECKPOINT_KEEP: "3",
    }
    node_0, first = tmp_path / "node-0", free_pair()
    write(node_0, 7)
    sender = Copies(RUN, str(node_0), identity(RUN))
    sender.serve(first)
    plan: Any = {"run": RUN, "environment": environment, "hosts": ["127.0.0.1", "n1"]}
    mounts = Mounts("", str(tmp_path / "work"), str(tmp_path / "runs"), "", "")
    context = AgentContext(plan, Member(NODE, 1), 0, identity(RUN), mounts, CLOCK, slurm=on_slurm)

    def work(*arguments: Any) -> int:
        transport.exchange.begin(context, SimpleNamespace(address="127.0.0.1"))  # as it does once it has joined node 0
        wait_until(lambda: newest_iteration(str(memory)) == 7)
        return code

    monkeypatch.setattr(worker, "run", work)
    try:
        transport: Any = SimpleNamespace(exchange=None)
        assert __main__.run_member(context, transport, PreemptionNotice("this node", signals=()), first) == code
    finally:
        sender.close()
    assert names(volume) == [files.name_of(iteration) for iteration in iterations]


@pytest.mark.parametrize("name", ["iteration-²", "iteration-", "iteration-7x"])
def test_a_folder_with_a_strange_name_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    write(tmp_path, 3)
    (tmp_path / name).mkdir()
    (tmp_path / name / files.MANIFEST).touch()
    assert newest_iteration(str(tmp_path)) == 3


def test_a_thread_that_cannot_be_started_ends_one_connection_alone(
    tmp_path: Path, served: tuple[Path, int], copies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may have a limit of threads, which its ranks use up for a while."""
    folder, port = served
    write(folder, 1)
    start = threading.Thread.start
    failed: list[threading.Thread] = []

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "copies" and len(failed) < 2 * checkpoint_copies._MOST_CONNECTIONS:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    copies(tmp_path / "copy").follow("127.0.0.1", port)
    wait_until(lambda: newest_iteration(str(tmp_path / "copy")) == 1)
    assert len(failed) == 2 * checkpoint_copies._MOST_CONNECTIONS
