"""Following over rotated logs: no line is lost or repeated, also for a late follower."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.agent import record
from tests.cluster.runs import FollowedRun, Runs, plain
from tests.testbed.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LINES = 30_000  # at 120 bytes and more each beyond the 3 MiB at which a kubelet of the test cluster rotates
PROGRAM = f"""
import sys, time
for number in range({LINES}):
    sys.stdout.write(f"{{number:06d}} {"x" * 100}\\n")
sys.stdout.flush()
time.sleep(600)
"""


def assert_whole(run: FollowedRun) -> None:
    """Check that every line came once and in order, without a reported gap."""
    lines = [event for event in run.events if event.kind == record.LINE]
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    assert [line.values["text"][:6] for line in lines] == [f"{number:06d}" for number in range(len(lines))]
    assert not any(event.kind == record.GAP for event in run.events)


def log_has_rotated(run: FollowedRun) -> bool:
    """Whether the kubelet has begun another log file of node 0's pod."""
    pod = run.pod(0)
    folder = run.runs.testbed.node(pod["spec"]["nodeName"]).folder / "pod-logs"
    return len(list(folder.glob(f"*{pod['metadata']['uid']}/node/*"))) > 1


def test_thirty_thousand_lines_reach_an_early_and_a_late_follower_whole_through_rotation(
    runs: Runs, tmp_path: Path
) -> None:
    early = runs.start(plain("python3", "-c", PROGRAM), image="base")

    def last(event: object) -> bool:
        return getattr(event, "number", 0) == LINES

    early.until("the last line", last, limit=200)
    assert_whole(early)
    wait_for("the log is rotated", lambda: log_has_rotated(early), 60)

    late = FollowedRun(runs.in_another_terminal(tmp_path / "another terminal"), early.id)
    late.until("the last line", last, limit=200)
    assert_whole(late)
    copy = tmp_path / "another terminal" / early.id / "logs" / "1" / "node-0.log"
    wait_for("the copy is whole", lambda: copy.read_bytes().count(b"\n") == LINES)
    runs.backend.stop(early.id, "seen", now=True)
    assert early.end().kind == "stopped" and late.end().kind == "stopped"
