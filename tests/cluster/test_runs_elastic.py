"""A run that may have fewer nodes, on a real cluster: it goes on without a lost one, and grows once that is back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.backends.kubernetes.follow.jobset import RUNNING
from spotmpi.checkpoint.store import read
from spotmpi.programs.checkpoint import parameters_checksum
from tests.cluster.runs import Runs, digits, local_events, parameters
from tests.tools import IS_OLDEST

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(500)]

EPOCHS = 2000  # the run is stopped once it has grown


@pytest.fixture
def cordoned(runs: Runs) -> Iterator[Runs]:
    """Runs whose nodes take pods again at the end."""
    try:
        yield runs
    finally:
        for node in runs.testbed.nodes:
            runs.testbed.kubectl("uncordon", node.name)


@pytest.mark.skipif(IS_OLDEST, reason="several sizes need JobSet 0.12")
def test_a_run_goes_on_on_one_node_and_grows_again_with_the_parameters_of_a_fixed_gang(
    cordoned: Runs, tmp_path: Path
) -> None:
    testbed = cordoned.testbed
    run = cordoned.start(digits(EPOCHS, nodes=[1, 2], checkpoint={"every": "1s"}))
    run.until_iteration(20)
    run.until("a checkpoint", lambda event: event.values.get("kind") == "checkpoint")
    observed = len(run.events)
    node_0 = run.pod(0)["metadata"]["uid"]
    for node in testbed.nodes:
        testbed.kubectl("cordon", node.name)
    testbed.evict(run.pod(1)["metadata"]["name"], cordoned.namespace)

    assert run.until_attempt(2, observed).values["nodes"] == 1
    run.until_iteration(21, attempt=2)
    waiting = run.until("why the other pod waits", lambda event: "goes on without" in (event.reason or ""), observed)
    assert waiting.values[RUNNING], "it trains meanwhile"
    state = cordoned.backend.state(run.id)
    assert state.state == "running", state

    for node in testbed.nodes:
        testbed.kubectl("uncordon", node.name)
    assert run.until_attempt(3, observed).values["nodes"] == 2
    run.until_iteration(1, attempt=3)
    assert run.pod(0)["metadata"]["uid"] == node_0, "only the lost pod was replaced"
    cordoned.backend.stop(run.id, "seen", now=False)
    assert run.end().kind == "stopped", run.recent_events()

    summary = run.summary()
    assert [each["world"]["size"] for each in summary["attempts"]] == [2, 1, 2]
    assert (summary["failures"], summary["interruptions"]) == (0, 2)
    reasons = [event.reason for event in run.events if event.kind == record.RESTARTED]
    assert reasons[1] == "2 nodes are ready: continues on 2 instead of 1"
    assert [each.get("lost_iterations") for each in summary["attempts"]] == [None, 0, 0]
    # Two parts that one rank adds up are, bit for bit, what two ranks add up.
    last = [event.values for event in run.events if event.values.get("kind") == "checkpoint"][-1]
    assert last["reason"] == "notice"
    state = read(str(run.folder / "checkpoints" / f"iteration-{last['iteration']:09d}"))
    fixed = {**digits(), "args": ["--global-batch", "64", "--iterations", str(last["iteration"])]}
    assert parameters_checksum(state) == parameters(local_events(fixed, tmp_path / "fixed"))
    run.wait_until_gone()
