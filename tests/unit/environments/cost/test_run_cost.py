"""What a run cost, against an example that was computed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotmpi.aws.node_price import node_price
from spotmpi.backends.targets import Target
from spotmpi.core import environment
from spotmpi.core.errors import InputError
from spotmpi.environments.cost import run_cost
from tests.cloud.scripted_account import ScriptedAccount
from tests.unit.conftest import InProcess
from tests.unit.environments.cost.example import BIG, HOUR, ONE, SMALL, T0, recorded


def test_a_run_costs_its_part_of_the_machines_that_its_own_record_names(
    account: ScriptedAccount, there: environment.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, BIG, environment="spotmpi-lab")
    recorded(tmp_path, SMALL)
    asked: list[str] = []

    def of_stack(stack: str) -> environment.Environment:
        asked.append(stack)
        return there

    monkeypatch.setattr(environment, "of_stack", of_stack)

    cost = run_cost("bi", Target(runs_folder=tmp_path), None, account.aws, T0 + 9 * HOUR)

    assert asked == ["lab"]
    assert (cost.dollars, cost.shares[0].waiting) == pytest.approx((1.50, 0.08))
    assert [share.run for share in cost.shares] == ["big"]


def test_a_run_is_told_after_its_environment_is_gone_and_when_nobody_can_be_asked(
    account: ScriptedAccount, there: environment.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path, BIG, environment="spotmpi-lab", there=there.model_dump(mode="json"))
    recorded(tmp_path, SMALL)
    monkeypatch.setattr(environment, "of_stack", lambda stack: pytest.fail("the stack is gone"))

    first = run_cost("big", Target(runs_folder=tmp_path), None, account.aws, T0 + 9 * HOUR)
    assert first.dollars == pytest.approx(1.50)
    account.asked.clear()
    assert run_cost("big", Target(runs_folder=tmp_path), None, account.aws, T0 + 99 * HOUR) == first
    assert account.asked == []

    # Resumed, it is computed anew; what cannot be read is, too.
    events = tmp_path / "big" / "events.jsonl"
    more = {"t": T0 + 4 * HOUR, "event": "started", "attempt": 3, "machines": [{"node": 0, "instance": ONE}]}
    events.write_text(events.read_text() + json.dumps(more) + "\n")
    assert run_cost("big", Target(runs_folder=tmp_path), None, account.aws, T0 + 5 * HOUR).dollars == pytest.approx(
        1.50 + 0.60
    )
    events.write_text(events.read_text() + json.dumps({"t": T0 + 5 * HOUR, "event": "succeeded"}) + "\n")
    (tmp_path / "big" / "bill.json").write_text("{")
    assert run_cost("big", Target(runs_folder=tmp_path), None, account.aws, T0 + 9 * HOUR).dollars == pytest.approx(
        1.50 + 0.60
    )


def test_a_given_price_asks_nobody_and_none_is_asked_for(tmp_path: Path) -> None:
    recorded(tmp_path, BIG)

    assert run_cost("big", Target(runs_folder=tmp_path), price=1.0, now=T0 + 9 * HOUR).dollars == pytest.approx(
        1.5 * 2 + 1.0
    )
    with pytest.raises(InputError, match=r"price: what a node costs is not known: give --price, or name"):
        run_cost("big", Target(runs_folder=tmp_path))


def test_a_run_on_this_machine_has_variables_and_no_environment_that_could_tell_a_price(tmp_path: Path) -> None:
    recorded(tmp_path, BIG, backend="local", environment={"PATH": "/bin"})

    with pytest.raises(InputError, match=r"price: what a node costs is not known: give --price, or name"):
        run_cost("big", Target(runs_folder=tmp_path))


def test_the_price_of_a_node_for_a_limit_is_that_of_the_dearest_group(
    account: ScriptedAccount, there: environment.Environment
) -> None:
    assert node_price(there, there.node_groups, account.aws) == 0.60
    account.refuse("DescribeSpotPriceHistory", "UnauthorizedOperation")
    with pytest.raises(
        InputError, match=r"price: set it, since what a node costs could not be learnt: .* not permitted"
    ):
        node_price(there, there.node_groups, account.aws)


def test_the_command_shows_a_run_by_a_given_price(tmp_path: Path, in_process: InProcess) -> None:
    recorded(tmp_path, BIG)

    code, said, _ = in_process("cost", "big", "--price", "1", "--runs", str(tmp_path))

    assert code == 0 and said.startswith("big (succeeded): $4.00 from ")
    assert [line.split() for line in said.splitlines()[1:3]] == [
        ["RUN", "USER", "TEAM", "NODE-HOURS", "WAITING", "$", "TRAINING", "$"],
        ["big", "ann", "vision", "4.00", "0.20", "3.80"],
    ]
    code, said, _ = in_process("cost", "big", "--price", "1", "--runs", str(tmp_path), "--json")
    assert json.loads(said)["dollars"] == pytest.approx(4.0)
    for wrong in ("-1", "nan", "inf"):
        assert in_process("cost", "big", "--price", wrong, "--runs", str(tmp_path))[0] == 2


def test_what_a_run_has_cost_is_said_and_kept_as_its_follower_sees_it_end(
    account: ScriptedAccount,
    there: environment.Environment,
    tmp_path: Path,
    in_process: InProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded(tmp_path, BIG, there=there.model_dump(mode="json"))
    recorded(tmp_path, SMALL)
    monkeypatch.setattr("spotmpi.environments.cost.open_account", lambda region: account.aws)
    follow = ("logs", "-f", "big", "--runs", str(tmp_path))

    with account_that_refuses(account, "DescribeSpotPriceHistory"):
        code, _, complaint = in_process(*follow)
    assert code == 0 and "what it has cost is not known yet, `spotmpi cost big` asks again: " in complaint
    assert "not permitted" in complaint and not (tmp_path / "big" / "bill.json").exists()
    code, _, complaint = in_process(*follow)
    assert code == 0 and complaint.endswith("spotmpi: it has cost $1.50 of nodes\n")
    account.asked.clear()
    assert run_cost("big", Target(runs_folder=tmp_path), None, account.aws, T0 + 99 * HOUR).dollars == pytest.approx(
        1.50
    )
    assert account.asked == []
    code, _, complaint = in_process("logs", "-f", "small", "--runs", str(tmp_path))
    assert code == 0 and "cost" not in complaint


@contextmanager
def account_that_refuses(account: ScriptedAccount, operation: str) -> Iterator[None]:
    """Within the block AWS refuses that operation."""
    usual = account.answers[operation]
    account.refuse(operation, "UnauthorizedOperation")
    yield
    account.answers[operation] = usual
