"""What a former environment left, as `spotmpi doctor` finds it."""

from __future__ import annotations

import pytest

from spotmpi.environments.doctor import doctor
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.environments.doctor.unbuilt import TAGS, finding_of, stack, tool_output

LEFTOVERS = {
    "file systems": "fs-1",
    "mount targets": "fsmt-1",
    "network interfaces": "eni-1",
    "volumes": "vol-1",
    "log groups": "/aws/eks/spotmpi-mine/cluster",
}


def leave_one_of_each_kind(account: FakeAccount) -> None:
    account.efs.file_systems["fs-1"] = account.ec2.volumes["vol-1"] = TAGS
    account.efs.mount_targets["fsmt-1"] = "fs-1"
    account.ec2.interfaces["eni-1"] = ("vpc-1", "available", TAGS)
    account.logs.groups.add("/aws/eks/spotmpi-mine/cluster")


@pytest.mark.parametrize("what", LEFTOVERS)
def test_leftovers_of_a_former_environment_come_with_a_command(account: FakeAccount, what: str) -> None:
    leave_one_of_each_kind(account)
    message = LEFTOVERS[what]

    finding = finding_of(account, f"leftover {what}")

    assert finding.level == "warning" and "1 of a former spotmpi-mine" in finding.message and message in finding.message
    assert message in finding.command and finding.command.endswith("--region us-east-1")


def test_resources_of_others_are_no_leftovers(account: FakeAccount) -> None:
    account.efs.file_systems["fs-2"] = {"spotmpi:environment": "spotmpi-mine-data"}

    doctor("mine", account, tool_output)
    assert finding_of(account, "leftover file systems").level == "ok"

    filters = [request["Filters"][0] for request in account.requests_of("DescribeNetworkInterfaces")]
    assert all(each["Values"] == ["spotmpi-mine"] for each in filters)
    assert {each["Name"] for each in filters} >= {"tag:spotmpi:environment", "tag:cluster.k8s.amazonaws.com/name"}


def test_interfaces_that_the_cni_left_in_our_network_are_found_without_our_tag(account: FakeAccount) -> None:
    account.ec2.interfaces["eni-7"] = ("vpc-1", "available", {"node.k8s.amazonaws.com/instance_id": "i-1"})
    assert finding_of(account, "leftover network interfaces").level == "ok"

    account.ec2.networks["vpc-1"] = TAGS
    assert "eni-7" in finding_of(account, "leftover network interfaces").message


def test_a_built_environment_has_no_leftovers(account: FakeAccount) -> None:
    account.efs.file_systems["fs-1"] = TAGS
    account.eks.version = "1.35"

    finding = finding_of(account, "leftover file systems")

    assert (finding.level, finding.message) == ("ok", "spotmpi-mine is built: tagged resources are in use")


def test_persistent_storage_is_no_leftover_of_its_own_stack(account: FakeAccount) -> None:
    stack("config:\n  aws:region: us-east-1\n  spotmpi:zone: us-east-1a\n  spotmpi:kind: data\n")

    assert not [finding for finding in doctor("mine", account, tool_output) if finding.check.startswith("leftover")]
