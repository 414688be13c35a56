"""A Pulumi without processes for tests of `up`, `upgrade` and `down`: it answers as the real command line does.

Its state is files in the project folder, which a test may write:

* `STACK.held`: the state of a stack, `STACK.applied`: the settings that `up` applied last
* `STACK.lock`: by whom and since when the stack is locked
* `outputs`: the outputs of every stack with resources
* `COMMAND.failure`: the error of the next such command, of a resource as `TYPE (NAME): ERROR`;
  `refusal`: why the program refuses an update
* `steps`: the metadata of the steps that a preview announces, as in the engine's events
* `commands`: a line for each command
"""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import cast

from spotmpi.environments.pulumi_cli import Pulumi
from tests.cloud.account.answers import ACCOUNT

RESOURCES = {
    "aws:efs/fileSystem:FileSystem": "fs-1",
    "aws:efs/mountTarget:MountTarget": "fsmt-12345678",
    "aws:cloudwatch/logGroup:LogGroup": "/aws/eks/spotmpi-lab/cluster",
    "aws:kms/key:Key": "key-1",
    "aws:ecr/repository:Repository": "spotmpi-lab/chainermn",
    "aws:ec2/vpc:Vpc": "vpc-1",
}
DATA_RESOURCES = {"aws:efs/fileSystem:FileSystem": "fs-kept"}  # of a stack that is named *-data
FAILED = 255
_WRITES = count()


class EndedProcess:
    """The part of an ended process that `Pulumi` reads."""

    def __init__(self, returncode: int, output: str = "", errors: str = "") -> None:
        self.returncode, self.stdout, self._output, self._errors = returncode, io.StringIO(output), output, errors

    def wait(self) -> int:
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        return self._output, self._errors


@dataclass(frozen=True)
class FakePulumi(Pulumi):
    """Pulumi's commands on stacks that are files in the project folder."""

    def _start(self, stack: str, *arguments: str, quiet: bool = False) -> subprocess.Popen[str]:
        allowed = bool(self.variables.get("SPOTMPI_REPLACE_NODES"))
        if "--event-log" in arguments:
            self._write_events(Path(arguments[-1]))
            arguments = arguments[:-2]
        with (self.project / "commands").open("a") as commands:
            commands.write(f"{'replacing nodes: ' * allowed}{' '.join(arguments)} @{stack}\n")
        return cast("subprocess.Popen[str]", self._result(stack, arguments, allowed))

    def _write_events(self, log: Path) -> None:
        path = self.project / "steps"
        steps = json.loads(path.read_text()) if path.exists() else []
        events = [{"preludeEvent": {}}, *({"resourcePreEvent": {"metadata": step}} for step in steps)]
        log.write_text("".join(json.dumps(event) + "\n" for event in events))

    def _result(self, stack: str, arguments: Sequence[str], allowed: bool) -> EndedProcess:
        lock = self.project / f"{stack}.lock"
        if lock.exists() and _takes_lock(arguments):
            return EndedProcess(FAILED, _locked(stack, lock.read_text()))
        failure = self.project / f"{arguments[0]}.failure"
        if failure.exists() and "--preview-only" not in arguments:
            message = failure.read_text()
            failure.unlink()
            return EndedProcess(FAILED, _failure(message))
        if arguments[0] == "stack":
            return self._stack_result(stack, *arguments[1:])
        refusal = self.project / "refusal"
        if arguments[0] in ("preview", "up") and refusal.exists() and not allowed:
            return EndedProcess(FAILED, _refusal(refusal.read_text()))
        if arguments[0] == "preview" and self._has_changes(stack, arguments):
            return EndedProcess(FAILED, "error: no changes were expected but changes were proposed\n")
        if arguments[0] == "up":
            self._apply(stack)
        if arguments[0] == "destroy" and "--preview-only" not in arguments:
            _write_state(self._state(stack), {})
        return EndedProcess(0, f"done: {arguments[0]}\n")

    def _stack_result(self, stack: str, command: str, *options: str) -> EndedProcess:
        state = self._state(stack)
        if command in ("export", "output") and not state.exists():
            return EndedProcess(FAILED, errors=f"error: no stack named {stack!r} found\n")
        if command == "export":
            return EndedProcess(0, state.read_text())
        if command == "output":
            return EndedProcess(0, (self.project / "outputs").read_text() if _has_resources(state) else "{}")
        if command == "rm":
            state.unlink()
        if command == "select" and not state.exists():
            _write_state(state, {})
        return EndedProcess(0)

    def _has_changes(self, stack: str, options: Sequence[str]) -> bool:
        if "--config-file" in options:
            settings = self.project / options[options.index("--config-file") + 1]
            return settings.read_text() != (self.project / f"{stack}.applied").read_text()
        announced = any((self.project / name).exists() for name in ("refusal", "steps"))
        return announced or not _has_resources(self._state(stack))

    def _apply(self, stack: str) -> None:
        settings = self.project / "stacks" / f"Pulumi.{stack}.yaml"
        text = settings.read_text() if settings.exists() else ""
        if text:
            (self.project / f"{stack}.applied").write_text(text)
        elsewhere = "keep: true" in text or "file_system_id: " in text
        own = {kind: id for kind, id in RESOURCES.items() if kind not in DATA_RESOURCES or not elsewhere}
        _write_state(self._state(stack), DATA_RESOURCES if stack.endswith("-data") else own)

    def _state(self, stack: str) -> Path:
        return self.project / f"{stack}.held"


def _takes_lock(arguments: Sequence[str]) -> bool:
    """As the backend in a bucket: the preview of an update takes none, that of a destroy does."""
    return arguments[0] in ("up", "destroy", "refresh", "state") or arguments[:2] == ("stack", "rm")


def _locked(stack: str, holder: str) -> str:
    """What Pulumi prints of a lock: pulumi, pkg/backend/diy/lock.go, checkForLock."""
    path = f"s3://example-state/.pulumi/locks/organization/spotmpi/{stack}/5e0b.json"
    remedy = "Either wait for the other process(es) to end or delete the lock file with `pulumi cancel`."
    return f"error: the stack is currently locked by 1 lock(s). {remedy}\n  {path}: created by {holder}\n"


def _has_resources(state: Path) -> bool:
    return bool(json.loads(state.read_text())["deployment"]["resources"])


def _write_state(path: Path, resources: dict[str, str]) -> None:
    listed = [
        {"type": kind, "id": id, "outputs": {"arn": f"arn:aws:service:us-east-1:{ACCOUNT}:{id}"}}
        for kind, id in resources.items()
    ]
    # Each write has a new time: pkg/backend/snapshot.go, SnapshotManager.
    manifest = {"time": f"2026-11-29T10:00:00.{next(_WRITES):09}Z"}
    path.write_text(json.dumps({"deployment": {"manifest": manifest, "resources": listed}}))


def _failure(message: str) -> str:
    """An error as the real one prints it: that of a resource after the stack's own, and after its program's traceback.

    See tests/engine/test_failures_in_engine.py.
    """
    resource = re.match(r"(\w+:[\w:/.-]+ \(\S+\)): ", message)
    if resource is None:
        return f"error: {message}\n"
    text = message[resource.end() :]
    kind, name = resource[1].split()
    return (
        f" +  {kind} {name.strip('()')} **creating failed** error: {text}\n"
        " +  pulumi:pulumi:Stack spotmpi-lab creating (0s) error: update failed\n@ updating....\nDiagnostics:\n"
        "  pulumi:pulumi:Stack (spotmpi-lab):\n    Traceback (most recent call last):\n" + "      frame\n" * 40 + "\n"
        f"    error: update failed\n\n  {resource[1]}:\n    error: {text}\n\n"
        "Resources:\n    + 11 created\n\nDuration: 12s\n"
    )


def _refusal(text: str) -> str:
    """A refusal as the real one prints it, with its program's traceback: see tests/engine/test_sizes_in_engine.py."""
    return (
        f'    error: Preview failed: before hook "it" failed: {text}\n'
        "    error: preview failed\n\nTraceback (most recent call last):\n" + "  frame\n" * 40
    )
