"""`spotmpi simulate`, and the traces that it reads."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.api import simulation
from spotmpi.capacity import baselines
from spotmpi.capacity.job import Job, chance
from spotmpi.capacity.optimum import optimum
from spotmpi.capacity.simulation import simulate as simulate_windows
from spotmpi.capacity.traces import market, read_trace, region
from spotmpi.core.errors import InputError
from tests.command_line import invoke
from tests.unit.capacity.markets import TRACES

SPEC = """
command = ["python", "train.py"]
nodes = 16

[capacity]
work = "8h"
deadline = "12h"
zones = ["us-east4-a", "us-east4-b"]
"""


@pytest.fixture(autouse=True)
def without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine simulates for longer than the seconds after which that is said."""
    monkeypatch.setattr(simulation, "ECHO_INTERVAL", float("inf"))


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(SPEC)
    return str(path)


def simulate(spec: str, *options: str, traces: Path = TRACES / "h100-16") -> Any:
    return invoke("simulate", spec, "--traces", str(traces), "--windows", "40", *options)


def test_cost_range_chance_and_other_policies_are_printed(spec: str) -> None:
    code, output, errors = simulate(spec)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith(
        "8 h of work on 16 nodes, 12 h to the deadline, 5 min for a start; a3-highgpu-1g in us-east4-a"
    )
    assert lines[1].startswith("expected: $") and "100 % in time, on-demand $1,334.16" in lines[1]
    assert lines[3].split()[:2] == ["POLICY", "$"]
    assert [line.split("  ")[0] for line in lines[4:9]] == [
        "this policy",
        "Uniform Progress",
        "spot, else wait",
        "spot, else on-demand",
        "on-demand",
    ]
    assert lines[-1] == "means of 40 windows in 15 days"


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100 % in time"), (0.9975, "99.7 % in time ("), (0.57, "57 % in ti")]
)
def test_only_all_windows_are_100_per_cent(share: float, text: str) -> None:
    """1 late window of 400 was "100 % in time" in the note of a run."""
    assert chance(share).startswith(text)


def test_a_budget_that_starts_nothing_is_named(spec: str) -> None:
    """Spot nodes alone and $1: `expected: $0.00, 0.0 % in time` gave no reason."""
    lines = simulate(spec, "--set", "capacity.market=spot", "--set", "capacity.budget=1").stdout.splitlines()
    assert ", 0 % in time (the cost of the others is that until the deadline), on-demand" in lines[1]
    assert lines[-1].startswith(
        "no nodes are started that capacity.budget, $1.00, does not pay for; a higher budget shows"
    )
    enough = simulate(
        spec, "--set", "capacity.market=spot", "--set", "capacity.budget=9999", "--set", "capacity.deadline=99h"
    )
    assert "budget" not in enough.stdout


@pytest.mark.parametrize("start", ["5m", "100s"])
def test_what_the_message_says_to_set_is_accepted(spec: str, start: str) -> None:
    """It said `set at least 8 h 5 min`, which no spec can have, and a cost that was rounded down."""
    limits = ["--set", f"capacity.overhead={start}", "--price", "0.37", "--on-demand-price", "1.111113"]
    needed = re.findall(r'set at least "(\S+)"', simulate(spec, "--set", "capacity.deadline=8h", *limits).stderr)
    dollars = re.findall(r"cost \$(\S+), so", simulate(spec, "--set", "capacity.budget=9", *limits).stderr)
    code, _, errors = simulate(
        spec, "--set", f"capacity.deadline={needed[0]}", "--set", f"capacity.budget={dollars[0]}", *limits
    )

    assert (code, errors) == (0, "")


def test_json_has_the_same_figures_and_a_seed_gives_the_same_windows(spec: str) -> None:
    first, again, other = (json.loads(simulate(spec, "--json", "--seed", seed).stdout) for seed in ("1", "1", "2"))
    assert first == again != other
    ours, *others = first["results"]
    assert ours["late"] == 0
    assert 1 <= ours["ratio"] < 1.3
    assert all(ours["dollars"] < each["dollars"] for each in others)


def test_what_is_expected_is_of_the_windows_of_the_table(spec: str) -> None:
    """It was of other windows, with plans that knew what came in them: up to 5 % below the table."""
    printed = json.loads(simulate(spec, "--json", "--set", "nodes=[4, 8, 16]").stdout)
    ours, expected = printed["results"][0], printed["expectation"]
    assert expected["dollars"] == ours["dollars"] and expected["in_time"] == 1 - ours["late"] / printed["windows"]
    assert expected["low"] < expected["dollars"] < expected["high"]
    assert simulate(spec, "--set", "nodes=[4, 8, 16]").stdout.startswith("8 h of work on 4, 8 or 16 nodes, 12 h to")


def test_a_deadline_may_be_a_time_of_day(spec: str) -> None:
    later = (datetime.now(UTC) + timedelta(hours=12, seconds=30)).isoformat()
    printed = simulate(spec, "--set", f"capacity.deadline={later}").stdout
    assert "12 h 1 min to the deadline" in printed or "12 h to the deadline" in printed  # up to 30 s later
    errors = simulate(spec, "--set", "capacity.deadline=2027-01-31T18:00").stderr
    assert "give the offset from UTC too" in errors
    for wrong in ("2027-02-30T00:00Z", "2026-10-25T02:30[Europe/Berlin]"):
        errors = simulate(spec, "--set", f"capacity.deadline={wrong}").stderr
        assert 'write a duration such as "30h", or a time such as' in errors
    past = (datetime.now(UTC) - timedelta(days=9, minutes=1)).isoformat()
    errors = simulate(spec, "--set", f"capacity.deadline={past}").stderr
    assert errors.startswith("spotmpi: capacity.deadline = '9 days ago': on-demand nodes need 8 h 5 min"), errors


def test_all_that_is_missing_or_impossible_is_said_at_once(spec: str) -> None:
    code, _, errors = simulate(
        spec, "--set", "capacity.deadline=7h", "--set", "capacity.budget=9", "--set", 'capacity.zones=["moon-1a"]'
    )
    assert code == 2
    assert "capacity.zones = 'moon-1a': no trace of it; the traces are of asia-south2-b" in errors
    assert "capacity.deadline = '7 h': on-demand nodes need 8 h 5 min" in errors
    errors = simulate(spec, "--set", "capacity.budget=9").stderr
    assert "capacity.budget = 9.0: on-demand nodes for all of the work cost $1334.17" in errors
    nothing = Path(spec).with_name("empty.toml")
    nothing.write_text('command = ["true"]\nnodes = 99\n')
    errors = simulate(str(nothing), "--windows", "0").stderr
    for problem in (
        "capacity.work: give",
        "capacity.deadline: give",
        "capacity.zones: name zones of one region: asia-south2-b; asia-southeast1-b, asia-southeast1-c; europe",
        "--windows",
    ):
        assert problem in errors
    assert "nodes = 99: the traces have up to 16 nodes: name fewer" in errors


def test_what_a_simulation_does_not_know_is_refused_or_said(spec: str) -> None:
    code, _, errors = simulate(spec, "--set", 'capacity.order=["capacity-block", "spot"]')
    assert code == 2 and len(errors.splitlines()) == 1
    assert "capacity.order = ['capacity-block', 'spot']: a simulation has the zones and types of its traces" in errors
    assert "no Capacity Blocks: remove it" in errors
    code, _, errors = simulate(spec, "--set", 'kubernetes.node_groups=["block", "g5"]')
    assert code == 0
    assert errors.startswith("kubernetes.node_groups is not simulated, and Capacity Blocks are not: ")


def test_a_folder_without_traces_and_a_broken_one_are_refused(spec: str, tmp_path: Path) -> None:
    assert "no traces here" in simulate(spec, traces=tmp_path / "nowhere").stderr
    (tmp_path / "us-east-1a.json").write_text('{"nodes": [[1, 2]]}')
    errors = simulate(spec, traces=tmp_path).stderr
    assert "us-east-1a': is not a trace: it has no key 'price'" in errors


TRACE = {
    "zone": "us-west-2a",
    "instance_type": "p3.2xlarge",
    "start": "2027-01-01T00:00:00Z",
    "step": 600,
    "on_demand": 3.0,
    "nodes": [[16, 100], [0, 20], [16, 180]],
    "price": 1,
}
PUBLISHED: dict[str, Any] = {
    "metadata": {"gap_seconds": 600, "price_info": {"on_demand_price": 3}},
    "data": [0, 1],
    "prices": [1, 1],
}


def simulate_traces(folder: Path, *traces: dict[str, Any], options: Sequence[str] = ()) -> Any:
    for index, trace in enumerate(traces):
        (folder / f"us-west-2a_{index}.json").write_text(json.dumps(trace))
    (folder / "job.toml").write_text('command = ["x"]\nnodes = 16\n[capacity]\nwork = "8h"\ndeadline = "12h"\n')
    return simulate(str(folder / "job.toml"), *options, traces=folder)


def test_windows_that_are_drawn_again_are_not_simulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million windows would have taken minutes and gigabytes; a trace has as many as ticks. Progress is shown."""
    calls: list[Any] = []
    monkeypatch.setattr(simulation, "ECHO_INTERVAL", 0.0)

    def watched(*arguments: Any) -> Any:
        calls.append(arguments)
        return optimum(*arguments)

    monkeypatch.setattr(simulation, "optimum", watched)
    options = ["--windows", "900", "--json"]
    result = simulate_traces(tmp_path, TRACE, options=options)

    printed, (job, market, _) = json.loads(result.stdout), calls[0]
    assert sum(len(starts) for _, _, starts in calls) < 300 and printed["windows"] == 900
    progress = re.findall(r"^spotmpi: simulated (\d+) of 20 parts, about \d+ s left$", result.stderr, re.MULTILINE)
    assert [int(part) for part in progress] == list(range(1, 20))
    drawn = np.concatenate(simulation.window_starts(300 - 72, 900, seed=0))
    greedy = simulate_windows(job, market, drawn, baselines.greedy(job))
    figures = next(each for each in printed["results"] if each["policy"] == "spot, else wait")
    ratio = greedy.dollars.mean() / optimum(job, market, drawn).mean()
    assert figures["dollars"] == pytest.approx(greedy.dollars.mean())
    assert (figures["ratio"], figures["late"]) == (pytest.approx(ratio), greedy.missed)


@pytest.mark.parametrize(
    ("trace", "wrong"),
    [
        ({"step": 0}, "its ticks have 0 s; they must be longer than 0 s"),
        ({"step": math.nan}, "its ticks have nan s"),
        ({"nodes": []}, "it has no ticks"),
        ({"nodes": [[-4, 300]]}, "its numbers of nodes are not all whole, from 0 on"),
        ({"nodes": [[math.nan, 300]]}, "its numbers of nodes are not all whole"),
        ({"nodes": [[1e300, 300]]}, "it has 1e+300 nodes at a tick, more than 1,000,000"),
        ({"nodes": [[16, 100], [None, 100]]}, "a value of nodes is null, which is not a number"),
        ({"step": "600"}, 'step is "600", which is not a number'),
        ({"on_demand": None}, "on_demand is null, which is not a number"),
        ({"nodes": [16, 0, 16]}, "nodes has 16, which is not [value, ticks]"),
        ({"nodes": [[16, 1e12]]}, "which is not [value, ticks]"),
        ({"nodes": [[16, 10**12]]}, "nodes has more than 10,000,000 ticks"),
        ({"step": 1e300}, "its ticks have 1e+300 s; they must be longer than 0 s, and at most a day"),
        ({"step": True}, "step is true, which is not a number"),
        ({"nodes": [[True, 300]]}, "a value of nodes is true, which is not a number"),
        ({"nodes": [[16, True]]}, "nodes has [16, true], which is not [value, ticks]"),
        ({"price": -1.0}, "its prices are not all numbers from 0 to 1,000,000, in dollars per node and hour"),
        ({"price": math.inf}, "its prices are not all numbers from 0 to 1,000,000"),
        ({"price": [[math.nan, 300]]}, "its prices are not all numbers from 0 to 1,000,000"),
        ({"price": [[1.0, 100], [1e300, 200]]}, "its prices are not all numbers from 0 to 1,000,000"),
        ({"price": True}, "price is true, which is not a number"),
        ({"price": [[False, 300]]}, "a value of price is false, which is not a number"),
        ({"price": None}, "price is null, which is not a number"),
        ({"currency": "EUR"}, 'currency is "EUR": convert its prices to US dollars, and remove the key'),
        ({"price": [[1.0, 100]]}, "it has 300 ticks of nodes, but 100 of prices"),
        ({"on_demand": 0}, "its on-demand price is 0 dollars per node and hour; it must be above 0"),
        (
            {"on_demand": 1e300},
            "its on-demand price is 1e+300 dollars per node and hour; it must be above 0, and at most",
        ),
        ({"on_demand": True}, "on_demand is true, which is not a number"),
        ({"zone": 5}, "zone is 5, which is not a name"),
        ({"start": "soon"}, 'start is "soon", which is no date and time as 2023-02-15T22:08:16Z is; docs/'),
        ({**PUBLISHED, "data": [False, True]}, "a value of data is false, which is not a number"),
        ({**PUBLISHED, "prices": [1, True]}, "a value of prices is true, which is not a number"),
        ({**PUBLISHED, "prices": [1, 1e300]}, "its prices are not all numbers from 0 to 1,000,000"),
        ({**PUBLISHED, "metadata": {**PUBLISHED["metadata"], "currency": "EUR"}}, 'currency is "EUR": convert its'),
        ({**PUBLISHED, "data": [0, 2]}, "data with prices is 1 for a lost node and 0 for an available one"),
        ({**PUBLISHED, "data": [0, None]}, "a value of data is null, which is not a number"),
        ({**PUBLISHED, "data": [[0, 1], [1, 0]]}, "a value of data is [0, 1], which is not a number"),
        ({**PUBLISHED, "data": {"a": 1}}, "data is not a list of numbers"),
        ({**PUBLISHED, "prices": [1]}, "it has 2 ticks of nodes, but 1 of prices"),
        ({**PUBLISHED, "metadata": []}, "metadata is not a JSON object"),
        ({**PUBLISHED, "metadata": {**PUBLISHED["metadata"], "price_info": 3.06}}, "price_info is not a JSON object"),
    ],
)
def test_a_trace_that_no_market_can_have_is_refused_with_the_reason(
    tmp_path: Path, trace: dict[str, Any], wrong: str
) -> None:
    code, _, errors = simulate_traces(tmp_path, {**TRACE, **trace})
    assert code == 2
    assert errors.startswith("spotmpi: --traces = 'us-west-2a_0': is not a trace: ") and wrong in errors
    assert len(errors.splitlines()) == 1


def test_a_key_that_no_trace_has_is_named_with_those_that_it_may_have(tmp_path: Path) -> None:
    code, _, errors = simulate_traces(tmp_path, {**TRACE, "strat": TRACE["start"], "zones": []})
    assert code == 2
    assert "unknown keys strat, zones; the keys are zone, instance_type, start, step, on_demand, nodes, p" in errors


def test_a_file_that_cannot_be_read_is_named_among_those_of_its_folder(tmp_path: Path) -> None:
    simulate_traces(tmp_path, TRACE)
    broken, job = tmp_path / "broken.json", str(tmp_path / "job.toml")
    broken.write_bytes(b"\xff\xfe")
    assert "/broken.json': is not a trace, which is JSON" in simulate(job, traces=tmp_path).stderr
    broken.unlink()
    broken.mkdir()
    errors = simulate(job, traces=tmp_path).stderr  # of a long path the middle is left out
    assert errors.startswith("spotmpi: --traces = '/") and errors.count("\n") == 1
    assert errors.endswith("/broken.json': cannot be read: Is a directory; check its path and permissions\n")


def test_all_broken_traces_are_said_at_once_and_a_mark_at_the_beginning_is_none_of_them(tmp_path: Path) -> None:
    simulate_traces(tmp_path, TRACE)
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text('{"nodes": [[1, 2]]}', encoding="utf-8-sig")
    errors = simulate(str(tmp_path / "job.toml"), traces=tmp_path).stderr
    for name in ("one", "two"):
        assert f"--traces = '{name}': is not a trace: it has no key 'price'" in errors


def test_lists_within_lists_without_end_are_not_a_trace(tmp_path: Path) -> None:
    simulate_traces(tmp_path, TRACE)
    (tmp_path / "us-west-2a_0.json").write_text("[" * 200_000)
    errors = simulate(str(tmp_path / "job.toml"), traces=tmp_path).stderr
    assert errors.startswith("spotmpi: --traces = 'us-west-2a_0': is not a trace: it has lists within lists")
    assert len(errors.splitlines()) == 1


def test_options_that_no_market_has_are_refused_all_at_once(spec: str) -> None:
    options = ("--price", "nan", "--on-demand-price", "-3", "--seed", "-1", "--windows", "0")
    result = invoke("simulate", spec, "--traces", str(TRACES / "h100-16"), *options)
    assert result.returncode == 2
    assert [line.removeprefix("spotmpi: ") for line in result.stderr.splitlines()] == [
        "--windows = 0: must be at least 1",
        "--seed = -1: must be at least 0",
        "--price = nan: must be a number above 0, and at most 1,000,000",
        "--on-demand-price = -3.0: must be a number above 0, and at most 1,000,000",
    ]
    assert "--price = 1e+300: must be" in simulate(spec, "--price", "1e300").stderr


def test_a_deadline_that_not_even_spot_nodes_could_keep_and_a_speed_that_is_no_number_are_refused(spec: str) -> None:
    spot = ("--set", 'capacity.market="spot"')
    errors = simulate(spec, *spot, "--set", "capacity.deadline=7h").stderr
    assert "capacity.deadline = '7 h': the work alone takes 8 h: set at least \"8h\", or use more nodes" in errors
    assert simulate(spec, *spot, "--set", "capacity.deadline=8h").returncode == 0
    errors = simulate(spec, "--set", "nodes=[4, 16]", "--set", "capacity.speeds=[nan, 1.0]").stderr
    assert "capacity.speeds = [nan, 1.0]: give 2 numbers above 0" in errors
    errors = simulate(spec, "--set", "nodes=[16, 4, 8]", "--set", "capacity.speeds=[0.7, 0.4, 1.0]").stderr
    assert (
        "capacity.speeds = [0.7, 0.4, 1.0]: give 3 numbers above 0, one for each of `nodes` from the fewest on"
        in errors
    )


def test_a_price_may_be_a_whole_number_and_dollars_may_be_named(tmp_path: Path) -> None:
    assert "on-demand $388.00" in simulate_traces(tmp_path, {**TRACE, "currency": "USD"}).stdout


def test_two_traces_of_a_pool_and_traces_of_different_times_are_refused(tmp_path: Path) -> None:
    later = {**TRACE, "zone": "us-west-2b", "start": "2027-02-01T00:00:00Z"}
    errors = simulate_traces(tmp_path, TRACE, TRACE, later).stderr
    assert "p3.2xlarge in us-west-2a': has more than one trace: leave one" in errors
    assert "the traces have no time in common: name other zones" in errors


def test_traces_that_start_at_different_times_are_compared_at_the_same_times() -> None:
    nodes = {"us-west-2a": [[0, 100], [16, 200]], "us-west-2b": [[0, 40], [16, 200]]}
    starts = {"us-west-2a": "2027-01-01T00:00:00Z", "us-west-2b": "2027-01-01T10:00:00Z"}
    traces = [
        read_trace("", json.dumps({**TRACE, "zone": zone, "start": starts[zone], "nodes": nodes[zone]}))
        for zone in starts
    ]
    found = market(traces, Job(1.0, 1.0, (16,)), None, None).available
    assert found.shape == (2, 240)
    assert (found[0] == found[1]).all() and found[0].argmax() == 40


def test_a_start_without_an_offset_is_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Pacific/Chatham")
        time.tzset()
        found = read_trace("", json.dumps({**TRACE, "start": "2027-01-01T00:00:00"})).start
    time.tzset()
    assert found == datetime(2027, 1, 1, tzinfo=UTC).timestamp()


def test_a_deadline_longer_than_half_the_traces_is_refused(spec: str) -> None:
    assert "have to be twice as long" in simulate(spec, "--set", "capacity.deadline=200h").stderr


def test_published_traces_are_read_with_and_without_prices() -> None:
    counts = read_trace("us-west-2a_v100_1", '{"metadata": {"gap_seconds": 300}, "data": [0, 4, 16]}')
    assert (counts.pool.zone, counts.pool.instance_type, counts.price) == ("us-west-2a", "v100_1", None)
    assert counts.nodes.tolist() == [0, 4, 16]
    lost = read_trace(
        "us-west1-a_h100_16",
        '{"metadata": {"gap_seconds": 600, "price_info": {"on_demand_price": 9}}, "data": [1, 0], "prices": [2, 3]}',
    )
    assert lost.nodes.tolist() == [0, 1]
    assert lost.price is not None and lost.price.tolist() == [2, 3]
    assert lost.on_demand == 9
    with pytest.raises(InputError, match="describes the formats"):
        read_trace("x", "[]")


def test_traces_that_never_have_a_node_are_refused_without_the_advice_to_take_fewer() -> None:
    never = read_trace("", json.dumps({**TRACE, "nodes": [[0, 300]]}))
    with pytest.raises(InputError, match="nodes = 1: the traces have no node at any time: name other zones"):
        market([never], Job(1.0, 1.0), None, None)


def test_traces_without_prices_need_them_as_options(spec: str, tmp_path: Path) -> None:
    values = {"metadata": {"gap_seconds": 600}, "data": ([16] * 20 + [0] * 10) * 20}
    (tmp_path / "us-east4-a_x.json").write_text(json.dumps(values))
    only = ("--set", 'capacity.zones=["us-east4-a"]')
    assert "add --price and --on-demand-price" in simulate(spec, *only, traces=tmp_path).stderr
    priced = simulate(spec, *only, "--price", "1", "--on-demand-price", "3", traces=tmp_path)
    assert priced.returncode == 0
    assert "on-demand $388.00" in priced.stdout
    short = simulate(
        spec,
        *only,
        *(f"--set=capacity.{each}" for each in ("work=1h", "deadline=2h")),
        "--price",
        "1",
        "--on-demand-price",
        "3",
        traces=_cut(tmp_path, values, 200),
    )
    assert short.stdout.endswith("means of 40 windows in 33 h 20 min\n")


def _cut(folder: Path, values: Any, ticks: int) -> Path:
    """A folder with the first *ticks* of a trace."""
    (folder / "short").mkdir()
    (folder / "short" / "us-east4-a_x.json").write_text(json.dumps({**values, "data": values["data"][:ticks]}))
    return folder / "short"


def test_a_zone_has_its_region_in_its_name() -> None:
    assert [region(zone) for zone in ("us-west-2a", "us-west1-a")] == ["us-west-2", "us-west1"]
