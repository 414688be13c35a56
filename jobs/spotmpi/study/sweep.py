"""A sweep: a recorded execution of a study, with the state of each trial."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotmpi.agent import record
from spotmpi.agent.files import is_file, is_folder, write_atomically
from spotmpi.core import names, wording
from spotmpi.core.errors import InputError, SpotmpiError, input_error
from spotmpi.core.price import Price
from spotmpi.runs import reader
from spotmpi.spec.source import from_values
from spotmpi.study import study_file
from spotmpi.study.study import Study, StudyOptions, Trial, grid_study

_STUDY = "study.toml"


def _study_from_json(values: dict[str, Any]) -> Study:
    """The study whose ``source`` *values* are."""
    if "study" in values:
        return study_file.from_values(values["study"])
    spec = from_values(values["spec"])
    return grid_study(spec, StudyOptions(**{key: value for key, value in values.items() if key != "spec"}))


@dataclass
class Sweep:
    """An execution of ``study``, recorded in its folder.

    ``work`` is the fingerprint of the base variant (see `spotmpi.runs.fingerprint`), ``target`` where the trials run,
    as in ``--on``, and ``limit_reached`` the limit that stopped it.
    """

    folder: Path
    study: Study
    work: dict[str, Any]
    created: float
    target: str = names.LOCAL
    trials: list[Trial] = field(default_factory=list)
    limit_reached: str | None = None

    @property
    def id(self) -> str:
        """The id of the sweep: the name of its folder."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """Whether all trials have finished."""
        return all(trial.finished for trial in self.trials)

    @property
    def command(self) -> str:
        """The command line that reproduces the sweep."""
        on = [] if self.target == names.LOCAL else ["--on", self.target]
        if self.study.from_file:
            return shlex.join(["spotmpi", "bench", names.display_path(self.folder / _STUDY), *on])
        return shlex.join(
            ["spotmpi", "bench", names.display_path(self.folder / names.SPEC), *self.study.options(), *on]
        )

    def create(self) -> None:
        """Write the folder; from then on the sweep can be resumed. SpotmpiError if it cannot be written."""
        self.trials = self.study.trials()
        try:
            self.folder.mkdir(parents=True)
            (self.folder / names.SPEC).write_text(self.study.spec.to_toml(), encoding="utf-8")
            if self.study.from_file:
                (self.folder / _STUDY).write_text(study_file.to_toml(self.study, names.SPEC), encoding="utf-8")
            self.save()
        except OSError as error:
            raise SpotmpiError(
                f"cannot record the sweep in {self.folder}: {error.strerror}; use {wording.option('runs', 'FOLDER')}"
            ) from error

    def update(self, trial: Trial) -> Trial:
        """Record *trial* in place of the one with its number."""
        self.trials[trial.number - 1] = trial
        self.save()
        return trial

    def save(self) -> None:
        """Write the record, whole or not at all."""
        write_atomically(self.folder / names.SWEEP_RECORD, json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        trials = [dataclasses.asdict(trial) for trial in self.trials]
        return {
            "id": self.id,
            "created": self.created,
            "design": self.study.source,
            "work": self.work,
            "target": self.target,
            "limit_reached": self.limit_reached,
            "prices": [[*each, dataclasses.asdict(price)] for each, price in self.study.budget.prices.items()],
            "trials": trials,
        }

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the sweep exclusively; RunInUse if another process holds it."""
        refusal = f"sweep {self.id} is in use by another process; wait for it or stop it"
        return reader.locked(self.folder / record.LOCK, refusal)


def sweep_folder(sweep: str, runs_folder: Path) -> Path:
    """The folder of the sweep with that id."""
    return runs_folder / names.SWEEPS / sweep


def load_sweep(folder: Path) -> Sweep:
    """The sweep recorded in *folder*.

    Raises:
        InputError: the record is damaged.
        SpotmpiError: the disk fails: the sweep may be as it was.
    """
    try:
        values = json.loads((folder / names.SWEEP_RECORD).read_text(encoding="utf-8"))
        trials = [Trial(**{**trial, "runs": tuple(trial["runs"])}) for trial in values["trials"]]
        study = _with_recorded_prices(_study_from_json(values["design"]), values["prices"])
        return Sweep(
            folder, study, values["work"], values["created"], values["target"], trials, values["limit_reached"]
        )
    except OSError as error:
        reason = error.strerror or error
        remedy = "check its disk, then try again"
        raise SpotmpiError(f"cannot read {folder / names.SWEEP_RECORD}: {reason}; {remedy}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise input_error(
            "sweep", folder.name, f"cannot read its {names.SWEEP_RECORD} ({error}); remove {folder}"
        ) from error


def _with_recorded_prices(study: Study, prices: list[Any]) -> Study:
    """*study* with the node prices at the time of the sweep."""
    known = {(variant, nodes): Price(**price) for variant, nodes, price in prices}
    return dataclasses.replace(study, budget=dataclasses.replace(study.budget, prices=known))


def sweep_folders(runs_folder: Path) -> list[Path]:
    """The folders of all sweeps recorded under a runs folder, oldest first."""
    top = runs_folder / names.SWEEPS
    folders = list(top.iterdir()) if is_folder(top) else []
    return sorted((each for each in folders if is_file(each / names.SWEEP_RECORD)), key=_begun)


def _begun(folder: Path) -> float:
    """When a sweep was created, according to its folder."""
    try:
        return (folder / names.SPEC).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def find_sweep(sweep: str, runs_folder: Path) -> Sweep:
    """The sweep with that id, or the only one whose id starts with it.

    Raises:
        UnknownRun: no sweep matches, or several do.
    """
    known = [path.name for path in sweep_folders(runs_folder)]
    found = reader.match("sweep", sweep, known, f"no such sweep in {runs_folder / names.SWEEPS}")
    return load_sweep(sweep_folder(found, runs_folder))


def unfinished_sweep(runs_folder: Path, study: Study, target: str) -> Sweep | None:
    """The newest unfinished sweep of the same study on the same target, or None."""
    for folder in reversed(sweep_folders(runs_folder)):
        with contextlib.suppress(InputError):
            sweep = load_sweep(folder)
            if sweep.study == study and sweep.target == target and not sweep.finished:
                return sweep
    return None
