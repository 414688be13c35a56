"""The inputs of a data set: the files that an argument stands for, and digests of their content or version."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotmpi.agent.files import write_atomically
from spotmpi.agent.store import size_and_digest
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.entries.manifest import File, Input, Manifest, RawFile, digest_of
from spotmpi.entries.store import Store, is_reference
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Part
from spotmpi.streams.part_files import CHANGED, Files
from spotmpi.streams.sources import files_named, files_of
from spotmpi.streams.storage import check_unchanged, file_system, with_retries

_REMEDY = "`spotmpi data verify` says which files are; remove its folder and build it again"
_THREADS = 8  # that read files of this machine, or ask a storage


class Resolved(NamedTuple):
    """An input as manifests have it, the files for workers, and a digest of each of them."""

    input: Input
    files: Files
    digests: tuple[str, ...]


def resolve(argument: str, value: object, store: Store) -> Resolved:
    """What *value* stands for: an entry or its reference, or a file, folder, pattern or URL.

    Raises:
        InputError: it is none of these, or there is no such entry.
        SpotmpiError: it is empty or cannot be read, or an entry's files are not those of its manifest.
    """
    manifest = getattr(value, "manifest", None)
    if isinstance(manifest, Manifest):
        return _of_entry(argument, manifest, getattr(value, "store", store))
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        remedy = "name a file, a folder, a pattern, a URL or a data set"
        raise input_error(argument, value, remedy)
    source = str(os.fspath(value))
    if is_reference(source):
        return _of_entry(argument, store.find(source), store)
    return _raw(argument, source)


def _of_entry(argument: str, manifest: Manifest, store: Store) -> Resolved:
    """The files of an entry in *store* as an input; SpotmpiError where they are not what its manifest says."""
    place = store.place(manifest.reference)
    names = tuple(file.path for file in manifest.files)
    try:
        parts = tuple(files_named(place, [f"{file_system(place)[1]}/{name}" for name in names]))
    except (StreamError, SourceError) as error:
        raise SpotmpiError(f"{manifest} is damaged: {error}; {_REMEDY}") from error
    changed = next(
        (file.path for file, part in zip(manifest.files, parts, strict=True) if file.bytes != part.size), None
    )
    if changed is not None:
        raise SpotmpiError(f"{manifest} is damaged: {changed} has another size than in its manifest; {_REMEDY}")
    value = Input(argument, str(manifest), digest_of_files(manifest.files), parent=manifest.reference)
    return Resolved(value, Files(place, parts, names), _digests(manifest.files))


def digest_of_files(files: Sequence[File]) -> str:
    """What identifies the files of an entry as an input: their names and content, whatever they were made from."""
    return digest_of(list(_digests(files)))


def _digests(files: Sequence[File]) -> tuple[str, ...]:
    return tuple(digest_of([file.path, file.sha256]) for file in files)


def _raw(argument: str, source: str) -> Resolved:
    source = source if "://" in source else str(names.absolute(source))
    folder, listed = _list_parts(source)
    with ThreadPoolExecutor(_THREADS) as threads:
        contents = list(threads.map(lambda each: _content(source, each[1]), listed))
    files = tuple(RawFile(name, part.size, content) for (name, part), content in zip(listed, contents, strict=True))
    digests = tuple(digest_of([file.name, file.digest]) for file in files)
    url = f"{file_system(source)[0].unstrip_protocol(folder).rstrip('/')}/" if "://" in source and folder else ""
    value = Input(argument, source, digest_of(list(digests)), files, folder=url)
    return Resolved(
        value, Files(source, tuple(part for _, part in listed), tuple(file.name for file in files)), digests
    )


def with_versions(resolved: Resolved) -> Input:
    """An input whose files in a storage have the ids of their versions, where the bucket keeps versions.

    Raises:
        SpotmpiError: a file is not any more what it was when `resolve` has listed it.
    """
    value, (source, parts, _), _ = resolved
    if "://" not in source or value.parent is not None:
        return value
    system = file_system(source)[0]

    def version(part: Part) -> str:
        check = functools.partial(check_unchanged, system, part, "the data set", CHANGED)
        return with_retries(check, part.name)

    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            versions = list(threads.map(version, parts))
    except (StreamError, SourceError) as error:
        raise SpotmpiError(str(error)) from error
    files = (msgspec.structs.replace(file, version=each) for file, each in zip(value.files, versions, strict=True))
    return msgspec.structs.replace(value, files=tuple(files))


def _list_parts(source: str) -> tuple[str, list[tuple[str, Part]]]:
    """A folder, and the files of a source with their names below it: the source itself, or where its pattern begins."""
    try:
        parts = files_of(source)
        path = str(file_system(source)[1])
    except (StreamError, SourceError) as error:
        raise SpotmpiError(str(error)) from error
    folder = f"{path.rstrip('/')}/"
    if not all(part.name.startswith(folder) for part in parts):
        folder = re.split(r"[*?\[]", path)[0].rpartition("/")[0] + "/"
        folder = folder if all(part.name.startswith(folder) for part in parts) else ""
    return folder, [(part.name.removeprefix(folder) if folder else Path(part.name).name, part) for part in parts]


def _content(source: str, part: Part) -> str:
    """The SHA-256 of a file of this machine; of another storage its version, or content where that has no versions."""
    system, _ = file_system(source)
    if Path(part.name).is_absolute() and "file" in system.protocol:
        return _local_content(Path(part.name))
    if part.version != "None":
        return f"version {part.size} {part.version}"

    def read() -> str:
        with system.open(part.name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    try:
        return with_retries(read, part.name)
    except SourceError as error:
        raise SpotmpiError(str(error)) from error


def _local_content(path: Path) -> str:
    """The SHA-256 of a file, which is kept for as long as the file is not changed."""
    before = _state(path)
    cache = names.cache_folder() / "digests" / f"{digest_of([str(path), *before])[:32]}.json"
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads(cache.read_text(encoding="utf-8")))
    try:
        _, content = size_and_digest(str(path))
    except OSError as error:
        raise SpotmpiError(f"{path} cannot be read: {error.strerror}; check its permissions and its disk") from error
    if _state(path) != before:
        raise SpotmpiError(f"{path} was changed while it was read: call it again once nothing writes to it")
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time alone
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache, json.dumps(content))
    return str(content)


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
