"""The manifest of an entry, which is a data set or a model: its files, and what they were made from.

An entry is a folder with ``files`` and a ``manifest.json`` that is written last: without one there is no entry.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spotmpi.agent.store import size_and_digest
from spotmpi.core import names
from spotmpi.core.errors import InputError, SpotmpiError, input_error
from spotmpi.core.structs import inspected

FORMAT = 1
MANIFEST = "manifest.json"
FILES = "files"  # the folder of an entry's files, beside its manifest
DATASET, MODEL = "datasets", "models"  # kinds of entries
KINDS = (DATASET, MODEL)
WORDS = {DATASET: "data set", MODEL: "model"}
COMMANDS = {DATASET: "spotmpi data", MODEL: "spotmpi models"}
SHORT = 12  # digits of a key that people see
_REMEDY = "restore it from a copy, or remove its folder and make the entry again"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_KEY = re.compile(r"[0-9a-f]{64}")
LATEST = 253402300800.0  # Unix seconds of the year 10000, which dates do not reach
_DETAILS: dict[str, type] = {  # what commands show of those of each kind
    **dict.fromkeys(("metrics", "spec", "parts", "tokens", "objects"), dict),
    **dict.fromkeys(("command", "function", "checkpoint", "state"), str),
    "row_group": int,
}


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of an entry: its *path* below ``files``, and of which *part* it is, by that part's key."""

    path: str
    bytes: int
    sha256: str
    rows: int | None = None
    part: str | None = None


class Reference(msgspec.Struct, frozen=True, order=True):
    """An entry by its kind, name and key."""

    kind: str
    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}@{self.key[:SHORT]}"


class RawFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of no entry, as an input: *digest* is that of its content, or its size and ETag in a storage."""

    name: str  # below the folder that all files of its source have in common
    bytes: int
    digest: str
    version: str = ""  # its id in a bucket that keeps versions


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one argument of a function stands for: the raw files of a *source*, or the entry that *parent* names."""

    argument: str
    source: str
    digest: str
    files: tuple[RawFile, ...] = ()
    parent: Reference | None = None
    folder: str = ""  # the URL below which the names of *files* are; empty on a machine

    def describe(self, file: RawFile) -> str:
        """A file for people: its name or URL, with its version."""
        return f"{self.folder}{file.name}{f' version {file.version}' if file.version else ''}"


class Code(msgspec.Struct, frozen=True, omit_defaults=True):
    """The code that takes part: normalized *sources* and *values* by name, *packages* by version, and its *digest*."""

    digest: str
    sources: dict[str, str] = {}
    values: dict[str, str] = {}  # of globals that it reads: their digests
    packages: dict[str, str] = {}
    commit: str | None = None  # of git
    diff: str | None = None  # a digest of the changes to that commit


@inspected
class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an entry is made of and from; *details* are those of its kind, such as metrics of a model."""

    kind: str
    name: str
    key: str
    created: float  # Unix seconds
    files: tuple[File, ...]
    parents: tuple[Reference, ...] = ()
    inputs: tuple[Input, ...] = ()
    code: Code | None = None
    arguments: dict[str, Any] = {}
    image: dict[str, str] | None = None  # its name, lock and digest, as far as there are any
    run: str | None = None  # the id of the run that made it
    cost: float | None = None  # US dollars
    details: dict[str, Any] = {}
    version: int = 0  # its number among the entries of its name, which the store gives
    spotmpi: str = ""  # the version that made it
    format: int = FORMAT

    @property
    def reference(self) -> Reference:
        """Kind, name and key."""
        return Reference(self.kind, self.name, self.key)

    @property
    def title(self) -> str:
        """Name and number, as people name it: ``digits:3``."""
        return f"{self.name}:{self.version}"

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int | None:
        """Rows of all files; None where they are not counted."""
        counts = [file.rows for file in self.files if file.rows is not None]
        return sum(counts) if counts or not self.files else None

    def __str__(self) -> str:
        return str(self.reference)


def write(manifest: Manifest) -> str:
    """The text of a manifest, with a digest of itself as its last member.

    Raises:
        InputError: a name, key, run or path that cannot be one.
    """
    _check(manifest)
    values = msgspec.to_builtins(manifest)
    return json.dumps({**values, "digest": _digest(values)}, indent=1) + "\n"


def read(text: str, place: str, remedy: str = _REMEDY) -> Manifest:
    """The manifest in *text*, which was read from *place*; *remedy* is what to do there if it is damaged.

    Raises:
        SpotmpiError: it was edited or damaged, or a later version wrote it.
    """
    try:
        values = json.loads(text)
        digest = values.pop("digest")
        if values.get("format", FORMAT) != FORMAT:
            remedy = f"update spotmpi, which reads format {FORMAT}"
            raise SpotmpiError(f"the manifest {place} has the format {values['format']}: {remedy}")
        if digest == _digest(values):
            found = msgspec.convert(values, Manifest)
            _check(found)
            return found
    except InputError as error:
        raise SpotmpiError(f"the manifest {place} is not one that spotmpi writes: {error}") from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):  # msgspec.ValidationError: a ValueError
        pass
    raise SpotmpiError(f"the manifest {place} was edited or damaged, its digest is not that of its content: {remedy}")


def describe(path: Path, name: str, rows: int | None = None) -> File:
    """The file at *path* as a file of an entry with the path *name* there."""
    size, digest = size_and_digest(str(path))
    return File(name, size, digest, rows)


def digest_of(value: object) -> str:
    """The SHA-256 of a value of JSON; the order of keys does not matter."""
    return _digest(msgspec.to_builtins(value))


def check_name(name: str) -> str:
    """*name* where an entry can have it; else InputError."""
    if not _NAME.fullmatch(name) or name.endswith("."):
        raise input_error("name", name, "use up to 100 letters, digits, '.', '_' and '-'; a letter or digit is first")
    return name


def _check(manifest: Manifest) -> None:
    """Raise InputError for what no entry has: a registry or a shared store may have what others have written."""
    parents = {*manifest.parents, *(each.parent for each in manifest.inputs if each.parent)}
    for each in (manifest.reference, *sorted(parents)):
        check_name(each.name)
        if each.kind not in KINDS:
            raise input_error("kind", each.kind, f"use one of: {', '.join(KINDS)}")
        if not _KEY.fullmatch(each.key):
            raise input_error("key", each.key, "is a SHA-256 in 64 hex digits")
    if manifest.reference in parents:
        raise input_error("parents", str(manifest), "is the entry itself: name what it was made from")
    if not 0 <= manifest.created < LATEST:
        raise input_error("created", manifest.created, "is not a time in Unix seconds")
    if manifest.run is not None and not names.is_folder_name(manifest.run):
        raise input_error("run", manifest.run, "is not the id of a run, which is the name of its folder")
    for name, kind in _DETAILS.items():
        if not isinstance(manifest.details.get(name, kind()), kind):
            raise input_error(f"details.{name}", manifest.details[name], f"is not a {kind.__name__}")
    _check_files(manifest.files)


def _check_files(files: Sequence[File]) -> None:
    paths = Counter(file.path for file in files)
    folders = {path[:place] for path in paths for place, each in enumerate(path) if each == "/"}
    for file in files:
        path = file.path
        if paths[path] > 1:
            raise input_error("files", path, "is the name of two files: give each its own")
        if path in folders:
            raise input_error("files", path, "is the name of a file and of a folder: give each its own")
        if file.bytes < 0 or not _KEY.fullmatch(file.sha256):
            raise input_error("files", path, "has no SHA-256 in 64 hex digits, or fewer than 0 bytes")
        if not path.isprintable() or {"", ".", ".."}.intersection(path.split("/")):
            remedy = "use names below its folder" if path.isprintable() else "rename what cannot be printed"
            raise input_error("files", path, f"is not a relative path of an entry: {remedy}")


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
