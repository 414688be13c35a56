"""Functions of a stream, as a user writes them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

PREFIX = "tests.unit.streams.flow:"


def numbers(number: int) -> list[int]:
    """A batch with its number."""
    return [number]


def given(number: int, rows: Any) -> Any:
    """A batch of these rows."""
    return rows


def price(rows: Any, seed: int) -> Any:
    """The prices of rows, and then one of a dictionary that has none."""
    prices = [row["price"] for row in (rows if isinstance(rows, list) else [rows])]
    return prices, dict[str, int]()["price"]


def double(rows: list[int], seed: int) -> list[int]:
    return [2 * row for row in rows]


def slow(rows: list[int], seed: int) -> list[int]:
    time.sleep(0.03)
    return rows


def fail_at_7(rows: list[int], seed: int) -> list[int]:
    if rows[0] == 7:
        raise ValueError("seven is not liked")
    return rows


def exit_at_7(rows: list[int], seed: int) -> list[int]:
    if rows[0] == 7:
        sys.exit(3)
    return rows


def generate(rows: list[int], seed: int) -> Iterator[int]:
    yield from rows


def recur(rows: list[int], seed: int) -> list[int]:
    return recur(rows, seed)


_calls: list[int] = []


def count_calls(rows: list[int], seed: int) -> list[int]:
    """The number of its calls: no function of its arguments."""
    _calls.append(rows[0])
    return [len(_calls)]


def fail(rows: list[int], seed: int) -> list[int]:
    raise ValueError("no number is liked")


def predict(batches: Iterable[list[int]]) -> Iterator[list[dict[str, Any]]]:
    """One row of results for each batch."""
    for batch in batches:
        yield [{"number": number, "half": number / 2} for number in batch]


def predict_even(batches: Iterable[list[int]]) -> Iterator[dict[str, str]]:
    """Filter: a file for each even row alone."""
    for batch in batches:
        yield {f"{row}.txt": str(row / 2) for row in batch if row % 2 == 0}


def predict_twice(batches: Iterable[list[int]]) -> Iterator[list[int]]:
    for batch in batches:
        yield batch
        yield batch


def predict_first(batches: Iterable[list[int]]) -> Iterator[list[int]]:
    for batch in batches:
        yield batch
        return


def train_nothing(batches: Iterable[list[int]]) -> None:
    """Train with no batch."""


def train_again(batches: Any) -> None:
    """Train from another position on."""
    for _ in batches.resume(38):
        pass


def train_end(batches: Any) -> None:
    """Find in a checkpoint that nothing is left."""
    assert not len(batches.resume(40))


def train_wrapped(batches: Iterable[list[int]]) -> Iterator[Any]:
    """What a decorator may return: no generator function itself, but a generator."""
    return predict(batches)


def root(results: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """One more column, and the seed of the batch."""
    return [{**row, "root": row["number"] ** 0.5, "seed": seed} for row in results]


def root_fails_at_7(results: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    if results[0]["number"] == 7:
        raise ValueError("seven has no root")
    return root(results, seed)


def count(results: list[Any], seed: int) -> int:
    return len(results)


def as_files(results: list[dict[str, Any]], seed: int) -> dict[str, str]:
    """A file for each row."""
    return {f"{row['number']}.txt": str(row["half"]) for row in results}


def nothing(results: list[dict[str, Any]], seed: int) -> None:
    """Forget to return something."""


def predict_nothing(batches: Iterable[list[int]]) -> Iterator[None]:
    for _ in batches:
        yield


def predict_locks(batches: Iterable[list[int]]) -> Iterator[Any]:
    """What cannot be sent to a worker."""
    for _ in batches:
        yield threading.Lock()
