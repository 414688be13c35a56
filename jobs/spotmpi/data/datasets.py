"""`spotmpi data` as functions: data sets on the shared storage, pushed, listed and pulled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from spotmpi.agent.files import exists, is_folder
from spotmpi.backends import targets
from spotmpi.backends.kubernetes.client.api import JOBSET, ClusterApi
from spotmpi.backends.kubernetes.client.errors import translate_errors
from spotmpi.backends.kubernetes.client.portal import call
from spotmpi.backends.kubernetes.volume_access import volume_access
from spotmpi.backends.targets import TargetLike
from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.core.wording import Echo, counted, silent
from spotmpi.data import fetch
from spotmpi.data.local_source import Index, Source, source_of
from spotmpi.data.remote_source import Download, authority_of, downloads_of, is_remote
from spotmpi.data.store import OTHER_FOLDERS, DataStore, Transfer, index_of
from spotmpi.images.build import build_for
from spotmpi.plan import cluster_plan
from spotmpi.plan.volume_pod import Volume

T = TypeVar("T")
_VOC_TARS = 3
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")  # of taints
_OURS = {
    "runs": "runs are recorded in it",
    "code": "the code of runs is stored in it",
    "store": "data sets and models that runs read are copied to it",
}  # see `spotmpi.agent.pod_context`


@dataclass(frozen=True)
class Storage:
    """Shared storage: a target as --on names it, with claim and image if that is not an environment.

    The pods that read it pull the image with *pull_secrets*, and tolerate taints written like kubectl's, such as
    ``gpu``, ``team=vision`` or ``team=vision:NoSchedule``.
    """

    on: TargetLike = None
    claim: str | None = None
    image: str | None = None
    pull_secrets: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()


def push(
    sources: Sequence[str],
    folder: str,
    storage: Storage,
    echo: Echo = silent,
    authority: Path | None = None,
) -> list[Transfer]:
    """Copy *sources* to *folder* of the volume, one after the other.

    A source is a folder or tar file of this machine, or an address, ``https://...#sha256=...`` or ``s3://``; addresses
    are fetched by a Job of the cluster, which does not need this process. The Job trusts the certificates in the PEM
    file *authority* besides the usual ones.

    Raises:
        InputError: a source, the folder or the authority is wrong.
        SpotmpiError: the transfer was interrupted; the same call continues it.
    """
    if not sources:
        raise input_error("SRC", None, "name what to push, then the folder on the storage")
    return _push(_Push(sources, folder, authority), storage, echo)


def push_voc(
    tars: Sequence[str],
    folder: str,
    storage: Storage,
    echo: Echo,
    authority: Path | None,
) -> list[Transfer]:
    """Unpack the three original tar files of PASCAL VOC into one VOCdevkit in *folder*, and count its images.

    Raises:
        InputError: as `push`, and for another number of tar files.
        SpotmpiError: as `push`, and if images or annotations of the published lists are missing.
    """
    if len(tars) != _VOC_TARS:
        remedy = "name the three original tar files: 2012 trainval, 2007 trainval, 2007 test (a folder here: ./voc)"
        raise input_error("voc", counted(len(tars), "file"), remedy)
    return _push(_Push(tars, folder, authority, voc=True), storage, echo)


@dataclass(frozen=True)
class _Push:
    sources: Sequence[str]
    folder: str
    authority: Path | None
    voc: bool = False


def _push(request: _Push, storage: Storage, echo: Echo) -> list[Transfer]:
    folder = folder_name(request.folder)
    parsed = [downloads_of(text) if is_remote(text) else source_of(text) for text in request.sources]
    _require_unique([download.address for source in parsed if isinstance(source, list) for download in source])
    indices = [None if isinstance(each, list) or len(parsed) == 1 else index_of(each) for each in parsed]
    _require_other_names(request.sources, parsed, indices)
    certificates = authority_of(request.authority) if request.authority else ""
    api, volume = open_storage(storage)

    async def transfer() -> list[Transfer]:
        remote = [source for source in parsed if isinstance(source, list)]
        fetched = iter(await fetch.fetch(api, volume, remote, folder, echo, certificates) if remote else [])
        if len(remote) == len(parsed) and not request.voc:
            return list(fetched)
        async with volume_access(api, volume, echo) as pod:
            store, transfers = DataStore(pod, echo), []
            for each, index in zip(parsed, indices, strict=True):
                if isinstance(each, list):
                    transfers.append(next(fetched))
                    continue
                if remote and index:
                    addresses = [download.address for downloads in remote for download in downloads]
                    await store.require_other_names(index, folder, addresses)
                transfers.append(await store.push(each, folder, index))
            if request.voc:
                await store.check_voc(folder)
        return transfers

    return call(transfer())


def _require_unique(addresses: Sequence[str]) -> None:
    duplicates = [Problem("SRC", each, "is named twice") for each, count in Counter(addresses).items() if count > 1]
    if duplicates:
        raise InputError(duplicates)


def _require_other_names(
    sources: Sequence[str], parsed: Sequence[Source | list[Download]], indices: Sequence[Index | None]
) -> None:
    """Raise InputError where two sources have a file of one name and other content; tars of addresses are unknown."""
    known: dict[str, tuple[str, object]] = {}  # the source of a name, and the SHA-256 of its content if that is known
    problems = []
    for text, source, index in zip(sources, parsed, indices, strict=True):
        contents: dict[str, object] = {name: sha256 for name, (_, sha256) in (index or {}).items()}
        if isinstance(source, list):
            contents = {download.name: download.sha256 for download in source if not download.is_packed}
        for name, sha256 in contents.items():
            other, content = known.setdefault(name, (text, sha256))
            if other != text and (sha256 is None or sha256 != content):
                problems.append(
                    Problem("SRC", text, f"has {name}, which {other} has with other content: {OTHER_FOLDERS}")
                )
                break
    if problems:
        raise InputError(problems)


def ls(folder: str, storage: Storage, echo: Echo = silent) -> list[dict[str, Any]]:
    """The entries of *folder* of the volume ("" is its top): name, bytes, and the number of files of a folder."""
    return _with_store(storage, echo, lambda store, api: store.entries(folder_name(folder) if folder else ""))


def pull(folder: str, into: Path, storage: Storage, echo: Echo = silent) -> Transfer:
    """Copy every file below *folder* of the volume to *into* on this machine; the same call continues after a break."""
    if exists(into) and not is_folder(into):
        raise input_error("into", str(into), "is a file: name a folder")
    return _with_store(storage, echo, lambda store, api: store.pull(folder_name(folder, reading=True), into))


def clean(older: float, delete: bool, storage: Storage, echo: Echo = silent) -> list[dict[str, Any]]:
    """Versions of data sets and models on the volume that no run has named for *older* seconds: kind, name, key, bytes.

    They were copied there for runs that read them from a store on somebody's machine. A run names them while its JobSet
    is in the cluster, or while its folder on the volume changes. With *delete* they are deleted.
    """

    async def work(store: DataStore, api: ClusterApi) -> list[dict[str, Any]]:
        with translate_errors("list the runs of the cluster"):
            specs = [str(cluster_plan.annotations_of(each)) for each in await api.list(JOBSET)]
        keys = [key for text in specs for key in re.findall("[0-9a-f]{64}", text)]
        return await store.unused(older, keys, delete)

    return _with_store(storage, echo, work)


def folder_name(text: str, reading: bool = False) -> str:
    """*text* as a folder of the volume; InputError if it leads out of it, or into a folder of spotmpi itself."""
    path = PurePosixPath(text)
    if not path.parts or path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise input_error("DEST", text, "write a folder of the storage, such as voc or team/voc")
    if path.parts[0] in _OURS and not reading:
        raise input_error("DEST", text, f"{_OURS[path.parts[0]]}; choose another folder")
    return str(path)


def _with_store(storage: Storage, echo: Echo, work: Callable[[DataStore, ClusterApi], Coroutine[Any, Any, T]]) -> T:
    api, volume = open_storage(storage)

    async def transfer() -> T:
        async with volume_access(api, volume, echo) as access:
            return await work(DataStore(access, echo), api)

    return call(transfer())


def open_storage(storage: Storage) -> tuple[ClusterApi, Volume]:
    """The cluster and the volume of a storage; InputError if the target has none."""
    target = targets.target_of(storage.on)
    if not target.has_pods:
        where = "runs on Slurm read any shared" if target.is_slurm else "runs on this machine read any"
        raise input_error("--on", target.name, f"name an environment, or kubernetes: {where} folder")
    environment = targets.environment_of(target)
    claim, image = storage.claim, storage.image
    pods = storage.pull_secrets, tuple(map(_toleration, storage.tolerations))
    if environment is not None:
        name, repository = min(environment.repositories.items())
        claim = claim or environment.volume_claim
        image = image or build_for(name, environment.has_gpus).reference(repository)
        return ClusterApi(environment.context, environment.namespace), Volume(claim, image, *pods)
    problems = [
        Problem(option, None, f"needed if --on is not an environment: {what}")
        for option, value, what in (("--volume", claim, "a claim (RWX)"), ("--image", image, "with python3"))
        if value is None
    ]
    if problems:
        raise InputError(problems)
    return ClusterApi(None, target.name.partition("/")[2] or None), Volume(str(claim), str(image), *pods)


def _toleration(text: str) -> dict[str, str]:
    """The toleration of a taint written KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT."""
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key or effect not in ("", *_EFFECTS):
        raise input_error("--toleration", text, f"write KEY, KEY=VALUE or KEY=VALUE:EFFECT, with {', '.join(_EFFECTS)}")
    toleration = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**toleration, "effect": effect} if effect else toleration
