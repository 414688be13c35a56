"""`spotmpi models predict`: a kept model, a data set and a function give a data set, which tells its lineage."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.api import open_lineage
from spotmpi.api.datasets import DataSet
from spotmpi.api.lineage import Node
from spotmpi.core import names
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.entries.store import Store
from spotmpi.images.wheels import PackedWheels
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.command_line import invoke
from tests.unit.backends.kubernetes.run_volume import VOLUME, FakeVolume
from tests.unit.entries.conftest import Modules
from tests.unit.entries.in_process import InProcess
from tests.unit.entries.test_lineage import find

pytest.importorskip("distributed")
SETS = """
import spotmpi

@spotmpi.dataset
def numbers(raw: spotmpi.Source):
    return {"x": raw["x"] * 10}
"""
FLOW = """
import os
import spotmpi

def prepare(rows, seed):
    return {"x": rows["x"] + 1}

def predict(batches):
    w = spotmpi.checkpoint.read()["w"]  # once, before the first batch
    print("loaded by process", os.getpid())
    for batch in batches:
        yield {"y": batch["x"] * w}

def postprocess(result, seed):
    return {"y": result["y"] + 0.5}

def mixed(batches):
    for number, batch in enumerate(batches):
        yield {"y": batch["x"].astype(str) if number else batch["x"]}

def broken(batches):
    raise KeyError("nothing is predicted")
"""
TRAIN = """
import numpy as np
import spotmpi

spotmpi.checkpoint.save(3, {"w": np.float64(2)}, now=True)
"""


class Folder:
    """A folder of all tests here, at one path, so that what a run left behind in one is there again in the next."""

    def __init__(self, folder: Path) -> None:
        self.path, self._folder, self._tests = folder / "now", folder, 0

    def clear(self) -> None:
        """Begin anew; what was there is moved away."""
        if self.path.exists():
            self._tests += 1
            self.path.rename(self._folder / f"test {self._tests}")
        self.path.mkdir()

    def once(self, name: str, fill: Callable[[], object]) -> None:
        """Let *fill* write into it; once it has, what was there then is there again."""
        copy, here = self._folder / name, Path.cwd()
        if copy.exists():
            self.clear()
            shutil.copytree(copy, self.path, symlinks=True, dirs_exist_ok=True)
            os.chdir(here)  # its new one
        else:
            fill()
            shutil.copytree(self.path, copy, symlinks=True)


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("predictions"))


@pytest.fixture
def tmp_path(one_folder: Folder) -> Path:
    one_folder.clear()
    return one_folder.path


@pytest.fixture
def numbers(
    one_folder: Folder, tmp_path: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> DataSet:
    """A data set of six rows, a model that multiplies by 2, and a module that predicts with it."""

    def build() -> DataSet:
        found = modules.load().numbers.options(pool=pool)(str(tmp_path / "*.csv"))
        assert isinstance(found, DataSet)
        return found

    def fill() -> None:
        for number, name in enumerate("ab"):
            rows = range(3 * number, 3 * number + 3)
            (tmp_path / f"{name}.csv").write_text("x\n" + "".join(f"{row}\n" for row in rows))
        build()
        spotmpi.run({"command": [sys.executable, "train.py"], "launcher": "none", "keep": "double"})

    modules.write(sets=SETS, flow=FLOW, train=TRAIN)
    monkeypatch.chdir(modules.folder)
    one_folder.once("numbers", fill)
    return build()


@pytest.fixture
def predicted(one_folder: Folder, numbers: DataSet) -> DataSet:
    """The results of a prediction with that model and data set, in JSON lines."""
    one_folder.once(
        "predicted", lambda: spotmpi.models.predict("double", numbers, "flow:predict", write="jsonl", batch=4)
    )
    return DataSet(Store().find("datasets:double-numbers"), Store())


PREDICT = ("models", "predict", "double", "--data", "datasets:numbers", "--with", "flow:predict")


def test_a_prediction_is_a_data_set_and_leads_back_to_model_run_data_set_and_raw_files(
    numbers: DataSet, tmp_path: Path
) -> None:
    output = invoke(
        *PREDICT, "--prepare", "flow:prepare", "--postprocess", "flow:postprocess", "--batch", "4", "--write", "jsonl"
    )
    assert output.returncode == 0, output.stderr
    kept = Store().find("datasets:double-numbers")
    place = Path(Store().place(kept.reference))
    assert output.stdout.splitlines()[-1] == f"double-numbers:1  {place}"
    lines = [json.loads(line) for path in sorted(place.iterdir()) for line in path.read_text().splitlines()]
    assert lines == [{"y": 2 * (10 * row + 1) + 0.5} for row in range(6)] and kept.rows == 6
    model = spotmpi.models.find("double:1").manifest
    assert kept.parents == (numbers.manifest.reference, model.reference)

    def require(tree: Node) -> None:
        assert find(tree, "data set") == [str(kept), str(numbers.manifest)]
        assert find(tree, "model") == [str(model)]
        assert set(find(tree, "run")) >= {str(kept.run), str(model.run)}
        assert find(tree, "raw file") == ["a.csv", "b.csv"]

    require(spotmpi.trace(str(place / "results-00000001.jsonl")))
    shutil.rmtree(tmp_path / "runs")
    require(spotmpi.trace(str(place / "results-00000001.jsonl")))
    for name, kind in (("numbers", "data"), ("double", "models")):
        assert f"is a parent of {kept}" in invoke(kind, "rm", name).stderr


def test_a_result_in_the_run_folder_is_compared_with_what_was_kept_of_it(predicted: DataSet) -> None:
    """`why` of an edited one said nothing about it."""
    run = RunPaths(names.default_runs_folder() / str(predicted.manifest.run))
    first, second = (run.stream / "results" / file.path for file in predicted.manifest.files)
    first.write_text(first.read_text().replace("0", "7"))
    line = invoke("why", str(first)).stdout.splitlines()[0]
    assert line.startswith(f"file {first}, ") and line.endswith(", changed since it was recorded")
    assert spotmpi.trace(str(second)).facts["state"] == "as recorded"
    second.unlink()
    assert spotmpi.trace(str(second)).facts == {"state": "missing"}
    assert "state" not in spotmpi.trace(str(run.spec)).facts
    shutil.rmtree(Path(predicted.path).parent)
    assert "state" not in spotmpi.trace(str(first)).facts


def test_a_file_of_a_checkpoint_is_compared_with_its_manifest(numbers: DataSet) -> None:
    run = RunPaths(names.default_runs_folder() / str(spotmpi.models.find("double").manifest.run))
    (manifest,) = run.checkpoints.glob("*/manifest.json")
    file = next(each for each in manifest.parent.iterdir() if each != manifest)
    assert spotmpi.trace(str(file)).facts["state"] == "as recorded"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes() + b"more")
    assert spotmpi.trace(str(file)).facts["state"] == "changed since it was recorded"
    assert "state" not in spotmpi.trace(str(manifest)).facts


def test_events_of_openlineage_connect_a_prediction_with_model_and_data(numbers: DataSet, tmp_path: Path) -> None:
    """A catalogue joins jobs by data sets alone: what a run has made is an output of that run."""
    values = {"command": [sys.executable, "train.py"], "launcher": "none", "keep": "double", "init": "models:double"}
    spotmpi.run({**values, "data": "datasets:numbers"})
    found = spotmpi.models.predict("double", numbers, "flow:predict", write="jsonl", batch=4)
    events = [each for each in open_lineage.events(spotmpi.trace(found.path)) if each["eventType"] == "COMPLETE"]

    def names_in(key: str) -> list[list[str]]:
        return [
            [f"{each['name']} {each['facets']['version']['datasetVersion'][:9]}" for each in event[key]]
            for event in events
        ]

    first, second = (spotmpi.models.find(f"double:{number}").manifest for number in (1, 2))
    data, models = f"datasets:numbers {numbers.key[:9]}", [f"models:double {each.key[:9]}" for each in (first, second)]
    read = {made: {*read} for (made,), read in zip(names_in("outputs"), names_in("inputs"), strict=True)}
    assert read[f"datasets:double-numbers {found.key[:9]}"] == {data, models[1]}
    assert read[models[1]] == {data, models[0]} and read[models[0]] == set()
    assert len(events) == 4


@pytest.mark.extensive("six runs for a rare case; the tests below are of the usual ones")
def test_another_environment_with_the_same_packages_makes_the_same_prediction(
    numbers: DataSet, modules: Modules, pool: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = spotmpi.models.predict("double", numbers, "flow:predict", batch=4)
    (tmp_path / "environment").symlink_to(sys.prefix)
    with monkeypatch.context() as other:
        other.setattr(sys, "executable", str(tmp_path / "environment/bin" / Path(sys.executable).name))
        again = spotmpi.models.predict("double", numbers, "flow:predict", keep="again", batch=4)
    assert again.key == found.key
    (tmp_path / "environment").unlink()
    assert find(spotmpi.trace(again.path), "code")[0] == "flow.py"
    assert spotmpi.reproduce("datasets:again", modules.folder, pool=pool).different == ()
    shutil.rmtree(tmp_path / "runs")
    assert spotmpi.reproduce("datasets:again", modules.folder, pool=pool).different == ()


def test_each_rank_loads_the_model_once_and_the_same_results_are_one_version(numbers: DataSet) -> None:
    found = spotmpi.models.predict("double:1", numbers, "flow:predict", keep="scores", batch=1)
    assert (str(found), found.rows, found.table["y"].to_pylist()) == ("scores:1", 6, [20.0 * row for row in range(6)])
    log = invoke("logs", str(found.manifest.run)).stdout
    assert log.count("loaded by process") == 1
    again = spotmpi.models.predict("double:1", "datasets:numbers:1", "flow:predict", keep="scores", batch=1)
    assert again.key == found.key and str(again) == "scores:1"


def test_a_prediction_is_made_again_from_the_raw_files_and_compared(
    numbers: DataSet, predicted: DataSet, modules: Modules, pool: InProcess
) -> None:
    said = list[str]()
    result = spotmpi.reproduce("datasets:double-numbers", modules.folder, pool=pool, echo=said.append)
    assert result.different == () and result.files == 4  # two of results, two parts of the data set
    model = spotmpi.models.find("double").manifest
    assert said == [f"{model} is taken as it was kept: `spotmpi reproduce {model}` makes it again"]


@pytest.mark.parametrize("kind", ["models:double", "datasets:numbers"])
def test_a_missing_parent_is_said_before_a_data_set_is_built_again(
    predicted: DataSet, modules: Modules, pool: InProcess, kind: str
) -> None:
    """Somebody has removed its folder by hand. All else is still shown."""
    run = RunPaths(names.default_runs_folder() / str(predicted.manifest.run))
    parent = Store().find(kind)
    shutil.rmtree(Path(Store().place(parent.reference)).parent)
    before = list(pool.calls)
    for place in (str(predicted.manifest), str(run.folder)):
        with pytest.raises(SpotmpiError, match=rf"^{parent} is missing from the store .*: copy its folder"):
            spotmpi.reproduce(place, modules.folder, pool=pool)
        tree = spotmpi.trace(place)
        assert [each.name for each in tree.walk() if "record" in each.facts] == [str(parent)]
        assert find(tree, "code") and set(find(tree, "run")) >= {str(predicted.manifest.run)}
    assert pool.calls == before


def test_a_reproduction_makes_no_version(
    numbers: DataSet, predicted: DataSet, modules: Modules, pool: InProcess
) -> None:
    Store().remove(predicted.manifest)
    run = RunPaths(names.default_runs_folder() / str(predicted.manifest.run))
    assert spotmpi.reproduce(str(run.folder), modules.folder, pool=pool).different == ()
    assert [each.title for each in Store().list()] == ["numbers:1", "double:1"]
    trained = names.default_runs_folder() / str(spotmpi.models.find("double").manifest.run)
    (state,) = trained.rglob("state.safetensors")
    for place in (str(state), "models:double:1", spotmpi.models.find("double").path):
        result = spotmpi.reproduce(place, modules.folder, pool=pool)
        assert (result.different, result.files) == ((), 1), "the parameters, without the run's id"
    modules.replace("train", "float64(2)", "float64(3)")
    with pytest.raises(SpotmpiError, match=r"the code of run .* is not what it was \(train\.py\): restore it"):
        spotmpi.reproduce("models:double", modules.folder, pool=pool)
    assert [each.title for each in Store().list()] == ["numbers:1", "double:1"]


@pytest.fixture
def of_cluster(
    numbers: DataSet,
    predicted: DataSet,
    modules: Modules,
    cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A result of a prediction on a cluster, in the record of its run: there it has read copies on the run volume."""
    monkeypatch.setattr("spotmpi.images.wheels.pack", lambda architecture, echo: PackedWheels(architecture, b"wheels"))
    FakeVolume(cluster, tmp_path / "shared/runs")
    stream = {"source": "datasets:numbers", "batch": 4, "last_batch": "keep", "write": "jsonl"}
    values: dict[str, Any] = {"launcher": "none", "keep": "scores", "stream": stream, "init": "models:double"}
    values["command"] = [sys.executable, "-m", "spotmpi.streams.rank", "predict", "flow:predict"]
    values["files"] = [str(modules.folder / "flow.py")]
    values["kubernetes"] = {"image": f"registry/x@sha256:{'0' * 64}", "volume": VOLUME.claim}
    state = spotmpi.run(values, on="kubernetes", detach=True, echo=lambda text: None)
    results = RunPaths(Path(state.folder)).stream / "results"
    shutil.copytree(predicted.path, results)  # which `spotmpi pull` would bring
    return results / "results-00000001.jsonl"


def test_a_prediction_of_a_cluster_leads_back_by_the_record_of_its_run(of_cluster: Path, numbers: DataSet) -> None:
    tree = spotmpi.trace(str(of_cluster))
    assert find(tree, "data set") == [str(numbers.manifest)]
    assert find(tree, "model") == [str(spotmpi.models.find("double").manifest)]
    assert find(tree, "code")[0] == "flow.py"
    assert next(tree.walk()).parents[0].facts["command"].endswith("-m spotmpi.streams.rank predict flow:predict")


@pytest.mark.extensive("two runs; test_a_reproduction_makes_no_version is the same on this machine")
def test_a_prediction_of_a_cluster_is_made_again_on_this_machine_unless_its_code_has_changed(
    of_cluster: Path, numbers: DataSet, modules: Modules, pool: InProcess
) -> None:
    result = spotmpi.reproduce(str(of_cluster), modules.folder, pool=pool)
    assert (result.different, result.files, result.reproduced[0]) == ((), 3, str(numbers.manifest))
    modules.replace("flow", "import os", "# A comment makes no difference.\nimport os\n")
    assert spotmpi.reproduce(str(of_cluster), modules.folder, pool=pool).different == ()
    modules.replace("flow", 'batch["x"] * w', 'w * batch["x"]')
    with pytest.raises(SpotmpiError, match=r"the code of run .* is not what it was \(flow\.py\): restore it"):
        spotmpi.reproduce(str(of_cluster), modules.folder, pool=pool)


def test_a_prediction_is_made_again_though_the_data_set_is_damaged_that_it_has_read(
    numbers: DataSet, predicted: DataSet, modules: Modules, pool: InProcess
) -> None:
    damaged = Path(numbers.path, "a.parquet")
    damaged.chmod(0o644)
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    result = spotmpi.reproduce(predicted.path, modules.folder, pool=pool)
    assert result.different == (), "the run reads what was made again from the raw files"
    again = names.default_runs_folder() / result.reproduced[-1] / "stream/results/results-00000000.jsonl"
    tree = spotmpi.trace(str(again))
    assert find(tree, "data set") == [str(numbers.manifest)] and "missing" not in json.dumps(tree.values())


@pytest.mark.extensive("two runs, in another place; the tests above are in the usual one")
def test_a_prediction_is_made_again_from_its_manifest_alone_in_a_store_that_was_moved(
    numbers: DataSet,
    predicted: DataSet,
    modules: Modules,
    pool: InProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = RunPaths(names.default_runs_folder() / str(predicted.manifest.run)).spec.read_text()
    assert str(modules.folder / "flow.py") in spec
    for name in ("store", "runs"):
        shutil.move(tmp_path / name, tmp_path / f"old {name}")
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "old store"))
    assert spotmpi.reproduce("models:double", modules.folder, pool=pool).files == 1
    modules.forget()
    folder = modules.folder = modules.folder.rename(tmp_path / "checkout")
    for name in ("double-numbers", "numbers"):
        assert spotmpi.reproduce(f"datasets:{name}", folder, pool=pool).different == ()
    modules.replace("flow", "* w", "* w  # a comment")
    with pytest.raises(
        SpotmpiError, match=rf"the code of run {predicted.manifest.run} is not what it was \(flow\.py\)"
    ):
        spotmpi.reproduce("datasets:double-numbers", folder, pool=pool)


def test_without_the_record_of_a_run_with_variables_it_is_said_that_these_are_missing(
    numbers: DataSet, modules: Modules, pool: InProcess, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('launcher = "none"\nenv = { TOKEN = "secret" }\n')
    spotmpi.models.predict("double", numbers, "flow:predict", source=spec, batch=4)
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(SpotmpiError, match="which alone has the values of its variables TOKEN: restore the record in"):
        spotmpi.reproduce("datasets:double-numbers", modules.folder, pool=pool)


@pytest.mark.extensive("a run and a data set more; the tests above have each")
def test_a_data_set_of_predictions_is_made_again_of_these_as_they_were_kept(
    numbers: DataSet, modules: Modules, pool: InProcess
) -> None:
    scores = spotmpi.models.predict("double", numbers, "flow:predict", batch=4)
    modules.write(sets=f"{SETS}\n@spotmpi.dataset\ndef top(raw):\n    return {{'y': raw['y'][raw['y'] > 20]}}\n")
    top = modules.load().top.options(pool=pool)(scores)
    said = list[str]()
    result = spotmpi.reproduce(top.path, modules.folder, pool=pool, echo=said.append)
    assert (result.different, result.reproduced) == ((), (str(top.manifest),))
    assert f"{scores.manifest} is taken as it was kept: `spotmpi reproduce {scores.manifest}` makes it again" in said


def test_results_that_are_not_on_this_machine_are_no_identical_ones(
    predicted: DataSet, modules: Modules, pool: InProcess
) -> None:
    run = RunPaths(names.default_runs_folder() / str(predicted.manifest.run))
    shutil.rmtree(run.stream / "results")
    with pytest.raises(
        InputError, match=rf"has no files to compare: `spotmpi pull {run.id}` copies those of a cluster"
    ):
        spotmpi.reproduce(str(run.folder), modules.folder, pool=pool)
    result = spotmpi.reproduce(predicted.path, modules.folder, pool=pool)
    assert (result.different, result.files) == ((), 4), "the manifest says what they were"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("double:9", "datasets:numbers", "flow:predict"), 2, "model = 'double:9': is not in the store"),
        (("double:beta", "datasets:numbers", "flow:predict"), 2, "it has: double:1"),
        (("double", "datasets:absent", "flow:predict"), 2, "data set = 'datasets:absent': is not in the store"),
        (("double", "numbers", "flow:predict"), 2, "stream.source = 'numbers': no file of this machine has this name"),
        (("double", "datasets:numbers", "flow"), 2, "predict = 'flow': write module:function, such as flow:predict"),
        (("double", "datasets:numbers", "flow:broken"), 1, "failed: "),
    ],
)
def test_what_cannot_be_predicted_is_one_line(
    numbers: DataSet, arguments: tuple[str, str, str], code: int, text: str, tmp_path: Path
) -> None:
    (tmp_path / "once.toml").write_text(
        'launcher = "none"\nlimits = { failures = 0 }\n'
    )  # an attempt starts four processes
    model, data, function = arguments
    options = ("--data", data, "--with", function, "--batch", "2", "--spec", str(tmp_path / "once.toml"))
    output = invoke("models", "predict", model, *options)
    *_, reason, last = ["", *output.stderr.splitlines()]
    assert output.returncode == code and text in (reason if "continue with: " in last else last), output.stderr
    assert output.stderr.count(text) == 1
    assert [each.name for each in Store().list("datasets")] == ["numbers"]


@pytest.mark.parametrize("function", ["predict", "without_key"])
def test_a_model_that_does_not_load_ends_the_prediction_at_its_first_attempt_with_one_line(
    numbers: DataSet, function: str, modules: Modules
) -> None:
    place = Path(spotmpi.models.find("double").path)
    if function == "predict":
        state = place / "state.safetensors"
        state.chmod(0o644)
        state.write_bytes(b"x" * state.stat().st_size)
        text = f"the model in {place} cannot be loaded: state.safetensors does not match its checksum"
    else:
        modules.write(flow=FLOW.replace('read()["w"]', 'read()["weights"]').replace("def predict", "def without_key"))
        text = (
            f"flow:without_key failed before it took a batch, where it loads the model in {place}: KeyError: 'weights'"
        )
    output = invoke(*PREDICT[:-1], f"flow:{function}", "--batch", "2")
    assert output.returncode == 1 and len([line for line in output.stderr.splitlines() if text in line]) == 1
    (run,) = (each for each in spotmpi.list_runs() if each.state == "failed")
    assert run.attempt == 1 and output.stderr.endswith(f"continue with: spotmpi run --resume {run.id}\n")


def test_results_are_named_after_where_a_pattern_begins_and_of_others_a_name_is_asked_for(
    numbers: DataSet, tmp_path: Path
) -> None:
    (tmp_path / "daily").mkdir()
    (tmp_path / "daily" / "1.csv").write_text("x\n1\n")
    found = spotmpi.models.predict("double", f"{tmp_path}/daily/*.csv", "flow:predict", batch=2)
    assert str(found) == "double-daily:1"
    (tmp_path / "my data.csv").write_text("x\n1\n")
    output = invoke("models", "predict", "double", "--data", f"{tmp_path}/my data.csv", "--with", "flow:predict")
    assert output.returncode == 2 and len(output.stderr.splitlines()) == 1
    assert "my data.csv': can be no name of the results: give them one, --keep NAME" in output.stderr


def test_results_that_a_function_writes_elsewhere_cannot_be_kept(numbers: DataSet) -> None:
    output = invoke(*PREDICT, "--batch", "2", "--write", "flow:write")
    assert output.returncode == 2
    assert "keep = 'double-numbers': the results are written elsewhere: use stream.write = " in output.stderr


def test_a_prediction_whose_results_cannot_be_kept_says_so_once(numbers: DataSet) -> None:
    (Path(Store().storage.url) / "datasets" / "scores").write_text("a file where the versions would be")
    output = invoke(*PREDICT, "--batch", "2", "--keep", "scores")
    said = [line for line in output.stderr.splitlines() if "kept" in line]
    assert output.returncode == 1 and len(said) == 1 and "` tries again" in said[0], output.stderr
    with pytest.raises(SpotmpiError, match=r"are not kept: `spotmpi status .*` tells why"):
        spotmpi.models.predict("double", numbers, "flow:predict", keep="scores", batch=2)


def test_results_that_are_no_one_table_are_not_kept(numbers: DataSet) -> None:
    """They became a version of a data set that no stream could read."""
    output = invoke(*PREDICT[:-1], "flow:mixed", "--batch", "4", "--keep", "scores")
    (said,) = (line for line in output.stderr.splitlines() if "kept" in line)
    files = "results-00000000.parquet, results-00000001.parquet"
    assert (
        f" is not kept: {files} cannot be read together: " in said
        and "Field y has incompatible types: int64 vs" in said
    )
    assert said.endswith("; give each column one type in all files, then predict again")
    assert output.returncode == 1 and Store().list("datasets", "scores") == []


def test_results_that_cannot_be_kept_are_one_line_without_the_command_for_models(numbers: DataSet) -> None:
    command = [sys.executable, "-m", "spotmpi.streams.rank", "predict", "flow:predict"]
    stream = {"source": "datasets:numbers", "batch": 2}
    values = {"command": command, "launcher": "none", "init": "models:double", "keep": "scores", "stream": stream}
    state = spotmpi.run(values, detach=True)
    for _ in spotmpi.logs(state.id, follow=True):
        pass
    shutil.rmtree(Path(state.folder, "stream", "results"))
    output = invoke("status", state.id)
    assert output.returncode == 0 and f"`spotmpi status {state.id}` tries again" in output.stderr
    assert "has no results in its folder" in output.stderr and "models keep" not in output.stderr
