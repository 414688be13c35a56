"""What goes wrong around an environment, in the real engine: each ends with a clear message or a way on."""

import time

import pytest

from tests.engine.engine import Engine
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP
from tests.engine.providers.cloud import Cloud
from tests.engine.stack_lifecycle import ACCESS, prepare

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(600)]


def test_a_killed_up_leaves_a_lock_that_cancel_lifts_and_the_next_up_finishes(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "lab")
    slow = cloud.script.slow("create", NODE_GROUP, 120, times=2)
    process = engine.start("up", "--stack", "lab", "--yes", "--skip-preview")
    while slow.matched < 2 or not engine.state_is_stable("lab"):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    slow.times = 0
    engine.kill(process)
    locked = engine.up("lab").require_failure()
    assert "currently locked" in locked.text
    engine.run("cancel", "--yes", "--stack", "lab").require_success()
    engine.run("refresh", "--yes", "--skip-preview", "--clear-pending-creates", "--stack", "lab").require_success()
    engine.up("lab").require_success()
    created = cloud.script.changed("create")
    assert len(created) == len(set(created))
    engine.destroy("lab").require_success()
    assert len(cloud.records) == 0


def test_a_cluster_that_is_gone_does_not_block_destroy(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "lab")
    engine.up("lab").require_success()
    (cluster,) = cloud.records.of(CLUSTER)
    for record in cloud.records:
        if record.inputs.get("clusterName") == cluster.id or record.key == cluster.key:
            cloud.records.delete(record)
    engine.destroy("lab").require_success()
    assert len(cloud.records) == 0


def test_every_problem_of_the_settings_is_reported_at_once_and_nothing_is_made(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "cpu")
    engine.configure("cpu", {"spotmpi:zone": "eu-west-1a", "spotmpi:network": {"cidr": "8.8.0.0/16"}})
    refused = engine.up("cpu").require_failure()
    assert "eu-west-1a" in refused.text
    assert "8.8.0.0/16" in refused.text
    assert "Traceback" not in refused.text
    assert cloud.script.changes() == []


def test_persistent_storage_must_exist_first(engine: Engine, cloud: Cloud) -> None:
    engine.init("p3", {"spotmpi:access": ACCESS})
    refused = engine.up("p3").require_failure()
    assert "p3-data" in refused.text
