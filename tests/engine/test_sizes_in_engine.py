"""Sizes of node groups in the real engine, while an autoscaler moves them between two updates."""

import pytest

from tests.engine.engine import Engine
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.scaling import autoscale, node_group, sizes
from tests.engine.stack_lifecycle import prepare

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(600)]
GROUP = "spotmpi-cpu-c6i"


def configure(engine: Engine, **changes: object) -> None:
    """Change keys of the only group of the stack `cpu`."""
    (group,) = engine.config("cpu")["spotmpi:groups"]
    engine.configure("cpu", {"spotmpi:groups": [{**group, **changes}]})


def terminated_counts(cloud: Cloud) -> list[int]:
    """The nodes of the only group of the stack `cpu` that ended while they ran."""
    return [nodes for group, nodes in cloud.terminated if GROUP in group]


def test_new_sizes_never_end_a_running_node(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "cpu")
    configure(engine, max=8)
    engine.up("cpu").require_success()
    assert sizes(node_group(cloud, GROUP)) == (0, 0, 8)

    # The autoscaler moves what Pulumi's state has at 0.
    autoscale(cloud, GROUP, 5)
    configure(engine, max=16)
    engine.up("cpu").require_success()
    assert sizes(node_group(cloud, GROUP)) == (0, 5, 16)

    # A smaller maximum is refused while more nodes run, in the preview already, and nothing is changed.
    configure(engine, max=4)
    cloud.script.calls.clear()
    for refused in (engine.preview("cpu"), engine.up("cpu")):
        assert refused.status != 0
        assert "group c6i has 5 running nodes, and the new max 4 would terminate 1 of them" in refused.text
    assert cloud.script.changes() == []
    assert sizes(node_group(cloud, GROUP)) == (0, 5, 16)

    # A minimum above what the state has, and above what runs, starts nodes.
    autoscale(cloud, GROUP, 1)
    configure(engine, max=16, min=2)
    engine.up("cpu").require_success()
    assert sizes(node_group(cloud, GROUP)) == (2, 2, 16)

    # A refreshed state makes no difference, to the system nodes either.
    autoscale(cloud, "spotmpi-cpu-system", 3)
    engine.run("refresh", "--yes", "--skip-preview", "--stack", "cpu").require_success()
    autoscale(cloud, GROUP, 6)
    configure(engine, max=32, min=0)
    engine.up("cpu").require_success()
    assert sizes(node_group(cloud, GROUP)) == (0, 6, 32)
    assert sizes(node_group(cloud, "spotmpi-cpu-system")) == (2, 3, 3)
    assert not terminated_counts(cloud)
    assert engine.up("cpu").changes == []
    engine.destroy("cpu").require_success()
    assert len(cloud.records) == 0


@pytest.mark.nightly("an environment of its own; test_up holds the refusal and what lifts it without an engine")
def test_running_nodes_are_replaced_only_if_allowed(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "cpu")
    engine.up("cpu").require_success()
    autoscale(cloud, GROUP, 3)
    engine.configure("cpu", {"spotmpi:tags": {"team": "vision"}})
    for refused in (engine.preview("cpu"), engine.up("cpu")):
        assert refused.status != 0
        assert "group c6i has 3 running nodes; the change of its launch template" in refused.text
    assert not terminated_counts(cloud)

    # Without nodes there is nothing to lose.
    autoscale(cloud, GROUP, 0)
    engine.up("cpu").require_success()
    assert engine.up("cpu").changes == []

    autoscale(cloud, GROUP, 3)
    configure(engine, disk_gib=120)
    engine.up("cpu").require_failure()
    engine.environment = {"SPOTMPI_REPLACE_NODES": "1"}
    engine.up("cpu").require_success()
    assert terminated_counts(cloud) == [3]

    # Another type is another group, which is created before the old one goes.
    autoscale(cloud, GROUP, 2)
    configure(engine, type="c6i.2xlarge")
    engine.environment = {}
    for refused in (engine.preview("cpu"), engine.up("cpu")):
        assert refused.status != 0
        assert "group c6i has 2 running nodes; the change of what can't change in place" in refused.text
    assert terminated_counts(cloud) == [3]
    autoscale(cloud, GROUP, 0)
    engine.up("cpu").require_success()
    assert node_group(cloud, GROUP).inputs["instanceTypes"] == ["c6i.2xlarge"] and terminated_counts(cloud) == [3]
