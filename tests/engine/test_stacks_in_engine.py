"""Every ready stack, in the real engine, from nothing to nothing."""

import json

import pytest

from tests.engine.providers.aws_cluster import ADDON, SCALING_TAG
from tests.engine.providers.aws_network import CLUSTER, GATEWAY, LAUNCH_TEMPLATE, NAT, NODE_GROUP, ROUTE, SUBNET, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM, MOUNT_TARGET
from tests.engine.stack_lifecycle import StackLifecycle

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(900)]


def test_a_preview_passes_the_guardrails_and_makes_nothing(stack_lifecycle: StackLifecycle) -> None:
    stage = stack_lifecycle["preview"]
    stage.outcome.require_success()
    assert "spotmpi-guardrails" in stage.outcome.text
    assert stage.existing == stack_lifecycle["before"].existing
    assert all(call.preview for call in stage.calls if call.method in ("create", "update", "delete"))


def test_a_preview_announces_exactly_the_changes_of_up(stack_lifecycle: StackLifecycle) -> None:
    announced = {(step.token, step.name) for step in stack_lifecycle["preview"].outcome.with_operation("create")}
    half, rest = stack_lifecycle["broken up"].outcome, stack_lifecycle["up"].outcome
    created = {(step.token, step.name) for step in (*half.with_operation("create"), *rest.with_operation("create"))}
    assert announced == created


def test_a_failure_in_the_middle_is_reported(stack_lifecycle: StackLifecycle) -> None:
    outcome = stack_lifecycle["broken up"].outcome
    assert outcome.status != 0
    assert "create: injected fault" in outcome.text


def test_up_after_a_failure_finishes_and_makes_nothing_twice(stack_lifecycle: StackLifecycle) -> None:
    stack_lifecycle["up"].outcome.require_success()
    created = stack_lifecycle["broken up"].changed("create") + stack_lifecycle["up"].changed("create")
    assert len(created) == len(set(created))
    assert not stack_lifecycle["up"].changed("delete")


def test_up_again_changes_nothing(stack_lifecycle: StackLifecycle) -> None:
    stage = stack_lifecycle["same up"]
    stage.outcome.require_success()
    assert stage.outcome.changes == []
    assert [call for call in stage.calls if call.method in ("create", "update", "delete")] == []


def test_one_number_changes_one_group(stack_lifecycle: StackLifecycle) -> None:
    stage = stack_lifecycle["bigger"]
    stage.outcome.require_success()
    assert stage.changed("update") == [(SCALING_TAG, f"spotmpi-{stack_lifecycle.stack}-{stack_lifecycle.group}-sizes")]
    assert not stage.changed("create")
    assert not stage.changed("delete")


def test_a_failed_destroy_is_finished_by_the_next(stack_lifecycle: StackLifecycle) -> None:
    stack_lifecycle["broken destroy"].outcome.require_failure()
    stack_lifecycle["destroy"].outcome.require_success()


def test_nothing_is_left_that_was_not_there_before(stack_lifecycle: StackLifecycle) -> None:
    assert stack_lifecycle["destroy"].existing == stack_lifecycle["before"].existing
    assert stack_lifecycle.leftovers == []


def test_each_resource_is_deleted_before_what_it_depends_on(stack_lifecycle: StackLifecycle) -> None:
    deleted = stack_lifecycle["broken destroy"].changed("delete") + stack_lifecycle["destroy"].changed("delete")
    tokens = [token for token, _ in deleted]
    names = [name for _, name in deleted]
    last_nodes = max(place for place, token in enumerate(tokens) if token == NODE_GROUP)
    system = deleted.index((NODE_GROUP, f"spotmpi-{stack_lifecycle.stack}-system"))
    for token in (CLUSTER, LAUNCH_TEMPLATE, ROUTE, GATEWAY, NAT, SUBNET, VPC):
        assert all(place > last_nodes for place, other in enumerate(tokens) if other == token), token
    for addon in ("vpc-cni", "kube-proxy"):
        assert names.index(f"spotmpi-{stack_lifecycle.stack}-{addon}") > last_nodes
    for addon in ("coredns", "metrics-server", "aws-efs-csi-driver"):
        assert deleted.index((ADDON, f"spotmpi-{stack_lifecycle.stack}-{addon}")) < system
    group = deleted.index((NODE_GROUP, f"spotmpi-{stack_lifecycle.stack}-{stack_lifecycle.group}"))
    assert tokens.index(MOUNT_TARGET) > group  # nodes that drain hang in mounts without their target
    if FILE_SYSTEM in tokens:
        assert tokens.index(MOUNT_TARGET) < tokens.index(FILE_SYSTEM)


def test_kubernetes_objects_go_with_the_cluster_instead_of_one_by_one(stack_lifecycle: StackLifecycle) -> None:
    deleted = stack_lifecycle["broken destroy"].changed("delete") + stack_lifecycle["destroy"].changed("delete")
    assert [token for token, _ in deleted if token.startswith("kubernetes:")] == []


def test_no_secret_is_exported(stack_lifecycle: StackLifecycle) -> None:
    text = json.dumps(stack_lifecycle.outputs)
    assert stack_lifecycle.outputs["cluster"] == f"spotmpi-{stack_lifecycle.stack}"
    for secret in ("PRIVATE KEY", "current-context", "[secret]"):
        assert secret not in text
