"""A run in pods as node 0's agent meets it, simulated: machines, JobSet, members, ranks, the run volume and time.

Real are the agent's loop, attempts, history, record, fence, readiness, and what polls for requests. Each agent is a
thread, of which one at a time runs until it waits: a schedule of events always gives the same run. What is simulated
behaves as the originals do:

- Where all pods live, the same agents begin the next attempt: each member kills what is left of the last one, answers
  that, and gets ready again. One that is out of reach answers nothing.
- JobSet (its failure policy is in `plan.manifests`) starts all pods anew when one fails: exit code 75 or a disruption
  counts towards nothing, any other code but 78 towards ``maxRestarts``, and 78 ends it. A pod that is deleted gets
  SIGTERM, and SIGKILL after ``terminationGracePeriodSeconds``, which is `END_TIME` more than `checkpoint.grace`: that
  is not a disruption, but any other code. Its successor starts once it is gone, unless it was deleted by force: then it
  goes on until its machine is gone.
- Pods that stand by are ready a while after those of the nodes; `Assignment` decides which one replaces a lost node.
- Where a JobSet *replaces* single nodes, such a failure starts one pod anew, and agents of others go on: those of the
  gang join the next agent of node 0, and a new one takes the place of a lost one at the next attempt. An agent that was
  out of reach joins again.
- An agent that stalls is silent, but its connection stays.
- mpirun ends a while after one of its ranks was killed, which its wrapper reports in its output before.
  It ends with exit code 1 a moment after one of its nodes is gone. The connection to a node's agent closes with its
  process, but is only silent where the node is out of reach: then it counts as lost after a while, maybe after mpirun.
- A process that is killed runs no cleanup; what it holds open is closed.
- A full disk refuses what needs a new block, until a file is removed (`Record` keeps one for that); see
  `tests.transient_errors` for errors that pass.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from spotmpi.agent import coordinator, network, pod_record, processes, protocol, record
from spotmpi.agent.attempt_history import pods_at_work
from spotmpi.agent.clock import Clock
from spotmpi.agent.context import AgentContext, Members, Mounts
from spotmpi.agent.launch import Launch
from spotmpi.agent.outcomes import Outcome, StopSignal
from spotmpi.agent.peers import JOIN_GRACE, Assignment
from spotmpi.agent.plan import COORDINATOR, NODE, STANDBY, Member
from spotmpi.agent.pod_record import PodRecord
from spotmpi.agent.readiness import Readiness, Staging
from spotmpi.agent.record import Record
from tests.transient_errors import TransientErrors

EPOCH = 1_795_000_000.0
TICK = 0.5  # seconds that a poll takes: the machine has little of a processor
STEP = 4.0  # seconds of an iteration
ITERATIONS = 10
SILENCE = 5.0  # seconds; the kernel closes a connection up to half as much later
HORIZON = 3600.0  # seconds in which every run has to end
END_TIME = 2.0  # seconds; that of pods (`pod_context`) is longer
RESTART_DELAY = 2.0  # seconds from the end of a pod to the start of the agent of the next one


class Event(NamedTuple):
    """Something that happens *at* a second; what *value* means depends on the kind."""

    at: float
    kind: str
    value: int = 0


class Schedule(NamedTuple):
    """A run and what happens to it."""

    events: tuple[Event, ...] = ()
    nodes: int = 2
    # Of the programs of the first attempts: exit code and iteration, as "1@3", "-9@3" of a killed rank, or "hang@2".
    ends: tuple[str, ...] = ()
    checkpoint: float = 1.0  # seconds
    grace: float = 6.0  # that of pods, with the `END_TIME`
    failures: int = 2
    interruptions: int = 4
    run: float | None = None  # seconds
    cost: float | None = None  # dollars
    replaces: bool = False  # JobSet restarts the Job of one node alone
    standby: int = 0  # pods that stand by for lost nodes, where it does
    margin: float | None = None  # seconds of the grace that are left for a checkpoint; all of it by default

    @property
    def going_on(self) -> float:
        """Seconds for which ranks go on after a notice, as long as no pod stands by."""
        return 0.0 if self.margin is None else max(self.grace - END_TIME - self.margin, 0.0)

    @property
    def pods(self) -> list[Member]:
        """All pods: those of the nodes first."""
        standby = self.standby if self.replaces and self.nodes > 1 else 0
        return [*nodes(self.nodes), *(Member(STANDBY, number) for number in range(standby))]


def nodes(count: int) -> list[Member]:
    return [Member(NODE, number) for number in range(count)]


def host(pod: Member) -> str:
    return f"run-{pod.file}"


class Killed(BaseException):
    """The process of this agent was killed."""


class Fact(NamedTuple):
    """What really happened at a second, to an attempt (0: before its agent has taken one)."""

    at: float
    kind: str
    attempt: int
    value: Any = None


class Agent:
    """The pod of node 0: its agent, a thread that runs while no other does, and its clocks."""

    def __init__(self, world: World, restart_count: int) -> None:
        self.world, self.restart_count = world, restart_count
        self.attempt = 0
        self.number = len(world.agents)
        self.killed = self.done = False
        self.frozen_until = 0.0
        self.replaced = False  # by force: it goes on beside its successor
        self.notice: Any = SimpleNamespace(reason=None)
        self.clock = MachineClock(self)
        self.members: SimulatedMembers | None = None
        self.programs: list[Program] = []
        self.code: int | None = None
        self._turn = threading.Semaphore(0)
        self._waits = 0
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        world.at(0.0, self._resumption())

    def wait(self, seconds: float) -> None:
        """Let time pass, and others run meanwhile."""
        if self.killed:
            raise Killed
        due = max(self.world.now + seconds, self.frozen_until)
        if self.world.is_quiet_until(due):
            self.world.now = due
            return
        self.world.at(due - self.world.now, self._resumption())
        self._yield()
        if self.world.now < self.frozen_until:
            self.wait(0.0)

    def kill(self) -> None:
        """End the agent and its processes without any cleanup."""
        if self.done or self.killed:
            return
        self.world.note("agent killed", self.attempt)
        self.killed = True
        for program in self.programs:
            program.end(-signal.SIGKILL)
        self._resumption()()
        self._thread.join()

    def _resumption(self) -> Callable[[], None]:
        """What goes on with the thread where it waits now."""
        self._waits += 1
        waits = self._waits

        def resume() -> None:
            if waits == self._waits and not self.done:
                self.world.current = self
                self._turn.release()
                self.world.turn.acquire()
                self.world.current = None

        return resume

    def _yield(self) -> None:
        self.world.turn.release()
        self._turn.acquire()
        if self.killed:
            raise Killed

    def _main(self) -> None:
        self._turn.acquire()
        try:
            if not self.killed:
                self.code = coordinator.run(self.world.context(self), SimulatedTransport(self), self.notice)
        except Killed:
            pass
        except BaseException:
            self.world.crashes.append(traceback.format_exc())
            self.code = 1
        self.done = True
        for program in self.programs:
            program.end(-signal.SIGKILL)
        if not self.killed:
            self.world.at(0.0, lambda: self.world.jobset.pod_ended(self))
        self.world.turn.release()


class MachineClock(Clock):
    """The clocks of a machine, of which only Unix time is ever set; the others count from its boot."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __call__(self) -> float:
        return EPOCH + self._agent.world.now + self._agent.world.unix_offset

    def uptime(self) -> float:
        return 100.0 + 1000.0 * self._agent.number + self._agent.world.now

    def elapsed(self) -> float:
        return self.uptime() + 17.0

    def sleep(self, seconds: float) -> None:
        self._agent.wait(seconds)

    def select(self, selector: Any, timeout: float) -> Any:
        self._agent.wait(max(timeout, TICK))
        return selector.select(0)


class Program:
    """An mpirun whose rank 0 runs here, as `subprocess.Popen` shows it; it can end by itself at an iteration."""

    def __init__(self, world: World, agent: Agent) -> None:
        self.world, self.agent, self.attempt = world, agent, agent.attempt
        self.pid = 1_000_000 + len(world.programs)
        self.returncode: int | None = None
        end, _, at = (world.next_end() or f"0@{ITERATIONS}").partition("@")
        self._end, self._end_at = end, int(at)
        self.iteration = world.checkpoint
        self._pipes = [os.pipe() for _ in range(2)]
        self.stdout, self.stderr = (os.fdopen(read, "rb", 0) for read, _ in self._pipes)
        world.programs.append(self)
        agent.programs.append(self)
        members = agent.members
        assert members is not None, "they are ready"
        pods = [COORDINATOR, *(members.pod(node) for node in sorted(members.gang))]
        absent = [pod for pod in pods[1:] if world.up[pod] > world.now]
        world.note("launched", self.attempt, SimpleNamespace(pods=pods, absent=absent))
        self._later(1.0, self._begin)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int:
        assert self.returncode is not None, "it was killed before"
        return self.returncode

    def receive(self, number: int) -> None:
        """Handle a signal."""
        if self.returncode is not None:
            return
        self.world.note("signal", self.attempt, signal.Signals(number).name)
        if number == signal.SIGUSR1:
            self._later(self.world.schedule.checkpoint, lambda: self._store("notice"))
        elif number == signal.SIGTERM:
            self._later(0.3, lambda: self.end(-number))
        elif number == signal.SIGKILL:
            self.end(-number)

    def end(self, code: int) -> None:
        """End with *code*, negative for a signal."""
        if self.returncode is None:
            self.returncode = code
            self.world.note("launcher ended", self.attempt, code)
            for _, write in self._pipes:
                os.close(write)

    def lose_node(self) -> None:
        """End as mpirun does when a node is gone."""
        self._later(1.5, lambda: self.end(1))

    def _later(self, seconds: float, step: Callable[[], None]) -> None:
        self.world.at(seconds, lambda: None if self.returncode is not None else step())

    def _begin(self) -> None:
        Path(self.world.context(self.agent).pid_file).write_text(str(self.pid))
        self.world.note("can take SIGUSR1", self.attempt)
        self._report(protocol.RESUMED, iteration=self.iteration)
        self._later(STEP, self._step)

    def _step(self) -> None:
        self.iteration += 1
        if self.iteration >= self._end_at and self._end == "hang":
            self.world.note("program hangs", self.attempt)
            return
        self._report(protocol.METRIC, iteration=self.iteration)
        if self.iteration % 3 == 0:
            self._store("timer")
        if self.iteration >= self._end_at:
            code = int(self._end)
            self.world.note("program ended", self.attempt, code)
            if code < 0:
                self._report_rank(code)
            self._later(2.0 if code < 0 else 0.0, lambda: self.end(128 - code if code < 0 else code))
        else:
            self._later(STEP, self._step)

    def _report_rank(self, code: int) -> None:
        """Report a killed rank as its rank wrapper does, at the end of what it has printed."""
        for _, write in self._pipes:
            WRITE(write, b'half a line{"spotmpi":"rank_end","rank":0,"code":%d}\n' % code)

    def _store(self, reason: str) -> None:
        if not self.agent.replaced:
            self.world.checkpoint = self.iteration
        self.world.note("checkpoint", self.attempt, reason)
        self._report(protocol.CHECKPOINT, iteration=self.iteration, path="c", seconds=1.0, reason=reason)

    def _report(self, kind: str, **values: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            WRITE(self._pipes[0][1], (protocol.encode(kind, **values) + "\n").encode())


class SimulatedMembers(Members):
    """The other nodes of a run, each ready a while after it was started, and sooner for another attempt.

    Connections are by member, as node 0 has them; `World.up` is by pod.
    """

    def __init__(self, agent: Agent, folder: str) -> None:
        self._world, self._agent = agent.world, agent
        self._schedule = agent.world.schedule
        self._assignment = Assignment(self._schedule.nodes, self._standby(), pods_at_work(folder))
        others = self._schedule.pods[1:]
        if not self._schedule.replaces:
            self._world.up = dict.fromkeys(others, self._world.now)
        self._pods, self._opened = 0, self._world.now
        self.connections: dict[Member, Any] = {member: self._connection(member) for member in others}
        self._ready = {member: self._since(member) + 1.0 + order for order, member in enumerate(others, 1)}
        self._idle: dict[Member, float] = {}  # when nodes have ended what was left of the attempt
        self.machines: dict[Member, dict[str, Any]] = {
            node: {"member": node.text} for node in nodes(self._schedule.nodes)
        }
        self.hardware: dict[Member, dict[str, Any]] = {}
        self.notices: dict[Member, str] = {}
        self.unfit: dict[Member, str] = {}
        self.ended: dict[Member, tuple[int, str]] = {}
        self.ranks: dict[Member, dict[int, str]] = {}
        self.oom_killed: set[Member] = set()

    @property
    def pods(self) -> list[Member] | None:
        return self._assignment.at_work if self._standby() else None

    def _standby(self) -> int:
        return len(self._schedule.pods) - self._schedule.nodes

    @property
    def gang(self) -> dict[Member, Any]:
        return {member: value for member, value in self.connections.items() if member.role == NODE}

    workers = gang

    def pod(self, member: Member) -> Member:
        """The pod that does the work of a member."""
        return self._assignment.pods[member]

    def member(self, pod: Member) -> Member:
        """The member whose work a pod does."""
        return self._assignment.of(pod)

    def begin(self, attempt: int) -> None:
        """Begin another attempt, where nodes are replaced without those that are lost or have given notice."""
        standing_by = self._standing_by()
        self._ready = {member: max(at, self._world.now + self._pause(member)) for member, at in self._ready.items()}
        self._idle.clear()
        leaving = [member for member, each in self.connections.items() if each.lost or member in self.notices]
        for member in leaving:
            if self.notices.pop(member, None):
                self._world.replace_pod(self.pod(member), 0.0)
        for member in leaving:
            self._connect(member)
        self._fill([member for member in leaving if member in self.workers], standing_by - set(leaving))

    def _pause(self, member: Member) -> float:
        """Seconds by which the agent of a member is later than node 0's."""
        return 0.1 * self._schedule.pods.index(member)

    def _standing_by(self) -> set[Member]:
        """The members that stand by and are ready."""
        return {member for member in set(self.connections) - set(self.workers) if self._is_ready(member)}

    def _fill(self, vacant: list[Member], standing_by: set[Member]) -> None:
        """Let pods that stand by take the places of nodes that have no agent."""
        for promotion in self._assignment.promote(vacant, standing_by):
            node, member = promotion.node, promotion.standby
            self._world.note("promoted", self._agent.attempt, promotion.pod)
            self.connections[node] = self.connections[member]
            self._ready[node] = self._world.now + self._pause(node)
            self._connect(member)

    def _connect(self, member: Member) -> None:
        """Expect the agent of a member, which gets ready once it is there."""
        self.connections[member] = self._connection(member)
        self._ready[member] = self._since(member) + 1.0

    def _is_vacant(self, member: Member) -> bool:
        return self._world.up[self.pod(member)] > self._world.now and not self.connections[member].silent

    def _since(self, member: Member) -> float:
        return max(self._world.now, self._world.up[self.pod(member)])

    def _is_ready(self, member: Member) -> bool:
        return self._world.now >= self._ready[member] and not self.connections[member].silent

    def _connection(self, member: Member) -> Any:
        self._pods += 1
        address = f"10.{self._pods}.{self._agent.restart_count}.{member.file}"
        return SimpleNamespace(lost=False, gone=False, silent=False, last_received=0.0, address=address)

    @property
    def idle(self) -> set[Member]:  # type: ignore[override]
        return {node for node, at in self._idle.items() if at <= self._world.now and not self.workers[node].silent}

    hint = ""

    @property
    def standby_ready(self) -> int:
        ready = len(self._standing_by())
        if ready >= len(self.notices):
            self._world.note("all can be replaced", self._agent.attempt)
        return ready

    def is_whole(self) -> bool:
        return not self.notices and not any(worker.lost for worker in self.workers.values())

    def missing(self) -> list[int]:
        return [node.number for node in self.workers if not self._is_ready(node)]

    def lost(self) -> list[Member]:
        return [node for node, worker in self.workers.items() if worker.lost and node not in self.ended]

    def serve(self, timeout: float) -> None:
        if timeout:
            self._agent.wait(max(timeout, TICK))
        for worker in self.connections.values():
            if not worker.silent:
                worker.last_received = self._agent.clock.uptime()
        for member in set(self.connections) - set(self.workers):
            if self.connections[member].lost and self._world.up[self.pod(member)] <= self._world.now:
                self._connect(member)
        if self._world.now >= self._opened + JOIN_GRACE:
            self._fill([node for node in self.workers if self._is_vacant(node)], self._standing_by())

    def dismiss(self, node: Member, reason: str) -> None:
        self.notices[node] = reason

    def broadcast(self, **message: Any) -> None:
        if "end" in message:
            self._idle = {node: self._world.now + self._pause(node) for node in self.workers}

    broadcast_to_gang = broadcast

    def close(self) -> None:
        self._agent.members = None

    def addresses(self) -> dict[str, set[str]]:
        """What DNS knows."""
        found = {host(self.pod(member)): {each.address} for member, each in self.connections.items()}
        return found | {host(COORDINATOR): {"10.0.0.0"}}


class SimulatedTransport:
    """The transport of one agent; JobSet starts all of them anew where a node is lost."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def open_record(self, context: AgentContext) -> Record:
        Path(context.folder).mkdir(parents=True, exist_ok=True)
        return WatchedRecord(self._agent, context)

    def open_members(self, context: AgentContext, number: int, run_record: Record) -> SimulatedMembers:
        if self._agent.members is None:
            self._agent.members = SimulatedMembers(self._agent, context.folder)
        else:
            self._agent.members.begin(number)
        return self._agent.members

    def prepare(
        self, context: AgentContext, number: int, stop_signal: StopSignal, run_record: Record, since: float
    ) -> Launch | Outcome:
        members: Any = self._agent.members
        staging = Staging(None, "")
        readiness = Readiness(
            lambda: context.with_pods(members.pods).hosts, members, staging, context.clock, names=True
        )
        readiness.addresses[host(COORDINATOR)] = "10.0.0.0"
        failure = readiness.wait(context.plan["limits"]["start"], run_record, stop_signal)
        if failure is not None:
            return failure
        command: Any = {"member": COORDINATOR, "name": "launcher", "arguments": ["mpirun"], "environment": {}}
        return Launch([command], {}, context.pid_file)


class WatchedRecord(PodRecord):
    """The record of a pod, which notes who writes what; its fence looks as often as its thread would."""

    def __init__(self, agent: Agent, context: AgentContext) -> None:
        self._agent = agent
        super().__init__(context.folder, agent.clock, context.restart_count)

    def claim_attempt(self) -> int:
        number = super().claim_attempt()
        self._agent.attempt = number
        self._agent.world.note("attempt", number, self._agent.number)
        if self._agent.replaced:  # during an earlier attempt
            self._agent.world.note("replaced", number)
        return number

    def check_fence(self) -> None:
        if self._fence:
            with contextlib.suppress(pod_record.Fenced, OSError):  # as its thread does
                self._fence.check_before_write(final=False)
        super().check_fence()

    def close(self) -> None:
        if self._agent.killed:
            self._close_files()
        else:
            super().close()

    def write_text(self, name: str, text: str) -> None:
        super().write_text(name, text)
        self._agent.world.note("write", self._agent.attempt, name)

    def _append(self, name: str, text: str) -> None:
        super()._append(name, text)
        self._agent.world.note("write", self._agent.attempt, name)

    def _print(self, kind: str, values: Any) -> None:
        pass


class JobSet:
    """Starts the pods of a run, and starts them anew as its failure policy says."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.counted = self._restarts = 0
        self.end: str | None = None
        self._restarting = False
        self.agent = Agent(world, 0)
        world.agents.append(self.agent)

    def pod_ended(self, agent: Agent) -> None:
        """Node 0's pod has ended by itself."""
        self._world.note("exit", agent.attempt, agent.code)
        if agent is not self.agent or self.end:
            return
        if self._restarting:
            self._start_later()
        elif agent.code == 0:
            self.end = "completed"
        elif agent.code == protocol.NOT_RETRYABLE:
            self.end = "failed"
        elif self._count(agent.code != protocol.INTERRUPTED):
            self._restarting = True
            self._start_later()

    def pod_killed(self, agent: Agent, disrupted: bool) -> None:
        """Node 0's pod was killed, with its machine if it was *disrupted*."""
        if agent is self.agent and not self.end and not agent.done:
            agent.kill()
            if self._restarting or self._count(not disrupted):
                self._restarting = True
                self._start_later()

    def restart(self) -> None:
        """Delete all pods, because one of another node was disrupted, and start them anew."""
        if self.end or self._restarting or self._world.schedule.replaces:
            return
        self._restarting = True
        agent = self.agent
        if agent.done:
            self._start_later()
            return
        self._world.give_notice(agent)
        self._world.at(self._world.schedule.grace, lambda: self.pod_killed(agent, True))

    def replace(self, seconds: float) -> None:
        """Delete node 0's pod by force, whose machine goes on for some *seconds*, and start all pods anew."""
        agent = self.agent
        if self.end or self._restarting or agent.done:
            return
        self._world.note("replaced", agent.attempt)
        agent.replaced = self._restarting = True
        self._world.at(seconds, agent.kill)
        self._start_later()

    def _count(self, counts: bool) -> bool:
        """Whether there is another restart, which *counts* or not."""
        self.counted += counts
        if self.counted > self._world.schedule.failures:
            self.end = "ReachedMaxRestarts"
        return self.end is None

    def _start_later(self) -> None:
        agent = self.agent

        def start() -> None:
            if agent is not self.agent or self.end:
                return
            self._restarts += 1
            self._restarting = False
            self.agent = Agent(self._world, self._restarts)
            self._world.agents.append(self.agent)

        self._world.at(RESTART_DELAY, start)


class Volume(TransientErrors):
    """The run volume, which refuses calls of agents: for a moment, or while it is full."""

    def __init__(self, patch: Callable[[Any, str, Any], None]) -> None:
        self.world: World | None = None
        super().__init__(patch)

    def _check(self, call: str, name: Any) -> None:
        world = self.world
        if world is None or world.current is None or not (world.stumbles or world.now < world.full_until):
            return
        path = str(Path(f"/proc/self/fd/{name}").readlink()) if isinstance(name, int) else os.fspath(name)
        if not path.startswith(str(world.folder) + "/runs"):
            return
        error = 0
        if world.stumbles:
            world.stumbles -= 1
            error = world.stumble
        elif os.path.lexists(world.run_folder / record._RESERVE):
            needs_block = call in ("write", "mkdir") or (call == "open" and path.endswith((".part", record._RESERVE)))
            error = errno.ENOSPC if needs_block else 0
        if error:
            world.note("disk error", world.current.attempt, errno.errorcode[error])
            raise OSError(error, os.strerror(error), path)


class World:
    """Simulated time, and everything that a run is made of."""

    def __init__(self, schedule: Schedule, folder: Path, volume: Volume) -> None:
        self.schedule, self.folder = schedule, folder
        self.run_folder = folder / "runs" / "run"
        self.now = self.unix_offset = self.full_until = 0.0
        self.stumbles, self.stumble = 0, errno.ESTALE
        self.rate = 3600.0  # dollars per hour: one per second
        self.turn = threading.Semaphore(0)
        self.current: Agent | None = None
        self.facts: list[Fact] = []
        self.crashes: list[str] = []
        self.agents: list[Agent] = []
        self.programs: list[Program] = []
        self.checkpoint = 0  # the iteration of the newest
        self.up = dict.fromkeys(schedule.pods[1:], 0.0)  # since when each other pod has an agent
        self._ends = list(schedule.ends)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        volume.world = self
        for name in ("runs", "pod"):
            (folder / name).mkdir()
        for event in schedule.events:
            self.at(event.at, lambda event=event: self._happen(event))  # type: ignore[misc]
        self.jobset = JobSet(self)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something happen in so many seconds."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, action))

    def is_quiet_until(self, moment: float) -> bool:
        """Whether nothing is to happen before then."""
        return bool(self._queue) and self._queue[0][0] > moment

    def note(self, kind: str, attempt: int, value: Any = None) -> None:
        """Remember what really happened."""
        self.facts.append(Fact(self.now, kind, attempt, value))

    def run(self) -> World:
        """Let the run go to its end, and all agents that are left."""
        while self._queue and self.now < HORIZON:
            if self.jobset.end and all(agent.done or agent.killed for agent in self.agents):
                break
            moment, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, moment)
            action()
        for agent in self.agents:
            agent.kill()
        for program in self.programs:
            program.stdout.close()
            program.stderr.close()
        return self

    def context(self, agent: Agent) -> AgentContext:
        """That of an agent, with the plan of its moment."""
        schedule, work = self.schedule, self.folder / f"work-{agent.number}"
        work.mkdir(exist_ok=True)
        limits = {"start": 30.0, "run": schedule.run, "no_progress": 20.0, "cost": schedule.cost, "silence": SILENCE}
        limits |= {"failures": schedule.failures, "interruptions": schedule.interruptions}
        plan: Any = {
            "run": "run",
            "name": "run",
            "launcher": "openmpi",
            "run_on": "all",
            "slots": 1,
            "environment": {},
        }
        plan |= {
            "limits": limits,
            "rate": self.rate,
            "grace": schedule.grace - END_TIME,
            "work": {},
            "oversubscribed": False,
        }
        hosts = [host(pod) for pod in schedule.pods]
        plan |= {"hosts": hosts[: schedule.nodes], "standby": hosts[schedule.nodes :], "submitted": EPOCH}
        plan |= {"replaces_nodes": schedule.replaces, "margin": schedule.grace - END_TIME - schedule.going_on}
        plan |= {"roles": [{"name": NODE, "restart": "gang"}], "metrics_pattern": None, "folder": "/"}
        mounts = Mounts("", str(work), str(self.folder / "runs"), "/nowhere", "", pod_info=str(self.folder / "pod"))
        identity: Any = object()
        return AgentContext(plan, COORDINATOR, agent.restart_count, identity, mounts, agent.clock)

    def next_end(self) -> str | None:
        """How the next program ends; None where it succeeds."""
        return self._ends.pop(0) if self._ends else None

    def give_notice(self, agent: Agent) -> None:
        """Send SIGTERM to an agent."""
        self.note("notice", agent.attempt, 0)
        agent.notice.reason = agent.notice.reason or "the pod of this node received SIGTERM"

    def _happen(self, event: Event) -> None:
        getattr(self, "_" + event.kind)(event.value)

    def _pod(self, value: int) -> Member:
        return self.schedule.pods[value % len(self.schedule.pods)]

    def _kill(self, value: int) -> None:
        """The machine of a pod is gone."""
        pod, agent = self._pod(value), self.jobset.agent
        if pod == COORDINATOR:
            self.jobset.pod_killed(agent, True)
        else:
            self._lose(pod, 0.0)
            self.replace_pod(pod, value % 5)
            self.at(value % 5, self.jobset.restart)

    def _crash(self, value: int) -> None:
        """Node 0's pod is killed for its memory, which counts as a failure for JobSet."""
        self.jobset.pod_killed(self.jobset.agent, False)

    def _reclaim(self, value: int) -> None:
        """A pod gets notice, and is gone after its grace; one that stands by is given up at once."""
        pod, agent = self._pod(value), self.jobset.agent
        if pod == COORDINATOR:
            self.give_notice(agent)
            self.at(self.schedule.grace, lambda: self.jobset.pod_killed(agent, True))
            return
        members = agent.members
        if members is None:
            return
        node = members.member(pod)
        if node not in members.workers:
            self._lose(pod, 0.0)
            self.replace_pod(pod, self.schedule.grace)
            return
        self.note("notice", agent.attempt, pod)
        members.notices[node] = "its pod received SIGTERM"
        worker = members.connections[node]

        def take() -> None:
            if agent is self.jobset.agent and members is agent.members and worker is members.connections[node]:
                if any(program.returncode is None for program in agent.programs):
                    self.note("killed late", agent.attempt)
                self._lose(pod, 0.0)
                self.replace_pod(pod, 0.0)
                self.jobset.restart()

        self.at(self.schedule.grace, take)

    def _delete(self, value: int) -> None:
        """Node 0's pod is deleted, which is not a disruption: killed at the end of its grace, it has failed."""
        agent = self.jobset.agent
        self.give_notice(agent)

        def kill() -> None:
            if not (agent.done or agent.killed):
                self.note("killed late", agent.attempt)
                self.jobset.pod_killed(agent, False)

        self.at(self.schedule.grace, kill)

    def _partition(self, value: int) -> None:
        """A pod is out of reach, for a while or for good: node 0 gives it up."""
        if others := self.schedule.pods[1:]:
            pod = others[value % len(others)]
            self._lose(pod, 1.5 * SILENCE)
            self._expect(pod, 2.5 * SILENCE)

    def _stall(self, value: int) -> None:
        """The agent of a node does nothing for a while, though its host answers."""
        agent = self.jobset.agent
        worker = agent.members and agent.members.workers.get(Member(NODE, 1 + value % 2))
        if worker and not worker.silent:
            worker.silent = True
            self.at(2.0 + value, lambda: setattr(worker, "silent", worker.gone))

    def _lose(self, pod: Member, after: float) -> None:
        """A pod is gone, which its connection tells *after* some seconds."""
        agent = self.jobset.agent
        if agent.members is None:
            return
        member = agent.members.member(pod)
        worker = agent.members.connections[member]
        if worker.gone:
            return
        worker.gone = worker.silent = True
        self.at(after, lambda: setattr(worker, "lost", True))
        if member not in agent.members.workers:
            self.note("standby lost", agent.attempt, pod)
            return
        self.note("lost", agent.attempt, pod)
        for program in agent.programs:
            program.lose_node()

    def replace_pod(self, pod: Member, seconds: float) -> None:
        """A pod ends in some *seconds*, and JobSet starts the next one."""
        self._expect(pod, seconds + RESTART_DELAY)

    def _expect(self, pod: Member, seconds: float) -> None:
        """No agent of a pod answers for some *seconds*."""
        self.note("gone", self.jobset.agent.attempt, pod)
        self.up[pod] = max(self.up[pod], self.now + seconds)

    def _replace(self, value: int) -> None:
        """Node 0's machine does not answer the API server, and goes on for a while beside its successor."""
        self.jobset.replace(5.0 + value)

    def _freeze(self, value: int) -> None:
        """Node 0's agent does nothing for a while."""
        agent = self.jobset.agent
        agent.frozen_until = self.now + value
        self.note("frozen", agent.attempt, self.now + value)

    def _fill(self, value: int) -> None:
        self.full_until = self.now + value

    def _stumble(self, value: int) -> None:
        self.stumbles = value % 4 + 1
        self.stumble = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)[value % 3]

    def _clock(self, value: int) -> None:
        """Unix time is set, by minutes."""
        self.unix_offset += 60.0 * value
        self.note("clock", self.jobset.agent.attempt, value)

    def _stop(self, value: int) -> None:
        """A user stops the run: the terminal annotates its pods."""
        self.note("stop", self.jobset.agent.attempt)
        (self.folder / "pod" / "annotations").write_text('spotmpi.dev/stop="enough"\n')

    def _price(self, value: int) -> None:
        """The next attempts run on another market."""
        self.rate = 3600.0 * (1 + abs(value) % 3) / 2.0


WRITE = os.write  # of ranks, whose pipes are not files of the volume


@contextlib.contextmanager
def simulated() -> Iterator[Volume]:
    """Instead of the machine's processes, names and run volume: simulated ones."""
    with pytest.MonkeyPatch.context() as patch:
        volume = Volume(patch.setattr)

        def current() -> Agent:
            assert volume.world is not None and volume.world.current is not None
            return volume.world.current

        def start(arguments: Any, environment: Any, folder: str) -> Program:
            return Program(current().world, current())

        def signal_group(program: Program, number: int) -> None:
            program.receive(number)

        def signal_process(pid: int, number: int) -> bool:
            (program,) = [each for each in current().world.programs if each.pid == pid]
            is_there = program.returncode is None
            program.receive(number)
            return is_there

        def addresses(host: str) -> set[str]:
            members = current().members
            return members.addresses().get(host, set()) if members else set()

        patch.setattr(processes, "start", start)
        patch.setattr(processes, "signal_group", signal_group)
        patch.setattr(processes, "signal_process", signal_process)
        patch.setattr(processes, "descendants", lambda: [each.pid for each in current().programs])
        patch.setattr(processes, "kill_descendants", lambda: None)
        patch.setattr(processes, "reap_orphans", lambda: None)
        patch.setattr(network, "addresses", addresses)
        patch.setattr(pod_record.Fence, "watch", lambda fence: None)
        patch.setattr(record, "_RESERVE_BYTES", 16)
        yield volume
