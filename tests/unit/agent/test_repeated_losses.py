"""A node that is lost again and again, as one is whose pod is killed for memory, ends a run that makes no progress."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable

import pytest

from spotmpi.agent import limits, protocol
from tests.unit.agent.gang import LIMIT, Gang, has_printed, kinds

LOSSES = limits.MAX_LOSSES


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
