"""What a former environment left, as `spotmpi doctor` finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spotmpi.environments.doctor import doctor
from tests.cloud.scripted_account import ScriptedAccount
from tests.unit.environments.doctor.unbuilt import FILE_SYSTEM, finding_of, stack, tool_output

LEFT: dict[str, tuple[str, Any, str]] = {
    "file systems": ("DescribeFileSystems", {"FileSystems": [FILE_SYSTEM]}, "fs-1"),
    "mount targets": ("DescribeFileSystems", {"FileSystems": [FILE_SYSTEM]}, "fsmt-1"),
    "network interfaces": (
        "DescribeNetworkInterfaces",
        {"NetworkInterfaces": [{"NetworkInterfaceId": "eni-1"}]},
        "eni-1",
    ),
    "volumes": ("DescribeVolumes", {"Volumes": [{"VolumeId": "vol-1"}]}, "vol-1"),
    "log groups": ("DescribeLogGroups", {"logGroups": [{"logGroupName": "/aws/eks/spotmpi-mine/cluster"}]}, "cluster"),
}


@pytest.mark.parametrize("what", LEFT)
def test_leftovers_of_a_former_environment_come_with_a_command(account: ScriptedAccount, what: str) -> None:
    operation, answer, message = LEFT[what]
    account.answers[operation] = lambda region, request: answer

    finding = finding_of(account, f"leftover {what}")

    assert finding.level == "warning" and "1 of a former spotmpi-mine" in finding.message and message in finding.message
    assert message in finding.command and finding.command.endswith("--region us-east-1")


def test_resources_of_others_are_no_leftovers(account: ScriptedAccount) -> None:
    other = {"FileSystemId": "fs-2", "Tags": [{"Key": "spotmpi:environment", "Value": "spotmpi-mine-data"}]}
    account.answers["DescribeFileSystems"] = lambda region, request: {"FileSystems": [other]}

    doctor("mine", account.aws, tool_output)
    assert finding_of(account, "leftover file systems").level == "ok"

    filters = [request["Filters"][0] for request in account.calls("DescribeNetworkInterfaces")]
    assert all(each["Values"] == ["spotmpi-mine"] for each in filters)
    assert {each["Name"] for each in filters} >= {"tag:spotmpi:environment", "tag:cluster.k8s.amazonaws.com/name"}


def test_interfaces_that_the_cni_left_in_our_network_are_found_without_our_tag(account: ScriptedAccount) -> None:
    def interfaces(region: str, request: Mapping[str, Any]) -> Any:
        filters = {each["Name"]: each["Values"] for each in request["Filters"]}
        ours = filters == {"vpc-id": ["vpc-1"], "tag-key": ["node.k8s.amazonaws.com/instance_id"]}
        return {"NetworkInterfaces": [{"NetworkInterfaceId": "eni-7"}] if ours else []}

    account.answers["DescribeNetworkInterfaces"] = interfaces
    assert finding_of(account, "leftover network interfaces").level == "ok"

    account.answers["DescribeVpcs"] = lambda region, request: {"Vpcs": [{"VpcId": "vpc-1"}]}
    assert "eni-7" in finding_of(account, "leftover network interfaces").message


def test_a_built_environment_has_no_leftovers(account: ScriptedAccount) -> None:
    account.answers["DescribeFileSystems"] = lambda region, request: {"FileSystems": [FILE_SYSTEM]}
    account.answers["DescribeCluster"] = lambda region, request: {"cluster": {"name": request["name"]}}

    finding = finding_of(account, "leftover file systems")

    assert (finding.level, finding.message) == ("ok", "spotmpi-mine is built: tagged resources are in use")


def test_persistent_storage_is_no_leftover_of_its_own_stack(account: ScriptedAccount) -> None:
    stack("config:\n  aws:region: us-east-1\n  spotmpi:zone: us-east-1a\n  spotmpi:kind: data\n")

    assert not [finding for finding in doctor("mine", account.aws, tool_output) if finding.check.startswith("leftover")]
