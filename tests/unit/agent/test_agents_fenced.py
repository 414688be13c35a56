"""An agent that goes on while its successor runs: it ends its ranks at once, and writes nothing more.

A pod that is deleted with `--force --grace-period=0` is gone from the API at once while its processes may go on
(https://kubernetes.io/docs/tasks/run-application/force-delete-stateful-set-pod/), as they may on a node that does not
answer: its pods' objects are taken away after a while, and others take their places.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

from spotmpi.agent import fencing, protocol
from tests.contract.processes import wait_until
from tests.unit.agent.gang import LIMIT, RUN, Gang, kinds

# Beats until the test says that it is enough; no request to end is heard.
BEATS = """
trap '' TERM
while [ ! -e enough ]; do echo "$SPOTMPI_ATTEMPT" >> beats; echo beat; sleep 0.02; done
"""


def beats(folder: Path, attempt: int) -> int:
    """How often the program of an attempt has beaten."""
    path = folder / "beats"
    return path.read_text().split().count(str(attempt)) if path.exists() else 0


def events(run: Gang) -> list[str]:
    lines = (run.folder / "runs" / RUN / "events.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def test_an_agent_with_a_successor_ends_its_ranks_at_once_and_writes_nothing(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = gang("sh", "-c", BEATS, nodes=1, started=0)
    old = run.start(0)
    wait_until(lambda: beats(tmp_path, 1))

    new = run.start(0, generation=1, pod="-again")
    assert old.wait(LIMIT) == protocol.INTERRUPTED
    last = beats(tmp_path, 1)
    wait_until(lambda: beats(tmp_path, 2) > 10)
    (tmp_path / "enough").touch()

    assert new.wait(LIMIT) == 0
    assert beats(tmp_path, 1) == last, "its rank is dead when the agent ends"
    # The successor takes the attempt that left no record for an interrupted one.
    assert events(run) == ["started", "interrupted", "started", "succeeded"]
    assert not (run.folder / "runs" / RUN / "attempts" / "1" / "node-0.json").exists()
    assert "attempt 2 has begun: attempt 1 exits without writing" in (tmp_path / "output-0-0").read_text()
    assert kinds(run.events(0, 0)) == ["started"]


def test_an_agent_that_wakes_up_after_its_successor_has_ended_the_run_writes_nothing(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = gang("sh", "-c", BEATS, nodes=1, started=0)
    old = run.start(0)
    wait_until(lambda: beats(tmp_path, 1))
    log = run.folder / "runs" / RUN / "logs" / "1" / "node-0.log"
    wait_until(log.exists)
    old.send_signal(signal.SIGSTOP)
    frozen = time.monotonic()
    new = run.start(0, generation=1, pod="-again")
    wait_until(lambda: beats(tmp_path, 2))
    (tmp_path / "enough").touch()
    assert new.wait(LIMIT) == 0
    wait_until(lambda: time.monotonic() > frozen + fencing.MAX_AGE)
    before = (log.read_text(), events(run), (run.folder / "runs" / RUN / "summary.json").read_text())

    old.send_signal(signal.SIGCONT)

    assert old.wait(LIMIT) == protocol.INTERRUPTED
    assert (log.read_text(), events(run), (run.folder / "runs" / RUN / "summary.json").read_text()) == before
