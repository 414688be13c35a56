"""A sweep: its design and what came of its trials, on record from the first moment."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotmpi.core import names
from spotmpi.core.errors import InputError, Problem, RunInUse, UnknownRun, input_error
from spotmpi.core.price import Price
from spotmpi.spec import job
from spotmpi.study import study_file
from spotmpi.study.design import Design, Factors, crossed
from spotmpi.study.trial import Trial

LOCAL = "local"

_FOLDER = "sweeps"
_RECORD = "sweep.json"
_SPEC = "spec.toml"
_STUDY = "study.toml"


def design_from_json(values: dict[str, Any]) -> Design:
    """The design whose ``source`` *values* are."""
    if "study" in values:
        return study_file.design_of(values["study"])
    spec = job.from_values(values["spec"])
    return crossed(spec, Factors(**{key: value for key, value in values.items() if key != "spec"}))


@dataclass
class Sweep:
    """A sweep on record in its folder; ``work`` identifies what the base variant does (see `spotmpi.runs.fingerprint`).

    ``place`` is where its trials run, as ``--on`` names it; ``cut`` says which limit it has reached.
    """

    folder: Path
    design: Design
    work: dict[str, Any]
    created: float
    place: str = LOCAL
    trials: list[Trial] = field(default_factory=list)
    cut: str | None = None

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
        if self.design.is_study:
            return shlex.join(["spotmpi", "bench", names.shown(self.folder / _STUDY), *where])
        return shlex.join(["spotmpi", "bench", names.shown(self.folder / _SPEC), *self.design.options(), *where])

    def create(self) -> None:
        """Write the folder; from now on the sweep can be resumed."""
        self.folder.mkdir(parents=True)
        (self.folder / _SPEC).write_text(self.design.spec.to_toml())
        if self.design.is_study:
            (self.folder / _STUDY).write_text(study_file.to_toml(self.design, _SPEC))
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
            "design": self.design.source,
            "work": self.work,
            "place": self.place,
            "cut": self.cut,
            "prices": [[*cell, dataclasses.asdict(price)] for cell, price in self.design.budget.prices.items()],
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
        design = _priced(design_from_json(values["design"]), values.get("prices") or [])
        place, cut = values["place"], values.get("cut")
        return Sweep(folder, design, values["work"], values["created"], place, trials, cut)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise input_error("sweep", folder.name, f"its {_RECORD} cannot be read ({error}); remove {folder}") from error


def _priced(design: Design, prices: list[Any]) -> Design:
    """The design with the prices that were found when it was carried out."""
    known = {(variant, nodes): Price(**price) for variant, nodes, price in prices}
    return dataclasses.replace(design, budget=dataclasses.replace(design.budget, prices=known))


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
