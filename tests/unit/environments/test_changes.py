"""What an update would lose, read from its preview: refused, or asked with its name, and never done silently."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments.changes import find_losses, read_steps
from spotmpi.environments.up import NotConfirmed, UpOptions, up
from spotmpi.environments.upgrade import UpgradeOptions, upgrade
from spotmpi.runs.reader import RunState
from tests.cloud.fake_environment import GROUP_TAGS, FakeEnvironment
from tests.cloud.upgrade_scenario import UpgradeScenario
from tests.command_line import CommandLine

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
FILE_SYSTEM = "aws:efs/fileSystem:FileSystem"
SUBNET = "aws:ec2/subnet:Subnet"
RUNNING = {"eks-g4dn": 3, "eks-g4dn-2": 10, "eks-system": 2}
UP = "up --yes --skip-preview @lab"


def step(op: str, type: str, name: str = "it", **more: Any) -> dict[str, Any]:
    """The metadata of one step, as the engine's event log has it."""
    old = {"id": more.pop("id", name), "inputs": {}, "outputs": more.pop("old", {})}
    new = {"inputs": more.pop("new", {})} if op != "delete" else None
    return {"op": op, "urn": f"urn:pulumi:lab::spotmpi::{type}::{name}", "type": type, "old": old, "new": new, **more}


def node_group(op: str, name: str = "g4dn", **more: Any) -> dict[str, Any]:
    role = {"spotmpi.dev/role": "system"} if name == "system" else {"spotmpi.dev/group": name.removesuffix("-2")}
    old = {"labels": role, "resources": [{"autoscalingGroups": [{"name": f"eks-{name}"}]}]}
    return step(op, NODE_GROUP, name, old=old, **more)


def lost(tmp_path: Path, *steps: dict[str, Any]) -> str:
    log = tmp_path / "events"
    events = [{"preludeEvent": {}}, *({"resourcePreEvent": {"metadata": each}} for each in steps), {"summaryEvent": {}}]
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    losses = find_losses(read_steps(log), lambda: RUNNING)
    return "; ".join(losses.impossible) or str(losses)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([node_group("create-replacement"), node_group("replace", keys=["instanceTypes"])], "3 running nodes of g4dn"),
        ([node_group("delete"), node_group("delete", "g4dn-2")], "13 running nodes of g4dn"),
        ([node_group("update", diffs=["launchTemplate"])], "3 running nodes of g4dn"),
        ([node_group("update", diffs=["releaseVersion", "version"])], "3 running nodes of g4dn"),
        ([node_group("update", diffs=["labels"])], ""),
        ([node_group("create"), node_group("same")], ""),
        ([node_group("delete", "idle")], ""),
        ([node_group("replace", "system")], "2 system nodes, one after the other"),
        # A zone that goes takes its nodes and its subnet along; a subnet that is replaced would take nodes that stay.
        ([node_group("delete"), step("delete", SUBNET)], "3 running nodes of g4dn"),
        ([step("replace", SUBNET, id="subnet-1", keys=["cidrBlock"])], "replace subnet subnet-1 (cidrBlock)"),
        ([step("delete", FILE_SYSTEM, id="fs-1")], "file system fs-1 with all data on it"),
        ([step("delete-replaced", FILE_SYSTEM, id="fs-1")], "file system fs-1 with all data on it"),
        (
            [step("delete", "aws:ecr/repository:Repository", id="spotmpi-lab/mine")],
            "image repository spotmpi-lab/mine with its images",
        ),
        (
            [step("replace", "kubernetes:core/v1:PersistentVolume"), step("delete", "aws:efs/mountTarget:MountTarget")],
            "the volume of the runs, the mount of the runs' storage",
        ),
        (
            [step("replace", "kubernetes:helm.sh/v3:Release", old={"name": "jobset"})],
            "jobset, and with it all runs",
        ),
        ([step("delete", "kubernetes:helm.sh/v3:Release", old={"name": "dcgm-exporter"})], ""),
        (
            [step("replace", "aws:eks/cluster:Cluster", id="spotmpi-lab", keys=["encryptionConfig"])],
            "replace cluster spotmpi-lab (encryptionConfig)",
        ),
        ([step("delete", "aws:ec2/vpc:Vpc", id="vpc-1")], "delete network vpc-1"),
        (
            [step("update", "aws:eks/cluster:Cluster", old={"version": "1.35"}, new={"version": "1.34"})],
            "take Kubernetes from 1.35 to 1.34, and EKS only goes to 1.36",
        ),
        ([step("update", "aws:eks/cluster:Cluster", old={"version": "1.35"}, new={"version": "1.36"})], ""),
        ([step("update", "aws:eks/cluster:Cluster", old={"version": "1.35"}, new={"version": "1.35"})], ""),
    ],
)
def test_losses_are_read_from_the_steps_of_a_preview(
    tmp_path: Path, steps: list[dict[str, Any]], expected: str
) -> None:
    assert lost(tmp_path, *steps) == expected


def test_without_an_event_log_nothing_is_updated(tmp_path: Path) -> None:
    with pytest.raises(SpotmpiError, match="this Pulumi wrote no event log, so what an update would lose is unknown"):
        read_steps(tmp_path / "none")


@pytest.fixture
def built(live: FakeEnvironment) -> FakeEnvironment:
    """A built environment with three running nodes of g4dn."""
    live.account.autoscaling.add("eks-g4dn", GROUP_TAGS, most=4, nodes=3)
    return live


def announce(lab: FakeEnvironment, *steps: dict[str, Any]) -> None:
    (lab.folder / "steps").write_text(json.dumps(steps))


@pytest.mark.parametrize("op", ["delete", "replace", "update"])
def test_running_nodes_are_not_taken_from_live_runs_unless_that_is_requested(built: FakeEnvironment, op: str) -> None:
    announce(built, node_group(op, diffs=["launchTemplate"]))
    built.runs = [RunState("a-1", "", "a", "running"), RunState("b-1", "", "b", "succeeded")]
    with pytest.raises(SpotmpiError) as refused:
        built.up(images=False)
    remedy = "wait for the live runs or stop them, or repeat with `--replace-nodes` to interrupt them"
    assert str(refused.value) == f"lab was not changed: the update would end 3 running nodes of g4dn: {remedy}: a-1"
    assert UP not in built.pulumi_commands() and built.actions == []

    built.up(images=False, replace_nodes=True)
    assert built.actions == ["Build lab as shown, and lose 3 running nodes of g4dn?"]
    assert f"replacing nodes: {UP}" in built.pulumi_commands()


def test_nodes_without_runs_are_replaced_after_a_question_that_names_them(built: FakeEnvironment) -> None:
    announce(built, node_group("replace"))
    built.confirmations = [False]
    with pytest.raises(NotConfirmed, match="lab was not changed"):
        built.up(images=False)
    assert built.actions == ["Build lab as shown, and lose 3 running nodes of g4dn?"]
    assert UP not in "".join(built.pulumi_commands())


def test_nodes_and_runs_that_start_while_the_question_is_open_are_not_taken(built: FakeEnvironment) -> None:
    """Pulumi deletes a node group with whatever nodes it has by then, and no hook of the program sees that."""
    announce(built, node_group("delete"))
    groups = built.account.autoscaling.groups

    def later(start: Callable[[], None]) -> Callable[[str], bool]:
        def confirm(question: str) -> bool:
            built.actions.append(question)
            start()
            return True

        return confirm

    groups["eks-g4dn"]["DesiredCapacity"], groups["eks-g4dn"]["Instances"] = 0, []
    grow = later(lambda: groups["eks-g4dn"].update(DesiredCapacity=2))
    with pytest.raises(SpotmpiError, match="nodes of g4dn, which it would end, have started since its preview: repeat"):
        up("lab", replace(built.dependencies, confirm=grow), UpOptions(images=False))
    assert built.actions == ["Build lab as shown?"] and UP not in "".join(built.pulumi_commands())

    submit = later(lambda: built.runs.append(RunState("a-1", "", "a", "running")))
    with pytest.raises(SpotmpiError, match=r"would end 2 running nodes of g4dn: wait for the live runs .*a-1"):
        up("lab", replace(built.dependencies, confirm=submit), UpOptions(images=False))
    assert UP not in "".join(built.pulumi_commands())


def test_a_plain_update_does_not_allow_the_program_to_replace_nodes(built: FakeEnvironment) -> None:
    """Nodes can start after the preview."""
    announce(built, node_group("delete", "idle"))
    built.up(images=False)
    assert built.actions == ["Build lab as shown?"] and UP in built.pulumi_commands()


def test_data_is_deleted_only_with_the_name_of_the_environment(built: FakeEnvironment, command: CommandLine) -> None:
    announce(built, step("delete", FILE_SYSTEM, id="fs-1"))
    code, _, errors = command("up", "lab", "--no-images", "--yes")
    assert code == 1 and built.actions == [] and UP not in built.pulumi_commands()
    assert "the update would delete file system fs-1 with all data on it" in errors
    assert "repeat with `--delete-data spotmpi-lab`" in errors
    with pytest.raises(InputError, match="must be the environment's name, spotmpi-lab, to delete its data"):
        built.up(images=False, delete_data="lab")

    code, _, _ = command("up", "lab", "--no-images", "--delete-data", "spotmpi-lab")
    assert code == 0 and UP in built.pulumi_commands()
    assert built.actions == ["Build lab as shown, and lose file system fs-1 with all data on it?"]
    assert not any("recovery point" in line for line in built.output)


def test_backups_of_data_that_an_update_deletes_are_named_before_and_afterwards(built: FakeEnvironment) -> None:
    announce(built, step("replace", FILE_SYSTEM, id="fs-1"))
    built.account.backup.back_up("fs-1", "spotmpi-lab", days=3)
    built.up(images=False, delete_data="spotmpi-lab")
    stays = "except 3 recovery points in AWS Backup, billed by the GB until they expire"
    assert built.actions == [f"Build lab as shown, and lose file system fs-1 with all data on it {stays}?"]
    (line,) = (each for each in built.output if "recovery points of fs-1" in each)
    assert line.startswith(
        "not deleted, and billed by the GB until they expire: 3 recovery points of fs-1 in AWS Backup"
    )


def test_the_volume_of_live_runs_is_not_replaced_whatever_the_options(built: FakeEnvironment) -> None:
    announce(built, step("replace", "kubernetes:core/v1:PersistentVolumeClaim"))
    built.runs = [RunState("a-1", "", "a", "running")]
    with pytest.raises(SpotmpiError, match="would replace the volume of the runs: stop the live runs first: a-1"):
        built.up(images=False, replace_nodes=True, delete_data="spotmpi-lab")
    assert UP not in built.pulumi_commands()


def test_the_cluster_is_never_replaced(built: FakeEnvironment) -> None:
    announce(built, step("replace", "aws:eks/cluster:Cluster", id="spotmpi-lab", keys=["encryptionConfig"]))
    with pytest.raises(SpotmpiError, match=r"would replace cluster spotmpi-lab \(encryptionConfig\): undo the change"):
        built.up(images=False, replace_nodes=True, delete_data="spotmpi-lab")
    assert UP not in built.pulumi_commands()


def test_an_upgrade_applies_no_other_change_that_loses_something(lab: FakeEnvironment) -> None:
    scenario = UpgradeScenario(lab)
    announce(lab, step("delete", FILE_SYSTEM, id="fs-1"), node_group("update", diffs=["version"]))
    with pytest.raises(SpotmpiError, match="has other changes, which would lose file system fs-1 with all data on it"):
        upgrade("lab", lab.dependencies, UpgradeOptions(), lambda plan: None)
    assert scenario.update_count == 0
