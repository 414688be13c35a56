"""The machine on which Slurm's commands run, this one or a login node by ssh, and how they wait for slurmctld."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO, TypeVar

from spotmpi.core import names, wording
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.reminders import QUIET
from spotmpi.core.wording import Echo, echo

ANSWER_LIMIT = 120.0  # seconds for which a command waits: slurmctld of a busy cluster needs most of them to restart
RETRY_INTERVAL = 2.0  # seconds between questions, each of which takes up to ten where nobody listens
_REMEDY = "`scontrol ping` shows whether slurmctld answers; runs go on without it: repeat the command once it does"
_LIMIT = 120.0  # seconds in which a command reads and prints nothing; slurmctld of a busy cluster answers slowly
_LOOK = 1.0  # seconds between looks at that
# Variables of a terminal with which a job is not one run that is found here, and which no option overrides: some of
# sbatch, and all options of squeue, scancel and scontrol. A login node may set them in ~/.bashrc.
_OPTIONS = r"SBATCH_(ARRAY_INX|CLUSTERS|WAIT)|(SQUEUE|SCANCEL|SCONTROL|SRUN)_\w+|SLURM_CLUSTERS"
_UNSET = f"""unset $(env | grep -oE '^({_OPTIONS})=' | tr -d =); exec "$0" "$@\""""  # by ssh
_OF_JOB = r"SLURM_(?!(CONF|JWT|SACK)(_|$))\w+"  # what srun takes over from a job in which this terminal runs
_LOST = 255  # the exit code of ssh where it has no connection
# One connection serves all commands of a minute. One that is dead, as after a laptop's sleep, ends within half of that.
_SSH = (
    *("-o", "BatchMode=yes", "-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", "ControlPath={}/ssh-%C"),
    *("-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=10"),
)


# What Slurm's commands say where slurmctld, or munge which signs what they ask, does not answer: after ten seconds of
# their own tries, or at once.
_NO_CONTROLLER = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "Protocol authentication error",
    "Slurm backup controller in standby mode",
)
_NO_CONFIGURATION = "Could not establish a configuration source"  # of a machine that belongs to no cluster
UNSENT = ("(connect failure)", "Protocol authentication error")  # and nothing has reached slurmctld


class NoController(SpotmpiError):
    """slurmctld or munge does not answer, as while one of them restarts; nodes and their jobs go on."""


class NoCluster(SpotmpiError):
    """The machine lacks Slurm's commands, or the configuration of a cluster, so nothing was asked."""


class NoAnswer(SpotmpiError):
    """A command did not answer, or the connection was lost: what it was to do may have been done."""


T = TypeVar("T")


class Login:
    """The login node *host*, as ssh names it, or this machine; gives up on a command that is silent for *limit* s."""

    def __init__(self, host: str | None, limit: float = _LIMIT) -> None:
        self.host = host
        self._limit = limit
        self._is_announced = False  # that it is silent, or it has answered

    def command(self, command: Sequence[str], *options: str) -> list[str]:
        """*command* as this machine starts it; *options* are those of ssh."""
        if self.host is None:
            return list(command)
        cache = names.cache_folder()
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise names.cache_error(cache, error) from error
        ssh = [option.format(cache) for option in _SSH]
        return ["ssh", *ssh, *options, "--", self.host, shlex.join(["sh", "-c", _UNSET, *command])]

    def run(self, purpose: str, command: Sequence[str], data: bytes = b"", allowed: Sequence[int] = (0,)) -> bytes:
        """As `copy`, but what *command* prints is returned."""
        with tempfile.TemporaryFile() as printed:
            self.copy(purpose, command, printed, data, allowed)
            return printed.read()

    def copy(
        self, purpose: str, command: Sequence[str], target: BinaryIO, data: bytes = b"", allowed: Sequence[int] = (0,)
    ) -> None:
        """Write what *command* prints, given *data* as its input, to the file *target*, which is then at its start.

        It may take as long as it reads or prints anything.

        Raises:
            NoAnswer: it did not answer, or the connection was lost; *purpose* is what it was for.
            NoController: it could not ask slurmctld.
            NoCluster: it knows of none.
            SpotmpiError: it cannot be started, or its exit code is not *allowed*.
        """
        words = self.command(command)
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write(data)
            given.seek(0)
            try:
                environment = {
                    name: value for name, value in os.environ.items() if not re.fullmatch(f"{_OPTIONS}|{_OF_JOB}", name)
                }
                process = subprocess.Popen(words, stdin=given, stdout=target, stderr=errors, env=environment)
            except FileNotFoundError as error:
                place = wording.option("on", "slurm@HOST")
                remedy = f"run this on a machine with Slurm's commands, or name the login node with {place}"
                raise NoCluster(f"cannot {purpose}: there is no {words[0]} on PATH; {remedy}") from error
            try:
                code = self._wait(self.host or command[0], process, given, target)
            except subprocess.TimeoutExpired as error:
                raise NoAnswer(
                    f"cannot {purpose}: {command[0]} did not answer within {self._limit:g} s; try again"
                ) from error
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            target.seek(0)
            if code not in allowed:
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").strip().splitlines()
                text = f"cannot {purpose}: {'; '.join(lines[-3:]) or f'exit code {code}'}"
                if any(_NO_CONFIGURATION in line for line in lines):
                    place = wording.option("on", "slurm@HOST")
                    raise NoCluster(f"{text}; set SLURM_CONF, or name the login node of a cluster with {place}")
                raise self._kind(code, lines)(text)

    def _kind(self, code: int, lines: Sequence[str]) -> type[SpotmpiError]:
        """The error of a command that printed *lines* on stderr."""
        if self.host is not None and code == _LOST:
            return NoAnswer
        return NoController if any(words in line for line in lines for words in _NO_CONTROLLER) else SpotmpiError

    def _wait(self, name: str, process: subprocess.Popen[bytes], given: BinaryIO, printed: BinaryIO) -> int:
        """The exit code of *process*; TimeoutExpired once it neither reads nor prints.

        Where *name* is silent from the beginning, it is said once that this waits for it.
        """
        moved, at = -1, time.monotonic()
        while True:
            try:
                code = process.wait(min(_LOOK, self._limit))
                self._is_announced = True
                return code
            except subprocess.TimeoutExpired:
                # It shares the place in *given* with this process.
                now = os.lseek(given.fileno(), 0, os.SEEK_CUR) + os.fstat(printed.fileno()).st_size
                if now != moved:
                    moved, at = now, time.monotonic()
                elif not self._is_announced and time.monotonic() - at >= QUIET:
                    self._is_announced = True
                    limit = f"gives up after {self._limit:g} s at the latest"
                    wording.print_message(f"waiting until {name} answers ({limit})")
                elif time.monotonic() - at >= self._limit:
                    raise


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
            wait = f"this waits up to {self.limit:g} s for it" if needed else "what agents record counts meanwhile"
            self._echo(f"{error}; {wait}")
        if now - self._silent_since >= self.limit:
            raise NoController(f"{error}, for {self.limit:g} s; {_REMEDY}") from error
