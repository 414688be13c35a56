"""Environments with several zones: what each zone gets, what stays as it is, and what exists once."""

from __future__ import annotations

from ipaddress import IPv4Network

import pulumi
import pytest

from infra import addresses
from infra.checks import find_warnings
from tests.infra.mock_engine import TODAY, Recording, run, settings_of
from tests.infra.mock_engine import run_with_data_stack as with_data_stack

A, B, C = ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
REGIONAL, OWN = {"one_zone": False}, {"keep": False}


def declared(recording: Recording) -> dict[str, object]:
    return {resource.urn: dict(resource.inputs) for resource in recording.resources}


def growth(stack: str, **values: object) -> dict[str, list[str]]:
    """The names of what three zones add to one, by type."""
    one, three = run(stack, **values), run(stack, zones=ZONES, **values)
    added: dict[str, list[str]] = {}
    for resource in three.resources:
        if resource.urn not in declared(one):
            added.setdefault(resource.kind.split(":")[-1], []).append(resource.name.removeprefix(f"spotmpi-{stack}-"))
    return {kind: sorted(names) for kind, names in added.items()}


def test_each_zone_gets_a_group_a_placement_group_and_a_template_of_its_own() -> None:
    added = growth("p3", storage=OWN)
    groups = ["p3-b", "p3-c", "p3-spread-b", "p3-spread-c"]
    assert added.pop("Tag") == sorted(
        f"{group}-{tag}"
        for group in groups
        for tag in (
            *("label/spotmpi.dev/role", "label/spotmpi.dev/group", "label/nvidia.com/gpu.present", "sizes"),
            *("label/k8s.amazonaws.com/accelerator", "taint/nvidia.com/gpu", "resources/nvidia.com/gpu"),
        )
    )
    assert added == {
        "LaunchTemplate": groups,
        "NodeGroup": sorted([*groups, *groups]),  # the component, and the group of EKS
        "PlacementGroup": ["p3-b", "p3-c"],
        "RouteTableAssociation": ["nodes-c"],
        "Subnet": ["nodes-c"],
    }


@pytest.mark.parametrize("values", [{}, {"network": {"private": True}}, {"storage": REGIONAL}])
def test_nothing_of_an_environment_with_one_zone_changes_but_the_autoscalers_table_and_the_mount(
    values: dict[str, object],
) -> None:
    one, three = declared(run("lab", **values)), declared(run("lab", zones=ZONES, **values))
    changed = {urn.split("::")[2].split(":")[-1] for urn in one if one[urn] != three.get(urn)}
    assert changed == {"Release"} | ({"PersistentVolume"} if "storage" not in values else set())


def test_a_group_is_in_one_subnet_and_carries_the_name_with_the_letter_of_its_zone() -> None:
    recording = run("p3", zones=ZONES, storage=OWN)
    subnets = {resource.name: resource.inputs["availabilityZone"] for resource in recording.of("Subnet")}
    assert subnets == {"spotmpi-p3-nodes": A, "spotmpi-p3-second": B, "spotmpi-p3-nodes-c": C}
    groups = recording.node_groups
    assert {name: group.inputs["subnetIds"] for name, group in groups.items() if "spread" not in name} == {
        "system": ["spotmpi-p3-nodes-id"],
        "p3": ["spotmpi-p3-nodes-id"],
        "p3-b": ["spotmpi-p3-second-id"],
        "p3-c": ["spotmpi-p3-nodes-c-id"],
    }
    labels = {name: group.inputs["labels"]["spotmpi.dev/group"] for name, group in groups.items() if name != "system"}
    assert all(name == label for name, label in labels.items())
    assert recording.one("LaunchTemplate", "spotmpi-p3-p3-b").inputs["placement"] == {"groupName": "spotmpi-p3-p3-b"}
    assert [(each["name"], each.get("group"), each["zone"]) for each in recording.exports["node_groups"]] == [
        *(("p3", None, A), ("p3-b", "p3", B), ("p3-c", "p3", C)),
        *(("p3-spread", None, A), ("p3-spread-b", "p3-spread", B), ("p3-spread-c", "p3-spread", C)),
    ]
    assert recording.exports["zone"] == A


def test_a_group_may_be_in_some_of_the_zones_and_eks_keeps_its_two_subnets() -> None:
    group = {"name": "g5", "type": "g5.xlarge", "max": 500, "zones": [B]}
    recording = run("lab", zones=[A, B, C], groups=[group, {**group, "name": "g6", "type": "g6.xlarge", "zones": [A]}])
    assert set(recording.node_groups) == {"system", "g5-b", "g5-b-2", "g6", "g6-2"}
    assert recording.one("eks:index:Cluster").inputs["subnetIds"] == ["spotmpi-lab-nodes-id", "spotmpi-lab-second-id"]


def test_private_nodes_of_all_zones_share_the_nat_gateway_of_the_first() -> None:
    recording = run("g5", zones=ZONES, storage=OWN)
    assert recording.one("NatGateway").inputs["subnetId"] == "spotmpi-g5-gateway-id"
    tables = {each.inputs["subnetId"]: each.inputs["routeTableId"] for each in recording.of("RouteTableAssociation")}
    assert tables["spotmpi-g5-nodes-c-id"] == tables["spotmpi-g5-nodes-id"] == "spotmpi-g5-private-id"
    routes = {resource.urn for kind in ("Route", "RouteTableAssociation") for resource in recording.of(kind)}
    assert all(routes <= group.depends_on for group in recording.node_groups.values())


def test_regional_storage_has_a_mount_target_in_each_zone_before_any_node() -> None:
    recording = run("lab", zones=ZONES, storage=REGIONAL)
    targets = {each.name: each.inputs["subnetId"] for each in recording.of("MountTarget")}
    assert targets == {
        "spotmpi-lab": "spotmpi-lab-nodes-id",
        "spotmpi-lab-b": "spotmpi-lab-second-id",
        "spotmpi-lab-c": "spotmpi-lab-nodes-c-id",
    }
    mounts = {each.urn for each in recording.of("MountTarget")}
    assert all(mounts <= group.depends_on for name, group in recording.node_groups.items() if name != "system")
    assert recording.one("PersistentVolume").inputs["spec"]["mountOptions"] == ["noresvport"]


def test_one_zone_storage_is_mounted_in_its_zone_from_all_and_the_crossing_is_said() -> None:
    recording = run("lab", zones=ZONES)
    assert [each.inputs["subnetId"] for each in recording.of("MountTarget")] == ["spotmpi-lab-nodes-id"]
    assert recording.one("PersistentVolume").inputs["spec"]["mountOptions"] == ["noresvport", f"az={A}"]
    (warning,) = find_warnings(settings_of("lab", zones=ZONES), TODAY)
    assert warning.startswith(
        "spotmpi:zones: nodes in us-east-1b and us-east-1c reach the storage in us-east-1a across"
    )
    assert (
        find_warnings(settings_of("lab", zones=ZONES, storage=REGIONAL), TODAY)
        == find_warnings(settings_of("lab"), TODAY)
        == []
    )


@pytest.mark.parametrize(
    ("zone", "one_zone", "message"),
    [
        (None, True, "is in all zones: set storage.one_zone of g5 to false"),
        (A, False, "is in us-east-1a alone: set storage.one_zone of g5 to true"),
    ],
)
def test_storage_of_a_data_stack_is_mounted_as_it_is(zone: str | None, one_zone: bool, message: str) -> None:
    outputs = {"zone": zone, "file_system_id": "fs-1", "access_point_id": "fsap-1"}
    with pytest.raises(pulumi.RunError, match=message):
        with_data_stack("g5", outputs, zones=ZONES, storage={"keep": True, "one_zone": one_zone})
    fitting = {"keep": True, "one_zone": not one_zone}
    recording = with_data_stack("g5", outputs, zones=ZONES, storage=fitting)
    assert len(recording.of("MountTarget")) == (3 if zone is None else 1)


@pytest.mark.parametrize("prefix", range(16, 25))
def test_the_subnet_of_a_zone_depends_on_its_letter_alone(prefix: int) -> None:
    plan = addresses.plan(f"10.0.0.0/{prefix}")
    of_all = plan.of_zones([A, *(f"us-east-1{letter}" for letter in "fedcb")], B)
    parts = [*of_all.values(), plan.gateway]
    assert len(of_all) == 6 and all(part.subnet_of(IPv4Network(f"10.0.0.0/{prefix}")) for part in parts)
    assert not any(one.overlaps(other) for one in parts for other in parts if one is not other)
    for zones in ([A], [A, C], [A, "us-east-1f", B]):
        assert plan.of_zones(zones, B) == {zone: of_all[zone] for zone in zones}
