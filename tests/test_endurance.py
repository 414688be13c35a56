"""What the endurance test is made of, without a cluster: its faults, how they are caused, and how growth is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from spotmpi.agent.outcomes import FAILURE, INTERRUPTION
from tests.cluster.endurance import Look, Passed, growth
from tests.cluster.faults import (
    ALONE,
    FAULTS_BY_DAY,
    KINDS,
    OF_STREAMS,
    PARTS,
    SEED,
    STAYS,
    STREAM,
    schedule,
)
from tests.contract.processes import wait_until
from tests.testbed.faults import Fault, ShiftedClocks, stopped

pytestmark = pytest.mark.extensive("for those who change the endurance test")

COUNTS = (FAILURE, INTERRUPTION, None)


def test_a_seed_gives_the_same_faults_and_no_kind_comes_again_before_all_have_come() -> None:
    faults = schedule(3, 40, STREAM)

    assert faults == schedule(3, 40, STREAM) != schedule(4, 40, STREAM)
    assert schedule(3, 25, STREAM) == faults[:25]
    assert {fault.kind for fault in faults[:19]} == {fault.kind for fault in faults[19:38]} == {*KINDS, *OF_STREAMS}
    assert {fault.kind for fault in schedule(3, 40, ALONE)} == set(KINDS)


@pytest.mark.parametrize("part", PARTS)
def test_faults_hit_nodes_of_their_kind_for_as_long_as_it_says_and_never_take_the_node_that_stays(part: str) -> None:
    faults = schedule(1, 1000, part)
    assert {fault.kind for fault in faults} == set(PARTS[part])
    for fault in faults:
        kind = PARTS[part][fault.kind]
        assert fault.node in kind.nodes and kind.seconds[0] <= fault.seconds <= kind.seconds[1]
        assert fault.gap > 0 and bool(fault.jump) == (fault.kind == "clock")
        assert not (kind.counts == INTERRUPTION and fault.node == STAYS)
        assert not fault.kind.startswith("partition") or fault.other != fault.node


def test_the_faults_of_the_day_are_of_each_sort() -> None:
    faults = schedule(SEED, FAULTS_BY_DAY, ALONE)
    by_count = {each: {fault.kind for fault in faults if KINDS[fault.kind].counts == each} for each in COUNTS}
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


def test_recoveries_that_are_slower_as_everything_on_the_machine_are_no_growth() -> None:
    passed = looks(80)
    for each in passed[60:]:
        each.seconds, each.start = 9.0, 4.0
    assert growth(passed) == []
    for each in passed[60:]:
        each.seconds = 40.0
    assert growth(passed) == ["seconds of a recovery grew from 2.5 to 40.0 (medians of the first and the last quarter)"]


def test_recoveries_that_are_no_faster_on_a_machine_that_gets_idle_are_no_growth() -> None:
    passed = looks(80)
    for each in passed[:60]:
        each.start = 6.0
    assert growth(passed) == []


def test_what_grows_a_little_with_each_fault_is_named_before_it_is_much() -> None:
    passed, noise = looks(80), Random(1)
    for at, each in enumerate(passed):
        each.look = replace(each.look, memory={**each.look.memory, 3: 30.0 + 0.1 * at + noise.uniform(-3, 3)})
    assert growth(passed[:40]) == [], "4 MiB in 40 faults may be chance"
    (problem,) = growth(passed)
    assert re.fullmatch(
        r"MiB of the agent of node 3 grew by [6-9]\.\d from 3\d\.\d, a little with each fault", problem
    ), problem


def test_noise_and_outliers_are_no_growth() -> None:
    for seed in range(200):
        passed, noise = looks(60), Random(seed)
        for each in passed:
            values = {node: noise.gauss(40, 4) for node in range(4)}
            each.look = replace(each.look, memory=values)
            each.fault = Fault(noise.choice(("rank", "delete", "two nodes")), 0)
            usual = {"rank": 0.5, "delete": 3.0, "two nodes": 6.0}[each.fault.kind]
            each.seconds = usual + noise.expovariate(2) + 40 * (noise.random() < 0.05)
        assert growth(passed) == [], seed


def test_each_kind_of_fault_has_its_own_seconds() -> None:
    """The last third has only the kind that takes longest, and takes no longer than before."""
    passed = looks(90)
    for at, each in enumerate(passed):
        each.fault = Fault("two nodes" if at % 3 == 0 or at >= 60 else "rank", 0)
        each.seconds = (9.0 if each.fault.kind == "two nodes" else 0.5) + at % 5 / 10
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
