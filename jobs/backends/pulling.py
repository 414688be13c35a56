"""Bringing the folder of a run here from its run volume."""

from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from jobs import names
from jobs.backends import cluster_api
from jobs.backends.base import Say
from jobs.backends.cluster_api import ClusterApi
from jobs.backends.volume_access import Volume, VolumeAccess, volume_access
from jobs.errors import RunInUse, SpotmpiError, wrong
from jobs.names import RunPaths
from jobs.pod import place, store
from jobs.pod.supervisor import LOCK

# What a terminal's copy knows better: it also has what happened before the first pod ran.
_KEPT = ("events.jsonl", "spec.toml", "plan.yaml", LOCK)
# tar's exit status would tell of files that grow while they are read; those of a run that goes on do.
_PACK = f"""
import os, sys, tarfile
folder, part = sys.argv[1:]
if not os.path.isdir(folder):
    sys.exit("there is no folder " + folder)
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as packed:
    if os.path.exists(os.path.join(folder, part)):
        packed.add(os.path.join(folder, part), part)
sys.stdout.buffer.write(bytes({store.TAIL}))
"""


async def pull(api: ClusterApi, paths: RunPaths, volume: Volume, say: Say, part: str | None = None) -> None:
    """Bring everything in a run's folder on *volume*, or one *part* of it, into *paths*, in place of an earlier pull.

    Raises:
        RunInUse: another process follows the run into the same folder.
        SpotmpiError: the volume cannot be read, or has no folder of the run.
    """
    paths.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{paths.id}-", dir=paths.folder.parent) as aside:
        packed, unpacked = Path(aside, "run.tar"), Path(aside, "run")
        async with _access(api, paths.id, volume, say) as there:
            with packed.open("wb") as file:
                await there.read(["python3", "-c", _PACK, f"{place.RUNS}/{paths.id}", part or "."], file)
        try:
            with tarfile.open(packed) as archive:
                archive.extractall(unpacked, members=_harmless(archive, unpacked.resolve()))
        except tarfile.TarError as error:
            raise SpotmpiError(f"what the run volume holds of {paths.id} cannot be taken over: {error}") from error
        packed.unlink()
        if part:  # never of the record, which a follower may be writing
            paths.folder.mkdir(exist_ok=True)
            _take_over(unpacked, paths.folder)
            return
        with _alone(paths):
            _take_over(unpacked, paths.folder)


def _harmless(members: Iterable[tarfile.TarInfo], folder: Path) -> Iterator[tarfile.TarInfo]:
    """*members* as they may be unpacked into *folder*, owned by whoever unpacks; TarError for one that leads out of it.

    From Python 3.11.4 on `tarfile.data_filter` does the same; Debian 12 has 3.11.2.
    """
    for member in members:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise tarfile.TarError(f"{member.name!r} is neither file, folder nor link")
        paths = [Path(member.name)]
        if member.issym():  # a symbolic link counts from its own folder, a hard one from the top
            paths.append(paths[0].parent / member.linkname)
        elif member.islnk():
            paths.append(Path(member.linkname))
        for path in paths:
            real = (folder / path).resolve()
            if not real.is_relative_to(folder):
                raise tarfile.TarError(f"{member.name!r} leads out of the folder, to {str(real)!r}")
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        yield member


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
        raise wrong("run", run, "has no run volume, so all that is left of it is what this terminal has")
    return Volume(*mounted)
