"""What a spec says of its pods, as the ranks in them find it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.runs import Runs, plain
from tests.testbed.cluster import Cluster
from tests.tools import IS_OLDEST

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(300)]


@pytest.fixture
def zone(testbed: Cluster) -> Iterator[str]:
    """A zone that all nodes are in."""
    testbed.kubectl("label", "nodes", "--all", "topology.kubernetes.io/zone=zone-t")
    yield "zone-t"
    testbed.kubectl("label", "nodes", "--all", "topology.kubernetes.io/zone-")


LOOK = """
import json, os
def text(path):
    with open(path) as file:
        return file.read()
open("/scratch/mine", "w").close()
seen = [text("/etc/team/motto"), text("/etc/team-keys/key"), os.listdir("/scratch")]
print(json.dumps(seen + [os.environ.get(name) for name in ("FROM_SECRET", "FORWARDED", "TZ", "NICE")]))
"""


def make_what_the_spec_names(runs: Runs) -> None:
    """The team's Secret and ConfigMaps, one of them a template of pods."""
    pod = {"spec": {"containers": [{"name": "node", "env": [{"name": "NICE", "value": "yes"}]}]}}
    runs.apply("Secret", "keys", stringData={"key": "s3cret"})
    runs.apply("ConfigMap", "team", data={"motto": "onwards"})
    runs.apply("ConfigMap", "pods", data={"pod.yaml": json.dumps(pod)})


def test_volumes_variables_and_templates_reach_the_ranks_and_hardware_the_summary(
    runs: Runs, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED", "from-the-terminal")
    make_what_the_spec_names(runs)
    (tmp_path / "zone.yaml").write_text("spec: {containers: [{name: node, env: [{name: TZ, value: CET}]}]}")
    kubernetes = {
        "mounts": [
            {"path": "/etc/team", "config_map": "team"},
            {"path": "/etc/team-keys", "secret": "keys"},
            {"path": "/scratch", "empty": "1Mi"},
        ],
        "secret_env": {"FROM_SECRET": "keys/key"},
        "templates": [str(tmp_path / "zone.yaml"), "configmap:pods"],
    }
    spec = plain("python3", "-c", LOOK, nodes=2, env_passthrough=["FORWARDED"], kubernetes=kubernetes)

    run = runs.start(spec, image="base")

    run.until_kind("started")
    pods = runs.testbed.pods(runs.namespace)
    assert run.end().kind == "succeeded", run.recent_events()
    expected = ["onwards", "s3cret", ["mine"], "s3cret", "from-the-terminal", "CET", "yes"]
    assert [json.loads(line) for line in run.lines()] == [expected, expected]
    stored = runs.testbed.kubectl("get", "jobset,configmap,pod", "-n", runs.namespace, "-o", "json")
    assert "from-the-terminal" not in stored
    summary = run.summary()
    assert "from-the-terminal" not in json.dumps(summary)
    (alike,) = summary["hardware"]
    assert alike["nodes"] == [0, 1] and alike["cpu"] and alike["memory_gib"] >= 1
    assert alike.get("zone") == (None if IS_OLDEST else zone), "Kubernetes 1.35 is the first to tell it"
    assert summary["work"]["machine"]["cores"] == alike["cores"]
    assert summary["work"]["container"] == runs.testbed.images["base"]
    (pulled,) = {status["imageID"] for pod in pods for status in pod["status"]["containerStatuses"]}
    assert "sha256:" in pulled and runs.backend.state(run.id).container == pulled


def test_a_sidecar_of_a_template_runs_with_the_ranks_and_ends_with_them(runs: Runs, tmp_path: Path) -> None:
    sidecar = {
        "name": "beside",
        "image": runs.testbed.images["base"],
        "restartPolicy": "Always",
        "command": ["sh", "-c", "trap exit TERM; echo here > /shared/sign; while :; do sleep 0.2; done"],
        "volumeMounts": [{"name": "mount-0", "mountPath": "/shared"}],
    }
    (tmp_path / "sidecar.yaml").write_text(json.dumps({"spec": {"initContainers": [sidecar]}}))
    kubernetes = {"mounts": [{"path": "/shared", "empty": "1Mi"}], "templates": [str(tmp_path / "sidecar.yaml")]}
    waiting = "until cat /shared/sign 2>/dev/null; do sleep 0.1; done; sleep 1"

    run = runs.start(plain("sh", "-c", waiting, nodes=2, kubernetes=kubernetes), image="base")

    assert run.end().kind == "succeeded" and run.lines() == ["here", "here"], run.recent_events()
    completed = ("wait", "--for=condition=Completed", f"jobset/{run.id}", "-n", runs.namespace, "--timeout=20s")
    assert "condition met" in runs.testbed.kubectl(*completed)  # long before the grace of a pod is over
    (sidecar,) = run.pod(0)["status"]["initContainerStatuses"]  # with the JobSet's end the pods of others go away
    assert "terminated" in sidecar["state"] and sidecar["restartCount"] == 0


def test_arguments_of_mpirun_replace_its_defaults_on_a_single_node(runs: Runs) -> None:
    spec = plain("sh", "-c", 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"', slots=2)
    run = runs.start({**spec, "launcher": "mpirun", "mpi": {"args": ["--map-by", "node", "--mca", "btl", "self,sm"]}})

    assert run.end().kind == "succeeded", run.recent_events()
    assert sorted(run.lines()) == ["rank 0 of 2", "rank 1 of 2"]
    summary = run.summary()
    assert summary["image"]["image"] == "chainermn" and summary["image"]["mpi"].startswith("Open MPI")
