"""Updates that would replace running nodes, or take them back to an older release, are refused by the program."""

from __future__ import annotations

from typing import Any

import boto3
import pulumi
import pytest
from moto import mock_aws

from infra.node_replacement import NodeProtection, version_hook
from infra.scaling_groups import ScalingGroup
from tests.infra.test_sizes import RecordingGroup

NAME = "spotmpi-lab-g4dn"
STATE = {
    "launchTemplate": {"id": "lt-1", "version": "1"},
    "releaseVersion": "1.35.4-20261110",
    "version": "1.35",
    "resources": [{"autoscalingGroups": [{"name": "eks-g4dn"}]}],
}


def update(running: int, **new: Any) -> None:
    protection = NodeProtection(NAME, "spotmpi-lab", "1.36", RecordingGroup(sizes=(0, running, 8)))
    inputs = {"launchTemplate": STATE["launchTemplate"], **new}
    protection.before_update(pulumi.ResourceHookArgs("urn", "id", NAME, "type", inputs, {}, {}, STATE))


@pytest.mark.parametrize("new", [{"version": "1.36"}, {"launchTemplate": {"id": "lt-1", "version": "2"}}])
def test_an_update_that_replaces_nodes_is_refused_while_they_run(
    new: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(0, **new)
    with pytest.raises(pulumi.RunError, match="group g4dn has 3 running nodes"):
        update(3, **new)
    monkeypatch.setenv("SPOTMPI_REPLACE_NODES", "1")
    update(3, **new)


def test_an_older_ami_release_is_refused_before_eks_refuses_it_in_the_middle() -> None:
    update(0, releaseVersion="1.35.4-20261110")
    with pytest.raises(pulumi.RunError, match=r"g4dn runs AMI release 1\.35\.4-20261110, not 1\.35\.2-20260901"):
        update(0, releaseVersion="1.35.2-20260901")


def test_a_group_of_an_older_version_than_its_control_plane_is_refused_before_eks_refuses_it_in_the_middle() -> None:
    create = version_hook(NAME, "g4dn", "1.36").callback
    create(pulumi.ResourceHookArgs("urn", "", NAME, "type", {"version": "1.36"}))
    with pytest.raises(pulumi.RunError, match=r"g4dn would be created with Kubernetes 1\.35.* one of 1\.36"):
        create(pulumi.ResourceHookArgs("urn", "", NAME, "type", {"version": "1.35"}))


@pytest.fixture
def scaling_groups() -> Any:
    with mock_aws():
        autoscaling = boto3.client("autoscaling", region_name="us-east-1")
        autoscaling.create_launch_configuration(
            LaunchConfigurationName="c", ImageId="ami-1", InstanceType="t3.small", SecurityGroups=[]
        )
        for name, cluster, nodes in (
            (f"{NAME}-0123abc-f6c72a0d-1d3f", "spotmpi-lab", 3),
            (f"{NAME}-2-0123abc-f6c72a0d-1d3f", "spotmpi-lab", 5),
            (f"{NAME}-0123abc-aaaaaaaa-1d3f", "other", 7),
        ):
            autoscaling.create_auto_scaling_group(
                AutoScalingGroupName=f"eks-{name}",
                LaunchConfigurationName="c",
                MinSize=nodes,
                MaxSize=nodes,
                AvailabilityZones=["us-east-1a"],
                Tags=[{"Key": "eks:cluster-name", "Value": cluster, "PropagateAtLaunch": False}],
            )
        yield


@pytest.mark.usefixtures("scaling_groups")
def test_the_creation_that_starts_a_replacement_is_refused_while_nodes_run(monkeypatch: pytest.MonkeyPatch) -> None:
    created = pulumi.ResourceHookArgs("urn", "", NAME, "type", {})
    with pytest.raises(
        pulumi.RunError, match="group g4dn has 3 running nodes; the change of what can't change in place"
    ):
        NodeProtection(NAME, "spotmpi-lab", "1.36", ScalingGroup("us-east-1", "g4dn")).before_creation(created)
    NodeProtection("spotmpi-lab-new", "spotmpi-lab", "1.36", ScalingGroup("us-east-1", "new")).before_creation(created)
    monkeypatch.setenv("SPOTMPI_REPLACE_NODES", "1")
    NodeProtection(NAME, "spotmpi-lab", "1.36", ScalingGroup("us-east-1", "g4dn")).before_creation(created)
