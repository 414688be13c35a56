"""How a rank of a pipeline ends by an error: what the terminal shows, the protocol line and the exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.agent import protocol

ROOT = Path(__file__).parents[3]
# Before `python -m spotmpi.streams.rank` begins: its workers are in the same process.
SITE = """
import os, sys
from spotmpi.streams import stream
from spotmpi.streams.order import Order, Part, Settings
from tests.unit.streams.conftest import InProcess

def own():
    sys.excepthook = stream._end_run
    settings = Settings("tests.unit.streams.flow:numbers", length=9, prepare=os.environ["PREPARE"], write="jsonl")
    return stream.Stream(Order([Part(settings.source, 9, 0, "")], settings), InProcess().submit, 0, 0, 1)

stream.stream = own
"""
FLOW = """
import spotmpi

def prepare(rows, seed):
    return check(rows)

def check(rows):
    raise ValueError("odd")

def train(batches):
    for batch in batches:
        pass

def train_raises(batches):
    for batch in batches:
        check(batch)

def column(batches):
    for batch in batches:
        batch["price"]

def own_dictionary(batches):
    for batch in batches:
        {}["x"]

def column_of_results(batches):
    for batch in batches:
        yield [{"x": batch["price"]}]

def columns(rows, seed):
    return {"x": rows, "label": rows}

def load(batches):
    check(batches)

def away(batches):
    raise spotmpi.SourceError("s3://set cannot be read: no answer")

def lost(batches):
    raise spotmpi.StreamLost("the scheduler of the stream is lost")

def predict_twice(batches):
    for batch in batches:
        yield [{"x": 1}]
        yield [{"x": 1}]
"""
FAILED = "own_flow:prepare failed for batch 0 (tests.unit.streams.flow:numbers rows 0 to 0): ValueError: odd"
TWICE = "own_flow:predict_twice has to yield one result for each batch: it yielded 2 for 1"
HAS = "the batch has x, label"
LOADED = (
    "own_flow:load failed before it took a batch, where it loads the model in /model: ValueError: odd; "
    "correct the function, or name a model that it can load"
)


ERRORS = [
    ("train", "train", "own_flow:prepare", protocol.NOT_RETRYABLE, ["prepare", "check"], f"error: {FAILED}"),
    ("predict", "predict_twice", "", protocol.NOT_RETRYABLE, [], f"error: {TWICE}"),
    ("train", "load", "", protocol.NOT_RETRYABLE, ["load", "check"], f"error: {LOADED}"),
    ("train", "away", "", protocol.FAILED, [], "SourceError: s3://set cannot be read: no answer"),
    ("train", "column", "own_flow:columns", 1, ["column"], f"KeyError: 'price'; {HAS}"),
]
MORE_ERRORS = [
    ("train", "lost", "", protocol.INTERRUPTED, [], "StreamLost: the scheduler of the stream is lost"),
    ("train", "train_raises", "", 1, ["train_raises", "check"], "ValueError: odd"),
    ("predict", "column_of_results", "own_flow:columns", 1, ["column_of_results"], f"KeyError: 'price'; {HAS}"),
    ("train", "own_dictionary", "own_flow:columns", 1, ["own_dictionary"], "KeyError: 'x'"),
]
MORE = pytest.mark.extensive("other exceptions that are shown in the same ways")


@pytest.mark.parametrize(
    ("mode", "function", "prepare", "code", "frames", "shown"),
    [*ERRORS, *(pytest.param(*each, marks=MORE) for each in MORE_ERRORS)],
)
def test_an_error_is_one_line_below_the_frames_of_the_user_alone(
    tmp_path: Path, mode: str, function: str, prepare: str, code: int, frames: list[str], shown: str
) -> None:
    """Some thirty frames of spotmpi, concurrent.futures and Dask stood above it."""
    (tmp_path / "own_flow.py").write_text(FLOW)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    process = subprocess.run(
        [sys.executable, "-m", "spotmpi.streams.rank", mode, f"own_flow:{function}"],
        cwd=tmp_path,
        env={
            "PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'jobs'}",
            "PREPARE": prepare,
            **({protocol.ENV_INIT: "/model"} if function == "load" else {}),
            protocol.ENV_STREAM_FOLDER: str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    lines = process.stderr.splitlines()
    assert (process.returncode, lines[-1]) == (code, shown), process.stderr
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("  File ")] == frames
    assert all("own_flow.py" in line for line in lines if line.startswith("  File "))
    traces = [line for line in lines if line.startswith("Traceback")]
    assert len(traces) == bool(frames), process.stderr
    reason = shown.removeprefix("error: ")
    reported = (protocol.FATAL, {"reason": reason}) if code == protocol.NOT_RETRYABLE else None
    assert protocol.decode(process.stdout.strip()) == reported
