"""Pulumi for scripts: self-managed state, no prompts, no version check."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.ci.errors import CiError, NotBuilt
from infra.ci.stack_file import StackFile

_PASSPHRASES = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")
_BACKENDS = ("s3://", "gs://", "azblob://", "file://")
_LOCKED = "the stack is currently locked"
_UNKNOWN = "no stack named"
_LOG_GROUP = re.compile(r"(/aws/eks/[\w-]+/cluster)[^\n]*ResourceAlreadyExistsException")


@dataclass(frozen=True)
class Pulumi:
    """One stack of the project in a folder, and the variables that Pulumi runs with."""

    project: Path
    stack: str
    region: str
    variables: Mapping[str, str]

    def run(self, *arguments: str) -> int:
        """Exit status of one command, whose output is printed; CiError with a remedy for a known failure."""
        command = ["pulumi", *arguments, "--stack", self.stack, "--non-interactive"]
        try:
            process = subprocess.Popen(
                command,
                cwd=self.project,
                env=dict(self.variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except FileNotFoundError as error:
            raise CiError("pulumi is not on PATH: install it, or run scripts/tools") from error
        output: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
        status = process.wait()
        if status:
            self._explain("".join(output))
        return status

    def read(self, *arguments: str) -> str:
        """The output of one command, which is not printed; CiError if it fails, with a remedy for a known failure."""
        command = ["pulumi", *arguments, "--stack", self.stack, "--non-interactive"]
        try:
            process = subprocess.run(
                command,
                cwd=self.project,
                env=dict(self.variables),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise CiError("pulumi is not on PATH: install it, or run scripts/tools") from error
        if process.returncode:
            self._explain(process.stderr)
            raise CiError(f"`pulumi {' '.join(arguments)}` failed: {' '.join(process.stderr.split())}")
        return process.stdout

    def _explain(self, output: str) -> None:
        if _LOCKED in output:
            remedy = f"if no other command runs, release it: pulumi cancel --yes --stack {self.stack}"
            raise CiError(f"stack {self.stack!r} is locked by another command, or by one that was killed: {remedy}")
        if _UNKNOWN in output:
            backend = self.variables["PULUMI_BACKEND_URL"]
            raise NotBuilt(f"no state of stack {self.stack!r} in {backend}: never built, or built with another backend")
        if group := _LOG_GROUP.search(output):
            remedy = f"aws logs delete-log-group --log-group-name {group[1]} --region {self.region}"
            raise CiError(
                f"EKS re-created {group[1]} after an environment was deleted: {remedy}, then repeat the command"
            )


def for_stack(
    file: StackFile, project: Path, variables: Mapping[str, str] = os.environ, secrets: bool = True
) -> Pulumi:
    """Pulumi for a stack; CiError unless its variables name a self-managed backend and, for *secrets*, a passphrase.

    A stack with a KMS key needs no passphrase.
    """
    backend = variables.get("PULUMI_BACKEND_URL", "")
    if not backend.startswith(_BACKENDS):
        shown = backend or "(not set)"
        raise CiError(
            f"PULUMI_BACKEND_URL is {shown}: set it to the bucket that holds the state, such as s3://my-state"
        )
    if secrets and file.secrets_provider is None and not any(name in variables for name in _PASSPHRASES):
        remedy = "it decrypts the state's secrets (or use a KMS key as the stack's secrets provider)"
        raise CiError(f"neither {' nor '.join(_PASSPHRASES)} is set: {remedy}")
    settings = {"PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_SKIP_CONFIRMATIONS": "true"}
    # A region that is set is that of the state's bucket, which may differ from the stack's.
    return Pulumi(project, file.stack, file.region, {"AWS_REGION": file.region, **variables, **settings})
