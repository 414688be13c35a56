"""The versions of the stand-in EKS, called directly: what passes, and what the real service would refuse."""

import pytest

from tests.engine.cloud_builder import CloudBuilder
from tests.engine.providers.aws_cluster import ADDON
from tests.engine.providers.aws_network import CLUSTER, LAUNCH_TEMPLATE, NODE_GROUP
from tests.engine.providers.cloud import ResourceRequest
from tests.engine.providers.records import Refusal

OLD, NEW = "1.35.2-20260901", "1.35.4-20261110"


def test_a_control_plane_goes_up_one_minor_version_at_a_time(builder: CloudBuilder) -> None:
    cluster = builder.cluster()
    assert cluster.outputs["version"] == "1.35"
    for version in ("1.37", "1.34", "1.40"):
        with pytest.raises(Refusal, match=f"Unsupported Kubernetes minor version update from 1.35 to {version}"):
            builder.change(cluster, version=version)
    assert builder.change(cluster, version="1.36").outputs["version"] == "1.36"


def test_a_control_plane_of_an_unknown_version_is_refused(builder: CloudBuilder) -> None:
    with pytest.raises(Refusal, match=r"unsupported Kubernetes version 1\.40"):
        builder.cluster(version="1.40")


def test_a_control_plane_waits_for_the_nodes_of_its_own_version(eks: CloudBuilder) -> None:
    nodes = eks.nodes(desired=0)
    eks.change(eks.only(CLUSTER), version="1.36")
    with pytest.raises(Refusal, match=r"work must have the cluster's version 1\.36"):
        eks.change(eks.only(CLUSTER), version="1.37")
    eks.change(nodes, version="1.36")
    assert eks.change(eks.only(CLUSTER), version="1.37").outputs["version"] == "1.37"


def test_new_nodes_have_the_version_of_the_control_plane_and_its_newest_release_unless_one_is_set(
    eks: CloudBuilder,
) -> None:
    assert eks.nodes("newest", desired=0).outputs["releaseVersion"] == NEW
    assert eks.nodes("said", desired=0, releaseVersion=OLD).outputs["releaseVersion"] == OLD
    with pytest.raises(Refusal, match=r"made with the cluster's version 1\.35"):
        eks.nodes("old", desired=0, version="1.34")
    with pytest.raises(Refusal, match=r"not valid for kubernetes version 1\.35"):
        eks.nodes("wrong", desired=0, releaseVersion="1.36.1-20261110")


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
    eks: CloudBuilder, inputs: dict[str, str], message: str
) -> None:
    nodes = eks.nodes(desired=0)
    with pytest.raises(Refusal, match=message):
        eks.change(nodes, **inputs)


def test_a_new_launch_template_version_takes_nodes_to_the_newest_release_of_the_control_plane(
    eks: CloudBuilder,
) -> None:
    template = eks.make(LAUNCH_TEMPLATE, name="plain")
    first, second = ({"id": template.id, "version": version} for version in ("1", "2"))
    nodes = eks.nodes(desired=0, releaseVersion=OLD, launchTemplate=first)
    assert eks.change(nodes, labels={"a": "b"}).outputs["releaseVersion"] == OLD
    eks.change(template, ebsOptimized="true")
    eks.change(eks.only(CLUSTER), version="1.36")
    moved = eks.change(nodes, launchTemplate=second)
    assert (moved.outputs["version"], moved.outputs["releaseVersion"]) == ("1.36", "1.36.1-20261110")


def test_an_add_on_keeps_its_version_until_another_is_set_that_fits_the_control_plane(eks: CloudBuilder) -> None:
    (proxy,) = [each for each in eks.cloud.records.of(ADDON) if each.inputs["addonName"] == "kube-proxy"]
    with pytest.raises(Refusal, match="Addon version specified is not supported"):
        eks.change(proxy, addonVersion="v1.36.1-eksbuild.2")
    eks.change(eks.only(CLUSTER), version="1.36")
    assert eks.change(proxy, tags={"a": "b"}).outputs["addonVersion"] == "v1.35.1-eksbuild.2"
    assert eks.change(proxy, addonVersion="v1.36.1-eksbuild.2").outputs["addonVersion"] == "v1.36.1-eksbuild.2"


def test_a_version_that_is_set_as_it_is_already_changes_nothing(eks: CloudBuilder) -> None:
    nodes = eks.nodes(desired=0)
    resource = ResourceRequest(NODE_GROUP, "it", nodes.urn)
    settings = {**nodes.inputs, "version": "1.35", "releaseVersion": NEW}
    assert eks.aws.changed(resource, nodes.inputs, settings, nodes.outputs) == []
    assert eks.aws.changed(resource, settings, nodes.inputs, nodes.outputs) == []
    older = {**settings, "releaseVersion": OLD}
    assert eks.aws.changed(resource, settings, older, nodes.outputs) == ["releaseVersion"]


def test_a_preview_of_a_change_keeps_what_the_service_answered(builder: CloudBuilder) -> None:
    cluster = builder.cluster()
    resource = ResourceRequest(CLUSTER, "it", cluster.urn)
    planned = builder.aws.planned(resource, {**cluster.inputs, "version": "1.36"}, cluster.outputs)
    assert planned["vpcConfig"]["clusterSecurityGroupId"] == cluster.outputs["vpcConfig"]["clusterSecurityGroupId"]
    assert (planned["version"], planned["endpoint"]) == ("1.36", cluster.outputs["endpoint"])
