"""Pulumi's command line as a process, non-interactive, for one stack of the project."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spotmpi.core import names
from spotmpi.core.environment import reading_reminders
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.pulumi import NO_SUCH_STACK, require_deployment, written_at
from spotmpi.core.termination import Terminated, raised_when_terminated
from spotmpi.core.wording import Echo
from spotmpi.environments.changes import Preview, read_steps
from spotmpi.environments.pulumi_errors import explain, rejects_keys

_ENDS = (KeyboardInterrupt, Terminated)


class KeysRejected(SpotmpiError):
    """AWS does not know the credentials where Pulumi called it: they are wrong, or the region is not enabled."""


@dataclass(frozen=True)
class Pulumi:
    """The project folder and the environment variables of Pulumi; its output goes to `echo`."""

    echo: Echo
    project: Path = field(default_factory=names.pulumi_project)
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, stack: str, *arguments: str) -> None:
        """Run a command on a stack; SpotmpiError with its error and, where known, the remedy."""
        process = self._start(stack, *arguments)
        lines: list[str] = []
        assert process.stdout is not None
        try:
            with raised_when_terminated():
                for line in process.stdout:
                    self.echo(line.rstrip())
                    lines.append(line)
                status = process.wait()
        except (*_ENDS, OSError):  # OSError: nothing takes the output any more, as with `| head`
            _shut_down(process, self.echo)
            raise
        if status:
            output = "".join(lines)
            kind = KeysRejected if rejects_keys(output) else SpotmpiError
            raise kind(explain(stack, arguments[0], output))

    def preview(self, stack: str, *options: str) -> Preview:
        """Show a preview of an update, and return its steps; SpotmpiError."""
        written = written_at(self.state(stack))
        with TemporaryDirectory() as folder:
            log = Path(folder) / "events"
            try:
                self.run(stack, "preview", "--expect-no-changes", *options, "--event-log", str(log))
            except SpotmpiError as error:
                if "no changes were expected" not in str(error):
                    raise
                return Preview(True, read_steps(log), written)
        return Preview(False)

    def update(self, stack: str, preview: Preview, *options: str) -> None:
        """Carry out an update as previewed; SpotmpiError, also where another has changed the stack since.

        Pulumi takes its lock for an update and not for its preview, so this one would remove what the other has added.
        """
        if written_at(self.state(stack)) != preview.written:
            remedy = "repeat the command, which shows what it would change now"
            raise SpotmpiError(f"{stack} was not changed: another update has changed it since this preview: {remedy}")
        self.run(stack, "up", "--yes", "--skip-preview", *options)

    def state(self, stack: str) -> dict[str, Any] | None:
        """The state of a stack, secrets encrypted; None where the stack does not exist; SpotmpiError."""
        status, output, errors = self._read(stack, "export")
        if status:
            if NO_SUCH_STACK in errors:
                return None
            raise SpotmpiError(explain(stack, "stack export", errors))
        values: dict[str, Any] = json.loads(output)
        require_deployment(stack, values)
        return values

    def outputs(self, stack: str) -> dict[str, Any]:
        """The outputs of a stack, without secrets."""
        status, output, errors = self._read(stack, "output", "--json")
        if status:
            raise SpotmpiError(explain(stack, "stack output", errors))
        values: dict[str, Any] = json.loads(output)
        return values

    def _read(self, stack: str, *arguments: str) -> tuple[int, str, str]:
        """Exit status, output and errors of a command that reads the state of a stack."""
        process = self._start(stack, "stack", *arguments, quiet=True)
        with reading_reminders(stack, self.echo):
            output, errors = process.communicate()
        return process.returncode, output, errors

    def with_flags(self, *names: str) -> Pulumi:
        """The same with these environment variables set to 1, which allow the program what it refuses by default."""
        return replace(self, variables={**self.variables, **dict.fromkeys(names, "1")})

    def _start(self, stack: str, *arguments: str, quiet: bool = False) -> subprocess.Popen[str]:
        # Each command that asks is given --yes: as a variable it would refuse --preview-only.
        settings = {"PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_SKIP_CONFIRMATIONS": "false"}
        settings["SPOTMPI_PYTHON"] = sys.executable  # has boto3, with which infra/login.py logs in to the cluster
        settings["PULUMI_DEBUG_COMMANDS"] = "true"  # which --event-log needs, as in Pulumi's Automation API
        try:
            return subprocess.Popen(
                ["pulumi", *arguments, "--stack", stack, "--non-interactive"],
                cwd=self.project,
                env={**self.variables, **settings},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if quiet else subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                process_group=None if quiet else 0,  # a Ctrl-C of the terminal reaches it once, from `run`
            )
        except FileNotFoundError as error:
            raise SpotmpiError("command not found: pulumi; see https://www.pulumi.com/docs/install/") from error


def _shut_down(process: subprocess.Popen[str], echo: Echo) -> None:
    """Interrupt Pulumi, which ends once it has finished what it is at work on, and wait; each Ctrl-C is passed on.

    Without its reader it would die at its next line, and leave its lock and what it was creating, which it then does
    not know.
    """
    while process.poll() is None:
        with suppress(*_ENDS, OSError):
            process.send_signal(signal.SIGINT)
            echo("waiting for Pulumi to shut down")
        with suppress(*_ENDS), raised_when_terminated():
            process.communicate()
