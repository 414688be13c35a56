"""An environment that grows from one zone to three and shrinks again, in the real engine, while its nodes run."""

from __future__ import annotations

import pytest

from tests.engine.engine import Engine
from tests.engine.providers.aws_network import NODE_GROUP, PLACEMENT_GROUP, SUBNET, zone_of
from tests.engine.providers.aws_services import FILE_SYSTEM, MOUNT_TARGET
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.scaling import autoscale, node_group, sizes
from tests.engine.stack_lifecycle import prepare

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(600)]
GROUP = "spotmpi-cpu-c6i"
ZONES = ["us-east-1a", "us-east-1b", "us-east-1c"]


def zones_of_groups(cloud: Cloud) -> dict[str, str]:
    """The one zone of each node group by its name, without the prefix of the environment."""
    subnets = {record.id: zone_of(record.inputs) for record in cloud.records.of(SUBNET)}
    zones = {}
    for record in cloud.records.of(NODE_GROUP):
        (subnet,) = record.inputs["subnetIds"]
        zones[record.urn.split("::")[-1].removeprefix("spotmpi-cpu-")] = subnets[subnet]
    return zones


@pytest.mark.parametrize(
    "one_zone", [True, pytest.param(False, marks=pytest.mark.nightly("the same with a mount target in each zone"))]
)
def test_an_environment_grows_to_three_zones_and_back_and_loses_nothing(
    engine: Engine, cloud: Cloud, one_zone: bool
) -> None:
    prepare(engine, "cpu")
    (group,) = engine.config("cpu")["spotmpi:groups"]
    grouped = {**group, "placement_group": True}
    engine.configure("cpu", {"spotmpi:groups": [grouped], "spotmpi:storage": {"one_zone": one_zone}})
    engine.up("cpu").require_success()
    autoscale(cloud, GROUP, 3)
    before = {record.key: record.inputs for record in cloud.records}

    engine.configure("cpu", {"spotmpi:zones": ZONES})
    cloud.script.calls.clear()
    engine.up("cpu").require_success()
    changed = {(call.method, call.token.split(":")[-1]) for call in cloud.script.changes() if not call.preview}
    updated = {("update", "Release")} | ({("update", "PersistentVolume")} if one_zone else set())
    assert {each for each in changed if each[0] != "create"} == updated
    assert sizes(node_group(cloud, GROUP)) == (0, 3, 4) and not cloud.terminated
    kept = {record.key: record.inputs for record in cloud.records}
    assert before.keys() <= kept.keys()
    assert all(before[record.key] == record.inputs for record in cloud.records.of(FILE_SYSTEM))
    assert zones_of_groups(cloud) == {"system": ZONES[0], "c6i": ZONES[0], "c6i-b": ZONES[1], "c6i-c": ZONES[2]}
    assert len(cloud.records.of(PLACEMENT_GROUP)) == 3
    assert len(cloud.records.of(MOUNT_TARGET)) == (1 if one_zone else 3)
    assert engine.up("cpu").changes == []
    outputs = engine.outputs("cpu")
    assert [(each.get("group"), each["name"], each["zone"]) for each in outputs["node_groups"]] == [
        (None, "c6i", ZONES[0]),
        ("c6i", "c6i-b", ZONES[1]),
        ("c6i", "c6i-c", ZONES[2]),
    ]

    # Without the zone in the middle no other moves.
    engine.configure("cpu", {"spotmpi:zones": [ZONES[0], ZONES[2]]})
    engine.up("cpu").require_success()
    assert zones_of_groups(cloud) == {"system": ZONES[0], "c6i": ZONES[0], "c6i-c": ZONES[2]}
    engine.configure("cpu", {"spotmpi:zones": ZONES[:1]})
    engine.up("cpu").require_success()
    assert {record.key: record.inputs for record in cloud.records} == before
    assert sizes(node_group(cloud, GROUP)) == (0, 3, 4) and not cloud.terminated
    engine.destroy("cpu").require_success()
    assert len(cloud.records) == 0 and cloud.leftovers == []
