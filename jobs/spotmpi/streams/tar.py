"""Tar files in WebDataset's form as sources: a row is a sample, consecutive members with one name up to the dot."""

from __future__ import annotations

import functools
import tarfile
from typing import Any, NamedTuple

from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Slice
from spotmpi.streams.storage import file_system


class _Member(NamedTuple):
    """One file of a sample: what follows the first dot of its name, and where its bytes are in the tar file."""

    extension: str
    start: int
    stop: int


class _Sample(NamedTuple):
    key: str
    members: tuple[_Member, ...]


def count_samples(source: str, name: str, version: str) -> int:
    """The number of samples of a tar file."""
    return len(_index(source, name, version))


def read_samples(source: str, rows: Slice) -> list[dict[str, Any]]:
    """The samples of a slice, read with one request.

    Each is a dictionary of bytes by extension, with ``__key__`` and ``__url__``.
    """
    name = rows.part.name
    samples = _index(source, name, rows.part.version)[rows.start : rows.stop]
    first = samples[0].members[0].start
    content = file_system(source)[0].cat_file(name, start=first, end=samples[-1].members[-1].stop)
    result: list[dict[str, Any]] = []
    for key, members in samples:
        files = {extension: content[start - first : stop - first] for extension, start, stop in members}
        result.append({"__key__": key, "__url__": name, **files})
    return result


@functools.lru_cache(maxsize=64)
def _index(source: str, name: str, version: str) -> tuple[_Sample, ...]:
    """The samples of a tar file with their places, from the headers of its members."""
    samples: list[_Sample] = []
    try:
        with file_system(source)[0].open(name) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if member.islnk():
                    remedy = "write it with tar's option --hard-dereference"
                    raise StreamError(f"{name} has {member.name} as a link to {member.linkname}: {remedy}")
                folder, slash, base = member.name.rpartition("/")
                stem, dot, extension = base.partition(".")
                if not member.isreg() or not stem or not dot or stem.startswith("__"):
                    continue
                if member.issparse():
                    raise StreamError(f"{name} has {member.name} with holes: write it without tar's option --sparse")
                _add(samples, f"{folder}{slash}{stem}", extension.lower(), member, name)
    except tarfile.TarError as error:
        raise StreamError(f"{name} cannot be read as tar: {error}") from error
    return tuple(samples)


def _add(samples: list[_Sample], key: str, extension: str, member: tarfile.TarInfo, name: str) -> None:
    entry = _Member(extension, member.offset_data, member.offset_data + member.size)
    if not samples or samples[-1].key != key:
        samples.append(_Sample(key, (entry,)))
    elif extension in {other.extension for other in samples[-1].members}:
        raise StreamError(f"{name} has {key}.{extension} twice in one sample: write each file once")
    else:
        samples[-1] = _Sample(key, (*samples[-1].members, entry))
