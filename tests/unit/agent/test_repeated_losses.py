"""A node that is lost again and again, as one is whose pod is killed for memory, ends a run that makes no progress."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any, cast

import pytest

from spotmpi.agent import limits, protocol
from spotmpi.agent.schema import AttemptRecord
from tests.unit.agent.gang import LIMIT, Gang, has_printed, kinds


def lost(*nodes: int, **values: Any) -> AttemptRecord:
    attempt = {"cause": "interruption", "lost_nodes": list(nodes), "last_iteration": None, **values}
    return cast(AttemptRecord, attempt)


LOSSES = limits.MAX_LOSSES


def test_a_node_that_is_lost_too_often_is_named() -> None:
    assert limits.repeatedly_lost_node([lost(1)] * (LOSSES - 1)) is None
    assert limits.repeatedly_lost_node([lost(1)] * LOSSES) == 1
    assert limits.repeatedly_lost_node([lost(2, 1)] * LOSSES) == 1


def test_other_interruptions_in_between_change_nothing() -> None:
    between = [lost(), lost(2), lost(cause="failure")]
    assert limits.repeatedly_lost_node([attempt for _ in range(LOSSES) for attempt in [lost(1), *between]]) == 1


def test_different_nodes_are_not_one() -> None:
    assert limits.repeatedly_lost_node([lost(node % 3) for node in range(3 * LOSSES - 3)]) is None


@pytest.mark.parametrize("key", ["last_iteration", "resumed_iteration", "checkpoint_iteration"])
def test_a_run_that_makes_progress_may_lose_a_node_any_number_of_times(key: str) -> None:
    assert limits.repeatedly_lost_node([lost(1, **{key: number}) for number in range(100)]) is None


def test_the_same_iterations_again_are_no_progress() -> None:
    first = lost(1, last_iteration=500, checkpoint_iteration=300)
    again = lost(1, last_iteration=490, resumed_iteration=300)
    assert limits.repeatedly_lost_node([first, *[again] * (LOSSES - 2)]) is None
    assert limits.repeatedly_lost_node([first, *[again] * (LOSSES - 1)]) == 1
    further = lost(1, last_iteration=501, resumed_iteration=300)
    assert limits.repeatedly_lost_node([first, *[again] * (LOSSES - 2), further, again]) is None


@pytest.mark.parametrize("node", [0, 1])
def test_a_pod_that_is_killed_at_every_attempt_ends_the_run_with_and_without_node_0(
    gang: Callable[..., Gang], node: int
) -> None:
    """With ``memory.oom.group``, which kubelets set under cgroup version 2, the kernel kills the agent as well."""
    run = gang("sh", "-c", "echo ready; exec sleep 60", started=0)
    for generation in range(LOSSES):
        for each in (0, 1):
            run.start(each, generation)
        run.until("its program", functools.partial(has_printed, run, node, generation))
        run.agents[node].kill()
        codes = run.codes()
        is_last_loss = node == 1 and generation == LOSSES - 1
        assert codes == [
            -signal.SIGKILL if node == 0 else protocol.NOT_RETRYABLE if is_last_loss else protocol.INTERRUPTED,
            -signal.SIGKILL if node == 1 else protocol.INTERRUPTED,
        ]
    if node == 0:  # its successor records it
        run.start(0, LOSSES)
        assert run.agents[0].wait(LIMIT) == protocol.NOT_RETRYABLE
    last = run.events(0, LOSSES - node)
    assert kinds(last)[-1] == "failed"
    assert f"node {node} was lost {LOSSES} times without notice and the run made no progress" in str(last[-1].reason)


def test_notice_is_no_loss(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "echo ready; exec sleep 60")
    run.printed("ready", 1)
    run.agents[1].send_signal(signal.SIGTERM)
    assert run.agents[0].wait(LIMIT) == protocol.INTERRUPTED
    assert run.attempt()["lost_nodes"] == []
