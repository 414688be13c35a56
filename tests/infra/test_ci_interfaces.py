"""What a destroyed cluster's network plugin leaves behind is swept, and nothing else."""

from __future__ import annotations

from moto import mock_aws

from infra.ci import leftovers
from tests.infra.ci_account import CNI, LAB, Vpc


@mock_aws
def test_only_idle_interfaces_of_the_cni_in_this_environments_vpc_are_swept() -> None:
    ours, theirs = Vpc("spotmpi-lab"), Vpc("spotmpi-p3")
    idle, foreign, other = ours.interface([CNI]), ours.interface([]), theirs.interface([CNI])
    busy = ours.interface([CNI])
    ours.attach(busy)
    assert leftovers.sweep_interfaces(LAB) == [idle]
    assert {foreign, busy} <= ours.interfaces()
    assert other in theirs.interfaces()


@mock_aws
def test_without_a_vpc_there_is_nothing_to_sweep() -> None:
    assert leftovers.sweep_interfaces(LAB) == []
