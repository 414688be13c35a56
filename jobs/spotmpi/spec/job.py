"""The job spec. Every default is defined here or in `spotmpi.spec.kubernetes`, and only there."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import BeforeValidator, Field, PlainSerializer, WrapValidator

from spotmpi.agent.launchers import LAUNCHERS
from spotmpi.agent.protocol import CHECKPOINT_EVERY, CHECKPOINT_KEEP
from spotmpi.core.errors import Problem, input_error
from spotmpi.core.wording import duration
from spotmpi.spec.kubernetes import FilePath, Kubernetes, SpecModel
from spotmpi.spec.stream import Stream
from spotmpi.spec.workers import Count, Cpus, Memory, Pool, Price, Workers
from spotmpi.streams.order import CONSUMER, FUNCTION

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = sys.float_info.max
_EXAMPLES = 'such as "90s", "10m", "2h" or "1d"'


def seconds(value: object) -> object:
    """Seconds from ``"90s"``, ``"10m"``, ``"2h"`` or ``"1d"``; other types are returned for pydantic to check."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", value)
        if match is None:
            raise ValueError(f"write a duration {_EXAMPLES}")
        return float(match[1]) * _UNITS[match[2]]
    return value


def read_duration(field: str, value: float | str) -> float:
    """Seconds from *value*; InputError that names *field* if it is no duration."""
    try:
        return float(str(seconds(value)))
    except ValueError:
        raise input_error(field, value, f"write a duration {_EXAMPLES}") from None


def _positive_seconds(value: object) -> object:
    number = seconds(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"write a duration {_EXAMPLES}")
    if not 0 < number <= _LONGEST:
        raise ValueError(f"write a duration above 0, {_EXAMPLES}")
    return float(number)


def memory_interval(value: object) -> object:
    """Iterations (``"1"`` or 1) or a duration (``"10s"``) as text; other types are returned for pydantic to check."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or re.fullmatch(r"[1-9]\d{0,17}", text):
        return text
    with contextlib.suppress(ValueError):
        every = float(str(seconds(text)))
        if 0 < every <= _LONGEST:
            return duration(every)
    raise ValueError('write a number of iterations such as "1", or a duration such as "10s"')


class Sizes(int):
    """The most nodes of a run that may have fewer, and each of its allowed numbers, the smallest first."""

    allowed: tuple[int, ...]

    def __new__(cls, allowed: Iterable[int]) -> Self:
        """The largest of *allowed*, of which there are at least two."""
        ordered = tuple(sorted(set(allowed)))
        sizes = super().__new__(cls, ordered[-1])
        sizes.allowed = ordered
        return sizes

    def __reduce__(self) -> tuple[type["Sizes"], tuple[tuple[int, ...]]]:
        return Sizes, (self.allowed,)


def _nodes(value: object, validated: Callable[[object], int]) -> int:
    if not isinstance(value, list | tuple | str):
        return validated(value)
    if isinstance(value, str) or not value:
        raise ValueError("write a number of nodes such as 2, or all that the run may have, such as [2, 4]")
    sizes = Sizes(map(validated, value))
    return sizes if len(sizes.allowed) > 1 else int(sizes)


def _nodes_value(value: int) -> int | list[int]:
    return list(value.allowed) if isinstance(value, Sizes) else value


POOL: Literal["pool"] = "pool"
if TYPE_CHECKING:
    LauncherName = str
else:
    LauncherName = Literal[(*LAUNCHERS, POOL)]
NONE = "none"  # a limit that does not hold


def _driver_limit(value: float | str) -> str:
    return value if isinstance(value, str) else duration(value)


def _driver_seconds(value: object) -> object:
    if value == NONE:
        return value
    with contextlib.suppress(ValueError):
        value = seconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
        raise ValueError('write a duration such as "30m", "0s" for at once, or "none"')
    return float(value)


def _deadline(value: object) -> object:
    """Seconds, or a time with its offset from UTC."""
    if isinstance(value, str) and re.match(r"\s*\d{4}-", value):
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value.strip())
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError('give the offset from UTC too, such as "2027-01-31T18:00+01:00"')
        return value
    with contextlib.suppress(ValueError):
        value = seconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST:
        raise ValueError('write a duration such as "30h", or a time such as "2027-01-31T18:00+01:00"')
    return float(value)


def _deadline_text(value: float | datetime) -> str:
    return value.isoformat() if isinstance(value, datetime) else duration(value)


Duration = Annotated[float, BeforeValidator(_positive_seconds), PlainSerializer(duration)]
DriverLimit = Annotated[
    Literal["none"] | float,
    BeforeValidator(_driver_seconds),
    PlainSerializer(_driver_limit),
]
Nodes = Annotated[Count, WrapValidator(_nodes), PlainSerializer(_nodes_value)]
Deadline = Annotated[float | datetime, BeforeValidator(_deadline), PlainSerializer(_deadline_text)]
Money = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Data(SpecModel):
    """The data set, and where ranks read it."""

    path: FilePath = Field(description="folder of the data set")
    stage: Literal["node", "memory"] | None = Field(
        None, description="on a cluster: copied to each node's own disk, or to memory, before its ranks start"
    )


def data_table(value: object) -> object:
    """The table that the value of ``data`` stands for: a path alone is data that is read where it is."""
    return {"path": value} if isinstance(value, str) else value


def _short_data(data: Data | None) -> object:
    """The path alone if nothing else is set."""
    return data.path if data and data.stage is None else data and data.model_dump()


class Resources(SpecModel):
    """Resources of one slot."""

    cpu: Cpus = Field(1, description='CPUs per slot, such as 2, 0.5 or "500m"; it has as many threads, rounded up')
    memory: Memory | None = Field(None, description='memory per slot, such as "4Gi"', examples=["4Gi"])
    gpu: int = Field(0, ge=0, description="GPUs per slot")


class Checkpoint(SpecModel):
    """When and where programs with checkpoints write them."""

    every: Duration = Field(CHECKPOINT_EVERY, description="time between checkpoints")
    keep: Count = Field(CHECKPOINT_KEEP, description="number of complete checkpoints to keep")
    path: FilePath | None = Field(
        None, description="folder; relative to the run folder (default: checkpoints)", examples=["checkpoints"]
    )
    memory: Annotated[str | None, BeforeValidator(memory_interval)] = Field(
        None,
        description='iterations, such as "1", or time between additional checkpoints in the memory of nodes',
        examples=["1"],
    )
    grace: Duration = Field(60.0, description="how long a stop waits for a complete checkpoint")
    margin: Duration | None = Field(
        None,
        description="on a cluster: after the notice of a node, training continues until this part of `grace` is left, "
        "or a standby pod takes over before (default: half with `standby`, else all)",
        examples=["30s"],
    )


class Limits(SpecModel):
    """When a run gives up."""

    start: Duration = Field(
        600.0, description="time for all nodes to get ready, and again to the first output; in each attempt"
    )
    run: Duration | None = Field(
        None,
        description="time from submission to the end, not counting time in which this machine sleeps",
        examples=["8h"],
    )
    no_progress: Duration = Field(
        600.0, description="time without a new iteration (or output line, until an iteration is reported)"
    )
    failures: int = Field(2, ge=0, description="number of failed attempts that are retried")
    interruptions: int = Field(100, ge=0, description="number of interrupted attempts that are retried")
    cost: Money | None = Field(
        None,
        description="US dollars for nodes since submission; the run ends with a checkpoint before that",
        examples=[25.0],
    )
    silence: Duration = Field(
        1.0,
        ge=0.5,
        le=60,
        description="time without acknowledgement by its host after which a node is lost; a hung process loses no node",
    )
    driver: DriverLimit = Field(
        1800.0, description='how long a pool stays up after its last driver has left; "0s" for at once, or "none"'
    )


class Capacity(SpecModel):
    """Where the nodes come from: by an order of node groups, by a deadline, or in the first zone that has them."""

    order: list[str] = Field(
        [],
        description='node groups or markets ("spot", "on-demand", "capacity-block"): all nodes from the first (in each '
        "of its zones), else all from the next",
        examples=[["g5", "g6", "on-demand"]],
    )
    patience: Duration = Field(600.0, description="how long the run waits for all its nodes before it tries the next")
    partial: Duration = Field(
        300.0,
        description="how long nodes that have started wait for the others; then they are released, and the run asks "
        "again later",
    )
    retry: Duration = Field(
        3600.0,
        description="how long a run stays on on-demand nodes before it asks a spot group again that had none; doubled "
        "after each failed attempt. A run that waits for nodes asks each group again after this time at the latest",
    )
    prices: dict[str, Price] = Field(
        {}, description="US dollars per node and hour by node group (default: AWS's current prices)"
    )
    work: Duration | None = Field(
        None, description="time that the work takes on the most nodes, without interruption", examples=["20h"]
    )
    deadline: Deadline | None = Field(
        None,
        description='when it has to be done: a time since the start, or a date such as "2027-01-31T18:00+01:00"',
        examples=["30h"],
    )
    budget: Money | None = Field(None, description="US dollars for nodes, which are not exceeded", examples=[400.0])
    market: Literal["auto", "spot", "on-demand"] = Field(
        "auto",
        description='which node groups are allowed: "auto" for all; it keeps a deadline for the least expected cost, '
        '"spot" only if capacity allows',
    )
    zones: list[str] = Field([], description="allowed zones of the environment (default: all); a run is in one of them")
    instance_types: list[str] = Field(
        [], description="allowed instance types, equally fast where there is a deadline (default: all)"
    )
    speeds: list[float] = Field(
        [],
        description="in a simulation: the speeds of the allowed numbers of `nodes`, relative to the last (default: in "
        "proportion)",
    )
    overhead: Duration = Field(300.0, description="time from the request for nodes to the first new iteration")
    lost_work: Duration | None = Field(
        None,
        description="work that a loss of nodes may cost (default: none, as with a checkpoint at the notice)",
        examples=["10m"],
    )

    @property
    def choices(self) -> dict[str, Any]:
        """What is given of the keys that choose among the node groups of an environment, by key of the spec."""
        given = self.model_dump(exclude_defaults=True)
        keys = ("order", "zones", "instance_types", "market")
        return {f"capacity.{key}": given[key] for key in keys if key in given}


class DatasetBuild(SpecModel):
    """A call of a function with `@spotmpi.dataset`; see docs/datasets.md."""

    build: str = Field(
        description="module:function with @spotmpi.dataset, of `code` or `files`", examples=["sets:ratings"]
    )
    arguments: dict[str, Any] = Field(
        {},
        description="its arguments by name; paths are relative to the spec",
        examples=[{"raw": "s3://set/*.csv", "cut": 0.5}],
    )
    workers: Count | None = Field(None, description="number of workers (default: that of the function)", examples=[4])
    cpu: Cpus | None = Field(None, description='CPUs of each worker, such as 2, 0.5 or "500m"', examples=[2])
    memory: Memory | None = Field(None, description='memory of each worker, such as "4Gi"', examples=["4Gi"])

    def problems(self) -> Iterator[Problem]:
        """What is wrong with it."""
        if not FUNCTION.fullmatch(self.build):
            yield Problem("dataset.build", self.build, "write module:function, such as sets:ratings")


class Metrics(SpecModel):
    """How iterations are read from the output of a program that does not report them itself."""

    pattern: str | None = Field(
        None,
        description="regular expression with the named group iteration; further named groups are scalars; without it "
        "well-known forms are recognized",
        examples=[r"step (?P<iteration>\d+) loss (?P<loss>\S+)"],
    )
    samples_per_iteration: Count | None = Field(
        None, description="global batch size of a program read by pattern", examples=[64]
    )


class Mpi(SpecModel):
    """More arguments of mpirun; on a cluster only."""

    args: list[str] = Field([], description="arguments after the defaults, which they override")


class Slurm(SpecModel):
    """What the job of a run on Slurm needs besides nodes and resources."""

    args: list[str] = Field([], description='more options of sbatch, such as ["--account=me", "--time=2:00:00"]')
    setup: list[str] = Field(
        [],
        description='lines of bash before the nodes start, such as "module load cuda/12.4"; a failed one ends the job',
    )

    def argument(self, option: str, letter: str = "") -> str | None:
        """The one of `args` that sets an *option* of sbatch, or its short form of one *letter*; None if none does."""
        forms = rf"--{option}(?:[= ]|$)" + (f"|-{letter}" if letter else "")
        return next((each for each in self.args if re.match(forms, each)), None)


class JobSpec(SpecModel):
    """A job as its user describes it, frozen; `load` reads one from TOML."""

    name: str = Field("", description="display name (default: that of the program or command)", examples=["my-run"])
    image: str | None = Field(
        None,
        description="a folder under images/, or a reference for `kubernetes.image`; "
        "without one, this machine's own software",
        examples=["pytorch"],
    )
    program: str | None = Field(None, description="a training program of the image", examples=["digits"])
    command: list[str] | None = Field(
        None, description="or your own command, as a list", examples=[["python3", "train.py"]]
    )
    args: list[str] = Field([], description="arguments after the program or command")
    code: FilePath | None = Field(
        None, description="folder of your code, where the command starts; shipped to a cluster", examples=["src"]
    )
    files: list[FilePath] = Field(
        [], description="files and folders that are copied to where the command starts", examples=[["helper.py", "lib"]]
    )
    nodes: Nodes = Field(1, description="number of nodes, or a list of those that the run may have, such as [2, 4, 8]")
    slots: Count = Field(1, description="processes per node")
    standby: int = Field(0, ge=0, description="on a cluster: additional pods that replace lost nodes at once")
    launcher: LauncherName = Field("mpirun", description="what starts the ranks; pool: workers that stay up")
    run_on: Literal["all", "first"] = Field("all", description='with launcher "none": on all nodes or on the first')
    preload: list[str] | None = Field(
        None,
        description='modules that are imported once per node, in a process of which ranks are forks, such as ["torch"] '
        "(default: those of a training program or a pipeline); [] for none",
        examples=[["torch"]],
    )
    data: Annotated[Data | None, BeforeValidator(data_table), PlainSerializer(_short_data)] = Field(
        None,
        description='folder of the data set, or { path = ..., stage = "node" or "memory" }',
        examples=["data/VOCdevkit"],
    )
    init: FilePath | None = Field(
        None,
        description="folder of the model to start from, or models:NAME, models:NAME:VERSION or models:NAME:ALIAS",
        examples=["models:digits:prod"],
    )
    keep: str | None = Field(
        None,
        description="model of which the newest checkpoint becomes a version once the run has succeeded; for a "
        "prediction, the data set of its results",
        examples=["digits"],
    )
    price: Price | None = Field(
        None, description="US dollars per node and hour (default: the current price in the environment)", examples=[0.2]
    )
    env: dict[str, str] = Field({}, description="variables of every rank")
    env_passthrough: list[str] = Field(
        [],
        description="names of variables of this terminal to pass to ranks; on a cluster, in a Secret",
        examples=[["WANDB_API_KEY"]],
    )
    resources: Resources = Resources()
    checkpoint: Checkpoint = Checkpoint()
    limits: Limits = Limits()
    capacity: Capacity = Capacity()
    metrics: Metrics = Metrics()
    mpi: Mpi = Mpi()
    pool: Pool | None = Field(None, description='with launcher "pool": the workers')
    dataset: DatasetBuild | None = Field(None, description="a data set that is built before the run, which reads it")
    stream: Stream | None = Field(None, description="batches that CPU workers prepare for the ranks")
    nccl: dict[str, str] = Field({}, description="NCCL variables without their prefix, such as DEBUG")
    kubernetes: Kubernetes = Kubernetes()
    slurm: Slurm = Slurm()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The allowed numbers of nodes, the smallest first; the only one where it is fixed. `nodes` is the largest."""
        return self.nodes.allowed if isinstance(self.nodes, Sizes) else (self.nodes,)

    @property
    def cost_limits(self) -> dict[str, float]:
        """The limits of what the run may cost, in US dollars, by key; the least one holds."""
        budget = None if self.capacity.deadline is None else self.capacity.budget
        limits = {"limits.cost": self.limits.cost, "capacity.budget": budget}
        return {key: limit for key, limit in limits.items() if limit is not None}

    @property
    def world_size(self) -> int:
        """Ranks of the whole run, the most that it may have: nodes x slots."""
        return self.nodes * self.slots

    @property
    def workers(self) -> tuple[Workers, ...]:
        """The workers of a pool, or of each role of a stream; none for a run without."""
        return (self.pool,) if self.pool else self.stream.roles if self.stream else ()

    @property
    def uses_gpus(self) -> bool:
        """Whether ranks or the workers of a pool ask for GPUs."""
        return self.resources.gpu > 0 or (self.pool is not None and self.pool.gpu > 0)

    @property
    def code_paths(self) -> tuple[Path | None, list[Path]]:
        """The folder of `code`, if any, and each of `files`."""
        return Path(self.code) if self.code else None, [Path(path) for path in self.files]

    @property
    def inputs(self) -> dict[str, str]:
        """What the run reads by path, which may be an entry of a store: `data`, `stream.source` and `init`, by key."""
        source = self.stream.source if self.stream else None
        found = {"data": self.data.path if self.data else None, "stream.source": source, "init": self.init}
        return {key: path for key, path in found.items() if path}

    def with_inputs(self, paths: Mapping[str, str]) -> Self:
        """The spec with other paths, by the keys of `inputs`."""
        changes: dict[str, Any] = {key: path for key, path in paths.items() if key == "init"}
        if self.data and "data" in paths:
            changes["data"] = self.data.model_copy(update={"path": paths["data"]})
        if self.stream and "stream.source" in paths:
            changes["stream"] = self.stream.model_copy(update={"source": paths["stream.source"]})
        return self.model_copy(update=changes) if changes else self

    @property
    def title(self) -> str:
        """The name, by default that of the program, script, module or function of a pipeline."""
        if self.name:
            return self.name
        parts = self.command or ["pool" if self.launcher == POOL else "run"]
        script = next((part for part in parts if re.fullmatch(r"[^\s]+\.(py|sh)", part)), None)
        if script is None and Path(parts[0]).name.startswith("python") and "-m" in parts[1:-1]:
            module, *arguments = parts[parts.index("-m") + 1 :]
            function = arguments[1].rpartition(":")[2] if module == CONSUMER[1] and len(arguments) > 1 else ""
            return function or module.rpartition(".")[2]
        return self.program or Path(script or parts[0]).stem

    def option(self, name: str) -> str | None:
        """The value of an option in `args`, None without one; the last one counts, as for argparse."""
        found = None
        for at, argument in enumerate(self.args):
            option, equals, value = argument.partition("=")
            if option == name:
                found = value if equals else next(iter(self.args[at + 1 : at + 2]), None)
        return found

    def to_toml(self) -> str:
        """The spec as TOML, without keys at their defaults."""
        return tomli_w.dumps(self.model_dump(exclude_defaults=True, exclude_none=True))

    def canonical(self) -> dict[str, Any]:
        """Every field as plain JSON values."""
        return self.model_dump(mode="json")
