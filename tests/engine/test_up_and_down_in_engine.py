"""`spotmpi up` and `spotmpi down` with the real Pulumi engine: broken off at every step and taken up again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.down import down
from spotmpi.environments.resource_inventory import read_inventory
from spotmpi.environments.up import up
from spotmpi.runs.reader import RunState
from tests.cloud.account.answers import ACCOUNT
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.aws_cluster import LOG_GROUP
from tests.engine.providers.aws_network import NODE_GROUP, SUBNET, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM
from tests.engine.providers.cloud import Cloud
from tests.engine.stack_lifecycle import ACCESS

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(900)]

CNI = {"node.k8s.amazonaws.com/instance_id": "i-1"}


def interrupt_at(step: str, environment: EngineEnvironment, work: Any) -> None:
    """Do *work* with one injected failure, which must be reported."""
    environment.failures[step] = "injected failure"
    with pytest.raises(SpotmpiError, match="injected failure"):
        work()


def up_broken_off_at_every_step(environment: EngineEnvironment, cloud: Cloud) -> None:
    """Up: broken off in the engine, at an image and at the small run; then done, each thing once."""
    cloud.script.fail("create", NODE_GROUP)
    with pytest.raises(SpotmpiError, match=r"`pulumi up --stack lab` failed.*the same command continues"):
        up("lab", environment.dependencies)
    for step in ("push", "run"):
        interrupt_at(step, environment, lambda: up("lab", environment.dependencies))
    assert up("lab", environment.dependencies).cluster == "spotmpi-lab"
    created = environment.changes("create")
    assert len(created) == len(set(created)) and not environment.changes("delete")
    steps = [action if action.startswith("push") else action.split()[0] for action in environment.actions]
    counts = {"Build": 2, "push chainermn": 2, "push pytorch": 1, "run": 2}
    assert {step: steps.count(step) for step in counts} == counts


def down_with_much_in_its_way(environment: EngineEnvironment, cloud: Cloud, network: str) -> None:
    """Down: a run that can't be stopped does not prevent it; a leaked interface is deleted; a failure is reported."""
    environment.account.ec2.interfaces["eni-leaked"] = (network, "available", CNI)
    environment.runs = [RunState("a-1", "", "a", "running")]
    environment.failures["stop"] = "injected failure"
    cloud.script.fail("delete", SUBNET)
    cloud.script.fail("delete", VPC)
    with pytest.raises(SpotmpiError, match=r"`pulumi destroy --stack lab` failed.*the same command continues"):
        down("lab", environment.dependencies)
    assert "a-1 can't be stopped: injected failure" in environment.output
    assert environment.account.ec2.interfaces == {} and len(cloud.records) > 0


def test_up_and_down_continue_at_every_step_and_leave_nothing(environment: EngineEnvironment, cloud: Cloud) -> None:
    environment.engine.configure("lab", {"spotmpi:access": ACCESS, "spotmpi:cluster": {"encrypt_secrets": True}})
    up_broken_off_at_every_step(environment, cloud)

    # Up again: no confirmation, no change.
    created = environment.changes("create")
    environment.actions.clear()
    up("lab", environment.dependencies)
    assert environment.actions == [] and environment.changes("create") == created

    (network,) = environment.account.ec2.networks
    down_with_much_in_its_way(environment, cloud, network)
    environment.account.logs.groups.add("/aws/eks/spotmpi-lab/late")

    # Continued: everything is deleted but the resource in no state, which is listed.
    # What AWS still tells of the rest is not a leftover, and the log group that EKS makes again is deleted again.
    (leftover,) = down("lab", environment.dependencies)
    again = "/aws/eks/spotmpi-lab/cluster"
    assert f"deleted log group {again}, which EKS had recreated" in environment.output
    assert {arn.split(":")[5].partition("/")[0] for arn in cloud.deleted_resources.tagged} == {
        "instance",
        "volume",
        "key",
    }
    assert (leftover.what, leftover.id) == ("log groups", "/aws/eks/spotmpi-lab/late")
    assert len(cloud.records) == 0 and list(cloud.leftovers) == []
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).of("VPCs") == {network}

    # Once that is deleted nothing is left, also not the stack's state.
    environment.account.logs.groups.clear()
    assert down("lab", environment.dependencies) == ()
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).ids == {}
    assert environment.dependencies.pulumi.state("lab") is None


@pytest.mark.nightly("two more ups; by day the stand-in's refusal and the step of up are held one by one")
def test_up_finds_a_log_group_that_eks_recreated_after_a_manual_destroy(
    environment: EngineEnvironment, cloud: Cloud
) -> None:
    environment.engine.configure("lab", {"spotmpi:access": ACCESS})
    up("lab", environment.dependencies)
    environment.engine.destroy("lab").require_success()
    assert cloud.deleted_resources.log_groups == {"/aws/eks/spotmpi-lab/cluster"}

    up("lab", environment.dependencies)

    assert [record.id for record in cloud.records.of(LOG_GROUP)] == ["/aws/eks/spotmpi-lab/cluster"]


def test_persistent_storage_outlives_down_until_its_deletion_is_requested_by_name(
    environment: EngineEnvironment, cloud: Cloud
) -> None:
    environment.engine.configure("p3", {"spotmpi:access": ACCESS})
    up("p3", environment.dependencies)
    (storage,) = cloud.records.of(FILE_SYSTEM)

    assert down("p3", environment.dependencies) == ()
    assert cloud.records.of(FILE_SYSTEM) == [storage]
    assert any(
        line.startswith("not deleted, and billed by the GB: the storage spotmpi-p3-data") for line in environment.output
    )

    environment.account.backup.back_up(storage.id, "spotmpi-p3-data", days=2)
    assert down("p3", environment.dependencies, "spotmpi-p3") == ()
    assert len(cloud.records) == 0
    assert any(f"2 recovery points of {storage.id} in AWS Backup" in line for line in environment.output)
    assert json.dumps(environment.output).count("PRIVATE KEY") == 0
