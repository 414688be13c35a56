"""What every measurement on a cluster needs: a namespace with a run volume, and the command lines of both sides."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

import spotmpi
from spotmpi.backends.targets import Target
from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import Object

SPOTMPI = str(Path(sys.executable).with_name("spotmpi"))
IMAGE = "chainermn"
_TRY = 0.1  # seconds between tries to read a log that is not there yet


class Bench:
    """A namespace of the cluster with a run volume, and what every measurement needs."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, image: str = IMAGE) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.image = cluster.images[image]
        self.target = Target(f"kubernetes/{namespace}", folder / "runs")
        self._count = 0
        cluster.shared_volume(namespace)

    def spec(self, **values: Any) -> Path:
        """Write a spec file for this cluster."""
        self._count += 1
        path = self.folder / f"spec-{self._count}.toml"
        kubernetes = {"image": self.image, "volume": "shared", **values.pop("kubernetes", {})}
        path.write_text(tomli_w.dumps({**values, "kubernetes": kubernetes}))
        return path

    def small_pods(self) -> list[str]:
        """The templates by which many pods fit on the cluster's nodes: each requests a tenth of a CPU."""
        path = self.folder / "small.json"
        small = {"name": "node", "resources": {"requests": {"cpu": "100m"}}}
        path.write_text(json.dumps({"spec": {"containers": [small]}}))
        return [str(path)]

    def spotmpi(self, *arguments: str) -> list[str]:
        """The command line of spotmpi for this cluster."""
        return [SPOTMPI, *arguments, "--on", str(self.target.on), "--runs", str(self.target.runs_folder)]

    def kubectl(self, *arguments: str) -> list[str]:
        """The command line of kubectl for this namespace."""
        program = str(Path(self.cluster.environment["PATH"].partition(":")[0], "kubectl"))
        return [program, "--kubeconfig", str(self.cluster.kubeconfig), "-n", self.namespace, *arguments]

    def wait(self, run: str, done: Callable[[], bool]) -> None:
        """Wait until *done*; SystemExit where the run ends, begins anew or takes longer than five minutes instead."""
        deadline = time.monotonic() + 300
        while not done():
            state = spotmpi.status(run, on=self.target)
            if state.over or state.attempt > 1 or time.monotonic() > deadline:
                raise SystemExit(f"{run} cannot be measured: {state.state}, attempt {state.attempt}: {state.reason}")
            time.sleep(2)

    def apply(self, objects: Object, done: Callable[[], bool]) -> float:
        """Seconds of `kubectl apply` and until *done*."""
        began = time.monotonic()
        command = self.kubectl("apply", "-f", "-")
        subprocess.run(command, input=json.dumps(objects), text=True, check=True, capture_output=True)
        while not done():
            time.sleep(_TRY)
        return time.monotonic() - began

    def remove(self, *kinds: str) -> None:
        """Delete all objects of these kinds, and wait until no pod is left."""
        for kind in kinds:
            subprocess.run(self.kubectl("delete", kind, "--all", "--wait=false"), check=True, capture_output=True)
        while self.cluster.pods(self.namespace):
            time.sleep(0.2)
