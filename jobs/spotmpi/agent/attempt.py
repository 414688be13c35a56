"""One attempt of a run on this machine: start the launchers and workers, watch them, end all of them."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import launcher_output, launchers, processes, protocol
from .clock import CLOCK, Clock
from .files import is_locked
from .launch import SCHEDULER, Launch, node_count
from .launcher_output import Line, LineSplitter, PieceSplitter
from .outcomes import (
    FAILURE,
    INTERRUPTION,
    NOT_RETRYABLE,
    SUCCEEDED,
    Outcome,
    StopRequest,
    StopSignal,
    limit_request,
)
from .plan import COORDINATOR, NODE, Command, Member, RunPlan
from .progress import Progress, Recognizer, Report
from .record import PATTERN, RECOGNIZED, Record

if TYPE_CHECKING:  # few runs have any
    from .replicas import Replicas

_KILLED = tuple(each for number in (signal.SIGKILL, signal.SIGTERM) for each in (-number, 128 + number))
POLL_INTERVAL = 0.1  # seconds between checks of limits and requests
REAP_INTERVAL = 0.005  # seconds between checks of launchers that have closed their pipes, or are being killed
TERM_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
PIPE_GRACE = 1.0  # seconds that output may still arrive after the last launcher ended
REPLICA_GRACE = 3.0  # seconds in which workers end after the launchers
STALL = 2.0  # seconds between two checks, beyond which this process was stopped, or waited for a disk
EXCEPTION_PATIENCE = 15.0  # seconds without progress after which an exception of a rank is named
LONE_PATIENCE = 30.0  # and those after which a rank is named that has ended, or does nothing, while others run
_UNUSED_STREAM = (
    "the program took no batch of its stream: iterate in it over spotmpi.stream(), or remove the table [stream]"
)
_MAX_READS = 100  # of a pipe whose process has ended: others may go on to write to it


class Attempt:
    """Runs what *launch* says once; *stop_signal* is polled for a request to end the attempt."""

    def __init__(
        self,
        number: int,
        plan: RunPlan,
        launch: Launch,
        record: Record,
        stop_signal: StopSignal,
        clock: Clock = CLOCK,
    ) -> None:
        self.number = number
        self.plan = plan
        self.launch = launch
        self.record = record
        self.stop_signal = stop_signal
        self.clock = clock
        recognizer = None if plan["launcher"] == "pool" else Recognizer()  # the driver of a pool trains nothing
        self.progress = Progress(clock.uptime(), plan["metrics_pattern"], recognizer)
        self.pid_file = launch.pid_file
        self._replicas = launch.replicas
        self._replica_failure: Outcome | None = None
        self._replicas_end: float | None = None  # when workers are killed that are left after the launchers
        self._processes: dict[Member, subprocess.Popen[bytes]] = {}  # the launcher of each node
        self._exit_codes: dict[Member, int] = {}  # of each node whose launcher has ended
        self._tails: dict[Member, collections.deque[Line]] = {}
        self._selector = selectors.DefaultSelector()
        variable = "OMPI_COMM_WORLD_RANK" if launchers.is_mpi(plan["launcher"]) else "RANK"
        # Elsewhere this machine has one node of several, whose ranks `mpi.args` may choose.
        size = node_count(plan) * plan["slots"] if plan.get("backend") == "local" else 0
        self._ranks = processes.RankWatch(clock, variable, range(size))
        self._stop_request: StopRequest | None = None
        self._awaiting_checkpoint: tuple[int, float] | None = None  # (count before, deadline)
        self._term_sent: float | None = None
        self._failed_node: Member | None = None
        self._rank_end: tuple[int, int] | None = None  # the rank that has failed there, if known, and its exit code
        self._reported_ends: set[tuple[int, str]] = set()  # of ranks, by stream
        self._abort_by: float | None = None  # when processes are killed, also those that write a checkpoint
        self._last_exit = 0.0
        self._last_check = clock.uptime()
        self._stalled = 0.0  # seconds in which nothing was read or checked
        self._recognized = False  # and recorded
        self._hint_printed = False

    def run(self) -> Outcome:
        """Run it to the end; when this returns, no process of the attempt is left."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.pid_file)
        try:
            self._start()
            # A launcher may close its pipes a while before it exits, and only its exit code tells how it ended.
            while (self._selector.get_map() or self._running()) and not self._drained():
                waits = self._selector.get_map() and self._abort_by is None
                for key, _ in self.clock.select(self._selector, POLL_INTERVAL if waits else REAP_INTERVAL):
                    self._read_pipe(key)
                self._reap_launchers()
                self._supervise_replicas()
                self._check_limits()
            open_pipes = list(self._selector.get_map().values())  # which processes that stay behind hold open
            if open_pipes and self._term_sent is None:
                self._announce_left_behind(map(processes.name, processes.mortal_descendants()))
            for key in open_pipes:
                self._drain(key)
        finally:
            self._kill_all()
        return self._outcome()

    def _start(self) -> None:
        for command in self.launch.commands:
            self._processes[command["member"]] = self._start_command(command)
        self._supervise_replicas()

    def _start_command(self, command: Command) -> subprocess.Popen[bytes]:
        """Start a process, whose output from now on is that of its member."""
        member = command["member"]
        own = {protocol.ENV_ATTEMPT: str(self.number), protocol.ENV_PID_FILE: self.pid_file}
        environment = {**os.environ, **self.launch.environment, **command["environment"], **own}
        process = processes.start(command["arguments"], environment, self.plan["folder"])
        self._tails[member] = collections.deque(maxlen=100)
        splitter = PieceSplitter if launchers.tags_pieces(command["arguments"]) else LineSplitter
        assert process.stdout and process.stderr
        for pipe, stream in ((process.stdout, "o"), (process.stderr, "e")):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (member, splitter(stream), pipe))
        return process

    def _read_pipe(self, key: selectors.SelectorKey) -> None:
        member, splitter, pipe = key.data
        data = os.read(key.fd, 1 << 16)
        self.progress.output_received(self.clock.uptime())
        with self.record.batch(in_order=True):
            for line in splitter.feed(data) if data else splitter.end():
                self._handle_line(member, line)
            for state in splitter.states():
                self._handle_report(member, self.progress.read_state(member, state, self.clock.uptime()))
        if not data:
            self._selector.unregister(key.fileobj)
            pipe.close()

    def _handle_line(self, member: Member, line: Line) -> None:
        """Record a line, and read what it reports, be it the end of a rank."""
        end = protocol.read_rank_end(line.text)
        if end is not None:
            text, rank, code = end
            if text:
                self._handle_line(member, line._replace(text=text))
            # All output of the failed rank has to arrive; its launcher would take its time to end the others.
            self._reported_ends.add((rank, line.stream))
            is_complete = {(rank, "o"), (rank, "e")} <= self._reported_ends
            if is_complete and member not in self._exit_codes and not self._stop_request and self._failed_node is None:
                self._failed_node, self._rank_end = member, (rank, code)
                self._abort(self.plan["grace"])
            return
        report = self.progress.read(member, line, self.clock.uptime())
        self._handle_report(member, report)
        if self.progress.from_text:  # which a pattern or recognition may have read as well
            self.record.line(self.number, member, line)
            self._tails[member].append(line)

    def _handle_report(self, member: Member, report: Report | None) -> None:
        """Record a report, after those that were recognized with it."""
        if not report:
            return
        now = self.clock.uptime()
        earlier = [(now - moment, values) for moment, values in self.progress.earlier]
        if self.progress.first_iteration is not None and self.progress.first_iteration_time is None:
            # The first of the iterations whose times a report has ended before the others.
            ago = earlier[0][0] if earlier else sum((report[1].get("seconds") or [])[1:])
            self.progress.first_iteration_time = self.clock() - ago
            self.progress.first_iteration_elapsed = self.clock.elapsed() - ago
        # Once: from which lines of the output iterations are read, by the pattern or in a well-known form.
        progress = self.progress
        source = (PATTERN, progress.matched) if progress.matched is not None else progress.recognized
        if source and not self._recognized:
            self._recognized = True
            self.record.event(RECOGNIZED, attempt=self.number, form=source[0], line=source[1])
        for ago, values in earlier:
            self.record.metric(self.number, member, protocol.METRIC, values, ago)
        self.record.metric(self.number, member, *report)

    def _reap_launchers(self) -> None:
        for node, process in self._processes.items():
            if node not in self._exit_codes and process.poll() is not None:
                self._exit_codes[node] = process.returncode
                self._last_exit = self.clock.uptime()
                if process.returncode and not self._stop_request and self._failed_node is None:
                    self._failed_node = node
                    self._abort(self.plan["grace"])

    def _supervise_replicas(self) -> None:
        """Restart workers while the launchers run, and end them once those have ended."""
        replicas = self._replicas
        if replicas is None:
            return
        for member, process in list(replicas.processes.items()):
            if process.poll() is not None:
                self._replica_ended(replicas, member, process)
        if self._term_sent is None and not self._launchers_ended():
            replicas.supervise(self._start_command, self._announce_restart)
        elif self._replicas_end is None and self._launchers_ended():
            self._replicas_end = self.clock.uptime() + REPLICA_GRACE
            self._signal_all(signal.SIGTERM)

    def _replica_ended(self, replicas: Replicas, member: Member, process: subprocess.Popen[bytes]) -> None:
        """Learn that the process of a worker has ended; one that can never work ends the attempt."""
        processes.signal_group(process, signal.SIGKILL)  # what it has left behind
        self._last_exit = self.clock.uptime()
        for key in [key for key in self._selector.get_map().values() if key.data[0] == member]:
            self._drain(key)
        code, lines = process.returncode, self._tails[member]
        end = launcher_output.process_reason(code, lines) + replicas.memory_reason(code)
        replicas.ended(member, end, code == protocol.INTERRUPTED)
        if not self._alive():
            processes.kill_descendants()
        is_wanted = self._term_sent is None and not self._launchers_ended() and member in replicas.members()
        if code == protocol.NOT_RETRYABLE and is_wanted:
            reason = protocol.truncate(replicas.label(member) + (self.progress.fatal or "it " + end))
            self._replica_failure = Outcome(NOT_RETRYABLE, reason)
            self._terminate()

    def _announce_left_behind(self, names: Iterable[str]) -> None:
        """Print which processes are killed because nothing of the attempt runs any more that has started them."""
        for name in names:
            self.record.line(self.number, COORDINATOR, Line(None, "e", processes.LEFT_BEHIND % name))

    def _announce_restart(self, member: Member, end: str) -> None:
        self.record.line(self.number, member, Line(None, "e", "%s %s; it is started again" % (member, end)))

    def _drain(self, key: selectors.SelectorKey) -> None:
        """Read what is left in the pipe of a process that has ended; another one may hold its other end for ever."""
        pipe = key.data[-1]
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MAX_READS):
                if not pipe.closed:
                    self._read_pipe(key)
        if not pipe.closed:
            for line in key.data[1].end():
                self._handle_line(key.data[0], line)
            self._selector.unregister(key.fileobj)
            pipe.close()

    def _check_limits(self) -> None:
        """Begin to end the attempt where that is requested or a limit is over, and kill what does not end in time."""
        now = self.clock.uptime()
        # Nobody could have heard anything while this process was stopped, as by `docker pause`: it wakes up before it
        # reads what arrived meanwhile.
        passed, self._last_check = now - self._last_check, now
        if passed > STALL:
            self._stalled += passed
            self.progress.last_progress = min(now, self.progress.last_progress + passed)
        pids = [process.pid for process in self._processes.values()]
        self._announce_left_behind(self._ranks.look(pids, self.launch.ranks.values()))
        has_failed = self._failed_node is not None or self._replica_failure is not None
        if not self._stop_request and not has_failed and self._running():
            self._print_hint(now)
            stop_request = self.stop_signal.pending() or self._exceeded_limit(now)
            if stop_request:
                self._begin_stop(stop_request)
        if self._awaiting_checkpoint:
            before, deadline = self._awaiting_checkpoint
            if self.progress.notice_checkpoints > before or now > deadline:
                self._awaiting_checkpoint = None
                self._end_processes(max(deadline - now, 0.0))
        self._kill_unless_writing()
        late = self._abort_by is None and self._term_sent is not None and now > self._term_sent + TERM_GRACE
        if self._replicas_end is not None and now > self._replicas_end:
            late = True
        if self.stop_signal.kill_requested() or late:
            self._signal_all(signal.SIGKILL)

    def _exceeded_limit(self, now: float) -> StopRequest | None:
        """The end of an attempt that prints nothing, or makes no progress; *stop_signal* knows the other limits."""
        allowed, start = self.plan["limits"], self.launch.start_deadline
        if not self.progress.alive and start and now > start + self._stalled:
            limit = protocol.duration(allowed["start"])
            return limit_request("start", "no output within limits.start (%s); raise it" % limit)
        patience = allowed["no_progress"]
        if self.progress.alive and patience and now > self.progress.last_progress + patience:
            last = "none" if self.progress.iteration is None else self.progress.iteration
            reason = "no progress for limits.no_progress (%s), last iteration %s" % (protocol.duration(patience), last)
            raised = self._exception_of_rank()
            wait = "rank %d has printed %s" % raised[1:] if raised else self.progress.longest_wait(now)
            wait = wait or self._ranks.lone_rank(0.0)
            return limit_request("no_progress", reason + "; " + wait if wait else reason)
        return None

    def _print_hint(self, now: float) -> None:
        """Print once why nothing may happen: a rank has ended or waits alone, perhaps in MPI_Finalize.

        After an exception it does: MPI waits for the others before it ends (mpi4py: "Running Python code", mpi4py.run).
        """
        quiet = now - self.progress.last_progress
        if self._hint_printed or quiet < EXCEPTION_PATIENCE:
            return
        node, text, patience = COORDINATOR, None, self.plan["limits"]["no_progress"]
        raised = self._exception_of_rank()
        if raised is not None:
            node, rank, exception = raised
            text = launcher_output.exception_hint(rank, exception, EXCEPTION_PATIENCE, patience)
        elif quiet > LONE_PATIENCE and (lone := self._ranks.lone_rank(LONE_PATIENCE)):
            text = launcher_output.lone_hint(lone, LONE_PATIENCE, patience)
        if text is not None:
            self._hint_printed = True
            self.record.line(self.number, node, Line(None, "e", text))

    def _exception_of_rank(self) -> tuple[Member, int, str] | None:
        """The node, number and last line of a rank that has printed an exception and then nothing, where MPI waits."""
        found = [(node, launcher_output.exception_of_rank(lines)) for node, lines in self._tails.items()]
        raised = next(((node, *each) for node, each in found if each), None)
        return raised if launchers.is_mpi(self.plan["launcher"]) else None

    def _begin_stop(self, stop_request: StopRequest) -> None:
        """Begin to end the attempt, after a checkpoint where *stop_request* says so and rank 0 can write one."""
        self._stop_request = stop_request
        pid = self._rank_0_pid() if stop_request.checkpoint_first else None
        left = self.stop_signal.patience()
        patience = self.plan["grace"] if left is None else left
        # The id of one that has ended may be that of a process of somebody else, which the signal would end.
        if pid in processes.descendants() and processes.signal_process(pid, signal.SIGUSR1):
            self._awaiting_checkpoint = (self.progress.notice_checkpoints, self.clock.uptime() + patience)
        else:
            self._end_processes(patience)

    def _end_processes(self, patience: float) -> None:
        """Ask all processes to end; where another attempt follows, `_abort`: mpirun takes half a second to ask."""
        assert self._stop_request is not None, "it was begun"
        if self._stop_request.outcome.cause in (FAILURE, INTERRUPTION):
            self._abort(patience)
        else:
            self._terminate()

    def _abort(self, patience: float) -> None:
        """Kill all processes once rank 0 writes no checkpoint, at the latest after *patience* seconds.

        Asked to end, they may wait for a rank that is lost.
        """
        self._term_sent = self.clock.uptime()
        self._abort_by = self._term_sent + patience
        self._kill_unless_writing()

    def _kill_unless_writing(self) -> None:
        if self._abort_by is not None and (self.clock.uptime() > self._abort_by or not is_locked(self.pid_file)):
            self._signal_all(signal.SIGKILL)
            if not self._alive():
                processes.kill_descendants()  # which may hold the pipes open

    def _rank_0_pid(self) -> int | None:
        for _ in range(2):  # a handle that is stale is not so after another open
            with contextlib.suppress(OSError, ValueError), open(self.pid_file, encoding="utf-8") as file:
                return int(file.read())
        return None

    def _terminate(self) -> None:
        self._term_sent = self.clock.uptime()
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        """Send *number* to the launchers and workers that run, or to the groups of all when it is SIGKILL."""
        for node, process in self._processes.items():
            if node not in self._exit_codes or number == signal.SIGKILL:
                processes.signal_group(process, number)
        for process in self._replicas.processes.values() if self._replicas else ():
            processes.signal_group(process, number)

    def _launchers_ended(self) -> bool:
        """Whether there were launchers, and all have ended."""
        return 0 < len(self._processes) == len(self._exit_codes)

    def _alive(self) -> bool:
        return len(self._exit_codes) < len(self._processes) or bool(self._replicas and self._replicas.processes)

    def _running(self) -> bool:
        """Whether a process runs, or one of workers without launchers is to be started again."""
        waits = self._replicas is not None and not self.launch.commands and self._term_sent is None
        return self._alive() or waits

    def _drained(self) -> bool:
        """Whether all launchers ended a while ago: a stray process may hold their pipes open for ever."""
        return not self._running() and self.clock.uptime() > self._last_exit + PIPE_GRACE

    def _kill_all(self) -> None:
        self._signal_all(signal.SIGKILL)
        for node, process in self._processes.items():
            self._exit_codes.setdefault(node, process.wait())
        for process in self._replicas.processes.values() if self._replicas else ():
            process.wait()
        processes.kill_descendants()
        for key in list(self._selector.get_map().values()):
            key.data[-1].close()
        self._selector.close()

    def _launcher_outcome(self, node: Member) -> Outcome:
        code = self._effective_exit_code(node)
        reason = str(self.progress.fatal or self._launcher_reason(node, code))
        if self.progress.fatal or code == protocol.NOT_RETRYABLE:
            return Outcome(NOT_RETRYABLE, protocol.truncate(reason))
        if code == protocol.INTERRUPTED:
            return Outcome(INTERRUPTION, reason)
        return Outcome(FAILURE, reason, node=self._node_of_failure(node))

    def _node_of_failure(self, node: Member) -> int | None:
        """The node on which a rank failed first, where its wrapper has reported it, or that of a launcher on each node.

        None where it was killed: by somebody, or for lack of memory, which tells nothing about the machine.
        """
        if self._effective_exit_code(node) in _KILLED:
            return None
        if self._rank_end is not None:
            return self._rank_end[0] // max(1, self.plan["slots"])
        return None if launchers.is_mpi(self.plan["launcher"]) or node.role != NODE else node.number

    def _launcher_reason(self, node: Member, code: int) -> str:
        """Why the launcher of a node ended with *code*; a pool's scheduler may be there without one."""
        if self._rank_end is not None:
            return launcher_output.rank_end(self._rank_end[0], code, self._tails[node])
        command = next(each for each in self.launch.commands if each["member"] == node)
        if command["name"] == SCHEDULER:
            return launcher_output.SCHEDULER_END + launcher_output.process_reason(code, self._tails[node])
        return launcher_output.describe(node.number, code, self._tails[node], self.plan["launcher"])

    def _effective_exit_code(self, node: Member) -> int:
        if self._rank_end is not None:
            return self._rank_end[1]
        return launcher_output.effective_exit_code(self._exit_codes[node], self._tails[node])

    def _outcome(self) -> Outcome:
        if self._replica_failure is not None:
            return self._replica_failure
        if self._failed_node is not None:
            return self._launcher_outcome(self._failed_node)
        failed = [node for node in self._exit_codes if self._effective_exit_code(node)]
        if self._stop_request and (self._term_sent or failed):
            return self._stop_request.outcome
        if failed:
            return self._launcher_outcome(failed[0])
        return self._unused_stream() or self._ended_scheduler() or Outcome(SUCCEEDED)

    def _ended_scheduler(self) -> Outcome | None:
        """The failure of a scheduler without a driver: only a signal ends it with exit code 0, here not the agent's."""
        if all(command["name"] != SCHEDULER for command in self.launch.commands):
            return None
        reason = launcher_output.SCHEDULER_END + launcher_output.SCHEDULER_SIGNALED + "; `spotmpi stop` ends a pool"
        return Outcome(FAILURE, reason)

    def _unused_stream(self) -> Outcome | None:
        """The failure of a program that took no batch of its stream. A later attempt may have none left to take."""
        has_stream = protocol.ENV_STREAM in self.plan["environment"]
        if not has_stream or self.number > 1 or self.progress.resumed is not None or self.progress.stream_used:
            return None
        return Outcome(NOT_RETRYABLE, _UNUSED_STREAM)
