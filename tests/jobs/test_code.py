"""The user's code: what of a folder is taken along, and which way it goes to a cluster."""

from __future__ import annotations

import asyncio
import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from jobs import code_folder, work
from jobs.backends import code_shipping, volume_access
from jobs.backends.code_shipping import shipment
from jobs.errors import InputError, SpotmpiError
from jobs.plan.site import Site
from jobs.spec import JobSpec, from_values
from tests.jobs.test_volume_access import VOLUME, VolumeCluster


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print('one')\n")
    (folder / "run.sh").write_text("exec python train.py\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "lib" / "data.py").write_text("")
    (folder / "notes.log").write_text("ignored")
    (folder / ".gitignore").write_text("*.log\n")
    return folder


KEPT = [".gitignore", "lib/data.py", "run.sh", "train.py"]


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)


def spec(code: Path, **values: Any) -> JobSpec:
    return from_values({"command": ["./run.sh"], "launcher": "none", "code": str(code), **values})


def site(volume: str | None) -> Site:
    return Site(namespace="here", image="image", volume=volume, node_selector={}, tolerations=(), spread="any")


def test_what_git_ignores_stays_behind_in_a_checkout_and_out_of_one(code: Path) -> None:
    assert code_folder.names(code) == KEPT
    git(code, "init", "--quiet")
    git(code, "add", "train.py")
    assert code_folder.names(code) == KEPT
    (code / "train.py").unlink()
    assert code_folder.names(code) == KEPT[:-1]
    assert code_folder.names(code / "lib") == ["data.py"]


def test_the_same_files_give_the_same_archive_and_keep_their_right_to_be_started(code: Path) -> None:
    packed = code_folder.pack(code)
    with tarfile.open(fileobj=io.BytesIO(packed.archive)) as archive:
        assert {member.name: oct(member.mode) for member in archive} == {
            **dict.fromkeys(KEPT, "0o644"),
            "run.sh": "0o755",
        }
    assert (packed.files, packed.size) == (4, 40)
    (code / "notes.log").write_text("more")
    assert code_folder.pack(code) == packed
    (code / "train.py").write_text("print('two')\n")
    assert code_folder.pack(code).digest != packed.digest


def test_what_cannot_be_taken_along_is_named_with_a_remedy(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "gone").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"code = 'gone': is a link that leads to no file"):
        code_folder.pack(code)
    (code / "gone").unlink()
    monkeypatch.setattr(code_folder, "LARGEST", 20)
    with pytest.raises(InputError, match=r"is more than 0 MiB; put data elsewhere"):
        code_folder.pack(code)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no file that git does not ignore"):
        code_folder.pack(tmp_path / "empty")


def test_little_code_goes_in_the_config_map(code: Path) -> None:
    found = shipment(spec(code), site(None))
    assert found is not None and not found.by_volume
    assert found.carried == {"user.tgz": found.packed.archive} and found.archive == "/spotmpi/config/user.tgz"
    assert found.note == f"code: 4 files, 0 kB ({found.packed.digest}), by ConfigMap"
    assert shipment(from_values({"command": ["true"]}), site(None)) is None


def test_much_code_goes_by_the_run_volume_or_not_at_all(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.plan.ship.LARGEST", 100)
    found = shipment(spec(code), site("claim"))
    assert found is not None and found.carried == {}
    assert found.archive == f"/spotmpi/volume/code/{found.packed.digest}.tgz" and "by the run volume" in found.note
    with pytest.raises(InputError, match=r"0 kB go without a run volume; set kubernetes\.volume"):
        shipment(spec(code), site(None))


class Store(VolumeCluster):
    """A cluster whose volume's store of code is a folder here."""

    def _run(self, name: str, command: Any, given: bytes) -> subprocess.CompletedProcess[bytes]:
        store = str(self.root / "code")
        self.commands.append((name, command))
        return subprocess.run(
            [part.replace("/spotmpi/volume/code", store) for part in command], input=given, capture_output=True
        )


def test_code_is_stored_once_under_its_digest_and_never_half(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_access, "_LOOK", 0.01)
    packed = code_folder.pack(code)
    plan = {"code": {"digest": packed.digest, "by_volume": True}}

    def store() -> None:
        asyncio.run(code_shipping.store(Store(tmp_path / "volume"), plan, spec(code), VOLUME, lambda text: None))  # type: ignore[arg-type]

    store()
    (kept,) = (tmp_path / "volume" / "code").iterdir()
    assert kept.name == f"{packed.digest}.tgz" and kept.read_bytes() == packed.archive
    written = kept.stat().st_mtime_ns
    store()
    assert kept.stat().st_mtime_ns == written

    (code / "train.py").write_text("print('two')\n")
    with pytest.raises(SpotmpiError, match="has changed since the run was planned; start it again"):
        store()


def test_code_makes_runs_different_work_and_what_is_ignored_does_not(code: Path) -> None:
    before = work.identify(spec(code), here=False)
    (code / "notes.log").write_text("more")
    assert not work.differences(before, work.identify(spec(code), here=False))
    (code / "lib" / "data.py").write_text("x = 1\n")
    (difference,) = work.differences(before, work.identify(spec(code), here=False))
    assert difference.startswith("code.code: ")
