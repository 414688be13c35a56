"""The record of a run without pods: read and pulled from the run volume by any terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.core import names
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from spotmpi.runs import reader
from tests.cluster.runs import FollowedRun, Runs, digits, parameters

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(300)]


def test_a_late_terminal_gets_the_whole_record_of_a_run_without_pods(runs: Runs, tmp_path: Path) -> None:
    first = runs.start(digits(epochs=2, checkpoint={"every": "1s"}))
    assert first.end().kind == "succeeded", first.recent_events()
    runs.testbed.kubectl("delete", "pods", "-n", runs.namespace, "-l", f"{names.LABEL_RUN}={first.id}")

    other_terminal = runs.in_another_terminal(tmp_path / "another terminal")
    late = FollowedRun(other_terminal, first.id)
    assert late.end().kind == "succeeded", late.recent_events()
    assert parameters(late.events) == parameters(first.events)
    assert late.lines() == first.lines()

    messages: list[str] = []
    paths = names.RunPaths(other_terminal.backend.pull(first.id, messages.append))
    assert reader.state(paths).state == "succeeded"
    assert list(paths.checkpoints.rglob("*.safetensors")), list(paths.folder.rglob("*"))
    assert not runs.testbed.get("pods", "-n", runs.namespace, "-l", LABEL_PURPOSE)["items"]


@pytest.mark.nightly("a late terminal reads the volume in the other test")
def test_a_deleted_run_is_pulled_by_the_terminal_that_started_it(runs: Runs) -> None:
    run = runs.start(digits(epochs=200, checkpoint={"every": "1s"}))
    run.until_iteration(60)
    runs.backend.stop(run.id, "enough", now=False)
    assert run.end().kind == "stopped", run.recent_events()
    run.wait_until_gone()

    paths = names.RunPaths(runs.backend.pull(run.id, lambda text: None))
    assert list(paths.checkpoints.rglob("*.safetensors")), list(paths.folder.rglob("*"))
    assert reader.state(paths).state == "stopped" and paths.spec.read_text() == (run.folder / "spec.toml").read_text()
