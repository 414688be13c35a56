"""Which pod does the work of which node."""

from __future__ import annotations

import pytest

from spotmpi.agent.places import Places, Promotion


def test_a_pod_that_stands_by_exchanges_places_with_that_of_a_lost_node() -> None:
    places = Places(3, 5)
    assert places.at_work == [0, 1, 2]
    assert places.promote([2], {3, 4}) == [Promotion(2, pod=3, replaced=2, place=3)]
    assert places.at_work == [0, 1, 3]
    assert [places.of(pod) for pod in range(5)] == [0, 1, 3, 2, 4], "the pod of the lost node stands by from now on"

    assert places.promote([2], {3}) == [Promotion(2, pod=2, replaced=3, place=3)], "once its next pod is ready"
    assert places.at_work == [0, 1, 2]


def test_of_two_lost_nodes_the_first_gets_the_only_pod_that_stands_by() -> None:
    places = Places(3, 4)
    assert [each.node for each in places.promote({2, 1}, [3])] == [1]
    assert places.at_work == [0, 3, 2]
    assert places.promote([2], []) == []


@pytest.mark.parametrize(
    ("at_work", "expected"),
    [
        ([0, 3, 2], [0, 3, 2]),
        (None, [0, 1, 2]),
        ([0, 3], [0, 1, 2]),
        ([0, 4, 2], [0, 1, 2]),
        ([3, 1, 2], [0, 1, 2]),
        ([0, 3, 3], [0, 1, 2]),
    ],
    ids=["as before", "no attempt before", "another number of nodes", "an unknown pod", "another node 0", "one twice"],
)
def test_places_of_the_last_attempt_hold_for_the_next_agent_of_node_0(
    at_work: list[int] | None, expected: list[int]
) -> None:
    places = Places(3, 4, at_work)
    assert places.at_work == expected and sorted(places.pods) == [0, 1, 2, 3]
