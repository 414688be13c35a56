"""slurmctld as the commands of a terminal ask it: they wait for it a while, and say so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from spotmpi.backends.slurm.login import NoController
from spotmpi.core.wording import Echo, echo

ANSWER_LIMIT = 120.0  # seconds for which a command waits: slurmctld of a busy cluster needs most of them to restart
RETRY_INTERVAL = 2.0  # seconds between questions, each of which takes up to ten where nobody listens
_REMEDY = "`scontrol ping` shows whether slurmctld answers; runs go on without it: repeat the command once it does"

T = TypeVar("T")


class Controller:
    """Asks slurmctld, and waits at most *limit* seconds for it; *echo* gets why it waits, once for each silence."""

    def __init__(self, echo: Echo = echo, limit: float = ANSWER_LIMIT) -> None:
        self._echo = echo
        self.limit = limit
        self._silent_since: float | None = None

    def answer(self, question: Callable[[], T], is_needed: Callable[[], bool] = lambda: True) -> T | None:
        """What *question* gives; None where slurmctld does not answer it, and the answer is not needed.

        Raises:
            NoController: it has not answered for *limit* seconds.
        """
        while True:
            try:
                result = question()
            except NoController as error:
                needed = is_needed()
                self._note(error, needed)
            else:
                self._silent_since = None
                return result
            if not needed:
                return None
            time.sleep(min(RETRY_INTERVAL, self.limit))

    def _note(self, error: NoController, needed: bool) -> None:
        """Say once that slurmctld is silent; raise *error* with what helps once it has been for too long."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            wait = f"this waits up to {self.limit:g}s for it" if needed else "what agents record counts meanwhile"
            self._echo(f"{error}; {wait}")
        if now - self._silent_since >= self.limit:
            raise NoController(f"{error}, for {self.limit:g}s; {_REMEDY}") from error
