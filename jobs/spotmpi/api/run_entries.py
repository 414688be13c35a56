"""The data sets and the model that a run reads as folders: which these are, and copies on this machine.

A store behind a URL has no folders. A copy has the same files with the same manifest in a store in the cache folder,
one for each URL, so that records lead to the entry from there as well.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

from spotmpi.agent.files import is_file
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.wording import Echo, counted, format_size
from spotmpi.entries.manifest import FILES, MANIFEST
from spotmpi.entries.store import Store, folder, reference_in
from spotmpi.spec.job import JobSpec
from spotmpi.streams.storage import local_path

_FOLDERS = ("data", "init")  # keys of what ranks read as a folder


def places(spec: JobSpec) -> dict[str, str]:
    """Those of the `inputs` of a run that may be entries, by key."""
    return {key: place for key, place in spec.inputs.items() if f"/{FILES}" in place}


def in_store(spec: JobSpec, store: Store) -> JobSpec:
    """The recorded *spec* of a run, which reads from *store* what it has read there, in a copy, or where it was."""
    found = {key: reference_in(place) for key, place in places(spec).items()}
    return spec.with_inputs({key: store.place(each) for key, each in found.items() if each and store.get(each)})


def with_copies(spec: JobSpec) -> JobSpec:
    """*spec* of a run on this machine, which reads copies of the entries that are behind a URL."""
    return spec.with_inputs({key: copy_of(place) for key, place in places(spec).items() if key in _FOLDERS})


def copy_of(place: str) -> str:
    """The place of the copy on this machine of an entry behind a URL; other places as they are."""
    reference = reference_in(place)
    if reference is None or "://" not in place:
        return place
    store = place.partition(f"/{folder(reference)}")[0]
    copies = str(names.entry_copies() / quote(store, safe=""))
    return local_path(place) or f"{copies}/{folder(reference)}/{FILES}"


def missing(spec: JobSpec) -> dict[str, Path]:
    """The copies that *spec* reads and that are not complete, by key: the folder of the entry."""
    read = {key: Path(place) for key, place in places(spec).items() if key in _FOLDERS}
    copies = {key: place.parent for key, place in read.items() if names.entry_copies() in place.parents}
    return {key: place for key, place in copies.items() if not is_file(place / MANIFEST)}


def fetch(spec: JobSpec, echo: Echo) -> None:
    """Copy the entries that `missing` has, as their manifests have them.

    Raises:
        SpotmpiError: one is not in its store any more or damaged, or the disk is too small.
    """
    for place in {*missing(spec).values()}:
        store = Store(unquote(place.relative_to(names.entry_copies()).parts[0]))
        reference = reference_in(str(place / FILES))
        manifest = store.get(reference) if reference else None
        if manifest is None:
            raise SpotmpiError(f"{place} has to be copied from {store.storage.url}, which does not have it any more")
        size = f"{counted(len(manifest.files), 'file')}, {format_size(manifest.bytes)}"
        echo(f"copying to this machine: {manifest.title}, {size}")
        store.copy_to(Store(str(place.parents[2])), manifest)
