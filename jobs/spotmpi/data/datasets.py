"""`spotmpi data` as functions: data sets on the shared storage, pushed, listed and pulled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from spotmpi.backends import targets
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.kubeconfig import context_of
from spotmpi.backends.kubernetes.client.portal import call
from spotmpi.backends.kubernetes.volume_access import Volume, volume_access
from spotmpi.backends.targets import TargetLike
from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.core.progress import Say
from spotmpi.data import fetch
from spotmpi.data.local_source import source_of
from spotmpi.data.remote_source import authority_of, is_remote, orders_of
from spotmpi.data.store import DataStore, Moved
from spotmpi.images.build import build_for

T = TypeVar("T")
_VOC_TARS = 3
_OURS = {
    "runs": "runs are recorded there",
    "code": "the code of runs is stored there",
}  # see `spotmpi.agent.pod_context`


@dataclass(frozen=True)
class Storage:
    """Where data is: a place as `--on` names it, with claim and image where it is no environment."""

    on: TargetLike = None
    claim: str | None = None
    image: str | None = None


def push(
    sources: Sequence[str],
    folder: str,
    storage: Storage,
    say: Say = lambda text: None,
    authority: Path | None = None,
) -> list[Moved]:
    """Bring sources below *folder* of the volume, one after the other.

    A source is a folder or tar file of this machine, or an address, ``https://...#sha256=...`` or ``s3://``; those a
    Job of the cluster fetches, whatever becomes of this process. The Job trusts the certificates in the PEM file
    *authority* besides the usual ones.

    Raises:
        InputError: a source, the folder or the authority is none.
        SpotmpiError: it broke off, and the same call goes on.
    """
    if not sources:
        raise input_error("SRC", None, "name what to push, then the folder on the storage")
    return _push(_Wanted(sources, folder, authority), storage, say)


def push_voc(
    tars: Sequence[str],
    folder: str,
    storage: Storage,
    say: Say = lambda text: None,
    authority: Path | None = None,
) -> list[Moved]:
    """Bring the three original tar files of PASCAL VOC into one VOCdevkit below *folder*, and count its images.

    Raises:
        InputError: as `push`, and for another number of tar files.
        SpotmpiError: as `push`, and where images or annotations of the published lists are missing.
    """
    if len(tars) != _VOC_TARS:
        remedy = "name the three original tar files: 2012 trainval, 2007 trainval, 2007 test (a folder here: ./voc)"
        raise input_error("voc", f"{len(tars)} files", remedy)
    return _push(_Wanted(tars, folder, authority, voc=True), storage, say)


@dataclass(frozen=True)
class _Wanted:
    sources: Sequence[str]
    folder: str
    authority: Path | None
    voc: bool = False


def _push(wanted: _Wanted, storage: Storage, say: Say) -> list[Moved]:
    folder = folder_name(wanted.folder)
    found = [orders_of(text) if is_remote(text) else source_of(text) for text in wanted.sources]
    _require_once([order.address for source in found if isinstance(source, list) for order in source])
    trusted = authority_of(wanted.authority) if wanted.authority else ""
    api, volume = reached(storage)

    async def whole() -> list[Moved]:
        remote = [source for source in found if isinstance(source, list)]
        fetched = iter(await fetch.fetch(api, volume, remote, folder, say, trusted) if remote else [])
        if len(remote) == len(found) and not wanted.voc:
            return list(fetched)
        async with volume_access(api, volume, say) as pod:
            there = DataStore(pod, say)
            moved = [next(fetched) if isinstance(each, list) else await there.push(each, folder) for each in found]
            if wanted.voc:
                await there.check_voc(folder)
        return moved

    return call(whole())


def _require_once(addresses: Sequence[str]) -> None:
    twice = [Problem("SRC", each, "is named twice") for each, count in Counter(addresses).items() if count > 1]
    if twice:
        raise InputError(twice)


def ls(folder: str, storage: Storage, say: Say = lambda text: None) -> list[dict[str, Any]]:
    """What is directly in *folder* of the volume ("" is its top): name, bytes, and files of a folder."""
    return _with_store(storage, say, lambda there: there.listed(folder_name(folder) if folder else ""))


def pull(folder: str, into: Path, storage: Storage, say: Say = lambda text: None) -> Moved:
    """Bring every file below *folder* of the volume into a folder here; the same call goes on where it broke off."""
    return _with_store(storage, say, lambda there: there.pull(folder_name(folder, reading=True), into))


def folder_name(text: str, reading: bool = False) -> str:
    """*text* as a folder of the volume; InputError where it leads out of it, or into one of spotmpi's own."""
    path = PurePosixPath(text)
    if not path.parts or path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise input_error("DEST", text, "write a folder of the storage, such as voc or team/voc")
    if path.parts[0] in _OURS and not reading:
        raise input_error("DEST", text, f"{_OURS[path.parts[0]]}; take another folder")
    return str(path)


def _with_store(storage: Storage, say: Say, work: Callable[[DataStore], Coroutine[Any, Any, T]]) -> T:
    api, volume = reached(storage)

    async def whole() -> T:
        async with volume_access(api, volume, say) as there:
            return await work(DataStore(there, say))

    return call(whole())


def reached(storage: Storage) -> tuple[ClusterApi, Volume]:
    """The cluster and the volume of a storage; InputError where the place has none."""
    here = targets.target_of(storage.on)
    if here.name == targets.LOCAL:
        raise input_error("--on", here.name, "name an environment, or kubernetes: runs on this machine take any folder")
    environment = targets.environment_of(here)
    claim, image = storage.claim, storage.image
    if environment is not None:
        name, repository = min(environment.repositories.items())
        claim = claim or environment.volume_claim
        image = image or build_for(name, environment.has_gpus).reference(repository)
        return ClusterApi(context_of(environment.cluster), environment.namespace), Volume(claim, image)
    problems = [
        Problem(option, None, f"needed where the place is no environment: {what}")
        for option, value, what in (("--volume", claim, "a claim (RWX)"), ("--image", image, "with python3"))
        if value is None
    ]
    if problems:
        raise InputError(problems)
    return ClusterApi(None, here.name.partition("/")[2] or None), Volume(str(claim), str(image))
