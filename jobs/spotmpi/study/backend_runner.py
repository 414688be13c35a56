"""Runs the trials of a sweep on a backend, as `spotmpi.study.execution` needs it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from spotmpi.backends import follow
from spotmpi.backends.base import Backend
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.core.progress import Say
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec
from spotmpi.spec.validate import require_valid
from spotmpi.study.placement import PlacementRecorder

_TRIAL = follow.Messages(
    "stopping the trial and the sweep; Ctrl-C again kills", "killing the trial", "the same command continues the study"
)


class BackendRunner:
    """Runs trials on *backend*, whose records are in *runs_folder*; Ctrl-C stops the current trial.

    *watch* receives the events of the trials, *say* all other messages.
    """

    def __init__(self, backend: Backend, runs_folder: Path, watch: Callable[[Event], None], say: Say) -> None:
        self._backend = backend
        self._runs_folder = runs_folder
        self._placement = PlacementRecorder(say)
        self._watch = watch
        self._say = say
        self._shown_notes: set[str] = set()

    def require_valid(self, spec: JobSpec) -> None:
        """Raise InputError with every reason why *spec* cannot run here."""
        require_valid(spec, self._backend.inspect(spec))

    def new_id(self, spec: JobSpec) -> str:
        """An id for a new run."""
        return names.run_id(spec.title, datetime.now(), secrets.randbelow(1 << 20))

    def run(self, spec: JobSpec, run: str) -> RunState:
        """Run *spec* under that id and return its final state."""
        plan = self._backend.plan(spec, run)
        for note in plan["notes"]:
            # Trials of a kind have the same notes.
            if note not in self._shown_notes:
                self._shown_notes.add(note)
                self._say(note)
        follow.submit(self._backend, spec, plan, self._say)
        return self.follow(run)

    def follow(self, run: str) -> RunState:
        """Wait for the end of a run; UnknownRun if there is none."""
        state = follow.follow(self._backend, run, self._watch, self._say, _TRIAL)
        self._placement.record(names.RunPaths(self._runs_folder / run))
        return state
