"""The capabilities of this machine for runs."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.agent import hardware, launchers
from spotmpi.agent.files import is_folder
from spotmpi.core import names, wording
from spotmpi.core.errors import SpotmpiError
from spotmpi.images import environment
from spotmpi.plan.local import Machine
from spotmpi.runs import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spotmpi.core.errors import Problem
    from spotmpi.spec.job import JobSpec
    from spotmpi.spec.validate import TargetCapabilities

MAX_PROCESSES = 1024  # a larger number is a mistake


def inspect(spec: JobSpec) -> TargetCapabilities:
    """The capabilities that `spotmpi.spec.validate` checks; installs nothing."""
    if lacks := _lacks(spec):
        return inspect_client(spec)._replace(lacks=lacks)
    tools = _tools(spec)
    return inspect_client(spec, is_target=True)._replace(
        data_is_folder=spec.data is None or _is_folder(spec.data.path) or _is_copy(spec.data.path),
        init_is_folder=spec.init is None or _is_folder(spec.init) or _is_copy(spec.init),
        **(_source(spec.stream.source) if spec.stream and not spec.dataset else {}),
        tools=frozenset(tools),
        launcher_image=None if spec.image or spec.launcher in tools else environment.image_with(spec.launcher),
        gpus=_gpus() if spec.uses_gpus else 0,
        processes=MAX_PROCESSES,
        command_found=not spec.command or _is_executable(spec.command[0], spec),
        rate=spec.price,
        capacity=_deadline_problems(spec),
    )


def _lacks(spec: JobSpec) -> str | None:
    """What *spec* needs of the system of this machine and that lacks, with the remedy; None for nothing."""
    # That nothing of a run outlives it, whatever ends first, takes subreapers and death signals, prctl(2) of Linux; and
    # the wheels of MPI and of the images' frameworks are Linux's.
    if sys.platform != "linux":
        where = f"{wording.option('on', 'kubernetes')} or {wording.option('on', 'STACK')}"
        return f"runs on this machine need Linux; use {where}"
    if not is_folder("/proc/self"):
        return "runs on this machine need /proc, where their processes are found: mount -t proc proc /proc"
    if (spec.launcher != "none" or spec.stream) and not _has_loopback():
        return "ranks and workers on this machine find each other at 127.0.0.1, which is down: ip link set lo up"
    return None


def _has_loopback() -> bool:
    """Whether there is a route to 127.0.0.1; nothing is sent."""
    import _socket  # `socket` takes longer to import than all of this

    try:
        with contextlib.closing(_socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)) as probe:
            probe.connect(("127.0.0.1", 9))
    except OSError:
        return False
    return True


def _deadline_problems(spec: JobSpec) -> tuple[Problem, ...]:
    """Why this machine cannot do the work by its deadline."""
    if spec.capacity.deadline is None:
        return ()
    from datetime import UTC, datetime  # few runs have one

    from spotmpi.capacity.requirements import without_choice

    return tuple(without_choice(spec, datetime.now(UTC)))


def inspect_client(spec: JobSpec, is_target: bool = False) -> TargetCapabilities:
    """What this machine contributes to a run anywhere: programs, code, files and variables; starts no process.

    *is_target* says that the run is executed here.
    """
    from spotmpi.spec.validate import TargetCapabilities  # not needed to follow a run

    return TargetCapabilities(
        programs={each: programs_of(each) for each in environment.known_images()}
        if spec.image is not None or spec.program
        else {},
        functions=_function_problems(spec, is_target),
        code_is_folder=spec.code is None or _is_folder(spec.code),
        unreadable_files=tuple(path for path in spec.files if not _is_folder(path) and not _is_file(path)),
        variables=frozenset(os.environ),
    )


def _is_folder(path: str) -> bool:
    return os.access(path, os.R_OK | os.X_OK) and Path(path).is_dir()


def _is_copy(path: str) -> bool:
    """Whether it is, or will be, the copy of an entry behind a URL: that is made before anything starts."""
    return names.entry_copies() in Path(path).parents


def _source(source: str | None) -> dict[str, Any]:
    """Whether the path or pattern of a source has files, and these have rows; assumed of what cannot be listed."""
    from spotmpi.spec.source import is_path  # few runs have a stream
    from spotmpi.streams.checks import lacks_rows

    if source is None or not is_path(source):
        return {}
    try:
        files = _files(source)
        first = next(files, None)
        if first is None:
            return {"source_found": False}
        return {"source_has_rows": not lacks_rows(chain([first], files))}
    except (OSError, ValueError):
        return {}


def _function_problems(spec: JobSpec, is_target: bool) -> tuple[Problem, ...]:
    """The functions of a stream and of what consumes it that their modules do not have, as far as that is certain."""
    if spec.stream is None or spec.program:
        return ()
    from spotmpi.core.errors import Problem  # few runs have a stream
    from spotmpi.spec.validate_cluster import consumer
    from spotmpi.streams.checks import function_problem

    folder = spec.code or (str(Path.cwd()) if is_target and not spec.files else None)
    has_own_packages = (
        spec.image is None and (spec.command or [""])[0] == sys.executable and "PYTHONPATH" not in spec.env
    )
    named = [(f"stream.{key}", name) for key, name in spec.stream.functions.items()]
    named += [("command", name) for name in consumer(spec)[1:]]
    files = list(map(Path, spec.files))
    found = ((key, name, function_problem(name, files, folder, is_target and has_own_packages)) for key, name in named)
    return tuple(Problem(key, name, remedy) for key, name, remedy in found if remedy)


def _files(source: str) -> Iterator[Path]:
    """The files that a path or pattern names, or that are in the folders that it names."""
    from spotmpi.spec.source import matching

    found = [Path(source)] if os.path.lexists(source) else matching(str(Path(source).absolute()))
    for each in found:
        yield from _files_in(each) if is_folder(each) else [each]


def _files_in(folder: Path) -> Iterator[Path]:
    """Anything but folders in a folder, however deep; a link counts."""
    with os.scandir(folder) as entries:  # which is closed also where only the first file is looked at
        for each in entries:
            if each.is_symlink() or not each.is_dir():
                yield Path(each)
            else:
                yield from _files_in(Path(each))


def _is_file(path: str) -> bool:
    return os.access(path, os.R_OK) and Path(path).is_file()


def _is_executable(command: str, spec: JobSpec) -> bool:
    """Whether the first word of a command is executable; assumed while the image is not installed yet."""
    image = spec.image if spec.image and spec.image in environment.known_images() else None
    image_bin = environment.location(image, spec.uses_gpus) / "bin" if image else ""
    if image_bin and not environment.is_installed(Path(image_bin).parent):
        return True
    own = os.environ.get("PATH", os.defpath)
    path = spec.env.get("PATH") or (f"{image_bin}{os.pathsep}{own}" if image_bin else own)
    if os.sep in command and not Path(command).is_absolute():
        command = str(_working_folder(command, spec) / command)
    return not command or shutil.which(command, path=path) is not None


def _working_folder(command: str, spec: JobSpec) -> Path:
    """The folder on this machine to which the path of a *command* is relative, since commands start in a copy of it."""
    first = os.path.normpath(command).partition(os.sep)[0]
    for path in map(Path, spec.files):
        if path.name == first:
            return path.parent
    if spec.code:
        return Path(spec.code)
    return Path(os.devnull) if spec.files else Path.cwd()  # only the files are in the working folder


def describe(spec: JobSpec) -> Machine:
    """The facts that the plan depends on."""
    image_bin = None if spec.image is None else environment.location(spec.image, spec.uses_gpus) / "bin"
    mpirun = str(image_bin / "mpirun") if image_bin else shutil.which("mpirun")
    asks = mpirun and not image_bin and launchers.is_mpi(spec.launcher)  # it takes 15 ms
    return Machine(
        folder=spec.code or str(Path.cwd()),
        path=os.environ.get("PATH", os.defpath),
        source=str(names.rank_source()),
        mpirun=mpirun,
        mpirun_family=launchers.family(fingerprint.mpirun_version(mpirun)) if mpirun and asks else 5,
        image_bin=str(image_bin) if image_bin else None,
        cores=hardware.usable_cores(),
        python_path=os.environ.get("PYTHONPATH", ""),
        variables=frozenset(os.environ),
    )


def programs_of(image: str) -> tuple[str, ...]:
    """The training programs of an image: one file each."""
    folder = names.PROGRAMS / image
    return tuple(sorted(path.stem for path in folder.glob("*.py") if "def main(" in path.read_text(encoding="utf-8")))


def _tools(spec: JobSpec) -> list[str]:
    """The launchers that the spec can use; only the one that it names is looked for on PATH."""
    if spec.image is not None:
        return environment.launchers_of(spec.image)
    launcher = launchers.LAUNCHERS.get(spec.launcher)
    if launcher is None or (launcher.mpi and not _has_open_mpi()) or (launcher.module and not _has(launcher.module)):
        return []
    return [spec.launcher]


def _has_open_mpi() -> bool:
    """Whether the mpirun on PATH is Open MPI's: that of MPICH or Intel MPI has other options."""
    mpirun = shutil.which("mpirun")
    return mpirun is not None and "(Open MPI)" in fingerprint.mpirun_version(mpirun)


@functools.cache
def _has(module: str) -> bool:
    """Whether the python3 on PATH, which a spec without an image uses, has this module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return bool(shutil.which("python3")) and subprocess.run(["python3", "-c", code]).returncode == 0


def _gpus() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        with fingerprint.nvidia_smi_reminders():
            code, answer = hardware.ask_nvidia_smi("--list-gpus")
    except subprocess.TimeoutExpired as error:
        text = f"nvidia-smi has not answered for {hardware.GPU_TIMEOUT:g} s"
        raise SpotmpiError(f"{text}: the driver of the GPUs hangs; restart this machine") from error
    return len(answer.splitlines()) if code == 0 else 0
