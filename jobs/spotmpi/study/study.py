"""A study: what to measure, and which trials follow from that, in which order."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotmpi.core import hints
from spotmpi.core.errors import InputError, Problem
from spotmpi.spec import variants
from spotmpi.spec.job import JobSpec, WrongKeys
from spotmpi.spec.variants import Variant
from spotmpi.study.trial import ALLREDUCE, DRIFT, MEASURED, READ, WITHOUT_ALLREDUCE, Budget, Cell, Trial

SEED = 1
REPEATS = 3
RETRIES = 2
NO_ALLREDUCE = "--no-allreduce"


@dataclass(frozen=True)
class StudyOptions:
    """Options of `spotmpi bench`: node counts, as ``1,2,4`` or a sequence, and variants, as ``name:key=value,...``.

    Without node counts, that of the spec is measured.

    Each combination is measured *repeats* times in an order derived from *seed*, and a failed trial is retried at most
    *retries* times; None stands for the study file's value or the default. *fresh* starts a new sweep instead of
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

    ``cells`` are the combinations of variant and node count. ``without_allreduce`` pairs each trial of several ranks
    with one that skips the allreduce of gradients; ``drift`` runs the smallest cell before and after all others, and
    ``probe`` runs micro-benchmarks on each kind of node first. ``source`` holds the JSON values that the study was read
    from; ``compare`` names a published table to compare the result with.
    """

    spec: JobSpec
    variants: tuple[Variant, ...]
    cells: tuple[Cell, ...]
    repeats: int
    seed: int
    retries: int
    source: dict[str, Any] = field(compare=False, repr=False)
    without_allreduce: bool = False
    drift: bool = False
    probe: bool = False
    budget: Budget = field(default=Budget(), compare=False)
    compare: str | None = field(default=None, compare=False)

    @property
    def from_file(self) -> bool:
        """Whether it was read from a study file rather than made from options."""
        return "study" in self.source

    @property
    def nodes(self) -> tuple[int, ...]:
        """All node counts, in the order of the study."""
        return tuple(dict.fromkeys(nodes for _, nodes in self.cells))

    def trials(self) -> list[Trial]:
        """All trials in the order in which they run.

        Each repeat runs all cells in its own random order, so that a slow hour affects every cell alike and an
        interrupted sweep is complete up to its last full repeat. Within a repeat the cells of one kind of node stay
        together, and the next repeat starts with the kind that is still up.
        """
        generator = random.Random(self.seed)
        planned: list[tuple[Cell, int, str]] = self._probes() if self.probe else []
        planned += [(self._smallest(), 0, DRIFT)] if self.drift else []
        last = self._node_kind(planned[-1][0]) if planned else None
        for repeat in range(1, self.repeats + 1):
            for kind in self._node_kinds(generator, last):
                last = kind
                block = [cell for cell in self.cells if self._node_kind(cell) == kind]
                generator.shuffle(block)
                planned += [each for cell in block for each in self._paired(cell, repeat, generator)]
        planned += [(self._smallest(), self.repeats + 1, DRIFT)] if self.drift else []
        return [Trial(at, *cell, repeat, role=role) for at, (cell, repeat, role) in enumerate(planned, 1)]

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

    def _smallest(self) -> Cell:
        return min(self.cells, key=lambda cell: (cell[1], self.cells.index(cell)))

    def _probes(self) -> list[tuple[Cell, int, str]]:
        """Micro-benchmarks on the largest cell of each kind of node, and for each location of the data."""
        probes: dict[tuple[str, str, str], tuple[Cell, int, str]] = {}
        for cell in sorted(self.cells, key=lambda cell: -cell[1]):
            spec, kind = self.variant(cell[0]).spec, self._node_kind(cell)
            if cell[1] * spec.slots > 1:
                probes.setdefault((ALLREDUCE, kind, str(spec.image)), (cell, 0, ALLREDUCE))
            if spec.data is not None:
                probes.setdefault((READ, kind, str(spec.data)), (cell, 0, READ))
        # The kind that the first trials use comes last, so that its nodes stay up.
        first = self._node_kind(self._smallest())
        kinds = sorted({kind: None for _, kind, _ in probes}, key=lambda kind: kind == first)
        return [probe for each in kinds for (_, kind, _), probe in probes.items() if kind == each]

    def _paired(self, cell: Cell, repeat: int, generator: random.Random) -> list[tuple[Cell, int, str]]:
        single_rank = cell[1] * self.variant(cell[0]).spec.slots == 1
        roles = [MEASURED, WITHOUT_ALLREDUCE] if self.without_allreduce and not single_rank else [MEASURED]
        generator.shuffle(roles)
        return [(cell, repeat, role) for role in roles]

    def _node_kind(self, cell: Cell) -> str:
        """What a cell requests of its nodes, as a key."""
        spec = self.variant(cell[0]).spec.kubernetes
        return str((spec.node_groups, spec.instance_type, spec.placement_group, sorted(spec.node_selector.items())))

    def _node_kinds(self, generator: random.Random, last: str | None) -> list[str]:
        kinds = list(dict.fromkeys(map(self._node_kind, self.cells)))
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


def full_factorial(spec: JobSpec, options: StudyOptions, faults: Faults = Faults()) -> Study:
    """The study of all variants of *spec* on all node counts of *options*; WrongStudy lists its and other *faults*."""
    nodes, problems = _node_counts([spec.nodes] if options.nodes is None else options.nodes)
    counts = {"repeats": REPEATS, "seed": SEED, "retries": RETRIES, **options.overrides}
    for name, least in (("repeats", 1), ("retries", 0)):
        if counts[name] < least:
            problems.append(Problem(hints.option(name), counts[name], f"must be at least {least}"))
    base = spec.model_copy(update={"nodes": 1})
    named, wrong_variants = variants.read(options.variants, base, faults.wrong)
    values = {"nodes": list(nodes), "variants": [variant.text for variant in named[1:]], **counts}
    cells = tuple(itertools.product((variant.name for variant in named), nodes))
    source = {"spec": base.canonical(), **values}
    study = Study(base, named, cells, counts["repeats"], counts["seed"], counts["retries"], source)
    faults.with_problems([*problems, *wrong_variants]).refuse(study)
    return study


def _node_counts(nodes: Sequence[int] | str) -> tuple[tuple[int, ...], list[Problem]]:
    """The valid node counts, and what is wrong with the others."""
    written = nodes.split(",") if isinstance(nodes, str) else nodes
    counts = [int(each) for each in written if re.fullmatch(r"\s*\d+\s*", str(each), re.ASCII)]
    valid = tuple(dict.fromkeys(count for count in counts if count >= 1))
    if valid and len(valid) == len(written):
        return valid, []
    remedy = "node counts must be distinct and at least 1, such as 1,2,4"
    return valid, [Problem(hints.option("nodes"), ",".join(map(str, written)), remedy)]
