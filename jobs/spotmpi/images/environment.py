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
GPU_LOCK = "requirements-gpu.lock"  # of an image that needs more packages on machines with GPUs
BUILD_CONSTRAINTS = "build-constraints.txt"
_READY = ".ready"


def known_images() -> list[str]:
    """The names of all images: folders with locked requirements."""
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
    """The folder of the environment of *image*, whether or not it is installed yet."""
    return names.cache_folder() / "images" / f"{image}-{lock_hash(image, lock)}"


def prepare(image: str, say: Callable[[str], None] = lambda text: None, lock: str = LOCK) -> Path:
    """The environment of *image*, installed first where it is missing.

    An interrupted install is repeated; concurrent callers wait for each other.

    Raises:
        InputError: no such image.
        SpotmpiError: uv is missing or could not install; the message holds uv's last lines.
    """
    folder = location(image, lock)
    if (folder / _READY).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that installs the {image} image")
            fcntl.flock(turn, fcntl.LOCK_EX)
        if not (folder / _READY).is_file():
            say(f"installing the {image} image's locked requirements (once)")
            _install(image, folder, lock)
            (folder / _READY).touch()
    return folder


def _install(image: str, folder: Path, lock: str) -> None:
    source = names.IMAGES / image
    shutil.rmtree(folder, ignore_errors=True)
    constraints = source / BUILD_CONSTRAINTS
    extra = ["--build-constraints", str(constraints)] if constraints.is_file() else []
    run_uv("venv", "--quiet", "--python", _python_for(source), str(folder))
    # Compiled once here, or every rank compiles its framework anew where Python may not write bytecode.
    options = ("--quiet", "--compile-bytecode", "--python", str(folder / "bin" / "python"))
    run_uv("pip", "sync", *options, *extra, str(source / lock))


def _python_for(source: Path) -> str:
    """This interpreter where the image allows it, else the version that the image asks for."""
    import tomllib

    required = tomllib.loads((source / "pyproject.toml").read_text())["project"]["requires-python"]
    current = f"=={sys.version_info[0]}.{sys.version_info[1]}.*"
    return sys.executable if required.startswith(">=") or required == current else required.strip("=.*")


def run_uv(*arguments: str, purpose: str = "install the image") -> None:
    """Run uv; SpotmpiError, with its last lines, where it cannot do what its *purpose* is."""
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    process = subprocess.run([find_uv(), *arguments], capture_output=True, text=True, env=environment)
    if process.returncode:
        last = "\n".join(process.stderr.strip().splitlines()[-8:])
        raise SpotmpiError(f"could not {purpose} ({' '.join(arguments[:2])}): {last}")


def find_uv() -> str:
    """The uv to use: the checkout's, the one installed with spotmpi, or the one on PATH; SpotmpiError if none."""
    for own in (names.PROJECT / ".uv" / "bin" / "uv", Path(sys.executable).parent / "uv"):
        if own.is_file():
            return str(own)
    uv = shutil.which("uv")
    if not uv:
        raise SpotmpiError("uv not found: run ./scripts/setup once, or install uv and put it on PATH")
    return uv
