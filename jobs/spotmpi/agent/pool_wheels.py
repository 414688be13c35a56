"""Dask in a pod: the image's own where its version fits, else the wheels that came with the run.

The wheels are one archive, in pieces, in a mounted folder; `spotmpi.images.wheels` packs it. Of each package that the
image lacks, or has too old, the wheel is unpacked to a folder of the pod, which `write_environment` puts on PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
from typing import Callable, Dict, List, Mapping, Optional, Tuple, TypedDict

from . import hardware
from . import unpack as unpacking
from .clock import Clock
from .plan import RunPlan, Wheels

MANIFEST = "manifest.json"
OLDEST = "3.10"  # Python that Dask supports
EXACT = ("distributed", "cloudpickle", "msgpack")  # versions that a pool and its driver have in common
Driver = Optional[Mapping[str, str]]  # versions of a driver outside of the pods, or None


class Wheel(TypedDict):
    """One wheel of the archive."""

    name: str
    version: str
    minimum: str  # the oldest version of an image that does as well


class Manifest(TypedDict):
    """The first file of the archive."""

    pythons: Dict[str, List[str]]  # the folders of the wheels for each minor version of Python
    wheels: Dict[str, Wheel]  # by folder


def install(plan: RunPlan, folder: str, clock: Clock) -> None:
    """Unpack the wheels that this pod of a run with workers needs, if any, to *folder*, and say so on stderr.

    Raises:
        Incompatible: Python or Dask do not fit, and the wheels cannot help.
        OSError: the wheels cannot be read or unpacked.
    """
    python, driver, wheels = "%d.%d" % sys.version_info[:2], plan.get("versions"), plan.get("wheels")
    require_python(python, driver)
    if wheels is None:
        require_own(python, installed_version, driver)
    elif not (driver and all(installed_version(name) == driver[name] for name in EXACT)):
        started = clock.uptime()
        names = unpack(_read(wheels), wheels["architecture"], folder, python, driver)
        if names:
            seconds = clock.uptime() - started
            sys.stderr.write("unpacked in %.1f s, which the image lacks: %s\n" % (seconds, ", ".join(names)))


def require_python(python: str, driver: Driver) -> None:
    """Raise `Incompatible` where Dask, or a driver outside of the pods, needs another Python than *python*."""
    if numbers(python) < numbers(OLDEST):
        raise hardware.Incompatible(
            "the image has Python %s, and pools and streams need %s or newer" % (python, OLDEST)
        )
    if driver and driver["python"] != python:
        raise hardware.Incompatible(
            "the image has Python %s and the driver Python %s, but pickled functions need the same minor version: "
            "use an image with Python %s, or a driver with Python %s"
            % (python, driver["python"], driver["python"], python)
        )


def require_own(python: str, own: Callable[[str], Optional[str]], driver: Driver) -> None:
    """Raise `Incompatible` where the versions that the image *own*s do not fit, for a pod without wheels."""
    if own("distributed") is None:
        version = "distributed==%s" % driver["distributed"] if driver else "distributed"
        raise hardware.Incompatible(
            "the image's Python %s has no package distributed, which pools and streams need: use an image of spotmpi, "
            "or add %s" % (python, version)
        )
    for name in EXACT:
        if driver and own(name) != driver[name]:
            raise _mismatch(name, driver, own(name))


def select(manifest: Manifest, python: str, own: Callable[[str], Optional[str]], driver: Driver) -> List[str]:
    """The folders of the wheels that take the place of what the image *own*s or lacks.

    A driver outside of the pods needs its own versions; else a newer Dask than that of the wheels fits too.

    Raises:
        Incompatible: neither the image nor the wheels fit.
    """
    folders = {manifest["wheels"][each]["name"]: each for each in manifest["pythons"].get(python, ())}

    def fits(name: str) -> bool:
        version = own(name)
        if driver and name in EXACT:
            return version == driver[name]
        minimum = [wheel["minimum"] for wheel in manifest["wheels"].values() if wheel["name"] == name]
        return version is not None and numbers(version) >= max(map(numbers, minimum))

    selected = [name for name in EXACT if not fits(name)]
    if selected and not folders:
        pythons = sorted(manifest["pythons"], key=numbers)
        raise hardware.Incompatible(
            "the image's Python %s has no compatible package %s, and spotmpi has wheels for Python %s to %s only: "
            "add it to the image" % (python, selected[0], pythons[0], pythons[-1])
        )
    for name in selected:
        version = manifest["wheels"][folders[name]]["version"]
        if driver and version != driver[name]:
            raise _mismatch(name, driver, own(name), "%s in spotmpi's wheels" % version)
    if "distributed" in selected:  # which accepts one version of dask
        selected += [name for name in folders if name not in EXACT and (name == "dask" or not fits(name))]
    return [folders[name] for name in selected]


def _mismatch(name: str, driver: Mapping[str, str], own: Optional[str], *others: str) -> hardware.Incompatible:
    places = ["%s in the image" % (own or "missing"), *others, "%s in the driver" % driver[name]]
    return hardware.Incompatible("%s is %s: use the same version" % (name, " and ".join(places)))


def numbers(version: str) -> Tuple[int, ...]:
    """A version as numbers, to compare it with others."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))


def installed_version(name: str) -> Optional[str]:
    """The version of a package of this Python, or None."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def unpack(archive: bytes, architecture: str, target: str, python: str, driver: Driver) -> List[str]:
    """Unpack the wheels that this Python needs to *target*, which appears once all of them are there; their names."""
    import lzma  # few pods need them
    import tarfile

    temporary = "%s.%d.part" % (target, os.getpid())
    shutil.rmtree(temporary, ignore_errors=True)
    with lzma.open(io.BytesIO(archive)) as file, tarfile.open(fileobj=file, mode="r|") as tar:
        first = tar.next()
        assert first is not None and first.name == MANIFEST
        content = tar.extractfile(first)
        assert content is not None
        manifest: Manifest = json.loads(content.read())
        selected = select(manifest, python, installed_version, driver)
        if not selected:
            return []
        require_architecture(architecture)
        try:
            unpacking.unpack(tar, temporary, rename=lambda name: _within_wheel(name, selected))
            os.rename(temporary, target)
        finally:  # no other process has its name
            shutil.rmtree(temporary, ignore_errors=True)
    return sorted("%(name)s %(version)s" % manifest["wheels"][each] for each in selected)


def _read(wheels: Wheels) -> bytes:
    """The archive; OSError where it is not the one that was sent."""
    names = sorted((name for name in os.listdir(wheels["folder"]) if name.isdecimal()), key=int)
    data = b""
    for name in names:
        with open(os.path.join(wheels["folder"], name), "rb") as file:
            data += file.read()
    digest = hashlib.sha256(data).hexdigest()
    if digest != wheels["sha256"]:
        raise OSError(
            "the wheels of Dask are damaged (%d bytes, SHA-256 %s, expected %s): delete the ConfigMaps %s-* and submit "
            "the run again" % (len(data), digest, wheels["sha256"], wheels["name"])
        )
    return data


def require_architecture(architecture: str) -> None:
    """Raise `Incompatible` where wheels for *architecture* and glibc do not run."""
    import platform

    machine, libc = platform.machine(), platform.libc_ver()[0]
    if machine != architecture:
        raise hardware.Incompatible(
            "the image has no compatible Dask, and the wheels that were sent are for %s while this node has %s: set "
            'kubernetes.node_selector "kubernetes.io/arch", or add distributed to the image' % (architecture, machine)
        )
    if libc != "glibc":
        raise hardware.Incompatible(
            "the image has no compatible Dask, and no glibc, which the wheels need: add distributed to the image"
        )


def _within_wheel(name: str, selected: List[str]) -> Optional[str]:
    wheel, _, path = name.partition("/")
    return path if wheel in selected else None


if __name__ == "__main__":  # for an interpreter of this machine that is not spotmpi's: ARCHIVE ARCHITECTURE FOLDER
    with open(sys.argv[1], "rb") as _archive:
        unpack(_archive.read(), sys.argv[2], sys.argv[3], "%d.%d" % sys.version_info[:2], None)
