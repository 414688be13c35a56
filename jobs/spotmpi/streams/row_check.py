"""Whether files can have no row at all, before a run that would read them starts. Standard library only.

Only what is certain counts: of a file that cannot be read here, or that is no text, workers say what it has.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

_MAX_FILES = 100  # of which the rows are looked for; the first file of almost every source has one
_MAX_PIECE = 1 << 20  # bytes: a file may have no line end at all
_TAIL = struct.Struct("<I4s")  # of a file of Parquet: the length of its footer, and a mark
_ROWS = 3  # the number of that field in the footer
_OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


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
                return _parquet_rows(file) > 0
    except (OSError, EOFError, ValueError, RecursionError, struct.error, lzma.LZMAError, zlib.error):
        pass  # the reason is better told by whoever reads it whole
    return True


def _parquet_rows(file: IO[bytes]) -> int:
    """The rows of a file of Parquet, by its footer.

    Raises:
        ValueError, EOFError: it is none that can be read here.
    """
    file.seek(-_TAIL.size, os.SEEK_END)
    length, mark = _TAIL.unpack(file.read(_TAIL.size))
    if mark != b"PAR1":  # also where the footer is encrypted
        raise ValueError("no Parquet")
    file.seek(-_TAIL.size - length, os.SEEK_END)
    footer, number, rows = io.BytesIO(file.read(length)), 0, 0
    while number < _ROWS:
        (head,) = _bytes(footer, 1)
        if not head >> 4:  # the end of the structure, or numbers that the format does not need here
            raise ValueError("no number of rows")
        number += head >> 4
        if number == _ROWS:
            rows = _integer(footer) >> 1
        else:
            _skip(footer, head & 15)
    return rows


def _skip(file: IO[bytes], kind: int) -> None:
    """Read over a value of the compact protocol of Thrift, in which footers of Parquet are."""
    if kind in (3, 7):  # a byte, a number of 8 bytes
        _bytes(file, 1 if kind == 3 else 8)
    elif kind in (4, 5, 6):  # whole numbers; 1 and 2 are truth values, which have no content
        _integer(file)
    elif kind == 8:
        _bytes(file, _integer(file))
    elif kind in (9, 10):  # lists and sets
        (head,) = _bytes(file, 1)
        for _ in range(head >> 4 if head >> 4 < 15 else _integer(file)):
            _skip(file, 3 if head & 15 in (1, 2) else head & 15)
    elif kind == 12:
        while head := _bytes(file, 1)[0]:
            if not head >> 4:
                _integer(file)
            _skip(file, head & 15)
    elif kind not in (1, 2):
        raise ValueError("no footer of Parquet")


def _integer(file: IO[bytes]) -> int:
    value, shift = 0, 0
    while True:
        (byte,) = _bytes(file, 1)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        shift += 7


def _bytes(file: IO[bytes], count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise EOFError
    return content


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines that are more than space, in pieces of bounded size; a carriage return may end one, too."""
    pieces = iter(lambda: file.readline(_MAX_PIECE), b"")
    return (line for piece in pieces for line in piece.splitlines() if line.strip())
