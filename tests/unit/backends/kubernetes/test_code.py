"""The user's code: what of a folder is taken along, and which way it goes to a cluster."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.clock import CLOCK
from spotmpi.agent.context import AgentContext
from spotmpi.agent.node import unpack_code
from spotmpi.agent.plan import COORDINATOR
from spotmpi.backends.kubernetes.submit import code as code_shipping
from spotmpi.backends.kubernetes.submit.code import pack
from spotmpi.core import code_folder
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.volume_pod import store_command
from spotmpi.runs import fingerprint
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import from_values
from tests.unit.agent.agent_process import mounts_below
from tests.unit.agent.gang import LIMIT, Gang
from tests.unit.backends.kubernetes.run_volume import VOLUME, FakeVolume


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "lib").mkdir(parents=True)
    texts = {
        "train.py": "print('one')\n",
        "run.sh": "exec python train.py\n",
        "lib/data.py": "",
        "notes.log": "ignored",
    }
    for name, text in {**texts, ".gitignore": "*.log\n"}.items():
        (folder / name).write_text(text)
    (folder / "run.sh").chmod(0o755)
    return folder


INCLUDED = [".gitignore", "lib/data.py", "run.sh", "train.py"]


def spec(code: Path, **values: Any) -> JobSpec:
    return from_values({"command": ["./run.sh"], "launcher": "none", "code": str(code), **values})


def target(volume: str | None) -> ClusterTarget:
    return ClusterTarget(
        namespace="here", image="image", volume=volume, node_selector={}, tolerations=(), exclusive=False
    )


def test_files_that_git_ignores_are_excluded_in_a_checkout_and_outside_of_one(code: Path) -> None:
    assert code_folder.names(code) == INCLUDED
    for arguments in (["init", "--quiet"], ["add", "train.py"]):
        subprocess.run(["git", "-C", code, *arguments], check=True)
    assert code_folder.names(code) == INCLUDED
    (code / "train.py").unlink()
    assert code_folder.names(code) == INCLUDED[:-1]
    assert code_folder.names(code / "lib") == ["data.py"]


def git(folder: Path, *arguments: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "-c", "protocol.file.allow=always", "-C", folder, *arguments], check=True)


def test_variables_of_a_git_that_started_this_command_lead_to_no_other_repository(
    code: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(code.parent, "init", "--quiet")
    (code.parent / ".gitignore").write_text("data.py\n")
    git(code.parent, "add", ".")
    git(code.parent, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "one")
    expected = [name for name in INCLUDED if not name.endswith("data.py")], fingerprint.checkout(code)
    for name, value in {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index", "GIT_WORK_TREE": str(library)}.items():
        monkeypatch.setenv(name, value)
    assert (code_folder.names(code), fingerprint.checkout(code)) == expected
    assert expected[1]["commit"] and expected[1]["diff"] is None


def test_a_repository_that_git_refuses_as_that_of_another_user_is_not_shipped_without_its_ignore_files(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(code.parent, "init", "--quiet")
    (code.parent / ".gitignore").write_text("secret.txt\n")
    (code / "secret.txt").touch()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(code))
    with pytest.raises(InputError, match=f"git cannot list its files: .* safe.directory {code.parent}"):
        code_folder.names(code)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A repository with a file and an ignored one, which clones do not have."""
    folder = tmp_path / "library"
    git(folder, "init", "--quiet")
    for name, text in (("net.py", "1"), (".gitignore", "*.o\n")):
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=first")
    return folder


@pytest.mark.parametrize("is_repository", [True, False])
def test_other_checkouts_in_the_folder_are_shipped_by_their_own_ignore_files(
    code: Path, library: Path, is_repository: bool
) -> None:
    if is_repository:
        git(code, "init", "--quiet")
        git(code, "submodule", "--quiet", "add", str(library), "third")
    git(code / "lib", "clone", "--quiet", str(library), "clone")
    git(code / "lib" / "clone", "clone", "--quiet", str(library), "deep")
    git(code / "empty", "init", "--quiet")
    (code / "lib" / "clone" / "built.o").touch()
    (code / "lib" / "clone" / "new.py").touch()
    clones = ["lib/clone/.gitignore", "lib/clone/deep/.gitignore", "lib/clone/deep/net.py", "lib/clone/net.py"]
    third = [".gitmodules", "third/.gitignore", "third/net.py"] if is_repository else []

    assert code_folder.names(code) == sorted([*INCLUDED, *clones, "lib/clone/new.py", *third])
    code_folder.pack(code).unpack(code / "unpacked")
    assert (code / "unpacked" / "lib" / "clone" / "deep" / "net.py").read_text() == "1"


def test_a_submodule_that_is_not_checked_out_has_no_files(code: Path, library: Path) -> None:
    git(code, "init", "--quiet")
    git(code, "submodule", "--quiet", "add", str(library), "third")
    git(code, "submodule", "--quiet", "deinit", "--force", "third")
    assert code_folder.names(code) == sorted([*INCLUDED, ".gitmodules"])


def test_records_of_runs_and_sweeps_are_left_out(code: Path) -> None:
    records = ["runs/train-1/events.jsonl", "runs/train-1/checkpoints/1"]
    records += ["runs/sweeps/train-2/sweep.json", "runs/sweeps/train-2/report/report.html"]
    for name in (*records, "runs/notes.txt", "conf/sweep.json"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()

    assert code_folder.names(code) == sorted([*INCLUDED, "runs/notes.txt", "conf/sweep.json"])


def test_the_file_that_takes_the_output_of_this_command_is_no_code(code: Path) -> None:
    """`spotmpi run job.toml --on lab > run.txt` said that the code had changed since the run was planned."""
    git(code, "init", "-q")
    git(code, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first", "--allow-empty")
    before, work, stdout = code_folder.pack(code), fingerprint.checkout(code), os.dup(1)
    with (code / "run.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
    try:
        assert code_folder.pack(code) == before and fingerprint.checkout(code) == work != {"commit": None, "diff": None}
        os.write(1, b"a line")
        assert code_folder.pack_planned(code, (), before.sha256) == before
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert "run.txt" in code_folder.names(code), "that of an earlier command is a file like others"


def test_the_same_files_give_the_same_archive_and_keep_their_right_to_be_started(code: Path) -> None:
    packed = code_folder.pack(code)
    with tarfile.open(fileobj=io.BytesIO(packed.archive)) as archive:
        modes = {member.name: member.mode for member in archive}
    assert modes == {**dict.fromkeys(INCLUDED, 0o644), "run.sh": 0o755}
    assert (packed.files, packed.size) == (4, 40)
    (code / "notes.log").write_text("more")
    assert code_folder.pack(code) == packed
    (code / "train.py").write_text("print('two')\n")
    assert code_folder.pack(code).digest != packed.digest


def test_files_that_cannot_be_packed_are_named_with_a_remedy(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "gone").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"code = 'gone': is a broken link"):
        code_folder.pack(code)
    (code / "gone").unlink()
    (code / "gone").symlink_to("lib")
    with pytest.raises(InputError, match=r"code = 'gone': is a link to a folder; ship the folder itself or add"):
        code_folder.pack(code)
    (code / "gone").unlink()
    monkeypatch.setattr(code_folder, "LARGEST", 20)
    with pytest.raises(InputError, match=r"is larger than 0 MiB; move data to another folder"):
        code_folder.pack(code)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large").touch()
    os.truncate(tmp_path / "data" / "large", 1 << 40)  # what no memory holds is not read
    with pytest.raises(InputError, match=r"is larger than 0 MiB; move data to another folder"):
        code_folder.pack(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is empty, or git ignores all of its files"):
        code_folder.pack(tmp_path / "empty")
    with pytest.raises(InputError, match=r"files = .*/empty': is empty, or git ignores all of its files"):
        code_folder.pack(None, [tmp_path / "empty"])


def test_files_replace_what_the_code_folder_has_under_their_names(code: Path, tmp_path: Path) -> None:
    (tmp_path / "more" / "lib").mkdir(parents=True)
    for name in ("train.py", "lib/other.py", "notes.log"):
        (tmp_path / "more" / name).write_text(name)
    files = [tmp_path / "more" / name for name in ("train.py", "lib", "notes.log")]

    sources = code_folder.sources(code, files)

    of_code = [name for name in INCLUDED if name not in ("train.py", "lib/data.py")]
    assert sources == {
        **{name: code / name for name in of_code},
        **{name: tmp_path / "more" / name for name in ("train.py", "lib/other.py", "notes.log")},
    }
    code_folder.pack(code, files).unpack(tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "train.py").read_text() == "train.py"
    assert os.access(tmp_path / "unpacked" / "run.sh", os.X_OK)


def test_a_link_is_shipped_under_its_own_name(code: Path, tmp_path: Path) -> None:
    (tmp_path / "latest.py").symlink_to(code / "train.py")

    (path,) = from_values({"command": ["x"], "files": [f"{tmp_path}/mine/../latest.py"]}).files

    assert path == str(tmp_path / "latest.py")
    assert code_folder.sources(None, [Path(path)]) == {"latest.py": tmp_path / "latest.py"}


def test_files_alone_are_shipped_too(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = from_values({"command": ["x"], "files": [str(code / "train.py")]})
    shipment = pack(spec, target(None))
    assert shipment is not None and shipment.packed.files == 1
    monkeypatch.setattr("spotmpi.core.archives.LARGEST", 100)
    problem = r"files = .*train\.py'\]: is 0 kB packed, and at most 0 kB without a run volume"
    with pytest.raises(InputError, match=problem):
        pack(spec, target(None))


def test_small_code_goes_into_the_config_map(code: Path) -> None:
    shipment = pack(spec(code), target(None))
    assert shipment is not None and not shipment.from_volume
    assert shipment.config_map_files == {"user.tgz": shipment.packed.archive}
    assert shipment.archive == "/spotmpi/config/user.tgz"
    assert shipment.agent_plan == {
        "archive": shipment.archive,
        "bytes": len(shipment.packed.archive),
        "sha256": hashlib.sha256(shipment.packed.archive).hexdigest(),
    }
    assert shipment.note == f"code: 4 files, 0 kB ({shipment.packed.digest}), through a ConfigMap"
    assert pack(from_values({"command": ["true"]}), target(None)) is None


def test_large_code_goes_through_the_run_volume_or_not_at_all(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotmpi.core.archives.LARGEST", 100)
    shipment = pack(spec(code), target("claim"))
    assert shipment is not None and shipment.config_map_files == {}
    assert shipment.archive == f"/spotmpi/volume/code/{shipment.packed.digest}.tgz"
    assert "through the run volume" in shipment.note
    with pytest.raises(InputError, match=r"0 kB without a run volume; set kubernetes\.volume"):
        pack(spec(code), target(None))


def upload(volume: FakeVolume, code: Path, digest: str | None = None) -> None:
    plan: Any = {"code": {"digest": digest or code_folder.pack(code).digest, "from_volume": True}}
    asyncio.run(code_shipping.upload(volume.cluster.api(), plan, spec(code), VOLUME, lambda text: None))


def stored(volume: FakeVolume) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in volume.archives.iterdir()}


def test_code_is_stored_once_under_its_digest(code: Path, volume: FakeVolume) -> None:
    packed = code_folder.pack(code)
    upload(volume, code)
    assert stored(volume) == {f"{packed.digest}.tgz": packed.archive}
    (archive_file,) = volume.archives.iterdir()
    mtime, calls = archive_file.stat().st_mtime_ns, len(volume.commands)
    upload(volume, code)
    assert archive_file.stat().st_mtime_ns == mtime
    assert len(volume.commands) == calls + 1  # what is there already does not travel

    (code / "train.py").write_text("print('two')\n")
    with pytest.raises(SpotmpiError, match="has changed since the run was planned; start the run again"):
        upload(volume, code, packed.digest)


def test_an_upload_to_a_volume_that_cannot_be_written_is_an_error_and_does_not_hang(
    code: Path, volume: FakeVolume
) -> None:
    (code / "weights.bin").write_bytes(os.urandom(300_000))
    volume.archives.write_text("a file where the folder should be")
    with pytest.raises(SpotmpiError, match=r"could not access the files on the run volume: .*File exists"):
        upload(volume, code)


def test_an_upload_that_is_cut_off_leaves_nothing_and_the_next_one_is_whole(code: Path, volume: FakeVolume) -> None:
    packed = code_folder.pack(code)
    volume.cluster.cut_off = len(packed.archive) // 2
    with pytest.raises(SpotmpiError, match=r"the connection into the pod broke off(: [\w ]+)?\); try"):
        upload(volume, code)
    assert stored(volume) == {}
    upload(volume, code)
    assert stored(volume) == {f"{packed.digest}.tgz": packed.archive}


@pytest.mark.parametrize("damage", [lambda whole: whole[:50], lambda whole: whole[:-1] + b"?"], ids=["half", "other"])
def test_an_archive_that_is_damaged_on_the_volume_is_uploaded_again(
    code: Path, volume: FakeVolume, damage: Callable[[bytes], bytes]
) -> None:
    packed = code_folder.pack(code)
    upload(volume, code)
    (volume.archives / f"{packed.digest}.tgz").write_bytes(damage(packed.archive))
    upload(volume, code)
    assert stored(volume) == {f"{packed.digest}.tgz": packed.archive}


def test_content_that_changes_on_its_way_is_never_stored(code: Path, volume: FakeVolume) -> None:
    packed = code_folder.pack(code)
    altered = packed.archive[:-1] + b"?"
    command = store_command("put", "/spotmpi/volume/code", "x.tgz", str(len(altered)), packed.sha256)
    result = volume.run("pod", command, altered)
    assert result.returncode == 1 and b"its SHA-256 is" in result.stderr
    assert stored(volume) == {}


def test_a_pod_unpacks_only_the_code_that_was_planned(code: Path, tmp_path: Path) -> None:
    packed = code_folder.pack(code)
    archive, folder = tmp_path / "user.tgz", tmp_path / "user"
    facts = {"archive": str(archive), "bytes": len(packed.archive), "sha256": packed.sha256}
    plan: Any = {"code": facts, "roles": [{"restart": "gang"}], "folder": str(folder)}
    context = AgentContext(plan, COORDINATOR, 0, None, mounts_below(str(tmp_path)), CLOCK)
    for damaged, message in (
        (packed.archive[:50], "it has 50 bytes,"),
        (code_folder.pack(code / "lib").archive, "it has [0-9]+ bytes,"),
    ):
        archive.write_bytes(damaged)
        remedy = "submit the run again, which uploads its code anew"
        with pytest.raises(OSError, match=f"is damaged: {message} .*; {remedy}"):
            unpack_code(context)
    archive.write_bytes(packed.archive[:-1] + b"?")
    with pytest.raises(OSError, match="is damaged: its SHA-256 is"):
        unpack_code(context)
    assert not folder.exists()
    archive.write_bytes(packed.archive)
    unpack_code(context)
    assert (folder / "train.py").read_text() == "print('one')\n" and os.access(folder / "run.sh", os.X_OK)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_starts_with_its_code_or_ends_with_the_problem(
    gang: Callable[..., Gang], code: Path, tmp_path: Path, damaged: bool
) -> None:
    packed = code_folder.pack(code)
    archive = tmp_path / "user.tgz"
    archive.write_bytes(packed.archive[:-50] if damaged else packed.archive)
    run = gang("cat", "train.py", started=0)
    run.plan["code"] = {"archive": str(archive), "bytes": len(packed.archive), "sha256": packed.sha256}
    run.plan["folder"] = str(tmp_path / "user")
    for node in (0, 1):
        run.start(node)

    if damaged:
        assert run.agents[0].wait(LIMIT) == protocol.NOT_RETRYABLE
        assert "is damaged: it has" in str(run.events()[-1].reason)
    else:
        assert run.codes() == [0, 0]
        run.printed("print('one')", node=1)


def test_changed_code_is_different_work_and_ignored_files_are_not(code: Path) -> None:
    before = fingerprint.identify(spec(code), local=False)
    (code / "notes.log").write_text("more")
    assert not fingerprint.differences(before, fingerprint.identify(spec(code), local=False))
    (code / "lib" / "data.py").write_text("x = 1\n")
    (difference,) = fingerprint.differences(before, fingerprint.identify(spec(code), local=False))
    assert difference.startswith("code.code: ")
