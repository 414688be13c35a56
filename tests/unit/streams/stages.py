"""A pipeline of three stages, each of which loses a process once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spotmpi.streams.order import Order, Part, Settings

ROWS, BATCH = 100, 7
# Kills, each once: a worker that prepares, the rank, and a worker that postprocesses. Each worker leaves a mark with
# the stage, its host and the name of its folder. While there is a file `pause`, the rank waits at batch 3.
_FLOW = """
import os, signal, socket, time
from pathlib import Path

def mark(stage):
    Path("FOLDER", f"{stage} on {socket.gethostname()} in {Path.cwd().name}").touch()

def kill_once(name):
    try:
        Path("FOLDER", name).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def prepare(rows, seed):
    mark("prepare")
    if rows["x"][0] == 28:
        kill_once("prepare")
    return {**rows, "noise": rows["x"] * (seed % 1000)}

def predict(batches):
    for batch in batches:
        if batches.number == 3:
            while Path("FOLDER", "pause").exists():
                mark("predict")
                time.sleep(0.05)
        if batches.number == 11:
            kill_once("predict")
        yield {**batch, "square": batch["x"] ** 2}

def postprocess(result, seed):
    mark("postprocess")
    if result["x"][0] == 0:
        print("the first batch is postprocessed", flush=True)
    if result["x"][0] == 49:
        kill_once("postprocess")
    return {**result, "root": result["square"] ** 0.5}
"""


def write_files(folder: Path, marks: str) -> list[str]:
    """Write the source and the functions, which leave *marks* in a folder; the names of the functions' files."""
    (folder / "flow.py").write_text(_FLOW.replace("FOLDER", marks))
    (folder / "data.csv").write_text("x\n" + "".join(f"{row}\n" for row in range(ROWS)))
    return [str(folder / "flow.py")]


def places(marks: Path, stage: str) -> set[str]:
    """Where workers were in a *stage*: host and folder."""
    begin = f"{stage} on "
    return {path.name.removeprefix(begin) for path in marks.iterdir() if path.name.startswith(begin)}


def stream(source: str, **values: Any) -> dict[str, Any]:
    """The table [stream] of the pipeline."""
    stages = {"prepare": "flow:prepare", "postprocess": "flow:postprocess", "workers": {"count": 2}}
    return {"source": source, "batch": BATCH, "last_batch": "keep", **stages, **values}


def expected() -> Iterator[tuple[int, dict[str, Any]]]:
    """What is written of each batch, by number."""
    order = Order([Part("data.csv", ROWS, 0, "")], Settings("data.csv", BATCH, last_batch="keep"))
    for number in range(order.total):
        x = np.arange(BATCH * number, min(BATCH * (number + 1), ROWS))
        yield number, {"x": x, "noise": x * (order.seed(number) % 1000), "square": x**2, "root": (x**2) ** 0.5}
