"""`spotmpi upgrade` with a fake Pulumi; tests/engine has it with the real one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments.upgrade import Change, UpgradeOptions, UpgradePlan, upgrade
from tests.cloud.account.eks import EXTENDED, node_group
from tests.cloud.cluster.objects import node, pod_on
from tests.cloud.fake_environment import FakeEnvironment
from tests.cloud.upgrade_scenario import NEW, OLD, STACK, UpgradeScenario
from tests.command_line import CommandLine

CONTROL_PLANE = "Upgrade control plane and add-ons of lab as shown?"
NODES = "Upgrade nodes of g4dn, system of lab as shown?"


BUSY = [node("a"), pod_on("a", "p", **{"spotmpi.dev/run": "train-1"})]


@pytest.fixture
def scenario(lab: FakeEnvironment) -> UpgradeScenario:
    return UpgradeScenario(lab)


def changes(plan: UpgradePlan) -> dict[str, tuple[str, str]]:
    return {each.name: (each.now, each.then) for each in (plan.control_plane, *plan.addons, *plan.node_groups)}


def test_control_plane_and_add_ons_come_before_nodes_each_after_a_confirmation(scenario: UpgradeScenario) -> None:
    plan = scenario()

    assert changes(plan) == {
        "control plane": ("1.35", "1.36"),
        "coredns": ("v1.34.1-eksbuild.2", "v1.36.1-eksbuild.2"),
        "kube-proxy": ("v1.35.1-eksbuild.2", "v1.36.1-eksbuild.2"),
        "g4dn": (OLD, NEW),
        "system": (OLD, NEW),
    }
    assert scenario.lab.actions == [CONTROL_PLANE, NODES]
    commands = [re.sub(r"/\S+/", "", line) for line in scenario.lab.pulumi_commands()]
    previewed = "preview --expect-no-changes --refresh --config-file Pulumi.lab.yaml @lab"
    updated = "up --yes --skip-preview --refresh @lab"
    assert commands == [previewed, updated, f"replacing nodes: {previewed}", f"replacing nodes: {updated}"]
    scenario.follow()
    assert scenario.eks.version == "1.36" and scenario.eks.addons["coredns"] == "v1.36.1-eksbuild.2"
    assert {group["releaseVersion"] for group in scenario.eks.groups.values()} == {NEW}


@pytest.mark.parametrize("ami_type", ["AL2023_ARM_64_STANDARD", "AL2023_ARM_64_NVIDIA"])
def test_arm_nodes_get_the_newest_release_of_their_own_image(scenario: UpgradeScenario, ami_type: str) -> None:
    scenario.eks.groups["spotmpi-lab-g4dn-1234567"]["amiType"] = ami_type
    asked: list[str] = []

    def answer(region: str, request: Any) -> Any:
        asked.append(request["Name"])
        return scenario.lab.account.ssm.get_parameter(region, request)

    scenario.lab.account.answers["GetParameter"] = answer
    assert changes(scenario(dry_run=True))["g4dn"] == (OLD, NEW)
    kind = ami_type.removeprefix("AL2023_ARM_64_").lower()
    assert f"/aws/service/eks/optimized-ami/1.36/amazon-linux-2023/arm64/{kind}/recommended/release_version" in asked


def test_the_stack_file_gets_the_versions_and_keeps_its_comments(scenario: UpgradeScenario) -> None:
    scenario()
    text = scenario.path.read_text()
    assert "# The lab." in text and "# beside the data" in text and "# two of them" in text
    versions = dict.fromkeys(("coredns", "kube-proxy"), "v1.36.1-eksbuild.2")
    cluster = {"version": "1.36", "addon_versions": versions, "system": {"ami_release": NEW}}
    assert scenario.config["spotmpi:cluster"] == cluster
    assert scenario.config["spotmpi:groups"][0]["ami_release"] == NEW


def test_the_nodes_keep_their_release_while_the_control_plane_is_upgraded(scenario: UpgradeScenario) -> None:
    scenario(nodes=False)
    assert scenario.lab.actions == [CONTROL_PLANE]
    assert scenario.config["spotmpi:cluster"]["version"] == "1.36"
    assert scenario.config["spotmpi:cluster"]["system"]["ami_release"] == OLD
    assert scenario.config["spotmpi:groups"][0]["ami_release"] == OLD


def test_an_environment_that_is_up_to_date_needs_no_confirmation_and_no_change(scenario: UpgradeScenario) -> None:
    scenario()
    scenario.lab.forget()
    del scenario.eks.offered["1.36"]
    before = scenario.path.read_bytes()

    plan = scenario()

    assert not plan.changes_cluster and plan.replaced_groups == ()
    assert scenario.lab.actions == [] and scenario.lab.pulumi_commands() == [] and scenario.path.read_bytes() == before


def test_a_dry_run_previews_both_steps_and_leaves_the_file_and_the_environment(scenario: UpgradeScenario) -> None:
    plan = scenario(dry_run=True)
    assert plan.control_plane.then == "1.36" and plan.replaced_groups == ("g4dn", "system")
    commands = scenario.lab.pulumi_commands()
    assert [line.removeprefix("replacing nodes: ").split()[0] for line in commands] == ["preview", "preview"]
    assert all("--refresh --config-file" in line for line in commands)
    assert scenario.lab.actions == [] and scenario.path.read_text() == STACK


@pytest.mark.parametrize(
    ("confirmations", "part"), [([False], "control plane and add-ons"), ([True, False], "nodes of g4dn, system")]
)
def test_a_declined_confirmation_leaves_its_part_unchanged(
    scenario: UpgradeScenario, confirmations: list[bool], part: str
) -> None:
    first = len(confirmations) == 1
    scenario.lab.confirmations = list(confirmations)
    with pytest.raises(SpotmpiError, match=f"{part} of lab were not changed"):
        scenario()
    assert (scenario.path.read_text() == STACK) == first
    assert scenario.update_count == (0 if first else 1)


def test_nodes_with_runs_are_not_replaced_and_the_message_has_the_alternatives(scenario: UpgradeScenario) -> None:
    scenario.lab.cluster.put(*BUSY)
    with pytest.raises(SpotmpiError) as refused:
        scenario()
    assert str(refused.value) == (
        "replacing nodes would interrupt train-1 on g4dn: `spotmpi upgrade lab --no-nodes` upgrades control plane and "
        "add-ons now, `spotmpi upgrade lab --to 1.36` replaces the nodes when the runs have ended"
    )
    assert scenario.lab.actions == [] and scenario.lab.pulumi_commands() == [] and scenario.path.read_text() == STACK

    scenario(nodes=False)
    assert scenario.lab.actions == [CONTROL_PLANE]
    with pytest.raises(SpotmpiError, match=r"interrupt train-1 on g4dn: `spotmpi upgrade lab --to 1\.36` replaces"):
        scenario()

    scenario.lab.cluster.put(pod_on("a", "p", phase="Succeeded", **{"spotmpi.dev/run": "train-1"}))
    scenario()
    assert scenario.config["spotmpi:groups"][0]["ami_release"] == NEW


def test_a_run_that_started_during_the_control_plane_upgrade_keeps_its_nodes(scenario: UpgradeScenario) -> None:
    def agree(question: str) -> bool:
        scenario.lab.cluster.put(*BUSY)
        return True

    scenario.lab.confirm = agree  # type: ignore[method-assign]
    with pytest.raises(SpotmpiError, match="interrupt train-1 on g4dn"):
        scenario()
    assert scenario.update_count == 1 and scenario.config["spotmpi:cluster"]["version"] == "1.36"
    assert scenario.config["spotmpi:groups"][0]["ami_release"] == OLD


def test_a_run_that_started_while_the_question_was_open_keeps_its_nodes(scenario: UpgradeScenario) -> None:
    def agree(question: str) -> bool:
        if question != CONTROL_PLANE:
            scenario.lab.cluster.put(*BUSY)
        return True

    scenario.lab.confirm = agree  # type: ignore[method-assign]
    with pytest.raises(SpotmpiError, match="interrupt train-1 on g4dn"):
        scenario()
    assert scenario.update_count == 1 and scenario.config["spotmpi:groups"][0]["ami_release"] == OLD


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("1.37", "EKS upgrades one minor version at a time: from 1.35 to 1.36 first"),
        ("1.38", r"EKS offers 1\.33, 1\.34, 1\.35, 1\.36, 1\.37 in us-east-1"),
        ("1.34", "the control plane runs 1.35; EKS can't downgrade it"),
        ("latest", "must be a Kubernetes version such as 1.36"),
    ],
)
def test_a_version_that_eks_would_refuse_is_refused_before_anything(
    scenario: UpgradeScenario, to: str, message: str
) -> None:
    scenario.eks.offered["1.37"] = scenario.eks.offered["1.36"]
    with pytest.raises(InputError, match=message):
        scenario(to=to)
    assert scenario.shown == [] and scenario.lab.pulumi_commands() == []


def test_without_a_newer_version_on_offer_the_control_plane_stays(scenario: UpgradeScenario) -> None:
    del scenario.eks.offered["1.36"]
    with pytest.raises(InputError, match=r"EKS offers 1\.33, 1\.34, 1\.35 in us-east-1"):
        scenario(to="1.36")
    assert scenario().control_plane.then == "1.35"


def test_a_version_without_standard_support_is_used_only_if_requested(scenario: UpgradeScenario) -> None:
    scenario.eks.offered["1.36"] = (EXTENDED, scenario.eks.offered["1.36"][1])
    assert scenario(dry_run=True).control_plane.then == "1.35"
    assert scenario(dry_run=True, to="1.36").control_plane.then == "1.36"


@pytest.mark.parametrize("known", [True, False])
def test_a_version_whose_standard_support_has_ended_is_left_one_version_at_a_time(
    scenario: UpgradeScenario, known: bool
) -> None:
    """As from 1.32 in November 2026: 1.33, which EKS requires next, is no longer in standard support either."""
    scenario.eks.offered["1.36"] = (EXTENDED, scenario.eks.offered["1.36"][1])
    ends = scenario.eks.offered.pop("1.35")[1]
    if known:
        scenario.eks.offered["1.35"] = (EXTENDED, ends)
    assert scenario(dry_run=True).control_plane.then == "1.36"


def test_nodes_that_are_behind_come_before_the_next_control_plane(scenario: UpgradeScenario) -> None:
    scenario.eks.offered["1.37"] = scenario.eks.offered["1.36"]
    scenario.eks.addon_versions["1.37"] = scenario.eks.addon_versions["1.36"]
    scenario(nodes=False)
    with pytest.raises(SpotmpiError) as refused:
        scenario(to="1.37")
    behind = "spotmpi-lab-g4dn-1234567, spotmpi-lab-system-1234567"
    assert str(refused.value) == (
        "EKS upgrades a control plane only when all nodes have its version, 1.36; "
        f"{behind} are older: `spotmpi upgrade lab --to 1.36` replaces them first"
    )
    assert scenario().control_plane.then == "1.36"
    assert scenario().control_plane.then == "1.37"


def test_unknown_offered_versions_are_reported_and_one_can_be_requested(scenario: UpgradeScenario) -> None:
    scenario.lab.account.refuse("DescribeClusterVersions", "AccessDeniedException")
    plan = scenario(dry_run=True)
    assert plan.control_plane.then == "1.35"
    assert "eks:DescribeClusterVersions in us-east-1 is not permitted" in plan.unknown
    assert scenario(dry_run=True, to="1.36").control_plane.then == "1.36"


def test_an_add_on_newer_than_the_default_and_compatible_stays(scenario: UpgradeScenario) -> None:
    scenario.eks.addons["coredns"] = "v1.36.9-eksbuild.1"
    assert changes(scenario(dry_run=True))["coredns"] == ("v1.36.9-eksbuild.1", "v1.36.9-eksbuild.1")


def test_add_ons_and_node_groups_of_others_are_not_changed(scenario: UpgradeScenario) -> None:
    scenario.eks.addons["theirs"] = "v1.0.0"
    scenario.eks.foreign = {"theirs"}
    scenario.eks.groups["theirs"] = {**node_group("x", OLD, "CUSTOM"), "labels": {}}
    plan = scenario(dry_run=True)
    assert not {"theirs", "x"} & set(changes(plan))


def test_a_group_of_several_eks_node_groups_is_upgraded_as_one(scenario: UpgradeScenario) -> None:
    scenario.eks.groups["spotmpi-lab-g4dn-2-1234567"] = node_group("g4dn", "1.35.4-20261110")
    plan = scenario(dry_run=True, to="1.35")
    assert changes(plan)["g4dn"] == (OLD, "1.35.4-20261110") and plan.current_releases["g4dn"] == "1.35.4-20261110"


def test_an_update_in_progress_is_an_error(scenario: UpgradeScenario) -> None:
    message = r"EKS is still updating spotmpi-lab.*: wait until all are ACTIVE"
    scenario.eks.status = "UPDATING"
    with pytest.raises(SpotmpiError, match=message):
        scenario()
    scenario.eks.status = "ACTIVE"
    scenario.eks.groups["spotmpi-lab-g4dn-1234567"]["status"] = "UPDATING"
    with pytest.raises(SpotmpiError, match=message):
        scenario()


def test_an_upgrade_that_was_interrupted_continues_with_the_same_command(scenario: UpgradeScenario) -> None:
    (scenario.lab.folder / "up.failure").write_text("the network went away")
    with pytest.raises(SpotmpiError, match="the network went away"):
        scenario()
    assert scenario.config["spotmpi:cluster"]["version"] == "1.36"
    scenario()
    scenario.follow()
    assert scenario.eks.version == "1.36" and scenario.eks.groups["spotmpi-lab-g4dn-1234567"]["releaseVersion"] == NEW


def test_a_control_plane_that_eks_upgraded_itself_is_followed(scenario: UpgradeScenario) -> None:
    scenario.lab.account.before_answer = lambda: None
    scenario.eks.version = "1.36"
    plan = scenario()
    assert plan.control_plane == Change("control plane", "1.36", "1.36")
    assert scenario.config["spotmpi:cluster"]["version"] == "1.36"


def test_an_environment_that_is_not_built_or_has_no_versions_is_refused(lab: FakeEnvironment) -> None:
    with pytest.raises(InputError, match="not built: run `spotmpi up lab`"):
        upgrade("lab", lab.dependencies, UpgradeOptions(), lambda plan: None)
    lab.write_stack("  spotmpi:kind: data\n", "lab-data")
    with pytest.raises(InputError, match="persistent storage has no versions"):
        upgrade("lab-data", lab.dependencies, UpgradeOptions(), lambda plan: None)
    lab.write_stack("  spotmpi:kind: account\n", "account")
    with pytest.raises(InputError, match="the roles of CI have no versions"):
        upgrade("account", lab.dependencies, UpgradeOptions(), lambda plan: None)


def test_the_command_shows_a_table_and_ends_with_what_to_commit(
    scenario: UpgradeScenario, command: CommandLine
) -> None:
    code, output, errors = command("upgrade", "lab", "--yes")
    assert (code, errors) == (0, "")
    rows = [" ".join(line.split()) for line in output.splitlines()]
    assert rows[:3] == [
        "PART NOW THEN STANDARD SUPPORT ENDS",
        "control plane 1.35 1.36 2027-03-27, then 2027-08-02",
        "add-on coredns v1.34.1-eksbuild.2 v1.36.1-eksbuild.2",
    ]
    assert rows[-1] == "spotmpi-lab is upgraded; commit stacks/Pulumi.lab.yaml, which has the new versions"
    code, output, _ = command("upgrade", "lab", "--yes")
    assert code == 0 and output.splitlines()[-1] == "spotmpi-lab: nothing to upgrade"


def test_the_command_prints_one_json_object(scenario: UpgradeScenario, command: CommandLine) -> None:
    code, output, _ = command("upgrade", "lab", "--yes", "--json", "--dry-run")
    report = json.loads(output)
    assert code == 0 and report["control_plane"] == {"now": "1.35", "then": "1.36"} and not report["changed"]
    assert report["standard_support_ends"]["1.35"] == "2027-03-27" and report["unknown"] is None
    assert {"name": "g4dn", "now": OLD, "then": NEW} in report["node_groups"]
