"""Runs read data sets and models of a store from the run volume, and their models are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spotmpi
from spotmpi.agent import pod_context
from spotmpi.api import dataset_specs
from spotmpi.api.lineage import trace
from spotmpi.backends.targets import Target
from spotmpi.core.errors import InputError
from spotmpi.data.datasets import Storage, clean
from spotmpi.entries.store import Store
from spotmpi.streams import part_files
from spotmpi.streams.part_files import Files, Task
from spotmpi.streams.sources import files_of
from tests.cluster.pools import PoolRun
from tests.cluster.runs import Runs
from tests.unit.entries.test_lineage import find

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.pod_images("base")]
SETS = """
import spotmpi

@spotmpi.dataset
def ratings(raw):
    with raw.open() as file:
        return {"a.txt": file.read()}
"""
TRAIN = """
import os
import spotmpi

text = open(os.path.join(os.environ["SPOTMPI_DATA"], "a.txt")).read()
model = spotmpi.checkpoint.read() or {"times": 0}
print("read", text, "times", model["times"])
spotmpi.checkpoint.save(1, {"text": text, "times": model["times"] + 1}, now=True)
"""


def test_a_run_reads_the_data_set_of_its_spec_and_the_next_one_starts_from_its_model(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    said = list[str]()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sets.py").write_text(SETS)
    (tmp_path / "raw.txt").write_text("first")
    target = Target(f"kubernetes/{runs.namespace}")
    kubernetes = {"image": runs.testbed.images["base"], "volume": "shared"}
    values = {"command": ["python3", "-c", TRAIN], "launcher": "none", "kubernetes": kubernetes, "keep": "counter"}
    values |= {"name": "entries", "code": str(tmp_path / "code"), "limits": {"failures": 0}}
    values |= {"dataset": {"build": "sets:ratings", "arguments": {"raw": str(tmp_path / "raw.txt")}}}
    with pytest.raises(InputError, match="or build it on this machine first"):
        spotmpi.run(values, (), target)
    data = dataset_specs.build(values).manifest  # on workers of this machine
    for number in (1, 2):
        init = [] if number == 1 else ["init=models:counter"]
        state = spotmpi.run(values, init, target, on_event=lambda event: None, echo=said.append)
        assert state.state == "succeeded", (state.reason, said)
        assert f"counter:{number}" in said[-1]
        lines = [event.values["text"] for event in spotmpi.logs(state.id, on=target) if event.kind == "line"]
        assert f"read first times {number - 1}" in lines

    first, second = (spotmpi.models.find(f"counter:{number}") for number in (1, 2))
    assert first.parents == (data.reference,) and second.parents == (data.reference, first.manifest.reference)
    assert find(trace("models:counter"), "model") == [str(second.manifest), str(first.manifest)]
    assert '"missing"' not in json.dumps(trace("models:counter").values())
    assert runs.volume is not None
    place = runs.volume / "store"
    copied = Store(str(place))
    assert {each.key for each in copied.list()} == {data.key, first.key}
    assert [line for each in copied.list() for line in copied.problems(each) if "parent" not in line] == []
    assert copied.find("datasets:ratings:1") == data
    assert sum("copying to the run volume" in line for line in said) == 2
    assert sum("0 are missing" in line or "comparing with the volume" in line for line in said) == 3
    pulled = spotmpi.models.pull("counter:2", tmp_path / "pulled")
    assert spotmpi.checkpoint.read(str(pulled)) == {"text": "first", "times": 2}
    result = spotmpi.reproduce("models:counter:1", tmp_path / "code", target)
    assert (result.different, result.files) == ((), 2), "one of the data set, which is built here, and the parameters"
    assert spotmpi.models.find("counter").version == 2

    storage = Storage(target, "shared", runs.testbed.images["base"])
    assert clean(0.0, True, storage) == [], "the JobSets of both runs name them"
    runs.testbed.kubectl("delete", "jobsets", "--all", "-n", runs.namespace)
    assert clean(3600.0, True, storage) == [], "the folders of both runs are new"
    assert {each["key"] for each in clean(0.0, True, storage)} == {data.key, first.key}
    assert copied.list() == [] and clean(0.0, False, storage) == []


PARTS = """
import datetime
import spotmpi

@spotmpi.dataset
def copied(raw):
    with raw.open() as file:
        return {"a.txt": file.read()}

@spotmpi.dataset
def dated(raw):
    return {"a.txt": datetime.date.today().isoformat()}
"""


@pytest.mark.pod_images("chainermn")
def test_a_part_is_built_by_a_pod_and_compared_with_one_of_another_process_there(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runs.volume is not None
    for name in ("raw", "parts"):
        (runs.volume / name).mkdir(exist_ok=True)
        (runs.volume / name).chmod(0o777)
    (runs.volume / "raw" / "a.txt").write_text("first")
    (tmp_path / "podsets.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import podsets  # type: ignore[import-not-found]

    (here,) = files_of(str(runs.volume / "raw"))
    part = here._replace(name=f"{pod_context.VOLUME}/raw/a.txt")
    files = Files(f"{pod_context.VOLUME}/raw", (part,), ("a.txt",))
    tasks = [
        Task(key * 64, dataset, {"raw": files}, {}, f"{pod_context.VOLUME}/parts", "a")
        for key, dataset in (("a", podsets.copied), ("b", podsets.dated))
    ]
    up = PoolRun(runs, 1, files=[str(tmp_path / "podsets.py")])
    with up.join() as pool:
        built = list(pool.map(part_files.build, tasks))
        again = list(pool.map(part_files.rebuild, tasks))
    assert (runs.volume / "parts" / ("a" * 64) / "a.txt").read_text() == "first"
    assert [record[0][2] == other[0][2] for record, other in zip(built, again, strict=True)] == [True, False]
