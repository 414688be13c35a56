"""What a user sees of the progress of a run where stderr is no terminal."""

from __future__ import annotations

import pytest

from spotmpi.agent import protocol, record
from spotmpi.agent.plan import COORDINATOR
from spotmpi.api.view import Throughput, event_text
from spotmpi.core.events import Event


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("a tqdm progress bar", [1, 101, 201]),
        ("numbers of steps", []),  # they stand in the output
        (None, list(range(1, 251))),  # which the program reports
    ],
)
def test_a_progress_bar_has_a_line_every_ten_seconds(form: str | None, shown: list[int]) -> None:
    """It had one for each of ten states a second."""
    throughput, lines = Throughput(), []
    if form:
        throughput.update(Event(0.0, record.RECOGNIZED, values={"form": form, "line": "x"}))
    for state in range(1, 251):
        values = {"kind": protocol.METRIC, "iteration": state}
        event = Event(state / 10, record.METRIC, 1, COORDINATOR, values=values)
        throughput.update(event)
        lines.append(event_text(event, throughput))
    said = [line.split()[1] for line in lines if line]
    assert said == [str(state) for state in shown]
