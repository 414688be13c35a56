"""A study: what to measure, which trials follow from that, in which order, and the budget that they share."""

from __future__ import annotations

import itertools
import random
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotmpi.capacity.job import hours
from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem
from spotmpi.core.price import Price
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import WrongKeys
from spotmpi.study.parameters import Variant, read_variants

PENDING = "pending"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"

# Roles. WITHOUT_ALLREDUCE is a measurement and no training: gradients are not synchronized.
MEASURED = "measured"
WITHOUT_ALLREDUCE = "without allreduce"
ALLREDUCE = "allreduce"  # micro-benchmark of the network, before the measured trials
READ = "read"  # micro-benchmark of reading the data, before the measured trials
BASELINE = "baseline"  # the smallest configuration, before and after all other trials


@dataclass(frozen=True)
class Trial:
    """One trial; ``runs`` are the ids of all its tries, of which the last one counts, ``seconds`` their total time.

    ``role`` is what it is for: measured, without allreduce, baseline, allreduce or read.
    """

    number: int
    variant: str
    nodes: int
    repeat: int
    state: str = PENDING
    runs: tuple[str, ...] = ()
    failures: int = 0
    reason: str | None = None
    role: str = MEASURED
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether it succeeded or failed for good."""
        return self.state in (SUCCEEDED, FAILED)

    @property
    def is_micro_benchmark(self) -> bool:
        """Whether it is a micro-benchmark."""
        return self.role in (ALLREDUCE, READ)


Configuration = tuple[str, int]  # the name of a variant, and nodes

_HOUR = 3600.0


@dataclass(frozen=True)
class Budget:
    """Limits on the total seconds and dollars of trials; ``trial_seconds`` is the expected time of one.

    ``prices`` holds node prices by configuration; ``price`` applies to all other configurations.
    """

    time_limit: float | None = None
    money_limit: float | None = None
    trial_seconds: float | None = None
    price: Price | None = None
    prices: Mapping[Configuration, Price] = field(default_factory=dict)

    @property
    def all_prices(self) -> list[Price]:
        """Every known price, the highest first."""
        known = set(self.prices.values()) or ({self.price} if self.price else set())
        return sorted(known, key=lambda price: (-price.node_hour, price.source))

    def price_of(self, variant: str, nodes: int) -> Price | None:
        """The price of a node in the trials of a configuration, None where unknown."""
        return self.prices.get((variant, nodes), self.price)

    def cost(self, trial: Trial, seconds: float) -> float | None:
        """Dollars for the nodes of *trial* over *seconds*, None without a price."""
        price = self.price_of(trial.variant, trial.nodes)
        return None if price is None else seconds / _HOUR * price.hourly(trial.nodes)

    def spent(self, trials: Sequence[Trial]) -> tuple[float, float]:
        """Seconds and dollars spent on *trials*, failed tries included."""
        seconds = sum(trial.seconds for trial in trials)
        return seconds, sum(self.cost(trial, trial.seconds) or 0.0 for trial in trials)

    def expected_seconds(self, trial: Trial, trials: Sequence[Trial]) -> float | None:
        """Expected seconds of *trial*.

        That is the median of its configuration, its node count or all trials, else ``trial_seconds``. The time
        of a micro-benchmark says nothing about that of training.
        """
        finished = [
            each
            for each in trials
            if each.seconds and each.finished and each.is_micro_benchmark == trial.is_micro_benchmark
        ]
        same_nodes = [each for each in finished if each.nodes == trial.nodes]
        similar = [each for each in same_nodes if each.variant == trial.variant] or same_nodes or finished
        return statistics.median(each.seconds for each in similar) if similar else self.trial_seconds

    def estimate(self, trials: Sequence[Trial]) -> str:
        """The time and money that the remaining trials will take, as text."""
        remaining = [trial for trial in trials if not trial.finished]
        count = wording.counted(len(remaining), "trial")
        each = [self.expected_seconds(trial, trials) for trial in remaining]
        known = [seconds for seconds in each if seconds is not None]
        if len(known) < len(remaining):
            return f"{count} of unknown duration (set limits.trial in the study for an estimate)"
        costs = [self.cost(trial, seconds) for trial, seconds in zip(remaining, known, strict=True)]
        least = "at least " if None in costs else ""  # for those that have a price
        money = "" if not self.all_prices else f" and {least}{wording.dollars(sum(cost or 0.0 for cost in costs))}"
        exceeded = self._exceeded_limits(trials, sum(known), costs)
        return f"{count}, about {_minutes(sum(known))}{money}{exceeded}"

    def exhausted(self, trial: Trial, trials: Sequence[Trial]) -> str | None:
        """Why *trial* exceeds the limits, or None if it may start."""
        seconds, dollars = self.spent(trials)
        more = self.expected_seconds(trial, trials) or 0.0
        cost = self.cost(trial, more) or 0.0
        if self.time_limit is not None and seconds + more > self.time_limit:
            expected = f", the next trial takes {_minutes(more)}" if more else ""
            return f"limits.time = {wording.duration(self.time_limit)!r} reached: {_minutes(seconds)} spent{expected}"
        if self.money_limit is not None and dollars + cost > self.money_limit:
            text = f"{wording.dollars(dollars)} spent, the next trial costs {wording.dollars(cost)}"
            return f"limits.money = {self.money_limit:g} reached: {text}"
        return None

    def _exceeded_limits(self, trials: Sequence[Trial], seconds: float, costs: Sequence[float | None]) -> str:
        spent_seconds, spent_dollars = self.spent(trials)
        exceeded = []
        if self.time_limit is not None and spent_seconds + seconds > self.time_limit:
            exceeded.append(f"limits.time = {wording.duration(self.time_limit)!r}")
        if self.money_limit is not None and spent_dollars + sum(cost or 0.0 for cost in costs) > self.money_limit:
            exceeded.append(f"limits.money = {self.money_limit:g}")
        return f"; exceeds {' and '.join(exceeded)}, where it will stop" if exceeded else ""


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else hours(seconds)


SEED = 1
REPEATS = 3
MOST_REPEATS = 10_000  # each is recorded as a trial before the first one runs
RETRIES = 2
NO_ALLREDUCE = "--no-allreduce"

_Planned = tuple[Configuration, int, str]  # with repeat and role of the trial


@dataclass(frozen=True)
class StudyOptions:
    """Options of `spotmpi bench`: node counts, as ``1,2,4`` or a sequence, and variants, as ``name:key=value,...``.

    Without node counts, that of the spec is measured.

    Each configuration is measured *repeats* times in an order derived from *seed*, and a failed trial is retried at
    most *retries* times; None stands for the study file's value or the default. *fresh* starts a new sweep instead of
    continuing an unfinished one of the same study.
    """

    nodes: Sequence[int] | str | None = None
    variants: Sequence[str] = ()
    repeats: int | None = None
    seed: int | None = None
    retries: int | None = None
    fresh: bool = False

    @property
    def overrides(self) -> dict[str, int]:
        """Those of repeats, seed and retries that are set."""
        values = {"repeats": self.repeats, "seed": self.seed, "retries": self.retries}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Study:
    """What to measure and how often, from a study file or from a spec and `StudyOptions`.

    ``configurations`` are pairs of variant and node count. ``without_allreduce`` pairs each trial of several ranks with
    one that skips the allreduce of gradients; ``baseline`` runs the smallest configuration before and after all others,
    and ``micro_benchmarks`` runs those on each kind of node first. ``source`` holds the JSON values that the study was
    read from; ``compare`` names a published table to compare the result with.
    """

    spec: JobSpec
    variants: tuple[Variant, ...]
    configurations: tuple[Configuration, ...]
    repeats: int
    seed: int
    retries: int
    source: dict[str, Any] = field(compare=False, repr=False)
    without_allreduce: bool = False
    baseline: bool = False
    micro_benchmarks: bool = False
    budget: Budget = field(default=Budget(), compare=False)
    compare: str | None = field(default=None, compare=False)

    @property
    def from_file(self) -> bool:
        """Whether it was read from a study file rather than made from options."""
        return "study" in self.source

    @property
    def nodes(self) -> tuple[int, ...]:
        """All node counts, in the order of the study."""
        return tuple(dict.fromkeys(nodes for _, nodes in self.configurations))

    def trials(self) -> list[Trial]:
        """All trials in the order in which they run.

        Each repeat runs all configurations in its own random order, so that a slow hour affects each of them alike and
        an interrupted sweep is complete up to its last full repeat. Within a repeat the configurations of one kind of
        node stay together, and the next repeat starts with the kind that is still up.
        """
        generator = random.Random(self.seed)
        planned: list[_Planned] = self._micro_benchmarks() if self.micro_benchmarks else []
        planned += [(self._smallest(), 0, BASELINE)] if self.baseline else []
        last = self._node_kind(planned[-1][0]) if planned else None
        for repeat in range(1, self.repeats + 1):
            for kind in self._node_kinds(generator, last):
                last = kind
                block = [each for each in self.configurations if self._node_kind(each) == kind]
                generator.shuffle(block)
                planned += [trial for each in block for trial in self._paired(each, repeat, generator)]
        planned += [(self._smallest(), self.repeats + 1, BASELINE)] if self.baseline else []
        return [Trial(at, *each, repeat, role=role) for at, (each, repeat, role) in enumerate(planned, 1)]

    def spec_of(self, trial: Trial) -> JobSpec:
        """The job spec of one trial."""
        spec = self.variant(trial.variant).spec.model_copy(update={"nodes": trial.nodes})
        if trial.role in (ALLREDUCE, READ):
            return spec.model_copy(update={"program": trial.role, "args": [], "stream": None})
        return spec.model_copy(update={"args": [*spec.args, NO_ALLREDUCE]}) if trial.role == WITHOUT_ALLREDUCE else spec

    def variant(self, name: str) -> Variant:
        """The variant of that name."""
        return next(variant for variant in self.variants if variant.name == name)

    def options(self) -> list[str]:
        """The options of ``spotmpi bench`` that make this study from its spec."""
        options = ["--nodes", ",".join(map(str, self.nodes)), "--repeats", str(self.repeats), "--seed", str(self.seed)]
        options += [] if self.retries == RETRIES else ["--retries", str(self.retries)]
        for variant in self.variants[1:]:
            options += ["--variant", variant.text]
        return options

    def _smallest(self) -> Configuration:
        return min(self.configurations, key=lambda each: (each[1], self.configurations.index(each)))

    def _micro_benchmarks(self) -> list[_Planned]:
        """Micro-benchmarks on the largest configuration of each kind of node, and for each location of the data."""
        micro_benchmarks: dict[tuple[str, str, str], _Planned] = {}
        for configuration in sorted(self.configurations, key=lambda each: -each[1]):
            spec, kind = self.variant(configuration[0]).spec, self._node_kind(configuration)
            if configuration[1] * spec.slots > 1:
                micro_benchmarks.setdefault((ALLREDUCE, kind, str(spec.image)), (configuration, 0, ALLREDUCE))
            if spec.data is not None:
                micro_benchmarks.setdefault((READ, kind, str(spec.data)), (configuration, 0, READ))
        # The kind that the first trials use comes last, so that its nodes stay up.
        first = self._node_kind(self._smallest())
        kinds = sorted({kind: None for _, kind, _ in micro_benchmarks}, key=lambda kind: kind == first)
        return [
            micro_benchmark
            for each in kinds
            for (_, kind, _), micro_benchmark in micro_benchmarks.items()
            if kind == each
        ]

    def _paired(self, configuration: Configuration, repeat: int, generator: random.Random) -> list[_Planned]:
        single_rank = configuration[1] * self.variant(configuration[0]).spec.slots == 1
        roles = [MEASURED, WITHOUT_ALLREDUCE] if self.without_allreduce and not single_rank else [MEASURED]
        generator.shuffle(roles)
        return [(configuration, repeat, role) for role in roles]

    def _node_kind(self, configuration: Configuration) -> str:
        """What a configuration requests of its nodes, as a key."""
        spec = self.variant(configuration[0]).spec.kubernetes
        return str((spec.node_groups, spec.instance_type, spec.placement_group, sorted(spec.node_selector.items())))

    def _node_kinds(self, generator: random.Random, last: str | None) -> list[str]:
        kinds = list(dict.fromkeys(map(self._node_kind, self.configurations)))
        generator.shuffle(kinds)
        return sorted(kinds, key=lambda kind: kind != last)


@dataclass(frozen=True)
class Faults:
    """Problems of a study, and the top-level keys of its specs that are ``wrong``: left out or undefined."""

    problems: tuple[Problem, ...] = ()
    wrong: frozenset[str] = frozenset()

    def with_problems(self, problems: Iterable[Problem], wrong: Iterable[str] = ()) -> Faults:
        """These and further ones, each only once."""
        distinct = {str(problem): problem for problem in (*self.problems, *problems)}
        return Faults(tuple(distinct.values()), self.wrong.union(wrong))

    def refuse(self, rest: Study) -> None:
        """Raise WrongStudy if there are any; *rest* is the study without them."""
        if self.problems:
            raise WrongStudy(self, rest)


class WrongStudy(InputError):
    """A study has ``faults``; ``rest`` is the study without what they concern."""

    def __init__(self, faults: Faults, rest: Study) -> None:
        super().__init__(faults.problems)
        self.faults, self.rest = faults, rest


def read_base(read: Callable[[], JobSpec]) -> tuple[JobSpec, Faults]:
    """The spec that *read* returns, as far as it can be read, and its problems."""
    try:
        return read(), Faults()
    except WrongKeys as error:
        return error.rest, Faults(error.problems, error.wrong)
    except InputError as error:
        return JobSpec(), Faults(error.problems, frozenset(JobSpec.model_fields))


def grid_study(spec: JobSpec, options: StudyOptions, faults: Faults = Faults()) -> Study:
    """The study of all variants of *spec* on all node counts of *options*; WrongStudy lists its and other *faults*."""
    nodes, problems = _node_counts(list(spec.sizes) if options.nodes is None else options.nodes)
    counts = {"repeats": REPEATS, "seed": SEED, "retries": RETRIES, **options.overrides}
    for name, least in (("repeats", 1), ("retries", 0)):
        if counts[name] < least:
            problems.append(Problem(wording.option(name), counts[name], f"must be at least {least}"))
    if counts["repeats"] > MOST_REPEATS:
        problems.append(Problem(wording.option("repeats"), counts["repeats"], f"must be at most {MOST_REPEATS:,}"))
    base = spec.model_copy(update={"nodes": 1})
    named, wrong_variants = read_variants(options.variants, base, faults.wrong)
    values = {"nodes": list(nodes), "variants": [variant.text for variant in named[1:]], **counts}
    configurations = tuple(itertools.product((variant.name for variant in named), nodes))
    source = {"spec": base.canonical(), **values}
    study = Study(base, named, configurations, counts["repeats"], counts["seed"], counts["retries"], source)
    faults.with_problems([*problems, *wrong_variants, *standby_problems(named)]).refuse(study)
    return study


def standby_problems(variants: Iterable[Variant]) -> list[Problem]:
    """Why no pods stand by in trials of *variants*."""
    remedy = "the costs of trials are those of their nodes: remove it"
    return [Problem("standby", count, remedy) for count in sorted({each.spec.standby for each in variants} - {0})]


def _node_counts(nodes: Sequence[int] | str) -> tuple[tuple[int, ...], list[Problem]]:
    """The valid node counts, and what is wrong with the others."""
    written = nodes.split(",") if isinstance(nodes, str) else nodes
    counts = [int(each) for each in written if re.fullmatch(r"\s*\d+\s*", str(each), re.ASCII)]
    valid = tuple(dict.fromkeys(count for count in counts if count >= 1))
    if valid and len(valid) == len(written):
        return valid, []
    remedy = "node counts must be distinct and at least 1, such as 1,2,4"
    return valid, [Problem(wording.option("nodes"), ",".join(map(str, written)), remedy)]
