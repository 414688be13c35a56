"""What is left of a run once its pods are gone: told and brought from the run volume, from any terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.core import names
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from spotmpi.runs import reader as runs
from tests.cluster.runs import FollowedRun, Runs, digits, parameters, runs_in
from tests.testbed.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(300)]


@pytest.fixture
def here(testbed: Cluster, runs_namespace: str, tmp_path: Path) -> Iterator[Runs]:
    with runs_in(testbed, runs_namespace, tmp_path / "copies") as runs:
        yield runs


def test_a_late_terminal_is_told_and_brought_all_of_a_run_whose_pods_are_gone(here: Runs, tmp_path: Path) -> None:
    first = here.start(digits(epochs=2, checkpoint={"every": "1s"}))
    assert first.end().kind == "succeeded", first.recent_events()
    here.testbed.kubectl("delete", "pods", "-n", here.namespace, "-l", f"{names.LABEL_RUN}={first.id}")

    elsewhere = here.in_another_terminal(tmp_path / "another terminal")
    late = FollowedRun(elsewhere, first.id)
    assert late.end().kind == "succeeded", late.recent_events()
    assert parameters(late.events) == parameters(first.events)
    assert late.lines() == first.lines()

    said: list[str] = []
    paths = names.RunPaths(elsewhere.backend.pull(first.id, said.append))
    assert runs.state(paths).state == "succeeded"
    assert list(paths.checkpoints.rglob("*.npz")), list(paths.folder.rglob("*"))
    assert not here.testbed.get("pods", "-n", here.namespace, "-l", LABEL_PURPOSE)["items"]


@pytest.mark.nightly("a late terminal reads the volume in the other test")
def test_a_run_that_was_deleted_is_brought_by_the_terminal_that_started_it(here: Runs) -> None:
    run = here.start(digits(epochs=200, checkpoint={"every": "1s"}))
    run.until_iteration(60)
    here.backend.stop(run.id, "enough", now=False)
    assert run.end().kind == "stopped", run.recent_events()
    run.wait_until_gone()

    paths = names.RunPaths(here.backend.pull(run.id, lambda text: None))
    assert list(paths.checkpoints.rglob("*.npz")), list(paths.folder.rglob("*"))
    assert runs.state(paths).state == "stopped" and paths.spec.read_text() == here_spec(run)


def here_spec(run: FollowedRun) -> str:
    return (run.folder / "spec.toml").read_text()
