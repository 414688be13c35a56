"""The packed wheels of Dask, with a uv that installs small packages; the lock is the real one."""

from __future__ import annotations

import io
import itertools
import json
import lzma
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core import names
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.images import wheels
from spotmpi.programs.pool import settings


def install(*arguments: str, purpose: str) -> None:
    """What `uv pip install --target` writes, of four packages (seen with uv 0.13)."""
    options = dict(itertools.pairwise(arguments))
    folder, python = Path(options["--target"]), options["--python-version"]
    requires = "Requires-Dist: zict>=2.9\nRequires-Dist: uvloop>=0.1; extra == 'fast'\n"
    packages = {
        ("distributed", "2026.8.0"): {"distributed/__init__.py": "", "distributed/tests/test_it.py": "assert True"},
        ("zict", "3.0.0"): {"zict/__init__.py": "1"},
        ("cloudpickle", "3.1.2"): {"cloudpickle/__init__.py": "2"},
        ("msgpack", "1.2.4"): {f"msgpack/_cmsgpack.cpython-{python.replace('.', '')}-x86_64-linux-gnu.so": python},
    }
    for (name, version), files in packages.items():
        info = f"{name}-{version}.dist-info"
        metadata = f"Name: {name}\n{requires if name == 'distributed' else ''}\nRequires-Dist: click>=99 in the text"
        written = {**files, f"{info}/METADATA": metadata, f"{info}/INSTALLER": "uv", "bin/tool": "#!/somewhere"}
        written[f"{info}/RECORD"] = "".join(f"{path},sha256=x,1\n" for path in [*written, "../../bin/other"])
        for path, text in written.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(names, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(wheels, "run_uv", install)
    return tmp_path / "cache"


def content(packed: wheels.PackedWheels) -> tuple[Any, set[str]]:
    """The manifest, and the names of the other files."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(packed.archive))) as tar:
        first, *others = tar.getnames()
        manifest = tar.extractfile(first)
        assert manifest is not None
        return json.load(manifest), set(others)


def test_wheels_that_are_the_same_for_all_pythons_are_packed_once_and_without_tests(cache: Path) -> None:
    manifest, files = content(wheels.pack("x86_64", lambda text: None))
    folders = manifest["pythons"]
    assert set(folders) == {"3.10", "3.11", "3.12", "3.13", "3.14"}
    (distributed,) = {each[1] for each in folders.values()}
    assert len({each[2] for each in folders.values()}) == len(folders), "compiled for each"
    assert {name for name in files if name.startswith(distributed)} == {
        f"{distributed}/distributed/__init__.py",
        f"{distributed}/distributed-2026.8.0.dist-info/METADATA",
    }
    assert len(files) == 2 + 2 + 2 + len(folders) * 2
    minimum = {each["name"]: each["minimum"] for each in manifest["wheels"].values()}
    assert minimum == {"distributed": "2026.8.0", "zict": "2.9", "msgpack": "0", "cloudpickle": "0"}


def test_packing_is_done_once_for_each_architecture(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    first = wheels.pack("x86_64", messages.append)
    assert wheels.pack("aarch64", messages.append).architecture == "aarch64"
    monkeypatch.setattr(wheels, "run_uv", None)
    assert wheels.pack("x86_64", messages.append) == first
    assert messages == ["fetching the wheels of Dask for an image without it (once)"] * 2


def test_a_cache_folder_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(SpotmpiError, match=r"cannot write .*/cache/wheels: .*; set SPOTMPI_CACHE to a folder"):
        wheels.pack("x86_64", lambda text: None)


def test_an_interpreter_without_dask_gets_a_folder_of_what_it_lacks(cache: Path, tmp_path: Path) -> None:
    bare = tmp_path / "python 3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    folder = wheels.unpack_for(str(bare), lambda text: None)
    assert folder is not None and folder.parent == cache / "wheels"
    assert (folder / "zict" / "__init__.py").read_text() == "1" and not (folder / "distributed" / "tests").exists()
    assert wheels.unpack_for(str(bare), lambda text: None) == folder


def test_a_colon_in_the_folder_of_the_agent_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed spotmpi has it in the cache folder; PYTHONPATH would split it."""
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(names, "rank_source", lambda: tmp_path / "21:43" / "source")
    with pytest.raises(InputError, match=r"21:43/source.*has a colon.*set SPOTMPI_CACHE to another folder"):
        wheels.unpack_for(str(bare), lambda text: None)


def test_an_interpreter_with_dask_or_of_another_version_gets_nothing(cache: Path, tmp_path: Path) -> None:
    assert wheels.unpack_for(sys.executable, lambda text: None) is None
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 3.99 False\n")
    other.chmod(0o755)
    assert wheels.unpack_for(str(other), lambda text: None) is None, "a script may choose another one"
    with pytest.raises(
        InputError, match=r"command = 'python3': is Python 3.99 without Dask, and .* use python3\.\d+, or"
    ):
        wheels.unpack_for(str(other), lambda text: None, "python3")
    assert not cache.exists()


def locked_versions(lock: Path) -> dict[str, str]:
    """The version of each package in a lock file; where it depends on Python, that of the newest."""
    return dict(re.findall(r"^([\w.-]+)==([^ ;\\]+)", lock.read_text(), re.MULTILINE))


def test_the_lock_has_the_versions_of_our_images_and_of_spotmpi_itself() -> None:
    locked = locked_versions(wheels.LOCK)
    assert {"dask", "tornado", *settings.versions()} - {"python"} <= set(locked)
    for lock in (names.PROJECT / "requirements.lock", *names.IMAGES.glob("*/requirements.lock")):
        other = locked_versions(lock)
        for name in ("distributed", "dask", "cloudpickle", "msgpack"):
            assert other[name] == locked[name]
