"""The design of a sweep: what it varies, and which trials follow from that, in which order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spotmpi.core.errors import InputError, Problem
from spotmpi.spec import variants
from spotmpi.spec.job import JobSpec
from spotmpi.spec.variants import Variant
from spotmpi.study.budget import Budget, Cell
from spotmpi.study.trial import ALLREDUCE, DRIFT, MEASURED, READ, SILENT, Trial

SEED = 1
REPEATS = 3
RETRIES = 2
NO_EXCHANGE = "--no-exchange"


@dataclass(frozen=True)
class Factors:
    """What a user asks a sweep to vary: node counts (by default 1), and variants as ``name:key=value,...``.

    Each combination is measured *repeats* times, in an order that *seed* decides; a trial that fails is tried again
    at most *retries* times; None leaves that to the study, or to our defaults. *fresh* starts over where a broken-off
    sweep of the same would be continued.
    """

    nodes: Sequence[int] | None = None
    variants: Sequence[str] = ()
    repeats: int | None = None
    seed: int | None = None
    retries: int | None = None
    fresh: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """Of repeats, seed and retries those that were given."""
        given = {"repeats": self.repeats, "seed": self.seed, "retries": self.retries}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Design:
    """What a sweep measures and how often; `trials` follows from it.

    ``cells`` are the combinations of variant and nodes. With ``silent`` each trial of several ranks has a partner that
    leaves out the exchange of gradients; with ``drift`` the smallest cell runs once more before and after all others,
    and with ``probe`` micro-benchmarks run on each kind of node first.
    ``source`` is what the design was read from, as JSON values; ``compare`` names a published table to stand beside the
    result.
    """

    spec: JobSpec
    variants: tuple[Variant, ...]
    cells: tuple[Cell, ...]
    repeats: int
    seed: int
    retries: int
    source: dict[str, Any] = field(compare=False, repr=False)
    silent: bool = False
    drift: bool = False
    probe: bool = False
    budget: Budget = field(default=Budget(), compare=False)
    compare: str | None = field(default=None, compare=False)

    @property
    def is_study(self) -> bool:
        """Whether it was read from a study file, not from options."""
        return "study" in self.source

    @property
    def nodes(self) -> tuple[int, ...]:
        """All node counts, in the order in which they were given."""
        return tuple(dict.fromkeys(nodes for _, nodes in self.cells))

    def trials(self) -> list[Trial]:
        """All trials in the order in which they run.

        Each repeat goes through all cells in a random order of its own, so that a slow hour of the machine falls on
        every cell alike and a sweep broken off is complete up to its last repeat. Within a repeat the cells of one
        kind of node stay together, and the next one begins with the kind that is still up.
        """
        chance = random.Random(self.seed)
        found: list[tuple[Cell, int, str]] = self._probes() if self.probe else []
        found += [(self._smallest(), 0, DRIFT)] if self.drift else []
        last = self._group(found[-1][0]) if found else None
        for repeat in range(1, self.repeats + 1):
            for group in self._groups(chance, last):
                last = group
                block = [cell for cell in self.cells if self._group(cell) == group]
                chance.shuffle(block)
                found += [each for cell in block for each in self._paired(cell, repeat, chance)]
        found += [(self._smallest(), self.repeats + 1, DRIFT)] if self.drift else []
        return [Trial(at, *cell, repeat, role=role) for at, (cell, repeat, role) in enumerate(found, 1)]

    def spec_of(self, trial: Trial) -> JobSpec:
        """The job spec of one trial."""
        spec = self.variant(trial.variant).spec.model_copy(update={"nodes": trial.nodes})
        if trial.role in (ALLREDUCE, READ):
            return spec.model_copy(update={"program": trial.role, "args": []})
        return spec.model_copy(update={"args": [*spec.args, NO_EXCHANGE]}) if trial.role == SILENT else spec

    def variant(self, name: str) -> Variant:
        """The variant of that name."""
        return next(variant for variant in self.variants if variant.name == name)

    def options(self) -> list[str]:
        """The options of ``spotmpi bench`` that describe this design, where options did."""
        told = ["--nodes", ",".join(map(str, self.nodes)), "--repeats", str(self.repeats), "--seed", str(self.seed)]
        told += [] if self.retries == RETRIES else ["--retries", str(self.retries)]
        for variant in self.variants[1:]:
            told += ["--variant", variant.text]
        return told

    def _smallest(self) -> Cell:
        return min(self.cells, key=lambda cell: (cell[1], self.cells.index(cell)))

    def _probes(self) -> list[tuple[Cell, int, str]]:
        """Micro-benchmarks on the most nodes of each kind, and for each place of the data."""
        found: dict[tuple[str, str, str], tuple[Cell, int, str]] = {}
        for cell in sorted(self.cells, key=lambda cell: -cell[1]):
            spec, group = self.variant(cell[0]).spec, self._group(cell)
            if cell[1] * spec.slots > 1:
                found.setdefault((ALLREDUCE, group, str(spec.image)), (cell, 0, ALLREDUCE))
            if spec.data is not None:
                found.setdefault((READ, group, str(spec.data)), (cell, 0, READ))
        # The kind that goes on comes last.
        next_up = self._group(self._smallest())
        kinds = sorted({group: None for _, group, _ in found}, key=lambda group: group == next_up)
        return [probe for kind in kinds for (_, group, _), probe in found.items() if group == kind]

    def _paired(self, cell: Cell, repeat: int, chance: random.Random) -> list[tuple[Cell, int, str]]:
        alone = cell[1] * self.variant(cell[0]).spec.slots == 1  # has nobody to exchange with
        roles = [MEASURED, SILENT] if self.silent and not alone else [MEASURED]
        chance.shuffle(roles)
        return [(cell, repeat, role) for role in roles]

    def _group(self, cell: Cell) -> str:
        """The kind of node that a cell asks for."""
        asked = self.variant(cell[0]).spec.kubernetes
        return str((asked.node_groups, asked.instance_type, asked.placement_group, sorted(asked.node_selector.items())))

    def _groups(self, chance: random.Random, last: str | None) -> list[str]:
        groups = list(dict.fromkeys(map(self._group, self.cells)))
        chance.shuffle(groups)
        return sorted(groups, key=lambda group: group != last)


def crossed(spec: JobSpec, factors: Factors) -> Design:
    """All variants on all node counts that *factors* ask of *spec*; InputError with every problem found."""
    nodes = tuple([1] if factors.nodes is None else factors.nodes)
    counts = {"repeats": REPEATS, "seed": SEED, "retries": RETRIES, **factors.counts}
    problems = []
    if not nodes or min(nodes) < 1 or len(set(nodes)) != len(nodes):
        problems.append(Problem("--nodes", ",".join(map(str, nodes)), "give different counts from 1, such as 1,2,4"))
    for name, least in (("repeats", 1), ("retries", 0)):
        if counts[name] < least:
            problems.append(Problem(f"--{name}", counts[name], f"give at least {least}"))
    base = spec.model_copy(update={"nodes": 1})
    try:
        read = variants.read(factors.variants, base)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    told = {"nodes": list(nodes), "variants": [variant.text for variant in read[1:]], **counts}
    cells = tuple(itertools.product((variant.name for variant in read), nodes))
    source = {"spec": base.canonical(), **told}
    return Design(base, read, cells, counts["repeats"], counts["seed"], counts["retries"], source)
