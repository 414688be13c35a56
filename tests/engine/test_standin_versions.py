"""The versions of the stand-in EKS, called directly: what passes, and what the real service would refuse."""

from typing import Any

import pytest

from tests.engine.cloud_builder import CloudBuilder
from tests.engine.providers.aws_cluster import ADDON
from tests.engine.providers.aws_network import CLUSTER, LAUNCH_TEMPLATE, NODE_GROUP
from tests.engine.providers.cloud import ResourceRequest
from tests.engine.providers.records import Record, Refusal

OLD, NEW = "1.35.2-20260901", "1.35.4-20261110"


def change(cloud_builder: CloudBuilder, record: Record, **inputs: Any) -> Record:
    """Change some inputs of what exists, in place."""
    resource = ResourceRequest(record.token, "it", record.urn)
    return cloud_builder.aws.update(resource, record.id, {**record.inputs, **inputs}, record.outputs)


def cluster_of(cloud_builder: CloudBuilder) -> Record:
    (cluster,) = cloud_builder.cloud.records.of(CLUSTER)
    return cluster


def test_a_control_plane_goes_up_one_minor_version_at_a_time(cloud_builder: CloudBuilder) -> None:
    cluster = cloud_builder.cluster(cloud_builder.network())
    assert cluster.outputs["version"] == "1.35"
    for version in ("1.37", "1.34", "1.40"):
        with pytest.raises(Refusal, match=f"Unsupported Kubernetes minor version update from 1.35 to {version}"):
            change(cloud_builder, cluster, version=version)
    assert change(cloud_builder, cluster, version="1.36").outputs["version"] == "1.36"


def test_a_control_plane_of_an_unknown_version_is_refused(cloud_builder: CloudBuilder) -> None:
    with pytest.raises(Refusal, match=r"unsupported Kubernetes version 1\.40"):
        cloud_builder.cluster(cloud_builder.network(), version="1.40")


def test_a_control_plane_waits_for_the_nodes_of_its_own_version(cloud_builder: CloudBuilder) -> None:
    nodes = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=0)
    change(cloud_builder, cluster_of(cloud_builder), version="1.36")
    with pytest.raises(Refusal, match=r"work must have the cluster's version 1\.36"):
        change(cloud_builder, cluster_of(cloud_builder), version="1.37")
    change(cloud_builder, nodes, version="1.36")
    assert change(cloud_builder, cluster_of(cloud_builder), version="1.37").outputs["version"] == "1.37"


def test_new_nodes_have_the_version_of_the_control_plane_and_its_newest_release_unless_one_is_set(
    cloud_builder: CloudBuilder,
) -> None:
    subnets = cloud_builder.node_group_requirements()
    assert cloud_builder.nodes(subnets, "newest", desired=0).outputs["releaseVersion"] == NEW
    assert cloud_builder.nodes(subnets, "said", desired=0, releaseVersion=OLD).outputs["releaseVersion"] == OLD
    with pytest.raises(Refusal, match=r"made with the cluster's version 1\.35"):
        cloud_builder.nodes(subnets, "old", desired=0, version="1.34")
    with pytest.raises(Refusal, match=r"not valid for kubernetes version 1\.35"):
        cloud_builder.nodes(subnets, "wrong", desired=0, releaseVersion="1.36.1-20261110")


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
    cloud_builder: CloudBuilder, inputs: dict[str, str], message: str
) -> None:
    nodes = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=0)
    with pytest.raises(Refusal, match=message):
        change(cloud_builder, nodes, **inputs)


def test_a_new_launch_template_version_takes_nodes_to_the_newest_release_of_the_control_plane(
    cloud_builder: CloudBuilder,
) -> None:
    template = cloud_builder.make(LAUNCH_TEMPLATE, name="plain")
    first, second = ({"id": template.id, "version": version} for version in ("1", "2"))
    nodes = cloud_builder.nodes(
        cloud_builder.node_group_requirements(), desired=0, releaseVersion=OLD, launchTemplate=first
    )
    assert change(cloud_builder, nodes, labels={"a": "b"}).outputs["releaseVersion"] == OLD
    change(cloud_builder, template, ebsOptimized="true")
    change(cloud_builder, cluster_of(cloud_builder), version="1.36")
    moved = change(cloud_builder, nodes, launchTemplate=second)
    assert (moved.outputs["version"], moved.outputs["releaseVersion"]) == ("1.36", "1.36.1-20261110")


def test_an_add_on_keeps_its_version_until_another_is_set_that_fits_the_control_plane(
    cloud_builder: CloudBuilder,
) -> None:
    cloud_builder.node_group_requirements()
    (proxy,) = [each for each in cloud_builder.cloud.records.of(ADDON) if each.inputs["addonName"] == "kube-proxy"]
    with pytest.raises(Refusal, match="Addon version specified is not supported"):
        change(cloud_builder, proxy, addonVersion="v1.36.1-eksbuild.2")
    change(cloud_builder, cluster_of(cloud_builder), version="1.36")
    assert change(cloud_builder, proxy, tags={"a": "b"}).outputs["addonVersion"] == "v1.35.1-eksbuild.2"
    assert (
        change(cloud_builder, proxy, addonVersion="v1.36.1-eksbuild.2").outputs["addonVersion"] == "v1.36.1-eksbuild.2"
    )


def test_a_version_that_is_set_as_it_is_already_changes_nothing(cloud_builder: CloudBuilder) -> None:
    nodes = cloud_builder.nodes(cloud_builder.node_group_requirements(), desired=0)
    resource, settings = (
        ResourceRequest(NODE_GROUP, "it", nodes.urn),
        {**nodes.inputs, "version": "1.35", "releaseVersion": NEW},
    )
    assert cloud_builder.aws.changed(resource, nodes.inputs, settings, nodes.outputs) == []
    assert cloud_builder.aws.changed(resource, settings, nodes.inputs, nodes.outputs) == []
    older = {**settings, "releaseVersion": OLD}
    assert cloud_builder.aws.changed(resource, settings, older, nodes.outputs) == ["releaseVersion"]


def test_a_preview_of_a_change_keeps_what_the_service_answered(cloud_builder: CloudBuilder) -> None:
    cluster = cloud_builder.cluster(cloud_builder.network())
    resource = ResourceRequest(CLUSTER, "it", cluster.urn)
    planned = cloud_builder.aws.planned(resource, {**cluster.inputs, "version": "1.36"}, cluster.outputs)
    assert planned["vpcConfig"]["clusterSecurityGroupId"] == cluster.outputs["vpcConfig"]["clusterSecurityGroupId"]
    assert (planned["version"], planned["endpoint"]) == ("1.36", cluster.outputs["endpoint"])
