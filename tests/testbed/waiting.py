"""Waiting in tests: bounded, and with what was waited for in the failure."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def wait_for(
    what: str, condition: Callable[[], object], limit: float = 40.0, seen: Callable[[], object] | None = None
) -> float:
    """Return the seconds until `condition` returns something true; the test fails after `limit` seconds.

    The failure shows what there is to be *seen* instead.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > limit:
            pytest.fail(f"{what}: not within {limit:g} s{f'; instead: {seen()}' if seen else ''}")
        time.sleep(0.1)
    return time.monotonic() - started
