"""The time of each rank from metric lines: packed seconds of every iteration, and waiting for batches. Pure."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import ndarray


class RankTimes:
    """Sums of metric lines; lines without these times are ignored."""

    def __init__(self) -> None:
        self._input_wait = 0.0
        self._timed = 0.0
        self._packed: dict[int, list[str]] = {}  # iterations in a line -> the lines' texts

    def add(self, line: Mapping[str, Any]) -> None:
        """Add one metric line."""
        seconds, packed = line.get("seconds"), line.get("ranks")
        if not isinstance(seconds, list) or not seconds:
            return
        if isinstance(line.get("waited"), int | float):
            self._input_wait += line["waited"]
            self._timed += math.fsum(seconds)
        if isinstance(packed, str):
            self._packed.setdefault(len(seconds), []).append(packed)

    def input_wait(self) -> float | None:
        """The share of time spent waiting for batches, 0 to 1."""
        return min(self._input_wait / self._timed, 1.0) if self._timed > 0 else None

    def rank_seconds(self) -> tuple[float, ...]:
        """The mean seconds of an iteration on each rank, for the world size of most iterations."""
        sums: dict[int, tuple[int, Any]] = {}  # number of ranks -> iterations, and their seconds
        for size, texts in self._packed.items():
            for rows in unpack(texts, size):
                count, total = sums.get(rows.shape[1], (0, 0.0))
                sums[rows.shape[1]] = (count + rows.shape[0] * size, total + rows.sum(axis=(0, 2), dtype="float64"))
        count, total = max(sums.values(), key=lambda each: each[0], default=(0, ()))
        return tuple(float(value) / count for value in total)


def unpack(texts: list[str], iterations: int) -> list[ndarray]:
    """Output of `protocol.pack` as arrays (lines, ranks, iterations), without damaged lines."""
    import numpy

    by_size: dict[int, list[bytes]] = {}
    for text in texts:
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
        if raw and len(raw) % (4 * iterations) == 0 and _are_seconds(numpy.frombuffer(raw, dtype="<f4")):
            by_size.setdefault(len(raw), []).append(raw)
    return [
        numpy.frombuffer(b"".join(lines), dtype="<f4").reshape(len(lines), -1, iterations) for lines in by_size.values()
    ]


def _are_seconds(values: ndarray) -> bool:
    return bool(((values >= 0) & (values < 1e9)).all())
