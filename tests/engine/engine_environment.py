"""The dependencies of `up`, `upgrade` and `down` with the real engine, AWS as the stand-in cloud, the rest scripted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.images.build import Build
from spotmpi.runs.reader import RunState
from tests.cloud.account.ec2 import machine
from tests.cloud.account.eks import STANDARD
from tests.cloud.account.fake_account import FakeAccount
from tests.engine.engine import Engine
from tests.engine.providers import eks_versions
from tests.engine.providers.aws_cluster import ADDON, KEY, LOG_GROUP, SCALING_TAG
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM, REPOSITORY
from tests.engine.providers.cloud import Cloud
from tests.unit.backends.kubernetes.scripted_cluster import ScriptedCluster


def offer_versions(account: FakeAccount) -> None:
    """Let EKS offer the versions of the stand-in cloud."""
    versions = eks_versions.RELEASES
    account.eks.offered = {version: (STANDARD, datetime(2027, 12, 1, tzinfo=UTC)) for version in versions}
    account.eks.addon_versions = {
        version: [(each, number == 0) for number, each in enumerate(eks_versions.addon_versions(version))]
        for version in versions
    }
    account.ssm.releases = {version: releases[-1] for version, releases in versions.items()}


class EngineEnvironment:
    """An environment in the stand-in cloud that records actions and output; `failures` are actions that fail once."""

    def __init__(self, engine: Engine, cloud: Cloud) -> None:
        self.engine, self.cloud, self.account = engine, cloud, FakeAccount()
        self.account.before_answer = self.read_cloud
        self.account.answers["DeleteLogGroup"] = self.delete_log_group
        offer_versions(self.account)
        self.inside = ScriptedCluster()
        self.actions: list[str] = []
        self.output: list[str] = []
        self.failures: set[str] = set()
        self.runs: list[RunState] = []
        self.has_context = False

    def read_cloud(self) -> None:
        """Update the resources from the stand-in cloud, with those that the test has added."""
        records = self.cloud.records
        self.account.ec2.networks = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(VPC)}
        self.account.efs.file_systems = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(FILE_SYSTEM)}
        planted = {name for name in self.account.logs.groups if "late" in name}
        self.account.logs.groups = (
            {each.id for each in records.of(LOG_GROUP)} | self.cloud.deleted_resources.log_groups | planted
        )
        self.account.ecr.repositories = {each.id for each in records.of(REPOSITORY)}
        self._read_cluster()
        self._read_memories()
        groups = {each.inputs["autoscalingGroupName"] for each in records.of(SCALING_TAG)}
        for name in groups - set(self.account.autoscaling.groups):
            tags = [
                each.inputs["tag"] for each in records.of(SCALING_TAG) if each.inputs["autoscalingGroupName"] == name
            ]
            self.account.autoscaling.add(name, {tag["key"]: tag["value"] for tag in tags}, nodes=1)
        for name in set(self.account.autoscaling.groups) - groups:
            del self.account.autoscaling.groups[name]

    def _read_memories(self) -> None:
        """Deleted resources that the tagging API still lists, and their states in their services."""
        self.account.tagging.resources = dict(self.cloud.deleted_resources.tagged)
        gone = {arn.rpartition("/")[2]: arn for arn in self.account.tagging.resources}
        self.account.kms.keys = {id: "PendingDeletion" for id, arn in gone.items() if ":key/" in arn}
        self.account.kms.keys |= {each.id: "Enabled" for each in self.cloud.records.of(KEY)}
        self.account.ec2.machines = {id: machine("terminated") for id, arn in gone.items() if ":instance/" in arn}

    def _read_cluster(self) -> None:
        """The only cluster, if there is one."""
        eks, records = self.account.eks, self.cloud.records
        eks.version = next((str(each.outputs["version"]) for each in records.of(CLUSTER)), "")
        eks.addons = {each.inputs["addonName"]: str(each.outputs["addonVersion"]) for each in records.of(ADDON)}
        eks.groups = {
            each.inputs["nodeGroupName"]: {key: each.outputs[key] for key in ("version", "releaseVersion", "status")}
            | {"labels": each.inputs["labels"], "amiType": each.inputs["amiType"]}
            for each in records.of(NODE_GROUP)
        }

    def delete_log_group(self, region: str, request: Mapping[str, Any]) -> None:
        """Delete one that EKS has recreated in the stand-in cloud as well."""
        self.cloud.deleted_resources.log_groups.discard(request["logGroupName"])
        self.account.logs.delete_log_group(region, request)

    @property
    def dependencies(self) -> Dependencies:
        pulumi = Pulumi(self.output.append, self.engine.project, self.engine.variables())
        defaults = Dependencies(self.account, pulumi, self.output.append, lambda question: self.do("confirm") or True)
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
        self.account.ecr.images.add(f"{there.repositories[image].partition('/')[2]}:{Build(image).tag}")
        return image

    def stop(self, run: str) -> RunState:
        self.runs = [each for each in self.runs if each.id != run]
        self.do(f"stop {run}")
        return RunState(run, "", run, "stopped")

    def changes(self, method: str) -> list[tuple[str, str]]:
        """Type and name of what the engine created or deleted so far, in order."""
        return [(call.token, call.name) for call in self.cloud.script.changes() if call.method == method]
