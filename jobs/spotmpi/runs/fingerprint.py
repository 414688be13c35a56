"""What identifies the work of a run: only runs of the same work are comparable."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi import __version__
from spotmpi.agent import hardware
from spotmpi.agent.files import write_atomically
from spotmpi.agent.launchers import is_mpi
from spotmpi.core import code_folder, names
from spotmpi.core.wording import print_message, shortened
from spotmpi.runs import data_fingerprint

if TYPE_CHECKING:
    from spotmpi.spec.job import JobSpec

# Compared key by key; nodes and slots are left out, since comparisons vary them.
_COMPARED = (
    "program",
    "args",
    "env",
    "launcher",
    "stream",
    "init",
    "resources",
    "image",
    "container",
    "machine",
    "versions",
)
_FILES = "files"  # the folder of an entry that has its files
_NOT_COMPARED = ("system",)  # a newer kernel alone does not make runs incomparable
_NO_CHECKOUT: dict[str, str | None] = {"commit": None, "diff": None}
_NAMED_FILE_LIMIT = 32 << 20  # bytes: what is bigger on a command line is data, not code


def identify(spec: JobSpec, local: bool = True) -> dict[str, Any]:
    """Everything that determines the work of *spec*, as JSON values.

    ``program``, ``args``, ``seed``, ``env``, ``launcher``, ``resources``, ``image``, ``container`` (what pods pull),
    ``code``, ``data``, ``machine``, ``versions``, ``spotmpi`` (its version), and ``stream`` where there is one. Large
    data is identified by its listing, so that a start never waits for it to be read. For a run that is not *local*, the
    data is known by its path only, and the machine not. ``interpreter`` is where the Python is that a command finds on
    PATH, and ``python`` its minor version, or that of the image; neither is compared. ``entries`` has the data sets and
    the model of a store that the run reads, and ``init`` the folder of that model.

    Raises:
        InputError: the data folder cannot be read.
    """
    text = spec.option("--seed") or ""
    return {
        "program": spec.program or " ".join(map(shlex.quote, spec.command or [])),
        "args": list(spec.args),
        "seed": int(text) if re.fullmatch(r"-?\d+", text) else None,
        "env": dict(spec.env),
        "launcher": spec.launcher,
        "resources": spec.resources.model_dump(),
        "image": _image(spec),
        "container": None,
        "code": code_of(spec, local),
        "data": _data_of(spec, local),
        "machine": describe_machine() if local else None,
        "versions": _versions(spec, local),
        "spotmpi": __version__,
        **({"interpreter": path} if local and (path := interpreter(spec)) else {}),
        **({"python": version} if local and (version := _python_version(spec)) else {}),
        **({"stream": _stream(spec)} if spec.stream else {}),
        **({"init": spec.init} if spec.init else {}),
        **({"entries": entries} if (entries := _entries(spec)) else {}),
    }


def _data_of(spec: JobSpec, local: bool) -> dict[str, Any] | None:
    if spec.data is None:
        return None
    return data_fingerprint.identify(Path(spec.data.path)) if local else data_fingerprint.unread(spec.data.path)


def _entries(spec: JobSpec) -> list[str]:
    """The entries of a store that are its data, the source of its stream and its init, by kind, name and key."""
    places = spec.inputs.values()
    if not any(f"/{_FILES}" in place for place in places):
        return []
    from spotmpi.entries.store import reference_in  # few runs have any

    found = map(reference_in, places)
    return [f"{each.kind}:{each.name}@{each.key}" for each in found if each]


def _stream(spec: JobSpec) -> dict[str, Any]:
    """What determines the batches of a stream: not its workers, prefetching and checks."""
    assert spec.stream is not None
    return spec.stream.model_dump(mode="json", exclude={"workers", "postprocess_workers", "prefetch", "debug"})


def differences(one: dict[str, Any], other: dict[str, Any], declared: Iterable[str] = ()) -> list[str]:
    """The differences between two works, each as ``key: one, other``; empty for the same work.

    *declared* are the keys (``args``, ``env``, ...) that differ on purpose, as in variants. Commits are not compared:
    a commit that leaves the program's files alone does not change the work.
    """
    skipped = {*declared, *(("versions",) if "image" in declared else ())}
    other = _with_places(other, one)
    result = []
    for key in _COMPARED:
        if key not in skipped:
            result += _unequal(key, one.get(key), other.get(key))
    files = [work.get("code", {}).get("files") for work in (one, other)]
    if not skipped.intersection(("program", "image")):
        result += _unequal("code", *files)
    data = one.get("data"), other.get("data")
    if "data" not in skipped and data[0] != data[1] and not data_fingerprint.same(*data):
        result.append(f"data: {data_fingerprint.text(data[0])}, {data_fingerprint.text(data[1])}")
    return result


def _with_places(work: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """*work* with the places of *other* that are of the same versions of a store: a copy has the same files elsewhere.

    Data that both have read is compared by its content.
    """
    changes: dict[str, Any] = {}
    if is_same_entry(work.get("init"), other.get("init")):
        changes["init"] = other["init"]
    stream, data = ((work.get(key) or {}, other.get(key) or {}) for key in ("stream", "data"))
    if is_same_entry(*(each.get("source") for each in stream)):
        changes["stream"] = {**stream[0], "source": stream[1]["source"]}
    if None in (each.get("state") for each in data) and is_same_entry(*(each.get("path") for each in data)):
        changes["data"] = data[1]
    return {**work, **changes}


def is_same_entry(one: Any, other: Any) -> bool:
    """Whether two places are the same file or folder of a version of a store."""
    if not all(isinstance(place, str) and f"/{_FILES}" in place for place in (one, other)):
        return False
    from spotmpi.entries.store import reference_in  # few runs have any

    found = reference_in(one)
    return (
        found is not None
        and reference_in(other) == found
        and one.partition(found.key)[2] == other.partition(found.key)[2]
    )


def _unequal(part: str, one: Any, other: Any) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({key for key in (*one, *other) if one.get(key) != other.get(key)} - {*_NOT_COMPARED})
        return [f"{part}.{key}: {_text(one.get(key))}, {_text(other.get(key))}" for key in keys]
    return [] if one == other else [f"{part}: {_text(one)}, {_text(other)}"]


def _text(value: object) -> str:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return "none" if value in (None, "") else shortened(value)


def _image(spec: JobSpec) -> dict[str, str] | None:
    if spec.image is None:
        return None
    lock = names.IMAGES / spec.image / names.LOCK
    return {"name": spec.image, "lock": hash_files([lock])}


def code_of(spec: JobSpec, local: bool) -> dict[str, Any]:
    """The files that are run, by hash, and the state of their checkout.

    What a command names is on this machine only where it runs here: a run elsewhere has what is shipped.
    """
    if spec.program:
        files = {"programs": hash_files(sorted(_program_files(spec)))}
        # An installed package may lie in a virtual environment within a checkout of something else.
        return {"files": files, **(_NO_CHECKOUT if names.INSTALLED else checkout(names.PROJECT))}
    folder, further = spec.code_paths
    if folder:
        files = {"code": hash_tree(folder, code_folder.names(folder))}
    else:
        words = (*(spec.command or []), *spec.args) if local else ()
        scripts = [path for path in map(Path, words) if _is_code(path)]
        files = {str(path): hash_files([path]) for path in scripts}
        own = [*further, *(path for path in scripts if not is_interpreter(path))]  # no interpreter's checkout
        folder = next((path.resolve().parent for path in own), None)
    for path in further:
        files[path.name] = hash_tree(path.parent, sorted(code_folder.sources(None, [path])))
    return {"files": files, **(checkout(folder) if folder else _NO_CHECKOUT)}


def is_interpreter(path: str | Path) -> bool:
    """Whether a command names Python by *path*, which is another one in each environment that has the same packages."""
    return re.fullmatch(r"python[\d.]*", Path(path).name) is not None


def own_files(code: Mapping[str, Any]) -> dict[str, str]:
    """The files of the recorded *code* of a run, by hash, without an interpreter."""
    files = (code.get("files") or {}).items()
    return {name: str(digest) for name, digest in files if not is_interpreter(name)}


def command_of(work: Mapping[str, Any]) -> str:
    """The command or program of a run with its arguments, from its fingerprint; empty where it has none."""
    return " ".join([str(work.get("program") or ""), *map(str, work.get("args") or ())]).strip()


def interpreter(spec: JobSpec) -> str | None:
    """Where the Python of a command on this machine is that names it without its path; None for other commands."""
    name = spec.command[0] if spec.command else ""
    if spec.image is not None or "/" in name or not is_interpreter(name):
        return None
    return shutil.which(name, path=spec.env.get("PATH") or os.environ.get("PATH", os.defpath))


def _python_version(spec: JobSpec) -> str | None:
    """The minor version of the Python of an image here, or of a command that names one; None where no name tells it."""
    if spec.image is not None:
        return f"{sys.version_info[0]}.{sys.version_info[1]}"  # by which its environment is chosen
    name = spec.command[0] if spec.command else ""
    path = interpreter(spec) or (name if is_interpreter(name) else "")
    found = re.fullmatch(r"python(\d+\.\d+)", Path(os.path.realpath(path)).name)
    return found[1] if found else None


def _program_files(spec: JobSpec) -> Iterable[Path]:
    yield names.SOURCE / "spotmpi" / "agent" / "protocol.py"
    yield from names.PROGRAMS.glob("*.py")
    yield from (names.PROGRAMS / str(spec.image)).glob("*.py")


def _is_code(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= _NAMED_FILE_LIMIT
    except (OSError, ValueError):
        return False


def hash_files(paths: Iterable[Path]) -> str:
    """One SHA-256 over the names and contents of *paths*; a file that cannot be read counts as missing."""
    whole = hashlib.sha256()
    for path in paths:
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            content = "missing"
        whole.update(f"{path.name}\0{content}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def hash_tree(folder: Path, files: Iterable[str]) -> str:
    """One SHA-256 over the paths below *folder* and the contents of *files*, or size and time of what is too large."""
    paths = list(files)
    whole = hashlib.sha256()
    for name, state in zip(paths, _states([folder / each for each in paths], code_folder.LARGEST), strict=True):
        whole.update(f"{name}\0{state}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def checkout(folder: Path) -> dict[str, str | None]:
    """``commit`` of the git checkout that holds *folder* and ``diff``, a hash of the changes to it.

    ``diff`` covers changes to tracked files and the untracked ones, by content as far as that delays no start; records
    of runs and sweeps, and what takes this command's output, are not changes. It is None without changes. Both are
    None outside a checkout.
    """
    top = _output(_start_git(folder, "rev-parse", "--show-toplevel", "HEAD"))
    if top is None:
        return {"commit": None, "diff": None}
    root, commit = top.removesuffix("\n").rsplit("\n", 1)
    # Side by side: a start waits for both.
    diff = _start_git(Path(root), "diff", "--no-ext-diff", "--binary", "HEAD")
    listing = _start_git(Path(root), "ls-files", "-z", "--others", "--exclude-standard")
    changes, others = _output(diff) or "", _output(listing) or ""
    untracked = code_folder.without_records(name for name in others.split("\0") if name)
    untracked = code_folder.without_output(Path(root), untracked)
    if not changes and not untracked:
        return {"commit": commit, "diff": None}
    code = [path for path in (Path(root, name) for name in untracked) if _is_code(path)]
    text = "\0".join([changes, *untracked, *_states(code, data_fingerprint.HASHED_AT_START)])
    return {"commit": commit, "diff": hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()}


def _states(files: Iterable[Path], limit: int) -> Iterator[str]:
    """The content of each of *files* as a hash; of what exceeds *limit* bytes altogether, its size and time."""
    for path in files:
        try:
            status = path.stat()
        except OSError:  # removed meanwhile, or a broken link
            status = None
        if status is None or not stat.S_ISREG(status.st_mode):  # whoever opens a FIFO waits for its writer
            yield "missing"
        elif status.st_size <= limit:
            limit -= status.st_size
            yield hash_files([path])
        else:
            yield f"{status.st_size} {status.st_mtime_ns}"


def _start_git(folder: Path, *arguments: str) -> subprocess.Popen[bytes] | None:
    command = ["git", "-C", str(folder), *arguments]
    variables = code_folder.git_environment()
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables)
    except OSError:
        return None


def _output(process: subprocess.Popen[bytes] | None) -> str | None:
    """What the process prints until it ends, or None where it fails or could not be started."""
    if process is None:
        return None
    output = process.communicate()[0]
    return output.decode("utf-8", "surrogateescape") if process.returncode == 0 else None


def _versions(spec: JobSpec, local: bool) -> dict[str, str]:
    """The versions that are known before the start; the program reports others."""
    if not is_mpi(spec.launcher) or (spec.image is None and not local):  # that of pods is their image's own
        return {}
    if spec.image is None:
        mpirun = shutil.which("mpirun")
        match = re.search(r"\(Open MPI\) (\S+)", mpirun_version(mpirun)) if mpirun else None
    else:
        lock = names.IMAGES / spec.image / names.LOCK
        match = re.search(
            r"^openmpi==([^\s;\\]+)", lock.read_text(encoding="utf-8") if lock.is_file() else "", re.MULTILINE
        )
    return {"open_mpi": match[1]} if match else {}


@functools.cache
def mpirun_version(mpirun: str) -> str:
    """The output of ``mpirun --version``."""
    return subprocess.run([mpirun, "--version"], capture_output=True, encoding="utf-8", errors="replace").stdout


def describe_machine() -> dict[str, Any]:
    """``cpu`` model, usable ``cores``, ``memory_gib``, ``gpus`` (name, memory, driver of each) and ``system``."""
    return hardware.describe(installed_gpus())


@functools.cache
def installed_gpus() -> list[dict[str, str]]:
    """The GPUs of this machine, listed once per boot: that takes seconds where the driver is not kept loaded."""
    boot = _boot_id()
    cache = names.cache_folder() / "gpus" / f"{boot}.json"
    with contextlib.suppress(OSError, ValueError):
        known: list[dict[str, str]] = json.loads(cache.read_text(encoding="utf-8"))
        return known
    with nvidia_smi_reminders():
        devices = hardware.list_gpus()
    if boot and devices:
        with contextlib.suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(cache, json.dumps(devices))
    return devices


def nvidia_smi_reminders() -> AbstractContextManager[None]:
    """Says, while in the context, that nvidia-smi has not answered for a while, and when it is given up."""
    if not shutil.which("nvidia-smi"):
        return contextlib.nullcontext()
    from spotmpi.core.reminders import reminders  # many machines have no GPU

    text = "nvidia-smi has not answered for {:.0f} s; it is given up after {:g} s"
    return reminders(lambda seconds: text.format(seconds, hardware.GPU_TIMEOUT), print_message)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
