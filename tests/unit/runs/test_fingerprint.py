import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core import code_folder
from spotmpi.core.errors import InputError
from spotmpi.runs import data_fingerprint, fingerprint
from spotmpi.spec.job import JobSpec


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "a data set's folder"
    (data / "inner").mkdir(parents=True)
    (data / "b.txt").write_text("two")
    (data / "inner" / "a.txt").write_text("one")
    return data


def digits(**values: Any) -> JobSpec:
    return JobSpec(image="chainermn", program="digits", **values)


def test_small_data_is_identified_by_its_content_whatever_its_path_and_time(data: Path, tmp_path: Path) -> None:
    os.mkfifo(data / "inner" / "pipe")  # whoever opened it would wait
    first = data_fingerprint.identify(data)
    moved = tmp_path / "elsewhere"
    data.rename(moved)
    os.utime(moved / "b.txt", (1, 1))
    second = data_fingerprint.identify(moved)
    assert (first["files"], first["bytes"]) == (2, 6)
    assert first["content"] == second["content"] is not None
    assert first["state"] != second["state"]
    assert data_fingerprint.same(first, second)


def test_one_changed_byte_of_equal_size_and_time_and_a_renamed_file_are_different_data(data: Path) -> None:
    changed, renamed = (shutil.copytree(data, data.with_name(name)) for name in ("changed", "renamed"))
    (changed / "b.txt").write_text("twO")
    (renamed / "b.txt").rename(renamed / "c.txt")
    assert not data_fingerprint.same(data_fingerprint.identify(data), data_fingerprint.identify(changed))
    assert not data_fingerprint.same(data_fingerprint.identify(data), data_fingerprint.identify(renamed))


def test_big_data_is_not_read_at_the_start_but_when_two_places_are_compared(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_fingerprint, "HASHED_AT_START", 5)
    original = data_fingerprint.identify(data)
    duplicate = data_fingerprint.identify(shutil.copytree(data, tmp_path / "copy"))
    assert original["content"] is duplicate["content"] is None
    assert data_fingerprint.same(original, duplicate)
    assert data_fingerprint.identify(data)["content"] == data_fingerprint.with_content(original)["content"] is not None


def test_big_data_that_changed_since_cannot_be_taken_for_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_fingerprint, "HASHED_AT_START", 5)
    original = data_fingerprint.identify(data)
    copy = shutil.copytree(data, tmp_path / "copy")
    (data / "b.txt").write_text("twO")
    assert data_fingerprint.with_content(original)["content"] is None
    assert not data_fingerprint.same(original, data_fingerprint.identify(copy))


def test_a_cache_that_cannot_be_written_costs_only_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "a file"))
    assert data_fingerprint.identify(data)["content"] is not None


def test_links_to_folders_that_contain_them_are_not_followed_for_ever(data: Path) -> None:
    """Each of two would double the files at each of 40 levels."""
    before = data_fingerprint.identify(data)
    (data / "current").symlink_to(".")
    (data / "again").symlink_to(data)
    assert data_fingerprint.identify(data) == before


def test_a_missing_data_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone.*cannot be read"):
        fingerprint.identify(digits(data=str(tmp_path / "gone")))


@pytest.mark.parametrize(
    ("args", "seed"),
    [
        (["--seed", "7"], 7),
        (["--seed=-1"], -1),
        (["--seed=1", "--seed", "2"], 2),
        (["--epochs", "3"], None),
        (["--seed"], None),
        (["--seed", "x"], None),
    ],
)
def test_the_seed_is_read_from_the_arguments(args: list[str], seed: int | None) -> None:
    """Of several the last one, which is the program's: the first one was recorded."""
    assert fingerprint.identify(digits(args=args))["seed"] == seed


def test_work_is_the_same_for_any_number_of_nodes_and_slots() -> None:
    assert fingerprint.differences(fingerprint.identify(digits()), fingerprint.identify(digits(nodes=4, slots=2))) == []


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (digits(args=["--seed", "2"]), "args: none, --seed 2"),
        (digits(env={"X": "1"}), "env.X: none, 1"),
        (digits(resources={"cpu": 2}), "resources.cpu: 1, 2"),
        (JobSpec(image="pytorch", program="digits"), "image.name: chainermn, pytorch"),
        (JobSpec(image="chainermn", program="ssd"), "program: digits, ssd"),
    ],
)
def test_a_difference_is_reported_with_both_values(changed: JobSpec, difference: str) -> None:
    assert difference in fingerprint.differences(fingerprint.identify(digits()), fingerprint.identify(changed))


def test_declared_differences_are_not_reported() -> None:
    changed = fingerprint.identify(digits(args=["--double-buffering"], env={"A": "b"}))
    assert fingerprint.differences(fingerprint.identify(digits()), changed, declared=["args"]) == ["env.A: none, b"]


def test_another_machine_is_different_work_but_a_newer_kernel_is_not() -> None:
    original = fingerprint.identify(digits())
    newer = {**original, "machine": {**original["machine"], "system": "Linux 99"}}
    bigger = {**original, "machine": {**original["machine"], "cores": 512}}
    assert fingerprint.differences(original, newer) == []
    assert fingerprint.differences(original, bigger) == [f"machine.cores: {original['machine']['cores']}, 512"]


def test_a_run_on_a_cluster_is_identified_without_reading_local_data() -> None:
    one = fingerprint.identify(digits(data="/only/there"), local=False)
    assert (one["machine"], one["data"]["path"], one["data"]["content"]) == (None, "/only/there", None)
    assert fingerprint.differences(one, fingerprint.identify(digits(data="/only/there"), local=False)) == []
    other = fingerprint.identify(digits(data="/other"), local=False)
    assert fingerprint.differences(one, other) == ["data: /only/there, /other"]
    local = {**one, "machine": fingerprint.describe_machine()}
    assert fingerprint.differences(one, local)[0].startswith("machine: none, ")


@pytest.mark.parametrize("key", ["data", "init", "stream.source"])
def test_a_version_of_a_store_is_the_same_wherever_the_store_is_and_another_one_is_not(key: str) -> None:
    """On a cluster a run reads the copy on the run volume: it was other work than the same run on this machine."""

    def work(store: str, digit: str, kind: str = "models" if key == "init" else "datasets") -> dict[str, Any]:
        place = f"{store}/{kind}/ratings/{digit * 64}/files"
        values = {"stream": {"source": place, "batch": 4}} if key == "stream.source" else {key: place}
        spec = digits(**values)
        spec = spec if key == "stream.source" else JobSpec(command=["train.py"], launcher="none", **values)
        return fingerprint.identify(spec, local=False)

    here, copy, other = work("/home/me/store", "a"), work("store", "a"), work("/home/me/store", "b")
    assert fingerprint.differences(here, copy) == fingerprint.differences(copy, here) == []
    (line,) = fingerprint.differences(copy, other)
    assert line.startswith(f"{key}: store/")
    (line,) = fingerprint.differences(here, work("/home/me/store", "a", "datasets" if key == "init" else "models"))
    assert line.startswith(f"{key}: ")


def command(script: Path) -> JobSpec:
    return JobSpec(command=["python3", str(script)], launcher="none")


def test_a_script_is_known_by_its_content_and_its_own_checkout(tmp_path: Path) -> None:
    script = tmp_path / "our\nrepo" / "it's mine.py"
    script.parent.mkdir()
    script.write_text("print(1)")

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(script.parent), *who, *arguments], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = fingerprint.identify(command(script))
    assert len(clean["code"]["commit"]) == 40 and clean["code"]["diff"] is None
    for record in ("runs/train-1/events.jsonl", "runs/sweeps/train-2/sweep.json"):
        (script.parent / record).parent.mkdir(parents=True)
        (script.parent / record).touch()
    assert fingerprint.identify(command(script)) == clean
    (script.parent / "beside.py").write_text("")
    identity = fingerprint.identify(command(script))
    assert identity["code"]["diff"] is not None
    assert fingerprint.differences(clean, identity) == []
    script.write_text("print(2)")
    changed = fingerprint.identify(command(script))
    assert changed["code"]["diff"] not in (None, identity["code"]["diff"])
    assert fingerprint.differences(clean, changed)[0].startswith(f"code.{script}: ")


def test_a_command_outside_any_checkout_has_no_commit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    code = fingerprint.identify(command(script))["code"]
    assert (code["commit"], code["diff"], list(code["files"])) == (None, None, [str(script)])


def test_the_commit_is_that_of_the_code_and_not_of_an_interpreter_in_another_checkout(tmp_path: Path) -> None:
    def git(name: str, *arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path / name), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    commits = {}
    for name, file in (("pyenv", "python3"), ("mine", "flow.py")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(name)
        git(name, "init")
        git(name, "add", ".")
        git(name, "commit", "-m", name)
        commits[name] = git(name, "rev-parse", "HEAD")
    python, flow = str(tmp_path / "pyenv" / "python3"), str(tmp_path / "mine" / "flow.py")
    with_files = JobSpec(command=[python, "-m", "flow"], files=[flow], launcher="none")
    assert fingerprint.identify(with_files)["code"]["commit"] == commits["mine"]
    assert fingerprint.identify(JobSpec(command=[python, flow], launcher="none"))["code"]["commit"] == commits["mine"]
    alone = JobSpec(command=[python, "-m", "installed"], launcher="none")
    assert fingerprint.identify(alone)["code"]["commit"] is None


def test_files_are_part_of_the_work(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("one")
    spec = JobSpec(command=["x"], launcher="none", files=[str(tmp_path / "lib")])
    before = fingerprint.identify(spec)

    (tmp_path / "lib" / "a.py").write_text("two")

    assert list(before["code"]["files"]) == ["lib"]
    assert fingerprint.differences(before, fingerprint.identify(spec))[0].startswith("code.lib: ")


def test_data_among_the_code_is_known_by_size_and_time_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_folder, "LARGEST", 5)
    code, pipe = tmp_path / "code", tmp_path / "pipe"
    code.mkdir()
    os.mkfifo(pipe)
    (code / "pipe").symlink_to(pipe)
    data, script = code / "data.bin", code / "train.py"
    data.write_bytes(b"123456")
    os.utime(data, (1, 1))
    script.write_text("one")

    def identity() -> str:
        return str(fingerprint.identify(JobSpec(command=["x"], launcher="none", code=str(code)))["code"]["files"])

    before = identity()
    data.write_bytes(b"abcdef")
    os.utime(data, (1, 1))
    assert identity() == before
    os.utime(data, (2, 2))
    after = identity()
    assert after != before
    script.write_text("two")
    assert identity() != after


def test_the_open_mpi_of_this_machine_is_that_of_its_own_runs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 9.8.7'\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = JobSpec(command=["x"], launcher="mpirun")
    assert fingerprint.identify(spec)["versions"] == {"open_mpi": "9.8.7"}
    assert fingerprint.identify(spec, local=False)["versions"] == {}
