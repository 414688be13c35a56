"""`spotmpi up` and `down` with the real Pulumi engine over a stand-in AWS, and a real cluster inside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs import api, data, names
from jobs.backends import choose
from jobs.backends.choose import Where
from jobs.backends.cluster_view import context_of
from jobs.cloud import hands as own
from jobs.cloud import probe
from jobs.cloud.checks import inside
from jobs.cloud.checks.finding import Finding, Subject
from jobs.cloud.checks.live import Live
from jobs.cloud.doctor import examined
from jobs.cloud.down import down
from jobs.cloud.hands import Hands
from jobs.cloud.up import Wishes, up
from jobs.environment import Environment
from jobs.errors import SpotmpiError
from jobs.images import build_for
from jobs.runs import RunState
from tests.cluster.applied import Applied, dress, kubeconfig_of, undress
from tests.cluster.followed import PARTS
from tests.cluster.testbed.cluster import Cluster
from tests.engine.engine import Engine, repository_project, tool_folders
from tests.engine.journey import ACCESS
from tests.engine.life import Life
from tests.engine.providers.aws_network import NODE_GROUP
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.server import serving

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),
]

NODE = "node-1"
NAMESPACE = "training"


class WithCluster(Life):
    """Hands that reach the test cluster where the kubeconfig leads there; a place is a file of the stack's outputs."""

    def __init__(self, engine: Engine, cloud: Cloud, testbed: Cluster, folder: Path) -> None:
        super().__init__(engine, cloud)
        self.testbed, self.folder = testbed, folder
        self.place = Where(str(folder / "outputs.json"), folder / "runs")
        self.there: Environment | None = None
        self.smoke: RunState | None = None

    @property
    def hands(self) -> Hands:
        return replace(
            super().hands,
            cluster=own._cluster,
            knows=lambda there: context_of(there.cluster) is not None,
            stage=lambda source, folder, where, say: self.stage(source, folder),
            run=lambda values, where, say: self.run(values),
            list_runs=lambda where: api.list_runs(self.place),
            stop_run=lambda run, where: api.stop(run, where=self.place),
        )

    def command(self, words: Sequence[str]) -> None:
        """`aws eks update-kubeconfig`; the autoscaler brings a GPU node at the same time."""
        self.do(words[0])
        outputs = self.hands.pulumi.outputs("lab")
        # A node of this machine has as many CPUs as it has, and the group has to fit on it.
        outputs["node_groups"] = [{**group, "vcpus": min(os.cpu_count() or 1, 2)} for group in outputs["node_groups"]]
        Path(str(self.place.on)).write_text(json.dumps(outputs))
        self.there = Environment.model_validate(outputs)
        kubeconfig_of(self.testbed, self.there, Path(os.environ["KUBECONFIG"]))
        dress(self.testbed, NODE, self.there)

    def push(self, image: str, there: Environment, say: Any) -> str:
        """Give the nodes the test's image under the name that the registry would have."""
        if image in self.testbed.images:
            reference = build_for(image, there.has_gpus).reference(there.repositories[image])
            for node in self.testbed.nodes:
                node.containerd.ctr("images", "tag", "--force", self.testbed.images[image], reference)
        return super().push(image, there, say)

    def stage(self, source: str, folder: str) -> None:
        self.do("stage")
        data.push([source], folder, data.Storage(self.place), self.said.append)

    def run(self, values: Mapping[str, Any]) -> RunState:
        self.do("run")
        self.smoke = api.run(without_cuda(values), where=self.place, say=self.said.append)
        return self.smoke

    def finding(self, check: str) -> dict[str, Finding]:
        """What a live check of that name says of the real cluster."""
        assert self.there is not None
        (wanted,) = [each for each in inside.CHECKS if each.name == check]
        live = Live(self.there, own._cluster(self.there))
        subject = Subject(self.stock.account().aws, self.there.region, None, lambda command: None, live)
        return {each.check: each for each in examined(wanted, subject)}


def without_cuda(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* for the test's image, which is built without CUDA: a mount hides its record, which would say so."""
    return {**values, "kubernetes": {"mounts": [{"path": "/opt/spotmpi", "empty": "1Mi"}]}}


@pytest.fixture
def life(testbed: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WithCluster]:
    tool_folders()
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, 1000, 1000)
    cloud = Cloud()
    applied = Applied(cloud, testbed, volume)
    with serving(cloud, applied) as ports:
        engine = Engine(tmp_path / "engine", ports)
        (tmp_path / "engine").mkdir()
        repository_project(engine)
        monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.chdir(engine.project)
        made = WithCluster(engine, cloud, testbed, tmp_path)
        yield made
    applied.clear()
    if made.there is not None:
        undress(testbed, NODE, made.there)


def alive(testbed: Cluster) -> list[str]:
    """The pods that hold a node."""
    return [
        pod["metadata"]["name"] for pod in testbed.pods(NAMESPACE) if pod["status"]["phase"] in ("Pending", "Running")
    ]


def test_an_environment_is_built_used_and_taken_down_with_nothing_at_work(
    life: WithCluster, testbed: Cluster, tmp_path: Path
) -> None:
    life.engine.configure("lab", {"spotmpi:access": ACCESS})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "image").write_bytes(b"picture")
    wishes = Wishes(data=((str(tmp_path / "set"), "voc"),))

    # Up: broken off before data (tests/engine breaks the other steps), and ended by a run on a node with a GPU.
    life.trouble.add("stage")
    with pytest.raises(SpotmpiError, match="stage was told to fail"):
        up("lab", life.hands, wishes)
    there = up("lab", life.hands, wishes)
    assert life.smoke is not None and life.smoke.state == "succeeded", life.said
    machines = [event["machines"] for event in events(life, life.smoke.id) if event.get("machines")]
    assert [each["name"] for each in machines[0]] == [NODE]
    assert (tmp_path / "volume" / "voc" / "image").read_bytes() == b"picture"
    assert [life.did.count(step) for step in ("agree", "aws", "push chainermn", "stage", "run")] == [1, 1, 1, 2, 1]

    # What is there can be looked at.
    nodes = life.finding("API and nodes")
    assert nodes["API"].level == "ok" and f"node {NODE}" in nodes, nodes
    assert (life.finding("SSH key")["SSH key"].level, life.finding("volume")["volume"].level) == ("ok", "ok")
    probed = probe.of_stack(str(life.place.on), life.said.append)
    assert [each.check for each in probed] == ["probe of storage", "probe of names"]
    assert {each.level for each in probed} == {"ok"}, probed
    testbed.kubectl("patch", "secret", there.ssh_secret, "-n", NAMESPACE, "-p", '{"data": {"id": ""}}')
    assert "lacks id" in life.finding("SSH key")["SSH key"].message
    testbed.node(NODE).set_gpus(0)
    assert "offers 0 of 1 GPUs" in life.finding("API and nodes")[f"node {NODE}"].message
    testbed.node(NODE).set_gpus(1)

    # Down: a run that goes on ends with a checkpoint before machines go, and what broke off is finished.
    # Objects go with the cluster itself.
    values = {
        "name": "long",
        "image": "chainermn",
        "program": "digits",
        "args": ["--global-batch", "64", "--epochs", "500"],
        "resources": {"gpu": 1},
        "checkpoint": {"every": "1s"},
    }
    long = api.run(without_cuda(values), where=life.place, detach=True, say=life.said.append)
    wait_for_metrics(life, long.id)
    life.cloud.script.fail("delete", NODE_GROUP)
    with pytest.raises(SpotmpiError, match=r"`pulumi destroy --stack lab` failed.*the same command goes on"):
        down("lab", life.hands)
    assert alive(testbed) == []
    assert down("lab", life.hands) == ()
    assert f"stopping {long.id} with a checkpoint" in life.said
    assert list((tmp_path / "volume" / "runs" / long.id / "checkpoints").rglob("*.npz")), life.said
    left = testbed.kubectl("get", PARTS, "-n", NAMESPACE, "-l", f"{names.LABEL_RUN}={long.id}", "-o", "name")
    assert (len(life.cloud.records), left, alive(testbed)) == (0, "", [])


def events(life: WithCluster, run: str) -> list[dict[str, Any]]:
    """What the agents of a run have recorded on the volume."""
    path = life.folder / "volume" / "runs" / run / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def wait_for_metrics(life: WithCluster, run: str) -> None:
    """Wait until a run trains."""
    for event in choose.backend(life.place).events(run, follow=True):
        if event.kind == "metric":
            return
