"""The hands of `up`, `upgrade` and `down` in tests: the real engine, AWS as the stand-in cloud, else as scripted."""

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
from tests.cloud.scripted_account import ScriptedAccount
from tests.cloud.stocked_account import Stock
from tests.engine.eks_over_cloud import eks_of
from tests.engine.engine import Engine
from tests.engine.providers.aws_cluster import KEY, LOG_GROUP, SCALING_TAG
from tests.engine.providers.aws_network import CLUSTER, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM, REPOSITORY
from tests.engine.providers.cloud import Cloud
from tests.unit.backends.kubernetes.scripted_cluster import ScriptedCluster


class Life:
    """What `up` and `down` do and say in one test; `trouble` are hands that fail once each."""

    def __init__(self, engine: Engine, cloud: Cloud) -> None:
        self.engine, self.cloud, self.stock = engine, cloud, Stock()
        self.stock.look = self.look
        self.eks = eks_of(cloud)
        self.inside = ScriptedCluster()
        self.did: list[str] = []
        self.said: list[str] = []
        self.trouble: set[str] = set()
        self.runs: list[RunState] = []
        self.known = False

    def look(self) -> None:
        """Make the stock what the stand-in cloud holds, with what the test has planted beside it."""
        records = self.cloud.records
        self.stock.networks = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(VPC)}
        self.stock.systems = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(FILE_SYSTEM)}
        planted = {name for name in self.stock.logs if "late" in name}
        self.stock.logs = {each.id for each in records.of(LOG_GROUP)} | self.cloud.memories.log_groups | planted
        self.stock.repositories = {each.id for each in records.of(REPOSITORY)}
        self.stock.clusters = {each.id for each in records.of(CLUSTER)}
        self._look_at_memories()
        groups = {each.inputs["autoscalingGroupName"] for each in records.of(SCALING_TAG)}
        for name in groups - set(self.stock.groups):
            tags = [
                each.inputs["tag"] for each in records.of(SCALING_TAG) if each.inputs["autoscalingGroupName"] == name
            ]
            self.stock.group(name, {tag["key"]: tag["value"] for tag in tags}, nodes=1)
        for name in set(self.stock.groups) - groups:
            del self.stock.groups[name]

    def _look_at_memories(self) -> None:
        """What the tagging API lists of things that are gone, and what their services say of them."""
        self.stock.tagged = dict(self.cloud.memories.tagged)
        gone = {arn.rpartition("/")[2]: arn for arn in self.stock.tagged}
        self.stock.keys = {id: "PendingDeletion" for id, arn in gone.items() if ":key/" in arn}
        self.stock.keys |= {each.id: "Enabled" for each in self.cloud.records.of(KEY)}
        self.stock.machines = {id: ("terminated", {}) for id, arn in gone.items() if ":instance/" in arn}

    def _account(self) -> ScriptedAccount:
        """The stock's account; a log group that EKS has made again is deleted in the stand-in cloud as well."""
        made = self.stock.account()
        usual = made.answers["DeleteLogGroup"]

        def delete(region: str, asked: Mapping[str, Any]) -> Any:
            self.cloud.memories.log_groups.discard(asked["logGroupName"])
            return usual(region, asked)

        made.answers["DeleteLogGroup"] = delete
        return made

    @property
    def hands(self) -> Dependencies:
        pulumi = Pulumi(self.said.append, self.engine.project, self.engine.variables())
        account = self._account()
        self.eks.script(account)
        made = Dependencies(account.aws, pulumi, self.said.append, lambda question: self.do("agree") or True)
        return replace(
            made,
            examine=lambda stack, aws: [],
            cluster=lambda there: self.inside,
            knows=lambda there: self.known,
            command=self.command,
            push=self.push,
            run=lambda values, **more: self.do("run") or RunState("smoke-1", "", "smoke", "succeeded"),
            list_runs=lambda on: self.runs,
            stop_run=lambda run, on: self.stop(run),
            sleep=lambda seconds: None,
        )

    def do(self, what: str) -> Any:
        """Note it; fail once where the test says so."""
        self.did.append(what)
        if what in self.trouble:
            self.trouble.remove(what)
            raise SpotmpiError(f"{what} was told to fail")

    def command(self, words: Sequence[str]) -> None:
        self.do(words[0])
        self.known = True

    def push(self, image: str, there: Environment, say: Any) -> str:
        self.do(f"push {image}")
        self.stock.images.add(f"{there.repositories[image].partition('/')[2]}:{Build(image).tag}")
        return image

    def stop(self, run: str) -> RunState:
        self.runs = [each for each in self.runs if each.id != run]
        self.do(f"stop {run}")
        return RunState(run, "", run, "stopped")

    def changed(self, method: str) -> list[tuple[str, str]]:
        """Type and name of what the engine made or deleted so far, in order."""
        return [(call.token, call.name) for call in self.cloud.script.changes() if call.method == method]
