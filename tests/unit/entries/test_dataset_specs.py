"""A spec with the table [dataset] builds it, and its run reads it."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest

import spotmpi
from spotmpi.api import dataset_specs, datasets, pools
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.entries.store import Store
from spotmpi.images.wheels import PackedWheels
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import of_kind
from tests.command_line import invoke
from tests.unit.backends.kubernetes.run_volume import VOLUME, FakeVolume
from tests.unit.entries.conftest import Modules
from tests.unit.entries.in_process import InProcess

SETS = """
import spotmpi

@spotmpi.dataset(workers=4)
def numbers(raw: spotmpi.Source, add: int = 0):
    return {"x": raw["x"] + add}

def plain(raw):
    return raw
"""
SPEC = """
command = ["sh", "-c", "ls $0", "."]
launcher = "none"
code = "code"

[dataset]
build = "sets:numbers"
arguments = { raw = "raw/*.csv", add = 5 }
workers = 2
cpu = 0.5
"""
CLUSTER = f"""
[kubernetes]
image = "registry/x@sha256:{"0" * 64}"
volume = "{VOLUME.claim}"
"""
STREAM = """
[stream]
batch = 1
prepare = "sets:plain"
workers = { count = 1 }
"""

REAL_POOL = datasets._pool


@pytest.fixture
def spec(tmp_path: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec file with its code and two raw files; parts are built in this process."""
    modules.write(sets=SETS)
    modules.forget()
    (tmp_path / "raw").mkdir()
    for number in range(2):
        (tmp_path / f"raw/{number}.csv").write_text(f"x\n{number}\n")
    (tmp_path / "job.toml").write_text(SPEC)
    monkeypatch.setattr(datasets, "_pool", lambda *arguments: _Opened(pool))
    return tmp_path / "job.toml"


class _Opened:
    def __init__(self, pool: InProcess) -> None:
        self.pool = pool

    def __enter__(self) -> InProcess:
        return self.pool

    def __exit__(self, *error: object) -> None:
        pass


def test_a_run_builds_its_data_set_and_its_record_has_the_place(spec: Path, pool: InProcess) -> None:
    state = spotmpi.run(spec, echo=lambda text: None, on_event=lambda event: None)
    found = Store().find("numbers")
    assert state.state == "succeeded" and pool.built == ["0", "1"]
    record = Path(state.folder, "spec.toml").read_text()
    assert found.key in record and "[dataset]" not in record
    pool.calls.clear()
    plan = spotmpi.plan_run(spec)
    assert pool.calls == [] and f"datasets:numbers@{found.key}" in json.dumps(plan)


def test_a_run_on_this_machine_reads_a_copy_of_what_it_has_built_behind_a_url(
    spec: Path, pool: InProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/store")
    with pytest.raises(SpotmpiError, match="is not built yet, which the plan needs"):
        spotmpi.plan_run(spec)
    spec.write_text(spec.read_text().replace('"ls $0", "."', '"ls $SPOTMPI_DATA"'))
    state = spotmpi.run(spec, echo=lambda text: None, on_event=lambda event: None)
    lines = [event.values["text"] for event in spotmpi.logs(state.id) if event.kind == "line"]
    assert (state.state, lines, pool.built) == ("succeeded", ["0.parquet", "1.parquet"], ["0", "1"])
    assert f"datasets:numbers@{Store().find('numbers').key}" in json.dumps(spotmpi.plan_run(spec))


def test_paths_are_relative_to_the_spec_and_settings_reach_the_pool(
    spec: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = dataset_specs.build(spec, ["dataset.arguments.add=7"])
    assert found.table.column("x").to_pylist() == [7, 8]
    read = spotmpi.read_spec(spec)
    assert read.dataset is not None
    settings = dataset_specs._dataset(read, read.dataset, "local").settings
    assert (settings.workers, settings.cpu, settings.on) == (2, 0.5, "local")


def test_the_command_builds_it_and_prints_where_it_is(spec: Path, pool: InProcess) -> None:
    output = invoke("data", "build", str(spec))
    found = Store().find("numbers")
    assert output.stdout == f"{found.title}: {Store().place(found.reference)}\n"
    assert f"spotmpi: building {found.reference}: 2 of 2 parts\n" in output.stderr
    values = json.loads(invoke("data", "build", str(spec), "--json").stdout)
    assert values["key"] == found.key and values["rows"] == 2


def test_a_stream_without_a_source_reads_it(spec: Path) -> None:
    spec.write_text(SPEC + '\n[stream]\nbatch = 1\nprepare = "sets:plain"\n')
    dataset_specs.build(spec)
    read = dataset_specs.with_dataset(spotmpi.read_spec(spec), None, build=False)
    assert read.stream and read.stream.source == Store().place(Store().find("numbers").reference)
    assert read.data is None and read.dataset is None


def test_a_plan_builds_nothing_and_says_so(spec: Path, pool: InProcess) -> None:
    with pytest.raises(SpotmpiError, match="sets:numbers is not built yet, which the plan needs: `spotmpi data build`"):
        spotmpi.plan_run(spec)
    assert pool.calls == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sets:numbers", "sets:absent", "the module sets has no absent; correct the name"),
        ("sets:numbers", "sets:plain", "sets:plain is not a data set: mark the function with @spotmpi.dataset"),
        ("sets:numbers", "nowhere:numbers", "cannot be imported: No module named 'nowhere'; add its folder as `code`"),
        ("sets:numbers", "numbers", "write module:function, such as sets:ratings"),
        ('raw = "raw/*.csv", ', "", "missing a required argument: 'raw'"),
        ('code = "code"', 'code = "code"\ndata = "raw"', "the run's data, which is set: remove one of the two"),
        ("workers = 2", "wrokers = 2", "did you mean workers"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_remedy(spec: Path, old: str, new: str, message: str) -> None:
    spec.write_text(SPEC.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        spotmpi.run(spec)
    assert "\n" not in str(caught.value)


def test_a_module_that_raises_is_one_line(spec: Path) -> None:
    """A program that exits when it is imported ended the command without a word."""
    for text in ("raise SystemExit(5)", "1 / 0", "def numbers("):
        (spec.parent / "code" / "raising.py").write_text(text)
        spec.write_text(SPEC.replace("sets:numbers", "raising:numbers"))
        with pytest.raises(
            InputError, match=r"dataset\.build = .*: the module raising raises \w+: .* line 1\); correct"
        ):
            spotmpi.run(spec)


def test_a_study_refuses_to_build(spec: Path) -> None:
    with pytest.raises(InputError, match="a study measures runs alone: build it with `spotmpi data build`"):
        spotmpi.plan_bench(spec)


def test_a_spec_without_one_has_nothing_to_build(spec: Path) -> None:
    spec.write_text('command = ["true"]\n')
    with pytest.raises(InputError, match=r"name the function that builds it: \[dataset\] build"):
        dataset_specs.build(spec)


@pytest.mark.parametrize("url", ["", "memory://{}/store"])
def test_a_run_on_a_cluster_reads_it_from_the_run_volume_and_the_plan_says_so(
    spec: Path, cluster: FakeCluster, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url:
        monkeypatch.setenv("SPOTMPI_STORE", url.format(tmp_path))
    volume = FakeVolume(cluster, tmp_path / "shared/runs")
    spec.write_text(SPEC + CLUSTER)
    found = dataset_specs.build(spec)
    planned = json.dumps(spotmpi.plan_run(spec, on="kubernetes"))
    assert f"/spotmpi/volume/store/datasets/numbers/{found.key}/files" in planned
    assert found.path not in planned and volume.commands == []
    state = spotmpi.run(spec, on="kubernetes", detach=True, echo=lambda text: None)
    assert f"store/datasets/numbers/{found.key}/files" in Path(state.folder, "spec.toml").read_text()
    assert Store(str(tmp_path / "shared/store")).find("numbers").files == found.manifest.files


def test_a_stream_on_a_cluster_reads_it_from_the_run_volume_or_behind_its_url(
    spec: Path, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(of_kind("PersistentVolumeClaim", VOLUME.claim))
    monkeypatch.setattr("spotmpi.images.wheels.pack", lambda architecture, echo: PackedWheels(architecture, b"wheels"))
    spec.write_text(SPEC + STREAM + CLUSTER)
    found = dataset_specs.build(spec)
    planned = json.dumps(spotmpi.plan_run(spec, on="kubernetes"))
    assert f"/spotmpi/volume/store/datasets/numbers/{found.key}/files" in planned and found.path not in planned
    monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/store")
    spec.write_text(spec.read_text().replace(f'volume = "{VOLUME.claim}"', ""))
    assert dataset_specs.build(spec).path in json.dumps(spotmpi.plan_run(spec, on="kubernetes"))


def test_its_workers_on_a_cluster_have_the_image_the_variables_and_the_mounts_of_the_spec(
    spec: Path, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(of_kind("PersistentVolumeClaim", VOLUME.claim))

    class Connected(SpotmpiError):
        pass

    def connect(run: pools.NewRun, output: object) -> None:
        raise Connected(run.run)

    monkeypatch.setattr(datasets, "_pool", REAL_POOL)
    monkeypatch.setattr(pools.NewRun, "_connect", connect)
    monkeypatch.setattr("spotmpi.images.wheels.pack", lambda architecture, echo: PackedWheels(architecture, b"wheels"))
    monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/store")
    fsspec.filesystem("memory").pipe(f"{tmp_path}/raw/0.csv", b"x\n1\n")
    text = SPEC.replace("raw/*.csv", f"memory://{tmp_path}/raw/*.csv") + CLUSTER
    spec.write_text(text + 'secret_env = { KEY = "login/key" }\nexclusive = true\n[env]\nENDPOINT = "http://s3"\n')
    with pytest.raises(Connected):
        dataset_specs.build(spec, on="kubernetes")
    (jobset,) = [each for each in cluster.created if each["kind"] == "JobSet"]
    for job in jobset["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == f"registry/x@sha256:{'0' * 64}"
        assert "KEY" in {each["name"] for each in container["env"]}
        assert VOLUME.claim in {each.get("persistentVolumeClaim", {}).get("claimName") for each in pod["volumes"]}
        assert "podAntiAffinity" not in json.dumps(pod), "workers share nodes"
    (plan,) = [each["data"]["plan.json"] for each in cluster.created if "plan.json" in each.get("data", {})]
    assert '"ENDPOINT": "http://s3"' in plan


@pytest.mark.parametrize(
    ("old", "new", "on", "url", "message"),
    [
        (f'volume = "{VOLUME.claim}"', "", "kubernetes", "", "copied to the run volume.*: set kubernetes.volume"),
        ("", "", "slurm", "memory://x", "would be behind a URL, .* memory://x.*: add a .stream. without a source"),
        ("@spotmpi.dataset(", "@spotmpi.dataset(store='other', ", "kubernetes", "", "SPOTMPI_STORE=.*/other"),
    ],
)
def test_what_its_run_could_not_read_is_refused_before_it_is_built(
    spec: Path,
    cluster: FakeCluster,
    pool: InProcess,
    modules: Modules,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    on: str,
    url: str,
    message: str,
) -> None:
    if url:
        monkeypatch.setenv("SPOTMPI_STORE", url)
    modules.write(sets=SETS.replace(old, new))
    modules.forget()
    spec.write_text((SPEC + CLUSTER).replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        spotmpi.run(spec, on=on)
    assert "\n" not in str(caught.value) and pool.calls == [] and cluster.created == []


def test_workers_of_a_cluster_do_not_get_a_folder_of_this_machine_and_the_remedy_works(
    spec: Path, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process = datasets._pool
    monkeypatch.setattr(datasets, "_pool", REAL_POOL)
    spec.write_text(SPEC + CLUSTER)
    with pytest.raises(
        InputError, match=r"store = .*: is on this machine.*; or build it on this machine first .`spotmpi data bu"
    ):
        spotmpi.run(spec, on="kubernetes")
    assert cluster.created == []
    monkeypatch.setattr(datasets, "_pool", in_process)
    assert invoke("data", "build", str(spec)).returncode == 0
    monkeypatch.setattr(datasets, "_pool", REAL_POOL)
    FakeVolume(cluster, tmp_path / "shared/runs")
    spotmpi.run(spec, on="kubernetes", detach=True, echo=lambda text: None)
    assert Store(str(tmp_path / "shared/store")).list()
