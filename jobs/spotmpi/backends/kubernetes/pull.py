"""Downloading the folder of a run from its run volume."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from spotmpi.agent import pack, pod_context, record, store
from spotmpi.agent.files import exists
from spotmpi.agent.unpack import DAMAGES, require_readable, unpack
from spotmpi.backends.downloads import OWN, remove, remove_unfit_records, report_skipped, room_in
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.volume_access import VolumeAccess, volume_access
from spotmpi.core import names, wording
from spotmpi.core.errors import NotPermitted, SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.reminders import reminders
from spotmpi.core.wording import Echo, format_size
from spotmpi.plan.cluster_plan import cached_plan
from spotmpi.plan.pods import python
from spotmpi.plan.volume_pod import Volume
from spotmpi.runs import reader, recorded_plan

# Where the local copy knows more: it also has what happened before the first pod ran.
_LOCAL_FILES = (record.EVENTS, names.SPEC, record.PLAN)
_PACK = Path(pack.__file__).read_text(encoding="utf-8")
_LARGEST_LIST = 256 << 20  # bytes of names that could not be packed


async def pull(api: ClusterApi, paths: RunPaths, volume: Volume, echo: Echo, part: str | None = None) -> None:
    """Download a run's folder on *volume*, or one *part* of it, into *paths*, in place of an earlier download.

    The run may go on meanwhile. What vanishes while it is read, what leads out of the folder and what is neither file,
    folder nor link is skipped, and *echo* names it.

    Raises:
        RunInUse: another process follows the run into the same folder.
        SpotmpiError: the volume cannot be read, or has no folder of the run, or the disk of this machine is full.
    """
    paths.folder.parent.mkdir(parents=True, exist_ok=True)
    own = tempfile.TemporaryDirectory(prefix=f".{paths.id}-", dir=paths.folder.parent)
    with room_in(paths.folder.parent), own as temporary:
        packed, unpacked = Path(temporary, "run.tar"), Path(temporary, "run")
        command = python(_PACK, f"{pod_context.RUNS}/{paths.id}", part or ".", str(store.TAIL))

        def so_far(seconds: float) -> str:
            size = 0
            with suppress(FileNotFoundError):  # until a pod runs
                size = packed.stat().st_size
            return f"copied {format_size(size)} of run {paths.id} in {seconds:.0f} s, and it goes on"

        with reminders(so_far, echo):
            await _read(api, paths.id, volume, command, packed, echo)
        skipped = _unpack(packed, unpacked, paths.id) | remove_unfit_records(RunPaths(unpacked))
        packed.unlink()
        new = _trusted(RunPaths(unpacked), paths.id, api, part)
        paths.folder.mkdir(exist_ok=True)
        remedy = f"end it first, or pull into another folder with {wording.option('runs', 'FOLDER')}"
        refusal = f"another process is following run {paths.id} into {paths.folder}; {remedy}"
        # A part is never of the record, which a follower may be writing.
        with nullcontext() if part else reader.locked(paths.folder / record.LOCK, refusal):
            _move_into(new, paths.folder)
    report_skipped(skipped, paths.id, echo)


def _unpack(packed: Path, folder: Path, run: str) -> dict[str, str]:
    """Unpack what `spotmpi.agent.pack` packed into *folder*; the names of skipped entries, and why.

    Raises:
        SpotmpiError: the archive is incomplete.
    """
    try:
        with tarfile.open(packed, "r:") as archive:
            damaged = _damaged(archive)
        skipped = dict(damaged)
        with tarfile.open(packed, "r:") as archive:
            unpack(
                archive, str(folder), skipped, lambda name: None if name in damaged or name == pack.LEFT_OUT else name
            )
    except DAMAGES as error:
        raise SpotmpiError(f"could not unpack the folder of run {run} from the run volume: {error}") from error
    return skipped


def _damaged(archive: tarfile.TarFile) -> dict[str, str]:
    """The files that are missing or damaged in *archive*, and why; TarError where its end is missing."""
    last = None
    for last in archive:
        require_readable(last)
    content = archive.extractfile(last) if last and last.name == pack.LEFT_OUT and last.isreg() else None
    if last is None or content is None:
        raise tarfile.TarError("the end of the archive is missing; pull again")
    try:
        damaged = json.loads(content.read(_LARGEST_LIST))
    except RecursionError:
        damaged = None
    if not isinstance(damaged, dict):
        raise tarfile.TarError("its list of damaged files cannot be read")
    return {str(name): str(reason) for name, reason in damaged.items()}


async def _read(api: ClusterApi, run: str, volume: Volume, command: Sequence[str], target: Path, echo: Echo) -> None:
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
            echo(f"{error}; pod {running[0]} may just have ended, so another one reads the volume")
    async with volume_access(api, volume, echo) as access:
        with target.open("wb") as file:
            await access.read(command, file)


def _trusted(new: RunPaths, run: str, api: ClusterApi, part: str | None) -> list[Path]:
    """The entries of a downloaded folder to take over: of one *part* no others, whatever the pod has sent.

    Which cluster a run belongs to is known here: by a plan of the pod, `--resume` could run its command on this
    machine.
    """
    if not part:
        plan = recorded_plan.json_object(new.plan)
        if os.path.lexists(new.plan):
            remove(new.plan)
        name = plan.get("name")
        own = cached_plan(name if isinstance(name, str) else run, run, api.context, api.namespace)
        new.plan.write_text(json.dumps(own, indent=1) + "\n", encoding="utf-8")
    entries = [entry for entry in new.folder.iterdir() if entry.name not in OWN]
    return [entry for entry in entries if not part or entry.name == part.split("/")[0]]


def _move_into(new: Iterable[Path], folder: Path) -> None:
    own = exists(RunPaths(folder).own)
    for entry in new:
        old = folder / entry.name
        if entry.name in _LOCAL_FILES and (own or exists(old)):
            continue
        if os.path.lexists(old):
            remove(old)
        entry.replace(old)


def require_volume(mounted: Volume | None, run: str) -> Volume:
    """The volume that a run's pods mount; InputError if they mount none."""
    if mounted is None:
        raise input_error("run", run, "has no run volume; all that is left of it is the copy on this machine")
    return mounted
