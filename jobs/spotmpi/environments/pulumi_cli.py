"""Pulumi's command line, as a process: one stack of the project, nothing asked, nothing guessed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.progress import Say

_LAST_WORDS = 15  # lines of a failed command that its error repeats
_NO_SUCH_STACK = "no stack named"
_SECOND_ENTRY = re.compile(r"EKS Access Entry \([^:()]+:(arn:[^()]+)\).*already in use on this cluster")
_REFUSAL = re.compile(r'before hook "[^"]*" failed: (.*)')  # what the program itself refuses to do to running nodes


@dataclass(frozen=True)
class Pulumi:
    """The project in a folder, and the variables that Pulumi runs with; what it prints goes to *say*."""

    say: Say
    project: Path = field(default_factory=names.pulumi_project)
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, stack: str, *arguments: str) -> None:
        """Run a command on a stack to its end; SpotmpiError with its last words and a way out where one is known."""
        process = self._start(stack, *arguments)
        last: deque[str] = deque(maxlen=_LAST_WORDS)
        errors: list[str] = []  # a traceback of the program that Pulumi ended can come after them
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self.say(line.rstrip())
                last.append(line)
                if line.lstrip().startswith("error:"):
                    errors.append(line)
            status = process.wait()
        except KeyboardInterrupt:
            # It has the Ctrl-C from the terminal too, and stops in order; killing it would leave its lock.
            self.say("waiting until Pulumi has stopped in order")
            process.wait()
            raise
        if status:
            raise SpotmpiError(_way_out(stack, arguments[0], "".join([*errors, *last])))

    def shows_changes(self, stack: str, *options: str) -> bool:
        """Show what an update would change, and whether that is anything; SpotmpiError."""
        try:
            self.run(stack, "preview", "--expect-no-changes", *options)
        except SpotmpiError as error:
            if "no changes were expected" not in str(error):
                raise
            return True
        return False

    def state(self, stack: str) -> dict[str, Any] | None:
        """What Pulumi holds of a stack, secrets encrypted; None where it holds none of that name."""
        process = self._start(stack, "stack", "export", quiet=True)
        said, complaint = process.communicate()
        if process.returncode:
            if _NO_SUCH_STACK in complaint:
                return None
            raise SpotmpiError(_way_out(stack, "stack export", complaint))
        values: dict[str, Any] = json.loads(said)
        return values

    def outputs(self, stack: str) -> dict[str, Any]:
        """What a stack exports, secrets left out."""
        process = self._start(stack, "stack", "output", "--json", quiet=True)
        said, complaint = process.communicate()
        if process.returncode:
            raise SpotmpiError(_way_out(stack, "stack output", complaint))
        values: dict[str, Any] = json.loads(said)
        return values

    def allowing(self, *names: str) -> Pulumi:
        """The same with variables set that let the program do what it refuses otherwise."""
        return replace(self, variables={**self.variables, **dict.fromkeys(names, "1")})

    def _start(self, stack: str, *arguments: str, quiet: bool = False) -> subprocess.Popen[str]:
        said = {"PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_SKIP_CONFIRMATIONS": "true"}
        try:
            return subprocess.Popen(
                ["pulumi", *arguments, "--stack", stack, "--non-interactive"],
                cwd=self.project,
                env={**self.variables, **said},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if quiet else subprocess.STDOUT,
                text=True,
            )
        except FileNotFoundError as error:
            raise SpotmpiError("pulumi is not on PATH: see https://www.pulumi.com/docs/install/") from error


def _way_out(stack: str, verb: str, said: str) -> str:
    """What went wrong in one line, and what to do."""
    if "currently locked" in said:
        return (
            f"another run holds stack {stack}, or was killed: if none is alive, `pulumi cancel --yes --stack {stack}`"
        )
    if "incorrect passphrase" in said or "passphrase must be set" in said:
        return f"the state of {stack} can't be read: set PULUMI_CONFIG_PASSPHRASE to the one that it was made with"
    if "PULUMI_ACCESS_TOKEN" in said:
        return "pulumi is not logged in: set PULUMI_BACKEND_URL, for example to s3://my-state, or `pulumi login`"
    if "pending operations" in said:
        remedy = f"`pulumi refresh --clear-pending-creates --stack {stack}`, then the same command again"
        return f"an earlier run of {stack} was killed in the middle of a call: {remedy}"
    if refusals := dict.fromkeys(_REFUSAL.findall(said)):
        return f"{stack} was left as it is: {'; '.join(refusals)}" if verb == "preview" else "; ".join(refusals)
    if entry := _SECOND_ENTRY.search(said):
        remedy = "remove it from `cluster.admins` and `cluster.users`, then the same command goes on"
        return f"{entry[1]} has access to the cluster already, since whoever builds it administers it: {remedy}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "it said nothing")
    return f"`pulumi {verb} --stack {stack}` failed: {told.removeprefix('error:').strip()}; the same command goes on"
