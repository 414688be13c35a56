"""Bringing the folder of a run here from its run volume."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from spotmpi.agent import pack, pod_context, store
from spotmpi.agent.supervisor import LOCK
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.volume_access import Volume, VolumeAccess, volume_access
from spotmpi.core import names
from spotmpi.core.errors import RunInUse, SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.progress import Say

# What a terminal's copy knows better: it also has what happened before the first pod ran.
_KEPT = ("events.jsonl", "spec.toml", "plan.yaml", LOCK)
_PACK = Path(pack.__file__).read_text()
_NAMED = 8  # entries left out that a message names


async def pull(api: ClusterApi, paths: RunPaths, volume: Volume, say: Say, part: str | None = None) -> None:
    """Bring everything in a run's folder on *volume*, or one *part* of it, into *paths*, in place of an earlier pull.

    The run may go on meanwhile. What vanishes while it is read, what leads out of the folder and what is neither file,
    folder nor link is left out, and *say* names it.

    Raises:
        RunInUse: another process follows the run into the same folder.
        SpotmpiError: the volume cannot be read, or has no folder of the run.
    """
    paths.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{paths.id}-", dir=paths.folder.parent) as aside:
        packed, unpacked = Path(aside, "run.tar"), Path(aside, "run")
        async with _access(api, paths.id, volume, say) as there:
            with packed.open("wb") as file:
                folder = f"{pod_context.RUNS}/{paths.id}"
                await there.read(["python3", "-c", _PACK, folder, part or ".", str(store.TAIL)], file)
        left_out = _unpack(packed, unpacked, paths.id)
        packed.unlink()
        if part:  # never of the record, which a follower may be writing
            paths.folder.mkdir(exist_ok=True)
            _take_over(unpacked, paths.folder)
        else:
            with _alone(paths):
                _take_over(unpacked, paths.folder)
    _say_left_out(left_out, paths.id, say)


def _unpack(packed: Path, folder: Path, run: str) -> dict[str, str]:
    """Unpack what `spotmpi.agent.pack` packed into *folder*; the names of what was left out there or here, and why.

    SpotmpiError where it is not whole.
    """
    try:
        with tarfile.open(packed, "r:") as archive:
            last = archive.getmembers()[-1:]
            content = archive.extractfile(last[0]) if last and last[0].name == pack.LEFT_OUT else None
            if content is None:
                raise tarfile.TarError("the end of the archive is missing; pull again")
            left_out: dict[str, str] = dict(json.load(content))
            folder.mkdir()
            archive.extractall(folder, members=_harmless(archive, folder.resolve(), left_out))
    except (tarfile.TarError, ValueError, TypeError) as error:
        raise SpotmpiError(f"what the run volume holds of {run} cannot be taken over: {error}") from error
    return left_out


def _harmless(members: Iterable[tarfile.TarInfo], folder: Path, left_out: dict[str, str]) -> Iterator[tarfile.TarInfo]:
    """*members* as they may be unpacked into *folder*, owned by whoever unpacks; the others go to *left_out*.

    From Python 3.11.4 on `tarfile.data_filter` does the same for one member; Debian 12 has 3.11.2.
    """
    for member in members:
        if member.name in left_out or member.name == pack.LEFT_OUT:
            continue
        if reason := _harm(member, folder):
            left_out[member.name] = reason
            continue
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        yield member


def _harm(member: tarfile.TarInfo, folder: Path) -> str | None:
    """Why *member* must not be unpacked into *folder*, None where it may be."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is neither file, folder nor link"
    if not _leads_inside(folder, Path(member.name)):
        return "is outside of the run's folder"
    if not (member.issym() or member.islnk()):
        return None
    # A symbolic link counts from its own folder, a hard one from the top.
    target = Path(member.name).parent / member.linkname if member.issym() else Path(member.linkname)
    return None if _leads_inside(folder, target) else f"is a link out of the run's folder, to {member.linkname}"


def _leads_inside(folder: Path, path: Path) -> bool:
    # Not Path.resolve, which raises for links that lead to each other.
    return Path(os.path.realpath(folder / path)).is_relative_to(folder)


def _say_left_out(left_out: dict[str, str], run: str, say: Say) -> None:
    if left_out:
        shown = {name if name.isprintable() else ascii(name): reason for name, reason in left_out.items()}
        named = [f"{name} ({reason})" for name, reason in sorted(shown.items())[:_NAMED]]
        more = [f"and {len(left_out) - _NAMED} more"] if len(left_out) > _NAMED else []
        say(f"left out of what was pulled of {run}: {', '.join([*named, *more])}")


@asynccontextmanager
async def _access(api: ClusterApi, run: str, volume: Volume, say: Say) -> AsyncIterator[VolumeAccess]:
    """The volume by way of a pod of the run, or of one made for the purpose where none runs."""
    pods = await api.list(cluster_api.POD, {names.LABEL_RUN: run})
    living = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
    if living:
        yield VolumeAccess(api, living[0])
        return
    async with volume_access(api, volume, say) as there:
        yield there


@contextmanager
def _alone(paths: RunPaths) -> Iterator[None]:
    paths.folder.mkdir(exist_ok=True)
    with (paths.folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "end it first, or pull into another folder with --runs FOLDER"
            raise RunInUse(f"another process follows run {paths.id} into {paths.folder}; {remedy}") from None
        yield


def _take_over(new: Path, folder: Path) -> None:
    for entry in new.iterdir():
        old = folder / entry.name
        if old.exists() and entry.name in _KEPT:
            continue
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        entry.replace(old)


def volume_of(mounted: tuple[str, str, tuple[str, ...]] | None, run: str) -> Volume:
    """The `Volume` of what a run's pods mount; InputError where it has none."""
    if mounted is None:
        raise input_error("run", run, "has no run volume, so all that is left of it is what this terminal has")
    return Volume(*mounted)
