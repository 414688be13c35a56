"""The terminal that follows a reclaimed run: the agents' real output, and a fake cluster.

    python terminal.py FOLDER

FOLDER has the output of node 0's agent before and after the restart, as `tests.unit.agent.gang` leaves it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from spotmpi.agent import protocol, record  # noqa: E402
from spotmpi.api.view import make_view  # noqa: E402
from spotmpi.backends.kubernetes import backend  # noqa: E402
from spotmpi.backends.targets import follow  # noqa: E402
from spotmpi.core.events import Event  # noqa: E402
from spotmpi.core.wording import echo  # noqa: E402
from tests.cloud.cluster.fake_cluster import FakeCluster  # noqa: E402
from tests.cloud.cluster.objects import RUN, jobset, pod, unscheduled_pod  # noqa: E402
from tests.cloud.cluster.store import Object  # noqa: E402

NO_NODE = "0/1 nodes are available"


class Reclaim:
    """The run's cluster: after the restart a pod waits for a node first, as the terminal is to show."""

    def __init__(self, before: list[str], after: list[str]) -> None:
        self._pods = [pod(0, "Running"), pod(1, "Running")]
        self.cluster = FakeCluster(jobset(), *self._pods)
        self.cluster.add_log(self._pods[0], *before)
        self._resumed = _restarted(pod(0, "Running"))
        self.cluster.add_log(self._resumed, *after)
        self._is_resumed = False

    def go_on(self, event: Event) -> None:
        """Let happen what follows an event; the process ends with the first iteration of the second attempt."""
        if event.kind == record.RESTARTED:
            self.cluster.remove(*self._pods)
            self.cluster.put(jobset(status={"restarts": 1}), _restarted(unscheduled_pod(1, NO_NODE)))
        elif event.kind == record.WAITING and NO_NODE in str(event.reason):
            self.cluster.put(_restarted(pod(1, "Running")), self._resumed)
        self._is_resumed = self._is_resumed or event.values.get("kind") == protocol.RESUMED
        if self._is_resumed and event.values.get("kind") == protocol.METRIC:
            os._exit(0)


def main(folder: Path) -> None:
    """Follow the run as `spotmpi run` does."""
    before, after = ((folder / f"output-0-{restarts}").read_text().splitlines() for restarts in (0, 1))
    reclaim = Reclaim(before, after)
    os.environ["KUBECONFIG"] = str(reclaim.cluster.kubeconfig(folder / "kubeconfig"))
    with make_view(quiet=False) as view:

        def watch(event: Event) -> None:
            view.show(event)
            reclaim.go_on(event)

        follow(backend.KubernetesBackend(folder / "here", "this", "here"), RUN, watch, echo)


def _restarted(pod: Object) -> Object:
    """The pod of the second attempt."""
    return {**pod, "metadata": {**pod["metadata"], "name": pod["metadata"]["name"] + "-1"}}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
