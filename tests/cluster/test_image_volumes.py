"""A model that was pushed to a registry, mounted in the pods of a run as a volume of type image, by CRI-O."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

import spotmpi
from spotmpi.backends.targets import Target
from tests.cluster.environment_namespace import environment_namespace
from tests.cluster.runs import runs_in
from tests.testbed import images, prerequisites
from tests.testbed.cluster import running_cluster
from tests.testbed.crio import Crio
from tests.testbed.programs import REPOSITORY
from tests.unit.entries import registries

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.nightly("builds CRI-O for minutes; by day the unit tier compares the layout of what is pushed"),
    pytest.mark.tools("crio", "registry"),
    pytest.mark.timeout(600),
]
TRAIN = """
import os, pathlib, spotmpi
spotmpi.checkpoint.save(1, {"text": "trained"}, now=True)
weights = pathlib.Path(os.environ["SPOTMPI_CHECKPOINT_PATH"]).parent / "export" / "weights"
weights.mkdir(parents=True)
weights.joinpath("part-1.npz").write_bytes(bytes(range(256)) * 20_000)
weights.joinpath("part-2.npz").write_bytes(b"")
"""
READ = """
import hashlib, json, pathlib, spotmpi
mounts = {fields[4]: fields for fields in map(str.split, open("/proc/self/mountinfo"))}
print("read", json.dumps(spotmpi.checkpoint.read()))
print("weights", sorted(path.name for path in pathlib.Path("/weights").iterdir()))
for path in pathlib.Path("/model").rglob("*"):
    if path.is_file():
        fields, status = mounts[str(path)], path.stat()
        print("file", json.dumps({
            "path": str(path.relative_to("/model")), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "source": fields[3], "options": fields[5], "inode": [status.st_dev, status.st_ino],
        }))
"""


def template(image: str, folder: Path) -> Path:
    """The pod template of docs/models.md that mounts a model, for this one, with a folder of it alone at /weights."""
    (text,) = re.findall(r"```yaml\n(# model.yaml\n.*?)```", (REPOSITORY / "docs" / "models.md").read_text(), re.DOTALL)
    assert "ghcr.io/team/digits:3" in text
    spec = yaml.safe_load(text.replace("ghcr.io/team/digits:3", image))["spec"]
    spec["containers"][0]["volumeMounts"].append({"name": "model", "mountPath": "/weights", "subPath": "weights"})
    path = folder / "model.yaml"
    path.write_text(yaml.safe_dump({"spec": spec}))
    return path


def test_a_pushed_model_is_a_volume_of_a_runs_pods_that_read_the_blobs_on_the_node_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prerequisites.require()
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    trained = spotmpi.run({"name": "train", "command": [sys.executable, "-c", TRAIN], "launcher": "none"})
    assert trained.state == "succeeded", trained.reason
    model = spotmpi.models.keep(trained, "digits", ["checkpoints/iteration-000000001", "export"])
    expected = {file.path: file.sha256 for file in model.manifest.files}
    assert {"weights/part-1.npz", "weights/part-2.npz", "manifest.json"} < set(expected)

    with registries.registry(tmp_path, real=True) as registry:
        image = f"{registry.host}/team/digits:3"
        spotmpi.models.push("digits:1", image)
        debian = images.push_debian(registry.host)
        with (
            running_cluster(set(), nodes=1, crio_pause=debian) as testbed,
            environment_namespace(testbed) as namespace,
            runs_in(testbed, namespace, tmp_path / "copies"),
        ):
            target = Target(f"kubernetes/{namespace}")
            kubernetes = {"image": debian, "volume": "shared", "templates": [str(template(image, tmp_path))]}
            values = {"name": "read", "command": ["python3", "-c", READ], "launcher": "none", "init": "/model"}
            limits = {"failures": 0, "start": "5m"}  # also for a volume that cannot be mounted
            state = spotmpi.run({**values, "kubernetes": kubernetes, "limits": limits}, on=target)
            lines = [event.values["text"] for event in spotmpi.logs(state.id, on=target) if event.kind == "line"]
            assert state.state == "succeeded", (state.reason, lines)
            runtime = testbed.nodes[0].runtime
            assert isinstance(runtime, Crio)
            blobs = {path.name: path.stat() for path in runtime.blobs.iterdir()}

    assert {'read {"text": "trained"}', "weights ['part-1.npz', 'part-2.npz']"} <= set(lines)
    found = {each["path"]: each for line in lines if line.startswith("file ") for each in [json.loads(line[5:])]}
    entry = found.pop("spotmpi-model.json")
    assert {path: each["sha256"] for path, each in found.items()} == expected
    for each in (entry, *found.values()):
        assert each["source"].endswith(f"/images/artifacts/blobs/sha256/{each['sha256']}")
        assert "ro" in each["options"].split(",")
        assert each["inode"] == [blobs[each["sha256"]].st_dev, blobs[each["sha256"]].st_ino]
