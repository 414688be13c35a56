"""The sides of the fault benchmark: how each starts the training program on two pods."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import spotmpi
from scripts.faults import manifests
from scripts.faults.manifests import MANY, PODS, VOLUME, Object
from scripts.speed_bench import Bench
from spotmpi.core import names
from spotmpi.images.environment import is_installed, mark_installed, run_uv
from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import RESTRICTED
from tests.testbed.mpi_operator import MpiOperator

IMAGE = "pytorch"
_REMOVAL = 60.0  # seconds for the pods of a turn to end
_PROGRAM = Path(__file__).with_name("train.py")
_TORCHFT = names.PROJECT / "tests" / "testbed" / "torchft" / "requirements.lock"


@dataclass(frozen=True)
class Training:
    """What the training program is called with; it ends at iteration *until*, if that is given."""

    seed: int
    every: int
    pace: float
    until: int | None = None

    def arguments(self) -> list[str]:
        """The program with its arguments, as pods call it."""
        until = [] if self.until is None else ["--until", str(self.until)]
        return [f"{VOLUME}/train.py", f"{VOLUME}/run", str(self.seed), str(self.every), str(self.pace), *until]


class Place:
    """A namespace for one turn of one side, with a volume for the training and another for spotmpi's runs."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, training: Training) -> None:
        self.cluster, self.namespace, self.training = cluster, namespace, training
        self.bench = Bench(cluster, namespace, folder, IMAGE)
        self.volume = cluster.shared_volume(namespace, "bench")
        self.run = self.volume / "run"
        shutil.copy(_PROGRAM, self.volume)
        (self.run / "records").mkdir(parents=True)
        for path in (self.run, self.run / "records"):
            shutil.chown(path, 1000, 1000)

    @property
    def program(self) -> str:
        """The program with its arguments, as a line of a shell."""
        return " ".join(self.training.arguments())

    def apply(self, objects: list[Object]) -> None:
        """Create objects in the namespace."""
        self.cluster.apply(*objects, namespace=self.namespace)

    def remove(self, kinds: Sequence[str]) -> None:
        """Delete what a side has created, its pods at once; after a minute the rest is left to the namespace's end."""
        deadline = time.monotonic() + _REMOVAL
        self.cluster.try_kubectl("delete", ",".join(kinds), "--all", "--wait=false", "-n", self.namespace)
        while self.cluster.pods(self.namespace) and time.monotonic() < deadline:
            options = ("--all", "--grace-period=0", "--force", "--wait=false", "-n", self.namespace)
            self.cluster.try_kubectl("delete", "pods", *options)
            time.sleep(0.3)


@dataclass(frozen=True)
class Side:
    """One way to train: *title* for tables, *kinds* of the objects to remove, and what runs beside the cluster."""

    title: str
    start: Callable[[Place], None]
    kinds: tuple[str, ...]
    controller: Callable[[Cluster], contextlib.AbstractContextManager[None]] = lambda cluster: contextlib.nullcontext()


def _spotmpi(launcher: str, library: str, standby: int = 0) -> Callable[[Place], None]:
    def start(place: Place) -> None:
        spec = place.bench.spec(
            command=["python", "-u", *place.training.arguments(), "--with", library],
            launcher=launcher,
            preload=["torch"],
            nodes=PODS,
            standby=standby,
            limits={"failures": MANY, "interruptions": MANY},
            kubernetes={"mounts": [{"claim": "bench", "path": VOLUME}]},
        )
        spotmpi.run(spec, on=place.bench.target, detach=True)

    return start


def _jobset_with_mpirun(place: Place) -> None:
    objects = manifests.jobset_with_mpirun(place.bench.image, place.program, ssh_key())
    place.apply(objects)


def _torchft(place: Place) -> None:
    shutil.copytree(torchft_packages(), place.volume / "torchft")
    place.apply(manifests.torchft_job(place.bench.image, place.program))


def _applied(objects: Callable[[str, str], list[Object]]) -> Callable[[Place], None]:
    return lambda place: place.apply(objects(place.bench.image, place.program))


def ssh_key() -> dict[str, str]:
    """A new key for ssh from pod to pod, as the data of a Secret."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "id_rsa")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        public = path.with_suffix(".pub").read_text()
        return {"id_rsa": path.read_text(), "authorized_keys": public}


def torchft_packages() -> Path:
    """A folder with torchft and what it needs beyond the image, installed once."""
    folder = names.cache_folder() / "torchft" / hashlib.sha256(_TORCHFT.read_bytes()).hexdigest()[:12]
    if not is_installed(folder):
        options = ("--quiet", "--no-deps", "--require-hashes", "--python-version", "3.11", "--target", str(folder))
        run_uv("pip", "install", *options, "--requirements", str(_TORCHFT), purpose="install torchft")
        mark_installed(folder)
    return folder


SIDES = {
    "spotmpi-mpirun": Side("spotmpi, mpirun", _spotmpi("mpirun", "mpi"), ("jobsets",)),
    "spotmpi-torchrun": Side("spotmpi, torchrun", _spotmpi("torchrun", "gloo"), ("jobsets",)),
    "spotmpi-standby": Side("spotmpi, mpirun, with a standby pod", _spotmpi("mpirun", "mpi", 1), ("jobsets",)),
    "jobset-mpirun": Side("JobSet with mpirun", _jobset_with_mpirun, ("jobsets",)),
    "jobset-torchrun": Side("JobSet with torchrun", _applied(manifests.jobset_with_torchrun), ("jobsets",)),
    "elastic": Side("torchrun elastic, in a Job", _applied(manifests.elastic_job), ("jobs",)),
    "mpi-operator": Side(
        "MPI Operator", _applied(manifests.mpi_job), ("mpijobs",), lambda cluster: MpiOperator(cluster.plane).running()
    ),
    "torchft": Side("torchft, in a Job", _torchft, ("jobs", "pods")),
}


DEFAULT = [name for name in SIDES if name != "spotmpi-standby"]  # which has one pod more than the others


@contextlib.contextmanager
def place_for(side: Side, cluster: Cluster, training: Training) -> Iterator[Place]:
    """A place in a namespace of its own, of which nothing is left afterwards."""
    with (
        tempfile.TemporaryDirectory() as folder,
        side.controller(cluster),
        cluster.namespace("faults", labels=RESTRICTED) as namespace,
    ):
        place = Place(cluster, namespace, Path(folder), training)
        try:
            yield place
        finally:
            place.remove(side.kinds)
