"""Pulumi for scripts: self-managed state, no prompts, no version check."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

from infra.ci import locks
from infra.ci.errors import CiError, Locked, NotBuilt
from infra.ci.stack_file import StackFile
from infra.login import PYTHON

_PASSPHRASES = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")
_BACKENDS = ("s3://", "gs://", "azblob://", "file://")
_UNKNOWN = "no stack named"
# Run as a process, as the package is no part of a project that `spotmpi init --environment` wrote.
_EXPLAIN = """\
import sys
from spotmpi.environments.pulumi_errors import explain
print(explain(*sys.argv[1:], sys.stdin.read()))
"""
_LOG_GROUP = re.compile(r"(/aws/eks/[\w-]+/cluster)[^\n]*ResourceAlreadyExistsException")


@dataclass(frozen=True)
class Pulumi:
    """One stack of the project in a folder, the variables that Pulumi runs with, and what it prints of a line."""

    project: Path
    stack: str
    region: str
    variables: Mapping[str, str]
    censor: Callable[[str], str] = str

    def run(self, *arguments: str) -> int:
        """Exit status of one command, whose output is printed; CiError with a remedy for a known failure."""
        process = self._start_pulumi(arguments, subprocess.STDOUT)
        assert process.stdout is not None
        status, output = self._follow(process, process.stdout, sys.stdout)
        if status and (explanation := self._explanation(arguments[0], output)):
            print(self.censor(f"error: {explanation}"), file=sys.stderr)
        return status

    def run_spotmpi(self, *command: str) -> int:
        """Exit status of a command of spotmpi, which prints what Pulumi says on stderr; CiError likewise."""
        process = self._start(command, stderr=subprocess.PIPE)
        assert process.stderr is not None
        return self._follow(process, process.stderr, sys.stderr)[0]

    def _start_pulumi(self, arguments: Sequence[str], stderr: int) -> subprocess.Popen[str]:
        command = ["pulumi", *arguments, "--stack", self.stack, "--non-interactive"]
        try:
            return self._start(command, stderr, subprocess.PIPE)
        except FileNotFoundError as error:
            raise CiError("pulumi is not on PATH: install it, or run scripts/tools") from error

    def _start(self, command: Sequence[str], stderr: int, stdout: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.project,
            env=dict(self.variables),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
        )

    def _follow(self, process: subprocess.Popen[str], lines: IO[str], target: TextIO) -> tuple[int, str]:
        """Exit status of a process and its *lines*, which are printed; CiError with a remedy for a known failure."""
        output: list[str] = []
        for line in lines:
            print(self.censor(line), end="", flush=True, file=target)
            output.append(line)
        status = process.wait()
        if status:
            self._raise_known("".join(output))
        return status, "".join(output)

    def _explanation(self, command: str, output: str) -> str:
        """What `spotmpi up` says of a failed command of Pulumi; empty where spotmpi is not installed."""
        arguments = [sys.executable, "-c", _EXPLAIN, self.stack, command]
        try:
            process = subprocess.run(
                arguments, input=output, capture_output=True, encoding="utf-8", errors="replace", check=False
            )
        except OSError:
            return ""
        return process.stdout.strip()

    def read(self, *arguments: str) -> str:
        """The output of one command, which is not printed; CiError if it fails, with a remedy for a known failure."""
        process = self._start_pulumi(arguments, subprocess.PIPE)
        output, errors = process.communicate()
        if process.returncode:
            self._raise_known(errors)
            reason = f"`pulumi {' '.join(arguments)}` failed: {' '.join(errors.split())}"
            raise CiError(self._explanation(" ".join(arguments), errors) or reason)
        return output

    def _raise_known(self, output: str) -> None:
        """Raise the error that Pulumi's *output* stands for, with its remedy, where it is a known one."""
        if message := locks.describe(self.stack, output):
            backend = self.variables["PULUMI_BACKEND_URL"]
            newest = locks.newest(output, backend, self.project, self.stack)
            raise Locked(message if newest else message + locks.show_age(backend, self.stack), newest)
        if _UNKNOWN in output:
            backend = self.variables["PULUMI_BACKEND_URL"]
            raise NotBuilt(f"no state of stack {self.stack} in {backend}: never built, or built with another backend")
        if group := _LOG_GROUP.search(output):
            remedy = f"aws logs delete-log-group --log-group-name {group[1]} --region {self.region}"
            raise CiError(
                f"EKS re-created {group[1]} after an environment was deleted: {remedy}, then repeat the command"
            )


def for_stack(file: StackFile, project: Path, secrets: bool) -> Pulumi:
    """Pulumi for a stack; CiError unless variables name a self-managed backend and, for *secrets*, a passphrase.

    A stack with a KMS key needs no passphrase.
    """
    backend = os.environ.get("PULUMI_BACKEND_URL", "")
    if not backend.startswith(_BACKENDS):
        shown = backend or "(not set)"
        raise CiError(
            f"PULUMI_BACKEND_URL is {shown}: set it to the bucket that holds the state, such as s3://my-state"
        )
    if secrets and file.secrets_provider is None and not any(name in os.environ for name in _PASSPHRASES):
        remedy = "it decrypts the state's secrets (or use a KMS key as the stack's secrets provider)"
        raise CiError(f"neither {' nor '.join(_PASSPHRASES)} is set: {remedy}")
    settings = {"PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_SKIP_CONFIRMATIONS": "true", PYTHON: sys.executable}
    settings["PULUMI_DEBUG_COMMANDS"] = "true"  # which --event-log needs, as in Pulumi's Automation API
    # A region that is set is that of the state's bucket, which may differ from the stack's.
    return Pulumi(project, file.stack, file.region, {"AWS_REGION": file.region, **os.environ, **settings})
