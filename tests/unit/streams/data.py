"""Sources of streams that tests write, and what is read from them."""

from __future__ import annotations

import io
import itertools
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from spotmpi.streams import sources
from spotmpi.streams.order import Order, Part, Settings


def table(start: int, stop: int) -> bytes:
    """A Parquet file with these numbers as the column `x`, and as text as the column `name`, in row groups of 4."""
    buffer = io.BytesIO()
    columns = {"x": np.arange(start, stop), "name": [str(number) for number in range(start, stop)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer, row_group_size=4)
    return buffer.getvalue()


def write_tar(path: Path, files: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def samples(prefix: str, numbers: range) -> dict[str, bytes]:
    """An image and a label for each number."""
    files = {}
    for number in numbers:
        files[f"{prefix}/{number:04}.jpg"] = b"image %d" % number * (number + 1)
        files[f"{prefix}/{number:04}.cls"] = b"%d" % number
    return files


def order_of(source: str | Path, batch: int, **values: Any) -> Order:
    """The order of a source's batches, with the parts that it has now."""
    settings = Settings(str(source), batch, **values)
    return Order(sources.parts_of(settings), settings)


def read(order: Order, number: int) -> Any:
    """One batch as it is read."""
    return sources.read(order.settings, order.slices(number))


def read_all(order: Order) -> list[Any]:
    """Every batch of an epoch as it is read."""
    return [read(order, number) for number in range(order.epoch_batches)]


def numbered_rows(order: Order, number: int) -> list[int]:
    """The rows of a batch, numbered through the whole source by the parts' names."""
    return [int(each.part.name) + row for each in order.slices(number) for row in range(each.start, each.stop)]


def parts_of(lengths: list[int], unit: int) -> list[Part]:
    """Parts of so many rows, each with the number of its first row as its name."""
    firsts = itertools.accumulate(lengths, initial=0)
    return [Part(str(first), length, 1, "1", unit) for first, length in zip(firsts, lengths, strict=False)]
