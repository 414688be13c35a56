"""Dask for images without it: the locked wheels, fetched by uv once and packed for every Python that a pool runs with.

The archive is a tar.xz without times and owners of this machine. Its first file, `pool_wheels.MANIFEST`,
names the folder of each wheel and its version, the oldest version of an image that does as well, and which folders
each minor version of Python needs. Tests of the packages and optional libraries that nothing here uses are left out.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import lzma
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from spotmpi.agent import store
from spotmpi.agent.files import is_file, is_folder
from spotmpi.agent.pool_wheels import MANIFEST, Manifest, Wheel, numbers
from spotmpi.core import archives, names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.images.environment import run_uv

LOCK = names.IMAGES / "pool" / "wheels.lock"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}  # by the name that Kubernetes has for them
_PROBE = """
import importlib.util, sys
print("%d.%d" % sys.version_info[:2], importlib.util.find_spec("distributed") is not None)
"""
_FORMAT = 1  # of the archive
_PLATFORM = "manylinux_2_17"  # runs with glibc 2.17 and newer
_PRESET = 2  # of xz: 3 s for 5 MB, where the default takes 12 s for 4.5 MB
_OMITTED = re.compile(
    r"^\.\.|^bin/|(^|/)(tests|__pycache__)/|\.dist-info/(RECORD|INSTALLER|REQUESTED|[^/]*\.json)$|(^|/)_yaml\..*\.so$"
)
_REQUIREMENT = re.compile(r"^Requires-Dist: ([\w.-]+)[^;\n]*>=\s*([\d.]+)", re.MULTILINE)


def unpack_for(python: str, echo: Callable[[str], None], named: str | None = None) -> Path | None:
    """The folder with Dask for an interpreter of this machine; None if that has Dask, or is of another minor version.

    *named* is the word of a command that names it.

    Raises:
        InputError: the command's own interpreter is of another version, and without Dask.
        SpotmpiError: the wheels cannot be fetched or unpacked.
    """
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    probe = subprocess.run([python, "-c", _PROBE], capture_output=True, encoding="utf-8", errors="replace")
    version, _, has_dask = probe.stdout.strip().partition(" ")
    if probe.returncode or has_dask != "False":
        return None
    if version != own:
        if named is None:
            return None
        remedy = f"is Python {version} without Dask, and the workers run with Python {own}, as spotmpi does: use"
        raise input_error("command", named, f"{remedy} python{own}, or the spotmpi of that Python's environment")
    packed = pack(platform.machine(), echo)
    interpreter = archives.digest(f"{python} {own}".encode())  # of a path that another version may take over
    folder = names.cache_folder() / "wheels" / f"{packed.digest}-{interpreter}"
    if not is_folder(folder):
        source = names.path_entry(str(names.rank_source()), "spotmpi", "set SPOTMPI_CACHE to another folder")
        with tempfile.NamedTemporaryFile() as file:
            file.write(packed.archive)
            file.flush()
            command = [python, "-m", "spotmpi.agent.pool_wheels", file.name, packed.architecture, str(folder)]
            environment = {**os.environ, "PYTHONPATH": source}
            process = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", env=environment)
        if process.returncode and not is_folder(folder):
            last = process.stderr.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            raise SpotmpiError(f"could not unpack Dask for {python}: {last[0]}")
    return folder if is_folder(folder) else None


class PackedWheels(NamedTuple):
    """The archive for one architecture."""

    architecture: str
    archive: bytes

    @property
    def sha256(self) -> str:
        """The SHA-256 of the archive, in hexadecimal digits."""
        return hashlib.sha256(self.archive).hexdigest()

    @property
    def digest(self) -> str:
        """Sixteen hex digits that name the archive."""
        return archives.digest(self.archive)


def pack(architecture: str, echo: Callable[[str], None]) -> PackedWheels:
    """The archive for ``x86_64`` or ``aarch64``, from the cache folder where it has been packed before.

    Raises:
        SpotmpiError: uv is missing or cannot fetch the wheels, or the cache folder cannot be written.
    """
    identity = json.dumps([_FORMAT, architecture, _PLATFORM, PYTHONS, LOCK.read_text(encoding="utf-8")])
    path = names.cache_folder() / "wheels" / f"{archives.digest(identity.encode())}.tar.xz"
    if is_file(path):
        return PackedWheels(architecture, path.read_bytes())
    echo("fetching the wheels of Dask for an image without it (once)")
    packed = PackedWheels(architecture, lzma.compress(_tar(_collect(architecture)), preset=_PRESET))
    try:
        store.put(str(path), io.BytesIO(packed.archive), [len(packed.archive), packed.sha256])
    except OSError as error:
        raise names.cache_error(path.parent, error) from error
    return packed


class _Installed(NamedTuple):
    """A wheel as it is installed: its files by path."""

    name: str
    version: str
    files: dict[str, bytes]

    @property
    def folder(self) -> str:
        content = b"".join(f"{path}\0{len(data)}\0".encode() + data for path, data in sorted(self.files.items()))
        return f"{self.name}-{self.version}-{archives.digest(content)[:8]}"


def _collect(architecture: str) -> dict[str, list[_Installed]]:
    """The wheels that each minor version of Python needs."""
    wheels = {}
    for python in PYTHONS:
        with tempfile.TemporaryDirectory(prefix="spotmpi-wheels-") as folder:
            platform = ["--python-version", python, "--python-platform", f"{architecture}-{_PLATFORM}"]
            options = ["--quiet", "--only-binary", ":all:", "--require-hashes", "--no-deps", "--link-mode", "copy"]
            arguments = ["pip", "install", "--target", folder, *platform, *options, "--requirements", str(LOCK)]
            run_uv(*arguments, purpose=f"fetch the wheels of {LOCK.name}")
            wheels[python] = list(_installed(Path(folder)))
    return wheels


def _installed(folder: Path) -> Iterator[_Installed]:
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        name, _, version = record.parent.name.removesuffix(".dist-info").rpartition("-")
        paths = [row[0] for row in csv.reader(io.StringIO(record.read_text(encoding="utf-8"))) if row]
        files = {path: (folder / path).read_bytes() for path in paths if not _OMITTED.search(path)}
        yield _Installed(name, version, files)


def _tar(wheels: dict[str, list[_Installed]]) -> bytes:
    """The archive before it is compressed."""
    distinct = {wheel.folder: wheel for each in wheels.values() for wheel in each}
    minimum = _minimum_versions(distinct.values())
    manifest: Manifest = {
        "pythons": {python: [wheel.folder for wheel in each] for python, each in wheels.items()},
        "wheels": {folder: _entry(wheel, minimum) for folder, wheel in sorted(distinct.items())},
    }
    files = [
        archives.Member(f"{folder}/{path}", content)
        for folder, wheel in sorted(distinct.items())
        for path, content in sorted(wheel.files.items())
    ]
    return archives.tar([archives.Member(MANIFEST, json.dumps(manifest).encode()), *files])


def _entry(wheel: _Installed, minimum: dict[str, str]) -> Wheel:
    oldest = wheel.version if wheel.name == "distributed" else minimum.get(_normalized(wheel.name), "0")
    return {"name": wheel.name, "version": wheel.version, "minimum": oldest}


def _minimum_versions(wheels: Iterable[_Installed]) -> dict[str, str]:
    """The oldest version of each package that all the wheels accept."""
    minimum: dict[str, str] = {}
    for wheel in wheels:
        metadata = wheel.files[f"{wheel.name}-{wheel.version}.dist-info/METADATA"].decode()
        for requirement, version in _REQUIREMENT.findall(metadata.partition("\n\n")[0]):
            name = _normalized(requirement)
            minimum[name] = max(minimum.get(name, "0"), version, key=numbers)
    return minimum


def _normalized(name: str) -> str:
    return re.sub("[-_.]+", "_", name).lower()
