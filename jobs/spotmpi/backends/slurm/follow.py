"""What a follower of a run on Slurm looks at besides the record: the queue, and whether the login node answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spotmpi.agent import record
from spotmpi.backends.slurm.login import NoAnswer, NoController
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.runs.reader import RUNNING

if TYPE_CHECKING:
    from spotmpi.backends.slurm.backend import SlurmBackend

SYNC_INTERVAL = 1.0  # seconds between copies of the record over ssh
RETRY_INTERVAL = 5.0  # seconds between them while the login node does not answer
# Seconds between looks at the queue while slurmctld does not answer: squeue tries for ten, in which nothing is shown.
LOOK_AGAIN = 30.0


class Watch:
    """Looks at the queue for a follower of a run, not more often than the cluster can bear.

    It waits for a login node that does not answer for *patience* seconds.
    """

    def __init__(self, backend: SlurmBackend, paths: RunPaths, patience: float) -> None:
        self._backend = backend
        self._paths = paths
        self._patience = patience
        self._alive = True
        self._next_look = self._next_copy = 0.0
        self._silent_since: float | None = None
        self._is_unanswered = False  # the last look at the queue
        self._silence: str | None = None  # of node 0, as it was said last
        self._events: list[Event] = []

    def alive(self) -> bool:
        """Whether an agent or a follower may add to the record."""
        try:
            if time.monotonic() >= self._next_copy:
                self._backend.refresh(self._paths.id)
                self._next_copy = time.monotonic() + SYNC_INTERVAL
                self._silent_since = None
            if self._silent_since is None and time.monotonic() >= self._next_look:
                self._alive = self._look()
                interval = self._backend.look_interval
                self._next_look = time.monotonic() + (max(interval, LOOK_AGAIN) if self._is_unanswered else interval)
        except NoAnswer as error:
            self._wait_for_answer(error)
        return self._alive

    def collect(self) -> list[Event]:
        """The events of this follower since the last call."""
        events, self._events = self._events, []
        return events

    def _wait_for_answer(self, error: NoAnswer) -> None:
        """Say that the login node does not answer, once; NoAnswer after too long."""
        now = time.monotonic()
        text = str(error).removesuffix("; try again")
        if self._silent_since is None:
            self._silent_since = now
            reason = f"{text}; the run goes on there, and this follows it again within {self._patience:g} s"
            self._say(reason)
        if now >= self._silent_since + self._patience:
            remedy = f"the run goes on there, and `spotmpi logs -f {self._paths.id}` follows it"
            raise NoAnswer(f"{text}; {remedy}") from error
        self._next_copy = now + RETRY_INTERVAL

    def _say(self, reason: str) -> None:
        self._events.append(Event(time.time(), record.WAITING, values={"reason": reason}))

    def _note_no_answer(self, error: SpotmpiError) -> None:
        """Say that Slurm could not be asked, once until it is again."""
        if not self._is_unanswered:
            self._say(f"{str(error).removesuffix('; try again')}; what agents record is shown meanwhile")
        self._is_unanswered = True

    def _look(self) -> bool:
        try:
            job = self._backend.job(self._paths.id)
        except SpotmpiError as error:  # slurmctld may be restarting
            self._note_no_answer(error)
            return True
        self._is_unanswered = False
        if job is not None and job.waits:
            try:
                self._backend.record_waiting(self._paths, job)
            except NoController as error:
                self._note_no_answer(error)
            return True
        state = self._backend.reconcile(self._paths, job)
        if state.state == RUNNING and self._patience:
            self._note_silence(self._backend.silence(self._paths, state.attempt))
        return not state.over

    def _note_silence(self, reason: str | None) -> None:
        """Say once that node 0 answers nothing: its agent records nothing meanwhile, and is lost after a minute."""
        if reason and reason != self._silence:
            self._say(reason)
        self._silence = reason
