"""The Python environment of an image on this machine: its locked requirements, installed once per lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, input_error

LOCK = "requirements.lock"
GPU_LOCK = "requirements-gpu.lock"  # of an image that needs more where GPUs are
BUILD_CONSTRAINTS = "build-constraints.txt"
_READY = ".ready"


def known_images() -> list[str]:
    """The images that this checkout holds: folders with locked requirements."""
    return sorted(path.parent.name for path in names.IMAGES.glob(f"*/{LOCK}"))


def lock_hash(image: str, lock: str = LOCK) -> str:
    """Twelve hex digits that name what gets installed for *image*; InputError for an unknown one."""
    folder = names.IMAGES / image
    if not (folder / LOCK).is_file():
        raise input_error("image", image, f"use one of: {', '.join(known_images())}")
    digest = hashlib.sha256(f"python {sys.version_info[0]}.{sys.version_info[1]}\n".encode())
    for name in (lock, BUILD_CONSTRAINTS):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:12]


def location(image: str, lock: str = LOCK) -> Path:
    """Where the environment of *image* is, or will be once `prepare` has made it."""
    return names.cache_folder() / "images" / f"{image}-{lock_hash(image, lock)}"


def prepare(image: str, say: Callable[[str], None] = lambda text: None, lock: str = LOCK) -> Path:
    """The environment of *image*, installed first where it is missing.

    It is complete or absent: an install broken off is taken up again. Several processes may ask at once.

    Raises:
        InputError: no such image.
        SpotmpiError: uv is missing or could not install; the message holds uv's last lines.
    """
    place = location(image, lock)
    if (place / _READY).is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{place.name}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (place / _READY).is_file():
            say(f"installing the {image} image's locked requirements (once)")
            _install(image, place, lock)
            (place / _READY).touch()
    return place


def _install(image: str, place: Path, lock: str) -> None:
    folder = names.IMAGES / image
    shutil.rmtree(place, ignore_errors=True)
    constraints = folder / BUILD_CONSTRAINTS
    extra = ["--build-constraints", str(constraints)] if constraints.is_file() else []
    _uv("venv", "--quiet", "--python", _python_for(folder), str(place))
    # Compiled once here, or every rank compiles its framework anew where Python may not write bytecode.
    compiled = ("--quiet", "--compile-bytecode", "--python", str(place / "bin" / "python"))
    _uv("pip", "sync", *compiled, *extra, str(folder / lock))


def _python_for(folder: Path) -> str:
    """This interpreter where the image allows it, else the version that the image asks for."""
    import tomllib

    wanted = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["requires-python"]
    this = f"=={sys.version_info[0]}.{sys.version_info[1]}.*"
    return sys.executable if wanted.startswith(">=") or wanted == this else wanted.strip("=.*")


def _uv(*arguments: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    done = subprocess.run([find_uv(), *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise SpotmpiError(f"could not install the image ({' '.join(arguments[:2])}): {last}")


def find_uv() -> str:
    """The uv to use: the one inside the checkout, else the one on PATH; SpotmpiError where there is none."""
    inside = names.PROJECT / ".uv" / "bin" / "uv"
    found = str(inside) if inside.is_file() else shutil.which("uv")
    if not found:
        raise SpotmpiError("uv is missing: run ./scripts/setup once, or install uv and put it on PATH")
    return found
