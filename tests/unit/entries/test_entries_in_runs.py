"""Runs and streams take data sets by name or key, and their records pin the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spotmpi
from spotmpi.api.datasets import DataSet
from spotmpi.core import names, wording
from spotmpi.core.errors import InputError
from spotmpi.entries.store import reference_in
from spotmpi.runs import fingerprint
from spotmpi.spec.source import read_spec, setting_with_places
from spotmpi.streams.order import Settings
from spotmpi.streams.sources import parts_of
from spotmpi.study.sweep import Sweep, load_sweep, sweep_folder
from tests.unit.entries.conftest import Modules
from tests.unit.entries.in_process import InProcess

SETS = """
import spotmpi

@spotmpi.dataset
def numbers(raw: spotmpi.Source, add: int = 0):
    return {"x": raw["x"] + add}
"""
STREAM = {"batch": 2, "prepare": "flow:prepare", "workers": {"count": 1}}


@pytest.fixture
def versions(tmp_path: Path, modules: Modules, pool: InProcess) -> list[DataSet]:
    modules.write(sets=SETS)
    (tmp_path / "raw.csv").write_text("x\n1\n2\n3\n")
    numbers = modules.load().numbers.options(pool=pool)
    return [numbers(tmp_path / "raw.csv"), numbers(tmp_path / "raw.csv", add=1)]


def test_data_and_the_source_of_a_stream_name_the_newest_version_or_a_certain_one(versions: list[DataSet]) -> None:
    old, new = versions
    for text, found in (
        ("datasets:numbers", new),
        (f"datasets:numbers@{old.key[:9]}", old),
        (f"datasets:{old.key}", old),
    ):
        spec = read_spec({"command": ["true"], "data": text, "stream": {"source": text, **STREAM}})
        assert spec.data and spec.stream
        assert spec.data.path == spec.stream.source == found.path
        assert [part.rows for part in parts_of(Settings(found.path))] == [3]


def test_a_spec_file_and_an_override_may_name_one(versions: list[DataSet], tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('command = ["true"]\nlauncher = "none"\n')
    spec = read_spec(tmp_path / "job.toml", ['data="datasets:numbers"'])
    assert spec.data and spec.data.path == versions[1].path
    assert read_spec(spec) == spec


def test_the_record_of_a_run_pins_the_key(versions: list[DataSet], tmp_path: Path) -> None:
    old, new = versions
    plan = spotmpi.plan_run({"command": ["true"], "launcher": "none", "data": "datasets:numbers"})
    assert f"datasets:numbers@{new.key}" in json.dumps(plan)
    stream = {"source": f"datasets:{old.key}", **STREAM}
    work = fingerprint.identify(read_spec({"command": ["true"], "data": new.path, "stream": stream}))
    assert work["entries"] == [f"datasets:numbers@{each.key}" for each in (new, old)]
    assert "entries" not in fingerprint.identify(read_spec({"command": ["true"], "data": str(tmp_path)}))


def test_a_pipeline_takes_a_data_set_as_its_source(versions: list[DataSet], modules: Modules) -> None:
    modules.write(flow="def prepare(rows, seed):\n    return rows\n\ndef train(batches):\n    list(batches)\n")
    flow = modules.load("flow")
    spec = spotmpi.pipeline(versions[0], flow.prepare, flow.train, batch=2).spec()
    assert spec.stream and spec.stream.source == versions[0].path
    spec = spotmpi.pipeline("datasets:numbers", flow.prepare, flow.train, batch=2).spec()
    assert read_spec(spec).stream == spec.stream.model_copy(update={"source": versions[1].path})  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["data", "stream"])
def test_an_unknown_data_set_is_an_error_of_one_line(versions: list[DataSet], key: str) -> None:
    text = "datasets:absent"
    with pytest.raises(InputError, match=r"datasets:absent.: is not in the store .*; it has: numbers"):
        read_spec({"command": ["true"], key: text if key == "data" else {"source": text, **STREAM}})


@pytest.mark.parametrize("url", ["", "memory://"])
def test_a_data_set_with_nothing_to_read_is_named_as_the_spec_names_it(
    tmp_path: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", f"{url}{tmp_path}/store")
    modules.write(
        sets="import spotmpi\n\n@spotmpi.dataset\ndef nothing(raw: spotmpi.Source):\n    return None\n\n"
        "@spotmpi.dataset\ndef names(raw: spotmpi.Source):\n    return raw.table.slice(0, 0)\n"
    )
    (tmp_path / "raw.csv").write_text("x\n1\n")
    sets = modules.load()
    _, columns = (each.options(pool=pool)(tmp_path / "raw.csv") for each in (sets.nothing, sets.names))
    values = {"command": ["true"]}
    spec = read_spec({**values, "data": "datasets:names"})
    assert spec.data and spec.data.path == columns.path
    for name, lacking, more in (
        ("nothing", "files", {"data": "datasets:nothing"}),
        ("nothing", "files", {"stream": {"source": "datasets:nothing", **STREAM}}),
        ("names", "rows", {"stream": {"source": "datasets:names", **STREAM}}),
    ):
        with pytest.raises(InputError, match=f"data set = 'datasets:{name}': {name}:1 has no {lacking}: `spotmpi why"):
            read_spec({**values, **more})
    with pytest.raises(InputError, match="names:1 has no rows"):
        setting_with_places("stream.source=datasets:names", str)


def test_a_spec_with_another_mistake_names_entries_all_the_same(versions: list[DataSet]) -> None:
    values = {"command": ["true"], "launcher": "none", "unknown": 1, "data": "datasets:numbers:1"}
    for more, problems in (({}, ["unknown"]), ({"init": "models:absent"}, ["unknown", "model"])):
        with pytest.raises(InputError) as error:
            spotmpi.plan_run({**values, **more})
        assert [each.field for each in error.value.problems] == problems


def test_data_behind_a_url_is_copied_to_this_machine_and_a_stream_reads_it_there(
    tmp_path: Path, versions: list[DataSet], pool: InProcess, monkeypatch: pytest.MonkeyPatch, modules: Modules
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/sets-of-runs")
    found = modules.load().numbers.options(pool=pool)(tmp_path / "raw.csv")
    state = spotmpi.run({"command": ["sh", "-c", "ls $SPOTMPI_DATA"], "launcher": "none", "data": "datasets:numbers"})
    lines = [event.values["text"] for event in spotmpi.logs(state.id) if event.kind == "line"]
    assert (state.state, lines) == ("succeeded", ["raw.parquet"])
    assert [node.name for node in spotmpi.trace(state.folder).walk() if node.what == "data set"] == [
        str(found.manifest)
    ]
    spec = read_spec({"command": ["true"], "stream": {"source": "datasets:numbers", **STREAM}})
    assert spec.stream and spec.stream.source == found.path
    with pytest.raises(InputError, match=r"is behind a URL, which ranks cannot read as a folder: use it as st"):
        spotmpi.run({"command": ["true"], "data": "datasets:numbers"}, on="slurm")


@pytest.mark.parametrize("form", ["spec", "study"])
def test_a_study_on_this_machine_reads_a_copy_of_data_behind_a_url(
    form: str,
    tmp_path: Path,
    versions: list[DataSet],
    pool: InProcess,
    monkeypatch: pytest.MonkeyPatch,
    modules: Modules,
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/sets-of-studies")
    found = modules.load().numbers.options(pool=pool)(tmp_path / "raw.csv")
    (tmp_path / "spec.toml").write_text(
        'command = ["sh", "-c", "test -f $SPOTMPI_DATA/raw.parquet && echo iteration 1"]\n'
        'launcher = "none"\ndata = "datasets:numbers"\nmetrics = { pattern = "iteration (?P<iteration>[0-9]+)" }\n'
    )
    (tmp_path / "study.toml").write_text('spec = "spec.toml"\nrepeats = 1\n[parameters]\nnodes = [1]\n')
    options = spotmpi.StudyOptions(repeats=1)
    said = list[str]()
    (planned,) = spotmpi.plan_bench(tmp_path / f"{form}.toml", options).trials()
    assert (planned.nodes, said) == (1, [])

    sweep = spotmpi.bench(tmp_path / f"{form}.toml", options, echo=said.append)

    assert sum("copying to this machine: numbers:1" in text for text in said) == 1
    (trial,) = sweep.trials
    assert trial.state == "succeeded", said
    places = spotmpi.trace(str(names.default_runs_folder() / trial.runs[0])).walk()
    assert [node.name for node in places if node.what == "data set"] == [str(found.manifest)]
    assert load_sweep(sweep.folder).study == sweep.study, "which continues it"


@pytest.mark.parametrize("setting", ["data=datasets:numbers", 'data = { path = "datasets:numbers" }', "init=models:a"])
@pytest.mark.parametrize("form", ["spec", "study"])
def test_variants_name_entries_as_specs_do_and_a_sweep_keeps_their_keys(
    setting: str, form: str, tmp_path: Path, versions: list[DataSet], pool: InProcess, modules: Modules
) -> None:
    """A trial had the text "datasets:numbers" as its folder of data, so that all trials of the variant failed."""
    (tmp_path / "spec.toml").write_text(f'command = ["true"]\nlauncher = "none"\ndata = "{tmp_path}"\n')
    (tmp_path / "study.toml").write_text(
        f'spec = "spec.toml"\nrepeats = 1\n[parameters.set]\nnone = ["env.A=1"]\nnumbers = [{json.dumps(setting)}]\n'
    )
    options = spotmpi.StudyOptions(repeats=1, variants=[] if form == "study" else [f"numbers:{setting}"])
    if "models" in setting:
        field, value = ("parameters.set.numbers", "") if form == "study" else (wording.option("variant"), "numbers:")
        with pytest.raises(InputError, match=r"models:a.: is not in the store") as caught:
            spotmpi.plan_bench(tmp_path / f"{form}.toml", options)
        assert [(each.field, each.value) for each in caught.value.problems] == [(field, value + setting)]
        return
    study = spotmpi.plan_bench(tmp_path / f"{form}.toml", options)
    data = study.variant("numbers").spec.data
    assert data and data.path == versions[1].path
    sweep = Sweep(sweep_folder("kept", tmp_path), study, {}, 1.0)
    sweep.create()
    (tmp_path / "raw.csv").write_text("x\n5\n")
    modules.load().numbers.options(pool=pool)(tmp_path / "raw.csv")  # the newest version from now on
    assert load_sweep(sweep.folder).study == study


def test_a_place_is_an_entry_only_where_its_key_is_whole() -> None:
    key = "ab" * 32
    assert str(reference_in(f"/x/datasets/a-b/{key}/files/part/1.parquet")) == f"datasets:a-b@{key[:12]}"
    assert str(reference_in(f"s3://x/models/m/{key}/files")) == f"models:m@{key[:12]}"
    for place in (f"/x/datasets/{key}/files", f"/x/other/a/{key}/files", f"/x/datasets/a/{key}", "/x"):
        assert reference_in(place) is None
