"""What a pool shows on stderr: messages, and a progress bar for `Pool.map` in terminals and notebooks."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

_DELAY = 1.0  # seconds after which a bar appears
_INTERVAL = 0.2  # seconds between two states of it
_WIDTH = 30  # characters of the bar itself


def print_message(text: str) -> None:
    """Print a message of a pool, such as what it waits for."""
    print(text, file=sys.stderr, flush=True)


class ProgressBar:
    """Shows how many of *total* results are there on *stream*, on one line that it rewrites; 0 for an unknown total."""

    def __init__(self, name: str, total: int, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._total, self._stream, self._clock = name, total, stream, clock
        self._begin = clock()
        self._shown: float | None = None  # when the latest state was
        self._count = 0

    def advance(self) -> None:
        """Count one result."""
        self._count += 1
        now = self._clock()
        if now - self._begin >= _DELAY and (self._shown is None or now - self._shown >= _INTERVAL):
            self._shown = now
            self._write("\r" + self._text(now))

    def end(self) -> None:
        """Show the last state, if any was shown."""
        if self._shown is not None:
            self._write("\r" + self._text(self._clock()) + "\n")
            self._shown = None

    def _text(self, now: float) -> str:
        rate = self._count / max(now - self._begin, 1e-9)
        if not self._total:
            return f"{self._name}: {self._count} ({rate:.3g}/s)"
        filled = _WIDTH * self._count // self._total
        return f"{self._name}: [{'#' * filled:<{_WIDTH}}] {self._count}/{self._total} ({rate:.3g}/s)"

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a terminal that was closed must not cost a result
            self._stream.write(text)
            self._stream.flush()


def for_map(name: str, iterables: Iterable[Any], wanted: bool | None) -> ProgressBar | None:
    """The bar of a map: None if it is not *wanted*, or by default where nobody looks at stderr."""
    if wanted is False or (wanted is None and not (sys.stderr.isatty() or _in_notebook())):
        return None
    total = min(map(_length, iterables), default=0)
    return ProgressBar(name, int(total) if total < math.inf else 0, sys.stderr)


def _length(items: Iterable[Any]) -> float:
    """The number of *items*, 0 where they do not say: an iterable may have a `len` that raises anything."""
    unknown = math.inf if isinstance(items, itertools.repeat | itertools.count | itertools.cycle) else 0
    try:
        return operator.length_hint(items, 0) or unknown
    except Exception:
        return unknown


def _in_notebook() -> bool:
    return type(sys.stderr).__module__.startswith("ipykernel")
