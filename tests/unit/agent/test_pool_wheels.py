"""Dask in pods whose images bring it, bring another version, or do not bring it."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import boot, hardware, pool_wheels
from spotmpi.agent.clock import CLOCK
from spotmpi.agent.context import AgentContext
from spotmpi.agent.node import unpack_code, write_environment
from spotmpi.agent.plan import COORDINATOR
from spotmpi.agent.pool_wheels import Manifest, select
from tests.unit.agent.agent_process import mounts_below
from tests.unit.archives import tar_of

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
DRIVER = {"python": PYTHON, "distributed": "2026.8.0", "cloudpickle": "3.1.2", "msgpack": "1.2.4"}
LOCKED = {  # version, and the oldest one that does as well
    "distributed": ("2026.8.0", "2026.8.0"),
    "dask": ("2026.8.0", "2026.8.0"),
    "cloudpickle": ("3.1.2", "3.0.0"),
    "msgpack": ("1.2.4", "1.0.2"),
    "click": ("8.5.1", "8.1"),
    "zict": ("3.0.0", "3.0.0"),
}
MANIFEST: Manifest = {
    "pythons": {python: list(LOCKED) for python in ("3.10", PYTHON, "3.14")},
    "wheels": {name: {"name": name, "version": locked, "minimum": low} for name, (locked, low) in LOCKED.items()},
}
NOTHING: dict[str, str] = {}
WHOLE = {name: version for name, (version, _) in LOCKED.items()}


def selected(own: dict[str, str], driver: dict[str, str] | None = DRIVER) -> set[str]:
    return set(select(MANIFEST, PYTHON, own.get, driver))


@pytest.mark.parametrize("driver", [DRIVER, None])
def test_wheels_stand_in_for_what_an_image_lacks_or_has_too_old(driver: dict[str, str] | None) -> None:
    assert selected({}, driver) == set(LOCKED)
    assert selected(WHOLE, driver) == set()
    assert selected({**WHOLE, "distributed": "2025.1.0", "dask": "2025.1.0"}, driver) == {"distributed", "dask"}
    assert selected({"click": "8.1.7", "zict": "2.2.0"}, driver) == set(LOCKED) - {"click"}
    assert selected({"dask": "2026.9.0"}, driver) == set(LOCKED), "ours accepts one version of dask"


def test_versions_that_a_driver_shares_are_its_own_and_those_of_a_command_may_be_newer() -> None:
    newer = {**WHOLE, "distributed": "2026.9.0", "dask": "2026.9.0", "msgpack": "1.3.0"}
    assert selected(newer, None) == set()
    assert selected(newer) == {"distributed", "dask", "msgpack"}
    assert selected(newer, {**DRIVER, "distributed": "2026.9.0", "msgpack": "1.3.0"}) == set()
    message = "distributed is 2026.9.0 in the image and 2026.8.0 in spotmpi's wheels and 2026.10.1 in the driver"
    with pytest.raises(hardware.Incompatible, match=message):
        selected(newer, {**DRIVER, "distributed": "2026.10.1"})


def test_a_python_without_wheels_needs_an_image_with_dask() -> None:
    assert select(MANIFEST, "3.99", WHOLE.get, None) == []
    message = r"Python 3\.99 has no compatible package distributed, .* 3\.10 to 3\.14 only"
    with pytest.raises(hardware.Incompatible, match=message):
        select(MANIFEST, "3.99", NOTHING.get, None)


@pytest.mark.parametrize(
    ("python", "driver", "message"),
    [
        (
            "3.10",
            "3.12",
            r"has Python 3\.10 and the driver Python 3\.12, .*: use an image with Python 3\.12, or a driver",
        ),
        ("3.9", None, r"the image has Python 3\.9, and pools and streams need 3\.10 or newer"),
    ],
)
def test_a_python_that_differs_from_the_drivers_or_is_too_old_is_refused(
    python: str, driver: str | None, message: str
) -> None:
    with pytest.raises(hardware.Incompatible, match=message):
        pool_wheels.require_python(python, {**DRIVER, "python": driver} if driver else None)
    pool_wheels.require_python("3.10", None)


def test_without_wheels_the_image_has_to_fit() -> None:
    with pytest.raises(hardware.Incompatible, match=r"has no package distributed, .* or add distributed==2026\.8\.0$"):
        pool_wheels.require_own(PYTHON, NOTHING.get, DRIVER)
    with pytest.raises(
        hardware.Incompatible, match=r"msgpack is 1\.0\.8 in the image and 1\.2\.4 in the driver: use the same"
    ):
        pool_wheels.require_own(PYTHON, {**WHOLE, "msgpack": "1.0.8"}.get, DRIVER)
    pool_wheels.require_own(PYTHON, {"distributed": "2026.9.0"}.get, None)


class Pod:
    """A pod with the pieces of an archive, whose image has no Dask."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool_wheels, "installed_version", lambda name: None)
        self.mounts = mounts_below(str(folder))
        self.pieces, self.folder = folder / "pieces", folder / "work" / "wheels"
        for each in (self.pieces, self.folder.parent):
            each.mkdir()
        modules = {f"{name}/{name}.py": f"NAME = {name!r}\n".encode() for name in LOCKED}
        archive = tar_of({"manifest.json": json.dumps(MANIFEST).encode(), **modules}, "w:xz")
        for number, start in enumerate(range(0, len(archive), 20)):
            (self.pieces / str(number)).write_bytes(archive[start : start + 20])
        wheels = {
            "name": "spotmpi-wheels-1",
            "folder": str(self.pieces),
            "architecture": platform.machine(),
            "sha256": hashlib.sha256(archive).hexdigest(),
        }
        driver = {"restart": "gang", "environment": {}}
        roles = [driver, {"restart": "each", "environment": {}}]
        self.plan: Any = {"launcher": "pool", "roles": roles, "hosts": [""], "versions": DRIVER, "wheels": wheels}
        self.plan["environment"] = {"PYTHONPATH": "/code"}


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(tmp_path, monkeypatch)


def test_the_pieces_are_joined_and_unpacked_and_found_after_the_folders_of_user_and_image(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool_wheels.install(pod.plan, str(pod.folder), CLOCK)
    assert sorted(path.name for path in pod.folder.iterdir()) == sorted(f"{name}.py" for name in LOCKED)
    assert (pod.folder / "zict.py").read_text() == "NAME = 'zict'\n"
    assert "which the image lacks: click 8.5.1, cloudpickle 3.1.2, dask 2026.8.0" in capsys.readouterr().err
    monkeypatch.setattr("spotmpi.agent.node._interface", lambda context: "lo")
    monkeypatch.setenv(boot.ENV_IMAGE_PATH, "/image")
    environment = write_environment(AgentContext(pod.plan, COORDINATOR, 0, None, pod.mounts, CLOCK), 1)
    assert environment["PYTHONPATH"] == f"/code:/image:{pod.folder}"
    assert boot.ENV_IMAGE_PATH not in environment


def test_nothing_is_left_of_wheels_that_another_process_has_unpacked_meanwhile(pod: Pod) -> None:
    pod.folder.mkdir()
    (pod.folder / "zict.py").touch()
    with pytest.raises(OSError, match="not empty"):
        pool_wheels.install(pod.plan, str(pod.folder), CLOCK)
    assert [path.name for path in pod.folder.parent.iterdir()] == [pod.folder.name]


def test_an_image_with_dask_uses_its_own(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_wheels, "installed_version", WHOLE.get)
    (pod.pieces / "0").write_text("nobody reads it")
    pool_wheels.install(pod.plan, str(pod.folder), CLOCK)
    assert not pod.folder.exists()


def test_damaged_pieces_are_refused_with_their_name(pod: Pod) -> None:
    (pod.pieces / "1").write_bytes(b"?")
    with pytest.raises(OSError, match=r"are damaged \(\d+ bytes, .*: delete the ConfigMaps spotmpi-wheels-1-\*"):
        pool_wheels.install(pod.plan, str(pod.folder), CLOCK)
    assert not pod.folder.exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("machine", "riscv64", "this node has riscv64: set kubernetes.node_selector"), ("libc_ver", ("", ""), "no glibc")],
)
def test_wheels_of_another_machine_are_refused(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, message: str
) -> None:
    monkeypatch.setattr(platform, name, lambda: value)
    with pytest.raises(hardware.Incompatible, match=message):
        pool_wheels.install(pod.plan, str(pod.folder), CLOCK)


def test_runs_that_are_no_pools_need_no_dask(pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_wheels, "installed_version", lambda name: None)
    plan: Any = {"roles": [{"restart": "gang"}], "folder": str(tmp_path / "user")}
    unpack_code(AgentContext(plan, COORDINATOR, 0, None, pod.mounts, CLOCK))
    assert (tmp_path / "user").is_dir() and not pod.folder.exists()
