"""The order of a stream: which rows batch k has, and which batches each rank gets. Pure.

Batch k is a function of the source list, the settings and k alone, so the position of a stream is one number.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spotmpi.agent.plan import WORKER, WORKERS
from spotmpi.agent.protocol import counted
from spotmpi.streams.errors import StreamError

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:function
PARQUET, FILES = "parquet", "files"
FORMATS = (PARQUET, "jsonl", FILES)  # how predictions are written
TRAIN, PREDICT = "train", "predict"
CONSUMER = ("-m", "spotmpi.streams.rank")  # what starts the function of a pipeline, after the interpreter
KEEP, DROP, PAD = "keep", "drop", "pad"  # what happens to the incomplete batch and global step at the end
_MAX_DIFFERENCES = 5  # parts that a message names
_MAX_SLICES = 3  # that a message names
_UNIT = 64  # rows that stay in one block of a shuffle where each row is read by itself


class Part(NamedTuple):
    """One part of a source: a file, or one call of a function."""

    name: str
    rows: int
    size: int  # bytes
    version: str  # ETag, checksum or time of modification
    unit: int = 0  # rows that are read together, such as those of a row group; 0: each row by itself
    columns: str = ""  # how `spotmpi.streams.columns` reads those of a table, the same for all parts of a source


class Slice(NamedTuple):
    """Rows *start* to *stop* of a part; *stop* is not among them."""

    part: Part
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.part.name} rows {self.start} to {self.stop - 1}"


class Settings(NamedTuple):
    """The table ``[stream]`` of a job spec; of its workers the numbers alone."""

    source: str
    batch: int = 1
    epochs: int = 1
    length: int = 0  # calls per epoch where the source is a function
    arguments: str = ""  # further arguments of that function, as JSON
    prepare: str | None = None
    postprocess: str | None = None
    write: str | None = None
    split: str | None = None  # of the files of a folder
    prefetch: int = 8
    seed: int = 0
    shuffle: bool = False  # the rows, within blocks
    shuffle_block: int = 16384  # rows
    shuffle_batches: bool = False
    last_batch: str = DROP
    on_error: str = "fail"
    debug: float = 0.0  # share of batches that a second worker prepares too
    workers: int = 1
    postprocess_workers: int = 0  # where 0, those that prepare also postprocess

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the workers."""
        return WORKERS if self.postprocess_workers else (WORKER,)

    def to_json(self) -> str:
        """The settings as one line of JSON."""
        return json.dumps(self._asdict())


@dataclass(frozen=True)
class FunctionSource:
    """The batches of a program that loads its own data; pass it to `spotmpi.stream` instead of the spec's source.

    A worker calls *function* (``module:function``) with a number from 0 to *length* - 1 and the *arguments*, which are
    JSON values; batch by batch, in the order of numbers. *data* names the data set with its samples and a fingerprint,
    which have to be the same in each attempt of the run.
    """

    function: str
    arguments: Mapping[str, Any]
    length: int
    data: tuple[str, int, str]

    @property
    def parts(self) -> list[Part]:
        """What the run records of the data set."""
        name, samples, fingerprint = self.data
        return [Part(name, samples, 0, fingerprint)]

    def order(self, settings: Settings) -> Order:
        """The order of the batches, with what *settings* say of prefetching and errors."""
        arguments = json.dumps(self.arguments)
        settings = settings._replace(source=self.function, arguments=arguments, length=self.length)
        return Order([Part(self.function, self.length, 0, "")], settings)


def read_settings(text: str) -> Settings:
    """The inverse of `Settings.to_json`."""
    return Settings(**json.loads(text))


def digest(parts: Sequence[Part]) -> str:
    """What identifies a source list: equal for equal names, sizes and versions."""
    return hashlib.sha256(json.dumps([list(part) for part in parts]).encode()).hexdigest()


def differences(old: Sequence[Part], new: Sequence[Part]) -> str:
    """The parts in which two source lists differ, for a message."""
    names = sorted({part.name for part in set(old) ^ set(new)})
    more = len(names) - _MAX_DIFFERENCES
    return ", ".join(names[:_MAX_DIFFERENCES]) + (f" and {more} more" if more > 0 else "")


def describe(slices: Sequence[Slice]) -> str:
    """The first of *slices*, for a message."""
    more = len(slices) - _MAX_SLICES
    return ", ".join(map(str, slices[:_MAX_SLICES])) + (f" and {counted(more, 'more range')}" if more > 0 else "")


class Order:
    """The batches of a stream by number, through all epochs.

    Raises:
        StreamError: the source has no row, or no complete batch where incomplete ones are dropped.
    """

    def __init__(self, parts: Sequence[Part], settings: Settings) -> None:
        self.settings = settings
        self._parts = [part for part in parts if part.rows]
        self.rows = sum(part.rows for part in self._parts)
        if not self.rows:
            remedy = "none of its parts has a row; write rows, or name another source"
            raise StreamError(f"the source {settings.source} is empty: {remedy}")
        whole, rest = divmod(self.rows, settings.batch)
        self.epoch_batches = whole + (1 if rest and settings.last_batch != DROP else 0)
        if not self.epoch_batches:
            raise StreamError(
                f"the source {settings.source} has {counted(self.rows, 'row')} and a batch {settings.batch}: "
                'no batch is complete; use a smaller batch, or last_batch = "pad" or "keep"'
            )
        self.total = self.epoch_batches * settings.epochs
        self._starts: list[int] = []
        position = 0
        for part in self._parts:
            self._starts.append(position)
            position += part.rows
        self._shuffle = _Shuffle(self._parts, settings.seed, settings.shuffle_block) if settings.shuffle else None

    def slices(self, number: int) -> list[Slice]:
        """The rows of batch *number*; numbers beyond the last batch begin again with the first one."""
        batch, epoch = self.settings.batch, number % self.total // self.epoch_batches
        first = self._index(number) * batch
        rows = batch if self.settings.last_batch == PAD else min(batch, self.rows - first)
        result: list[Slice] = []
        while rows:  # padding begins again with the first row
            begin = first % self.rows
            stop = min(begin + rows, self.rows)
            for start, end in self._shuffle.ranges(epoch, begin, stop) if self._shuffle else [(begin, stop)]:
                result += self._range(start, end)
            rows -= stop - begin
            first = stop
        return result

    def seed(self, number: int) -> int:
        """The seed of batch *number*, below 2**32."""
        text = f"{self.settings.seed} {number % self.total}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def numbers(self, start: int, rank: int, size: int) -> range:
        """The batches from number *start* on that rank *rank* of *size* gets: every *size*-th one.

        Raises:
            StreamError: *start* is negative, or incomplete global steps are dropped and none is complete.
        """
        if start < 0:
            raise StreamError(f"start = {start}: the position of a stream is 0 or more")
        left = max(0, self.total - start)
        if self.settings.last_batch == KEEP:
            return range(start + rank, max(start + rank, self.total), size)
        steps = left // size if self.settings.last_batch == DROP else -(-left // size)
        if start == 0 and not steps:
            lack = f"{counted(self.total, 'batch', 'batches')} for {counted(size, 'rank')}"
            raise StreamError(
                f"the stream has {lack}: each rank needs one; "
                'use fewer ranks, a smaller batch, more epochs, or last_batch = "pad" or "keep"'
            )
        return range(start + rank, start + rank + steps * size, size)

    def _index(self, number: int) -> int:
        """The place of batch *number* among the batches of an epoch in the order of the source."""
        epoch, index = divmod(number % self.total, self.epoch_batches)
        if not self.settings.shuffle_batches:
            return index
        return _batch_order(self.settings.seed, epoch, self.epoch_batches)[index]

    def _range(self, start: int, stop: int) -> Iterator[Slice]:
        index = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            part, first = self._parts[index], self._starts[index]
            end = min(stop, first + part.rows)
            yield Slice(part, start - first, end - first)
            start, index = end, index + 1


class _Shuffle:
    """The rows of a source in another order in each epoch, mixed within blocks of about *block* rows.

    Rows that are read together form a unit. A block takes its units evenly from the whole source, one from each of as
    many ranges, and its rows are in a random order. So a worker reads each unit in one part of an epoch and holds one
    block, and each block is like the source, even if that is sorted.
    """

    def __init__(self, parts: Sequence[Part], seed: int, block: int) -> None:
        self._seed = seed
        self._units = [0]  # the first row of each, and the number of all rows
        for part in parts:
            unit, first = part.unit or _UNIT, self._units[-1]
            self._units += [first + min(stop, part.rows) for stop in range(unit, part.rows + unit, unit)]
        units = len(self._units) - 1
        self._count = min(units, -(-self._units[-1] // block))  # of blocks
        self._blocks_of = functools.lru_cache(maxsize=2)(self._blocks)
        self._rows_of = functools.lru_cache(maxsize=4)(self._rows)

    def ranges(self, epoch: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The rows, numbered as in the source, that are at the places *start* to *stop* - 1 of an epoch."""
        begins, _ = self._blocks_of(epoch)
        while start < stop:
            block = bisect.bisect_right(begins, start) - 1
            rows = self._rows_of(epoch, block)[start - begins[block] : stop - begins[block]]
            yield from _ranges(rows)
            start += len(rows)

    def _blocks(self, epoch: int) -> tuple[list[int], list[list[int]]]:
        """Where the blocks of an epoch begin, and the units of each."""
        blocks: list[list[int]] = [[] for _ in range(self._count)]
        generator, units = _generator(self._seed, epoch), range(len(self._units) - 1)
        for first in units[:: self._count]:
            places = _permutation(generator, self._count)
            for unit, place in zip(units[first : first + self._count], places, strict=False):
                blocks[place].append(unit)
        lengths = (sum(self._units[unit + 1] - self._units[unit] for unit in block) for block in blocks)
        return [0, *itertools.accumulate(lengths)][:-1], blocks

    def _rows(self, epoch: int, block: int) -> list[int]:
        """The rows of a block in their order."""
        units = self._blocks_of(epoch)[1][block]
        rows = [row for unit in units for row in range(self._units[unit], self._units[unit + 1])]
        return [rows[index] for index in _permutation(_generator(self._seed, epoch, block), len(rows))]


def _ranges(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rows as ranges of consecutive ones, each with the number after its last."""
    start = stop = rows[0]
    for row in rows:
        if row != stop:
            yield start, stop
            start = row
        stop = row + 1
    yield start, stop


@functools.lru_cache(maxsize=4)
def _batch_order(seed: int, epoch: int, length: int) -> list[int]:
    return _permutation(_generator(seed, epoch), length)


def _generator(*seeds: int) -> random.Random:
    return random.Random(" ".join(map(str, seeds)))


def _permutation(generator: random.Random, length: int) -> list[int]:
    # `Random.random` alone gives the same numbers in every version of Python.
    keys = [generator.random() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)
