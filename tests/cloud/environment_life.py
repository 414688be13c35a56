"""One environment's life for tests of `up` and `down`: a Pulumi of the test's own, AWS and cluster as scripted."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.backends.targets import Target
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.checks.finding import Finding
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.images.build import Build
from spotmpi.runs.reader import RunState
from tests.cloud.scripted_account import ScriptedAccount
from tests.cloud.stocked_account import Stock
from tests.unit.backends.kubernetes.scripted_cluster import ScriptedCluster
from tests.unit.core.test_environment import OUTPUTS

GROUP_TAGS = {"k8s.io/cluster-autoscaler/node-template/label/spotmpi.dev/group": "g4dn", "spotmpi:nodes": "0-2"}
SETTINGS = "config:\n  aws:region: us-east-1\n  spotmpi:zone: us-east-1a\n"
CNI = {"node.k8s.amazonaws.com/instance_id": "i-1"}
MADE = {
    "aws:efs/fileSystem:FileSystem": "fs-1",
    "aws:efs/mountTarget:MountTarget": "fsmt-12345678",
    "aws:cloudwatch/logGroup:LogGroup": "/aws/eks/spotmpi-lab/cluster",
    "aws:kms/key:Key": "key-1",
    "aws:ecr/repository:Repository": "spotmpi-lab/chainermn",
    "aws:ec2/vpc:Vpc": "vpc-1",
}

# What Pulumi does here: programs on PATH that answer as it does, with a file of what they were asked.
PULUMI = """#!{python} -SE
import json, os, pathlib, sys
here = pathlib.Path({folder!r})
words = sys.argv[1:]
stack = words[words.index("--stack") + 1]
held = here / (stack + ".held")
with open(here / "asked", "a") as file:
    file.write("replacing nodes: " * ("SPOTMPI_REPLACE_NODES" in os.environ))
    file.write(" ".join(w for w in words if w not in ("--stack", stack, "--non-interactive")) + " @" + stack + "\\n")
trouble = here / (words[0] + ".trouble")
if trouble.exists():
    print("error: " + trouble.read_text()); trouble.unlink(); sys.exit(255)
refusal = here / "refusal"  # as tests/engine/test_sizes_in_engine.py has it of the real one, the program's end included
if words[0] in ("preview", "up") and refusal.exists() and not os.environ.get("SPOTMPI_REPLACE_NODES"):
    print('    error: Preview failed: before hook "it" failed: ' + refusal.read_text())
    print("    error: preview failed\\n\\nTraceback (most recent call last):\\n" + "  frame\\n" * 40)
    sys.exit(255)
if words[:2] in (["stack", "export"], ["stack", "output"]) and not held.exists():
    print("error: no stack named " + repr(stack) + " found", file=sys.stderr); sys.exit(255)
if words[:2] == ["stack", "export"]:
    print(held.read_text())
elif words[:2] == ["stack", "output"]:
    print((here / "outputs").read_text() if json.loads(held.read_text())["deployment"]["resources"] else "{{}}")
elif words[:2] == ["stack", "rm"]:
    held.unlink()
elif words[:2] == ["stack", "select"] and not held.exists():
    held.write_text(json.dumps({{"deployment": {{"resources": []}}}}))
elif words[0] == "preview" and "--config-file" in words:
    if pathlib.Path(words[words.index("--config-file") + 1]).read_text() != (here / (stack + ".applied")).read_text():
        print("error: no changes were expected but changes were proposed"); sys.exit(255)
elif words[0] == "preview" and (refusal.exists() or not json.loads(held.read_text())["deployment"]["resources"]):
    print("error: no changes were expected but changes were proposed"); sys.exit(255)
elif words[0] == "up":
    made = {made!r} if not stack.endswith("-data") else {{"aws:efs/fileSystem:FileSystem": "fs-kept"}}
    listed = [{{"type": kind, "id": id}} for kind, id in made.items()]
    settings = here / "stacks" / ("Pulumi." + stack + ".yaml")
    if settings.exists():
        (here / (stack + ".applied")).write_text(settings.read_text())
    held.write_text(json.dumps({{"deployment": {{"resources": listed}}}}))
elif words[0] == "destroy":
    held.write_text(json.dumps({{"deployment": {{"resources": []}}}}))
if words[0] != "stack":
    print("done: " + words[0])
"""


class Killed(BaseException):
    """The process is gone: no `except` and no clean-up of its own runs after it."""


class Life:
    """One environment's life: hands that do what the test says, and a list of what they did."""

    def __init__(self, folder: Path, account: ScriptedAccount) -> None:
        self.folder, self.stock, self.cluster = folder, Stock(), ScriptedCluster()
        self.stock.group("eks-g4dn", GROUP_TAGS, nodes=1)
        self.account = self.stock.account(account)
        self.did: list[str] = []
        self.answers: list[bool] = []
        self.findings: list[Finding] = []
        self.trouble: dict[str, str | type[Killed]] = {}  # by the word that is done
        self.runs: list[RunState] = []
        self.known = False
        self.small_run: dict[str, Any] = {}  # the values of the last one
        self.said: list[str] = []

    @property
    def hands(self) -> Dependencies:
        pulumi = Pulumi(self.said.append, self.folder, {"PATH": f"{self.folder}:/usr/bin:/bin"})
        made = Dependencies(self.account.aws, pulumi, self.said.append, self.agree)
        return replace(
            made,
            examine=lambda stack, aws: self.findings,
            cluster=lambda there: self.cluster,
            knows=lambda there: self.known,
            command=self.command,
            push=self.push,
            stage=lambda source, folder, target, say: self.do(f"stage {source} as {folder} on {target.name}"),
            run=self.run,
            list_runs=lambda on: self.runs,
            stop_run=lambda run, on: self.stop(run, on),
            sleep=lambda seconds: self.do("wait"),
        )

    def do(self, what: str) -> Any:
        """Note what is done, and fail once where that is asked for."""
        self.did.append(what)
        word = what.split()[0]
        trouble = self.trouble.pop(word, None)
        if isinstance(trouble, str):
            raise SpotmpiError(trouble)
        if trouble:
            raise trouble

    def agree(self, question: str) -> bool:
        self.do(question)
        return self.answers.pop(0) if self.answers else True

    def command(self, words: Sequence[str]) -> None:
        self.do(" ".join(words))
        self.known = True

    def push(self, image: str, there: Environment, say: Any) -> str:
        self.do(f"push {image}")
        self.stock.images.add(f"{there.repositories[image].partition('/')[2]}:{Build(image).tag}")
        return image

    def run(self, values: dict[str, Any], **more: Any) -> RunState:
        self.small_run = values
        self.do(f"run {values['image']} on {more['on'].name}")
        return RunState("smoke-1", "", "smoke", "succeeded")

    def stop(self, run: str, on: Target) -> Any:
        self.do(f"stop {run} on {on.name}")
        self.runs = [each for each in self.runs if each.id != run]

    def asked(self) -> list[str]:
        """What Pulumi was asked so far, words that only look left out."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith(("stack export", "stack output"))]

    def stack(self, more: str = "", name: str = "lab") -> None:
        (self.folder / "stacks" / f"Pulumi.{name}.yaml").write_text(SETTINGS + more)


FIRST = ["stack select --create @lab", "preview --expect-no-changes @lab", "up --yes --skip-preview @lab"]


def life_in(folder: Path, account: ScriptedAccount, monkeypatch: pytest.MonkeyPatch) -> Life:
    """A life in *folder*, which is the current one then, with the stack `lab`."""
    monkeypatch.setenv("SPOTMPI_STATE", str(folder / "kept"))
    monkeypatch.chdir(folder)
    (folder / "stacks").mkdir()
    program = folder / "pulumi"
    program.write_text(PULUMI.format(python=sys.executable, folder=str(folder), made=MADE))
    program.chmod(0o755)
    (folder / "outputs").write_text(json.dumps(OUTPUTS))
    made = Life(folder, account)
    made.stack()
    return made
