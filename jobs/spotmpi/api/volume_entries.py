"""Data sets and models of a store that pods read as folders: they are copied to the run volume, once.

There they lie as in a store, below ``store``: the same files with the same manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from spotmpi.agent import pod_context
from spotmpi.api.run_entries import places
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.portal import call
from spotmpi.backends.kubernetes.volume_access import volume_access
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.wording import Echo
from spotmpi.data.local_source import Index
from spotmpi.data.store import DataStore
from spotmpi.entries.manifest import COMMANDS, FILES, MANIFEST, Manifest
from spotmpi.entries.storage import Storage, errors
from spotmpi.entries.store import Store, folder, reference_in
from spotmpi.plan import cluster_plan
from spotmpi.spec.job import JobSpec

STORE = "store"  # the folder on the run volume


def on_volume(spec: JobSpec, persistent: tuple[str, ...]) -> JobSpec:
    """*spec* of a run in pods, which reads its entries of the store from the run volume.

    *persistent* are the folders of the pods that outlive them.

    Raises:
        InputError: it reads one, and has no run volume.
    """
    store, changes = Store(), dict[str, str]()
    is_source = spec.stream is not None and "://" in store.storage.url  # of a data set that is not built yet
    if spec.dataset and not is_source and pod_context.VOLUME not in persistent:
        remedy = "is copied to the run volume for the run: set kubernetes.volume"
        raise input_error("dataset", spec.dataset.build, remedy)
    for key, place in places(spec).items():
        reference = reference_in(place)
        if reference is None or place != store.place(reference) or (key == "stream.source" and "://" in place):
            continue  # workers read a source behind a URL where it is
        if pod_context.VOLUME not in persistent:
            where = (
                "behind a URL, which ranks cannot read"
                if "://" in place
                else "on this machine, which pods cannot reach"
            )
            remedy = "set kubernetes.volume, to which it is copied"
            raise input_error(key, str(reference), f"is in a store {where}: {remedy}")
        changes[key] = f"{STORE}/{folder(reference)}/{FILES}"
    return spec.with_inputs(changes)


def send(spec: JobSpec, plan: Mapping[str, Any], echo: Echo) -> None:
    """Copy what `on_volume` has named to the run volume, without the files that it has.

    An entry that this machine's store does not have is on the volume from an earlier submission.

    Raises:
        SpotmpiError: the volume cannot be reached, or a file is not what its manifest says.
    """
    store = Store()
    references = [reference_in(place) for place in places(spec).values() if place.startswith(f"{STORE}/")]
    entries = [manifest for each in references if each and (manifest := store.get(each))]
    volume = cluster_plan.run_volume(plan["objects"][0]) if entries else None
    if not volume:
        return
    api = ClusterApi(plan["context"], plan["namespace"])

    async def transfer() -> None:
        async with volume_access(api, volume, echo) as pod:
            for each in entries:
                source, name = _Files(each, store.storage), f"{STORE}/{folder(each.reference)}"
                copied = DataStore(pod, echo)
                try:
                    await copied.push(source, name, source.index())
                    await copied.renew(name)  # `spotmpi data clean` removes what is old and named by no run
                except SpotmpiError as error:
                    remedy = f"`{COMMANDS[each.kind]} verify {each.title}` says whether its files are damaged"
                    raise SpotmpiError(f"{each.title} cannot be copied to the run volume: {error}; {remedy}") from error

    echo(f"copying to the run volume: {', '.join(each.title for each in entries)}")
    call(transfer())


class _Files:
    """The files of an entry with its manifest, wherever its store is."""

    def __init__(self, manifest: Manifest, storage: Storage) -> None:
        self._manifest, self._storage, self._folder = manifest, storage, folder(manifest.reference)

    def index(self) -> Index:
        """Bytes and SHA-256 of each file, as the manifest has them."""
        index: Index = {f"{FILES}/{file.path}": [file.bytes, file.sha256] for file in self._manifest.files}
        found = self._storage.digest(f"{self._folder}/{MANIFEST}")
        return {**index, MANIFEST: list(found or ())}

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """Name, bytes and content of each file, which is read before the next one."""
        for name, (size, _) in self.index().items():
            with errors(f"{self._storage.place(f'{self._folder}/{name}')} cannot be read"):
                file = self._storage.open(f"{self._folder}/{name}")
            with file:
                yield name, int(str(size)), file
