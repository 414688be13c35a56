"""What more or fewer workers of a stream cost where the spec has no price: by the prices of its environment now."""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import replace
from pathlib import Path

from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.runs import recorded_plan
from spotmpi.runs.reader import RunState
from spotmpi.streams.figures import Figures, advice

_LIMIT = 3.0  # seconds for AWS's answer


def with_price(state: RunState) -> RunState:
    """*state* with the cost in the advice on its stream; as it is where nothing has a cost or the price is unknown."""
    if state.stream is None:
        return state
    figures = Figures.from_json(state.stream)
    unpriced = advice(figures)
    if state.stream["advice"] != unpriced or advice(figures, 1.0) == unpriced:
        return state
    price = _worker_price(state.folder)
    return state if price is None else replace(state, stream=figures.to_json(price))


@functools.cache
def _worker_price(folder: str) -> float | None:
    """Dollars per hour of a worker of the run in *folder*; AWS is asked once, and not for long."""
    prices: list[float | None] = []

    def ask() -> None:
        with contextlib.suppress(SpotmpiError, OSError):  # the advice is worth reading without it
            prices.append(_current_price(RunPaths(Path(folder))))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_LIMIT)
    return prices[0] if prices else None


def _current_price(paths: RunPaths) -> float | None:
    values = recorded_plan.read(paths).environment
    if not values:
        return None
    from spotmpi.core import environment
    from spotmpi.spec import job
    from spotmpi.study.pricing import worker_price

    return worker_price(environment.parse(values), job.load(paths.spec))
