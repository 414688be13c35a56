"""A copy of another user's run: what its spec names is on his machine, and nothing of this one is sent for it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.agent import pack
from spotmpi.api import runs as api
from spotmpi.api import volume_entries
from spotmpi.backends.kubernetes import pull as pulling
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.targets import Target
from spotmpi.core import wording
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.names import SWEEPS, RunPaths
from spotmpi.entries.manifest import DATASET, Manifest, describe
from spotmpi.entries.store import Store
from spotmpi.plan import cluster_plan, manifests
from spotmpi.runs import fingerprint, ownership, reader, recorded_plan
from spotmpi.runs.pod_output import RunCache, parse
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import from_values, load_spec
from tests.cloud.cluster import objects
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import RUN, condition
from tests.cloud.cluster.store import Object
from tests.unit.archives import Entry, archive, entry, folder, link
from tests.unit.backends.kubernetes.run_volume import FakeVolume, pull

IMAGE = {"image": "any"}
VOLUME = {**IMAGE, "volume": "runs"}


def failed(values: Object, name: str = RUN) -> Object:
    """The JobSet of another user's run that has failed, with his spec."""
    spec = from_values({"command": ["x"], "launcher": "none", "kubernetes": IMAGE, **values})
    annotations = {
        cluster_plan.ANNOTATION_SPEC: json.dumps(spec.model_dump(mode="json", exclude_defaults=True)),
        manifests.ANNOTATION_OWNER: "eve",
    }
    jobset = objects.jobset(status=condition("Failed"), annotations=annotations)
    return {**jobset, "metadata": {**jobset["metadata"], "name": name}}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that nobody else may have."""
    path = tmp_path / "home" / "credentials"
    path.parent.mkdir()
    path.write_text("aws_secret_access_key = 1")
    return path


def resume(cluster: FakeCluster, runs: Path, values: Object, *overrides: str) -> Any:
    """The plan of the resumption of a run of which this terminal has only what the cluster says."""
    cluster.put(failed(values))
    target = Target("kubernetes", runs)
    assert spotmpi.status(RUN, target).owner == "eve"
    return api.plan_resume(RUN, overrides, target)


@pytest.mark.parametrize("further", [[], ["nodes=2"], ["files+=['other.py']"]])
@pytest.mark.parametrize("field", ["files", "code", "env_passthrough", "kubernetes.templates", "dataset"])
def test_what_anothers_spec_names_on_this_machine_is_not_sent(
    runs: Path, cluster: FakeCluster, secret: Path, field: str, further: list[str]
) -> None:
    (runs.parent / "other.py").touch()
    specs: dict[str, tuple[str, Object]] = {
        "files": (str(secret), {"files": [str(secret)]}),
        "code": (str(secret.parent), {"code": str(secret.parent)}),
        "env_passthrough": ("HOME", {"env_passthrough": ["HOME"]}),
        "kubernetes.templates": (
            str(secret),
            {"kubernetes": {**IMAGE, "templates": [str(secret), "configmap:theirs"]}},
        ),
        # The function would be called here, with the file, and the data set be copied to the run volume.
        "dataset": ("sets:ratings", {"dataset": {"build": "sets:ratings", "arguments": {"raw": str(secret)}}}),
    }
    value, values = specs[field]

    with pytest.raises(InputError) as refused, wording.of_commands():
        resume(cluster, runs, values, *further)

    (problem,) = refused.value.problems
    assert (problem.field, problem.value) == (field, value)
    what = "is named by the spec of a run that was not submitted from here; name what to send yourself, with "
    assert problem.remedy.endswith(f"of your machine {what}--set {field}=...")


def test_no_file_of_this_machine_that_anothers_command_names_is_read(
    runs: Path, cluster: FakeCluster, secret: Path
) -> None:
    """A hash of it in the JobSet would be one that everybody could compare with guesses."""
    plan = resume(cluster, runs, {"command": ["cat", str(secret)]})
    assert fingerprint.hash_files([secret]) not in json.dumps(plan)


def test_what_anothers_run_makes_is_kept_here_only_under_a_name_that_is_given_again(
    runs: Path, cluster: FakeCluster
) -> None:
    """Else it would be the newest version of a model of this user."""
    cluster.put(failed({"keep": "digits"}))
    assert spotmpi.status(RUN, Target("kubernetes", runs)).owner == "eve"
    paths = RunPaths(runs / RUN)
    assert ownership.load_for_resume(paths, []).keep is None
    assert ownership.load_for_resume(paths, ["keep=theirs"]).keep == "theirs"
    ownership.mark(paths)
    assert ownership.load_for_resume(paths, []).keep == "digits"


def test_entries_of_this_users_store_are_copied_to_the_volume_for_runs_from_here_alone(
    runs: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's spec may name any entry by its key; those that his run has read are on the volume."""
    sent: list[str] = []

    def refuse(*arguments: Any) -> None:
        raise SpotmpiError("submitted")

    monkeypatch.setattr(volume_entries, "send", lambda spec, plan, echo: sent.append(spec.data.path))
    monkeypatch.setattr(api, "submit", refuse)
    place = f"store/datasets/mine/{'0' * 64}/files"
    cluster.put(failed({"data": place}))
    target = Target("kubernetes", runs)
    assert spotmpi.status(RUN, target).owner == "eve"
    for expected in ([], [place]):
        with pytest.raises(SpotmpiError, match="submitted"):
            spotmpi.resume(RUN, on=target, detach=True)
        assert sent == expected
        ownership.mark(RunPaths(runs / RUN))


def test_what_is_named_again_is_sent(runs: Path, cluster: FakeCluster, secret: Path) -> None:
    values = {"files": ["/theirs/train.py"], "env_passthrough": ["TOKEN"]}
    plan = resume(cluster, runs, values, f"files=['{secret}']", "env_passthrough=['HOME']")
    assert plan["notes"][-1].startswith("code: 1 file,")
    assert cluster_plan.forwarded_variables(plan["objects"]) == ["HOME"]
    assert "notes" in resume(cluster, runs, values, "files=[]", "env_passthrough=[]")
    assert resume(cluster, runs.parent / "others", {}), "a spec that sends nothing needs no word"


def test_a_run_that_was_submitted_from_here_sends_its_files_again(tmp_path: Path, secret: Path) -> None:
    paths = RunPaths(tmp_path / RUN)
    paths.folder.mkdir()
    spec = from_values({"command": ["x"], "files": [str(secret)]})
    paths.spec.write_text(spec.to_toml())
    paths.plan.write_text('{"backend": "kubernetes", "namespace": "here"}')
    with pytest.raises(InputError, match=r"files = .*/credentials"):
        ownership.load_for_resume(paths, [])
    ownership.mark(paths)
    assert ownership.load_for_resume(paths, []) == spec


def reproduce(cluster: FakeCluster, runs: Path, values: Object) -> Any:
    """Make a file in the copy of another user's run again, on the cluster."""
    cluster.put(failed(values))
    target = Target("kubernetes", runs)
    assert spotmpi.status(RUN, target).owner == "eve"
    (runs / RUN / "out.txt").write_text("42")
    return spotmpi.reproduce(str(runs / RUN / "out.txt"), on=target)


@pytest.mark.parametrize("field", ["env_passthrough", "dataset"])
def test_to_make_anothers_file_again_on_a_cluster_sends_nothing_that_its_spec_names(
    runs: Path, cluster: FakeCluster, secret: Path, field: str
) -> None:
    named = {"env_passthrough": ["HOME"], "dataset": {"build": "sets:ratings", "arguments": {"raw": str(secret)}}}
    with pytest.raises(InputError, match=rf"{field} = .* is named by the spec of a run that was not submitted from"):
        reproduce(cluster, runs, {field: named[field]})


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set in this user's store, by its place on a run volume."""
    monkeypatch.setenv("SPOTMPI_STORE", str(tmp_path / "store"))
    file = tmp_path / "salaries.csv"
    file.write_text("salary\n1\n")
    found = Manifest(
        kind=DATASET, name="mine", key="0" * 64, created=1.7e9, files=(describe(file, file.name),), run="predict-1"
    )
    Store().add(found, {file.name: str(file)})
    return f"store/datasets/mine/{'0' * 64}/files"


def test_entries_of_this_users_store_are_not_copied_to_the_volume_to_make_anothers_file_again(
    runs: Path, cluster: FakeCluster, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a resumption: their spec may name any entry by its key; those that their run has read are on the volume."""
    sent: list[str] = []
    cluster.put(objects.of_kind("PersistentVolumeClaim", "runs", spec={"accessModes": ["ReadWriteMany"]}))

    def refuse(backend: Any, spec: JobSpec, *arguments: Any) -> None:
        assert spec.data
        raise SpotmpiError(f"submitted with {spec.data.path}")

    monkeypatch.setattr(volume_entries, "send", lambda spec, plan, echo: sent.append(spec.data.path))
    monkeypatch.setattr(api, "submit", refuse)
    for expected in ([], [mine]):
        with pytest.raises(SpotmpiError, match=f"submitted with {mine}"):
            reproduce(cluster, runs, {"data": mine, "kubernetes": VOLUME})
        assert sent == expected
        ownership.mark(RunPaths(runs / RUN))


@pytest.mark.parametrize("field", ["data", "init"])
def test_a_name_of_an_entry_in_anothers_spec_is_not_looked_up_in_this_users_store(
    runs: Path, cluster: FakeCluster, mine: str, field: str
) -> None:
    """A spec that was submitted has places: a name would give the newest version, of whoever makes the file again."""
    name = {"data": "datasets:mine", "init": "models:mine"}[field]
    with pytest.raises(InputError, match=rf"{field} = '{name}': this entry of your store is named by the spec of a"):
        reproduce(cluster, runs, {field: name, "kubernetes": VOLUME})


@pytest.mark.parametrize("field", ["files", "code"])
def test_code_of_which_anothers_record_says_nothing_is_not_sent_to_make_a_file_again(
    runs: Path, cluster: FakeCluster, secret: Path, field: str
) -> None:
    """Of code that the record names the content has to be the same, so who wrote that has it."""
    named: Object = {"files": [str(secret)], "code": str(secret.parent)}
    with pytest.raises(SpotmpiError, match=rf"the code of run {RUN} is not what it was"):
        reproduce(cluster, runs, {field: named[field]})


def test_no_interpreter_that_pods_name_runs_a_file_of_this_user_again_here(
    runs: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have left it in the folder of the run, which was pulled: the command is this user's, and that is not."""
    cluster.put(failed({"command": ["python3", "-c", "print(42)"]}))
    target, paths = Target("kubernetes", runs), RunPaths(runs / RUN)
    assert spotmpi.status(RUN, target).id == RUN
    ownership.mark(paths)
    planted = paths.folder / "python3"
    planted.touch(0o755)
    (paths.folder / "out.txt").write_text("42")
    work = {"interpreter": str(planted), "machine": {}}
    paths.summary.write_text(json.dumps({"version": 1, "id": RUN, "state": "succeeded", "work": work, "attempts": []}))
    assert reader.work(paths)["interpreter"] == str(planted)
    started: list[Any] = []

    def start(spec: JobSpec, on: Any) -> Any:
        started.append(spec.command)
        raise SpotmpiError("started")

    monkeypatch.setattr("spotmpi.api.reproduce.runs.run", start)
    with pytest.raises(SpotmpiError, match="started"):
        spotmpi.reproduce(str(paths.folder / "out.txt"))
    assert started == [["python3", "-c", "print(42)"]]


def forged_pull(
    volume: FakeVolume,
    paths: RunPaths,
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    others: Sequence[Entry] = (),
) -> None:
    answer = paths.folder.parents[1] / "answer.tar"
    entries = [entry(name, content=content) for name, content in files.items()]
    answer.write_bytes(archive(*entries, *others, entry(pack.LEFT_OUT, content=b"{}")))
    monkeypatch.setattr(pulling, "_PACK", f"import sys; sys.stdout.buffer.write(open({str(answer)!r}, 'rb').read())")
    pull(volume.cluster, paths)


@pytest.mark.parametrize("plan", [b'{"backend": "local", "folder": "/", "name": "n"}', b"[]", None])
def test_a_downloaded_run_is_one_of_its_cluster_and_not_of_this_terminal(
    local: RunPaths, volume: FakeVolume, plan: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another plan `--resume` would run the pod's command on this machine."""
    files = {
        "events.jsonl": b'{"t": 1, "event": "failed"}\n',
        "spec.toml": b'command = ["x"]\nenv_passthrough = ["HOME"]\n',
    }
    files |= {".own": b"", ".lock": b"x"} | ({"plan.yaml": plan} if plan else {})
    forged_pull(volume, local, files, monkeypatch)

    assert recorded_plan.cluster_of(local) == ("this", "here") and not local.own.exists()
    assert recorded_plan.read(local).folder is None
    with pytest.raises(InputError, match="env_passthrough = 'HOME'"):
        ownership.load_for_resume(local, [])


@pytest.mark.parametrize("submitted_here", [True, False])
def test_what_a_run_cost_and_had_for_nodes_is_asked_of_aws_and_not_taken_from_its_folder(
    local: RunPaths, volume: FakeVolume, submitted_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of a run can write there that it was cheap."""
    if submitted_here:
        local.folder.mkdir(parents=True)
        ownership.mark(local)
        local.bill.write_text("ours")
    forged_pull(volume, local, {"bill.json": b"{}", "nodes.json": b"{}", "metrics.jsonl": b""}, monkeypatch)
    assert local.metrics.is_file() and not local.nodes.exists()
    assert (local.bill.read_text() == "ours") if submitted_here else not local.bill.exists()


def test_a_download_does_not_change_the_spec_of_a_run_that_was_submitted_from_here(
    local: RunPaths, volume: FakeVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.folder.mkdir(parents=True)
    local.spec.symlink_to("nowhere")
    ownership.mark(local)
    forged_pull(volume, local, {"spec.toml": b'command = ["theirs"]\n', "metrics.jsonl": b""}, monkeypatch)
    assert local.spec.is_symlink() and not local.spec.exists() and local.metrics.is_file()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (".reserve", ".own"),
        ("metrics.jsonl", "plan.yaml"),
        ("logs/1/node-0.log", "../../.own"),
        ("logs/1/node-0.log", "../../plan.yaml"),
    ],
)
def test_a_link_in_a_downloaded_record_leads_no_output_of_its_pods_to_the_plan_or_the_mark(
    local: RunPaths, volume: FakeVolume, name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a follower would mark another's run as its own, or spoil the plan, by which it is not a local one."""
    files = {
        "events.jsonl": b'{"t": 1, "event": "failed"}\n',
        "spec.toml": b'command = ["x"]\nenv_passthrough = ["HOME"]\n',
    }
    forged_pull(volume, local, files, monkeypatch, [link(name, target)])
    entries = [
        '{"n":1,"l":[1,"node/0",1,5.0,0,"o","hi"]}',
        '{"n":2,"m":{"t":5,"kind":"metric","attempt":1,"member":"node/0"}}',
    ]

    with RunCache(local) as cache:
        cache.write(each for line in entries if (each := parse(line)))

    assert recorded_plan.cluster_of(local) == ("this", "here") and not local.own.exists()
    with pytest.raises(InputError, match="env_passthrough = 'HOME'"):
        ownership.load_for_resume(local, [])
    assert not [path for path in local.folder.rglob("*") if path.is_symlink()]


def test_a_download_with_folders_in_the_place_of_files_of_the_record_can_be_followed(
    local: RunPaths, volume: FakeVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["metrics.jsonl", "attempts/x/node-0.json", "logs/x/node-0.log", "logs/1/node-x.log", "logs/²/node-0.log"]
    forged_pull(volume, local, {"events.jsonl": b""}, monkeypatch, [folder(f"{each}/deep") for each in names])
    with RunCache(local) as cache:
        cache.write([entry for entry in [parse('{"n":1,"l":[1,"node/0",1,5.0,0,"o","hi"]}')] if entry])
    assert reader.state(local).state == reader.ELSEWHERE and reader.attempts(local) == []
    assert "hi" in (local.logs / "1" / "node-0.log").read_text()


@pytest.mark.parametrize("plan", ["", "{", "[]", "[" * 100_000])
def test_a_run_whose_plan_cannot_be_read_is_not_continued(tmp_path: Path, plan: str) -> None:
    """It may be another's."""
    paths = RunPaths(tmp_path / RUN)
    paths.folder.mkdir()
    paths.spec.write_text('command = ["x"]\nenv_passthrough = ["HOME"]\n')
    paths.plan.write_text(plan)
    with pytest.raises(InputError, match=r"its plan\.yaml cannot be read"):
        ownership.load_for_resume(paths, [])


def test_a_jobset_that_is_called_like_the_folder_of_sweeps_is_no_run(runs: Path, cluster: FakeCluster) -> None:
    (runs / SWEEPS).mkdir(parents=True)
    cluster.put(*(failed({}, name) for name in (SWEEPS, "..", "a/b", "/tmp/x", "good")))
    assert [state.id for state in KubernetesBackend(runs).list()] == ["good"]
    assert [paths.id for paths in reader.every(runs)] == ["good"] and not list((runs / SWEEPS).iterdir())


def test_every_field_that_sends_something_is_known() -> None:
    """A new field that is read from this machine belongs to `ownership._SENT`."""
    described = [
        name
        for name, field in JobSpec.model_fields.items()
        if re.search("of your code|copied|this terminal", str(field.description))
    ]
    assert sorted([*described, "kubernetes.templates", "dataset"]) == sorted(ownership._SENT)
    assert load_spec.__doc__ and "relative paths" in load_spec.__doc__
