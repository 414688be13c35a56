"""One attempt of a run on this machine: start the launchers, watch them, end all of them."""

from __future__ import annotations

import collections
import os
import selectors
import signal
import socket
import subprocess
from typing import Any

from . import cost_limit, exit_diagnosis, launchers, processes, protocol
from .clock import Clock
from .lines import Line, LineSplitter, PieceSplitter
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, SUCCEEDED, Outcome, StopRequest
from .progress import Progress
from .record import Record
from .stop_requests import StopSource

_CLOCK = Clock()
TICK = 0.1  # seconds between looks at limits and requests
REAP_TICK = 0.005  # seconds between looks at launchers that have closed their pipes
TERM_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
PIPE_GRACE = 1.0  # seconds that output may still arrive after the last launcher ended


class Attempt:
    """Runs the plan's commands once.

    *requests* tells at every look whether somebody wants the attempt to end (see `spotmpi.agent.stop_requests`).
    *deadlines* has ``start``, ``run`` and, where money counts, ``cost``: Unix seconds or None. Time in which this
    machine sleeps counts towards ``cost`` alone.
    """

    def __init__(
        self,
        number: int,
        plan: dict[str, Any],
        record: Record,
        requests: StopSource,
        deadlines: dict[str, float | None],
        clock: Clock = _CLOCK,
    ) -> None:
        self.number = number
        self.plan = plan
        self.record = record
        self.requests = requests
        self.clock = clock
        self.paid_until = deadlines.get("cost")
        # From here on these count by the time that this machine is awake.
        asleep = clock() - clock.awake()
        self.deadlines = {
            name: None if (until := deadlines[name]) is None else until - asleep for name in ("start", "run")
        }
        self.progress = Progress(clock.awake(), plan["metrics_pattern"])
        self.pid_file = plan.get("pid_file") or os.path.join(record.folder, "rank-0.pid")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # of each node
        self._codes: dict[int, int] = {}  # of each node whose launcher has ended
        self._tails: dict[int, collections.deque[Line]] = {}
        self._selector = selectors.DefaultSelector()
        self._ending: StopRequest | None = None
        self._awaiting_checkpoint: tuple[int, float] | None = None  # (count before, deadline)
        self._term_time: float | None = None
        self._failed_node: int | None = None
        self._ended_at = 0.0

    def run(self) -> Outcome:
        """The `Outcome`; when it returns, no process of the attempt is left."""
        if os.path.exists(self.pid_file):
            os.remove(self.pid_file)
        try:
            self._start()
            # A launcher may close its pipes a while before it ends, and only its end tells how it went.
            while (self._selector.get_map() or self._running()) and not self._silent_after_end():
                self._pump(TICK if self._selector.get_map() else REAP_TICK)
                self._reap()
                self._look()
        finally:
            self._end_all()
        return self._outcome()

    def _start(self) -> None:
        port = _free_port()
        for command in self.plan["commands"]:
            arguments = [argument.replace(launchers.PORT, port) for argument in command["arguments"]]
            own = {key: value.replace(launchers.PORT, port) for key, value in command["environment"].items()}
            environment = {**os.environ, **self.plan["environment"], **own, **self._variables()}
            process = processes.start(arguments, environment, self.plan["folder"])
            self._processes[command["node"]] = process
            self._tails[command["node"]] = collections.deque(maxlen=100)
            splitter = PieceSplitter if launchers.tags_pieces(arguments) else LineSplitter
            assert process.stdout and process.stderr
            for pipe, stream in ((process.stdout, "o"), (process.stderr, "e")):
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, (command["node"], splitter(stream), pipe))

    def _variables(self) -> dict[str, str]:
        return {protocol.ENV_ATTEMPT: str(self.number), protocol.ENV_PID_FILE: self.pid_file}

    def _pump(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            node, splitter, pipe = key.data
            data = os.read(key.fd, 1 << 16)
            self.progress.heard(self.clock.awake())
            for line in splitter.feed(data) if data else splitter.end():
                self._take(node, line)
            if not data:
                self._selector.unregister(key.fileobj)
                pipe.close()

    def _take(self, node: int, line: Line) -> None:
        said = self.progress.take(node, line, self.clock.awake())
        if self.progress.first_iteration is not None and self.progress.first_iteration_time is None:
            self.progress.first_iteration_time = self.clock()
        if said:
            self.record.metric(self.number, node, *said)
        if not said or self.plan["metrics_pattern"]:
            self.record.line(self.number, node, line)
            self._tails[node].append(line)

    def _reap(self) -> None:
        for node, process in self._processes.items():
            if node not in self._codes and process.poll() is not None:
                self._codes[node] = process.returncode
                self._ended_at = self.clock.awake()
                if process.returncode and not self._ending and self._failed_node is None:
                    self._failed_node = node
                    self._terminate()

    def _look(self) -> None:
        now = self.clock.awake()
        if not self._ending and self._failed_node is None and self._running():
            ending = self.requests.wanted() or self._beyond_limits(now)
            if ending:
                self._end(ending)
        if self._awaiting_checkpoint:
            before, deadline = self._awaiting_checkpoint
            if self.progress.notice_checkpoints > before or now > deadline:
                self._awaiting_checkpoint = None
                self._terminate()
        if self.requests.urgent() or (self._term_time and now > self._term_time + TERM_GRACE):
            for process in self._processes.values():
                processes.signal_group(process, signal.SIGKILL)

    def _beyond_limits(self, now: float) -> StopRequest | None:
        limits = self.plan["limits"]
        if self.deadlines["run"] and now > self.deadlines["run"]:
            reason = "limits.run (%gs) is over; raise it and continue with --resume" % limits["run"]
            return StopRequest(Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE), True)
        if self.paid_until is not None and self.clock() > self.paid_until:
            return StopRequest(Outcome(NOT_RETRYABLE, cost_limit.reason(self.plan), protocol.NOT_RETRYABLE), True)
        if not self.progress.alive and self.deadlines["start"] and now > self.deadlines["start"]:
            reason = "no sign of life within limits.start (%gs)" % limits["start"]
            return StopRequest(Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE), False)
        if self.progress.alive and limits["no_progress"] and now > self.progress.moved + limits["no_progress"]:
            reason = "no progress for limits.no_progress (%gs), last iteration %s" % (
                limits["no_progress"],
                "none" if self.progress.iteration is None else self.progress.iteration,
            )
            return StopRequest(Outcome(FAILURE, reason, protocol.FAILED), False)
        return None

    def _end(self, ending: StopRequest) -> None:
        """Begin to end: by way of a checkpoint where that is asked for and rank 0 can write one."""
        self._ending = ending
        rank_0 = self._rank_0() if ending.checkpoint_first else None
        if rank_0 and processes.signal_process(rank_0, signal.SIGUSR1):
            self._awaiting_checkpoint = (self.progress.notice_checkpoints, self.clock.awake() + self.plan["grace"])
        else:
            self._terminate()

    def _rank_0(self) -> int | None:
        try:
            with open(self.pid_file) as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    def _terminate(self) -> None:
        self._term_time = self.clock.awake()
        for node, process in self._processes.items():
            if node not in self._codes:
                processes.signal_group(process, signal.SIGTERM)

    def _running(self) -> bool:
        return len(self._codes) < len(self._processes)

    def _silent_after_end(self) -> bool:
        """Whether all launchers ended a while ago: a stray process may hold their pipes for ever."""
        return not self._running() and self.clock.awake() > self._ended_at + PIPE_GRACE

    def _end_all(self) -> None:
        for process in self._processes.values():
            processes.signal_group(process, signal.SIGKILL)
        for node, process in self._processes.items():
            self._codes.setdefault(node, process.wait())
        processes.kill_descendants()
        for key in list(self._selector.get_map().values()):
            key.data[-1].close()
        self._selector.close()

    def _judge(self, node: int) -> Outcome:
        code = exit_diagnosis.exit_code(self._codes[node], self._tails[node])
        if self.progress.fatal or code == protocol.NOT_RETRYABLE:
            reason = self.progress.fatal or exit_diagnosis.describe(node, code, self._tails[node])
            reason = protocol.bounded(str(reason))
            return Outcome(NOT_RETRYABLE, reason, protocol.NOT_RETRYABLE)
        reason = exit_diagnosis.describe(node, code, self._tails[node])
        if code == protocol.INTERRUPTED:
            return Outcome(INTERRUPTION, reason, protocol.INTERRUPTED)
        return Outcome(FAILURE, reason, protocol.FAILED)

    def _outcome(self) -> Outcome:
        if self._failed_node is not None:
            return self._judge(self._failed_node)
        failed = [node for node, code in self._codes.items() if exit_diagnosis.exit_code(code, self._tails[node])]
        if self._ending and (self._term_time or failed):
            return self._ending.outcome
        return self._judge(failed[0]) if failed else Outcome(SUCCEEDED, None, 0)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
