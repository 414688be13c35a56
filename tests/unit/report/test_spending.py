"""What a run cost by market and node group, what its interruptions cost, and the forecast beside that."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import pack
from spotmpi.agent.unpack import unpack
from spotmpi.cli.report import print_report
from spotmpi.core.names import RunPaths
from spotmpi.report.gather import gather
from spotmpi.report.spending import avoided_section, forecast, spending_sections
from spotmpi.spec.job import JobSpec
from tests.unit.capacity.placed_run import FAR, SIZE, PlacedRun
from tests.unit.report import recorded_runs

pytestmark = pytest.mark.in_memory

MINUTE = 60.0


@pytest.fixture
def run(tmp_path: Path) -> PlacedRun:
    """A run that loses its spot nodes after 620 of 1,200 iterations, repeats 20, and ends on on-demand nodes."""
    capacity = {"deadline": "50m", "work": "20m", "overhead": "2m", "patience": "3m"}
    run = PlacedRun(tmp_path, {"near": SIZE, "far": SIZE}, 1200, MINUTE, **capacity)
    run.run_for(11 * MINUTE + 20)
    run.lose_a_node(near=0)
    run.run_until(lambda: False, 50 * MINUTE)
    assert run.ended is not None and run.cluster.places() == [FAR] * SIZE
    return run


def test_dollars_are_by_node_group_at_the_price_of_each_attempt_and_stand_beside_the_forecast(
    run: PlacedRun, tmp_path: Path
) -> None:
    spending, _ = spending_sections([RunPaths(tmp_path / "x-1")])
    near, far = spending.cells
    assert near[:3] == ("near", "spot", "1") and far[:3] == ("far", "on-demand", "1")
    # Ten minutes of pause are paid for, as by the cost limit: machines idle for longer are taken away.
    assert [float(value) for value in near[3:]] == pytest.approx([(680 + 600) / 3600, 4.0 * (680 + 600) / 3600], 0.02)
    assert [float(value) for value in far[3:]] == pytest.approx([660 / 3600, 12.0 * 660 / 3600], 0.02)
    total = float(spending.text[0].partition(" ")[0][1:])
    assert spending.text[0].endswith(" for nodes in 2 attempts, at the prices when they were submitted.")
    assert total == pytest.approx(float(near[4]) + float(far[4]), 0.005)
    assert spending.text[1].startswith(
        "x-1 was expected to cost $3.50 (90 % of cases: $1.40 to $4.20), 100 % in time, and $4.40 on on-demand nodes "
        f"alone; it cost ${total:.2f}, and ended "
    )
    assert run.ended is not None
    assert spending.text[1].endswith(f" {-int(-(3000 - run.ended) // 60)} min before its deadline.")


def test_nodes_that_waited_for_others_in_vain_are_named_with_their_cost(tmp_path: Path) -> None:
    run = PlacedRun(tmp_path, {"near": SIZE, "far": SIZE}, 1200, MINUTE, deadline="50m", work="20m", overhead="2m")
    run.run_for(11 * MINUTE)
    run.lose_a_node(near=SIZE - 1)
    run.run_until(lambda: False, 50 * MINUTE)
    spending, _ = spending_sections([RunPaths(tmp_path / "x-1")])
    assert run.ended is not None
    seconds = sum(each.get("idle", 0.0) for each in run.state["decisions"])
    assert seconds >= 3 * 5 * MINUTE
    text = r"x-1 released nodes that had waited for others, ([\d.]+) node hours, which cost \$([\d.]+)\."
    found = re.fullmatch(text, spending.text[1])
    assert found is not None, spending.text[1]
    hours, dollars = map(float, found.groups())
    assert hours == pytest.approx(seconds / 3600, rel=1e-3)
    assert dollars == pytest.approx(seconds / 3600 * 4.0 / SIZE, abs=0.005)


def test_machines_that_a_run_avoids_are_listed_with_the_reason(tmp_path: Path) -> None:
    recorded = recorded_runs.record(tmp_path, "run-1", recorded_runs.SPEC, recorded_runs.Recorded())
    assert avoided_section([recorded]) is None
    with recorded.events.open("a") as events:
        avoided = {"t": 1.0, "event": "avoided", "machine": "ip-1", "reason": "no GPU"}
        events.writelines(json.dumps(each) + "\n" for each in (avoided, {**avoided, "again": 1.0, "checked": True}))
    report = gather(["run-1"], tmp_path, recorded_runs.NOW)
    cells = {section.title: section.cells for section in report.sections}
    assert cells["Avoided machines"] == (("run-1", "ip-1", "no GPU"),)


def test_each_interruption_has_its_pause_start_repetition_and_cost(run: PlacedRun, tmp_path: Path) -> None:
    _, interruptions = spending_sections([RunPaths(tmp_path / "x-1")])
    ((name, attempt, cause, pause, start, repeated, dollars),) = interruptions.cells
    assert (name, attempt, cause, pause, start) == ("x-1", "1", "interruption: why", "600", "60.0")
    assert float(dollars) == pytest.approx((600 * 4.0 + (60 + int(repeated)) * 12.0) / 3600, 0.02)
    assert 0 < int(repeated) < 60


def test_without_a_price_an_interruption_cost_seconds_and_iterations(tmp_path: Path) -> None:
    assert [*spending_sections([RunPaths(tmp_path / "x-1")])] == []
    for number, cause, lost in ((1, "interruption", None), (2, "succeeded", 3)):
        folder = tmp_path / "x-1" / "attempts" / str(number)
        folder.mkdir(parents=True)
        times = {"allocated": 100.0 * number, "started": 100.0 * number, "ended": 100.0 * number + 98, "elapsed": 98.0}
        attempt = {"cause": cause, "reason": "lost x-1-node-1", "last_iteration": 50 * number, "start": 1.5, **times}
        (folder / "node-0.json").write_text(json.dumps(attempt | {"lost_iterations": lost}))
    (interruptions,) = spending_sections([RunPaths(tmp_path / "x-1")])
    assert interruptions.cells == (("x-1", "1", "interruption: lost x-1-node-1", "2.00", "1.50", "3", "-"),)


LOST = {"cause": "interruption", "reason": "gone", "start": 10.0, "first_iteration": 1, "last_iteration": 90}
ENDS = {"last_iteration": 200}


@pytest.mark.parametrize(
    ("second", "shown", "dollars"),
    [
        # Its first line of 25 iterations arrives 35 s after the nodes: 40 iterations of a second are repeated in all.
        ({"start": 35.0, "first_iteration": 75, "lost_iterations": 40, **ENDS}, ("20.0", "35.0", "40"), 20 + 35 + 15),
        ({"start": 11.0, "first_iteration": 51, "lost_iterations": 40, **ENDS}, ("20.0", "11.0", "40"), 20 + 11 + 39),
        ({"last_iteration": None}, ("20.0", "160", "-"), 20 + 160),
    ],
    ids=["prints every 25th", "times each", "came to no iteration"],
)
def test_the_cost_of_an_interruption_has_each_second_once(
    tmp_path: Path, second: dict[str, Any], shown: tuple[str, ...], dollars: float
) -> None:
    """Repeated iterations before the first line counted twice, and an attempt without an iteration cost nothing."""
    world = {"members": ["a"], "ranks": 1, "size": 1, "rate": RATE}
    first = {"allocated": 1000.0, "started": 1000.0, "ended": 1100.0, "elapsed": 100.0, **LOST}
    last = {"allocated": 1120.0, "started": 1120.0, "ended": 1280.0, "elapsed": 160.0, "cause": "succeeded"}
    last |= {"resumed_iteration": 50, **second}
    for number, values in ((1, first), (2, last)):
        folder = tmp_path / "x-1" / "attempts" / str(number)
        folder.mkdir(parents=True)
        (folder / "node-0.json").write_text(json.dumps({**values, "world": world}))
    *_, interruptions = spending_sections([RunPaths(tmp_path / "x-1")])
    assert interruptions.cells[0][3:6] == shown
    assert float(interruptions.cells[0][6]) == pytest.approx(dollars * RATE / HOUR, 0.01)


def test_the_pause_after_an_attempt_that_was_lost_with_its_agents_begins_at_its_last_report(tmp_path: Path) -> None:
    """It was shown as none."""
    paths = resumed_run(tmp_path, None, None)
    lines = paths.events.read_text().splitlines(keepends=True)
    paths.events.write_text("".join(line for number, line in enumerate(lines) if number != 2))  # one submission
    *_, interruptions = spending_sections([paths])
    assert interruptions.cells[0][3] == f"{24 * HOUR - 80:,.0f}"


def test_the_start_of_an_attempt_that_was_lost_with_its_agents_after_iterations_is_not_known(tmp_path: Path) -> None:
    """All of it, hours of work, was shown as the start after the interruption before, and in its dollars."""
    world = {"members": ["a"], "ranks": 1, "size": 1, "rate": RATE}
    paths = RunPaths(tmp_path / "x-1")
    for number in (1, 2, 3):
        folder = paths.attempts / str(number)
        folder.mkdir(parents=True)
        times = {"allocated": 1000.0 * number, "started": 1000.0 * number, "ended": 1000.0 * number + 900}
        (folder / "node-0.json").write_text(json.dumps({**LOST, **times, "elapsed": 900.0, "world": world}))
    lost = paths.attempts / "2"
    (lost / "node-0.json").unlink()
    (lost / "world.json").write_text(json.dumps(world))
    os.utime(lost / "world.json", (2000.0, 2000.0))
    reports = ({"t": 2000.0 + at, "attempt": 2, "kind": "metric", "iteration": at} for at in (100, 800))
    paths.metrics.write_text("".join(json.dumps({"member": "node/0", **each}) + "\n" for each in reports))
    *_, interruptions = spending_sections([paths])
    assert [cells[3:] for cells in interruptions.cells] == [("100", "-", "-", "-"), ("200", "10.0", "-", "2.100")]


def test_a_copy_of_a_run_has_the_cost_of_an_attempt_that_was_lost_with_its_agents(tmp_path: Path) -> None:
    """`spotmpi pull` gives files their times, not folders: the attempt began when it was copied, and cost nothing."""
    paths = resumed_run(tmp_path / "volume", None, None)
    attempt = paths.folder / "attempts" / "1"
    for path in (attempt / "world.json", attempt):
        os.utime(path, (1000.0, 1000.0))
    copy = RunPaths(tmp_path / "runs" / paths.id)
    copy.folder.mkdir(parents=True)
    packing = [sys.executable, "-ISc", Path(pack.__file__).read_text(), str(paths.folder), ".", "0"]
    packed = subprocess.run(packing, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        unpack(tar, str(copy.folder))
    assert [*spending_sections([copy])] == [*spending_sections([paths])]


def test_a_run_that_two_ids_name_is_reported_once(tmp_path: Path) -> None:
    """Its dollars and interruptions counted twice, as did its rate, with a range over trials of which there was one."""
    resumed_run(tmp_path, FIRST, "failed")
    once = gather(["run-1"], tmp_path, recorded_runs.NOW)
    assert gather(["run-1", "run"], tmp_path, recorded_runs.NOW) == once


def test_a_report_of_runs_has_both_sections(tmp_path: Path) -> None:
    paths = recorded_runs.record(tmp_path, "run-1", recorded_runs.SPEC, recorded_runs.Recorded(interrupted_at=(100,)))
    world = {"members": ["a", "b"], "ranks": 1, "size": 2, "rate": 36.0, "standby": 1, "pods": ["node/0", "standby/0"]}
    for number, cause in ((1, "interruption"), (2, "succeeded")):
        folder = paths.folder / "attempts" / str(number)
        folder.mkdir(parents=True)
        times = {"allocated": 100.0 * number, "started": 100.0 * number, "ended": 100.0 * number + 50, "elapsed": 50.0}
        attempt = {"cause": cause, "last_iteration": 100 * number, "world": world, "start": 10.0, **times}
        (folder / "node-0.json").write_text(json.dumps(attempt))
    report = gather(["run-1"], tmp_path, recorded_runs.NOW)
    cells = {section.title: section.cells for section in report.sections}
    spending = next(section for section in report.sections if section.title == "Spending")
    assert spending.text == (
        "$1.50 for nodes in 2 attempts, at the prices when they were submitted.",
        "$0.50 of these are for pods that stood by.",
    )
    assert cells["Spending"] == (("-", "-", "2", "0.04167", "1.500"),)
    assert cells["Interruptions"] == (("run-1", "1", "interruption: -", "50.0", "10.0", "-", "0.6000"),)
    print_report(report, printed := io.StringIO(), 200)
    assert {sentence for each in report.sections for sentence in each.text} <= {*printed.getvalue().splitlines()}


def test_the_dollars_of_pods_that_stood_by_are_not_told_beside_workers_of_other_prices(tmp_path: Path) -> None:
    """They had a share of the dollars of the workers: $11.33 of 2 nodes and one pod for $10 each and workers for $4."""
    stream = {"source": "s", "batch": 8, "workers": {"count": 4, "price": 1.0}}
    spec = recorded_runs.SPEC.canonical() | {"nodes": 2, "standby": 1, "price": 10.0, "stream": stream}
    paths = recorded_runs.record(tmp_path, "run-1", JobSpec.model_validate(spec), recorded_runs.Recorded())
    world = {"members": ["a", "b"], "ranks": 2, "size": 1, "rate": 34.0, "standby": 1}
    folder = paths.attempts / "1"
    folder.mkdir(parents=True)
    times = {"allocated": 0.0, "started": 0.0, "ended": HOUR, "elapsed": HOUR}
    (folder / "node-0.json").write_text(
        json.dumps({"cause": "succeeded", "last_iteration": 1, "world": world, **times})
    )
    spending = next(spending_sections([paths]))
    assert spending.text == ("$34.00 for nodes in 1 attempt, at the prices when they were submitted.",)


HOUR, RATE = 3600.0, 36.0  # seconds, and dollars an hour of all nodes
FIRST = {"allocated": 1000.0, "started": 1000.0, "ended": 1100.0, "elapsed": 100.0}  # attempt


def resumed_run(runs: Path, first: dict[str, float] | None, end: str | None) -> RunPaths:
    """A run of 100 s that is resumed a day later for 50 s; the record of its first attempt, and how that ended."""
    paths = recorded_runs.record(runs, "run-1", recorded_runs.SPEC, recorded_runs.Recorded())
    began, again = 1000.0, 1000.0 + 24 * HOUR
    events: list[dict[str, object]] = [{"t": began, "event": "submitted", "name": "digits"}]
    events += [{"t": began, "event": "started", "attempt": 1}]
    events += [{"t": began + 100, "event": end}] if end else []
    events += [{"t": again, "event": "submitted", "name": "digits"}, {"t": again, "event": "started", "attempt": 2}]
    events += [{"t": again + 50, "event": "succeeded"}]
    paths.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    report = {"t": began + 80, "attempt": 1, "member": "node/0", "kind": "metric", "iteration": 8}
    paths.metrics.write_text(json.dumps(report) + "\n")
    world = {"members": ["a"], "ranks": 1, "size": 1, "rate": RATE}
    second = {"allocated": again, "started": again, "ended": again + 50, "elapsed": 50.0, "cause": "succeeded"}
    for number, values in ((1, first), (2, second)):
        folder = paths.folder / "attempts" / str(number)
        folder.mkdir(parents=True)
        if values is None:
            (folder / "world.json").write_text(json.dumps(world))
            os.utime(folder, (began, began))
        else:
            attempt = {"cause": "failure", "last_iteration": 8, "world": world, **values}
            (folder / "node-0.json").write_text(json.dumps(attempt))
    return paths


@pytest.mark.parametrize(
    ("first", "end", "seconds"),
    [
        (FIRST, "failed", 100),
        (None, "stopped", 100),
        (None, None, 80),
    ],
)
def test_between_two_submissions_no_nodes_are_paid_for(
    tmp_path: Path, first: dict[str, float] | None, end: str | None, seconds: int
) -> None:
    """A day until a resume cost ten minutes of nodes, or all of it after an attempt that was lost with its agent."""
    paths = resumed_run(tmp_path, first, end)
    spending = next(spending_sections([paths]))
    assert (
        spending.text[0]
        == f"${(seconds + 50) * RATE / HOUR:.2f} for nodes in 2 attempts, at the prices when they were submitted."
    )
    assert [float(cells[3]) for cells in spending.cells] == pytest.approx([(seconds + 50) / HOUR], 0.01)


def test_an_attempt_that_was_lost_before_its_ranks_started_is_of_its_own_submission(tmp_path: Path) -> None:
    """It was of the one before: that cost ten minutes of a pause in addition, and this attempt nothing."""
    paths = resumed_run(tmp_path, FIRST, "failed")
    again = 1000.0 + 24 * HOUR
    paths.events.write_text(paths.events.read_text().replace('"attempt": 2', '"attempt": 3'))
    lost, third = paths.attempts / "2", paths.attempts / "3"
    lost.rename(third)
    record = json.loads((third / "node-0.json").read_text()) | {"attempt": 3, "allocated": again + 20}
    (third / "node-0.json").write_text(json.dumps(record))
    lost.mkdir()
    (lost / "world.json").write_text(json.dumps(record["world"]))
    os.utime(lost / "world.json", (again, again))
    (cells,) = next(spending_sections([paths])).cells
    assert cells[2:] == ("3", "0.04722", "1.700")  # hours and dollars of 100 + 20 + 50 s


@pytest.mark.parametrize(
    ("unpriced", "text"),
    [
        ((), "it cost $7.50"),  # with ten minutes of pause
        ((1,), "it cost $0.50 without 1 attempt of unknown price"),
        ((1, 2), "what it cost is not known"),
    ],
)
def test_a_forecast_stands_beside_what_is_known_of_the_cost(
    tmp_path: Path, unpriced: tuple[int, ...], text: str
) -> None:
    """Attempts of unknown price counted as free: the run "cost $0.00"."""
    paths = resumed_run(tmp_path, FIRST, "failed")
    submitted, started, _, _, *others = paths.events.read_text().splitlines(keepends=True)  # one submission
    paths.events.write_text("".join([submitted, placed(1000.0, 3000.0), started, *others]))
    for number in unpriced:
        record = paths.folder / "attempts" / str(number) / "node-0.json"
        record.write_text(record.read_text().replace(f'"rate": {RATE}', '"rate": null'))
    assert f"on on-demand nodes alone; {text}, and " in str(forecast(paths))


def placed(moment: float, deadline: float) -> str:
    """The event of a submission with a *deadline*, seconds after it."""
    expected = {"dollars": 3.5, "low": 1.4, "high": 4.2, "in_time": 1.0, "on_demand": 4.4, "deadline": deadline}
    return json.dumps({"t": moment, "event": "placed", "forecast": expected}) + "\n"


def test_a_resumed_run_is_compared_with_what_was_expected_when_it_was_resumed(tmp_path: Path) -> None:
    """It "ended 23 h after its deadline", which was that of the first submission, and had cost both."""
    paths = resumed_run(tmp_path, FIRST, "stopped")
    first, started, ended, second, *others = paths.events.read_text().splitlines(keepends=True)
    again = json.loads(second)["t"]
    lines = [first, placed(1000.0, 3000.0), started, ended, second, placed(again, 650.0), *others]
    paths.events.write_text("".join(lines))
    assert str(forecast(paths)).endswith("alone; it cost $0.50, and ended 10 min before its deadline.")
    paths.events.write_text("".join(lines[:5] + others))  # resumed without a deadline
    assert forecast(paths) is None
