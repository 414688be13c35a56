"""A JobSet that this version cannot read (of a newer version, or of somebody else) stands for itself alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import spotmpi
from spotmpi.backends.kubernetes import backend
from spotmpi.backends.targets import Target
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments import cost
from spotmpi.plan import manifests
from tests.unit.backends.kubernetes.watched_cluster import RUN, FakeCluster, Object, jobset, pod

OTHER = "other-1"


def newer() -> Object:
    """Give a run of a version whose specs have one more key."""
    values = {"command": ["x"], "kubernetes": {"turbo": True}}
    return other({manifests.ANNOTATION_SPEC: json.dumps(values), manifests.ANNOTATION_OWNER: "her"})


def other(annotations: dict[str, str] | None, suspend: bool = False) -> Object:
    found = jobset(age=3600, suspend=suspend)
    found["metadata"] |= {"name": OTHER, "annotations": annotations}
    return found


UNREADABLE: dict[str, Callable[[], Object]] = {
    f"this version cannot read JobSet {OTHER} (kubernetes.turbo: Extra inputs are not permitted); upgrade": newer,
    f"JobSet {OTHER} has no annotation spotmpi.dev/spec; `kubectl describe": lambda: other(None),
    f"annotation spotmpi.dev/spec of JobSet {OTHER} is not JSON": lambda: other({manifests.ANNOTATION_SPEC: "{"}),
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The cluster of every context: it has the run, whose node 0 trains."""
    there = FakeCluster([pod(0, "Running")], [jobset()])
    monkeypatch.setattr(backend, "ClusterApi", lambda context, namespace: there)
    return there


@pytest.mark.parametrize("reason", UNREADABLE)
def test_a_jobset_that_cannot_be_read_has_a_line_of_its_own_in_the_list(
    runs: Path, cluster: FakeCluster, reason: str
) -> None:
    """It works: two rows. It fails: a traceback for everybody in the namespace."""
    cluster.jobsets.append(UNREADABLE[reason]())
    first, second = spotmpi.list_runs(Target("kubernetes", runs))
    assert (first.id, first.state, first.over) == (OTHER, "unknown", False)
    assert str(first.reason).startswith(reason)
    assert (second.id, second.state) == (RUN, "running")


def test_a_missing_owner_is_no_reason_not_to_show_a_run(runs: Path, cluster: FakeCluster) -> None:
    del cluster.jobsets[0]["metadata"]["annotations"][manifests.ANNOTATION_OWNER]
    assert [(state.state, state.owner) for state in spotmpi.list_runs(Target("kubernetes", runs))] == [
        ("running", None)
    ]


def test_a_run_that_cannot_be_read_has_a_state_can_be_stopped_and_cannot_be_followed(
    runs: Path, cluster: FakeCluster
) -> None:
    cluster.jobsets[:], cluster.pods[:] = [newer()], []
    where = Target("kubernetes", runs)
    assert (spotmpi.status(OTHER, where).state, spotmpi.status(OTHER, where).owner) == ("unknown", "her")
    with pytest.raises(SpotmpiError, match="upgrade spotmpi"):
        list(spotmpi.logs(OTHER, True, where))
    assert spotmpi.stop(OTHER, on=where).state == "stopped"
    assert cluster.deleted == [OTHER]


def test_a_suspended_jobset_of_another_version_is_not_taken_for_a_broken_submission(
    runs: Path, cluster: FakeCluster
) -> None:
    """It works: left to its queue. It fails: deleted by whoever lists runs, for it has no parts of a name we know."""
    cluster.jobsets.append(other(newer()["metadata"]["annotations"], suspend=True))
    spotmpi.list_runs(Target("kubernetes", runs))
    assert cluster.deleted == []


def test_the_cost_of_an_environment_says_whose_nodes_it_cannot_tell(runs: Path, cluster: FakeCluster) -> None:
    cluster.jobsets.append(newer())
    (note,) = cost._fetch_runs(Target("kubernetes", runs))
    assert note.startswith(f"nodes of {OTHER} count as idle: this version cannot read JobSet {OTHER}")
