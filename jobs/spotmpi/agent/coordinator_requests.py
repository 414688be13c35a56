"""What node 0 makes of all that it hears while an attempt goes on: why it should end, in the order of importance."""

from __future__ import annotations

from collections.abc import Callable

from . import pod_context, protocol
from .node import Daemon, Notice
from .outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE, STOPPED, Outcome, StopRequest
from .peers import Coordinator
from .pod_context import PodContext

_CAUSES = {protocol.NOT_RETRYABLE: NOT_RETRYABLE, protocol.INTERRUPTED: INTERRUPTION}  # by exit code; others: FAILURE


class LeaderRequests:
    """Why the attempt should end, asked at every look of `Attempt`; serves the workers meanwhile."""

    def __init__(
        self,
        here: PodContext,
        hub: Coordinator,
        notice: Notice,
        daemon: Daemon,
        check_fence: Callable[[], None] = lambda: None,
    ) -> None:
        self._here = here
        self._hub = hub
        self._notice = notice
        self._daemon = daemon
        self._check_fence = check_fence

    def wanted(self) -> StopRequest | None:
        """The `StopRequest` that somebody or something asks for, or None; raises `Fenced`."""
        self._check_fence()
        self._hub.serve(0)
        asked = pod_context.stop_asked()
        if asked is not None:
            return StopRequest(Outcome(STOPPED, asked, 0), True)
        noticed = self._noticed()
        if noticed:
            return StopRequest(Outcome(INTERRUPTION, noticed, protocol.INTERRUPTED), True)
        gone = self._gone()
        if gone:
            return StopRequest(gone, False)
        failed = self.failed()
        return StopRequest(failed, False) if failed else None

    def failed(self) -> Outcome | None:
        """How the launcher of another node failed, or None."""
        for node, (code, reason) in self._hub.ended.items():
            if code:
                return Outcome(_CAUSES.get(code, FAILURE), "node %d: %s" % (node, reason), code)
        return None

    def urgent(self) -> bool:
        """Nobody asks a pod to end without a checkpoint: it is killed then. Workers hear of us also while we end."""
        self._check_fence()
        self._hub.serve(0)
        return False

    def interruption(self) -> Outcome | None:
        """How an attempt that has ended counts as interrupted, as far as is known now, or None.

        Its end took all processes of this pod along, sshd too, which therefore tells nothing any more.
        """
        self._hub.serve(0.05)
        noticed = self._noticed()
        return Outcome(INTERRUPTION, noticed, protocol.INTERRUPTED) if noticed else self._lost()

    def lost_nodes(self) -> tuple[int, ...]:
        """The nodes that are gone and gave no notice."""
        return tuple(sorted(set(self._hub.lost()) - set(self._hub.notices)))

    def _noticed(self) -> str | None:
        if self._notice.reason:
            return "node 0: %s" % self._notice.reason
        return next(("node %d: %s" % item for item in self._hub.notices.items()), None)

    def _gone(self) -> Outcome | None:
        trouble = self._daemon.trouble()
        if trouble:
            return Outcome(INTERRUPTION, "node 0: %s" % trouble, protocol.INTERRUPTED)
        return self._lost()

    def _lost(self) -> Outcome | None:
        lost = self._hub.lost()
        if not lost:
            return None
        reason = "lost %s" % ", ".join(self._here.hosts[node] for node in lost)
        return Outcome(INTERRUPTION, reason, protocol.INTERRUPTED, self.lost_nodes())
