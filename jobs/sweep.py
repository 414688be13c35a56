"""A sweep: which trials there are, in which order, and what came of them, on record from the first moment."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import random
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import names, variants
from jobs import spec as specs
from jobs.errors import InputError, Problem, RunInUse, UnknownRun, wrong
from jobs.spec import JobSpec
from jobs.variants import Variant

SEED = 1
REPEATS = 3
RETRIES = 2

LOCAL = "local"

PENDING = "pending"
RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"

_FOLDER = "sweeps"
_RECORD = "sweep.json"
_SPEC = "spec.toml"


@dataclass(frozen=True)
class Trial:
    """One measured run of a sweep; ``runs`` are the ids of all tries, the last one counts."""

    number: int
    variant: str
    nodes: int
    repeat: int
    state: str = PENDING
    runs: tuple[str, ...] = ()
    failures: int = 0
    reason: str | None = None

    @property
    def over(self) -> bool:
        """Whether the trial needs nothing more."""
        return self.state in (SUCCEEDED, FAILED)


@dataclass(frozen=True)
class Factors:
    """What a user asks a sweep to vary: node counts, and variants as ``name:key=value,...``.

    Each combination is measured *repeats* times, in an order that *seed* decides; a trial that fails is tried again
    at most *retries* times. *fresh* starts over where a broken-off sweep of the same would be continued.
    """

    nodes: Sequence[int]
    variants: Sequence[str] = ()
    repeats: int = REPEATS
    seed: int = SEED
    retries: int = RETRIES
    fresh: bool = False


@dataclass(frozen=True)
class Design:
    """What a sweep varies and how often; `trials` follows from it."""

    spec: JobSpec
    nodes: tuple[int, ...]
    variants: tuple[Variant, ...]
    repeats: int
    seed: int
    retries: int

    def trials(self) -> list[Trial]:
        """All trials in the order in which they run.

        Each repeat goes through all combinations in a random order of its own, so that a slow hour of the machine
        falls on every combination alike and a sweep broken off is complete up to its last repeat.
        """
        chance = random.Random(self.seed)
        found: list[Trial] = []
        for repeat in range(1, self.repeats + 1):
            block = [(variant.name, nodes) for variant in self.variants for nodes in self.nodes]
            chance.shuffle(block)
            for variant, nodes in block:
                found.append(Trial(len(found) + 1, variant, nodes, repeat))
        return found

    def spec_of(self, trial: Trial) -> JobSpec:
        """The job spec of one trial."""
        return self.variant(trial.variant).spec.model_copy(update={"nodes": trial.nodes})

    def variant(self, name: str) -> Variant:
        """The variant of that name."""
        return next(variant for variant in self.variants if variant.name == name)

    def options(self) -> list[str]:
        """The options of ``spotmpi bench`` that describe this design."""
        told = ["--nodes", ",".join(map(str, self.nodes)), "--repeats", str(self.repeats), "--seed", str(self.seed)]
        told += [] if self.retries == RETRIES else ["--retries", str(self.retries)]
        for variant in self.variants[1:]:
            told += ["--variant", variant.text]
        return told

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `design_from_json` reads them back."""
        return {
            "spec": self.spec.canonical(),
            "nodes": list(self.nodes),
            "variants": [variant.text for variant in self.variants[1:]],
            "repeats": self.repeats,
            "seed": self.seed,
            "retries": self.retries,
        }


def design(spec: JobSpec, factors: Factors) -> Design:
    """The design that *factors* ask of *spec*; InputError with every problem found."""
    nodes = tuple(factors.nodes)
    problems = []
    if not nodes or min(nodes) < 1 or len(set(nodes)) != len(nodes):
        problems.append(Problem("--nodes", ",".join(map(str, nodes)), "give different counts from 1, such as 1,2,4"))
    for option, value, least in (("--repeats", factors.repeats, 1), ("--retries", factors.retries, 0)):
        if value < least:
            problems.append(Problem(option, value, f"give at least {least}"))
    base = spec.model_copy(update={"nodes": 1})
    try:
        read = variants.read(factors.variants, base)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return Design(base, nodes, read, factors.repeats, factors.seed, factors.retries)


def design_from_json(values: dict[str, Any]) -> Design:
    """The design that `Design.to_json` gave."""
    spec = specs.from_values(values["spec"])
    return design(spec, Factors(**{key: value for key, value in values.items() if key != "spec"}))


@dataclass
class Sweep:
    """A sweep on record in its folder; ``work`` identifies what the base variant does (see `jobs.work`).

    ``place`` is where its trials run, as ``--on`` names it.
    """

    folder: Path
    design: Design
    work: dict[str, Any]
    created: float
    place: str = LOCAL
    trials: list[Trial] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The sweep's id, which is its folder's name."""
        return self.folder.name

    @property
    def over(self) -> bool:
        """Whether no trial is left to be run."""
        return all(trial.over for trial in self.trials)

    @property
    def command(self) -> str:
        """The command line that measures the same once more."""
        where = [] if self.place == LOCAL else ["--on", self.place]
        return shlex.join(["spotmpi", "bench", names.shown(self.folder / _SPEC), *self.design.options(), *where])

    def create(self) -> None:
        """Write the folder; from now on the sweep can be resumed."""
        self.folder.mkdir(parents=True)
        (self.folder / _SPEC).write_text(self.design.spec.to_toml())
        self.trials = self.design.trials()
        self.save()

    def update(self, trial: Trial) -> Trial:
        """Put *trial* on record in place of the one of its number."""
        self.trials[trial.number - 1] = trial
        self.save()
        return trial

    def save(self) -> None:
        """Write the record whole: aside first, then renamed."""
        aside = self.folder / f"{_RECORD}.part"
        aside.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        aside.replace(self.folder / _RECORD)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        trials = [dataclasses.asdict(trial) for trial in self.trials]
        return {
            "id": self.id,
            "created": self.created,
            "design": self.design.to_json(),
            "work": self.work,
            "place": self.place,
            "trials": trials,
        }

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While inside, nobody else carries out this sweep; RunInUse where somebody does."""
        lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInUse(f"sweep {self.id} is being carried out by another process; wait for it or end it") from None
        else:
            yield
        finally:
            os.close(lock)


def folder_of(sweep: str, runs_folder: Path) -> Path:
    """Where a sweep of that id is recorded."""
    return runs_folder / _FOLDER / sweep


def load(folder: Path) -> Sweep:
    """The sweep recorded in *folder*; InputError where the record is damaged."""
    try:
        values = json.loads((folder / _RECORD).read_text())
        trials = [Trial(**{**trial, "runs": tuple(trial["runs"])}) for trial in values["trials"]]
        return Sweep(
            folder, design_from_json(values["design"]), values["work"], values["created"], values["place"], trials
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise wrong("sweep", folder.name, f"its {_RECORD} cannot be read ({error}); remove {folder}") from error


def every(runs_folder: Path) -> list[Path]:
    """The folders of all sweeps recorded under a runs folder, oldest first."""
    found = [path.parent for path in (runs_folder / _FOLDER).glob(f"*/{_RECORD}")]
    return sorted(found, key=lambda path: (path / _SPEC).stat().st_mtime)


def find(sweep: str, runs_folder: Path) -> Sweep:
    """The sweep of that id, or the only one whose id starts with it.

    Raises:
        UnknownRun: no sweep, or several, go by that id.
    """
    close = [path for path in every(runs_folder) if sweep and path.name.startswith(sweep)]
    exact = [path for path in close if path.name == sweep]
    if exact or len(close) == 1:
        return load((exact or close)[0])
    if close:
        fits = ", ".join(path.name for path in close)
        raise UnknownRun([Problem("sweep", sweep, f"fits several sweeps: {fits}; write more of the id")])
    raise UnknownRun([Problem("sweep", sweep, f"no such sweep in {runs_folder / _FOLDER}")])


def unfinished(runs_folder: Path, wanted: Design, place: str) -> Sweep | None:
    """The newest sweep of the same design at the same place that has trials left, or None."""
    for folder in reversed(every(runs_folder)):
        with contextlib.suppress(InputError):
            found = load(folder)
            if found.design == wanted and found.place == place and not found.over:
                return found
    return None
