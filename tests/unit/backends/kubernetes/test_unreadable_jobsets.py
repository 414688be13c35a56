"""A JobSet that this version cannot read, such as a newer version's, does not affect other runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spotmpi
from spotmpi.backends.targets import Target
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments import cost
from spotmpi.plan import cluster_plan, manifests
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import RUN, jobset
from tests.cloud.cluster.store import Object

pytestmark = pytest.mark.usefixtures("a_run")

OTHER = "other-1"


def newer_jobset(suspend: bool = False) -> Object:
    """Give a run of a version whose specs have one more key."""
    spec = json.dumps({"command": ["x"], "kubernetes": {"turbo": True}})
    annotations = {cluster_plan.ANNOTATION_SPEC: spec, manifests.ANNOTATION_OWNER: "her"}
    return jobset(age=3600, suspend=suspend, name=OTHER, annotations=annotations)


def test_an_unreadable_jobset_has_a_line_in_the_list(runs: Path, cluster: FakeCluster) -> None:
    """Both runs are listed, without a traceback for everybody in the namespace."""
    cluster.put(newer_jobset())
    first, second = spotmpi.list_runs(Target("kubernetes", runs))
    assert (first.id, first.state, first.over) == (OTHER, "unknown", False)
    assert str(first.reason).startswith(f"this version cannot read JobSet {OTHER} (kubernetes.turbo: Extra inputs are")
    assert (second.id, second.state) == (RUN, "running")


def test_a_run_without_an_owner_is_listed(runs: Path, cluster: FakeCluster) -> None:
    run = cluster.get("JobSet", RUN)
    del run["metadata"]["annotations"][manifests.ANNOTATION_OWNER]
    cluster.put(run)
    assert [(state.state, state.owner) for state in spotmpi.list_runs(Target("kubernetes", runs))] == [
        ("running", None)
    ]


def test_an_unreadable_run_has_a_state_and_can_be_stopped_but_not_followed(runs: Path, cluster: FakeCluster) -> None:
    cluster.clear("JobSet")
    cluster.clear("Pod")
    cluster.put(newer_jobset())
    target = Target("kubernetes", runs)
    assert (spotmpi.status(OTHER, target).state, spotmpi.status(OTHER, target).owner) == ("unknown", "her")
    with pytest.raises(SpotmpiError, match="upgrade spotmpi"):
        list(spotmpi.logs(OTHER, True, target))
    assert spotmpi.stop(OTHER, on=target).state == "stopped"
    assert cluster.deleted == [OTHER]


def test_a_suspended_jobset_of_another_version_is_not_an_abandoned_submission(runs: Path, cluster: FakeCluster) -> None:
    """The run stays queued; listing runs does not delete it for its unknown parts."""
    cluster.put(newer_jobset(suspend=True))
    spotmpi.list_runs(Target("kubernetes", runs))
    assert cluster.deleted == []


def test_the_cost_of_an_environment_names_runs_that_cannot_be_read(runs: Path, cluster: FakeCluster) -> None:
    cluster.put(newer_jobset())
    (note,) = cost._fetch_runs(Target("kubernetes", runs))
    assert note.startswith(f"nodes of {OTHER} count as idle: this version cannot read JobSet {OTHER}")
