"""Downloading the folder of a run from its run volume."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spotmpi.agent import pack, pod_context, record, store
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.volume_access import Volume, VolumeAccess, volume_access
from spotmpi.core import hints, names
from spotmpi.core.errors import NotPermitted, RunInUse, SpotmpiError, input_error
from spotmpi.core.file_lock import lock_file
from spotmpi.core.names import RunPaths
from spotmpi.core.progress import Say
from spotmpi.plan.manifests import RunVolume

# Where the local copy knows more: it also has what happened before the first pod ran.
_LOCAL_FILES = ("events.jsonl", "spec.toml", "plan.yaml", record.LOCK)
_PACK = Path(pack.__file__).read_text()
_MAX_SKIPPED = 8  # entries that a message names


async def pull(api: ClusterApi, paths: RunPaths, volume: Volume, say: Say, part: str | None = None) -> None:
    """Download a run's folder on *volume*, or one *part* of it, into *paths*, in place of an earlier download.

    The run may go on meanwhile. What vanishes while it is read, what leads out of the folder and what is neither file,
    folder nor link is skipped, and *say* names it.

    Raises:
        RunInUse: another process follows the run into the same folder.
        SpotmpiError: the volume cannot be read, or has no folder of the run.
    """
    paths.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{paths.id}-", dir=paths.folder.parent) as temporary:
        packed, unpacked = Path(temporary, "run.tar"), Path(temporary, "run")
        command = ["python3", "-c", _PACK, f"{pod_context.RUNS}/{paths.id}", part or ".", str(store.TAIL)]
        await _read(api, paths.id, volume, command, packed, say)
        skipped = _unpack(packed, unpacked, paths.id)
        packed.unlink()
        if part:  # never of the record, which a follower may be writing
            paths.folder.mkdir(exist_ok=True)
            _move_into(unpacked, paths.folder)
        else:
            with _locked(paths):
                _move_into(unpacked, paths.folder)
    _report_skipped(skipped, paths.id, say)


def _unpack(packed: Path, folder: Path, run: str) -> dict[str, str]:
    """Unpack what `spotmpi.agent.pack` packed into *folder*; the names of skipped entries, and why.

    Raises:
        SpotmpiError: the archive is incomplete.
    """
    try:
        with tarfile.open(packed, "r:") as archive:
            last = archive.getmembers()[-1:]
            content = archive.extractfile(last[0]) if last and last[0].name == pack.LEFT_OUT else None
            if content is None:
                raise tarfile.TarError("the end of the archive is missing; pull again")
            skipped: dict[str, str] = dict(json.load(content))
            folder.mkdir()
            # What Python 3.14 does by default besides `_safe_members` would open folders that are private.
            archive.extraction_filter = lambda member, path: member
            archive.extractall(folder, members=_safe_members(archive, folder.resolve(), skipped))
    except (tarfile.TarError, ValueError, TypeError) as error:
        raise SpotmpiError(f"could not unpack the folder of run {run} from the run volume: {error}") from error
    return skipped


def _safe_members(
    members: Iterable[tarfile.TarInfo], folder: Path, skipped: dict[str, str]
) -> Iterator[tarfile.TarInfo]:
    """The *members* that may be unpacked into *folder*, owned by this user; the others go to *skipped*.

    From Python 3.11.4 on `tarfile.data_filter` does the same for one member; Debian 12 has 3.11.2.
    """
    for member in members:
        if member.name in skipped or member.name == pack.LEFT_OUT:
            continue
        if reason := _hazard(member, folder):
            skipped[member.name] = reason
            continue
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        yield member


def _hazard(member: tarfile.TarInfo, folder: Path) -> str | None:
    """Why *member* must not be unpacked into *folder*; None if it may be."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is not a file, folder or link"
    if not _is_within(folder, Path(member.name)):
        return "is outside of the run's folder"
    if not (member.issym() or member.islnk()):
        return None
    # A symbolic link counts from its own folder, a hard one from the top.
    target = Path(member.name).parent / member.linkname if member.issym() else Path(member.linkname)
    return None if _is_within(folder, target) else f"is a link out of the run's folder, to {member.linkname}"


def _is_within(folder: Path, path: Path) -> bool:
    # Not Path.resolve, which raises for links that lead to each other.
    return Path(os.path.realpath(folder / path)).is_relative_to(folder)


def _report_skipped(skipped: dict[str, str], run: str, say: Say) -> None:
    if skipped:
        shown = {name if name.isprintable() else ascii(name): reason for name, reason in skipped.items()}
        entries = [f"{name} ({reason})" for name, reason in sorted(shown.items())[:_MAX_SKIPPED]]
        more = [f"and {len(skipped) - _MAX_SKIPPED} more"] if len(skipped) > _MAX_SKIPPED else []
        say(f"skipped in the download of {run}: {', '.join([*entries, *more])}")


async def _read(api: ClusterApi, run: str, volume: Volume, command: Sequence[str], target: Path, say: Say) -> None:
    """Write what *command* prints to *target*: in a running pod of the run, or in one created for that."""
    with translate_errors("list the pods of the run"):
        pods = await api.list(cluster_api.POD, {names.LABEL_RUN: run})
    running = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
    if running:
        try:
            with target.open("wb") as file:
                await VolumeAccess(api, running[0]).read(command, file)
            return
        except NotPermitted:
            raise
        except SpotmpiError as error:  # the kubelet reports the end of a pod up to a second after that of its container
            say(f"{error}; pod {running[0]} may just have ended, so another one reads the volume")
    async with volume_access(api, volume, say) as access:
        with target.open("wb") as file:
            await access.read(command, file)


@contextmanager
def _locked(paths: RunPaths) -> Iterator[None]:
    paths.folder.mkdir(exist_ok=True)
    with (paths.folder / record.LOCK).open("a") as lock:
        try:
            lock_file(lock)
        except BlockingIOError:
            remedy = f"end it first, or pull into another folder with {hints.option('runs', 'FOLDER')}"
            raise RunInUse(f"another process is following run {paths.id} into {paths.folder}; {remedy}") from None
        yield


def _move_into(new: Path, folder: Path) -> None:
    for entry in new.iterdir():
        old = folder / entry.name
        if old.exists() and entry.name in _LOCAL_FILES:
            continue
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        entry.replace(old)


def require_volume(mounted: RunVolume | None, run: str) -> Volume:
    """The `Volume` that a run's pods mount; InputError if they mount none."""
    if mounted is None:
        raise input_error("run", run, "has no run volume; all that is left of it is the copy on this machine")
    return Volume(*mounted)
