"""A cluster on which every run trains for a moment: its pod's output and run folder are those of a real record."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from spotmpi.agent import pod_context, protocol, record
from spotmpi.agent.plan import COORDINATOR, NODE
from spotmpi.agent.pod_record import PodRecord
from spotmpi.core import names
from spotmpi.plan import cluster_plan
from tests.cloud.cluster.answers import Request
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import a_pod, condition, of_kind
from tests.cloud.cluster.store import Object
from tests.unit.backends.kubernetes.run_volume import FakeVolume
from tests.unit.report.recorded_runs import work_of

ITERATIONS = 100


class TrainingCluster:
    """Runs end as soon as they are submitted; those that are submitted while `holds` is set go on until stopped."""

    def __init__(self, cluster: FakeCluster, root: Path) -> None:
        self.cluster, self.volume, self.holds = cluster, FakeVolume(cluster, root), False
        self._move_on = cluster.on_request
        cluster.on_request = self._react

    def _react(self, request: Request) -> None:
        self._move_on(request)
        if (request.verb, request.resource) == ("create", "jobsets"):
            self._start(self.cluster.get("JobSet", request.name))

    def _start(self, jobset: Object) -> None:
        run = jobset["metadata"]["name"]
        owner = {**of_kind("JobSet", run), "name": run, "uid": jobset["metadata"]["uid"]}
        for node in range(jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]):
            labels = {names.LABEL_RUN: run, names.LABEL_ROLE: NODE, pod_context.LABEL_INDEX: str(node)}
            pod = a_pod(f"{run}-node-0-{node}-abcde", "Running" if self.holds else "Succeeded", labels)
            pod["metadata"]["ownerReferences"] = [{key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}]
            self.cluster.put(pod)
        output = self._output(self.volume.root / run, work_of(cluster_plan.spec_of(jobset)))
        self.cluster.add_log(f"{run}-node-0-0-abcde", *output)
        if not self.holds:
            self.cluster.put({**jobset, "status": condition("Completed")})

    def _output(self, folder: Path, work: dict[str, Any]) -> list[str]:
        """What node 0's agent prints, while it writes the run folder on the volume."""
        folder.mkdir(parents=True)
        start, output = time.time(), io.StringIO()
        moments = iter(start + 0.1 * each for each in range(10 * ITERATIONS))
        with redirect_stdout(output):
            pod = PodRecord(str(folder), lambda: next(moments))
            pod.event(record.STARTED, attempt=1, failures=0, interruptions=0)
            context = {"world_size": 1, "total_iterations": ITERATIONS, "samples_per_iteration": 8}
            pod.metric(1, COORDINATOR, protocol.CONTEXT, context)
            for iteration in range(10, ITERATIONS + 1, 10):
                values = {"iteration": iteration, "seconds": [0.1] * 10, "loss": 1 / iteration}
                pod.metric(1, COORDINATOR, protocol.METRIC, values)
            if not self.holds:
                pod.metric(1, COORDINATOR, protocol.RESULT, {"iteration": ITERATIONS, "loss": 0.01})
                state = record.SUCCEEDED
                pod.summary({"state": state, "started": start, "ended": next(moments), "work": work})
                pod.event(state)
        return output.getvalue().splitlines()
