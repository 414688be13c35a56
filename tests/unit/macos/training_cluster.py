"""A cluster on which every run trains for a moment: its pod's output and run folder are those of a real record."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from spotmpi.agent import protocol, record
from spotmpi.agent.pod_record import PodRecord
from spotmpi.backends.kubernetes.client import api
from spotmpi.core import names
from spotmpi.plan import manifests
from tests.unit.backends.kubernetes.volume_cluster import VolumeCluster
from tests.unit.backends.kubernetes.watched_cluster import FakeCluster, Object, condition, stamp
from tests.unit.report.recorded_runs import work_of

ITERATIONS = 100


class TrainingCluster(VolumeCluster):
    """Runs end as soon as they are submitted; those that are submitted while `holds` is set go on until stopped."""

    def __init__(self, volume: Path) -> None:
        super().__init__(volume)
        self.holds = False

    async def create(self, values: Object, dry_run: bool = False) -> Object:
        created = await FakeCluster.create(self, values, dry_run)
        if values["kind"] == api.JOBSET and not dry_run:
            self._start(created)
        return created

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        base: Any = FakeCluster if kind == api.JOBSET else VolumeCluster
        found: Object | None = await base.find(self, kind, name, namespace)
        return found

    async def watch(self, kind: str, labels: Any = None, name: str | None = None) -> AsyncIterator[tuple[str, Object]]:
        for each in await self.list(kind, labels):
            if name in (None, each["metadata"]["name"]):
                yield "ADDED", each
        await asyncio.Event().wait()

    async def patch(self, kind: str, name: str, values: Object) -> None:
        for jobset in self.jobsets:
            if (kind, jobset["metadata"]["name"]) == (api.JOBSET, name):
                jobset["metadata"]["annotations"].update(values.get("metadata", {}).get("annotations", {}))

    async def delete(self, kind: str, name: str, wait: bool = False, now: bool = False) -> None:
        for jobset in [each for each in self.jobsets if (kind, each["metadata"]["name"]) == (api.JOBSET, name)]:
            self.jobsets.remove(jobset)

    def _start(self, jobset: Object) -> None:
        run = jobset["metadata"]["name"]
        for node in range(jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]):
            labels = {names.LABEL_RUN: run, manifests.LABEL_INDEX: str(node)}
            metadata = {"name": f"{run}-node-0-{node}-abcde", "labels": labels, "creationTimestamp": stamp()}
            phase = "Running" if self.holds else "Succeeded"
            self.pods.append({"metadata": metadata, "spec": {}, "status": {"phase": phase}})
        self.logs[f"{run}-node-0-0-abcde"] = self._output(self.root / run, work_of(manifests.spec_of(jobset)))
        if not self.holds:
            jobset["status"] = condition("Completed")

    def _output(self, folder: Path, work: dict[str, Any]) -> list[str]:
        """What node 0's agent prints, while it writes the run folder on the volume."""
        folder.mkdir(parents=True)
        start, output = time.time(), io.StringIO()
        moments = iter(start + 0.1 * each for each in range(10 * ITERATIONS))
        with redirect_stdout(output):
            pod = PodRecord(str(folder), lambda: next(moments))
            pod.event(record.STARTED, attempt=1, failures=0, interruptions=0)
            context = {"world_size": 1, "total_iterations": ITERATIONS, "samples_per_iteration": 8}
            pod.metric(1, 0, protocol.CONTEXT, context)
            for iteration in range(10, ITERATIONS + 1, 10):
                values = {"iteration": iteration, "seconds": [0.1] * 10, "loss": 1 / iteration}
                pod.metric(1, 0, protocol.METRIC, values)
            if not self.holds:
                pod.metric(1, 0, protocol.RESULT, {"iteration": ITERATIONS, "loss": 0.01})
                state = record.SUCCEEDED
                pod.summary({"state": state, "started": start, "ended": next(moments), "work": work})
                pod.event(state)
        return output.getvalue().splitlines()
