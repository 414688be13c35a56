"""Names and paths of runs, and the folders of the checkout, the user and the cache: each format is written once."""

from __future__ import annotations

import getpass
import os
import re
import zlib
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from spotmpi.agent import record
from spotmpi.core.errors import SpotmpiError, input_error

_PACKAGE = Path(__file__).resolve().parents[1]
_WHEEL_FILES = _PACKAGE / "_project"  # what a wheel carries of the checkout, laid out in the same way
INSTALLED = _WHEEL_FILES.is_dir()  # from a wheel, not run from a checkout
SOURCE = _PACKAGE.parent  # the folder that holds the package: `jobs` of a checkout, or site-packages
PROJECT = _WHEEL_FILES if INSTALLED else SOURCE.parent
IMAGES = PROJECT / "images"
LOCK = "requirements.lock"  # in the folder of an image
PROGRAMS = _PACKAGE / "programs"
EXAMPLES = PROJECT / "jobs" / "examples"
STUDIES = PROJECT / "jobs" / "studies"

SPEC = "spec.toml"  # in the folder of a run or study
SWEEPS = "sweeps"  # the folder of all sweeps, in the runs folder
SWEEP_RECORD = "sweep.json"  # in the folder of each sweep
_SLUG_LENGTH = 22
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def pulumi_project() -> Path:
    """The folder of the Pulumi project: the current one, or from elsewhere the checkout that this is run from."""
    current = Path.cwd()
    return current if INSTALLED or (current / "Pulumi.yaml").is_file() else PROJECT


def slug(name: str) -> str:
    """*name* as the front part of a DNS-1035 label, at most 22 characters, never empty."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_SLUG_LENGTH].strip("-")
    return text if text[:1].isalpha() else f"run-{text}"[:_SLUG_LENGTH].strip("-")


def run_id(name: str, now: datetime, chance: int) -> str:
    """The id of a run: a DNS-1035 label of at most 40 characters; *chance* is any number from 0 to 2**20 - 1."""
    tail = ""
    for _ in range(4):
        chance, digit = divmod(chance, len(_LETTERS))
        tail += _LETTERS[digit]
    return f"{slug(name)}-{now:%y%m%d%H%M%S}-{tail}"


def default_runs_folder() -> Path:
    """The folder of run records: ``SPOTMPI_RUNS``, else ``runs`` in the current folder."""
    return absolute(os.environ.get("SPOTMPI_RUNS") or "runs")


def absolute(path: str | Path) -> Path:
    """*path* from the root, with the home folder in place of a ``~``."""
    return expand(path).absolute()


def expand(path: str | Path) -> Path:
    """*path* without a ``~``, which shells leave after an equals sign and within quotes, unless it names no user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path refuses what names no user


def default_store() -> str:
    """The folder or URL of data sets and models: ``SPOTMPI_STORE``, else ``store`` beside the folder of runs."""
    return os.environ.get("SPOTMPI_STORE") or str(default_runs_folder().with_name("store"))


def cache_folder() -> Path:
    """The user's cache folder for files that can be created again: ``SPOTMPI_CACHE``, else the XDG one."""
    return _own_folder("SPOTMPI_CACHE", "XDG_CACHE_HOME", ".cache")


def _own_folder(own: str, xdg: str, default: str) -> Path:
    """The folder that the variable *own* names, else ``spotmpi`` in that of *xdg*, or in *default* at home."""
    if folder := os.environ.get(own):
        return absolute(folder)
    try:
        home = os.environ.get(xdg) or Path.home() / default
    except RuntimeError as error:
        remedy = f"set HOME, or {own} to a folder that can be written"
        raise SpotmpiError(f"this user, {user()}, has no home folder: {remedy}") from error
    return absolute(Path(home) / "spotmpi")


def cache_error(folder: Path, error: OSError) -> SpotmpiError:
    """That a *folder* in the cache folder cannot be written, with the remedy."""
    return SpotmpiError(f"cannot write {folder}: {error.strerror}; set SPOTMPI_CACHE to a folder that can be written")


def entry_copies() -> Path:
    """The folder with the copies of data sets and models that are in stores behind a URL, a folder for each store."""
    return cache_folder() / "stores"


def rank_source() -> Path:
    """The folder from which ranks and agents import the agent and the training programs, and nothing else.

    It is `SOURCE` in a checkout. An installed spotmpi lies in site-packages, whose other packages must not hide those
    of an image's environment: its source is a copy in the cache folder, made once for each content.

    Raises:
        SpotmpiError: the cache folder cannot be written.
    """
    if not INSTALLED:
        return SOURCE
    from spotmpi.core import archives  # an installed spotmpi alone needs it

    return archives.agent_folder(cache_folder() / "source")


def path_entry(folder: str, field: str, remedy: str) -> str:
    """*folder* as an entry of PATH or PYTHONPATH, which have no way to write a colon.

    Raises:
        InputError: it has one; *field* and *remedy* are its own.
    """
    if os.pathsep in folder:
        raise input_error(
            field, folder, f"its path has a colon, which separates entries of PATH and PYTHONPATH: {remedy}"
        )
    return folder


def user() -> str:
    """The login name of the user, or the uid if there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def state_folder() -> Path:
    """The folder of this machine's own records: ``SPOTMPI_STATE``, else the XDG one."""
    return _own_folder("SPOTMPI_STATE", "XDG_STATE_HOME", ".local/state")


def display_path(path: Path) -> str:
    """*path* for messages: relative if it is below the current folder."""
    current = Path.cwd()
    return str(path.relative_to(current) if path.is_relative_to(current) else path)


def is_folder_name(run: str) -> bool:
    """Whether the name of a JobSet, which any user of a namespace chooses, can be that of a folder of a run."""
    return re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", run) is not None and run != SWEEPS


def is_image_reference(image: object) -> bool:
    """Whether an image is a reference that pods pull, not the name of a folder under images/."""
    return isinstance(image, str) and ("/" in image or ":" in image)


def program_module(image: str, program: str) -> str:
    """The Python module of a training program of an image."""
    return f"spotmpi.programs.{image}.{program}"


def pod_host(run: str, node: int, job_per_node: bool = False) -> str:
    """The host name of a run's pod: that with index *node* of its Job, or the only one of the node's own Job."""
    return f"{job_name(run, node)}-0" if job_per_node else f"{job_name(run)}-{node}"


def job_name(run: str, index: int = 0) -> str:
    """The name of a Job of a run's nodes besides its workers, of its JobSet's replicated Job ``node``."""
    return f"{run}-node-{index}"


def standby_name(run: str, index: int) -> str:
    """The name of the Job of a pod that stands by, of its JobSet's replicated Job ``standby``."""
    return f"{run}-standby-{index}"


def standby_host(run: str, index: int) -> str:
    """The host name of a pod that stands by."""
    return f"{standby_name(run, index)}-0"


def parts_name(run: str) -> str:
    """The name of the ConfigMap, the Secret and the NetworkPolicy of a run."""
    return f"{run}-parts"


def controller_name(run: str) -> str:
    """The name of the Job of the controller that moves a run's gang to another node group."""
    return f"{run}-placement"


def workers_name(run: str, role: str) -> str:
    """The name of the Job of a run's workers in a *role*."""
    return f"{run}-{role}"


def checkpoints(run_folder: str, path: str | None) -> str:
    """The checkpoint folder of a run: the spec's *path*, relative to the run folder, by default in it."""
    return os.path.normpath(Path(run_folder, path or "checkpoints"))


def memory_folder(run_folder: Path) -> str:
    """The folder in memory of a run on this machine, not of one with its id in another folder; its agent removes it."""
    mark = zlib.crc32(os.fsencode(run_folder.absolute()))
    return f"/dev/shm/spotmpi-{run_folder.name}-{mark:08x}"


LOCAL: Literal["local"] = "local"  # the backends, as plans name them
KUBERNETES: Literal["kubernetes"] = "kubernetes"
SLURM: Literal["slurm"] = "slurm"
EKS = "eks:"  # before the ARN of a cluster that is reached by way of EKS, where others are contexts of a kubeconfig
LABEL_RUN = "spotmpi.dev/run"
LABEL_ROLE = "spotmpi.dev/role"  # of a pod, see `agent.plan`, or of system nodes
LABEL_GROUP = "spotmpi.dev/group"  # of nodes: their node group
CAPACITY_BLOCK = "capacity-block"  # the market of nodes in a Capacity Block for ML, as EC2 names it
LABEL_TYPE = "node.kubernetes.io/instance-type"  # every cloud sets it on its nodes
LABEL_ARCHITECTURE = "kubernetes.io/arch"
LABEL_APP = "app.kubernetes.io/managed-by"
PREFIX = "spotmpi.dev/"  # of labels and annotations by which runs are found, kept apart and ended


def is_reserved(key: str) -> bool:
    """Whether a label or annotation of that key is for spotmpi to set."""
    return key.startswith(PREFIX) or key == LABEL_APP


def run_labels(run: str) -> dict[str, str]:
    """The labels of every object of a run; a new dict each time."""
    return {LABEL_APP: "spotmpi", LABEL_RUN: run}


class _RunFolder(NamedTuple):
    folder: Path


class _Entry:
    """A file or folder of a run folder, by its *name* there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: _RunFolder, owner: type) -> Path:
        return paths.folder / self._name


class RunPaths(_RunFolder):
    """The paths in a run folder."""

    spec = _Entry(SPEC)  # the job spec as it was run, TOML
    own = _Entry(".own")  # exists where the cluster's run was submitted from this runs folder; no pull brings it
    plan = _Entry(record.PLAN)  # the plan that was applied, JSON (which is YAML)
    code = _Entry("code")  # the folder in which the command of a local run with `files` starts
    pool = _Entry("pool")  # of a pool on this machine, for its owner only: certificates, address and requests
    stream = _Entry("stream")  # the folder of a stream: its source list, and the results of a prediction
    events = _Entry(record.EVENTS)  # one JSON object per event of the run
    metrics = _Entry(record.METRICS)  # one JSON object per line that the program reported
    logs = _Entry("logs")  # the folder of numbered output lines, one file per attempt and member
    bill = _Entry("bill.json")  # the cost of the run; exists once it was computed after the end
    keep = _Entry("keep.json")  # the model that the run becomes a version of, its store, and the version once kept
    nodes = _Entry("nodes.json")  # the nodes as AWS describes them; exists if AWS was asked
    summary = _Entry(record.SUMMARY)  # the outcome of the run, JSON; exists once the run has ended
    attempts = _Entry("attempts")  # the folder of attempt records
    tensorboard = _Entry("tensorboard")  # event files of rank 0
    agent_log = _Entry("agent.log")  # output of the agent of a local run itself, normally empty

    @property
    def id(self) -> str:
        """The run's id, which is the folder's name."""
        return self.folder.name

    @property
    def checkpoints(self) -> Path:
        """The default folder of checkpoints."""
        return Path(checkpoints(str(self.folder), None))

    def __fspath__(self) -> str:
        return str(self.folder)
