"""The dependencies of `up`, `upgrade` and `down` with the real engine, AWS as the stand-in cloud, the rest scripted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.images.build import Build
from spotmpi.runs.reader import RunState
from tests.cloud.account_resources import AccountResources
from tests.cloud.scripted_account import ScriptedAccount
from tests.engine.eks_of_cloud import eks_of
from tests.engine.engine import Engine
from tests.engine.providers.aws_cluster import KEY, LOG_GROUP, SCALING_TAG
from tests.engine.providers.aws_network import CLUSTER, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM, REPOSITORY
from tests.engine.providers.cloud import Cloud
from tests.unit.backends.kubernetes.scripted_cluster import ScriptedCluster


class EngineEnvironment:
    """An environment in the stand-in cloud that records actions and output; `failures` are actions that fail once."""

    def __init__(self, engine: Engine, cloud: Cloud) -> None:
        self.engine, self.cloud, self.resources = engine, cloud, AccountResources()
        self.resources.before_answer = self.read_cloud
        self.eks = eks_of(cloud)
        self.inside = ScriptedCluster()
        self.actions: list[str] = []
        self.output: list[str] = []
        self.failures: set[str] = set()
        self.runs: list[RunState] = []
        self.has_context = False

    def read_cloud(self) -> None:
        """Update the resources from the stand-in cloud, with those that the test has added."""
        records = self.cloud.records
        self.resources.networks = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(VPC)}
        self.resources.file_systems = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(FILE_SYSTEM)}
        planted = {name for name in self.resources.logs if "late" in name}
        self.resources.logs = (
            {each.id for each in records.of(LOG_GROUP)} | self.cloud.deleted_resources.log_groups | planted
        )
        self.resources.repositories = {each.id for each in records.of(REPOSITORY)}
        self.resources.clusters = {each.id for each in records.of(CLUSTER)}
        self._read_memories()
        groups = {each.inputs["autoscalingGroupName"] for each in records.of(SCALING_TAG)}
        for name in groups - set(self.resources.groups):
            tags = [
                each.inputs["tag"] for each in records.of(SCALING_TAG) if each.inputs["autoscalingGroupName"] == name
            ]
            self.resources.group(name, {tag["key"]: tag["value"] for tag in tags}, nodes=1)
        for name in set(self.resources.groups) - groups:
            del self.resources.groups[name]

    def _read_memories(self) -> None:
        """Deleted resources that the tagging API still lists, and their states in their services."""
        self.resources.tagged = dict(self.cloud.deleted_resources.tagged)
        gone = {arn.rpartition("/")[2]: arn for arn in self.resources.tagged}
        self.resources.keys = {id: "PendingDeletion" for id, arn in gone.items() if ":key/" in arn}
        self.resources.keys |= {each.id: "Enabled" for each in self.cloud.records.of(KEY)}
        self.resources.machines = {id: ("terminated", {}) for id, arn in gone.items() if ":instance/" in arn}

    def _account(self) -> ScriptedAccount:
        """The account of the resources; deletes a log group that EKS has recreated in the stand-in cloud as well."""
        account = self.resources.account()
        usual = account.answers["DeleteLogGroup"]

        def delete(region: str, parameters: Mapping[str, Any]) -> Any:
            self.cloud.deleted_resources.log_groups.discard(parameters["logGroupName"])
            return usual(region, parameters)

        account.answers["DeleteLogGroup"] = delete
        return account

    @property
    def dependencies(self) -> Dependencies:
        pulumi = Pulumi(self.output.append, self.engine.project, self.engine.variables())
        account = self._account()
        self.eks.script(account)
        defaults = Dependencies(account.aws, pulumi, self.output.append, lambda question: self.do("confirm") or True)
        return replace(
            defaults,
            run_doctor=lambda stack, aws: [],
            cluster=lambda there: self.inside,
            has_context=lambda there: self.has_context,
            run_command=self.run_command,
            push_image=self.push_image,
            run_job=lambda values, **more: self.do("run") or RunState("smoke-1", "", "smoke", "succeeded"),
            list_runs=lambda on: self.runs,
            stop_run=lambda run, on: self.stop(run),
            sleep=lambda seconds: None,
        )

    def do(self, what: str) -> Any:
        """Record an action; fail once where the test says so."""
        self.actions.append(what)
        if what in self.failures:
            self.failures.remove(what)
            raise SpotmpiError(f"{what} injected failure")

    def run_command(self, words: Sequence[str]) -> None:
        self.do(words[0])
        self.has_context = True

    def push_image(self, image: str, there: Environment, say: Any) -> str:
        self.do(f"push {image}")
        self.resources.images.add(f"{there.repositories[image].partition('/')[2]}:{Build(image).tag}")
        return image

    def stop(self, run: str) -> RunState:
        self.runs = [each for each in self.runs if each.id != run]
        self.do(f"stop {run}")
        return RunState(run, "", run, "stopped")

    def changes(self, method: str) -> list[tuple[str, str]]:
        """Type and name of what the engine created or deleted so far, in order."""
        return [(call.token, call.name) for call in self.cloud.script.changes() if call.method == method]
