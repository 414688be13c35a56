"""What the endurance test is made of, without a cluster: its faults, how they are caused, and how growth is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spotmpi.agent.outcomes import FAILURE, INTERRUPTION
from tests.cluster.endurance import Look, Passed, growth
from tests.cluster.faults import FAULTS_BY_DAY, KINDS, OF_STREAMS, SEED, STAYS, kinds, schedule
from tests.contract.processes import wait_until
from tests.testbed.faults import Fault, ShiftedClocks, stopped

KNOWN = kinds(stream=True)
COUNTS = (FAILURE, INTERRUPTION, None)


def test_a_seed_gives_the_same_faults_and_no_kind_comes_again_before_all_have_come() -> None:
    faults = schedule(3, 40, stream=True)

    assert faults == schedule(3, 40, stream=True) != schedule(4, 40, stream=True)
    assert schedule(3, 25, stream=True) == faults[:25]
    assert {fault.kind for fault in faults[:19]} == {fault.kind for fault in faults[19:38]} == {*KINDS, *OF_STREAMS}
    assert {fault.kind for fault in schedule(3, 40, stream=False)} == set(KINDS)


def test_faults_hit_nodes_of_their_kind_for_as_long_as_it_says_and_never_take_the_node_that_stays() -> None:
    for fault in schedule(1, 1000, stream=True):
        kind = KNOWN[fault.kind]
        assert fault.node in kind.nodes and kind.seconds[0] <= fault.seconds <= kind.seconds[1]
        assert fault.gap > 0 and bool(fault.jump) == (fault.kind == "clock")
        assert not (kind.counts == INTERRUPTION and fault.node == STAYS)
        assert not fault.kind.startswith("partition") or fault.other != fault.node


def test_the_faults_of_the_day_are_of_each_sort() -> None:
    faults = schedule(SEED, FAULTS_BY_DAY, stream=False)
    by_count = {each: {fault.kind for fault in faults if KNOWN[fault.kind].counts == each} for each in COUNTS}
    assert by_count == {
        FAILURE: {"rank", "launcher"},
        INTERRUPTION: {"force", "evict", "delete node 0"},
        None: {"stop rank", "stop agent", "partition", "clock"},
    }


def looks(count: int) -> list[Passed]:
    """What so many faults leave where nothing grows but the files of attempts."""
    return [
        Passed(
            Fault("rank", 0),
            Look(at + 1, dict.fromkeys(range(4), 30.0 + at % 3), dict.fromkeys(range(4), 20), 6 * (at + 1), 12),
            seconds=2.0 + at % 2,
        )
        for at in range(count)
    ]


def test_files_of_each_attempt_are_no_growth() -> None:
    assert growth(looks(80)) == []


@pytest.mark.parametrize(
    ("grown", "says"),
    [
        ({"memory": {2: 50.0}}, "MiB of the agent of node 2 grew from 31.0 to 50.0"),
        ({"open_files": {0: 40}}, "open files of the agent of node 0 grew from 20.0 to 40.0"),
        ({"others": 90}, "files of the run folder besides those of attempts grew from 12.0 to 90.0"),
        ({"of_attempts": 1600}, "files of each attempt grew from 6.0 to "),
    ],
)
def test_what_grows_is_named(grown: dict[str, object], says: str) -> None:
    passed = looks(80)
    for each in passed[60:]:
        values = {
            name: {**getattr(each.look, name), **value} if isinstance(value, dict) else value
            for name, value in grown.items()
        }
        each.look = replace(each.look, **values)  # type: ignore[arg-type]
    (problem,) = growth(passed)
    assert problem.startswith(says)


def test_slower_recoveries_are_growth_but_not_those_that_wait_for_what_was_away() -> None:
    passed = looks(80)
    for each in passed[60:]:
        each.seconds = 9.0
    assert growth(passed) == ["seconds of a recovery grew from 2.5 to 9.0 (medians of the first and the last quarter)"]
    for each in passed[60:]:
        each.fault = Fault("JobSet", 1, seconds=3.0)
    assert growth(passed) == []


def test_few_faults_show_no_growth() -> None:
    passed = looks(20)
    passed[-1].seconds = 90.0
    assert growth(passed) == []


def test_a_stopped_process_goes_on_afterwards_and_may_be_gone_by_then() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    with stopped(process.pid):
        wait_until(lambda: state() == "T")
    wait_until(lambda: state() != "T")
    with stopped(process.pid):
        process.kill()
        process.wait()


def test_a_shifted_clock_changes_unix_time_alone_and_jumps_while_processes_run(tmp_path: Path) -> None:
    clocks = ShiftedClocks(tmp_path / "clocks", str(tmp_path / "clocks"))
    host = os.uname().nodename
    clocks.set(host, 600)
    look = "import time\nfor _ in iter(input, ''): print(time.time(), time.monotonic(), flush=True)"
    variables = {each["name"]: each["value"] for each in clocks.variables}
    command = [sys.executable, "-c", look]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    ) as process:
        assert process.stdin and process.stdout
        shifts = []
        for seconds in (600, -900, 0):
            clocks.set(host, seconds)
            process.stdin.write("look\n")
            process.stdin.flush()
            unix, steady = map(float, process.stdout.readline().split())
            shifts.append(round(unix - time.time(), -1))
            assert abs(steady - time.monotonic()) < 5
        process.stdin.write("\n")
        process.stdin.close()
    assert shifts == [600, -900, 0]
