import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.spec.source import from_values
from spotmpi.study.study import StudyOptions
from tests.command_line import invoke
from tests.unit.report.recorded_runs import SPEC, Recorded, record_sweep


def sweep_of(runs: Path, *rates: float) -> None:
    recorded = {("base", 2**at): [Recorded(rate), Recorded(rate * 1.01)] for at, rate in enumerate(rates)}
    parameters = StudyOptions([2**at for at in range(len(rates))], repeats=2)
    record_sweep(runs, SPEC, parameters, recorded)


def test_a_sweep_is_predicted_with_error_time_and_money(runs: Path) -> None:
    sweep_of(runs, 10.0, 18.0, 30.0)
    options = "--nodes 1..8 --iterations 3600 --price 1 --deadline 3m"
    code, output, _ = invoke("predict", *options.split())
    lines = output.splitlines()
    assert code == 0
    assert lines[0] == "digits"
    assert lines[1].split()[:3] == ["NODES", "IT/S", "95"]
    assert lines[2].startswith("    1  ")  # numbers align right
    assert [line.split()[0] for line in lines[2:6]] == ["1", "2", "4", "8"]
    assert lines[4].endswith("checked") and lines[5].endswith("extrapolated")
    assert lines[6] == "cheapest within the deadline: 4 nodes, 0.03 h for $0.13"
    assert lines[-1].startswith("fitted on 1 and 2 nodes with as many parameters: the interval covers the noise")


def busy_workers(rate: float) -> tuple[dict[str, Any], ...]:
    """The reports of a rank whose two workers are busy for a fifth of a second in each iteration."""
    counts = {"rank": 0, "ranks": 1, "workers": 2, "in_flight": 8, "skipped": 0, "bytes": 1e6, "waited": 0.0}
    return tuple(
        {**counts, "seconds": seconds, "batches": rate * seconds, "preparing": 0.2 * rate * seconds}
        for seconds in (0.0, 100.0)
    )


def test_a_sweep_with_a_stream_is_predicted_with_the_rate_and_the_price_of_its_workers(runs: Path) -> None:
    """Two workers prepare ten iterations a second, whatever the number of nodes."""
    stream = {"source": "flow:rows", "length": 9, "workers": {"count": 2, "price": 0.25}}
    spec = from_values({"command": ["train"], "price": 1.0, "stream": stream})
    trials = {("base", nodes): [Recorded(rate, stream=busy_workers(rate))] for nodes, rate in ((1, 4.0), (2, 8.0))}
    record_sweep(runs, spec, StudyOptions([1, 2]), trials)
    code, output, _ = invoke("predict", "--nodes", "1,2,4,8", "--price", "1", "--iterations", "3600", "--json")
    (series,) = json.loads(output)
    assert code == 0
    rates = {each["nodes"]: each["rate"] for each in series["predictions"]}
    assert rates == pytest.approx({1: 4.0, 2: 8.0, 4: 10.0, 8: 10.0}, rel=0.02)
    dollars = {each["nodes"]: each["dollars"] for each in series["predictions"]}
    assert dollars == pytest.approx({1: 0.25 * 1.5, 2: 0.125 * 2.5, 4: 0.1 * 4.5, 8: 0.1 * 8.5}, rel=0.02)
    assert "at most 10 iterations/s" in series["notes"][-1]
    assert "node price: $1 an hour (and 2 stream workers at $0.25 each)" in series["answers"]


def test_json_holds_the_same_for_scripts(runs: Path) -> None:
    sweep_of(runs, 10.0, 18.0, 20.0)
    code, output, _ = invoke("predict", "sweep-1", "--nodes", "4,8", "--json")
    (series,) = json.loads(output)
    assert code == 0
    assert series["fitted_on"] == [1, 2]
    assert series["degrees_of_freedom"] == 2
    assert [each["verdict"] for each in series["predictions"]] == ["not valid here"] * 2
    assert series["predictions"][0]["error"] > 0.1
    assert series["predictions"][1]["low"] < series["predictions"][1]["rate"] < series["predictions"][1]["high"]


def test_a_published_table_needs_nothing_recorded_and_shows_its_warning(runs: Path) -> None:
    code, messages, _ = invoke("predict", "chainercv-ssd300-p2", "--nodes", "2..8")
    assert code == 0
    assert messages.count("not valid here") == 3
    assert "95 %" not in messages.replace("is above", "")  # a fit without freedom has no interval
    assert messages.count("no degrees of freedom") == 3
    assert "warning: fp16, double buffering, 8 nodes: efficiency 108.5 %" in messages


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--nodes", "x"], "--nodes = 'x'"),
        (["--fit", "1,16"], "--fit = '1,16'"),
        (["--deadline", "soon"], "--deadline = 'soon'"),
        (["--deadline", "1h"], "--iterations or --epochs"),
        (["--epochs", "3"], "does not report its samples"),
        (["--price", "nan"], "--price = nan: must be above 0"),
        (["--min-efficiency", "nan"], "--min-efficiency = nan: must be above 0"),
    ],
)
def test_wrong_input_ends_with_2_in_one_line(runs: Path, options: list[str], expected: str) -> None:
    sweep_of(runs, 10.0, 18.0)
    code, _, errors = invoke("predict", *options)
    (line,) = errors.splitlines()
    assert code == 2 and expected in line


def test_a_single_node_count_is_too_little(runs: Path) -> None:
    sweep_of(runs, 10.0)
    code, _, errors = invoke("predict")
    assert code == 2 and "spotmpi bench SPEC --nodes 1,2,4" in errors


def test_a_program_that_reports_no_samples_is_told_what_is_missing(runs: Path) -> None:
    rates = {("base", nodes): [Recorded(10.0 * nodes, samples=None, scaling=None)] * 2 for nodes in (1, 2)}
    record_sweep(runs, SPEC, StudyOptions([1, 2], repeats=2), rates)
    code, _, errors = invoke("predict")
    assert code == 2 and "metrics.samples_per_iteration" in errors
