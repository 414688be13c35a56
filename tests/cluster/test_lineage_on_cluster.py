"""From raw CSV over data sets, a model and predictions to `why` and `reproduce`, while each stage loses a pod."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.agent import pod_context
from spotmpi.agent.plan import NODE, WORKER, Member
from spotmpi.api.datasets import DataSet
from spotmpi.backends.targets import Target
from spotmpi.entries.store import Store
from tests.cluster.pools import PoolRun, small_pods
from tests.cluster.runs import Runs
from tests.command_line import invoke
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.timeout(600),
    pytest.mark.nightly("two minutes; by day each stage loses a pod in a test of its own"),
]

LIMIT = 150.0  # seconds for a stage, on a busy machine
ROWS, FILES = 60, 6
VOLUME = Path(pod_context.VOLUME)
# The volume has the same path in pods and on this machine. A stage waits in the middle while a file has its name.
WAIT = f"""
import os, time

def wait(stage, who):
    path = "{VOLUME}/marks/" + stage
    while os.path.exists(path):
        open(path + f" {{who}}", "w").close()
        time.sleep(0.05)
"""
SETS = """
import numpy as np
import spotmpi
from waiting import wait

@spotmpi.dataset
def cleaned(raw: spotmpi.Source, limit: float):
    if raw.name >= "3.csv":
        wait("build", raw.name)
    kept = np.abs(raw["x"]) <= limit
    return {name: raw[name][kept] for name in ("id", "x", "y")}

@spotmpi.dataset
def features(rows: spotmpi.Source):
    return {"id": rows["id"], "x": rows["x"], "square": rows["x"] ** 2, "y": rows["y"]}
"""
TRAIN = """
import time
import numpy as np
import spotmpi
from mpi4py import MPI
from waiting import wait

saved = spotmpi.checkpoint.load()
w, start = (saved.state["w"], saved.state["position"]) if saved else (np.zeros(2), 0)
stream = spotmpi.stream(start=start)
for batch in stream:
    inputs = np.stack([batch["x"], batch["square"]], axis=1)
    gradient = inputs.T @ (inputs @ w - batch["y"]) / len(inputs)
    total = np.empty_like(gradient)
    MPI.COMM_WORLD.Allreduce(gradient, total)
    w = w - 0.1 * total / stream.size
    if stream.position >= 40:
        wait("train", f"rank {stream.rank}")
        time.sleep(0.2)  # six seconds in all, in which the notice comes
    state = {"w": w, "position": stream.position}
    spotmpi.checkpoint.save(stream.position, state, now=stream.position == 20)
spotmpi.checkpoint.save(stream.position, state, now=True)
"""
FLOW = """
import spotmpi
from waiting import wait

def prepare(rows, seed):
    return {**rows, "noise": rows["x"] * (seed % 1000)}

def predict(batches):
    w = spotmpi.checkpoint.read()["w"]
    for batch in batches:
        if batches.number >= 2:
            wait("predict", f"batch {batches.number}")
        yield {"id": batch["id"], "score": batch["x"] * w[0] + batch["square"] * w[1], "noise": batch["noise"]}

def postprocess(result, seed):
    return {**result, "high": result["score"] > 0.5}
"""


class Chain:
    """The same work in pods and on this machine, from the raw files in a folder of *source*."""

    def __init__(self, code: Path, source: str, values: dict[str, Any], on: Target | None) -> None:
        self.code, self.source, self.values, self.on = code, source, values, on
        self.threads = ThreadPoolExecutor(1)

    def build(self, pool: Any) -> dict[str, DataSet]:
        """The data sets: cleaned, their features, and a split of these."""
        import sets  # type: ignore[import-not-found]

        options = {"pool": pool, "image": "chainermn"}
        cleaned = sets.cleaned.options(**options)(self.source, limit=1.0)
        features = sets.features.options(**options)(cleaned)
        return {
            "cleaned": cleaned,
            "features": features,
            **spotmpi.split(features, {"train": 0.7, "test": 0.3}, by="id", **options),
        }

    def train(self) -> spotmpi.RunState:
        """A run that is kept as the model *curve*."""
        stream = {"source": "datasets:features-train", "batch": 8, "epochs": 4, "shuffle_batches": True}
        stream |= {"prepare": "flow:prepare", "workers": {"count": 2}}
        values = {"name": "train", "command": ["python3", "train.py"], "code": str(self.code), "keep": "curve"}
        return spotmpi.run({**self.values, **values, "stream": stream}, on=self.on)

    def predict(self) -> DataSet:
        """The data set *scores*."""
        return spotmpi.models.predict(
            "curve",
            "datasets:features-test",
            "flow:predict",
            prepare="flow:prepare",
            postprocess="flow:postprocess",
            keep="scores",
            source=self.values,
            on=self.on,
            batch=8,
            last_batch="keep",
            workers={"count": 2},
        )

    def start(self, call: Callable[[], Any], prefix: str) -> tuple[Future[Any], str]:
        """A call that starts a run whose id begins with *prefix*, in a thread; with that id."""
        folder, found = Path(os.environ["SPOTMPI_RUNS"]), list[str]()

        def look() -> bool:
            found[:] = [path.parent.name for path in folder.glob(f"{prefix}-*/spec.toml")]
            return bool(found) or future.done()

        future = self.threads.submit(call)
        wait_for(f"a run {prefix}", look, LIMIT)
        return future, found[0] if found else str(future.result(1))


@pytest.fixture
def marks(runs: Runs) -> Iterator[Path]:
    """A folder on the run volume, which this machine has at the path of pods, and whose files all users may change."""
    assert runs.volume is not None
    mask = os.umask(0)
    VOLUME.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", runs.volume, VOLUME], check=True)
    for name in ("marks", "raw", "entries"):
        (VOLUME / name).mkdir()
    yield VOLUME / "marks"
    subprocess.run(["umount", "--lazy", VOLUME], check=True)
    os.umask(mask)


def write_raw(folder: Path) -> None:
    """Write the raw files."""
    numbers = random.Random(1)
    folder.mkdir(exist_ok=True)
    for number in range(FILES):
        xs = [numbers.uniform(-1.2, 1.2) for _ in range(ROWS)]
        lines = (f"{number * ROWS + row},{x:.6f},{0.3 * x + 0.8 * x * x:.6f}\n" for row, x in enumerate(xs))
        (folder / f"{number}.csv").write_text("id,x,y\n" + "".join(lines))


def parameters(model: spotmpi.models.Model) -> str:
    """The SHA-256 of the state of a model's checkpoint; its own manifest has the run and times."""
    (state,) = [file.sha256 for file in model.manifest.files if file.path.endswith(".safetensors")]
    return state


def contents(found: DataSet) -> dict[str, str]:
    """The SHA-256 of each file."""
    return {file.path: file.sha256 for file in found.manifest.files}


def test_all_stages_lose_a_pod_and_their_files_are_those_of_this_machine_and_made_again_from_the_raw_files(
    runs: Runs, marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to those of this machine are keys and files of data sets, the state of the model, and files of predictions.

    Keys of models differ, as they have their run's id, and so do those of predictions, which have the model's.
    """
    code = tmp_path / "code"
    code.mkdir()
    for name, text in (("waiting", WAIT), ("sets", SETS), ("train", TRAIN), ("flow", FLOW)):
        (code / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.delitem(sys.modules, "sets", raising=False)  # of another test of this process
    monkeypatch.chdir(code)  # where functions that are named by text are looked for
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "copies"))
    monkeypatch.setenv("SPOTMPI_STORE", f"file://{VOLUME}/entries")
    write_raw(VOLUME / "raw")
    kubernetes = {"image": runs.testbed.images["chainermn"], "volume": "shared", "templates": [small_pods(tmp_path)]}
    values = {"image": "chainermn", "nodes": 2, "limits": {"failures": 0}, "kubernetes": kubernetes}
    target = Target(f"kubernetes/{runs.namespace}")
    chain = Chain(code, f"file://{VOLUME}/raw/*.csv", values, target)

    files = [str(code / f"{name}.py") for name in ("sets", "waiting")]
    up = PoolRun(runs, 2, files=files, image="chainermn", kubernetes={"templates": kubernetes["templates"]})
    (marks / "build").touch()
    with up.join() as pool:
        building = chain.threads.submit(chain.build, pool)
        wait_for("two parts that are under way", lambda: building.done() or len([*marks.glob("build *")]) == 2, LIMIT)
        lost = up.pods()[0]
        runs.testbed.kubectl("delete", "pod", lost, "-n", runs.namespace, "--grace-period=0", "--force")
        wait_for("the next pod", lambda: building.done() or up.pods().keys() == {0, 1}, LIMIT)
        (marks / "build").unlink()
        sets = building.result(LIMIT)
    runs.backend.stop(up.run.id, "the data sets are built", now=True)

    (marks / "train").touch()
    training, run = chain.start(chain.train, "train")
    wait_for("both ranks", lambda: training.done() or len([*marks.glob("train *")]) == 2, LIMIT)
    runs.backend.inject_fault(run, Member(NODE, 1), "delete")
    (marks / "train").unlink()  # of the pod with notice the ranks write a checkpoint
    state = training.result(LIMIT)
    assert state.state == "succeeded", state.reason
    attempts = json.loads((VOLUME / "runs" / run / "summary.json").read_text())["attempts"]
    assert [each["cause"] for each in attempts] == ["interruption", "succeeded"]

    (marks / "predict").touch()
    predicting, run = chain.start(chain.predict, "predict")
    wait_for("a rank", lambda: predicting.done() or [*marks.glob("predict *")], LIMIT)
    lost = runs.pod(run, Member(WORKER, 0))["metadata"]["uid"]
    runs.backend.inject_fault(run, Member(WORKER, 0), "delete")
    pods = partial(runs.pods, run, Member(WORKER, 0))
    wait_for("the end of that pod", lambda: lost not in {each["metadata"]["uid"] for each in pods()}, LIMIT)
    (marks / "predict").unlink()
    scores = predicting.result(LIMIT)
    model = spotmpi.models.find("curve")

    file = f"{scores.path}/results-00000001.parquet"
    output = invoke("why", file)
    assert output.returncode == 0, output.stderr
    named = [str(each.manifest) for each in (scores, sets["test"], sets["features"], sets["cleaned"], model)]
    named += [run, state.id, f"raw file file://{VOLUME}/raw/{FILES - 1}.csv"]
    assert [text for text in named if text not in output.stdout] == []
    assert "missing" not in output.stdout
    count = 3 * FILES + len(contents(scores))  # of the data sets without the one for training
    for on in (["--on", str(target.on)], []):
        output = invoke("reproduce", file, "--code", str(code), *on)
        assert output.returncode == 0, (output.stdout, output.stderr)
        assert output.stdout.splitlines()[-1] == f"identical: {count} files"
    assert [each.title for each in Store().list("datasets", "scores")] == ["scores:1"]
    assert [each.title for each in Store().list("models")] == ["curve:1"]
    assert [path.name for path in (VOLUME / "entries").iterdir() if path.name.startswith(".reproduced")] == []

    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "local" / "runs"))
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "local" / "store"))
    write_raw(tmp_path / "raw")
    local = Chain(code, str(tmp_path / "raw" / "*.csv"), {"image": "chainermn", "slots": 2}, None)
    with spotmpi.pool(workers=2, image="chainermn", files=files) as pool:
        others = local.build(pool)
    assert {name: each.key for name, each in others.items()} == {name: each.key for name, each in sets.items()}
    assert {name: contents(each) for name, each in others.items()} == {
        name: contents(each) for name, each in sets.items()
    }
    assert local.train().state == "succeeded"
    assert parameters(spotmpi.models.find("curve")) == parameters(model)
    assert contents(local.predict()) == contents(scores)
    sys.modules.pop("sets", None)
