"""What an attempt runs on, where the number of nodes changes between attempts."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.agent import protocol
from spotmpi.agent.launch import largest_size, on_hosts, world_of
from spotmpi.plan.agent_plan import AgentInputs, agent_plan
from spotmpi.spec.source import from_values


def plan(nodes: int | list[int], **values: Any) -> Any:
    spec = from_values({"command": ["x"], "nodes": nodes, "slots": 2, **values})
    return {**agent_plan(spec, "run-1", AgentInputs({}, {}, rate=8.0)), "submitted": 0.0}


def test_an_attempt_on_some_hosts_has_their_ranks_variables_and_price() -> None:
    whole = plan([1, 2, 4])
    assert whole["environment"][protocol.ENV_MOST_RANKS] == "8"
    some = on_hosts(whole, whole["hosts"][2:])

    assert [some["environment"][name] for name in (protocol.ENV_WORLD_SIZE, protocol.ENV_HOSTS)] == ["4", "2"]
    assert (some["roles"][0]["count"], some["rate"]) == (2, 4.0)
    world = world_of(some, 3)
    assert (world.members, world.size, world.rate) == (whole["hosts"][2:], 4, 4.0)
    local: Any = {**whole, "backend": "local"}
    assert on_hosts(local, ["127.0.0.1"])["rate"] == 8.0, "it is one machine"


def test_a_plan_with_a_fixed_number_of_nodes_keeps_all_but_the_hosts() -> None:
    fixed = plan(2)
    assert "elastic" not in fixed and protocol.ENV_MOST_RANKS not in fixed["environment"]
    assert on_hosts(fixed, ["a", "b"]) == {**fixed, "hosts": ["a", "b"]}


@pytest.mark.parametrize(("nodes", "size"), [(1, None), (2, 2), (3, 2), (7, 4), (9, 8)])
def test_the_size_is_the_largest_allowed_one(nodes: int, size: int | None) -> None:
    assert largest_size({"sizes": [2, 4, 8], "patience": 0.0}, nodes) == size
