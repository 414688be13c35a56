"""Pods read entries of a store on this machine from the run volume, to which they are copied once."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import spotmpi
from spotmpi.agent import pod_context
from spotmpi.api import volume_entries
from spotmpi.backends.base import Backend
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo
from spotmpi.data.store import DataStore
from spotmpi.entries.manifest import MODEL
from spotmpi.entries.store import Store, folder
from spotmpi.plan import cluster_plan
from spotmpi.plan.volume_pod import Volume
from spotmpi.runs import fingerprint
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import read_spec
from spotmpi.spec.validate import TargetCapabilities
from spotmpi.study.execution import BackendRunner
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import of_kind
from tests.command_line import invoke
from tests.unit.backends.kubernetes.run_volume import VOLUME, FakeVolume
from tests.unit.entries.test_store import KEYS, entry

PODS = (pod_context.VOLUME,)
PLAN: dict[str, Any] = {"context": None, "namespace": None, "objects": [{}]}


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with a data set and a model, in a folder or behind a URL."""
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    if request.param == "memory":
        monkeypatch.setenv("SPOTMPI_STORE", f"memory://{tmp_path}/store")
    found = Store()
    found.add(*entry(tmp_path))
    found.add(*entry(tmp_path, KEYS[1], name="digits", kind=MODEL))
    return found


@pytest.fixture
def volume(tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeVolume:
    """The run volume of a cluster."""
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(cluster_plan, "run_volume", lambda jobset: Volume(VOLUME.claim, VOLUME.image, ()))
    return FakeVolume(cluster, tmp_path / "volume" / "runs", ("Running",))


def spec(**values: Any) -> JobSpec:
    return read_spec({"command": ["x"], "data": "datasets:ratings", "init": "models:digits:1", **values})


def test_entries_are_read_from_the_volume_and_pinned_in_the_record(store: Store) -> None:
    stream = {"source": "datasets:ratings", "batch": 1}
    moved = volume_entries.on_volume(spec(stream=stream), PODS)
    assert moved.data and moved.stream
    copied = f"store/datasets/ratings/{KEYS[0]}/files"
    behind_url = store.storage.folder is None  # where workers read it
    assert moved.data.path == copied
    assert moved.stream.source == (store.place(store.find("ratings").reference) if behind_url else copied)
    assert moved.init == f"store/models/digits/{KEYS[1]}/files"
    work = fingerprint.identify(moved, local=False)
    assert work["entries"] == [f"datasets:ratings@{KEYS[0]}"] * 2 + [f"models:digits@{KEYS[1]}"]
    assert volume_entries.on_volume(moved, PODS) == moved


def test_trials_of_a_study_read_entries_from_the_volume_to_which_they_are_copied_once(
    store: Store, volume: FakeVolume, tmp_path: Path
) -> None:
    """Pods looked for the folder of this machine: each trial failed."""
    planned: list[JobSpec] = []

    def plan(trial: JobSpec, run: str, echo: Echo) -> dict[str, Any]:
        planned.append(trial)
        return {**PLAN, "run": run, "notes": []}

    backend = SimpleNamespace(
        inspect=lambda trial: TargetCapabilities(persistent=PODS),
        plan=plan,
        submit=lambda trial, plan, echo: None,
        events=lambda run, follow: iter([Event(1.0, "succeeded")]),
        state=lambda run: run,
    )
    said: list[str] = []
    runner = BackendRunner(cast(Backend, backend), tmp_path, lambda event: None, said.append, volume_entries)
    assert [str(runner.run(spec(nodes=nodes), f"trial-{nodes}")) for nodes in (1, 2)] == ["trial-1", "trial-2"]
    assert planned == [volume_entries.on_volume(spec(nodes=nodes), PODS) for nodes in (1, 2)]
    assert said.count("copying to the run volume: ratings:1, digits:1") == 1
    copied = Store(str(tmp_path / "volume/store"))
    assert copied.find("datasets:ratings:1") == store.find("datasets:ratings:1")
    assert fingerprint.differences(*(fingerprint.identify(each, local=False) for each in planned)) == []


def test_a_study_without_a_run_volume_is_refused_with_the_remedy(
    store: Store, cluster: FakeCluster, tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text('command = ["x"]\nimage = "registry/x:1"\ndata = "datasets:ratings"\n')
    result = invoke("bench", str(path), "--on", "kubernetes", "--dry-run")
    assert result.returncode == 2 and "ratings@" in result.stderr and "set kubernetes.volume" in result.stderr


def test_other_folders_and_urls_stay_as_they_are(store: Store, tmp_path: Path) -> None:
    for path in ("/shared/voc", "voc", f"/other/store/datasets/ratings/{KEYS[0]}/files"):
        other = read_spec({"command": ["x"], "data": path})
        assert volume_entries.on_volume(other, PODS) == other


def test_a_cluster_without_a_run_volume_is_refused_with_the_remedy(store: Store) -> None:
    with pytest.raises(InputError, match=r"data = .*ratings@.*which (pods|ranks) cannot re.*: set kubernetes\.volume"):
        volume_entries.on_volume(spec(), ())


def test_entries_are_copied_once_with_their_manifests_and_the_volume_has_a_store(
    store: Store, volume: FakeVolume, tmp_path: Path
) -> None:
    said: list[str] = []
    moved = volume_entries.on_volume(spec(), PODS)
    volume_entries.send(moved, PLAN, said.append)
    copied = Store(str(tmp_path / "volume/store"))
    for text in ("datasets:ratings:1", "models:digits"):
        assert copied.find(text) == store.find(text) and copied.problems(copied.find(text)) == []
    assert said[0] == "copying to the run volume: ratings:1, digits:1"
    assert volume.verbs().count("take") == 2
    volume_entries.send(moved, PLAN, said.append)
    assert volume.verbs().count("take") == 2


def test_what_only_the_volume_has_is_not_sent_again(
    store: Store, volume: FakeVolume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moved = volume_entries.on_volume(spec(), PODS)
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "another"))
    volume.failures = ["missing"]
    volume_entries.send(moved, PLAN, pytest.fail)


def test_a_run_in_pods_is_submitted_once_the_volume_has_what_it_reads(
    store: Store, cluster: FakeCluster, tmp_path: Path
) -> None:
    volume = FakeVolume(cluster, tmp_path / "shared/runs")
    before: list[bool] = []
    volume.meanwhile = lambda: before.append(any(each["kind"] == "JobSet" for each in cluster.created))
    kubernetes = {"image": f"registry/x@sha256:{'0' * 64}", "volume": VOLUME.claim}
    values = {"command": ["x"], "data": "datasets:ratings", "init": "models:digits", "keep": "digits"}
    planned = spotmpi.plan_run({**values, "kubernetes": kubernetes}, on="kubernetes")
    assert volume.commands == [] and f"/spotmpi/volume/store/models/digits/{KEYS[1]}/files" in json.dumps(planned)
    state = spotmpi.run({**values, "kubernetes": kubernetes}, on="kubernetes", detach=True, echo=lambda text: None)
    copied = Store(str(tmp_path / "shared/store"))
    assert {each.key for each in copied.list()} == set(KEYS[:2])
    assert before and not any(before) and any(each["kind"] == "JobSet" for each in cluster.created)
    assert json.loads(RunPaths(Path(state.folder)).keep.read_text())["name"] == "digits"


def test_a_file_that_is_damaged_here_is_one_line_and_nothing_is_submitted(store: Store, volume: FakeVolume) -> None:
    store.storage.write(f"{folder(store.find('datasets:ratings').reference)}/files/a.txt", b"fIrst")
    with pytest.raises(
        SpotmpiError, match=r"ratings:1 cannot be copied to the run volume: .*; `spotmpi data verify ra"
    ):
        volume_entries.send(volume_entries.on_volume(spec(), PODS), PLAN, lambda text: None)


DAYS = 86400.0
CLEAN = ("data", "clean", "--older", "30d", "--on", "kubernetes", "--volume", VOLUME.claim, "--image", "x")


def aged(folder: Path, days: float) -> None:
    """Let all files below a folder, and itself, have been written days ago."""
    moment = time.time() - days * DAYS
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (moment, moment))


def volume_store(tmp_path: Path, cluster: FakeCluster) -> Path:
    """A volume with copies of data set and model of 40 days ago, and a run of then that has read the model."""
    FakeVolume(cluster, tmp_path / "shared/runs")
    run = tmp_path / "shared/runs/digits-1"
    run.mkdir(parents=True)
    (run / "spec.toml").write_text(f'init = "store/models/digits/{KEYS[1]}/files"\n')
    (run / "events.jsonl").write_text("{}\n")
    there = Store(str(tmp_path / "shared/store"))
    for manifest in Store().list():
        there.add(*entry(tmp_path, manifest.key, name=manifest.name, kind=manifest.kind))
    aged(tmp_path / "shared", 40)
    return tmp_path / "shared"


def test_copies_that_no_run_has_named_for_long_are_listed_and_removed(
    store: Store, cluster: FakeCluster, tmp_path: Path
) -> None:
    shared = volume_store(tmp_path, cluster)
    aged(shared / "runs", 10)  # the run was under way then
    listed = invoke(*CLEAN)
    assert listed.returncode == 0 and f"datasets:ratings@{KEYS[0][:12]}" in listed.stdout, listed.stderr
    assert "digits" not in listed.stdout and "versions: 1; --yes deletes them" in listed.stderr
    assert len(Store(str(shared / "store")).list()) == 2
    removed = invoke(*CLEAN, "--yes", "--json")
    assert json.loads(removed.stdout) == [
        {"kind": "datasets", "name": "ratings", "key": KEYS[0], "bytes": json.loads(removed.stdout)[0]["bytes"]}
    ]
    assert [each.name for each in Store(str(shared / "store")).list()] == ["digits"]
    assert not (shared / f"store/datasets/ratings/{KEYS[0]}").exists()
    assert [each.name for each in store.list()] == ["ratings", "digits"], "those of this machine stay"


def test_a_version_is_kept_while_its_run_is_in_the_cluster_or_its_copy_is_new(
    store: Store, cluster: FakeCluster, tmp_path: Path
) -> None:
    shared = volume_store(tmp_path, cluster)
    waiting = of_kind("JobSet", "queued")
    waiting["metadata"]["annotations"] = {
        cluster_plan.ANNOTATION_SPEC: json.dumps({"data": f"store/x/{KEYS[0]}/files"})
    }
    cluster.put(waiting)
    assert [each["name"] for each in json.loads(invoke(*CLEAN, "--json").stdout)] == ["digits"]
    asyncio.run(
        DataStore(FakeVolume(cluster, shared / "runs").access(), lambda text: None).renew(
            f"store/models/digits/{KEYS[1]}"
        )
    )
    assert json.loads(invoke(*CLEAN, "--yes", "--json").stdout) == []


def test_a_copy_counts_as_new_after_each_submission(store: Store, volume: FakeVolume, tmp_path: Path) -> None:
    moved = volume_entries.on_volume(spec(), PODS)
    volume_entries.send(moved, PLAN, lambda text: None)
    aged(tmp_path / "volume", 40)
    volume_entries.send(moved, PLAN, lambda text: None)
    kept = asyncio.run(DataStore(volume.access(), lambda text: None).unused(DAYS, [], remove=False))
    assert kept == []


def test_nothing_is_removed_where_a_record_cannot_be_read(store: Store, cluster: FakeCluster, tmp_path: Path) -> None:
    shared = volume_store(tmp_path, cluster)
    (shared / "runs/digits-1/spec.toml").unlink()
    (shared / "runs/digits-1/spec.toml").mkdir()  # also root cannot read that
    output = invoke(*CLEAN, "--yes")
    assert output.returncode == 1 and "could not access the files on the run volume" in output.stderr
    assert len(Store(str(shared / "store")).list()) == 2
