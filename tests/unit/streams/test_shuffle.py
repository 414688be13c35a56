"""Streams whose rows are shuffled: each row once in an epoch, mixed within blocks, the same for any number of ranks.

A user sets ``shuffle = true`` and gets batches that look like random draws, although the source is sorted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.streams import tables
from spotmpi.streams.order import Order, Part, Settings
from tests.unit.streams.data import (
    numbered_rows,
    order_of,
    parts_of,
    read,
    read_all,
    samples,
    table,
    write_tar,
)

DIGITS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # images of each digit in scikit-learn's `load_digits`
DOCS = Path(__file__).resolve().parents[3] / "docs" / "streams.md"


def shuffled(parts: list[Part], batch: int, block: int = 16384, **values: Any) -> Order:
    return Order(parts, Settings("set", batch, shuffle=True, shuffle_block=block, **values))


def test_the_order_of_a_seed_never_changes() -> None:
    order = shuffled(parts_of([5, 8, 7], 4), 6, 10, seed=7, epochs=2)
    assert [numbered_rows(order, number) for number in (0, 1, 4)] == [
        [10, 14, 13, 16, 9, 12],
        [4, 15, 11, 17, 8, 7],
        [6, 8, 7, 12, 19, 18],
    ]


def test_epochs_and_seeds_differ() -> None:
    orders = [shuffled(parts_of([40], 4), 40, seed=seed, epochs=2) for seed in (1, 2)]
    drawn = [tuple(numbered_rows(order, number)) for order in orders for number in (0, 1)]
    assert len(set(drawn)) == 4


def test_padding_repeats_the_first_rows_of_the_shuffled_epoch() -> None:
    order = shuffled(parts_of([10], 3), 8, last_batch="pad")
    assert numbered_rows(order, 1)[2:] == numbered_rows(order, 0)[:6]


def test_the_rows_of_a_block_come_from_few_units_so_that_a_worker_holds_few() -> None:
    order = shuffled(parts_of([1000] * 50, 100), 64, block=1000)
    for first in range(0, order.epoch_batches - 14, 15):  # 960 rows: at most two blocks of 10 units
        touched = {row // 100 for number in range(first, first + 15) for row in numbered_rows(order, number)}
        assert len(touched) <= 20
        assert max(touched) - min(touched) > 100  # from all over the source


def test_a_worker_reads_each_row_group_once_in_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / f"{number}.parquet").write_bytes(table(40 * number, 40 * number + 40))  # in groups of 4
    order = order_of(tmp_path, 8, shuffle=True, shuffle_block=20)
    read_group, calls = tables._read_group, []

    def count(*key: Any) -> Any:
        calls.append(key)
        return read_group(*key)

    monkeypatch.setattr(tables, "_read_group", count)
    tables._kept.clear()
    assert sorted(x for batch in read_all(order) for x in batch["x"]) == list(range(160))
    assert len(calls) == len(set(calls)) == 40
    assert len(tables._kept) <= 11  # two blocks of 20 rows, and the group that reaches over


def _write_rows(folder: Path, kind: str, count: int) -> Path:
    """A source with the numbers below *count* in two files."""
    for half, numbers in enumerate((range(count // 2), range(count // 2, count))):
        if kind == "parquet":
            (folder / f"{half}.parquet").write_bytes(table(numbers.start, numbers.stop))
        elif kind == "csv":
            (folder / f"{half}.csv").write_text("x,name\n" + "".join(f"{x},{x}\n" for x in numbers))
        elif kind == "jsonl":
            (folder / f"{half}.jsonl").write_text("".join(json.dumps({"x": x, "name": str(x)}) + "\n" for x in numbers))
        elif kind == "tar":
            write_tar(folder / f"{half}.tar", samples("a", numbers))
        else:
            for x in numbers:
                (folder / f"{x:04}.bin").write_bytes(b"%d" % x)
    return folder


def _numbers(kind: str, batch: Any) -> list[int]:
    if kind == "tar":
        return [int(sample["cls"]) for sample in batch]
    return [int(content) for _, content in batch] if kind == "files" else list(batch["x"])


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "tar", "files"])
def test_a_batch_has_its_rows_in_the_shuffled_order_in_each_format(kind: str, tmp_path: Path) -> None:
    order = order_of(_write_rows(tmp_path, kind, 60), 7, shuffle=True, shuffle_block=30, last_batch="pad")
    first = {part.name: sum(each.rows for each in order._parts[:at]) for at, part in enumerate(order._parts)}
    for number in range(order.epoch_batches):
        expected = [
            first[each.part.name] + row for each in order.slices(number) for row in range(each.start, each.stop)
        ]
        batch = read(order, number)
        assert _numbers(kind, batch) == expected
        assert expected != sorted(expected)
        if isinstance(batch, dict):
            assert list(batch["name"].astype(str)) == [str(x) for x in expected]


def test_a_batch_may_be_larger_than_the_source(tmp_path: Path) -> None:
    order = order_of(_write_rows(tmp_path, "parquet", 10), 25, shuffle=True, last_batch="pad")
    drawn = list(read(order, 0)["x"])
    assert drawn[:10] == drawn[10:20]
    assert sorted(drawn[:10]) == list(range(10))


def bias(order: Order, labels: Any) -> float:
    """How far the classes of a batch are from those of the set: the mean total variation distance, from 0 to 1."""
    shares = np.bincount(labels, minlength=10) / len(labels)
    drawn = [np.bincount(labels[numbered_rows(order, number)], minlength=10) for number in range(order.epoch_batches)]
    return float(np.mean([abs(each / each.sum() - shares).sum() / 2 for each in drawn]))


@pytest.mark.parametrize(
    ("name", "lengths", "unit", "labels", "bound"),
    [
        ("the digits, one CSV file", [1797], 1797, np.repeat(range(10), DIGITS), 1.1),
        ("60,000 rows, row groups of 1,000", [60_000], 1000, np.repeat(range(10), 6000), 1.5),
        ("60,000 files, a row each", [1] * 60_000, 0, np.repeat(range(10), 6000), 1.1),
    ],
)
def test_sorted_rows_give_batches_like_random_draws(
    name: str, lengths: list[int], unit: int, labels: Any, bound: float
) -> None:
    parts, batch = parts_of(lengths, unit), 64
    generator = np.random.default_rng(0)
    draws = generator.permutation(labels)[: len(labels) // batch * batch].reshape(-1, batch)
    shares = np.bincount(labels, minlength=10) / len(labels)
    ideal = np.mean([abs(np.bincount(each, minlength=10) / batch - shares).sum() / 2 for each in draws])
    plain = bias(Order(parts, Settings("set", batch, shuffle_batches=True)), labels)
    mixed = bias(shuffled(parts, batch), labels)
    assert mixed < bound * ideal < 0.25 < 0.85 < plain
    assert f"| {name} | {plain:.2f} | {mixed:.2f} | {ideal:.2f} |" in DOCS.read_text()


def test_a_larger_block_mixes_sorted_rows_better() -> None:
    labels = np.repeat(range(10), 6000)
    biases = [bias(shuffled(parts_of([60_000], 1000), 64, block), labels) for block in (2000, 8000, 32_000)]
    assert biases == sorted(biases, reverse=True)
