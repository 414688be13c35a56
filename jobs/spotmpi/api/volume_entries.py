"""Data sets and models of a store on this machine that pods read: they are copied to the run volume, once.

There they lie as in a store, below ``store``: the same files with the same manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotmpi.agent import pod_context
from spotmpi.agent.store import size_and_digest
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.portal import call
from spotmpi.backends.kubernetes.volume_access import Volume, volume_access
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.progress import Say
from spotmpi.data.local_source import Folder
from spotmpi.data.store import DataStore
from spotmpi.entries.manifest import COMMANDS, FILES, MANIFEST, Manifest
from spotmpi.entries.store import Store, folder, reference_in
from spotmpi.plan import manifests
from spotmpi.spec.job import JobSpec

STORE = "store"  # the folder on the run volume


def places(spec: JobSpec) -> dict[str, str]:
    """What a run reads that may be an entry: `data`, `init` and the source of its stream, by key."""
    found = {
        "data": spec.data.path if spec.data else None,
        "init": spec.init,
        "stream.source": spec.stream.source if spec.stream else None,
    }
    return {key: place for key, place in found.items() if place and f"/{FILES}" in place}


def on_volume(spec: JobSpec, persistent: tuple[str, ...] | None) -> JobSpec:
    """*spec*, whose entries of the store on this machine are read from the run volume where it runs in pods.

    *persistent* are the folders of the pods that outlive them; None where it runs on machines.

    Raises:
        InputError: it reads one, and has no run volume.
    """
    if persistent is None:
        return spec
    store, changes = Store(), dict[str, Any]()
    for key, place in places(spec).items():
        reference = reference_in(place)
        if reference is None or place != store.place(reference) or "://" in place:
            continue
        if pod_context.VOLUME not in persistent:
            remedy = "set kubernetes.volume, to which it is copied"
            raise input_error(key, str(reference), f"is in a store on this machine, which pods cannot reach: {remedy}")
        new = f"{STORE}/{folder(reference)}/{FILES}"
        if key == "data" and spec.data:
            changes["data"] = spec.data.model_copy(update={"path": new})
        elif key == "init":
            changes["init"] = new
        elif spec.stream:
            changes["stream"] = spec.stream.model_copy(update={"source": new})
    return spec.model_copy(update=changes) if changes else spec


def send(spec: JobSpec, plan: Mapping[str, Any], say: Say) -> None:
    """Copy what `on_volume` has named to the run volume, without the files that it has.

    An entry that this machine's store does not have is on the volume from an earlier submission.

    Raises:
        SpotmpiError: the volume cannot be reached, or a file is not what its manifest says.
    """
    store = Store()
    references = [reference_in(place) for place in places(spec).values() if place.startswith(f"{STORE}/")]
    entries = [manifest for each in references if each and (manifest := store.get(each))]
    volume = manifests.run_volume(plan["objects"][0]) if entries else None
    if not volume or not store.storage.folder:
        return
    api, top = ClusterApi(plan["context"], plan["namespace"]), store.storage.folder

    async def transfer() -> None:
        async with volume_access(api, Volume(*volume), say) as pod:
            for each in entries:
                place, name = top / folder(each.reference), f"{STORE}/{folder(each.reference)}"
                copied = DataStore(pod, say)
                try:
                    await copied.push(Folder(place), name, _index(each, place))
                    await copied.renew(name)  # `spotmpi data clean` removes what is old and named by no run
                except SpotmpiError as error:
                    remedy = f"`{COMMANDS[each.kind]} verify {each.title}` says whether its files are damaged"
                    raise SpotmpiError(f"{each.title} cannot be copied to the run volume: {error}; {remedy}") from error

    say(f"copying to the run volume: {', '.join(each.title for each in entries)}")
    call(transfer())


def _index(manifest: Manifest, place: Path) -> dict[str, list[object]]:
    """Bytes and SHA-256 of each file of an entry, as its manifest has them."""
    files: dict[str, list[object]] = {f"{FILES}/{file.path}": [file.bytes, file.sha256] for file in manifest.files}
    return {**files, MANIFEST: list(size_and_digest(str(place / MANIFEST)))}
