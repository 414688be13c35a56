"""Node groups: machines in one zone that come from zero, and what the autoscaler must know of them."""

from __future__ import annotations

from base64 import b64decode
from email import message_from_bytes
from email.message import Message
from typing import Any

import pytest
import yaml

from infra.names import eks_groups
from infra.settings import Group
from tests.infra.mock_engine import run

P4D = {"name": "p4d", "type": "p4d.24xlarge", "max": 4, "efa": True}


def test_a_gpu_group_is_spot_in_one_zone_of_one_type_and_leaves_its_size_to_the_autoscaler() -> None:
    group = run("p3").node_groups["p3"]
    expected = {
        "scalingConfig": {"desiredSize": 0, "minSize": 0, "maxSize": 8},
        "capacityType": "SPOT",
        "instanceTypes": ["p3.2xlarge"],
        "amiType": "AL2023_x86_64_NVIDIA",
        "subnetIds": ["spotmpi-p3-nodes-id"],
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}],
        # An update of versions needs no additional capacity.
        "updateConfig": {"maxUnavailablePercentage": 100, "updateStrategy": "MINIMAL"},
    }
    assert {key: group.inputs[key] for key in expected} == expected
    assert group.inputs["nodeRepairConfig"]["enabled"] is True
    assert (group.ignore_changes, group.delete_timeout) == (("scalingConfig",), "30m")


def test_cpu_groups_have_a_taint_of_their_own_and_no_gpu_label() -> None:
    inputs = run("cpu").node_groups["c6i"].inputs
    assert inputs["amiType"] == "AL2023_x86_64_STANDARD"
    assert inputs["taints"] == [{"key": "spotmpi.dev/work", "value": "present", "effect": "NO_SCHEDULE"}]
    assert inputs["labels"] == {"spotmpi.dev/role": "work", "spotmpi.dev/group": "c6i"}


def test_the_autoscaler_knows_labels_taint_and_gpus_of_an_empty_group() -> None:
    tags: dict[str, dict[str, str]] = {}
    for resource in run("p3").of("aws:autoscaling/tag:Tag"):
        tag = resource.inputs["tag"]
        key = tag["key"].removeprefix("k8s.io/cluster-autoscaler/node-template/")
        tags.setdefault(resource.inputs["autoscalingGroupName"], {})[key] = tag["value"]
    assert tags.pop("eks-spotmpi-p3-system-asg") == {"spotmpi:nodes": "2-3"}
    assert set(tags) == {"eks-spotmpi-p3-p3-asg", "eks-spotmpi-p3-p3-spread-asg"}
    assert tags["eks-spotmpi-p3-p3-asg"] == {
        "label/spotmpi.dev/role": "gpu",
        "label/spotmpi.dev/group": "p3",
        "label/nvidia.com/gpu.present": "true",
        "label/k8s.amazonaws.com/accelerator": "v100",
        "taint/nvidia.com/gpu": "present:NoSchedule",
        "resources/nvidia.com/gpu": "1",
        "spotmpi:nodes": "0-8",
    }


def test_a_machine_is_closed_encrypted_and_tagged() -> None:
    inputs = run("p3").one("LaunchTemplate", "spotmpi-p3-p3").inputs
    metadata = {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 1}
    assert inputs["metadataOptions"] == metadata
    disk = inputs["blockDeviceMappings"][0]["ebs"]
    assert (disk["encrypted"], disk["volumeType"]) == ("true", "gp3")
    kinds = {entry["resourceType"]: entry["tags"] for entry in inputs["tagSpecifications"]}
    assert set(kinds) == {"instance", "volume", "network-interface"}
    assert all(tags["spotmpi:environment"] == "spotmpi-p3" for tags in kinds.values())


def test_a_launch_template_has_no_input_that_a_managed_group_refuses() -> None:
    refused = {"instanceType", "instanceMarketOptions", "iamInstanceProfile", "imageId"}
    assert not [resource.name for resource in run("p3").of("LaunchTemplate") if refused & set(resource.inputs)]


def test_a_placement_group_exists_only_if_set_and_is_named_by_the_engine_so_that_regions_never_clash() -> None:
    placement_group = run("p3").one("PlacementGroup").inputs
    assert placement_group["strategy"] == "cluster" and "name" not in placement_group
    templates = {each.name: each.inputs.get("placement") for each in run("p3").of("LaunchTemplate")}
    assert templates["spotmpi-p3-p3"] == {"groupName": "spotmpi-p3-p3"}
    assert templates["spotmpi-p3-p3-spread"] is None
    assert run("lab").of("PlacementGroup") == []
    assert all("placement" not in resource.inputs for resource in run("lab").of("LaunchTemplate"))


def test_groups_of_one_environment_share_neither_template_nor_placement() -> None:
    recording = run("g5")
    assert {resource.name for resource in recording.of("PlacementGroup")} == {"spotmpi-g5-g5", "spotmpi-g5-g6"}
    assert len({group.inputs["launchTemplate"]["id"] for group in recording.node_groups.values()}) == 4


def test_efa_puts_one_adapter_on_each_network_card_in_a_group_of_peers() -> None:
    recording = run("g5", groups=[P4D])
    interfaces = recording.one("LaunchTemplate", "spotmpi-g5-p4d").inputs["networkInterfaces"]
    places = [(card["networkCardIndex"], card["deviceIndex"]) for card in interfaces]
    assert places == [(0, 0), (1, 1), (2, 1), (3, 1)]
    assert [card["interfaceType"] for card in interfaces] == ["efa", "efa-only", "efa-only", "efa-only"]
    assert all(card["securityGroups"] == ["sg-cluster", "spotmpi-g5-p4d-efa-id"] for card in interfaces)
    for direction in ("SecurityGroupIngressRule", "SecurityGroupEgressRule"):
        rule = recording.one(direction, "spotmpi-g5-p4d-efa").inputs
        assert rule["securityGroupId"] == rule["referencedSecurityGroupId"] == "spotmpi-g5-p4d-efa-id"


def test_a_first_network_card_without_efa_has_an_ordinary_interface() -> None:
    recording = run("g5", groups=[{"name": "b300", "type": "p6-b300.48xlarge", "max": 2, "efa": True}])
    interfaces = recording.one("LaunchTemplate", "spotmpi-g5-b300").inputs["networkInterfaces"]
    assert [card["networkCardIndex"] for card in interfaces] == list(range(17))
    assert [card["interfaceType"] for card in interfaces] == ["interface", *["efa-only"] * 16]


@pytest.mark.parametrize(
    ("kind", "image", "accelerator"),
    [
        ("c7g.xlarge", "AL2023_ARM_64_STANDARD", None),
        ("c7a.xlarge", "AL2023_x86_64_STANDARD", None),
        ("g5g.xlarge", "AL2023_ARM_64_NVIDIA", "t4g"),
        # A label's value has no spaces.
        ("g7e.2xlarge", "AL2023_x86_64_NVIDIA", "rtx-pro-server-6000"),
    ],
)
def test_nodes_boot_the_image_of_their_processor_and_gpu(kind: str, image: str, accelerator: str | None) -> None:
    inputs = run("lab", groups=[{"name": "g", "type": kind, "max": 1}]).node_groups["g"].inputs
    assert inputs["amiType"] == image
    assert inputs["labels"].get("k8s.amazonaws.com/accelerator") == accelerator


def disk(kind: str, **group: Any) -> tuple[int, int, str | None]:
    """Throughput and IOPS of the root disk of a machine, and its user data."""
    recording = run("lab", groups=[{"name": "g", "type": kind, "max": 1, **group}])
    inputs = recording.one("LaunchTemplate", "spotmpi-lab-g").inputs
    ebs = inputs["blockDeviceMappings"][0]["ebs"]
    return ebs["throughput"], ebs["iops"], inputs.get("userData")


def test_images_are_on_local_disks_or_on_a_faster_root_disk_where_gpus_wait_for_them() -> None:
    throughput, iops, user_data = disk("g4dn.xlarge")
    assert (throughput, iops) == (125, 3000) and user_data is not None
    parts = message_from_bytes(b64decode(user_data)).get_payload()
    assert isinstance(parts, list)
    (part,) = parts
    assert isinstance(part, Message) and part.get_content_type() == "application/node.eks.aws"
    assert yaml.safe_load(str(part.get_payload())) == {
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {"instance": {"localStorage": {"strategy": "RAID0"}}},
    }
    assert disk("g4dn.xlarge", local_disks=False) == (500, 3000, None)
    assert disk("p3.2xlarge") == (500, 3000, None)
    assert disk("c6i.xlarge") == (125, 3000, None)
    assert disk("c6i.xlarge", disk_throughput=1000) == (1000, 4000, None)


def test_without_efa_there_are_no_interfaces_peers_or_plugin() -> None:
    recording = run("p3")
    assert all("networkInterfaces" not in resource.inputs for resource in recording.of("LaunchTemplate"))
    assert [resource.name for resource in recording.of("SecurityGroup")] == ["spotmpi-p3-nfs"]
    assert not [resource for resource in recording.of("Release") if "efa" in resource.name]


def test_on_demand_gpus_are_tagged_for_the_guardrails() -> None:
    dear: dict[str, Any] = {"name": "g5", "type": "g5.xlarge", "max": 1, "market": "on-demand"}
    group = run("lab", groups=[dear], accelerators={"on_demand": True}).node_groups["g5"].inputs
    assert (group["capacityType"], group["tags"]["spotmpi:on-demand-gpus"]) == ("ON_DEMAND", "requested")
    assert "spotmpi:on-demand-gpus" not in run("lab").node_groups["g4dn"].inputs["tags"]


BLOCK = {
    "name": "block",
    "type": "p5.48xlarge",
    "max": 4,
    "market": "capacity-block",
    "reservation": "cr-0123456789abcdef0",
}


def test_a_group_in_a_capacity_block_has_what_eks_requires_of_its_template_and_no_placement_group() -> None:
    recording = run("g5", groups=[BLOCK])
    template, group = recording.one("LaunchTemplate", "spotmpi-g5-block").inputs, recording.node_groups["block"].inputs
    assert template["instanceType"] == "p5.48xlarge" and "instanceTypes" not in group
    assert template["instanceMarketOptions"] == {"marketType": "capacity-block"}
    assert template["capacityReservationSpecification"] == {
        "capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"}
    }
    assert group["capacityType"] == "CAPACITY_BLOCK" and group["scalingConfig"]["desiredSize"] == 0
    assert recording.of("PlacementGroup") == [] and "placement" not in template
    (exported,) = recording.exports["node_groups"]
    assert (exported["market"], exported["reservation"], exported["placement_group"]) == (
        "capacity-block",
        "cr-0123456789abcdef0",
        False,
    )


def test_queues_share_no_nodes_of_a_capacity_block() -> None:
    queues = {"enabled": True, "teams": [{"name": "a", "gpus": 2}]}
    groups = [{"name": "g5", "type": "g5.xlarge", "max": 2}]
    alone, beside = (run("g5", groups=each, queueing=queues).of("ClusterQueue") for each in (groups, [*groups, BLOCK]))
    assert [each.inputs["spec"] for each in alone] == [each.inputs["spec"] for each in beside]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, {"g": (0, 1)}),
        (0, 450, {"g": (0, 450)}),
        (0, 512, {"g": (0, 450), "g-2": (0, 62)}),
        (500, 1000, {"g": (450, 450), "g-2": (50, 450), "g-3": (0, 100)}),
    ],
)
def test_a_group_past_the_quota_is_split_without_changing_its_first_part(
    low: int, high: int, expected: dict[str, tuple[int, int]]
) -> None:
    assert eks_groups(Group(name="g", type="g5.xlarge", min=low, max=high)) == expected


def test_all_parts_of_a_split_group_share_placement_label_and_template() -> None:
    recording = run("lab", groups=[{"name": "g5", "type": "g5.xlarge", "max": 512}])
    parts = {name: part.inputs for name, part in recording.node_groups.items() if name != "system"}
    assert set(parts) == {"g5", "g5-2"}
    assert {part["labels"]["spotmpi.dev/group"] for part in parts.values()} == {"g5"}
    templates = {part["launchTemplate"]["id"] for part in parts.values()}
    assert len(templates) == len(recording.of("PlacementGroup")) == 1
    tagged = {resource.inputs["autoscalingGroupName"] for resource in recording.of("aws:autoscaling/tag:Tag")}
    assert tagged == {f"eks-spotmpi-lab-{name}-asg" for name in ("g5", "g5-2", "system")}


def test_a_bigger_group_changes_nothing_but_its_own_maximum() -> None:
    group = {"name": "g4dn", "type": "g4dn.xlarge", "placement_group": False}
    small, big = (run("lab", groups=[{**group, "max": size}]) for size in (2, 40))
    before, after = ({resource.urn: resource.inputs for resource in recording.resources} for recording in (small, big))
    assert before.keys() == after.keys()
    changed = [urn for urn in before if before[urn] != after[urn]]
    assert [urn.split("::")[-1] for urn in changed] == ["spotmpi-lab-g4dn", "spotmpi-lab-g4dn-sizes"]
    sizes = {"desiredSize": 0, "minSize": 0, "maxSize": 40}
    assert after[changed[0]] == {**before[changed[0]], "scalingConfig": sizes}  # which an update ignores
    tag = {"key": "spotmpi:nodes", "value": "0-40", "propagateAtLaunch": False}
    assert after[changed[1]] == {**before[changed[1]], "tag": tag}
