"""Studies and forecasts know what a node costs in the environment that they are about, or say why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.api import studies
from spotmpi.backends.targets import Target
from spotmpi.core.errors import InputError
from spotmpi.core.price import Price
from spotmpi.forecast import model
from spotmpi.forecast.forecast import Goal, forecast
from spotmpi.report.gather import gather
from spotmpi.spec.source import from_values
from spotmpi.study import execution, pricing
from spotmpi.study.study import Study
from spotmpi.study.sweep import Sweep, load_sweep
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.core.test_environment import OUTPUTS
from tests.unit.report.recorded_runs import NOW, SPEC, Recorded, record
from tests.unit.study.studies import FakeRunner, quiet, study_of

KINDS = {"g4dn": ("g4dn.xlarge", "0.20"), "g5": ("g5.xlarge", "0.45")}


@pytest.fixture
def account(account: FakeAccount, monkeypatch: pytest.MonkeyPatch) -> FakeAccount:
    """An account that knows spot prices in the environment's zone."""
    account.ec2.spot_prices = {kind: float(price) for kind, price in KINDS.values()}
    monkeypatch.setattr("spotmpi.aws.prices.open_account", lambda region: account)
    return account


@pytest.fixture
def lab_target(tmp_path: Path, account: FakeAccount) -> Target:
    """An environment with two groups."""
    like = OUTPUTS["node_groups"][0]
    like = {**like, "disk_gib": 0, "public_address": False}  # so that a node costs what its machine does
    groups = [{**like, "name": name, "type": kind, "labels": {"group": name}} for name, (kind, _) in KINDS.items()]
    path = tmp_path / "lab.json"
    path.write_text(json.dumps({**OUTPUTS, "node_groups": groups}))
    return Target(str(path), tmp_path / "runs")


def study(groups: list[str], nodes: list[int] | None = None, **more: Any) -> Study:
    return study_of({"node_group": groups, "nodes": nodes or [1]}, **more)


def prices_of(priced: Study) -> dict[str, Price | None]:
    """The price of a node in each variant on one node."""
    return {variant.name: priced.budget.price_of(variant.name, 1) for variant in priced.variants}


def carry_out(priced: Study, runs: Path) -> Sweep:
    """A sweep of runs of ten minutes each."""
    sweep = execution.open_sweep(priced, Target("local", runs), "study-1", False, quiet)
    runner = FakeRunner(seconds=600)
    execution.run_sweep(sweep, runner, quiet, runner.clock)
    return sweep


def hourly(priced: Study) -> dict[str, float]:
    return {name: price.node_hour for name, price in prices_of(priced).items() if price}


def test_a_node_costs_its_share_of_a_streams_workers_too(tmp_path: Path) -> None:
    stream = {"source": "s3://set", "batch": 8, "workers": {"count": 6, "price": 0.1}}
    spec = {"command": ["train"], "price": 1.5, "stream": stream}
    varied = study_of({"nodes": [1, 2], "stream.workers.count": [6, 3]}, spec)
    budget = pricing.with_prices(varied, Target("kubernetes", tmp_path), quiet).budget
    costs = {each: price.hourly(each[1]) for each, price in budget.prices.items()}
    assert sorted(costs.values()) == pytest.approx([1.5 + 0.3, 1.5 + 0.6, 2 * 1.5 + 0.3, 2 * 1.5 + 0.6])
    assert all("share of" in price.source and price.worker_hour == 0.1 for price in budget.prices.values())


def test_a_forecast_has_the_price_of_a_node_and_that_of_all_workers(tmp_path: Path) -> None:
    stream = {"source": "s3://set", "batch": 8, "workers": {"count": 6, "price": 0.1}}
    varied = study_of({"nodes": [1, 2]}, {"command": ["train"], "price": 1.5, "stream": stream})
    budget = pricing.with_prices(varied, Target("kubernetes", tmp_path), quiet).budget
    (variant,) = varied.variants
    for nodes in (1, 2):
        price = budget.price_of(variant.name, nodes)
        assert price is not None
        alone = pricing.without_workers(price, variant.spec, nodes)
        assert (alone.source, alone.worker_hour) == ("from the spec", 0.1)
        assert alone.node_hour == pytest.approx(1.5)
        goal = pricing.goal_with_price(Goal(), alone, [variant.spec], None)
        assert [goal.price, goal.workers_price] == pytest.approx([1.5, 0.6])
        assert goal.price_source == "from the spec; and 6 stream workers at $0.1 each"
    own = pricing.goal_with_price(Goal(price=2.0), None, [variant.spec], None)
    assert [own.price, own.workers_price] == pytest.approx([2.0, 0.6])

    both = {"postprocess": "flow:post", "postprocess_workers": {"count": 2, "price": 0.4}}
    spec = from_values({"command": ["train"], "price": 1.5, "stream": {**stream, **both}})
    goal = pricing.goal_with_price(Goal(price=2.0), None, [spec], None)
    assert goal.workers_price == pytest.approx(6 * 0.1 + 2 * 0.4)


def test_a_forecast_pays_for_this_machine_once_as_the_report_does(tmp_path: Path) -> None:
    stream = {"source": "s3://set", "batch": 8, "workers": {"count": 6, "price": 0.1}}
    varied = study_of({"nodes": [1, 2]}, {"command": ["train"], "price": 1.5, "stream": stream})
    budget = pricing.with_prices(varied, Target("local", tmp_path), quiet).budget
    (variant,) = varied.variants
    goal = pricing.goal_with_price(Goal(iterations=3600), budget.price_of(variant.name, 2), [variant.spec], None)
    fitted = model.fit(model.Series("base", {1: [1.0], 2: [2.0]}))

    result = forecast(fitted, [1, 2], goal)

    assert [each.dollars for each in result.by_nodes] == pytest.approx([1.5, 0.75], rel=0.01)
    assert result.answers[0].endswith("for all nodes, which are this machine)")


def test_a_streams_worker_costs_its_share_of_an_environments_node(lab_target: Target) -> None:
    """Four workers of 1 CPU share a g4dn.xlarge of 4 vCPUs, which costs 20 cents an hour."""
    spec = {"command": ["train"], "resources": {"gpu": 1}}
    streams = [{"source": "s3://set", "batch": 8, "workers": {"count": 4, "cpu": cpu}} for cpu in (1, 4)]
    for stream, worker_hour in zip(streams, (0.05, 0.20), strict=True):
        priced = pricing.with_prices(study_of({"nodes": [2]}, {**spec, "stream": stream}), lab_target, quiet)
        (price,) = priced.budget.prices.values()
        assert price.worker_hour == pytest.approx(worker_hour)
        assert price.node_hour == pytest.approx(0.20 + 4 / 2 * worker_hour)


def test_a_node_costs_what_its_own_group_does_now(lab_target: Target) -> None:
    messages: list[str] = []
    assert hourly(pricing.with_prices(study(["g4dn"]), lab_target, messages.append)) == {"base": 0.20}
    (line,) = messages
    assert line.startswith("node price: $0.2 an hour (spot price of g4dn.xlarge in us-east-1a, with its disk, 20")
    assert line.endswith(" UTC)")
    both = pricing.with_prices(study(["g4dn", "g5"]), lab_target, messages.append)
    assert hourly(both) == {"group g4dn": 0.20, "group g5": 0.45}
    assert [price.node_hour for price in both.budget.all_prices] == [0.45, 0.20]
    assert len(messages) == 3


def test_a_node_costs_what_the_spec_says_of_its_group_where_aws_tells_none(
    lab_target: Target, account: FakeAccount
) -> None:
    """AWS was asked all the same, and costs were left out where it did not tell."""
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation")
    capacity = {"order": ["g4dn", "g5"], "prices": {"g4dn": 0.1, "g5": 0.3}}
    spec = {"command": ["train"], "resources": {"gpu": 1}, "capacity": capacity}
    messages: list[str] = []
    assert hourly(pricing.with_prices(study_of({"nodes": [1]}, spec), lab_target, messages.append)) == {"base": 0.3}
    assert messages == ["node price: $0.3 an hour (capacity.prices of g5)"]


def test_configurations_without_a_price_in_their_spec_have_that_of_the_environment(lab_target: Target) -> None:
    """Where one variant's spec had a price, nobody asked for those of the others, whose costs were left out."""
    own = {"ours": ["price=0.1"], "theirs": ["env.X=1"]}
    priced = pricing.with_prices(study_of({"node_group": ["g5"], "machine": own}), lab_target, quiet)
    assert hourly(priced) == {"ours": 0.1, "theirs": 0.45}


def test_a_study_over_two_groups_is_estimated_limited_and_reported_at_the_price_of_each(
    lab_target: Target, tmp_path: Path
) -> None:
    """By hand: 10 minutes of a node cost 3.33 cents (g4dn) or 7.5 cents (g5); 2 repeats on 1 and on 2 nodes make 6 of
    each, so 20 + 45 cents. At the dearest price of both it would be 90."""
    limits = {"money": 0.70, "trial": "10m"}
    limited = study(["g4dn", "g5"], limits=limits, repeats=2, nodes=[1, 2])
    priced = pricing.with_prices(limited, lab_target, quiet)
    assert priced.budget.estimate(priced.trials()) == "8 trials, about 1 h 20 min and $0.65"

    sweep = carry_out(priced, tmp_path / "runs")
    assert (sweep.limit_reached, sweep.finished) == (None, True)
    assert priced.budget.spent(sweep.trials) == pytest.approx((8 * 600.0, 0.65))
    for trial in sweep.trials:
        record(tmp_path / "runs", trial.runs[-1], priced.spec_of(trial), Recorded(wobble=0.0))
    costs = next(each for each in gather([], tmp_path / "runs", NOW).sections if each.title == "Cost")
    # 1,000 iterations at 10 a second are 100 seconds, here on any number of nodes.
    assert [cells[:4] for cells in costs.cells] == [
        ("group g4dn", "1", "0.2000", "0.005556"),
        ("group g4dn", "2", "0.2000", "0.01111"),
        ("group g5", "1", "0.4500", "0.01250"),
        ("group g5", "2", "0.4500", "0.02500"),
    ]
    assert "$0.45 an hour (spot price of g5.xlarge" in costs.text[0]
    assert "$0.2 an hour (spot price of g4dn.xlarge" in costs.text[0]
    for target in (Target(None, tmp_path / "runs"), lab_target):
        predicted = studies.predict("study-1", [2], on=target)
        dollars = [each.by_nodes[0].dollars_per_thousand for each in predicted]
        assert dollars == pytest.approx([0.01111, 0.025], rel=1e-3)


def test_a_money_limit_uses_the_price_of_the_groups_that_ran(lab_target: Target, tmp_path: Path) -> None:
    limits = {"money": 0.25, "trial": "10m"}
    priced = pricing.with_prices(study(["g4dn", "g5"], limits=limits, repeats=2, nodes=[1, 2]), lab_target, quiet)
    sweep = carry_out(priced, tmp_path / "runs")
    spent = sum({"group g4dn": 0.2, "group g5": 0.45}[t.variant] * t.nodes / 6 for t in sweep.trials if t.finished)
    after = next(trial for trial in sweep.trials if not trial.finished)
    more = {"group g4dn": 0.2, "group g5": 0.45}[after.variant] * after.nodes / 6
    assert spent <= 0.25 < spent + more
    assert sweep.limit_reached == f"limits.money = 0.25 reached: ${spent:.2f} spent, the next trial costs ${more:.2f}"


def test_a_price_in_the_study_or_its_spec_needs_no_request_to_aws(lab_target: Target, account: FakeAccount) -> None:
    listed = study(["g5"], price={"node_hour": 0.9, "source": "list price"})
    own = study_of({"nodes": [1]}, {"command": ["train"], "launcher": "none", "price": 0.7})
    assert prices_of(pricing.with_prices(listed, lab_target, quiet)) == {"base": Price(0.9, "list price")}
    assert prices_of(pricing.with_prices(own, lab_target, quiet)) == {"base": Price(0.7, "from the spec")}
    assert account.requests_of("DescribeSpotPriceHistory") == []


@pytest.mark.parametrize(
    ("spec", "more"),
    [({"price": 1.5}, {}), ({}, {"price": {"node_hour": 1.5, "source": "list price"}})],
    ids=["spec", "study"],
)
@pytest.mark.parametrize("workers", [{}, {"stream": {"source": "s3://set", "batch": 8, "workers": {"count": 6}}}])
def test_this_machine_is_paid_once_however_many_nodes_a_trial_has_on_it(
    tmp_path: Path, spec: dict[str, Any], more: dict[str, Any], workers: dict[str, Any]
) -> None:
    """The cost of its runs had the machine once, and the study, its limit and its report each node."""
    varied = study_of({"nodes": [1, 4]}, {**SPEC.canonical(), **spec, **workers}, **more)
    sweep = carry_out(pricing.with_prices(varied, Target("local", tmp_path), quiet), tmp_path / "runs")
    for study in (sweep.study, load_sweep(sweep.folder).study):
        minutes = sum(trial.seconds for trial in sweep.trials) / 60
        assert study.budget.spent(sweep.trials)[1] == pytest.approx(1.5 / 60 * minutes)
        assert [str(price) for price in study.budget.all_prices] == [
            f"$1.5 an hour ({'from the spec' if spec else 'list price'}; for all nodes, which are this machine)"
        ]
    for trial in sweep.trials:
        record(tmp_path / "runs", trial.runs[-1], sweep.study.spec_of(trial), Recorded())
    (section,) = (each for each in gather([], tmp_path / "runs", NOW).sections if each.title == "Cost")
    assert {row[1]: row[2] for row in section.cells} == {"1": "1.500", "4": "0.3750"}


def test_without_access_one_line_says_so_and_a_limit_of_money_is_refused_as_on_this_machine(
    lab_target: Target, account: FakeAccount
) -> None:
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation")
    messages: list[str] = []
    assert prices_of(pricing.with_prices(study(["g5"]), lab_target, messages.append)) == {"base": None}
    (line,) = messages
    assert line.startswith("costs are not shown: node price unknown (")
    assert "not permitted" in line and line.endswith("set [price] in the study")
    limited = study(["g5"], limits={"money": 5.0, "trial": "1m"})
    for target in (lab_target, None):
        with pytest.raises(InputError, match=r"limits.money = 5.0: needs \[price\]"):
            pricing.with_prices(limited, target, quiet)


def test_the_price_at_the_time_of_the_sweep_is_recorded_and_reported(lab_target: Target, tmp_path: Path) -> None:
    priced = pricing.with_prices(study_of({"nodes": [1]}, SPEC.canonical()), lab_target, quiet)
    sweep = carry_out(priced, tmp_path / "runs")
    for trial in sweep.trials:
        record(tmp_path / "runs", trial.runs[-1], priced.spec_of(trial), Recorded())
    assert prices_of(load_sweep(sweep.folder).study) == prices_of(priced)
    report = gather([], tmp_path / "runs", NOW)
    costs = next(each for each in report.sections if each.title == "Cost")
    assert costs.text[0].startswith("Node price: $0.2 an hour (spot price of g4dn.xlarge in us-east-1a, ")
    assert report.prices == prices_of(priced)


def test_a_forecast_uses_the_current_price_or_the_sweeps_and_names_it(lab_target: Target, account: FakeAccount) -> None:
    recorded = Price(0.3, "spot price in October")
    specs = [from_values({"image": "chainermn", "program": "digits", "resources": {"gpu": 1}})]
    assert pricing.goal_with_price(Goal(price=1.0), recorded, specs, lab_target).price == 1.0
    now = pricing.goal_with_price(Goal(), recorded, specs, lab_target)
    assert now.price == 0.20 and now.price_source is not None and "g4dn.xlarge" in now.price_source
    assert pricing.goal_with_price(Goal(), recorded, specs, None) == Goal(
        price=0.3, price_source="spot price in October"
    )
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation")
    before = pricing.goal_with_price(Goal(), recorded, specs, lab_target)
    assert before.price == 0.3 and before.price_source is not None and "node price unknown" in before.price_source
    none = pricing.goal_with_price(Goal(), None, specs, lab_target)
    assert none.price is None and none.price_source is not None and none.price_source.endswith("set price")
