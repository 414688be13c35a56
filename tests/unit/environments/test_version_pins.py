"""`spotmpi up` writes into the stack's file what EKS has moved by itself, before Pulumi would take it back."""

from __future__ import annotations

import pytest
import yaml

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.stack_file import read_stack
from spotmpi.environments.up import UpOptions, up
from spotmpi.environments.version_pins import follow
from tests.cloud.eks_account import Eks, node_group
from tests.cloud.environment_life import Life
from tests.cloud.upgraded_environment import NEW, OLD, STACK

HELD = STACK.replace("      max: 2\n", f'      max: 2\n      ami_release: "{OLD}"\n')


@pytest.fixture
def eks(life: Life) -> Eks:
    made = Eks(groups={"g4dn-1": node_group("g4dn", OLD), "system-1": node_group("system", OLD)})
    made.script(life.account)
    return made


def followed(life: Life, text: str) -> str:
    """The stack's file after it has followed."""
    path = life.folder / "stacks" / "Pulumi.lab.yaml"
    path.write_text(text)
    follow(read_stack("lab"), life.hands.aws, life.said.append)
    return path.read_text()


@pytest.mark.parametrize("text", [STACK, HELD])
def test_a_file_that_says_what_runs_is_left_as_it_is(life: Life, eks: Eks, text: str) -> None:
    assert followed(life, text) == text and life.said == []


def test_nodes_that_a_new_launch_template_took_to_a_newer_release_are_followed(life: Life, eks: Eks) -> None:
    eks.groups = {"a": node_group("g4dn", NEW), "system": node_group("system", NEW)}
    assert followed(life, HELD) == HELD.replace(OLD, NEW)
    assert life.said == [f"stacks/Pulumi.lab.yaml now says what runs: AMI release {NEW} on g4dn"]


def test_a_release_that_the_file_is_ahead_of_stays_wanted(life: Life, eks: Eks) -> None:
    ahead = HELD.replace(OLD, "1.35.4-20261110")
    assert followed(life, ahead) == ahead


def test_a_control_plane_that_eks_upgraded_is_followed_and_one_that_is_to_be_upgraded_is_not(
    life: Life, eks: Eks
) -> None:
    eks.version = "1.36"
    assert followed(life, STACK) == STACK.replace('"1.35"', '"1.36"')
    assert life.said == ["stacks/Pulumi.lab.yaml now says what runs: Kubernetes 1.36"]
    wanted = STACK.replace('"1.35"', '"1.37"')
    assert followed(life, wanted) == wanted


def test_a_file_without_a_version_gets_the_one_that_runs_so_that_a_new_default_upgrades_nothing(
    life: Life, eks: Eks
) -> None:
    text = STACK.replace('  spotmpi:cluster:\n    version: "1.35"\n', "")
    assert yaml.safe_load(followed(life, text))["config"]["spotmpi:cluster"] == {"version": "1.35"}


def test_up_follows_before_it_asks_pulumi_and_leaves_what_is_not_built(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    assert read_stack("lab").kubernetes is None
    Eks().script(life.account)
    up("lab", life.hands, UpOptions(images=False))
    assert read_stack("lab").kubernetes == "1.35"


def test_an_account_that_can_not_be_asked_is_told(life: Life, eks: Eks) -> None:
    life.account.refuse("DescribeCluster", "AccessDeniedException")
    with pytest.raises(SpotmpiError, match="eks:DescribeCluster in us-east-1 is not permitted"):
        followed(life, STACK)
