"""Every ready stack, in the real engine, from nothing to nothing."""

import json

import pytest

from tests.engine.journey import Journey
from tests.engine.providers.aws_cluster import ADDON, SCALING_TAG
from tests.engine.providers.aws_network import CLUSTER, GATEWAY, LAUNCH_TEMPLATE, NAT, NODE_GROUP, ROUTE, SUBNET, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM, MOUNT_TARGET

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(900)]


def test_a_preview_passes_the_guardrails_and_makes_nothing(journey: Journey) -> None:
    stage = journey["preview"]
    assert stage.outcome.status == 0, stage.outcome.text
    assert "spotmpi-guardrails" in stage.outcome.text
    assert stage.existing == journey["before"].existing
    assert all(call.preview for call in stage.calls if call.method in ("create", "update", "delete"))


def test_a_preview_announces_exactly_what_up_makes(journey: Journey) -> None:
    announced = {(step.token, step.name) for step in journey["preview"].outcome.done("create")}
    half, rest = journey["broken up"].outcome, journey["up"].outcome
    made = {(step.token, step.name) for step in (*half.done("create"), *rest.done("create"))}
    assert announced == made


def test_a_failure_in_the_middle_is_told(journey: Journey) -> None:
    outcome = journey["broken up"].outcome
    assert outcome.status != 0
    assert "create was told to fail" in outcome.text


def test_up_after_a_failure_finishes_and_makes_nothing_twice(journey: Journey) -> None:
    assert journey["up"].outcome.status == 0, journey["up"].outcome.text
    made = journey["broken up"].changed("create") + journey["up"].changed("create")
    assert len(made) == len(set(made))
    assert not journey["up"].changed("delete")


def test_up_again_changes_nothing(journey: Journey) -> None:
    stage = journey["same up"]
    assert stage.outcome.status == 0, stage.outcome.text
    assert stage.outcome.changes == []
    assert [call for call in stage.calls if call.method in ("create", "update", "delete")] == []


def test_one_number_changes_one_group(journey: Journey) -> None:
    stage = journey["bigger"]
    assert stage.outcome.status == 0, stage.outcome.text
    assert stage.changed("update") == [(SCALING_TAG, f"spotmpi-{journey.stack}-{journey.group}-sizes")]
    assert not stage.changed("create")
    assert not stage.changed("delete")


def test_a_failed_destroy_is_finished_by_the_next(journey: Journey) -> None:
    assert journey["broken destroy"].outcome.status != 0
    assert journey["destroy"].outcome.status == 0, journey["destroy"].outcome.text


def test_nothing_is_left_but_what_was_there_before(journey: Journey) -> None:
    assert journey["destroy"].existing == journey["before"].existing
    assert journey.leftovers == []


def test_each_thing_goes_before_what_it_stands_on(journey: Journey) -> None:
    gone = journey["broken destroy"].changed("delete") + journey["destroy"].changed("delete")
    tokens = [token for token, _ in gone]
    names = [name for _, name in gone]
    last_nodes = max(place for place, token in enumerate(tokens) if token == NODE_GROUP)
    system = gone.index((NODE_GROUP, f"spotmpi-{journey.stack}-system"))
    for token in (CLUSTER, LAUNCH_TEMPLATE, ROUTE, GATEWAY, NAT, SUBNET, VPC):
        assert all(place > last_nodes for place, other in enumerate(tokens) if other == token), token
    for addon in ("vpc-cni", "kube-proxy"):
        assert names.index(f"spotmpi-{journey.stack}-{addon}") > last_nodes
    for addon in ("coredns", "metrics-server", "aws-efs-csi-driver"):
        assert gone.index((ADDON, f"spotmpi-{journey.stack}-{addon}")) < system
    group = gone.index((NODE_GROUP, f"spotmpi-{journey.stack}-{journey.group}"))
    assert tokens.index(MOUNT_TARGET) > group  # nodes that drain hang in mounts without their target
    if FILE_SYSTEM in tokens:
        assert tokens.index(MOUNT_TARGET) < tokens.index(FILE_SYSTEM)


def test_kubernetes_objects_go_with_the_cluster_instead_of_one_by_one(journey: Journey) -> None:
    gone = journey["broken destroy"].changed("delete") + journey["destroy"].changed("delete")
    assert [token for token, _ in gone if token.startswith("kubernetes:")] == []


def test_no_secret_is_exported(journey: Journey) -> None:
    text = json.dumps(journey.outputs)
    assert journey.outputs["cluster"] == f"spotmpi-{journey.stack}"
    for secret in ("PRIVATE KEY", "current-context", "[secret]"):
        assert secret not in text
