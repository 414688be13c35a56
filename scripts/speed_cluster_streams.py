"""Streams on a cluster, beside Dask by hand on the same pods."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import spotmpi
from scripts.speed import PROJECT, Figure, _spread
from scripts.speed_bench import Bench
from scripts.streams.pods import PREPARATIONS, RATES
from spotmpi.core.events import Event

WORKERS = 16
FILES, BATCHES = 8, 256
TARGETS = {"light": 1.3, "heavy": 1.0}


def measure_streams(bench: Bench, count: int) -> list[Figure]:
    """Rows a second of a stream, beside those of Dask by hand with TLS on the same pods; both take turns."""
    arguments = map(str, (count, WORKERS, FILES, BATCHES))
    spec = bench.spec(
        command=["python3", "-m", "scripts.streams.pods", *arguments],
        launcher="none",
        code=str(_code(bench.folder)),
        stream={"source": "scripts.streams.pods:unused", "length": 1, "workers": {"nodes": WORKERS}},
        limits={"start": "20m", "no_progress": "1h", "failures": 0},
        kubernetes={"templates": bench.small_pods()},
    )
    state = spotmpi.run(spec, on=bench.target, watch=_show)
    if state.state != "succeeded":
        raise SystemExit(f"{state.id} cannot be measured: {state.state}: {state.reason}")
    texts = [str(event.values.get("text")) for event in spotmpi.logs(state.id, on=bench.target)]
    bench.remove("jobsets")
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    loads = []
    for text in texts:
        if text.startswith(RATES):
            preparation, side, rate, load = json.loads(text.removeprefix(RATES))
            samples[preparation, side].append(rate)
            loads.append(load)
    figures = []
    for preparation in PREPARATIONS:
        own, dask = (samples[preparation, side] for side in ("spotmpi", "Dask"))
        ratio, least = statistics.median(own) / statistics.median(dask), TARGETS[preparation]
        details: dict[str, Any] = {"spotmpi, rows/s": _spread(own), "Dask by hand, rows/s": _spread(dask)}
        name = f"{preparation} preparation by {WORKERS} pods / Dask by hand"
        figures.append(Figure(name, ratio, "", f"at least {least}", ratio >= least, details))
    figures[0].details["load meanwhile"] = _spread(loads)
    return figures


def _code(folder: Path) -> Path:
    """A folder of code with the programs of both sides."""
    code = folder / "code"
    shutil.copytree(PROJECT / "scripts" / "streams", code / "scripts" / "streams")
    return code


def _show(event: Event) -> None:
    if text := str(event.values.get("text") or event.reason or ""):
        print(f"  {text}", file=sys.stderr, flush=True)
