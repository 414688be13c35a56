"""One attempt of a run on this machine: start the launchers, watch them, end all of them."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import subprocess

from . import exit_diagnosis, launchers, limits, processes, protocol
from .clock import CLOCK, Clock
from .lines import Line, LineSplitter, PieceSplitter
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, SUCCEEDED, Outcome, StopRequest, StopSource
from .plan import AttemptPlan
from .progress import Progress, Report
from .recognition import Recognizer
from .record import RECOGNIZED, Record

POLL_INTERVAL = 0.1  # seconds between checks of limits and requests
REAP_INTERVAL = 0.005  # seconds between checks of launchers that have closed their pipes
TERM_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
PIPE_GRACE = 1.0  # seconds that output may still arrive after the last launcher ended


class Attempt:
    """Runs the plan's commands once.

    *stop_source* is polled for a request to end the attempt. *deadlines* has ``start`` and ``run``, as `Clock.awake`
    counts, and where cost is limited ``cost``, as `Clock.elapsed` does; each may be None.
    """

    def __init__(
        self,
        number: int,
        plan: AttemptPlan,
        record: Record,
        stop_source: StopSource,
        deadlines: dict[str, float | None],
        clock: Clock = CLOCK,
    ) -> None:
        self.number = number
        self.plan = plan
        self.record = record
        self.stop_source = stop_source
        self.clock = clock
        self.deadlines = deadlines
        recognizer = None if plan["launcher"] == "pool" else Recognizer()  # the driver of a pool trains nothing
        self.progress = Progress(clock.awake(), plan["metrics_pattern"], recognizer)
        self.pid_file = plan.get("pid_file") or os.path.join(record.folder, "rank-0.pid")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # of each node
        self._exit_codes: dict[int, int] = {}  # of each node whose launcher has ended
        self._tails: dict[int, collections.deque[Line]] = {}
        self._selector = selectors.DefaultSelector()
        self._stop_request: StopRequest | None = None
        self._awaiting_checkpoint: tuple[int, float] | None = None  # (count before, deadline)
        self._term_sent: float | None = None
        self._failed_node: int | None = None
        self._last_exit = 0.0
        self._recognized = False  # and recorded

    def run(self) -> Outcome:
        """Run it to the end; when this returns, no process of the attempt is left."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.pid_file)
        try:
            self._start()
            # A launcher may close its pipes a while before it exits, and only its exit code tells how it ended.
            while (self._selector.get_map() or self._running()) and not self._drained():
                self._read_output(POLL_INTERVAL if self._selector.get_map() else REAP_INTERVAL)
                self._reap_launchers()
                self._check_limits()
        finally:
            self._kill_all()
        return self._outcome()

    def _start(self) -> None:
        commands = self.plan["commands"]
        port = _free_port() if launchers.PORT in str(commands) else ""
        for command in commands:
            arguments = [argument.replace(launchers.PORT, port) for argument in command["arguments"]]
            own = {key: value.replace(launchers.PORT, port) for key, value in command["environment"].items()}
            environment = {**os.environ, **self.plan["environment"], **own, **self._rank_variables()}
            process = processes.start(arguments, environment, self.plan["folder"])
            self._processes[command["node"]] = process
            self._tails[command["node"]] = collections.deque(maxlen=100)
            splitter = PieceSplitter if launchers.tags_pieces(arguments) else LineSplitter
            assert process.stdout and process.stderr
            for pipe, stream in ((process.stdout, "o"), (process.stderr, "e")):
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, (command["node"], splitter(stream), pipe))

    def _rank_variables(self) -> dict[str, str]:
        return {protocol.ENV_ATTEMPT: str(self.number), protocol.ENV_PID_FILE: self.pid_file}

    def _read_output(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            node, splitter, pipe = key.data
            data = os.read(key.fd, 1 << 16)
            self.progress.output_received(self.clock.awake())
            for line in splitter.feed(data) if data else splitter.end():
                self._handle_line(node, line)
            for state in splitter.states():
                self._handle_report(node, self.progress.read_state(node, state, self.clock.awake()))
            if not data:
                self._selector.unregister(key.fileobj)
                pipe.close()

    def _handle_line(self, node: int, line: Line) -> None:
        report = self.progress.read(node, line, self.clock.awake())
        self._handle_report(node, report)
        # What a pattern or recognition reads is output as well; what a stream reports is not the program's.
        read = self.plan["metrics_pattern"] or self.progress.recognized
        if not report or (read and report[0] != protocol.STREAM):
            self.record.line(self.number, node, line)
            self._tails[node].append(line)

    def _handle_report(self, node: int, report: Report | None) -> None:
        """Record a report, after those that were recognized with it."""
        if not report:
            return
        now = self.clock.awake()
        earlier = [(now - moment, values) for moment, values in self.progress.earlier]
        if self.progress.first_iteration is not None and self.progress.first_iteration_time is None:
            self.progress.first_iteration_time = self.clock() - (earlier[0][0] if earlier else 0.0)
        if self.progress.recognized and not self._recognized:
            self._recognized = True
            form, example = self.progress.recognized
            self.record.event(RECOGNIZED, attempt=self.number, form=form, line=example)
        for ago, values in earlier:
            self.record.metric(self.number, node, protocol.METRIC, values, ago)
        self.record.metric(self.number, node, *report)

    def _reap_launchers(self) -> None:
        for node, process in self._processes.items():
            if node not in self._exit_codes and process.poll() is not None:
                self._exit_codes[node] = process.returncode
                self._last_exit = self.clock.awake()
                if process.returncode and not self._stop_request and self._failed_node is None:
                    self._failed_node = node
                    self._terminate()

    def _check_limits(self) -> None:
        now = self.clock.awake()
        if not self._stop_request and self._failed_node is None and self._running():
            stop_request = self.stop_source.pending() or self._exceeded_limit(now)
            if stop_request:
                self._begin_stop(stop_request)
        if self._awaiting_checkpoint:
            before, deadline = self._awaiting_checkpoint
            if self.progress.notice_checkpoints > before or now > deadline:
                self._awaiting_checkpoint = None
                self._terminate()
        if self.stop_source.kill_requested() or (self._term_sent and now > self._term_sent + TERM_GRACE):
            for process in self._processes.values():
                processes.signal_group(process, signal.SIGKILL)

    def _exceeded_limit(self, now: float) -> StopRequest | None:
        allowed = self.plan["limits"]
        if self.deadlines["run"] and now > self.deadlines["run"]:
            assert allowed["run"] is not None
            return _limit_request("run", "limits.run (%gs) is over; raise it and resume the run" % allowed["run"])
        cost_deadline = self.deadlines.get("cost")
        if cost_deadline is not None and self.clock.elapsed() > cost_deadline:
            return _limit_request("cost", limits.cost_reason(self.plan))
        if not self.progress.alive and self.deadlines["start"] and now > self.deadlines["start"]:
            return _limit_request("start", "no output within limits.start (%gs); raise it" % allowed["start"])
        patience = allowed["no_progress"]
        if self.progress.alive and patience and now > self.progress.last_progress + patience:
            last = "none" if self.progress.iteration is None else self.progress.iteration
            reason = "no progress for limits.no_progress (%gs), last iteration %s" % (patience, last)
            wait = self.progress.longest_wait(now)
            return _limit_request("no_progress", reason + "; " + wait if wait else reason)
        return None

    def _begin_stop(self, stop_request: StopRequest) -> None:
        """Begin to end the attempt, after a checkpoint where *stop_request* says so and rank 0 can write one."""
        self._stop_request = stop_request
        pid = self._rank_0_pid() if stop_request.checkpoint_first else None
        if pid and processes.signal_process(pid, signal.SIGUSR1):
            self._awaiting_checkpoint = (self.progress.notice_checkpoints, self.clock.awake() + self.plan["grace"])
        else:
            self._terminate()

    def _rank_0_pid(self) -> int | None:
        for _ in range(2):  # a handle that is stale is not so after another open
            with contextlib.suppress(OSError, ValueError), open(self.pid_file) as file:
                return int(file.read())
        return None

    def _terminate(self) -> None:
        self._term_sent = self.clock.awake()
        for node, process in self._processes.items():
            if node not in self._exit_codes:
                processes.signal_group(process, signal.SIGTERM)

    def _running(self) -> bool:
        return len(self._exit_codes) < len(self._processes)

    def _drained(self) -> bool:
        """Whether all launchers ended a while ago: a stray process may hold their pipes open for ever."""
        return not self._running() and self.clock.awake() > self._last_exit + PIPE_GRACE

    def _kill_all(self) -> None:
        for process in self._processes.values():
            processes.signal_group(process, signal.SIGKILL)
        for node, process in self._processes.items():
            self._exit_codes.setdefault(node, process.wait())
        processes.kill_descendants()
        for key in list(self._selector.get_map().values()):
            key.data[-1].close()
        self._selector.close()

    def _launcher_outcome(self, node: int) -> Outcome:
        code = self._effective_exit_code(node)
        if self.progress.fatal or code == protocol.NOT_RETRYABLE:
            reason = self.progress.fatal or exit_diagnosis.describe(node, code, self._tails[node])
            reason = protocol.truncate(str(reason))
            return Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE)
        reason = exit_diagnosis.describe(node, code, self._tails[node])
        if code == protocol.INTERRUPTED:
            return Outcome(INTERRUPTION, reason, protocol.INTERRUPTED)
        return Outcome(FAILURE, reason, protocol.FAILED)

    def _effective_exit_code(self, node: int) -> int:
        return exit_diagnosis.effective_exit_code(self._exit_codes[node], self._tails[node])

    def _outcome(self) -> Outcome:
        if self._failed_node is not None:
            return self._launcher_outcome(self._failed_node)
        failed = [node for node in self._exit_codes if self._effective_exit_code(node)]
        if self._stop_request and (self._term_sent or failed):
            return self._stop_request.outcome
        return self._launcher_outcome(failed[0]) if failed else Outcome(SUCCEEDED, None, 0)


def _limit_request(limit: str, reason: str) -> StopRequest:
    """The end of an attempt that exceeded *limit*; without progress it may help to start again, otherwise it cannot."""
    if limit == "no_progress":
        return StopRequest(Outcome(FAILURE, reason, protocol.FAILED, limit=limit), False)
    outcome = Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE, limit=limit)
    return StopRequest(outcome, checkpoint_first=limit in ("run", "cost"))


def _free_port() -> str:
    import socket  # mpirun needs no port

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
