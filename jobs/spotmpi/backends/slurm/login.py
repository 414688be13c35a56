"""The machine on which Slurm's commands run: this one, or a login node by ssh."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from spotmpi.core import hints, names
from spotmpi.core.errors import SpotmpiError

_LIMIT = 120.0  # seconds for one command; slurmctld of a busy cluster answers slowly
# One connection serves all commands of a minute.
_SSH = ("-o", "BatchMode=yes", "-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", "ControlPath={}/ssh-%C")


class Login:
    """The login node *host*, as ssh names it, or this machine."""

    def __init__(self, host: str | None) -> None:
        self.host = host

    def command(self, command: Sequence[str], *options: str) -> list[str]:
        """*command* as this machine starts it; *options* are those of ssh."""
        if self.host is None:
            return list(command)
        cache = names.cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        ssh = [option.format(cache) for option in _SSH]
        return ["ssh", *ssh, *options, "--", self.host, shlex.join(command)]

    def run(self, purpose: str, command: Sequence[str], data: bytes = b"", allowed: Sequence[int] = (0,)) -> bytes:
        """What *command* prints, given *data* as its input.

        Raises:
            SpotmpiError: it cannot be started, or its exit code is not *allowed*; *purpose* is what it was for.
        """
        words = self.command(command)
        try:
            done = subprocess.run(words, input=data, capture_output=True, timeout=_LIMIT)
        except FileNotFoundError as error:
            place = hints.option("on", "slurm@HOST")
            remedy = f"run this on a machine with Slurm's commands, or name the login node with {place}"
            raise SpotmpiError(f"cannot {purpose}: there is no {words[0]} on PATH; {remedy}") from error
        except subprocess.TimeoutExpired as error:
            raise SpotmpiError(
                f"cannot {purpose}: {command[0]} did not answer within {_LIMIT:g}s; try again"
            ) from error
        if done.returncode not in allowed:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise SpotmpiError(f"cannot {purpose}: {'; '.join(lines[-3:]) or f'exit code {done.returncode}'}")
        return done.stdout
