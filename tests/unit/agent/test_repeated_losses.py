"""A node that is lost again and again, as one is whose pod is killed for memory, ends a run that gets no further."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any

import pytest

from spotmpi.agent import protocol, repeated_losses
from tests.unit.agent.gang import LIMIT, Gang, has_printed, kinds


def lost(*nodes: int, **values: Any) -> dict[str, Any]:
    return {"cause": "interruption", "lost_nodes": list(nodes), "last_iteration": None, **values}


AGAIN = repeated_losses.LIMIT


def test_a_node_that_is_lost_too_often_is_named() -> None:
    assert repeated_losses.node([lost(1)] * (AGAIN - 1)) is None
    assert repeated_losses.node([lost(1)] * AGAIN) == 1
    assert repeated_losses.node([lost(2, 1)] * AGAIN) == 1


def test_other_interruptions_in_between_change_nothing() -> None:
    between = [lost(), lost(2), {"cause": "failure", "last_iteration": None}]
    assert repeated_losses.node([attempt for _ in range(AGAIN) for attempt in [lost(1), *between]]) == 1


def test_different_nodes_are_not_one() -> None:
    assert repeated_losses.node([lost(node % 3) for node in range(3 * AGAIN - 3)]) is None


@pytest.mark.parametrize("key", ["last_iteration", "resumed_iteration", "checkpoint_iteration"])
def test_a_run_that_gets_further_may_lose_a_node_as_often_as_it_likes(key: str) -> None:
    assert repeated_losses.node([lost(1, **{key: number}) for number in range(100)]) is None


def test_the_same_iterations_again_are_no_progress() -> None:
    first = lost(1, last_iteration=500, checkpoint_iteration=300)
    again = lost(1, last_iteration=490, resumed_iteration=300)
    assert repeated_losses.node([first, *[again] * (AGAIN - 2)]) is None
    assert repeated_losses.node([first, *[again] * (AGAIN - 1)]) == 1
    further = lost(1, last_iteration=501, resumed_iteration=300)
    assert repeated_losses.node([first, *[again] * (AGAIN - 2), further, again]) is None


@pytest.mark.parametrize("node", [0, 1])
def test_a_pod_that_is_killed_at_every_attempt_ends_the_run_whoever_looks_on(
    gang: Callable[..., Gang], node: int
) -> None:
    """With ``memory.oom.group``, which kubelets set under cgroup version 2, the kernel kills the agent as well."""
    run = gang("sh", "-c", "echo ready; exec sleep 60", started=0)
    for generation in range(AGAIN):
        for each in (0, 1):
            run.start(each, generation)
        run.until("its program", functools.partial(has_printed, run, node, generation))
        run.agents[node].kill()
        codes = run.codes()
        ends_here = node == 1 and generation == AGAIN - 1
        assert codes == [
            -signal.SIGKILL if node == 0 else protocol.NOT_RETRYABLE if ends_here else protocol.INTERRUPTED,
            -signal.SIGKILL if node == 1 else protocol.INTERRUPTED,
        ]
    if node == 0:  # its successor tells
        run.start(0, AGAIN)
        assert run.agents[0].wait(LIMIT) == protocol.NOT_RETRYABLE
    last = run.said(0, AGAIN - node)
    assert kinds(last)[-1] == "failed"
    assert f"node {node} was lost {AGAIN} times without notice and the run got no further" in str(last[-1].reason)


def test_notice_is_no_loss(gang: Callable[..., Gang]) -> None:
    run = gang("sh", "-c", "echo ready; exec sleep 60")
    run.printed("ready", 1)
    run.agents[1].send_signal(signal.SIGTERM)
    assert run.agents[0].wait(LIMIT) == protocol.INTERRUPTED
    assert run.attempt()["lost_nodes"] == []
