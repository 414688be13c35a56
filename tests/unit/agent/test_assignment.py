"""Which pod does the work of which node."""

from __future__ import annotations

import pytest

from spotmpi.agent.peers import Assignment, Promotion
from spotmpi.agent.plan import NODE, STANDBY, Member

NODES = [Member(NODE, number) for number in range(3)]
FIRST, SECOND = (Member(STANDBY, number) for number in range(2))


def test_a_pod_that_stands_by_exchanges_its_work_with_that_of_a_lost_node() -> None:
    assignment = Assignment(3, 2, None)
    node_0, node_1, node_2 = NODES
    assert assignment.at_work == NODES
    assert assignment.promote([node_2], {FIRST, SECOND}) == [
        Promotion(node_2, pod=FIRST, replaced=node_2, standby=FIRST)
    ]
    assert assignment.at_work == [node_0, node_1, FIRST]
    found = [assignment.of(pod) for pod in (*NODES, FIRST, SECOND)]
    assert found == [node_0, node_1, FIRST, node_2, SECOND], "the pod of the lost node stands by from now on"

    again = Promotion(node_2, pod=node_2, replaced=FIRST, standby=FIRST)
    assert assignment.promote([node_2], {FIRST}) == [again], "once its next pod is ready"
    assert assignment.at_work == NODES


def test_of_two_lost_nodes_the_first_gets_the_only_pod_that_stands_by() -> None:
    assignment = Assignment(3, 1, None)
    node_0, node_1, node_2 = NODES
    assert [each.node for each in assignment.promote({node_2, node_1}, [FIRST])] == [node_1]
    assert assignment.at_work == [node_0, FIRST, node_2]
    assert assignment.promote([node_2], []) == []


@pytest.mark.parametrize(
    ("at_work", "holds"),
    [
        ([NODES[0], FIRST, NODES[2]], True),
        (None, False),
        ([NODES[0], FIRST], False),
        ([NODES[0], SECOND, NODES[2]], False),
        ([FIRST, NODES[1], NODES[2]], False),
        ([NODES[0], FIRST, FIRST], False),
    ],
    ids=["as before", "no attempt before", "another number of nodes", "an unknown pod", "another node 0", "one twice"],
)
def test_the_assignment_of_the_last_attempt_holds_for_the_next_agent_of_node_0(
    at_work: list[Member] | None, holds: bool
) -> None:
    assignment = Assignment(3, 1, at_work)
    assert assignment.at_work == (at_work if holds else NODES)
    assert sorted(assignment.pods.values()) == [*NODES, FIRST]
