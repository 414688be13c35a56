"""Whether files can have no row at all, before a run that would read them starts. Standard library only.

Only what is certain counts: of a file that cannot be read here, or of another form, workers say what it has.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

_MAX_FILES = 100  # of which the rows are looked for; the first file of almost every source has one
_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MAGIC = b"PAR1"
_ROWS, _END = 3, 0  # fields of Parquet's FileMetaData, in Thrift's compact protocol
_BYTE, _BINARY, _DOUBLE, _LIST, _SET, _STRUCT = 3, 8, 7, 9, 10, 12


def lacks_rows(paths: Iterable[Path]) -> bool:
    """Whether it is certain that none of some files has a row."""
    checked = False
    for number, path in enumerate(paths):
        if number == _MAX_FILES or _may_have_rows(path):
            return False
        checked = True
    return checked


def _may_have_rows(path: Path) -> bool:
    opened = _OPEN.get(path.suffix.lower())
    form = path.with_suffix("").suffix.lower() if opened else path.suffix.lower()
    try:
        with (opened or open)(path, "rb") as file:
            if form == ".csv":
                return sum(1 for _, line in zip(range(2), _lines(file), strict=False)) > 1
            if form in (".jsonl", ".ndjson"):
                return any(True for _ in _lines(file))
            if form in (".parquet", ".pq"):
                return _parquet_rows(file) != 0
            if form == ".tar" and not opened:
                with tarfile.open(fileobj=file, mode="r:") as tar:
                    return tar.next() is not None
    except (OSError, EOFError, ValueError, IndexError, lzma.LZMAError, tarfile.TarError):
        pass  # the reason is better told by whoever reads it whole
    return True


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines that are more than space; a carriage return may end one, too."""
    return (line for text in file for line in text.splitlines() if line.strip())


def _parquet_rows(file: IO[bytes]) -> int | None:
    """The number of rows of a Parquet file by its footer, None if it has no such number."""
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    tail = file.read()
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - 12:
        return None
    file.seek(size - 8 - length)
    return _Footer(file.read(length)).rows()


class _Footer:
    """Fields of the metadata of a Parquet file."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def rows(self) -> int | None:
        for field, kind in self._fields():
            if field == _ROWS:
                value = self._number()
                return value >> 1 ^ -(value & 1)
            self._skip(kind)
        return None

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def _fields(self) -> Iterator[tuple[int, int]]:
        """The number and kind of each field of a structure, whose value is read or skipped in between."""
        field = 0
        while (head := self._byte()) != _END:
            field = field + (head >> 4) if head >> 4 else self._number() >> 1
            yield field, head & 0x0F

    def _skip(self, kind: int) -> None:
        if kind == _BYTE:
            self._at += 1
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            length = self._number()
            self._at += length
        elif kind in (_LIST, _SET):
            head = self._byte()
            if head & 0x0F < _BYTE:
                raise ValueError("no list of Parquet's metadata has truth values")
            for _ in range(head >> 4 if head >> 4 < 0x0F else self._number()):
                self._skip(head & 0x0F)
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner)
        elif kind > _BYTE:  # whole numbers; truth values are in the head of their field
            self._number()
