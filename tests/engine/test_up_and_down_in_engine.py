"""`spotmpi up` and `spotmpi down` with the real Pulumi engine: broken off at every step and taken up again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.cloud import ledger
from jobs.cloud.down import down
from jobs.cloud.hands import Hands
from jobs.cloud.pulumi_cli import Pulumi
from jobs.cloud.up import up
from jobs.environment import Environment
from jobs.errors import SpotmpiError
from jobs.images import Build
from jobs.runs import RunState
from tests.engine.engine import Engine
from tests.engine.journey import ACCESS
from tests.engine.providers.aws_cluster import KEY, LOG_GROUP, SCALING_TAG
from tests.engine.providers.aws_network import NODE_GROUP, SUBNET, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM, REPOSITORY
from tests.engine.providers.cloud import Cloud
from tests.jobs.scripted_cluster import ScriptedCluster
from tests.jobs.stocked_account import Stock

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(900)]

CNI = {"node.k8s.amazonaws.com/instance_id": "i-1"}


class Life:
    """The hands of `up` and `down`: the real engine, AWS's API over the stand-in cloud, the rest as scripted."""

    def __init__(self, engine: Engine, cloud: Cloud) -> None:
        self.engine, self.cloud, self.stock = engine, cloud, Stock()
        self.stock.look = self.look
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
        for each in records.of(FILE_SYSTEM):
            self.stock.systems[each.id] = dict(each.inputs.get("tags", {}))
        for kind, kept in ((FILE_SYSTEM, self.stock.systems),):
            for gone in set(kept) - {each.id for each in records.of(kind)} - {"fs-planted"}:
                del kept[gone]
        self.stock.logs = {each.id for each in records.of(LOG_GROUP)} | {n for n in self.stock.logs if "late" in n}
        self.stock.repositories = {each.id for each in records.of(REPOSITORY)}
        self.stock.keys = {each.id: "Enabled" for each in records.of(KEY)}
        groups = {each.inputs["autoscalingGroupName"] for each in records.of(SCALING_TAG)}
        for name in groups - set(self.stock.groups):
            tags = [
                each.inputs["tag"] for each in records.of(SCALING_TAG) if each.inputs["autoscalingGroupName"] == name
            ]
            self.stock.group(name, {tag["key"]: tag["value"] for tag in tags}, nodes=1)
        for name in set(self.stock.groups) - groups:
            del self.stock.groups[name]

    @property
    def hands(self) -> Hands:
        pulumi = Pulumi(self.said.append, self.engine.project, self.engine.variables())
        made = Hands(self.stock.account().aws, pulumi, self.said.append, lambda question: self.do("agree") or True)
        return replace(
            made,
            examine=lambda stack, aws: [],
            cluster=lambda there: self.inside,
            knows=lambda there: self.known,
            command=self.command,
            push=self.push,
            run=lambda values, **more: self.do("run") or RunState("smoke-1", "", "smoke", "succeeded"),
            list_runs=lambda where: self.runs,
            stop_run=lambda run, where: self.stop(run),
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


@pytest.fixture
def life(engine: Engine, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
    monkeypatch.chdir(engine.project)
    return Life(engine, cloud)


def broken_off(step: str, life: Life, work: Any) -> None:
    """Do *work* with one failure planted; it has to be told."""
    life.trouble.add(step)
    with pytest.raises(SpotmpiError, match=f"{step} was told to fail"):
        work()


def test_up_and_down_are_taken_up_at_every_step_and_leave_nothing(life: Life, cloud: Cloud) -> None:
    life.engine.configure("lab", {"spotmpi:access": ACCESS})

    # Up: broken off in the engine, at the kubeconfig, at an image and at the small run.
    cloud.script.fail("create", NODE_GROUP)
    with pytest.raises(SpotmpiError, match=r"`pulumi up --stack lab` failed.*the same command goes on"):
        up("lab", life.hands)
    for step in ("aws", "push chainermn", "run"):
        broken_off(step, life, lambda: up("lab", life.hands))
    there = up("lab", life.hands)
    assert there.cluster == "spotmpi-lab"
    made = life.changed("create")
    assert len(made) == len(set(made)) and not life.changed("delete")
    assert [life.did.count(step) for step in ("agree", "aws", "push chainermn", "push pytorch", "run")] == [
        2,
        2,
        2,
        1,
        2,
    ]

    # Up again: nothing is asked, nothing is done.
    life.did.clear()
    up("lab", life.hands)
    assert life.did == [] and life.changed("create") == made

    # Down: a run that can't be stopped keeps nothing alive; a leaked interface in the way is swept; a failure is told.
    (network,) = life.stock.networks
    life.stock.interfaces["eni-leaked"] = (network, "available", CNI)
    life.runs = [RunState("a-1", "", "a", "running")]
    life.trouble.add("stop a-1")
    cloud.script.fail("delete", SUBNET)
    cloud.script.fail("delete", VPC)
    with pytest.raises(SpotmpiError, match=r"`pulumi destroy --stack lab` failed.*the same command goes on"):
        down("lab", life.hands)
    assert "its runs can't be stopped one by one: stop a-1 was told to fail" in life.said
    assert life.stock.interfaces == {} and len(cloud.records) > 0
    life.stock.logs.add("/aws/eks/spotmpi-lab/late")

    # Taken up again: everything is gone but what nobody's state knows, and that is listed.
    (left,) = down("lab", life.hands)
    assert (left.what, left.id) == ("log groups", "/aws/eks/spotmpi-lab/late")
    assert len(cloud.records) == 0 and list(cloud.leftovers) == []
    assert ledger.read("spotmpi-lab", "us-east-1").of("networks") == {network}

    # Once that is deleted nothing is left, also not the stack's state.
    life.stock.logs.clear()
    assert down("lab", life.hands) == ()
    assert ledger.read("spotmpi-lab", "us-east-1").ids == {}
    assert life.hands.pulumi.state("lab") is None


def test_kept_storage_outlives_down_until_its_deletion_is_asked_for_by_name(life: Life, cloud: Cloud) -> None:
    life.engine.configure("p3", {"spotmpi:access": ACCESS})
    up("p3", life.hands)
    (storage,) = cloud.records.of(FILE_SYSTEM)

    assert down("p3", life.hands) == ()
    assert cloud.records.of(FILE_SYSTEM) == [storage]
    assert "kept, and billed by the GB: the storage of spotmpi-p3-data" in life.said

    assert down("p3", life.hands, "spotmpi-p3") == ()
    assert len(cloud.records) == 0
    assert json.dumps(life.said).count("PRIVATE KEY") == 0
