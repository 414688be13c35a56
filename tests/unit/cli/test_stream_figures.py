"""The figures of a stream in `status` and in the view of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import protocol, record
from spotmpi.agent.plan import COORDINATOR
from spotmpi.api import view
from spotmpi.cli import tables
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader, recorded_plan

LINE = "10 batches/s, 16 chunks in flight, ranks wait 50 %, 2 workers wait 0 %, 2 skipped"
MOMENT = "5 batches/s, 8 chunks in flight, ranks wait 50 %, 2 workers wait 50 %, 1 skipped"
ADVICE = "ranks wait 50 % for batches: 4 workers would do"


def report(rank: int, seconds: float) -> dict[str, Any]:
    """A report of one of two ranks that take 5 batches a second and wait for two busy workers half of the time."""
    counts = {"ranks": 2, "workers": 2, "batches": int(5 * seconds), "bytes": 0, "in_flight": 8, "skipped": 1}
    times = {"seconds": seconds, "waited": seconds / 2, "preparing": seconds}
    return {"rank": rank, **times, **counts, "source": "0123456789ab"}


def run_with_stream(folder: Path, backend: str = "kubernetes") -> RunPaths:
    """The record of a run that is over and had a stream."""
    paths = RunPaths(folder / "run-1")
    paths.folder.mkdir()
    writer = record.Record(str(paths.folder))
    writer.event(record.SUBMITTED, name="run")
    writer.event(record.STARTED, attempt=1)
    for seconds in (10, 20):
        for rank in range(2):
            writer.metric(1, COORDINATOR, protocol.STREAM, report(rank, seconds))
    writer.event(record.SUCCEEDED)
    writer.close()
    paths.plan.write_text(json.dumps({"backend": backend}))
    paths.spec.write_text("price = 0.2\n")
    return paths


def test_status_has_the_figures_of_a_stream_with_advice_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = reader.state(run_with_stream(tmp_path))
    tables.show_status(state, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert f"stream     {LINE}" in lines
    assert f"advice     {ADVICE}, $0.40/h more" in lines
    assert "source     0123456789ab" in lines
    tables.show_status(state, as_json=True)
    values = json.loads(capsys.readouterr().out)["stream"]
    assert (values["ranks_wait"], values["batches_per_second"], values["source"]) == (0.5, 10.0, "0123456789ab")


@pytest.mark.parametrize(
    ("spec", "price"),
    [
        ("price = 0.2\n[stream.workers]\nprice = 0.1\n", 0.1),
        ("price = 0.2\n", 0.2),
        ("", None),
        ("stream = 1\n", None),
    ],
)
def test_the_price_of_a_worker_is_its_own_or_that_of_a_node(tmp_path: Path, spec: str, price: float | None) -> None:
    paths = run_with_stream(tmp_path)
    paths.spec.write_text(spec)
    assert recorded_plan.worker_price(paths) == price


@pytest.mark.parametrize(("backend", "price"), [("kubernetes", ", $0.40/h more"), ("local", "")])
def test_the_end_of_a_run_has_the_figures_and_the_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str, price: str
) -> None:
    """Another worker on this machine costs nothing."""
    paths = run_with_stream(tmp_path, backend)
    assert view.stream_texts(reader.state(paths)) == [LINE, ADVICE + price]
    paths.metrics.write_text("")
    without_stream = reader.state(paths)
    assert view.stream_texts(without_stream) == []
    tables.show_status(without_stream, as_json=False)
    assert "batches/s" not in capsys.readouterr().out


def stream_event(seconds: float) -> Event:
    return Event(1e9 + seconds, record.METRIC, 1, values={"kind": protocol.STREAM, **report(0, seconds)})


def test_a_view_without_a_terminal_shows_the_figures_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    with view.PlainView() as plain:
        for seconds in range(2, 70, 2):
            plain.show(stream_event(seconds))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"spotmpi: stream: {MOMENT}"] * 2


def test_the_bar_of_a_terminal_has_the_numbers_of_the_last_iteration_and_the_figures_of_the_moment() -> None:
    throughput = view.Throughput()
    for seconds in (2, 4):
        throughput.update(stream_event(seconds))
    assert throughput.status() == MOMENT
    throughput.update(Event(1e9 + 5, record.METRIC, 1, values={"kind": protocol.METRIC, "iteration": 1, "loss": 0.25}))
    assert throughput.status() == f"loss 0.25  {MOMENT}"
