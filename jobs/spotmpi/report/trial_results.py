"""The results of a recorded run, and the machines that it was on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.agent import protocol
from spotmpi.agent.attempt_history import read_attempts
from spotmpi.agent.plan import read_member
from spotmpi.aws.instances import NO_GROUP
from spotmpi.core.errors import input_error
from spotmpi.core.names import RunPaths
from spotmpi.metrics import rates
from spotmpi.metrics.rates import Training
from spotmpi.runs import fingerprint as work
from spotmpi.runs import reader, recorded_plan
from spotmpi.spec.source import load_spec
from spotmpi.streams.figures import Figures, Reports
from spotmpi.study.study import ALLREDUCE, READ

AWS = "AWS"
_CLAIMED = "the environment"
_BY_PODS = "its pods"
_OF_NODE = dict.fromkeys(("id", "type", "market", "zone", "placement_group"), protocol.is_text)
_GROUPS = {"yes": "in one", "no": NO_GROUP}
SYNTHETIC = "synthetic"  # prefix of the fingerprint of synthetic data
# Names of quality metrics, the most likely first.
_QUALITIES = ("accuracy", "test_accuracy", "val_accuracy", "map", "mean_average_precision")
# What a record may lack.
_UNKNOWN_WORK: Mapping[str, Any] = {
    **dict.fromkeys(("image", "data", "machine", "resources", "seed")),
    **dict.fromkeys(("program", "launcher"), "unknown"),
    "args": (),
    "code": {},
    "versions": {},
}
# DistributedDataParallel reduces gradients during the backward pass, about two thirds of the computation.
_FORWARD = 1 / 3


@dataclass(frozen=True)
class NodePlacement:
    """Type, market, zone and placement group of a machine, None where unknown.

    An environment only tells whether there is a placement group ("in one"), not its name.
    """

    type: str | None = None
    market: str | None = None
    zone: str | None = None
    placement_group: str | None = None


@dataclass(frozen=True)
class Machine:
    """A machine as its environment expects it and as AWS describes it (``actual``, None if AWS was not asked).

    ``source`` is where `placement` is from; ``failure`` is the reason why AWS could not be asked.
    """

    name: str
    expected: NodePlacement
    actual: NodePlacement | None
    source: str
    failure: str | None = None

    @property
    def placement(self) -> NodePlacement:
        """The actual placement if known, else the expected one."""
        return self.actual or self.expected


def read_machines(paths: RunPaths, hardware: Sequence[Mapping[str, Any]]) -> tuple[Machine, ...]:
    """The machines of all attempts of a run; *hardware* describes its nodes in the last attempt, grouped by kind."""
    recorded, names = _placement(paths), _machine_names(paths)
    return tuple(
        _machine(name, group, recorded)
        for group in hardware
        for node in group.get("nodes") or ()
        for name in names.get(node, [f"node {node}"])
    )


def _placement(paths: RunPaths) -> Mapping[str, Any]:
    """``nodes.json``: nodes by name and, if AWS could not be asked, the ``failure`` (of `PlacementRecorder`)."""
    recorded = recorded_plan.json_object(paths.nodes)
    nodes, failure = recorded.get("nodes"), recorded.get("failure")
    described = nodes.items() if isinstance(nodes, dict) else ()
    return {
        "nodes": {name: protocol.without_unfit(each, _OF_NODE) for name, each in described if isinstance(each, dict)},
        "failure": failure if protocol.is_text(failure) else None,
    }


def _machine_names(paths: RunPaths) -> dict[int, list[str]]:
    """Names of machines by node, over all attempts."""
    by_node: dict[int, dict[str, None]] = {}
    for event in reader.lines(paths.events):
        for each in event.get("machines") or []:
            if each.get("name") and each.get("member"):
                by_node.setdefault(read_member(each["member"]).number, {})[each["name"]] = None
    return {node: list(names) for node, names in by_node.items()}


def _machine(name: str, facts: Mapping[str, Any], recorded: Mapping[str, Any]) -> Machine:
    expected = NodePlacement(
        facts.get("type"),
        facts.get("market"),
        facts.get("zone"),
        _GROUPS.get(facts.get("placement_group", ""), facts.get("placement_group")),
    )
    described = recorded["nodes"].get(name)
    if described:
        actual = NodePlacement(*map(described.get, ("type", "market", "zone", "placement_group")))
        return Machine(f"{name} ({described.get('id')})", expected, actual, AWS)
    if expected.market is None:
        return Machine(name, expected, None, _BY_PODS)
    return Machine(name, expected, None, f"{_CLAIMED} (not verified)", recorded["failure"])


@dataclass(frozen=True)
class TrialResult:
    """A run and its measurements; ``variant`` is its name in a report.

    ``interruptions`` and ``failures`` are those after which it was started again.
    """

    run: str
    variant: str
    state: str
    spec: dict[str, Any]
    work: dict[str, Any]
    training: Training
    interruptions: int
    failures: int
    oversubscribed: bool
    machines: Sequence[Machine] = ()  # of all attempts, if reported
    container: str | None = None  # the image of its pods, by digest if known
    stream: Figures | None = None
    sizes: tuple[int, ...] = ()  # on how many nodes a run that may have several numbers of them has iterated

    @property
    def nodes(self) -> int:
        """Nodes of the run; the most on which it has iterated, where it may have several numbers of them."""
        nodes = self.sizes or self.spec["nodes"]
        return int(nodes if isinstance(nodes, int) else max(nodes))

    @property
    def slots(self) -> int:
        """Processes per node."""
        return int(self.spec["slots"])

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.nodes * self.slots

    @property
    def iterations_per_second(self) -> float | None:
        """The rate of the counted iterations, None if there are too few."""
        return self.training.rates.per_second if self.training.rates else None

    @property
    def samples_per_iteration(self) -> int | None:
        """The global batch, from the program or else from the spec."""
        reported: int | None = self.training.context.get("samples_per_iteration")
        return reported or self.spec["metrics"]["samples_per_iteration"]

    @property
    def scaling(self) -> str | None:
        """``strong`` (fixed global batch) or ``weak`` (fixed batch per worker), None if not reported."""
        reported = self.training.context.get("scaling")
        return reported if isinstance(reported, str) and reported in (protocol.STRONG, protocol.WEAK) else None

    @property
    def is_micro_benchmark(self) -> bool:
        """Whether it is a micro-benchmark, which trains nothing."""
        return self.spec["program"] in (ALLREDUCE, READ)

    @property
    def synthetic(self) -> bool:
        """Whether its data was synthetic."""
        return str(self.training.context.get("data_fingerprint", "")).startswith(SYNTHETIC)

    @property
    def serial(self) -> float:
        """The share of the computation that cannot overlap with the allreduce; see `spotmpi.forecast.model`."""
        if "--double-buffering" in self.spec["args"]:
            return 0.0
        return _FORWARD if self.spec["program"] and self.spec["image"] == "pytorch" else 1.0

    @property
    def loss(self) -> float | None:
        """The training loss at the end."""
        return self._last("loss")

    @property
    def quality(self) -> tuple[str, float] | None:
        """The name and final value of the quality metric, None if there is none."""
        for name in _QUALITIES:
            value = self._last(name)
            if value is not None:
                return name, value
        return None

    def _last(self, name: str) -> float | None:
        value = self.training.result.get(name)
        if rates.is_number(value):
            return float(value)
        if name in self.training.result or name in self.training.not_finite:
            return None  # the last value is not a number: an earlier one would hide that the model diverged
        points = self.training.evaluations.get(name) or self.training.series.get(name)
        return points[-1].value if points else None


def read(paths: RunPaths, variant: str) -> TrialResult:
    """The results of the run recorded in *paths*.

    Raises:
        InputError: the record is incomplete.
    """
    plan, summary = recorded_plan.read(paths), reader.summary(paths) or {}
    # A run on a cluster records its fingerprint when it ends.
    identity = summary.get("work") or plan.work
    if not identity:
        raise input_error(
            "run", paths.id, f"{paths.summary.name} does not exist yet; report the run after it has ended"
        )
    state, spec = reader.state(paths), load_spec(paths.spec)
    training, stream = _measurements(reader.lines(paths.metrics))
    return TrialResult(
        run=paths.id,
        variant=variant,
        state=state.state,
        spec=spec.canonical(),
        work={**_UNKNOWN_WORK, **{key: value for key, value in identity.items() if value is not None}},
        training=training,
        # That which exceeded a limit ended the run, and is not a restart.
        interruptions=min(state.interruptions, spec.limits.interruptions),
        failures=min(state.failures, spec.limits.failures),
        oversubscribed=bool(summary.get("oversubscribed", plan.oversubscribed)),
        machines=read_machines(paths, summary.get("hardware") or ()),
        container=state.container or identity.get("container"),
        stream=stream,
        sizes=_sizes(paths) if len(spec.sizes) > 1 else (),
    )


def _sizes(paths: RunPaths) -> tuple[int, ...]:
    """The numbers of nodes of the attempts that have iterated."""
    attempts = [each for each in read_attempts(str(paths.folder)) if each.get("last_iteration") is not None]
    return tuple(sorted({len(each["world"]["members"]) for each in attempts if "world" in each}))


def _measurements(lines: Iterable[dict[str, Any]]) -> tuple[Training, Figures | None]:
    """What the lines of metrics say of the training, and the figures of its stream, if it has one."""
    reports: Reports | None = None

    def of_training() -> Iterator[dict[str, Any]]:
        nonlocal reports
        for line in lines:
            if line.get("kind") == protocol.STREAM:
                reports = reports or Reports()
                reports.add(line, line.get("attempt"))
            else:
                yield line

    training = rates.read(of_training())
    return training, reports.total() if reports else None


def differences(one: TrialResult, other: TrialResult, declared: Iterable[str] = ()) -> list[str]:
    """The differences in the work of two runs, from their fingerprints and from what the programs reported."""
    declared = tuple(declared)
    found_differences = work.differences(one.work, other.work, declared)
    reported = (("data_fingerprint", "data"), ("seed", "args"), ("versions", "image"))
    for key, part in reported:
        values = [run.training.context.get(key) for run in (one, other)]
        # A run that ended before its context line has reported nothing.
        if None not in values and values[0] != values[1] and part not in declared:
            found_differences.append(f"{key}: {values[0]}, {values[1]}")
    sources = [run.stream.source if run.stream else None for run in (one, other)]
    places = [(run.work.get("stream") or {}).get("source") for run in (one, other)]
    # The list of a copy has other paths and times; that of the same place differs where its files were changed.
    are_copies = places[0] != places[1] and work.is_same_entry(*places)
    if None not in sources and sources[0] != sources[1] and "stream" not in declared and not are_copies:
        found_differences.append(f"source of the stream: {sources[0]}, {sources[1]}")
    return found_differences
