"""How a run ended, the same for every reader."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.agent import outcomes, record
from spotmpi.agent.run_outcome import run_outcome


@pytest.mark.parametrize(
    ("evidence", "outcome"),
    [
        ({}, None),
        ({"recorded": record.STARTED}, None),
        ({"recorded": record.STARTED, "writer_alive": False}, record.LOST),
        ({"writer_alive": False}, record.LOST),
        *[({"recorded": kind, "writer_alive": False}, kind) for kind in record.TERMINAL],
        *[({"recorded": kind, "deleted": True, "condition": "Failed"}, kind) for kind in record.TERMINAL],
        ({"cause": outcomes.SUCCEEDED}, record.SUCCEEDED),
        ({"cause": outcomes.STOPPED}, record.STOPPED),
        *[
            ({"cause": cause}, record.FAILED)
            for cause in (outcomes.FAILURE, outcomes.INTERRUPTION, outcomes.NOT_RETRYABLE)
        ],
        ({"condition": "Completed"}, record.SUCCEEDED),
        ({"condition": "Failed"}, record.FAILED),
        ({"deleted": True}, record.STOPPED),
        ({"deleted": True, "condition": "Failed"}, record.STOPPED),
        ({"given_up": True, "deleted": True}, record.FAILED),
    ],
)
def test_the_best_evidence_decides(evidence: dict[str, Any], outcome: str | None) -> None:
    assert run_outcome(**evidence) == outcome
