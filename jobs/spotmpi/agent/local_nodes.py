"""The nodes of a run on this machine that may have fewer: processes, of which drills take some away for a while."""

from __future__ import annotations

import contextlib
import os
from typing import Dict, List, Optional, Tuple

from .attempt import POLL_INTERVAL
from .context import REQUESTS, AgentContext, Members
from .files import write_atomically
from .launch import largest_size
from .outcomes import Outcome, StopSignal
from .plan import NODE, Member
from .record import WAITING, Record

DRAIN, LOSS = "evict", "delete"  # faults: with a notice, and without one
AWAY = 15.0  # seconds for which a drill takes a node away
_FILE = "away-%d"  # in the folder of requests; it holds the fault


class LocalNodes(Members):
    """The nodes of attempts on as many as are there at their start. Node 0 always is."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__()
        self._elastic, self._folder, self._clock = context.plan["elastic"], context.folder, context.clock
        self._all = range(len(context.hosts))
        # The fault of each, and when it comes back, as `Clock.uptime` counts.
        self._away: Dict[int, Tuple[str, float]] = {}
        self.begin(1)

    def begin(self, attempt: int) -> None:
        """Choose the nodes of the next attempt."""
        self.notices = {}
        self._look()
        present = [node for node in self._all if node not in self._away]
        size = largest_size(self._elastic, len(present))
        self._pods = None if size is None else [Member(NODE, node) for node in present[:size]]

    @property
    def pods(self) -> Optional[List[Member]]:
        """The nodes of the attempt; None where too few are there."""
        return self._pods

    def serve(self, timeout: float) -> None:
        """Look which nodes are away."""
        self._look()
        self.notices = dict.fromkeys(self._gone(DRAIN), "it is drained")

    def lost(self) -> List[Member]:
        """The nodes that went without a notice."""
        return self._gone(LOSS)

    def name_of(self, node: Member) -> str:
        """The number with which a node of the attempt began."""
        return str((self.pods or [])[node.number])

    def wait(self, stop_signal: StopSignal, record: Record) -> Optional[Outcome]:
        """Wait until the attempt has its nodes; the outcome of one that is to end before."""
        last_reason = None
        while (reason := self.missing()) is not None:
            stop_request = stop_signal.pending()
            if stop_request is not None:
                return stop_request.outcome
            if reason != last_reason:
                last_reason = reason
                record.event(WAITING, reason=reason)
            self._clock.sleep(POLL_INTERVAL)
        return None

    def missing(self) -> str | None:
        """Which nodes are away, as long as too few are there; chooses those of the attempt."""
        self.begin(0)
        if self.pods is not None:
            return None
        names = ", ".join("node %d" % node for node in sorted(self._away))
        return "%s away, for at most %g s: the run needs %d nodes" % (names, AWAY, self._elastic["sizes"][0])

    def larger_size(self) -> Optional[int]:
        """As many as are there now, where more are allowed."""
        size = largest_size(self._elastic, len(self._all) - len(self._away))
        return size if size is not None and size > len(self.pods or ()) else None

    def _look(self) -> None:
        """Read which nodes were taken away, and give those back whose time is over."""
        for node in self._all:
            path = _path(self._folder, node)
            try:
                with open(path, encoding="utf-8") as file:
                    fault = file.read()
            except OSError:
                self._away.pop(node, None)
                continue
            if node not in self._away:
                self._away[node] = (fault, self._clock.uptime() + AWAY)
            elif self._clock.uptime() >= self._away[node][1]:
                with contextlib.suppress(OSError):
                    os.remove(path)
                    del self._away[node]

    def _gone(self, fault: str) -> List[Member]:
        away = [node for node, (found, _) in self._away.items() if found == fault]
        return [Member(NODE, node) for node, pod in enumerate(self.pods or ()) if pod.number in away]


def take_away(folder: str, node: int, fault: str) -> None:
    """Let a node of the run in *folder* be away for a while."""
    os.makedirs(os.path.join(folder, REQUESTS), exist_ok=True)
    write_atomically(_path(folder, node), fault)


def _path(folder: str, node: int) -> str:
    return os.path.join(folder, REQUESTS, _FILE % node)
