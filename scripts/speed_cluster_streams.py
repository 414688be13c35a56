"""Streams on a cluster, beside Dask by hand on the same pods."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import spotmpi
from scripts.speed import PROJECT, Figure, _spread
from scripts.speed_bench import Bench
from scripts.streams.pods import PREPARATIONS, RATES
from spotmpi.core.events import Event

WORKERS = 16
FILES, BATCHES = 8, 256
TARGETS = {"light": 1.3, "heavy": 1.0}


class Round(NamedTuple):
    """What one side came to: rows a second, processor seconds of all its processes, and the load of the machine."""

    preparation: str
    side: str
    rate: float
    processor: float
    load: float


def measure_streams(bench: Bench, count: int) -> list[Figure]:
    """Rows a second of a stream, beside those of Dask by hand with TLS on the same pods; both take turns."""
    arguments = map(str, (count, WORKERS, FILES, BATCHES))
    spec = bench.spec(
        command=["python3", "-m", "scripts.streams.pods", *arguments],
        launcher="none",
        code=str(_code(bench.folder)),
        stream={"source": "scripts.streams.pods:unused", "length": 1, "workers": {"count": WORKERS}},
        limits={"start": "20m", "no_progress": "1h", "failures": 0},
        kubernetes={"templates": bench.small_pods()},
    )
    state = spotmpi.run(spec, on=bench.target, on_event=_show)
    if state.state != "succeeded":
        raise SystemExit(f"{state.id} cannot be measured: {state.state}: {state.reason}")
    texts = [str(event.values.get("text")) for event in spotmpi.logs(state.id, on=bench.target)]
    bench.remove("jobsets")
    rounds = [Round(*json.loads(text.removeprefix(RATES))) for text in texts if text.startswith(RATES)]
    return [_figure(preparation, rounds) for preparation in PREPARATIONS]


def _figure(preparation: str, rounds: Sequence[Round]) -> Figure:
    """The ratio of both sides, with what each took of the processor: that depends less on what else runs."""
    rounds = [each for each in rounds if each.preparation == preparation]
    of_sides = [[each for each in rounds if each.side == side] for side in ("spotmpi", "Dask")]
    own, dask = (statistics.median(each.rate for each in side) for side in of_sides)
    details: dict[str, Any] = {}
    for name, side in zip(("spotmpi", "Dask by hand"), of_sides, strict=True):
        details[f"{name}, rows/s"] = _spread([each.rate for each in side])
        details[f"{name}, processor ms of a batch"] = _spread([1000 * each.processor / BATCHES for each in side])
    details["load meanwhile"] = _spread([each.load for each in rounds])
    least = TARGETS[preparation]
    name = f"{preparation} preparation by {WORKERS} pods / Dask by hand"
    return Figure(name, own / dask, "", f"at least {least}", own >= least * dask, details)


def _code(folder: Path) -> Path:
    """A folder of code with the programs of both sides."""
    code = folder / "code"
    shutil.copytree(PROJECT / "scripts" / "streams", code / "scripts" / "streams")
    return code


def _show(event: Event) -> None:
    if text := str(event.values.get("text") or event.reason or ""):
        print(f"  {text}", file=sys.stderr, flush=True)
