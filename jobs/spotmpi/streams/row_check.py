"""Whether files can have no row at all, before a run that would read them starts.

Only what is certain counts: of a file that cannot be read here, or that is no text, workers say what it has.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

_MAX_FILES = 100  # of which the rows are looked for; the first file of almost every source has one
_MAX_PIECE = 1 << 20  # bytes: a file may have no line end at all
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
                return _parquet_has_rows(file)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        pass  # the reason is better told by whoever reads it whole
    return True


def _parquet_has_rows(file: IO[bytes]) -> bool:
    """Whether a file of Parquet has rows, by its footer; as if it had where PyArrow is not installed here.

    Raises:
        ValueError, OSError: it is none that can be read here.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        return True
    return bool(parquet.read_metadata(file).num_rows)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines that are more than space, in pieces of bounded size; a carriage return may end one, too."""
    pieces = iter(lambda: file.readline(_MAX_PIECE), b"")
    return (line for piece in pieces for line in piece.splitlines() if line.strip())
