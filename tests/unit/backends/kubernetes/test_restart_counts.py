"""How many attempts a run on a cluster has had, also while no pod of it can tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.backends.kubernetes import backend
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.follow.jobset import add_restart_counts
from spotmpi.core.names import RunPaths
from spotmpi.plan import manifests
from spotmpi.plan.cluster import cached_plan
from spotmpi.runs import cache, reader
from spotmpi.runs.reader import RunState
from tests.unit.backends.kubernetes.watched_cluster import RUN, FakeCluster, jobset, pod


def copy(runs_folder: Path, *events: dict[str, Any]) -> RunPaths:
    """Lay down the copy of a terminal that submitted the run, and has seen *events* of it since."""
    paths, spec = RunPaths(runs_folder / RUN), manifests.spec_of(jobset())
    cache.create(paths, spec.to_toml(), cached_plan(spec, RUN, "this", "here"), 1000.0)
    with paths.events.open("a") as file:
        file.writelines(json.dumps({"t": 1000.0 + at, **event}) + "\n" for at, event in enumerate(events, 1))
    return paths


def counts(state: RunState) -> tuple[int, int, int]:
    return state.attempt, state.failures, state.interruptions


@pytest.mark.parametrize("recorded", [0, 1, 3])
def test_all_attempts_are_counted_while_the_gang_restarts(
    runs: Path, monkeypatch: pytest.MonkeyPatch, recorded: int
) -> None:
    """The counters come from JobSet; the copied events of a restarting gang are incomplete."""
    counters = {"restarts": 15, "restartsCountTowardsMax": 2}
    cluster = FakeCluster([], [jobset(status=counters)])
    monkeypatch.setattr(backend, "ClusterApi", lambda context, namespace: cluster)
    started = [
        {"event": "started", "attempt": each + 1, "failures": 0, "interruptions": each} for each in range(recorded)
    ]
    copy(runs, *started)

    state = KubernetesBackend(runs).state(RUN)

    assert (state.state, *counts(state)) == ("waiting", 15, 2, 13)


def test_the_agents_counts_have_priority_where_they_cover_every_restart() -> None:
    """JobSet counts a deleted pod as a failure, the agents as an interruption: each restart is counted once."""
    status = {"restarts": 3, "restartsCountTowardsMax": 3}
    state = RunState(RUN, "", "", "running", attempt=4, failures=0, interruptions=3)
    assert add_restart_counts(state, jobset(status=status), 0, waiting=False) == state


def test_a_running_attempt_counts_and_so_do_those_of_earlier_submissions() -> None:
    status = {"restarts": 2}
    state = add_restart_counts(RunState(RUN, "", "", "running", attempt=5), jobset(status=status), 5, waiting=False)
    assert counts(state) == (8, 0, 2)
    assert counts(add_restart_counts(RunState(RUN, "", "", "submitted"), jobset(), 0, waiting=False)) == (0, 0, 0)


def test_counts_do_not_decrease_where_an_agent_has_lost_its_record(runs: Path) -> None:
    """Without a run volume each attempt is an agent's first: it counts from the beginning."""
    first = {"event": "started", "attempt": 3, "failures": 1, "interruptions": 1}
    again = {"event": "started", "attempt": 1, "failures": 0, "interruptions": 0}
    assert counts(reader.state(copy(runs, first, again))) == (3, 1, 1)


def test_a_resumed_run_counts_failures_from_zero(runs: Path) -> None:
    failed = {"event": "failed", "failures": 3, "interruptions": 1}
    paths = copy(runs, {"event": "started", "attempt": 4, "failures": 2, "interruptions": 1}, failed)
    copy(runs, {"event": "started", "attempt": 5, "failures": 0, "interruptions": 0})
    assert counts(reader.state(paths)) == (5, 0, 0)
    assert reader.earlier_attempts(paths) == 4


def test_the_attempt_of_a_running_pod_is_not_waiting(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster([pod(0, "Running"), pod(1, "Running")], [jobset(status={"restarts": 15})])
    name = cluster.pods[0]["metadata"]["name"]
    started = {"t": 4e9, "event": "started", "attempt": 1, "failures": 0, "interruptions": 0}
    cluster.logs[name] = [json.dumps({"n": 1, "e": started}, separators=(",", ":"))]
    monkeypatch.setattr(backend, "ClusterApi", lambda context, namespace: cluster)
    copy(runs)
    assert counts(KubernetesBackend(runs).state(RUN)) == (16, 0, 15)
