"""A fake environment for tests of `up`, `upgrade` and `down`: Pulumi, AWS and the cluster are fakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.aws.scaling import CLUSTER_TAG, GROUP_TAG
from spotmpi.backends.targets import Target
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.checks.check import Finding
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.down import down
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.up import UpOptions, up
from spotmpi.images.build import Build
from spotmpi.runs.reader import RunState
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.fake_pulumi import FakePulumi
from tests.unit.core.test_environment import OUTPUTS

GROUP_TAGS = {CLUSTER_TAG: "spotmpi-lab", GROUP_TAG: "g4dn", "spotmpi:nodes": "0-2"}
SETTINGS = "config:\n  aws:region: us-east-1\n  spotmpi:zones: [us-east-1a]\n"
CNI = {"node.k8s.amazonaws.com/instance_id": "i-1"}


class Killed(BaseException):
    """The process is killed: no `except` and no clean-up of its own runs afterwards."""


class FakeEnvironment:
    """An environment whose dependencies are scripted by the test and record their actions."""

    def __init__(self, folder: Path, account: FakeAccount) -> None:
        self.folder, self.account, self.cluster = folder, account, FakeCluster()
        self.actions: list[str] = []
        self.confirmations: list[bool] = []
        self.findings: list[Finding] = []
        self.failures: dict[str, str | type[Killed]] = {}  # by the first word of an action, once each
        self.runs: list[RunState] = []
        self.smoke_run: dict[str, Any] = {}  # the values of the last one
        self.output: list[str] = []

    @property
    def pulumi(self) -> Pulumi:
        """The fake; in tests/engine it is the real one."""
        return FakePulumi(self.output.append, self.folder, {})

    @property
    def dependencies(self) -> Dependencies:
        defaults = Dependencies(self.account, self.pulumi, self.output.append, self.confirm)
        return replace(
            defaults,
            run_doctor=lambda stack, aws: self.findings,
            cluster=lambda there: self.cluster.view(),
            push_image=self.push_image,
            push_data=lambda source, folder, target, echo: self.do(f"data {source} as {folder} on {target.name}"),
            run_job=self.run_job,
            list_runs=lambda on: self.runs,
            stop_run=lambda run, on: self.stop(run, on),
            sleep=lambda seconds: self.do("wait"),
        )

    def do(self, what: str) -> Any:
        """Record an action, and fail once where the test says so."""
        self.actions.append(what)
        word = what.split()[0]
        failure = self.failures.pop(word, None)
        if isinstance(failure, str):
            raise SpotmpiError(failure)
        if failure:
            raise failure

    def confirm(self, question: str) -> bool:
        self.do(question)
        return self.confirmations.pop(0) if self.confirmations else True

    def push_image(self, image: str, there: Environment, echo: Any) -> str:
        self.do(f"push {image}")
        self.account.ecr.images.add(f"{there.repositories[image].partition('/')[2]}:{Build(image).tag}")
        return image

    def run_job(self, values: dict[str, Any], **more: Any) -> RunState:
        self.smoke_run = values
        self.do(f"run {values['image']} on {more['on'].name}")
        return RunState("smoke-1", "", "smoke", "succeeded")

    def stop(self, run: str, on: Target) -> Any:
        self.do(f"stop {run} on {on.name}")
        self.runs = [each for each in self.runs if each.id != run]

    def pulumi_commands(self) -> list[str]:
        """The Pulumi commands since the last call, without those that only read."""
        path = self.folder / "commands"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in lines if "stack export" not in line and "stack output" not in line]

    def up(self, **options: Any) -> Environment:
        return up("lab", self.dependencies, UpOptions(**options))

    def down(self, delete_data: str | None = None) -> list[tuple[str, str]]:
        """The kind and id of each leftover."""
        return [(each.what, each.id) for each in down("lab", self.dependencies, delete_data)]

    def forget(self) -> None:
        """Start records of actions and commands anew."""
        self.actions.clear()
        self.pulumi_commands()

    def write_stack(self, more: str = "", name: str = "lab") -> None:
        (self.folder / "stacks" / f"Pulumi.{name}.yaml").write_text(SETTINGS + more)

    def up_with_data_stack(self) -> None:
        """Build the environment and, in a stack of its own, the storage that outlives it."""
        self.write_stack("  spotmpi:storage: {keep: true}\n")
        self.write_stack("  spotmpi:kind: data\n", "lab-data")
        self.up(images=False)


# A preview shows all steps; what it would lose is decided from them.
PREVIEW = "replacing nodes: preview --expect-no-changes @lab"
FIRST = ["stack select --create @lab", PREVIEW, "up --yes --skip-preview @lab"]


def create_fake_environment(folder: Path, account: FakeAccount, monkeypatch: pytest.MonkeyPatch) -> FakeEnvironment:
    """A fake environment in *folder*, made the current one, with the stack `lab`."""
    monkeypatch.setenv("SPOTMPI_STATE", str(folder / "state"))
    monkeypatch.setenv("SPOTMPI_CACHE", str(folder / "cache"))
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))  # its entries outlive the cluster, as kubectl's do
    monkeypatch.chdir(folder)
    (folder / "stacks").mkdir()
    (folder / "outputs").write_text(json.dumps(OUTPUTS))
    account.autoscaling.add("eks-g4dn", GROUP_TAGS, nodes=1)
    lab = FakeEnvironment(folder, account)
    lab.write_stack()
    return lab
