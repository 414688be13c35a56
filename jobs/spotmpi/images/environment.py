"""The Python environment of an image on this machine: its locked requirements, installed once per lock."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from spotmpi.agent.files import exists, lock_file
from spotmpi.agent.launchers import LAUNCHERS
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.reminders import reminders

_GPU_LOCK = "requirements-gpu.lock"  # of an image that needs more packages for runs with GPUs
BUILD_CONSTRAINTS = "build-constraints.txt"
SITE_PACKAGES = "site-packages"  # a folder of an image: modules of its own, beside the locked packages
_UNTRUSTED = "invalid peer certificate"  # in what uv says of a certificate that it cannot check
_MACHINE_CERTIFICATES = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}  # the latter is the name in older versions
_READY = ".ready"  # holds the path of the interpreter that the environment was installed for


def known_images() -> list[str]:
    """The names of all images: folders with locked requirements."""
    return sorted(path.parent.name for path in names.IMAGES.glob(f"*/{names.LOCK}"))


def lock_hash(image: str, gpus: bool = False) -> str:
    """Twelve hex digits that name what gets installed for *image*; InputError for an unknown one."""
    folder = names.IMAGES / image
    if not (folder / names.LOCK).is_file():
        raise input_error("image", image, f"use one of: {', '.join(known_images())}")
    digest = hashlib.sha256(f"python {sys.version_info[0]}.{sys.version_info[1]}\n".encode())
    for path in (_lock(image, gpus), folder / BUILD_CONSTRAINTS, *_own_modules(folder)):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def location(image: str, gpus: bool = False) -> Path:
    """The folder of the environment of *image*, for runs with *gpus* or without, whether or not it is installed yet."""
    return names.cache_folder() / "images" / f"{image}-{lock_hash(image, gpus)}"


def _lock(image: str, gpus: bool) -> Path:
    """The locked requirements of an image: it may have more for runs with GPUs."""
    folder = names.IMAGES / image
    return folder / _GPU_LOCK if gpus and (folder / _GPU_LOCK).is_file() else folder / names.LOCK


def is_installed(folder: Path) -> bool:
    """Whether an environment is complete and the interpreter that it was installed for is still there.

    Interpreters go or change beneath an environment, which then holds the packages of another version: a new minor
    version from the distribution, pyenv or uv.

    Raises:
        OSError: the disk fails. An environment that runs use is not installed anew for that.
    """
    python = folder / "bin" / "python"
    try:
        return exists(python) and (folder / _READY).read_text(encoding="utf-8") == os.path.realpath(python)
    except FileNotFoundError:
        return False


def mark_installed(folder: Path) -> None:
    """Record that an environment is complete, and for which interpreter."""
    (folder / _READY).write_text(os.path.realpath(folder / "bin" / "python"), encoding="utf-8")


def prepare(image: str, echo: Callable[[str], None] = lambda text: None, gpus: bool = False) -> Path:
    """The environment of *image* for runs with *gpus* or without, installed first where it is missing.

    An interrupted install is repeated; concurrent callers wait for each other.

    Raises:
        InputError: no such image.
        SpotmpiError: uv is missing or could not install, with uv's last lines, or the cache folder cannot be written.
    """
    folder = location(image, gpus)
    if is_installed(folder):
        return folder
    with _turn(folder) as turn:
        lock_file(turn, on_wait=lambda: echo(f"waiting for another process that installs the {image} image"))
        if not is_installed(folder):
            what = f"installing the {image} image's locked requirements"
            echo(f"{what} (once)")
            limit = "uv gives up where a server does not answer (UV_HTTP_TIMEOUT, 30 s by default)"
            with reminders(lambda seconds: f"still {what}, for {seconds:.0f} s; {limit}", echo):
                _install(image, folder, _lock(image, gpus))
            mark_installed(folder)
    return folder


def _turn(folder: Path) -> TextIO:
    """The file that whoever installs an environment in *folder* locks."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return (folder.parent / f".{folder.name}.lock").open("w", encoding="utf-8")
    except OSError as error:
        raise names.cache_error(folder.parent, error) from error


def _install(image: str, folder: Path, lock: Path) -> None:
    source = names.IMAGES / image
    shutil.rmtree(folder, ignore_errors=True)
    _make_environment(image, folder)
    constraints = source / BUILD_CONSTRAINTS
    extra = ["--build-constraints", str(constraints)] if constraints.is_file() else []
    if sys.dont_write_bytecode:  # then each rank would compile its framework anew; else the first one does what it uses
        extra.append("--compile-bytecode")
    options = ("--quiet", "--python", str(folder / "bin" / "python"))
    run_uv("pip", "sync", *options, *extra, str(lock))
    (site_packages,) = folder.glob("lib/python3.*/site-packages")
    for module in _own_modules(source):
        shutil.copy(module, site_packages)


def _own_modules(source: Path) -> list[Path]:
    """The modules that an image adds to its locked packages."""
    return sorted(path for path in (source / SITE_PACKAGES).glob("*") if path.is_file())


def _make_environment(image: str, folder: Path) -> None:
    """An empty environment with this interpreter, or where the image does not run with it, with one that uv finds.

    uv looks among its own interpreters, on PATH and in those of pyenv, whose shims on PATH run the selected version
    alone; and then downloads one unless UV_PYTHON_DOWNLOADS forbids it.
    """
    import tomllib

    from packaging.specifiers import SpecifierSet  # only to install: a start shall not wait for it

    project = tomllib.loads((names.IMAGES / image / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = str(project["requires-python"])
    own = platform.python_version()
    if SpecifierSet(required).contains(own, prereleases=True):
        run_uv("venv", "--quiet", "--python", sys.executable, str(folder))
        return
    pyenv = Path(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"))  # noqa: PTH111 - there may be no home
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, sorted(pyenv.glob("versions/*/bin")))])
    try:
        run_uv("venv", "--quiet", "--python", required, str(folder), path=path)
    except SpotmpiError as error:
        raise SpotmpiError(
            f"the {image} image needs Python {required}, this is {own}, and uv found no other: put one on PATH, or let"
            f" uv download it (UV_PYTHON_DOWNLOADS=automatic): {str(error).splitlines()[-1]}"
        ) from error


def run_uv(*arguments: str, purpose: str = "install the image", path: str | None = None) -> None:
    """Run uv, with another *path* to look for programs; SpotmpiError, with its last lines, where its *purpose* fails.

    uv trusts certificates of its own; where these do not suffice, as behind a proxy, those of this machine as well, as
    pip does, unless the user has decided.
    """
    environment = {
        "UV_COMPILE_BYTECODE_TIMEOUT": "600",  # seconds that a busy machine has for a file, instead of 60
        **{key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"},
        **({} if path is None else {"PATH": path}),
    }
    tries = [environment]
    if not environment.keys() & _MACHINE_CERTIFICATES.keys():
        tries.append({**environment, **_MACHINE_CERTIFICATES})
    for variables in tries:
        process = subprocess.run(
            [find_uv(), *arguments], capture_output=True, encoding="utf-8", errors="replace", env=variables
        )
        if _UNTRUSTED not in process.stderr:
            break
    if process.returncode:
        lines = [line for line in process.stderr.strip().splitlines() if line and "--system-certs" not in line]
        if _UNTRUSTED in process.stderr:
            lines.append("set SSL_CERT_FILE to a file with the certificates of your network's proxy")
        last = "\n".join(lines[-8:])
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


def packages_of(image: str) -> frozenset[str]:
    """The packages that one of our images locks, without those for GPUs; none for an unknown image."""
    lock = names.IMAGES / image / names.LOCK
    text = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    return frozenset(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))


def launchers_of(image: str) -> list[str]:
    """The launchers of one of our images, by its locked requirements; of any other image all."""
    if image not in known_images():
        return list(LAUNCHERS)
    packages = packages_of(image)
    return [name for name, each in LAUNCHERS.items() if each.requirement is None or each.requirement in packages]


def image_with(launcher: str) -> str | None:
    """One of our images that has a launcher; None where none has."""
    return next((image for image in reversed(known_images()) if launcher in launchers_of(image)), None)
