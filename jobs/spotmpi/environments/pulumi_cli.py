"""Pulumi's command line as a process, non-interactive, for one stack of the project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.progress import Echo
from spotmpi.environments.changes import Preview, read_steps

_ERROR_LINES = 15  # lines of a failed command's output that are searched for the error
_NO_SUCH_STACK = "no stack named"
_DUPLICATE_ENTRY = re.compile(r"EKS Access Entry \([^:()]+:(arn:[^()]+)\).*already in use on this cluster")
# What Pulumi's S3 client says without a region, and of a bucket in another one (pulumi-aws#1170, mapt#392).
_BUCKET_REGION = re.compile(r"Missing ?Region|BucketRegionError|PermanentRedirect")
_REFUSAL = re.compile(r'before hook "[^"]*" failed: (.*)')  # how the Pulumi program refuses to replace running nodes


@dataclass(frozen=True)
class Pulumi:
    """The project folder and the environment variables of Pulumi; its output goes to `say`."""

    echo: Echo
    project: Path = field(default_factory=names.pulumi_project)
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, stack: str, *arguments: str) -> None:
        """Run a command on a stack; SpotmpiError with its error and, where known, the remedy."""
        process = self._start(stack, *arguments)
        last: deque[str] = deque(maxlen=_ERROR_LINES)
        errors: list[str] = []  # the program's traceback can follow them
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self.echo(line.rstrip())
                last.append(line)
                if line.lstrip().startswith("error:"):
                    errors.append(line)
            status = process.wait()
        except KeyboardInterrupt:
            # Pulumi gets the terminal's Ctrl-C too and shuts down; killing it would leave its lock.
            self.echo("waiting for Pulumi to shut down")
            process.wait()
            raise
        if status:
            raise SpotmpiError(_explain(stack, arguments[0], "".join([*errors, *last])))

    def preview(self, stack: str, *options: str) -> Preview:
        """Show a preview of an update, and return its steps; SpotmpiError."""
        with TemporaryDirectory() as folder:
            log = Path(folder) / "events"
            try:
                self.run(stack, "preview", "--expect-no-changes", *options, "--event-log", str(log))
            except SpotmpiError as error:
                if "no changes were expected" not in str(error):
                    raise
                return Preview(True, read_steps(log))
        return Preview(False)

    def state(self, stack: str) -> dict[str, Any] | None:
        """The state of a stack, secrets encrypted; None where the stack does not exist."""
        process = self._start(stack, "stack", "export", quiet=True)
        output, errors = process.communicate()
        if process.returncode:
            if _NO_SUCH_STACK in errors:
                return None
            raise SpotmpiError(_explain(stack, "stack export", errors))
        values: dict[str, Any] = json.loads(output)
        return values

    def outputs(self, stack: str) -> dict[str, Any]:
        """The outputs of a stack, without secrets."""
        process = self._start(stack, "stack", "output", "--json", quiet=True)
        output, errors = process.communicate()
        if process.returncode:
            raise SpotmpiError(_explain(stack, "stack output", errors))
        values: dict[str, Any] = json.loads(output)
        return values

    def with_flags(self, *names: str) -> Pulumi:
        """The same with these environment variables set to 1, which allow the program what it refuses by default."""
        return replace(self, variables={**self.variables, **dict.fromkeys(names, "1")})

    def _start(self, stack: str, *arguments: str, quiet: bool = False) -> subprocess.Popen[str]:
        settings = {"PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_SKIP_CONFIRMATIONS": "true"}
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
                text=True,
            )
        except FileNotFoundError as error:
            raise SpotmpiError("command not found: pulumi; see https://www.pulumi.com/docs/install/") from error


def _explain(stack: str, command: str, output: str) -> str:
    """The error in one line, with the remedy."""
    if "currently locked" in output:
        return f"stack {stack} is locked by another update: if none is running, `pulumi cancel --yes --stack {stack}`"
    if "incorrect passphrase" in output or "passphrase must be set" in output:
        return f"the state of {stack} can't be decrypted: set PULUMI_CONFIG_PASSPHRASE to the one it was created with"
    if "PULUMI_ACCESS_TOKEN" in output:
        return "pulumi is not logged in: set PULUMI_BACKEND_URL, for example to s3://my-state, or `pulumi login`"
    if _BUCKET_REGION.search(output):
        return "Pulumi needs the region of the bucket: append it to PULUMI_BACKEND_URL, as in s3://my-state?region=us-east-1"
    if "No module named" in output:
        return "the project's .venv lacks what its Pulumi program imports: run `./scripts/setup` there, then repeat"
    if "account ID not allowed" in output:
        return f"the credentials are for another account than that of {stack}: assume a role there; nothing was changed"
    if "pending operations" in output:
        remedy = f"`pulumi refresh --clear-pending-creates --stack {stack}`, then repeat the command"
        return f"an earlier update of {stack} was killed during an operation: {remedy}"
    if refusals := dict.fromkeys(_REFUSAL.findall(output)):
        return f"{stack} was not changed: {'; '.join(refusals)}" if command == "preview" else "; ".join(refusals)
    if entry := _DUPLICATE_ENTRY.search(output):
        remedy = "remove it from `cluster.admins` and `cluster.users`, then repeat the command"
        return f"{entry[1]} already has access to the cluster, as the identity that created it: {remedy}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "no output")
    if "settings to change" in error:
        return f"{error.removeprefix('error:').strip()}; they are listed above"
    return (
        f"`pulumi {command} --stack {stack}` failed: {error.removeprefix('error:').strip()}; the same command continues"
    )
