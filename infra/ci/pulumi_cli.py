"""Pulumi for scripts: state in a bucket or folder of one's own, no questions, no look-ups of newer versions."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.ci.errors import CiError, NotBuilt
from infra.ci.stack_file import StackFile

_PASSPHRASES = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")
_OWN_BACKENDS = ("s3://", "gs://", "azblob://", "file://")
_LOCKED = "the stack is currently locked"
_UNKNOWN = "no stack named"
_LOG_GROUP = re.compile(r"(/aws/eks/[\w-]+/cluster)[^\n]*ResourceAlreadyExistsException")


@dataclass(frozen=True)
class Pulumi:
    """One stack of the project in a folder, and the variables that Pulumi runs with."""

    project: Path
    stack: str
    variables: Mapping[str, str]

    def run(self, *arguments: str) -> int:
        """Exit status of one command; what it prints goes on as it comes, with a way out below where we know one."""
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
        said: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line)
        status = process.wait()
        if status:
            self._explain("".join(said))
        return status

    def read(self, *arguments: str) -> str:
        """What one command prints, shown to nobody; CiError, with a way out where we know one, if it fails."""
        command = ["pulumi", *arguments, "--stack", self.stack, "--non-interactive"]
        try:
            done = subprocess.run(
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
        if done.returncode:
            self._explain(done.stderr)
            raise CiError(f"`pulumi {' '.join(arguments)}` failed: {' '.join(done.stderr.split())}")
        return done.stdout

    def _explain(self, said: str) -> None:
        if _LOCKED in said:
            way_out = f"if no other run is alive, free it with: pulumi cancel --yes --stack {self.stack}"
            raise CiError(f"another run holds stack {self.stack!r}, or was killed and left its lock: {way_out}")
        if _UNKNOWN in said:
            backend = self.variables["PULUMI_BACKEND_URL"]
            raise NotBuilt(f"no state of stack {self.stack!r} in {backend}: it was never built, or elsewhere")
        if group := _LOG_GROUP.search(said):
            way_out = f"aws logs delete-log-group --log-group-name {group[1]} --region {self.variables['AWS_REGION']}"
            raise CiError(f"EKS made {group[1]} again after a former environment was deleted: {way_out}, then repeat")


def of(file: StackFile, project: Path, variables: Mapping[str, str] = os.environ, secrets: bool = True) -> Pulumi:
    """Pulumi for a stack; CiError unless the variables name a state of one's own and, for *secrets*, what opens it."""
    backend = variables.get("PULUMI_BACKEND_URL", "")
    if not backend.startswith(_OWN_BACKENDS):
        shown = backend or "(not set)"
        raise CiError(f"PULUMI_BACKEND_URL is {shown}: name the bucket that holds the state, for example s3://my-state")
    if secrets and file.secrets_provider is None and not any(name in variables for name in _PASSPHRASES):
        remedy = "the state can't be opened without it (or name a KMS key as the stack's secrets provider)"
        raise CiError(f"neither {' nor '.join(_PASSPHRASES)} is set: {remedy}")
    said = {
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_SKIP_CONFIRMATIONS": "true",
        "AWS_REGION": file.region,
    }
    return Pulumi(project, file.stack, {**variables, **said})
