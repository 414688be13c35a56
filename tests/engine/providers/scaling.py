"""Sizes of node groups as they move in AWS: by an autoscaler, by EKS, and at their Auto Scaling groups.

What each does: `tests/cloud/account/management.py`, botocore's model of `eks` (NodegroupScalingConfig), and
`resourceNodeGroupUpdate` of the Terraform provider, which sends the whole scaling block as planned where any of it
differs from the state, `desired_size` included, and a version update where the launch template does.
"""

from collections.abc import Mapping
from typing import Any

from spotmpi.aws.scaling import CLUSTER_TAG
from tests.cloud.account import answers
from tests.cloud.account.management import AutoScaling, resized
from tests.engine.providers.aws_cluster import SCALING_TAG
from tests.engine.providers.aws_network import NODE_GROUP
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.records import Record, Refusal

# What makes EKS replace every node of a group, besides its launch template.
_VERSIONS = ("releaseVersion", "version")


def sizes(group: Record) -> tuple[int, int, int]:
    """The minimum, desired and maximum size of a group."""
    size = group.inputs["scalingConfig"]
    return size["minSize"], size["desiredSize"], size["maxSize"]


def scaling_group(group: Record) -> str:
    """The name of a node group's Auto Scaling group."""
    return str(group.outputs["resources"][0]["autoscalingGroups"][0]["name"])


def scaling_groups(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """The Auto Scaling groups of node groups, by name, as AWS describes them; EKS tags them with the cluster's name."""
    described = AutoScaling()
    groups = {scaling_group(each): each for each in cloud.records.of(NODE_GROUP)}
    tags = {name: {CLUSTER_TAG: str(each.inputs["clusterName"])} for name, each in groups.items()}
    for tag in cloud.records.of(SCALING_TAG):
        if own := tags.get(tag.inputs["autoscalingGroupName"]):
            own[tag.inputs["tag"]["key"]] = tag.inputs["tag"]["value"]
    for name, each in groups.items():
        low, desired, high = sizes(each)
        described.add(name, tags[name], high, desired)
        described.groups[name]["MinSize"] = low
    return described.groups


def node_group(cloud: Cloud, stem: str) -> Record:
    """The one node group whose name is *stem* with Pulumi's seven digits behind it, or nothing."""
    groups = [
        group
        for group in cloud.records.of(NODE_GROUP)
        if stem in (name := str(group.inputs["nodeGroupName"]), name[: -len("-0123456")])
    ]
    assert len(groups) == 1, f"{stem}: {[group.id for group in groups]}"
    return groups[0]


def autoscale(cloud: Cloud, stem: str, nodes: int) -> None:
    """Do what the Cluster Autoscaler does: ask for so many nodes, within the sizes of the group."""
    with cloud.lock:
        group = node_group(cloud, stem)
        low, _, high = sizes(group)
        assert low <= nodes <= high, f"the autoscaler keeps {stem} within {low} and {high}"
        _put(cloud, group, desiredSize=nodes)


def resize(cloud: Cloud, name: str, changes: Mapping[str, int]) -> None:
    """UpdateAutoScalingGroup on the records of node groups."""
    with cloud.lock:
        group = next((each for each in cloud.records.of(NODE_GROUP) if scaling_group(each) == name), None)
        if group is None:
            raise Refusal(f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")
        try:
            low, desired, high = resized(sizes(group), changes)
        except answers.Refusal as refusal:
            raise Refusal(refusal.message) from None
        if (ended := sizes(group)[1] - desired) > 0:
            cloud.terminated.append((group.id, ended))
        _put(cloud, group, minSize=low, desiredSize=desired, maxSize=high)


def sizes_to_send(group: Record, planned: dict[str, Any], state: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """What an update makes of a node group, with its sizes as they are where none are sent, and the nodes that end."""
    _, running, _ = sizes(group)
    versions = any(planned.get(key) not in (None, state.get(key)) for key in _VERSIONS)
    replaced = running if versions or planned.get("launchTemplate") != state.get("launchTemplate") else 0
    if planned["scalingConfig"] == state["scalingConfig"]:
        return {**planned, "scalingConfig": group.inputs["scalingConfig"]}, replaced
    check(planned["scalingConfig"])
    return planned, max(replaced, running - planned["scalingConfig"]["desiredSize"])


def check(size: Mapping[str, int]) -> None:
    """Refuse what EKS refuses; its words are those of terraform-aws-eks#3306 and cloud-platform-infrastructure#4595."""
    low, desired, high = size["minSize"], size["desiredSize"], size["maxSize"]
    if low > desired:
        raise Refusal(f"InvalidParameterException: Minimum capacity {low} can't be greater than desired size {desired}")
    if desired > high:
        raise Refusal("InvalidParameterException: desiredSize can't be greater than maxSize")


def _put(cloud: Cloud, group: Record, **changes: int) -> None:
    size = {**group.inputs["scalingConfig"], **changes}
    inputs, outputs = {**group.inputs, "scalingConfig": size}, {**group.outputs, "scalingConfig": size}
    cloud.records.change(group, inputs=inputs, outputs=outputs)
