"""`spotmpi up` and `down` as processes that are killed at every step: the real Pulumi engine over a stand-in AWS, whose
control plane is a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import spotmpi
from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.core import names
from spotmpi.core.environment import Environment
from spotmpi.images.build import build_for
from tests.cloud.account.answers import Refusal
from tests.cloud.account.remote import Handlers, serve
from tests.cluster.applying_provider import ApplyingKubernetes, join_group, leave_group
from tests.cluster.killable_command import log_in, without_cuda
from tests.cluster.runs import PARTS
from tests.engine.engine import Engine, repository_project
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.server import serve_cloud
from tests.engine.stack_lifecycle import ACCESS
from tests.testbed.cluster import Cluster
from tests.testbed.containerd import Containerd
from tests.testbed.kubernetes import as_yaml

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(3000),
    pytest.mark.tools("pulumi", "pulumi-language-python"),
    pytest.mark.nightly(
        "many minutes; tests/engine takes up and down through the real engine, other files through pods"
    ),
]

NODES = {"node-0": False, "node-1": True}  # the nodes of the group, and whether they are tainted: one is a system node
NAMESPACE = "training"
OPERATOR = "operator"  # the service account in place of the holder of the AWS credentials
LIMIT = 1200.0  # seconds for one command


class ClusterEnvironment(EngineEnvironment):
    """The stand-in for AWS: the stand-in cloud, the registry, and tokens of the test cluster."""

    def __init__(self, engine: Engine, cloud: Cloud, testbed: Cluster, outputs: Path) -> None:
        super().__init__(engine, cloud)
        self.testbed, self.outputs = testbed, outputs
        self.place = Target(str(outputs), outputs.parent / "runs")
        self.environment: Environment | None = None
        self.pushed: list[str] = []
        self.address = self.issued = ""
        self.issuing = threading.Lock()

    def handlers(self) -> Handlers:
        """The calls that other processes may make, by name."""
        self.account.answers["DescribeCluster"] = self.describe_cluster
        return {"aws": self.account.answer, "push": self.push_to_nodes, "token": self.token}

    def describe_cluster(self, region: str, request: Mapping[str, Any]) -> Any:
        version = self.account.eks.describe_cluster(region, request)["cluster"]
        return {"cluster": {**version, **self.cluster_outputs(request["name"])["cluster"]}}

    def cluster_outputs(self, name: str) -> Any:
        """The answer of EKS's DescribeCluster."""
        for each in self.cloud.records.of(CLUSTER):
            if each.id == name:
                parts = ("arn", "endpoint", "certificateAuthority")
                return {"cluster": {"name": name, **{key: each.outputs[key] for key in parts}}}
        raise Refusal("ResourceNotFoundException", f"No cluster found for name: {name}.")

    def token(self, cluster: str) -> str:
        """A token that the API server of that cluster accepts."""
        self.cluster_outputs(cluster)
        with self.issuing:
            if not self.issued:
                command = ("create", "token", OPERATOR, "-n", "kube-system", "--duration=6h")
                self.issued = self.testbed.kubectl(*command, limit=LIMIT).strip()
        return self.issued

    def push_to_nodes(self, image: str) -> str:
        """Tag the test's image with the registry's name on the nodes, and add GPU nodes as the autoscaler would."""
        values = self.engine.outputs("lab")
        # A node of this machine has as many CPUs as it has, and the group has to fit on it.
        values["node_groups"] = [{**group, "vcpus": min(os.cpu_count() or 1, 2)} for group in values["node_groups"]]
        self.outputs.write_text(json.dumps(values))
        self.environment = Environment.model_validate(values)
        for name, taint in NODES.items():
            join_group(self.testbed, name, self.environment, taint)
        if image in self.testbed.images:
            reference = build_for(image, self.environment.has_gpus).reference(self.environment.repositories[image])
            for node in self.testbed.nodes:
                assert isinstance(node.runtime, Containerd)
                node.runtime.ctr("images", "tag", "--force", self.testbed.images[image], reference)
        self.pushed.append(image)
        return self.push_image(image, self.environment, None)

    def spotmpi(self, *words: str, dies_at: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `spotmpi ...` in a separate process; with *dies_at* it has to be killed at that step."""
        module = ["-m", "tests.cluster.killable_command"]
        command = [sys.executable, *module, self.address, str(self.outputs), str(dies_at)]
        result = subprocess.run(
            [*command, *words],
            cwd=self.engine.project,
            env={**self.engine.variables(), "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        if dies_at:
            last = (result.stderr.splitlines() or [""])[-1]
            assert (result.returncode, last.partition("/")[0]) == (-9, f"spotmpi: {dies_at}"), result.stderr
        return result

    def remaining_objects(self, run: str) -> list[str]:
        """The objects of runs and data in the cluster, except those of the run *ended*, which ended by itself.

        That run's objects, and those of the program, are deleted with the cluster.
        """
        ours = ("-l", f"{names.LABEL_APP}=spotmpi", "-o", "name")
        return [name for name in self.testbed.kubectl("get", PARTS, "-n", NAMESPACE, *ours).split() if run not in name]


@pytest.fixture
def lab(testbed: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterEnvironment]:
    volume, engine_folder = tmp_path / "volume", tmp_path / "engine"
    volume.mkdir()
    engine_folder.mkdir()
    os.chown(volume, 1000, 1000)
    cloud = Cloud()
    (server,) = [each["cluster"] for each in yaml.safe_load(testbed.kubeconfig.read_text())["clusters"]]
    cloud.records.endpoint, cloud.records.authority = server["server"], server["certificate-authority-data"]
    testbed.kubectl("apply", "-f", "-", stdin=as_yaml(operator()))
    applied = ApplyingKubernetes(cloud, testbed, volume)
    with serve_cloud(cloud, applied) as servers:
        lab = ClusterEnvironment(Engine(engine_folder, servers), cloud, testbed, tmp_path / "outputs.json")
        repository_project(lab.engine)
        with serve(lab.handlers()) as lab.address:
            log_in(lab.address, monkeypatch)
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
            monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
            monkeypatch.chdir(lab.engine.project)
            yield lab
    applied.clear(testbed)
    testbed.kubectl("delete", "-f", "-", stdin=as_yaml(operator()))
    if lab.environment is not None:
        for node, taint in NODES.items():
            leave_group(testbed, node, lab.environment, taint)


def operator() -> list[dict[str, Any]]:
    """A service account with every right, as the creator of an EKS cluster has."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": OPERATOR, "namespace": "kube-system"}}
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": "kube-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
    return [account, {**binding, "metadata": {"name": OPERATOR}, "roleRef": role, "subjects": [subject]}]


def alive(testbed: Cluster) -> list[str]:
    """The pods that hold a node."""
    pods = testbed.pods(NAMESPACE)
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]


def test_an_environment_is_built_and_taken_down_though_the_command_is_killed_at_every_step(
    lab: ClusterEnvironment, testbed: Cluster, tmp_path: Path
) -> None:
    lab.engine.configure("lab", {"spotmpi:access": ACCESS})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "image").write_bytes(b"picture")
    up = ("up", "lab", "--yes", "--data", f"{tmp_path / 'set'}=voc", "--expires", "8h")

    # Up: killed at each step, then completed by a run on two nodes with GPUs. Nothing is created or pushed twice.
    for step in range(1, 9):
        lab.spotmpi(*up, dies_at=step)
        # The command is dead, and AWS has the end of the nodes from the fifth step on.
        assert bool(lab.account.autoscaling.scheduled_actions) == (step > 5)
    result = lab.spotmpi(*up)
    # After what the smoke run printed: its mpirun may warn that its child was faster.
    assert result.returncode == 0 and "\nspotmpi-lab is up in " in f"\n{result.stdout}", result.stderr
    created = lab.changes("create")
    assert len(created) == len(set(created)) and not lab.changes("delete")
    assert lab.pushed == ["chainermn", "pytorch"]
    assert (tmp_path / "volume" / "voc" / "image").read_bytes() == b"picture"
    (smoke,) = spotmpi.list_runs(lab.place)
    assert smoke.state == "succeeded"
    machines = [event["machines"] for event in events(tmp_path, smoke.id) if event.get("machines")]
    assert sorted(each["name"] for each in machines[0]) == sorted(NODES)

    # Down: killed at each step, and interrupted in the engine. A run ends with a checkpoint before its nodes end.
    long = spotmpi.run(without_cuda(LONG), on=lab.place, detach=True)
    wait_for_metrics(lab, long.id)
    down = ("down", "lab", "--yes")
    messages = [lab.spotmpi(*down, dies_at=step).stderr for step in range(1, 6)]
    assert [f"stopping {long.id} with a checkpoint" in each for each in messages] == [False, False, False, True, False]
    assert list((tmp_path / "volume" / "runs" / long.id / "checkpoints").rglob("*.safetensors"))
    lab.cloud.script.fail("delete", NODE_GROUP)
    broken = lab.spotmpi(*down)
    assert broken.returncode == 1 and "`pulumi destroy --stack lab` failed" in broken.stderr, broken.stderr
    assert alive(testbed) == []
    lab.spotmpi(*down, dies_at=6)
    result = lab.spotmpi(*down)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert "no resources of lab are left that bill" in result.stderr
    assert (len(lab.cloud.records), lab.remaining_objects(smoke.id), alive(testbed)) == (0, [], [])


LONG = {
    "name": "long",
    "image": "chainermn",
    "program": "digits",
    "args": ["--global-batch", "64", "--epochs", "500"],
    "resources": {"gpu": 1},
    "checkpoint": {"every": "1s"},
}


def events(folder: Path, run: str) -> list[dict[str, Any]]:
    """What the agents of a run have recorded on the volume."""
    path = folder / "volume" / "runs" / run / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def wait_for_metrics(lab: ClusterEnvironment, run: str) -> None:
    """Wait until a run trains."""
    for event in targets.backend(lab.place).events(run, follow=True):
        if event.kind == "metric":
            return
