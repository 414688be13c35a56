"""What this machine offers a run."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from spotmpi.agent import launchers
from spotmpi.core import names
from spotmpi.core.rank_source import rank_source
from spotmpi.images import environment
from spotmpi.plan.local import Machine
from spotmpi.spec.job import JobSpec
from spotmpi.spec.validate import TargetCapabilities

_PROCESSES = 1024  # beyond this nobody means it
_BRINGS = {"mpirun": "openmpi==", "torchrun": "torch=="}  # launcher -> the locked requirement that brings it


def survey(spec: JobSpec) -> TargetCapabilities:
    """What `spotmpi.spec.validate` has to know; nothing is installed for it."""
    return TargetCapabilities(
        programs={image: programs_of(image) for image in environment.known_images()},
        data_is_folder=spec.data is None or _is_folder(spec.data.path),
        code_is_folder=spec.code is None or _is_folder(spec.code),
        tools=frozenset({"none", *_tools(spec.image)}),
        gpus=_gpus() if spec.resources.gpu else 0,
        processes=_PROCESSES,
        command_found=not spec.command or _can_start(spec.command[0], spec),
        variables=frozenset(os.environ),
        rate=spec.price,
    )


def _is_folder(path: str) -> bool:
    return os.access(path, os.R_OK | os.X_OK) and Path(path).is_dir()


def _can_start(command: str, spec: JobSpec) -> bool:
    """Whether the first word of a command can be started; nobody knows yet what an image not installed brings."""
    image_bin = environment.location(spec.image) / "bin" if spec.image in environment.known_images() else ""
    if image_bin and not Path(image_bin).is_dir():
        return True
    path = spec.env.get("PATH") or f"{image_bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if spec.code and os.sep in command:
        command = str(Path(spec.code, command))  # where it starts
    return not command or shutil.which(command, path=path) is not None


def describe(spec: JobSpec) -> Machine:
    """What the plan has to know."""
    image_bin = None if spec.image is None else environment.location(spec.image) / "bin"
    mpirun = str(image_bin / "mpirun") if image_bin else shutil.which("mpirun")
    return Machine(
        folder=spec.code or str(Path.cwd()),
        path=os.environ.get("PATH", os.defpath),
        python=_python(),
        source=str(rank_source()),
        mpirun=mpirun,
        mpirun_family=_family(mpirun) if mpirun and not image_bin else 5,
        image_bin=str(image_bin) if image_bin else None,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        root=os.geteuid() == 0,
    )


def programs_of(image: str) -> tuple[str, ...]:
    """The training programs that an image can run: one file each."""
    folder = names.PROGRAMS / image
    return tuple(sorted(path.stem for path in folder.glob("*.py") if "def main(" in path.read_text()))


def _tools(image: str | None) -> list[str]:
    if image is None:
        return [tool for tool, found in (("mpirun", shutil.which("mpirun")), ("torchrun", _has_torch())) if found]
    lock = names.IMAGES / image / environment.LOCK
    text = lock.read_text() if lock.is_file() else ""
    return [tool for tool, requirement in _BRINGS.items() if re.search(f"^{requirement}", text, re.MULTILINE)]


def _python() -> str:
    import sys

    return sys.executable


@functools.cache
def _has_torch() -> bool:
    """Whether the python3 on PATH, which a spec without an image uses, can start torchrun."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return bool(shutil.which("python3")) and subprocess.run(["python3", "-c", code]).returncode == 0


@functools.cache
def _family(mpirun: str) -> int:
    """The major version of an Open MPI that is not one of ours; 5 where it does not say."""
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    return launchers.family(said)


def _gpus() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    said = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    return len(said.stdout.splitlines()) if said.returncode == 0 else 0
