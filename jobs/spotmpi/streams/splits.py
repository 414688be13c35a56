"""Splits and samples of the rows of a source, as data sets: by a column, or at random by a seed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from spotmpi.streams.dataset import Source, dataset
from spotmpi.streams.errors import StreamError

_DIGITS = 13  # hex digits of a hash, which a float has exactly


def split(
    source: Any, shares: Mapping[str, float], by: str | None = None, seed: int = 0, name: str = "", **options: Any
) -> dict[str, Any]:
    """The data sets ``NAME-train`` and so on of the *shares* of the rows of a source, such as ``{"train": 0.8}``.

    With the column *by* all rows of one value are in the same set, whichever file they are in; else rows are drawn by
    *seed*. *name* is by default that of the data set that is split; *options* are those of `spotmpi.dataset`.

    Raises:
        ValueError: shares that are not numbers between 0 and 1 by name, or more than 1 together.
    """
    numbers = [*shares.values()] if isinstance(shares, Mapping) else []
    numeric = all(isinstance(each, int | float) for each in numbers)
    if not numbers or not numeric or not min(numbers) > 0 or not sum(numbers) <= 1 + 1e-9:
        remedy = 'give each more than 0, and all together at most 1, by name, such as {"train": 0.8, "test": 0.2}'
        raise ValueError(f"shares = {shares!r}: {remedy}")
    base = name or _name(source)
    found, low = {}, 0.0
    for key, share in shares.items():
        high = low + share
        chosen = rows_between.options(**{"name": f"{base}-{key}", **options})
        found[key] = chosen(source, low, high if high < 1 - 1e-9 else 1.0, by, seed)
        low = high
    return found


def sample(source: Any, share: float, seed: int = 0, name: str = "", **options: Any) -> Any:
    """The data set ``NAME-sample`` of a random *share* of the rows of a source."""
    return split(source, {"sample": share}, None, seed, name, **options)["sample"]


@dataset
def rows_between(raw: Source, low: float, high: float, by: str | None, seed: int) -> Any:
    """The rows whose place between 0 and 1, by a column or at random, is from *low* on and below *high*."""
    import numpy
    import pyarrow

    table = raw.table
    if by is None:
        digest = hashlib.sha256(f"{seed} {raw.name}".encode()).digest()
        places = numpy.random.default_rng(int.from_bytes(digest, "big")).random(len(table))
    else:
        if by not in table.column_names:
            raise StreamError(f"{raw.name} has no column {by!r}: it has {', '.join(table.column_names)}")
        if pyarrow.types.is_nested(table.schema.field(by).type):
            remedy = "split by a column of single values, or at random, without `by`"
            raise StreamError(f"column {by!r} of {raw.name} has the type {table.schema.field(by).type}: {remedy}")
        encoded = table.column(by).combine_chunks().dictionary_encode(null_encoding="encode")
        known = [_place(value, seed) for value in _values(encoded.dictionary)]
        places = numpy.array([*known, 0.0])[encoded.indices.to_numpy(zero_copy_only=False)]
    return table.filter(pyarrow.array((low <= places) & (places < high)))


def _values(column: Any) -> list[object]:
    """The values of a column as objects of Python, for all types in which a file may have the same values.

    Times with a zone are those of UTC. Objects of Python have no nanoseconds: times with some are text.
    """
    import pyarrow

    types, kind = pyarrow.types, column.type
    if types.is_timestamp(kind) and kind.tz:
        kind = pyarrow.timestamp(kind.unit, "UTC")
        column = column.cast(kind)
    if types.is_decimal(kind):
        return [value if value is None else _shortest(value) for value in column.to_pylist()]
    if not types.is_temporal(kind) or getattr(kind, "unit", "") != "ns":
        found: list[object] = column.to_pylist()
        return found
    coarse = pyarrow.duration("us") if types.is_duration(kind) else pyarrow.time64("us")
    coarse = pyarrow.timestamp("us", kind.tz) if types.is_timestamp(kind) else coarse
    pairs = zip(column.cast(coarse, safe=False).to_pylist(), column.cast(pyarrow.int64()).to_pylist(), strict=True)
    return [f"{value} {count % 1000}" if count is not None and count % 1000 else value for value, count in pairs]


def _shortest(value: Any) -> str:
    """A decimal number as text, without zeros at its end: columns have their own numbers of digits."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _place(value: object, seed: int) -> float:
    """The place of a value; a whole number has the same one in a file of fractions, as in CSV, and in another."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = hashlib.sha256(f"{seed} {value}".encode("utf-8", "surrogateescape")).hexdigest()
    return float(int(text[:_DIGITS], 16)) / 16.0**_DIGITS


def _name(source: Any) -> str:
    known = getattr(source, "name", None) or str(source).removeprefix("datasets:")
    known = re.split("[@:]", known)[0] if isinstance(known, str) and "/" not in known else known
    if not isinstance(known, str) or "/" in known or "*" in known:
        raise ValueError(f"source = {source}: give the data sets a name, name=...")
    return known
