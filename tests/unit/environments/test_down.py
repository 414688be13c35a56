"""`spotmpi down` with a fake Pulumi; tests/engine has it with the real one."""

from __future__ import annotations

import json

import pytest

from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments.down import down
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.resource_inventory import read_inventory, record_resources
from spotmpi.environments.resource_kinds import RESOURCE_KINDS
from spotmpi.environments.up import NotConfirmed, UpOptions, up
from spotmpi.runs.reader import RunState
from tests.cloud.account.answers import Tags
from tests.cloud.fake_environment import CNI, FakeEnvironment, Killed
from tests.unit.conftest import InProcess


def test_down_stops_runs_removes_nodes_destroys_and_leaves_nothing(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.actions.clear()
    lab.pulumi_commands()
    lab.runs = [RunState("a-1", "", "a", "running"), RunState("b-1", "", "b", "succeeded")]

    assert down("lab", lab.dependencies) == ()

    assert lab.actions[:2] == ["Destroy spotmpi-lab and ALL DATA on its storage?", "stop a-1 on lab"]
    assert lab.actions[2:] == ["wait"] * 5  # for the log group that EKS may make again
    assert (
        lab.account.autoscaling.groups["eks-g4dn"]["MaxSize"] == 0
        and lab.account.autoscaling.groups["eks-g4dn"]["Instances"] == []
    )
    assert lab.pulumi_commands() == ["destroy --yes --skip-preview @lab", "stack rm --yes --preserve-config @lab"]
    assert read_inventory("spotmpi-lab", "us-east-1").ids == {}
    assert down("lab", lab.dependencies) == () and lab.pulumi_commands() == []


def test_down_stops_the_other_runs_if_one_cannot_be_stopped(lab: FakeEnvironment) -> None:
    """The failure is one line, and the runs after it are stopped with a checkpoint too."""
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.runs = [RunState(run, "", "a", "running") for run in ("a-1", "b-1")]
    lab.failures["stop"] = "JobSet a-1 is of another version"
    assert down("lab", lab.dependencies) == ()
    assert "stop b-1 on lab" in lab.actions
    assert "a-1 can't be stopped: JobSet a-1 is of another version" in lab.output


@pytest.mark.parametrize("step", ["Destroy", "stop", "wait", "destroy", "stack rm"])
def test_a_killed_down_continues_and_leaves_nothing(
    lab: FakeEnvironment, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.runs = [RunState("a-1", "", "a", "running")]
    lab.account.autoscaling.slow = 1
    ran = Pulumi.run

    def run(pulumi: Pulumi, stack: str, *words: str) -> None:
        if " ".join(words).startswith(step) and lab.failures.pop(step, ""):
            raise Killed
        ran(pulumi, stack, *words)

    monkeypatch.setattr(Pulumi, "run", run)
    lab.failures[step] = Killed
    with pytest.raises(Killed):
        down("lab", lab.dependencies)
    lab.pulumi_commands()

    assert down("lab", lab.dependencies) == ()

    assert lab.runs == [] and lab.dependencies.pulumi.state("lab") is None
    assert lab.account.autoscaling.groups["eks-g4dn"]["Instances"] == []
    assert lab.pulumi_commands()[-1] == "stack rm --yes --preserve-config @lab"
    assert read_inventory("spotmpi-lab", "us-east-1").ids == {}


def test_a_declined_confirmation_stops_nothing(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.pulumi_commands()
    lab.confirmations = [False]
    with pytest.raises(NotConfirmed):
        down("lab", lab.dependencies)
    assert lab.pulumi_commands() == [] and lab.account.autoscaling.groups["eks-g4dn"]["MaxSize"] == 2


def test_an_interrupted_destroy_is_finished_by_the_next_and_forgets_nothing(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    (lab.folder / "destroy.failure").write_text("DependencyViolation")
    with pytest.raises(SpotmpiError, match="DependencyViolation; the same command continues"):
        down("lab", lab.dependencies)
    (lab.folder / "lab.held").write_text('{"deployment": {"resources": []}}')  # most of it was gone already
    lab.account.logs.groups.add("/aws/eks/spotmpi-lab/late")
    lab.account.kms.keys["key-1"] = "Enabled"

    leftovers = down("lab", lab.dependencies)

    assert [(each.what, each.id) for each in leftovers] == [
        ("log groups", "/aws/eks/spotmpi-lab/late"),
        ("keys", "key-1"),
    ]


def test_interfaces_that_block_a_subnet_are_deleted_and_the_destroy_repeated(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.pulumi_commands()
    lab.account.ec2.interfaces = {
        "eni-leaked": ("vpc-1", "available", CNI),
        "eni-other": ("vpc-9", "available", CNI),
        "eni-mine": ("vpc-1", "available", {}),
    }
    (lab.folder / "destroy.failure").write_text("DependencyViolation")

    assert down("lab", lab.dependencies) == ()

    assert lab.pulumi_commands().count("destroy --yes --skip-preview @lab") == 2
    assert set(lab.account.ec2.interfaces) == {"eni-other", "eni-mine"}


@pytest.mark.parametrize("leaked", [{"eni-leaked": ("vpc-1", "available", CNI)}, {}])
def test_the_security_group_that_eks_left_is_deleted_once_unused(
    lab: FakeEnvironment, leaked: dict[str, tuple[str, str, Tags]]
) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.pulumi_commands()
    lab.account.ec2.interfaces = leaked
    lab.account.ec2.security_groups = {
        "sg-cluster": ("vpc-1", {"aws:eks:cluster-name": "spotmpi-lab"}),
        "sg-mine": ("vpc-1", {}),
        "sg-other": ("vpc-9", {"aws:eks:cluster-name": "spotmpi-lab"}),
    }
    (lab.folder / "destroy.failure").write_text("DependencyViolation")

    assert down("lab", lab.dependencies) == ()

    assert lab.pulumi_commands().count("destroy --yes --skip-preview @lab") == 2
    assert set(lab.account.ec2.security_groups) == {"sg-mine", "sg-other"}
    assert any("security group sg-cluster of EKS; destroying again" in line for line in lab.output)


def leave_one_of_each_kind(lab: FakeEnvironment) -> None:
    """Add to the account leftovers of the environment, resources of others, and deleted ones that AWS still lists."""
    lab.account.efs.file_systems["fs-1"] = {}
    lab.account.efs.mount_targets["fsmt-12345678"] = "fs-of-another-stack"
    lab.account.ec2.volumes["vol-1"] = {}
    lab.account.logs.groups.add("/aws/eks/spotmpi-lab/late")
    lab.account.kms.keys["key-1"] = "Enabled"
    lab.account.ecr.repositories |= {"spotmpi-lab/chainermn", "spotmpi-other/chainermn"}
    lab.account.cloudformation.stacks = {
        "eksctl-spotmpi-lab-cluster": {"alpha.eksctl.io/cluster-name": "spotmpi-lab"},
        "eksctl-spotmpi-lab-two-cluster": {"alpha.eksctl.io/cluster-name": "spotmpi-lab-two"},
        "spotmpi-lab-two": {},
    }
    lab.account.tagging.resources = {
        "arn:aws:elasticloadbalancing:us-east-1:1:loadbalancer/net/x/1": "spotmpi-lab",
        "arn:aws:elasticfilesystem:us-east-1:1:file-system/fs-1": "spotmpi-lab",
        "arn:aws:sns:us-east-1:1:theirs": "spotmpi-other",
    }


def test_one_untagged_resource_of_each_kind_is_found_by_name_or_recorded_id(lab: FakeEnvironment) -> None:
    csi = {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}
    lab.cluster.objects.append({"kind": "PersistentVolume", "metadata": {"name": "pvc-1"}, "spec": {"csi": csi}})
    lab.account.ec2.interfaces = {"eni-1": ("vpc-1", "in-use", CNI)}
    up("lab", lab.dependencies, UpOptions(images=False))
    leave_one_of_each_kind(lab)

    leftovers = down("lab", lab.dependencies)

    ids = {each.what: each.id for each in leftovers}
    assert ids == {
        "CloudFormation stacks": "eksctl-spotmpi-lab-cluster",
        "file systems": "fs-1",
        "mount targets": "fsmt-12345678",
        "network interfaces": "eni-1",
        "volumes": "vol-1",
        "log groups": "/aws/eks/spotmpi-lab/late",
        "keys": "key-1",
        "image repositories": "spotmpi-lab/chainermn",
        "tagged": "arn:aws:elasticloadbalancing:us-east-1:1:loadbalancer/net/x/1",
    }
    assert set(ids) - {"tagged"} == {kind.name for kind in RESOURCE_KINDS}
    assert all(each.id in each.command for each in leftovers if each.what != "tagged")


def test_persistent_storage_stays_unless_its_deletion_names_the_environment(lab: FakeEnvironment) -> None:
    lab.write_stack("  spotmpi:storage: {keep: true}\n")
    lab.write_stack("  spotmpi:kind: data\n", "lab-data")
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.pulumi_commands()
    for wrong_name in ("lab", "yes", ""):
        with pytest.raises(InputError, match="must be the environment's name, spotmpi-lab, to delete its data"):
            down("lab", lab.dependencies, wrong_name)
    with pytest.raises(
        InputError, match="persistent storage: delete it with `spotmpi down lab --delete-data spotmpi-lab`"
    ):
        down("lab-data", lab.dependencies)
    assert lab.pulumi_commands() == []

    assert down("lab", lab.dependencies) == ()
    assert {line.rpartition("@")[2] for line in lab.pulumi_commands()} == {"lab"}
    assert "not deleted, and billed by the GB: the storage spotmpi-lab-data" in lab.output

    assert down("lab", lab.dependencies, "spotmpi-lab") == ()
    assert lab.pulumi_commands() == [
        "state unprotect --all --yes @lab-data",
        "destroy --yes --skip-preview @lab-data",
        "stack rm --yes --preserve-config @lab-data",
    ]
    assert lab.actions[-1] == "Destroy spotmpi-lab and ALL DATA on its storage?"


def test_an_unreachable_cluster_does_not_block_down(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.cluster.refused["PersistentVolume"] = "could not list PersistentVolumes: cannot reach the cluster"

    assert down("lab", lab.dependencies) == ()
    assert any("cannot reach the cluster" in line for line in lab.output)


def test_nodes_that_do_not_terminate_are_reported_and_do_not_block_down(lab: FakeEnvironment) -> None:
    up("lab", lab.dependencies, UpOptions(images=False))
    lab.account.script("UpdateAutoScalingGroup")

    assert down("lab", lab.dependencies) == ()

    assert lab.actions.count("wait") == 90 + 5
    assert "1 nodes are still terminating; they are deleted with their groups" in lab.output


def test_a_damaged_inventory_is_read_as_empty_and_an_unwritable_one_reported(
    lab: FakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = read_inventory("spotmpi-lab", "us-east-1")
    record_resources(record_resources(trace, [("keys", "b")]), [("keys", "a"), ("keys", "b")])
    assert read_inventory("spotmpi-lab", "us-east-1").of("keys") == {"a", "b"}
    (lab.folder / "state" / "environments" / "spotmpi-lab.json").write_text("{")
    assert read_inventory("spotmpi-lab", "us-east-1").ids == {}
    (lab.folder / "file").write_text("")
    monkeypatch.setenv("SPOTMPI_STATE", str(lab.folder / "file"))
    with pytest.raises(SpotmpiError, match="set SPOTMPI_STATE to a writable folder"):
        record_resources(trace, [])


def test_the_commands_print_the_next_command_and_the_leftovers(
    lab: FakeEnvironment, monkeypatch: pytest.MonkeyPatch, in_process: InProcess
) -> None:
    monkeypatch.setattr("spotmpi.cli.environment_commands.open_dependencies", lambda stack, yes: lab.dependencies)

    code, output, _ = in_process("up", "lab", "--no-images")
    assert code == 0 and output.startswith(
        "spotmpi-lab is up in us-east-1a. Next: spotmpi run jobs/examples/digits.toml"
    )
    assert json.loads(in_process("up", "lab", "--no-images", "--json")[1])["environment"]["cluster"] == "spotmpi-lab"
    assert in_process("up", "lab", "--expires", "1m")[0] == 2
    assert in_process("up", "lab", "--data", "set")[0] == in_process("up", "lab", "--data", "set=../x")[0] == 2
    assert in_process("up", "lab", "--no-images", "--data", "https://x/#sha256=0=voc")[0] == 0
    assert lab.actions[-1] == "data https://x/#sha256=0 as voc on lab"
    lab.account.logs.groups.add("/aws/eks/spotmpi-lab/late")
    code, output, _ = in_process("down", "lab")
    assert code == 1 and output.startswith("log groups: /aws/eks/spotmpi-lab/late\n  -> aws logs delete-log-group")
    lab.account.logs.groups.clear()
    assert in_process("down", "lab", "--json")[:2] == (0, "[]\n")
