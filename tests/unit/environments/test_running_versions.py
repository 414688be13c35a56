"""`spotmpi up` writes into the stack's file what EKS has moved by itself, before Pulumi would take it back."""

from __future__ import annotations

import pytest
import yaml

from infra.instance_types import catalog
from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.stack_file import read_stack
from spotmpi.environments.versions import ami_release, pin_running_versions
from tests.cloud.account.eks import Eks, node_group
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.fake_environment import FakeEnvironment
from tests.cloud.upgrade_scenario import NEW, OLD, STACK

PINNED = STACK.replace("      max: 2\n", f'      max: 2\n      ami_release: "{OLD}"\n')


@pytest.fixture
def eks(lab: FakeEnvironment) -> Eks:
    lab.account.eks.version = "1.35"
    lab.account.eks.groups = {"g4dn-1": node_group("g4dn", OLD), "system-1": node_group("system", OLD)}
    return lab.account.eks


def pin(lab: FakeEnvironment, text: str) -> str:
    """The stack's file after its update to the running versions."""
    path = lab.folder / "stacks" / "Pulumi.lab.yaml"
    path.write_text(text)
    pin_running_versions(read_stack("lab"), lab.dependencies.aws, lab.output.append)
    return path.read_text()


@pytest.mark.parametrize("text", [STACK, PINNED])
def test_a_file_with_the_running_versions_is_not_changed(lab: FakeEnvironment, eks: Eks, text: str) -> None:
    assert pin(lab, text) == text and lab.output == []


def test_nodes_that_a_new_launch_template_took_to_a_newer_release_are_followed(lab: FakeEnvironment, eks: Eks) -> None:
    eks.groups = {"a": node_group("g4dn", NEW), "system": node_group("system", NEW)}
    assert pin(lab, PINNED) == PINNED.replace(OLD, NEW)
    assert lab.output == [f"updated stacks/Pulumi.lab.yaml to the running versions: AMI release {NEW} on g4dn"]


def test_a_newer_release_in_the_file_stays(lab: FakeEnvironment, eks: Eks) -> None:
    ahead = PINNED.replace(OLD, "1.35.4-20261110")
    assert pin(lab, ahead) == ahead


def test_a_control_plane_that_eks_upgraded_is_followed_and_a_newer_one_in_the_file_is_not(
    lab: FakeEnvironment, eks: Eks
) -> None:
    eks.version = "1.36"
    assert pin(lab, STACK) == STACK.replace('"1.35"', '"1.36"')
    assert lab.output == ["updated stacks/Pulumi.lab.yaml to the running versions: Kubernetes 1.36"]
    expected = STACK.replace('"1.35"', '"1.37"')
    assert pin(lab, expected) == expected


def test_a_file_without_a_version_gets_the_running_one(lab: FakeEnvironment, eks: Eks) -> None:
    text = STACK.replace('  spotmpi:cluster:\n    version: "1.35"\n', "")
    assert yaml.safe_load(pin(lab, text))["config"]["spotmpi:cluster"] == {"version": "1.35"}


def test_up_pins_running_versions_before_the_preview(lab: FakeEnvironment) -> None:
    lab.up(images=False)
    assert read_stack("lab").kubernetes is None
    lab.account.eks.version = "1.35"
    lab.up(images=False)
    assert read_stack("lab").kubernetes == "1.35"


def test_a_refused_call_is_reported(lab: FakeEnvironment, eks: Eks) -> None:
    lab.account.refuse("DescribeCluster", "AccessDeniedException")
    with pytest.raises(SpotmpiError, match="eks:DescribeCluster in us-east-1 is not permitted"):
        pin(lab, STACK)


def test_the_newest_release_is_known_for_every_ami_type_of_the_table(account: FakeAccount) -> None:
    types = {kind.ami_type for kind in catalog().values()}
    assert len(types) == 4  # with and without GPUs, x86 and Arm
    assert {ami_release(account, "us-east-1", "1.36", each) for each in types} == {account.ssm.releases["1.36"]}
