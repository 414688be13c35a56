"""Models: kept from runs as numbered versions, compared, promoted, pulled and removed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.agent import protocol, record
from spotmpi.agent.plan import COORDINATOR
from spotmpi.agent.record import Record
from spotmpi.api import models as api
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.names import RunPaths, default_runs_folder
from spotmpi.entries.manifest import MODEL, Reference
from spotmpi.entries.storage import Storage
from spotmpi.entries.store import Store
from spotmpi.entries.versions import Versions
from spotmpi.programs.checkpoint import Checkpoints, TrainingIdentity, TrainingProgress
from tests.command_line import invoke
from tests.unit.entries.test_store import entry

np = pytest.importorskip("numpy")


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in a folder, and one behind a URL; runs in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv(
        "SPOTMPI_STORE", str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path}"
    )
    return Store()


def run(
    name: str, loss: float = 0.5, end: str | None = record.SUCCEEDED, args: str = "5", data: Reference | None = None
) -> RunPaths:
    """The record of a run with a checkpoint as a program writes it; one under way where *end* is None."""
    paths = RunPaths(default_runs_folder() / name)
    paths.folder.mkdir(parents=True)
    paths.spec.write_text(
        f'command = ["train.py"]\nargs = ["--epochs", "{args}"]\nprice = 1.5\n[env]\nTOKEN = "hidden"\n'
    )
    work = {
        "program": "train.py",
        "args": ["--epochs", args],
        "code": {"files": {"train.py": "c" * 64}, "commit": "d" * 40, "diff": None},
        "image": {"name": "pytorch", "lock": "e" * 64},
        "data": {
            **{"path": Store().place(data) if data else "/data/raw", "content": None, "state": "f" * 64},
            **{"files": 3, "bytes": 9, "listing": "a" * 64},
        },
        "entries": [f"{data.kind}:{data.name}@{data.key}"] if data else [],
    }
    paths.plan.write_text(json.dumps({"backend": "local", "work": work}))
    written = Record(str(paths.folder), lambda: 1_700_000_000.0)
    written.event(record.SUBMITTED, name=name)
    written.event(record.STARTED, attempt=1)
    written.metric(1, COORDINATOR, protocol.METRIC, {"iteration": 5, "loss": 9.0})
    if end:
        written.event(end)
        result = {"iteration": 5, "loss": loss, "parameters": "a1", "diverged": float("nan")}
        paths.summary.write_text(json.dumps({"work": work, "result": result}))
    written.close()
    checkpoint(paths, 5, loss)
    return paths


def checkpoint(paths: RunPaths, iteration: int, value: float) -> Path:
    """Write a checkpoint as programs do."""
    checkpoints = Checkpoints(paths.checkpoints, 3, TrainingIdentity("train.py", "m", "d", 0))
    checkpoints.prepare()
    return checkpoints.write(TrainingProgress(iteration, 0, 1, 8), {"parameters/w": np.full(3, value)}, "end")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_newest_checkpoint_of_a_run_becomes_the_next_version(store: Store) -> None:
    first = run("digits-1")
    newest = checkpoint(first, 7, 0.7)
    (first.checkpoints / "iteration-000000009").mkdir()  # one that was never complete
    output = invoke("models", "keep", "digits-1", "digits")
    assert (output.returncode, output.stdout) == (0, f"digits:1  {api.find('digits').path}\n"), output.stderr
    run("digits-2", loss=0.25)
    kept = spotmpi.models.keep("digits-2", "digits", parents=["digits:1"])
    assert (str(kept), kept.version, str(api.find("digits")), str(api.find(kept.key[:9]))) == (
        "digits:2",
        2,
        "digits:2",
        "digits:2",
    )

    manifest = api.find("digits:1").manifest
    assert {file.path: file.sha256 for file in manifest.files} == {path.name: digest(path) for path in newest.iterdir()}
    assert (manifest.run, manifest.image) == ("digits-1", {"name": "pytorch", "lock": "e" * 64})
    assert manifest.code and (manifest.code.commit, manifest.code.values) == ("d" * 40, {"train.py": "c" * 64})
    assert [(each.argument, each.source, each.digest) for each in manifest.inputs] == [("data", "/data/raw", "f" * 64)]
    assert manifest.details["checkpoint"] == "iteration-000000007" and manifest.details["state"] == "succeeded"
    assert manifest.details["spec"] == {
        "command": ["train.py"],
        "args": ["--epochs", "5"],
        "price": 1.5,
        "env": ["TOKEN"],
    }
    assert kept.metrics == {"iteration": 5, "loss": 0.25, "parameters": "a1"}
    assert kept.manifest.parents == (manifest.reference,)


def test_metrics_of_a_run_without_a_result_are_its_last_scalars_and_nothing_of_its_checkpoints(store: Store) -> None:
    paths = run("digits-1")
    written = Record(str(paths.folder), lambda: 1_700_000_001.0)
    values = {"iteration": 5, "path": "/runs/digits-1", "seconds": 0.1, "reason": "end"}
    written.metric(1, COORDINATOR, protocol.CHECKPOINT, values)
    written.close()
    paths.summary.unlink()
    assert spotmpi.models.keep("digits-1", "digits").metrics == {"iteration": 5, "loss": 9.0}


def test_the_same_again_is_the_same_version(store: Store) -> None:
    run("digits-1")
    kept = [api.keep("digits-1", "digits") for _ in range(2)]
    assert kept[0].key == kept[1].key and [each.version for each in store_versions(store)] == [1]
    assert str(api.keep("digits-1", "other")) == "other:1"


def store_versions(store: Store) -> list[Any]:
    return [api.Model(each, store) for each in store.list(MODEL, "digits")]


def test_a_version_that_another_process_takes_meanwhile_is_left_to_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("digits-1")
    run("digits-2")
    write, raced = Storage.write, list[str]()

    def write_second(self: Any, name: str, content: bytes, exclusive: bool = False) -> bool:
        if ".versions" in name and not raced:
            raced.append(name)
            api.keep("digits-2", "digits")
        return write(self, name, content, exclusive)

    monkeypatch.setattr("spotmpi.entries.storage.Storage.write", write_second)
    assert (str(api.keep("digits-1", "digits")), api.find("digits:1").manifest.run) == ("digits:2", "digits-2")


def test_named_files_and_folders_are_a_model_too(store: Store) -> None:
    paths = run("digits-1")
    (paths.folder / "out/deep").mkdir(parents=True)
    (paths.folder / "out/deep/w.bin").write_text("w")
    (paths.folder / "labels.txt").write_text("a b")
    kept = api.keep("digits-1", "digits", files=["out", "labels.txt"])
    assert [file.path for file in kept.manifest.files] == ["deep/w.bin", "labels.txt"]
    (paths.folder / "empty").mkdir()
    for name in ("absent", "empty"):
        with pytest.raises(InputError, match=f"{name}.: is not a file or folder with files in"):
            api.keep("digits-1", "digits", files=[name])
    (paths.folder / "out/labels.txt").write_text("c")
    with pytest.raises(InputError, match="has the name of another one"):
        api.keep("digits-1", "digits", files=["labels.txt", "out"])


def test_what_the_run_did_not_write_into_its_folder_is_no_file_of_its_model(store: Store, tmp_path: Path) -> None:
    """Any file of the machine became one, by an absolute path, by .. or by a link."""
    paths = run("digits-1")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key.pem").write_text("k")
    (paths.folder / "out").mkdir()
    (paths.folder / "out/w.bin").write_text("w")
    (paths.folder / "out/key.pem").symlink_to(tmp_path / "secret/key.pem")
    (paths.folder / "link").symlink_to(tmp_path / "secret")
    for name in (tmp_path / "secret/key.pem", "../../secret", "..", "out/key.pem", "out", "link", "link/key.pem"):
        output = invoke("models", "keep", "digits-1", "digits", "--file", str(name))
        assert (output.returncode, len(output.stderr.splitlines())) == (2, 1), output
        assert "is outside of the folder of run digits-1, " in output.stderr, output
    assert store.list(MODEL) == []
    (paths.folder / "out/key.pem").unlink()
    (paths.folder / "newest").symlink_to(paths.folder / "out")
    for name in ("out", "newest", "out/../out", paths.folder / "out"):
        assert [file.path for file in api.keep("digits-1", "digits", files=[name]).manifest.files] == ["w.bin"]


def test_a_run_that_has_not_ended_or_has_no_checkpoint_is_refused(store: Store) -> None:
    run("digits-1", end=None)
    output = invoke("models", "keep", "digits-1", "digits")
    remedy = "is lost: a model is kept once its run has ended; `spotmpi run --resume digits-1` continues it"
    assert output.returncode == 2 and remedy in output.stderr
    shutil.rmtree(run("digits-2").checkpoints)
    output = invoke("models", "keep", "digits-2", "digits")
    assert output.returncode == 2 and "has no complete checkpoint in" in output.stderr and "--file" in output.stderr
    run("digits-3").spec.write_text("[")
    output = invoke("models", "keep", "digits-3", "digits")
    assert output.returncode == 2 and "digits-3/spec.toml': is not TOML: " in output.stderr
    with pytest.raises(InputError, match="use up to 100 letters"):
        api.keep("digits-2", "a:b")
    with pytest.raises(InputError, match="is not in the store"):
        api.keep("digits-2", "digits", files=["spec.toml"], parents=["base:1"])
    assert store.list() == []


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_not_kept(store: Store, name: str) -> None:
    paths = run("digits-1")
    (paths.checkpoints / "iteration-000000005" / name).write_bytes(b"x")
    with pytest.raises(SpotmpiError, match="the newest checkpoint of run digits-1 is damaged, iteration-000000005"):
        api.keep("digits-1", "digits")
    assert store.list() == []


def test_a_full_disk_leaves_no_version_and_the_next_call_gets_its_number(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("digits-1")

    def fail(*arguments: Any) -> bool:
        raise SpotmpiError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("spotmpi.entries.storage.Storage.create", fail)
        assert "No space left" in invoke("models", "keep", "digits-1", "digits").stderr
    assert invoke("models", "show", "digits:1").returncode == 2
    assert str(api.keep("digits-1", "digits")) == "digits:1"


def test_data_sets_of_the_run_are_parents_and_have_to_be_in_the_store(store: Store, tmp_path: Path) -> None:
    data, sources = entry(tmp_path)
    run("digits-1", data=data.reference)
    with pytest.raises(SpotmpiError, match=r"has read datasets:ratings@a{12}, which .* does not have: name the store"):
        api.keep("digits-1", "digits")
    store.add(data, sources)
    kept = api.keep("digits-1", "digits").manifest
    assert kept.parents == (data.reference,) == tuple(each.parent for each in kept.inputs)
    shutil.rmtree(default_runs_folder())
    assert invoke("why", "models:digits:1").stdout.count("data set datasets:ratings@") == 1
    assert "is a parent of models:digits" in invoke("data", "rm", "ratings").stderr


def test_aliases_name_versions_and_have_a_history(store: Store) -> None:
    for number in (1, 2):
        run(f"digits-{number}", loss=number / 4)
        api.keep(f"digits-{number}", "digits")
    assert invoke("models", "promote", "digits:1", "prod").stdout == "digits:prod is digits:1\n"
    promoted = json.loads(invoke("models", "promote", "digits", "prod", "--json").stdout)
    assert (promoted["name"], promoted["alias"], promoted["version"]) == ("digits", "prod", 2)
    assert invoke("models", "promote", "digits:2", "prod").returncode == 0  # it is already
    assert str(api.find("models:digits:prod")) == "digits:2"
    assert [each.version for each in store.versions(MODEL, "digits").history("prod")] == [1, 2]
    shown = json.loads(invoke("models", "show", "digits:prod", "--json").stdout)
    assert [each["version"] for each in shown["history"]["prod"]] == [1, 2]
    lines = invoke("models", "show", "digits:prod").stdout.splitlines()
    assert "history of digits:prod:" in lines and ["version 1, by" in line for line in lines[-2:]] == [True, False]
    refused = invoke("models", "promote", "digits:1", "prod", "--remove")
    assert refused.returncode == 2 and "does not name digits:1, but digits:2" in refused.stderr
    assert invoke("models", "promote", "digits:2", "prod", "--remove").stdout == "digits:prod was removed\n"
    unknown = invoke("models", "show", "digits:prod")
    assert unknown.returncode == 2 and "it has: digits:1, digits:2" in unknown.stderr
    for alias in ("1", "a b", "../x", ""):
        assert "a letter is first" in invoke("models", "promote", "digits", alias).stderr


def test_of_two_promotions_at_once_one_holds_and_the_other_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    for number in (1, 2):
        run(f"digits-{number}")
        kept.append(api.keep(f"digits-{number}", "digits").manifest)
    append, raced = Versions.append, list[bool]()

    def append_second(*arguments: Any) -> None:
        if not raced:
            raced.append(True)
            store.promote(kept[1], "prod", "ann", 1.0)
        append(*arguments)

    monkeypatch.setattr(Versions, "append", append_second)
    output = invoke("models", "promote", "digits:1", "prod")
    assert output.returncode == 1
    assert output.stderr == (
        "spotmpi: digits:prod was changed by ann meanwhile, and names digits:2: look at it, then promote again\n"
    )
    assert str(api.find("digits:prod")) == "digits:2"


def test_a_version_that_is_removed_while_it_is_promoted_is_named_by_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        run(f"digits-{number}")
        api.keep(f"digits-{number}", "digits")
    api.promote("digits:1", "prod")
    append = Versions.append

    def remove_first(*arguments: Any) -> None:
        monkeypatch.setattr(Versions, "append", append)
        api.remove("digits:2")
        append(*arguments)

    monkeypatch.setattr(Versions, "append", remove_first)
    assert "digits:2 was removed meanwhile" in invoke("models", "promote", "digits:2", "prod").stderr
    assert str(api.find("digits:prod")) == "digits:1"


def test_rm_refuses_what_an_alias_an_entry_or_a_run_names(store: Store) -> None:
    for number in (1, 2, 3):
        run(f"digits-{number}", loss=number)
        api.keep(f"digits-{number}", "digits", parents=["digits:1"] if number == 2 else [])
    api.promote("digits:3", "prod")
    refused = invoke("models", "rm", "digits:3")
    assert refused.returncode == 1 and "digits:3 is digits:prod: promote another version" in refused.stderr
    assert "is a parent of models:digits@" in invoke("models", "rm", "digits:1").stderr
    other = RunPaths(default_runs_folder() / "later-1")
    other.folder.mkdir()
    other.spec.write_text(f'data = "{api.find("digits:2").path}"\n')
    assert "is read by run later-1" in invoke("models", "rm", "digits:2").stderr
    other.spec.unlink()
    removed = json.loads(invoke("models", "rm", "digits:2", "digits:1", "--json").stdout)
    assert [each["version"] for each in removed] == [2, 1]
    run("digits-4")
    assert str(api.keep("digits-4", "digits")) == "digits:4"


def test_rm_of_the_newest_twice_or_beside_its_number_removes_no_other_version_and_nothing_beside_an_unknown_one(
    store: Store,
) -> None:
    for number in (1, 2, 3):
        run(f"digits-{number}", loss=number)
        api.keep(f"digits-{number}", "digits")
    assert invoke("models", "rm", "digits", "digits:9").returncode == 2
    assert invoke("models", "rm", "digits:3", "digits", "digits").stdout == "removed digits:3\n"
    assert [each.title for each in store.list(MODEL)] == ["digits:1", "digits:2"]


def test_what_a_run_reads_may_be_removed_under_another_name(store: Store) -> None:
    run("digits-1")
    read, other = api.keep("digits-1", "digits"), api.keep("digits-1", "numbers")
    assert read.key == other.key
    later = RunPaths(default_runs_folder() / "later-1")
    later.folder.mkdir()
    later.spec.write_text(f'init = "{read.path}"\n')
    assert invoke("models", "rm", "numbers").stdout == "removed numbers:1\n"
    assert "is read by run later-1: remove its record first" in invoke("models", "rm", "digits").stderr
    shutil.copytree(later.folder, later.folder.with_name("later-2"))
    assert "is read by runs later-1, later-2: remove their records" in invoke("models", "rm", "digits").stderr


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("--from=models:digits@{key}", True),
        ("digits@{short}", True),
        ("models:digits:1", True),
        ("models:digits:12", False),
        ("digits:1", False),  # may be the tag of an image
        ("datasets:digits@{key}", False),
        ("my-digits@{key}", False),
        ("digits@ffffff", False),
    ],
)
def test_rm_refuses_what_the_arguments_of_a_run_name(store: Store, text: str, is_named: bool) -> None:
    """Only the folder that `data` and `init` have was looked for."""
    run("digits-1")
    kept = api.keep("digits-1", "digits")
    later = RunPaths(default_runs_folder() / "later-1")
    later.folder.mkdir()
    later.spec.write_text(f'command = ["train.py"]\nargs = ["{text.format(key=kept.key, short=kept.key[:12])}"]\n')
    output = invoke("models", "rm", "digits:1")
    assert ("is read by run later-1" in output.stderr, output.returncode) == (is_named, int(is_named)), output


def test_a_key_without_a_name_has_six_digits_or_more_and_the_error_for_fewer_says_so(store: Store) -> None:
    run("digits-1")
    kept = api.keep("digits-1", "digits")
    assert str(api.find(kept.key[:6])) == str(api.find(f"digits@{kept.key[:1]}")) == "digits:1"
    output = invoke("models", "show", kept.key[:5])
    assert output.returncode == 2 and "a KEY without a name has 6 digits or more" in output.stderr, output
    assert "6 digits" not in invoke("models", "show", "letters").stderr
    assert "its first digits, 6 or more" in " ".join(invoke("models", "show", "--help").stdout.split())


def test_list_and_diff_compare_versions(store: Store) -> None:
    run("digits-1", loss=0.5)
    run("digits-2", loss=0.25, args="10")
    for number in (1, 2):
        api.keep(f"digits-{number}", "digits")
    api.promote("digits:2", "prod")
    lines = invoke("models", "list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "KEY", "ALIASES", "CREATED", "MB", "FILES", "RUN", "METRICS"]
    assert [line.split()[0] for line in lines[1:]] == ["digits:1", "digits:2"]
    assert lines[2].split()[2] == "prod" and lines[2].endswith("digits-2  iteration=5 loss=0.25")
    listed = json.loads(invoke("models", "list", "digits", "--json").stdout)
    assert [(each["version"], each["aliases"], each["run"]) for each in listed] == [
        (1, [], "digits-1"),
        (2, ["prod"], "digits-2"),
    ]
    compared = invoke("models", "diff", "digits:1", "digits:prod").stdout.splitlines()
    assert compared[:2] == ["spec args: ['--epochs', '5'], ['--epochs', '10']", "metric loss: 0.5, 0.25"]
    assert [line.split(":")[0] for line in compared[2:]] == ["file state.safetensors"]
    assert json.loads(invoke("models", "diff", "digits:1", "digits:2", "--json").stdout) == compared
    assert invoke("models", "diff", "digits:1", "digits:1").stdout == "nothing that counts differs\n"
    run("digits-3", loss=0.25, args="10")
    api.keep("digits-3", "digits")
    assert invoke("models", "diff", "digits:2", "digits:3").stdout == "nothing that counts differs\n"


def test_show_and_why_lead_from_a_model_to_its_run_code_and_image(store: Store) -> None:
    paths = run("digits-1")
    api.keep("digits-1", "digits")
    api.promote("digits:1", "prod")
    shown = invoke("models", "show", "digits").stdout
    assert "version 1, metrics iteration=5, loss=0.5" in shown and "run digits-1, train.py --epochs 5" in shown.replace(
        "command ", ""
    )
    why = invoke("why", "models:digits:prod").stdout
    assert f"─ code train.py {'c' * 12}, commit {'d' * 12}" in why.splitlines()[2]
    assert why.splitlines()[0].startswith("model models:digits@") and "input /data/raw" in why
    shutil.rmtree(paths.folder)
    shown = invoke("models", "show", "digits").stdout
    for text in (
        "run digits-1",
        "code train.py --epochs 5, commit dddddddddddd",
        "image pytorch",
        "input data = /data/raw",
    ):
        assert text in shown


def test_pull_copies_a_model_complete_or_not_at_all(store: Store, tmp_path: Path) -> None:
    paths = run("digits-1")
    kept = api.keep("digits-1", "digits")
    output = invoke("models", "pull", "digits")
    assert output.returncode == 0 and output.stdout.startswith("digits:1 -> digits-1 (")
    source = paths.checkpoints / "iteration-000000005"
    assert {path.name: digest(path) for path in Path("digits-1").iterdir()} == {
        p.name: digest(p) for p in source.iterdir()
    }
    assert json.loads(invoke("models", "pull", "digits", "--json").stdout)["folder"] == str(tmp_path / "digits-1")
    Path("digits-1/more.txt").write_text("")
    refused = invoke("models", "pull", "digits:1")
    assert refused.returncode == 2 and "exists and is not digits:1: remove it" in refused.stderr
    store.storage.remove(f"models/digits/{kept.key}/files/state.safetensors")
    store.storage.write(f"models/digits/{kept.key}/files/state.safetensors", b"rot")
    damaged = invoke("models", "pull", "digits:1", "elsewhere")
    assert damaged.returncode == 1 and "digits:1 is damaged, state.safetensors" in damaged.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if "elsewhere" in path.name) == []


def test_verify_finds_aliases_of_versions_that_were_deleted_by_hand(store: Store) -> None:
    for number in (1, 2):
        run(f"digits-{number}")
        api.keep(f"digits-{number}", "digits")
    for alias, version in (("old", 1), ("beta", 2), ("prod", 2)):
        api.promote(f"digits:{version}", alias)
    api.promote("digits:2", "beta", remove=True)
    store.storage.write("models/a stray file", b"")
    store.storage.remove(f"models/digits/{store.find('digits:2').key}")
    lost = "digits:prod names digits:2, which is missing from the store "
    for words in ((), ("digits:1",)):
        output = invoke("models", "verify", *words)
        line, last = output.stdout.splitlines()
        assert line.startswith(lost) and line.endswith("from a store that has it, or promote another version")
        assert (output.returncode, last) == (1, "1 model read, 1 problem")
    store.storage.remove(f"models/digits/{store.find('digits:1').key}")
    assert len(json.loads(invoke("models", "verify", "--json").stdout)["problems"]) == 2


def test_verify_finds_damaged_files_and_edited_manifests_and_histories(store: Store) -> None:
    run("digits-1")
    kept = api.keep("digits-1", "digits")
    api.promote("digits:1", "prod")
    assert invoke("models", "verify").stdout == "1 model read, 0 problems\n"
    top = f"models/digits/{kept.key}"
    store.storage.remove(f"{top}/files/state.safetensors")
    store.storage.write("models/digits/.aliases/prod/000001", b"{}")
    output = invoke("models", "verify", "digits:1")
    assert output.returncode == 1 and "history of digits:prod was edited or damaged" in output.stdout
    assert "state.safetensors is missing" in output.stdout
    text = store.storage.read(f"{top}/manifest.json") or b""
    store.storage.write(f"{top}/manifest.json", text.replace(b"0.5", b"0.1"))
    output = invoke("models", "verify", "--json")
    assert output.returncode == 1 and "was edited or damaged" in json.loads(output.stdout)["problems"][0]
    assert "was edited or damaged" in invoke("models", "show", "digits").stderr


def test_verify_reads_the_other_entries_where_the_manifest_of_a_parent_was_edited(store: Store) -> None:
    """It ended with that line, and with nothing on the files of any entry."""
    run("digits-1")
    parent = api.keep("digits-1", "digits")
    run("digits-2", loss=0.1)
    child = api.keep("digits-2", "digits", parents=["digits:1"])
    name = f"models/digits/{parent.key}/manifest.json"
    store.storage.write(name, (store.storage.read(name) or b"").replace(b"0.5", b"0.1"))
    store.storage.remove(f"models/digits/{child.key}/files/state.safetensors")
    output = invoke("models", "verify")
    edited, missing, of_parent, read = output.stdout.splitlines()
    assert output.returncode == 1 and read == "1 model read, 3 problems"
    assert edited.startswith("the manifest ") and missing.endswith("state.safetensors is missing")
    assert (
        of_parent
        == f"models:digits@{child.key[:12]}: its parent models:digits@{parent.key[:12]} cannot be read: {edited}"
    )


def test_what_others_write_into_a_shared_store_cannot_drive_a_terminal_or_break_a_command(store: Store) -> None:
    run("digits-1")
    kept = api.keep("digits-1", "digits")
    top, storage = "models/digits", store.storage
    storage.write(f"{top}/.aliases/prod/000001", b'{"version": 1, "time": 5.0, "by": "\\u001b]0;eve\\u0007"}')
    for stray in (".versions/\N{SUPERSCRIPT TWO}", ".versions/notes", ".aliases/prod/desktop.ini"):
        storage.write(f"{top}/{stray}", b"no number")
    storage.write(f"{top}/{kept.key}/files/\x1b[2J", b"")
    shown, verified = invoke("models", "show", "digits:prod"), invoke("models", "verify")
    assert shown.stdout.endswith(r", by \x1b]0;eve\x07" + "\n")
    assert verified.returncode == 1 and r": \x1b[2J is not a file of it" in verified.stdout
    assert "\x1b" not in shown.stdout + verified.stdout
    assert invoke("models", "promote", "digits:1", "beta").returncode == 0
    run("digits-2", loss=0.1)
    assert api.keep("digits-2", "digits").version == 2
    storage.write(f"{top}/.aliases/prod/000002", b'{"version": 1, "time": 1e300, "by": "eve"}')
    late = invoke("models", "list")
    assert late.returncode == 1 and "the history of digits:prod was edited or damaged" in late.stderr


@pytest.mark.parametrize("text", ["absent", "digits:9", "digits:beta", "digits:..", "digits:1:2", "digits@ffffff"])
def test_an_unknown_model_is_one_line(store: Store, text: str) -> None:
    run("digits-1")
    api.keep("digits-1", "digits")
    for command in ("show", "pull", "rm", "verify"):
        output = invoke("models", command, text)
        assert (output.returncode, len(output.stderr.splitlines())) == (2, 1), output
