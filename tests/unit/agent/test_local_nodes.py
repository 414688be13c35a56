"""The nodes of a run on this machine: drills take them away, and they come back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import local_nodes
from spotmpi.agent.local_nodes import AWAY, DRAIN, LOSS, LocalNodes, take_away
from spotmpi.agent.plan import NODE, Member


class Machine:
    """A run in *folder* that may have 2 or 4 nodes, and a clock that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.folder = str(folder)
        plan = {"elastic": {"sizes": [2, 4], "patience": 0.0}}
        clock = SimpleNamespace(uptime=lambda: self.now)
        context: Any = SimpleNamespace(plan=plan, folder=self.folder, hosts=["127.0.0.1"] * 4, clock=clock)
        self.nodes = LocalNodes(context)

    def take(self, node: int, fault: str = DRAIN) -> None:
        take_away(self.folder, node, fault)
        self.nodes.serve(0)


def nodes(*numbers: int) -> list[Member]:
    return [Member(NODE, number) for number in numbers]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_drained_node_gives_notice_and_another_is_lost_at_once(machine: Machine) -> None:
    assert machine.nodes.pods == nodes(0, 1, 2, 3)
    machine.take(3)
    assert (machine.nodes.notices, machine.nodes.lost()) == ({Member(NODE, 3): "it is drained"}, [])
    machine.take(1, LOSS)
    assert machine.nodes.lost() == nodes(1)


def test_the_next_attempt_has_those_that_are_there_and_grows_once_all_are_back(machine: Machine) -> None:
    machine.take(1)
    machine.nodes.begin(2)
    assert (machine.nodes.pods, machine.nodes.notices, machine.nodes.missing()) == (nodes(0, 2), {}, None)
    assert machine.nodes.larger_size() is None

    machine.now = AWAY
    machine.nodes.serve(0)
    assert machine.nodes.larger_size() == 4
    machine.nodes.begin(2)
    assert machine.nodes.pods == nodes(0, 1, 2, 3)


def test_the_loss_of_a_node_that_the_attempt_has_not_ends_nothing(machine: Machine) -> None:
    machine.take(1)
    machine.nodes.begin(2)
    assert [machine.nodes.name_of(node) for node in nodes(0, 1)] == ["node 0", "node 2"]
    machine.take(3, LOSS)
    assert (machine.nodes.lost(), machine.nodes.notices) == ([], {})


def test_a_run_waits_while_too_few_are_there_and_says_for_which(machine: Machine) -> None:
    for node in (1, 2, 3):
        machine.take(node)
    machine.nodes.begin(2)
    assert machine.nodes.missing() == "node 1, node 2, node 3 away, for at most 15 s: the run needs 2 nodes"

    Path(local_nodes._path(machine.folder, 2)).unlink()
    assert machine.nodes.missing() is None
    assert machine.nodes.pods == nodes(0, 2)
