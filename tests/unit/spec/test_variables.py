"""Variables that ranks get from the terminal: by value, or by Secret without a trace of their value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

import spotmpi
from spotmpi.backends.kubernetes import backend as kubernetes
from spotmpi.backends.targets import Target
from spotmpi.cli.options import overrides
from spotmpi.core.errors import InputError

Object = dict[str, Any]
JOB: Object = {"command": ["sh", "-c", 'echo "$TOKEN, $PLAIN"'], "launcher": "none", "kubernetes": {"image": "base:1"}}
VALUE = "s3cret-value"


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kubeconfig: None) -> None:
    """A terminal with a token in its environment and a cluster in its kubeconfig."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", VALUE)


def env_overrides(*variables: str) -> list[str]:
    return overrides({}, None, variables)


def files_with_value(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]


def plan_of(*variables: str) -> Object:
    return {**spotmpi.plan_run(JOB, env_overrides(*variables), Target("kubernetes"))}


@pytest.mark.parametrize("value", ["", "1", '"quoted"', "a=b", "[1]", "two words", "ü 🚀", "a\nb\t\\", "'"])
def test_a_value_is_taken_as_it_is_written(value: str) -> None:
    assert spotmpi.read_spec(JOB, env_overrides(f"PLAIN={value}")).env == {"PLAIN": value}


def test_variables_add_to_those_of_the_spec() -> None:
    spec = spotmpi.read_spec(
        {**JOB, "env": {"A": "1", "B": "1"}, "env_passthrough": ["HOME"]}, env_overrides("B=2", "TOKEN")
    )
    assert (spec.env, spec.env_passthrough) == ({"A": "1", "B": "2"}, ["HOME", "TOKEN"])


@pytest.mark.parametrize("text", ["A B=1", "=1", "", "1A", "A.B=1", "A+=1"])
def test_a_malformed_variable_name_is_refused_without_showing_its_value(text: str) -> None:
    with pytest.raises(InputError, match="write it as NAME or NAME=VALUE"):
        env_overrides(text)


def test_an_unset_variable_is_refused_with_both_remedies() -> None:
    with pytest.raises(
        InputError, match=r"env_passthrough = 'ABSENT': is not set in this terminal: export .*ABSENT=VALUE"
    ):
        plan_of("ABSENT")


def test_a_clusters_plan_names_a_forwarded_variable_and_holds_its_value_nowhere() -> None:
    plan = plan_of("TOKEN", "PLAIN=2")

    assert VALUE not in json.dumps(plan)
    jobset, config_map, secret, _ = plan["objects"]
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    reference = {"name": secret["metadata"]["name"], "key": "env.TOKEN"}
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": reference}} in pod["containers"][0]["env"]
    assert secret["stringData"]["env.TOKEN"] == "<generated at submission>"
    assert json.loads(config_map["data"]["plan.json"])["environment"]["PLAIN"] == "2"


def test_at_submission_the_secret_alone_gets_the_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = AsyncMock(namespace="training", context="lab")
    cluster.find.return_value = None
    created_metadata = {"uid": "7", "creationTimestamp": "2026-11-20T11:00:00Z"}
    cluster.create.side_effect = lambda values, **_: {**values, "metadata": created_metadata}
    monkeypatch.setattr(kubernetes, "ClusterApi", lambda context, namespace: cluster)
    backend = kubernetes.KubernetesBackend(tmp_path / "runs")
    spec = spotmpi.read_spec(JOB, env_overrides("TOKEN"))

    backend.submit(spec, backend.plan(spec, "plain-1", print), lambda text: None)

    created = [call.args[0] for call in cluster.create.await_args_list]
    (secret,) = [part for part in created if part["kind"] == "Secret"]
    assert secret["stringData"]["env.TOKEN"] == VALUE
    assert [part["kind"] for part in created if VALUE in json.dumps(part)] == ["Secret"]
    assert not files_with_value(tmp_path)


def test_ranks_on_this_machine_get_the_value_and_no_record_does(tmp_path: Path) -> None:
    job = {**JOB, "command": ["sh", "-c", 'echo "${#TOKEN}, $PLAIN"']}
    target, events = Target(runs_folder=tmp_path / "runs"), list[spotmpi.Event]()

    state = spotmpi.run(job, env_overrides("TOKEN", "PLAIN=2"), target, on_event=events.append)

    assert state.state == "succeeded"
    assert f"{len(VALUE)}, 2" in [event.values.get("text") for event in events]
    assert not files_with_value(tmp_path)
