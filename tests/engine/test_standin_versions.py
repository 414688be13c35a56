"""The versions of the stand-in EKS, asked directly: what passes, and what the real service would refuse."""

from typing import Any

import pytest

from tests.engine.providers.aws_cluster import ADDON
from tests.engine.providers.aws_network import CLUSTER, LAUNCH_TEMPLATE, NODE_GROUP
from tests.engine.providers.cloud import Asked
from tests.engine.providers.records import Record, Refused
from tests.engine.world import World

OLD, NEW = "1.35.2-20260901", "1.35.4-20261110"


def change(world: World, record: Record, **inputs: Any) -> Record:
    """Change some inputs of what exists, in place."""
    asked = Asked(record.token, "it", record.urn)
    return world.aws.update(asked, record.id, {**record.inputs, **inputs}, record.outputs)


def cluster_of(world: World) -> Record:
    (cluster,) = world.cloud.records.of(CLUSTER)
    return cluster


def test_a_control_plane_goes_up_one_minor_version_at_a_time(world: World) -> None:
    cluster = world.cluster(world.network())
    assert cluster.outputs["version"] == "1.35"
    for version in ("1.37", "1.34", "1.40"):
        with pytest.raises(Refused, match=f"Unsupported Kubernetes minor version update from 1.35 to {version}"):
            change(world, cluster, version=version)
    assert change(world, cluster, version="1.36").outputs["version"] == "1.36"


def test_a_control_plane_is_made_with_a_version_that_there_is(world: World) -> None:
    with pytest.raises(Refused, match=r"unsupported Kubernetes version 1\.40"):
        world.cluster(world.network(), version="1.40")


def test_a_control_plane_waits_for_the_nodes_of_its_own_version(world: World) -> None:
    nodes = world.nodes(world.ready(), desired=0)
    change(world, cluster_of(world), version="1.36")
    with pytest.raises(Refused, match=r"work must have the cluster's version 1\.36"):
        change(world, cluster_of(world), version="1.37")
    change(world, nodes, version="1.36")
    assert change(world, cluster_of(world), version="1.37").outputs["version"] == "1.37"


def test_new_nodes_have_the_version_of_the_control_plane_and_its_newest_release_unless_told(
    world: World,
) -> None:
    subnets = world.ready()
    assert world.nodes(subnets, "newest", desired=0).outputs["releaseVersion"] == NEW
    assert world.nodes(subnets, "said", desired=0, releaseVersion=OLD).outputs["releaseVersion"] == OLD
    with pytest.raises(Refused, match=r"made with the cluster's version 1\.35"):
        world.nodes(subnets, "old", desired=0, version="1.34")
    with pytest.raises(Refused, match=r"not valid for kubernetes version 1\.35"):
        world.nodes(subnets, "wrong", desired=0, releaseVersion="1.36.1-20261110")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"version": "1.36"}, "newer than the control plane"),
        ({"releaseVersion": OLD}, f"can't be rolled back from {NEW} to {OLD}"),
        ({"version": "1.34"}, "can't be rolled back"),
        ({"releaseVersion": "1.35.9-20270101"}, "not valid for kubernetes version"),
    ],
)
def test_nodes_go_neither_back_nor_ahead_of_their_control_plane(
    world: World, inputs: dict[str, str], message: str
) -> None:
    nodes = world.nodes(world.ready(), desired=0)
    with pytest.raises(Refused, match=message):
        change(world, nodes, **inputs)


def test_a_new_launch_template_version_takes_nodes_to_the_newest_release_of_the_control_plane(world: World) -> None:
    template = world.make(LAUNCH_TEMPLATE, name="plain")
    first, second = ({"id": template.id, "version": version} for version in ("1", "2"))
    nodes = world.nodes(world.ready(), desired=0, releaseVersion=OLD, launchTemplate=first)
    assert change(world, nodes, labels={"a": "b"}).outputs["releaseVersion"] == OLD
    change(world, template, ebsOptimized="true")
    change(world, cluster_of(world), version="1.36")
    moved = change(world, nodes, launchTemplate=second)
    assert (moved.outputs["version"], moved.outputs["releaseVersion"]) == ("1.36", "1.36.1-20261110")


def test_an_add_on_keeps_its_version_until_another_is_said_that_fits_the_control_plane(world: World) -> None:
    world.ready()
    (proxy,) = [each for each in world.cloud.records.of(ADDON) if each.inputs["addonName"] == "kube-proxy"]
    with pytest.raises(Refused, match="Addon version specified is not supported"):
        change(world, proxy, addonVersion="v1.36.1-eksbuild.2")
    change(world, cluster_of(world), version="1.36")
    assert change(world, proxy, tags={"a": "b"}).outputs["addonVersion"] == "v1.35.1-eksbuild.2"
    assert change(world, proxy, addonVersion="v1.36.1-eksbuild.2").outputs["addonVersion"] == "v1.36.1-eksbuild.2"


def test_a_version_that_is_said_as_it_is_already_changes_nothing(world: World) -> None:
    nodes = world.nodes(world.ready(), desired=0)
    asked, said = Asked(NODE_GROUP, "it", nodes.urn), {**nodes.inputs, "version": "1.35", "releaseVersion": NEW}
    assert world.aws.changed(asked, nodes.inputs, said, nodes.outputs) == []
    assert world.aws.changed(asked, said, nodes.inputs, nodes.outputs) == []
    older = {**said, "releaseVersion": OLD}
    assert world.aws.changed(asked, said, older, nodes.outputs) == ["releaseVersion"]


def test_a_preview_of_a_change_keeps_what_the_service_answered(world: World) -> None:
    cluster = world.cluster(world.network())
    asked = Asked(CLUSTER, "it", cluster.urn)
    planned = world.aws.planned(asked, {**cluster.inputs, "version": "1.36"}, cluster.outputs)
    assert planned["vpcConfig"]["clusterSecurityGroupId"] == cluster.outputs["vpcConfig"]["clusterSecurityGroupId"]
    assert (planned["version"], planned["endpoint"]) == ("1.36", cluster.outputs["endpoint"])
