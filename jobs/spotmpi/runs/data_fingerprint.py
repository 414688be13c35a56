"""Identifies the content of a data folder by a few numbers and hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent.files import error_text, write_atomically
from spotmpi.core import names
from spotmpi.core.errors import input_error
from spotmpi.core.wording import counted, format_size

# Bytes that are hashed while a run starts; hashing more would delay it.
HASHED_AT_START = 8 << 20


class _File(NamedTuple):
    name: str  # below the folder
    size: int
    modified: int  # ns


def identify(folder: Path) -> dict[str, Any]:
    """Number of ``files``, ``bytes``, and three hashes of a data folder, without reading much of it.

    ``listing`` is over names and sizes, ``state`` over modification times too, ``content`` over every byte; the last
    is None for a large folder whose content was never hashed (see `with_content`).

    Raises:
        InputError: the folder, or something in it, cannot be read.
    """
    files = _scan(folder)
    total = sum(file.size for file in files)
    state = _digest(files)
    content = _cached_content(folder, state)
    if content is None and total <= HASHED_AT_START:
        content = _content(folder, files)
        _cache_content(folder, state, content)
    return {
        "path": str(folder),
        "files": len(files),
        "bytes": total,
        "listing": _digest((file.name, file.size) for file in files),
        "state": state,
        "content": content,
    }


def unread(path: str) -> dict[str, Any]:
    """The identity of a folder that this machine cannot read: its path only."""
    return {"path": path, "files": None, "bytes": None, "listing": None, "state": None, "content": None}


def with_content(data: dict[str, Any]) -> dict[str, Any]:
    """*data* with its ``content`` hash, computed now if the folder has not changed; else *data* as it is."""
    if data["content"] is not None or data["state"] is None:
        return data
    folder = Path(data["path"])
    content = _cached_content(folder, data["state"])
    if content is None:
        try:
            files = _scan(folder)
            if _digest(files) != data["state"]:
                return data
            content = _content(folder, files)
        except (OSError, ValueError):
            return data
        _cache_content(folder, data["state"], content)
    return {**data, "content": content}


def same(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether two identities are of the same files, whatever the path and modification times."""
    if one is None or other is None:
        return one is other
    if one["listing"] != other["listing"]:
        return False
    if one["path"] == other["path"] and one["state"] == other["state"]:
        return True
    contents = with_content(one)["content"], with_content(other)["content"]
    return None not in contents and contents[0] == contents[1]


def text(data: dict[str, Any] | None) -> str:
    """An identity as people read it: the path, and what was read of it."""
    if data is None:
        return "none"
    if data["state"] is None:
        return str(data["path"])
    size = f"{counted(data['files'], 'file')}, {format_size(data['bytes'])}"
    return f"{data['path']} ({size}, {(data['content'] or data['state'])[:12]})"


def _scan(folder: Path) -> list[_File]:
    try:
        return sorted(_walk(str(folder), ""))
    except OSError as error:
        raise input_error("data", str(folder), f"cannot be read: {error_text(error)}") from error


def _walk(folder: str, prefix: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[_File]:
    """The files below *folder*, which is reached through the folders *above*; of a link to one of these, nothing."""
    status = Path(folder).stat()
    if (status.st_dev, status.st_ino) in above:
        return
    above = (*above, (status.st_dev, status.st_ino))
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(entry.path, f"{prefix}{entry.name}/", above)
            else:
                status = entry.stat()
                if stat.S_ISREG(status.st_mode):  # whoever opens a FIFO waits for its writer
                    yield _File(prefix + entry.name, status.st_size, status.st_mtime_ns)


def _digest(rows: Iterable[tuple[object, ...]]) -> str:
    text = "\n".join("\0".join(map(str, row)) for row in rows)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _content(folder: Path, files: list[_File]) -> str:
    whole = hashlib.sha256()
    for file in files:
        with (folder / file.name).open("rb") as stream:
            one = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"{file.name}\0{one}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _cache_file(folder: Path, state: str) -> Path:
    key = hashlib.sha256(f"{folder}\0{state}".encode("utf-8", "surrogateescape")).hexdigest()
    return names.cache_folder() / "contents" / f"{key[:32]}.json"


def _cached_content(folder: Path, state: str) -> str | None:
    try:
        return str(json.loads(_cache_file(folder, state).read_text(encoding="utf-8"))["content"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cache_content(folder: Path, state: str, content: str) -> None:
    path = _cache_file(folder, state)
    # A cache that cannot be written costs only time.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"content": content}))
