"""What a program says of its end may be of any length: it decides nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from spotmpi.agent import protocol
from tests.unit.agent.gang import Gang


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("text", ["'a' * 300_000", "'\\U0001f600' * 30_000"], ids=["long", "long once encoded"])
def test_an_exception_of_any_length_is_a_failure_and_no_lost_host(
    gang: Callable[..., Gang], node: int, text: str
) -> None:
    fails = f"os.environ['RANK'] == '{node}' or time.sleep(60); raise ValueError({text} + 'z')"
    run = gang(sys.executable, "-X", "utf8", "-c", f"import os, time; {fails}")

    assert run.codes() == [protocol.FAILED, 0]
    reason = run.attempt()["reason"]
    assert run.attempt()["cause"] == "failure"
    assert f"launcher on node {node} ended with exit code 1: ValueError: " in reason
    assert reason.endswith("z") and " characters left out) ... " in reason
    assert len(reason) < protocol.REASON_LENGTH + 50


@pytest.mark.parametrize("node", [0, 1])
def test_a_reason_of_any_length_that_a_program_gives_ends_the_run(gang: Callable[..., Gang], node: int) -> None:
    says = (
        f"os.environ['RANK'] == '{node}' or time.sleep(60); print(json.dumps({{'spotmpi': 'fatal', 'reason': text}}))"
    )
    run = gang(sys.executable, "-c", f"import json, os, sys, time; text = 'b' * 300_000 + 'z'; {says}; sys.exit(78)")

    assert run.codes() == [protocol.NOT_RETRYABLE, 0]
    assert run.attempt()["cause"] == "not retryable" and run.attempt()["reason"].endswith("bz")


@pytest.mark.parametrize("length", [0, 1, protocol.REASON_LENGTH])
def test_a_reason_that_is_short_enough_stays_as_it_is(length: int) -> None:
    assert protocol.truncate("x" * length) == "x" * length


def test_of_a_longer_reason_the_beginning_and_the_end_stay() -> None:
    reason = protocol.truncate("first " + "\U0001f600" * 1_000_000 + " last")

    assert reason.startswith("first ") and reason.endswith(" last")
    assert len(json.dumps({"ended": 1, "reason": reason})) < 1 << 15
    assert len(reason) <= protocol.REASON_LENGTH
