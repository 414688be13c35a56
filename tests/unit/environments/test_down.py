"""`spotmpi down` with a fake Pulumi; tests/engine has it with the real one."""

from __future__ import annotations

import errno
import json
import os
from collections import defaultdict
from fnmatch import fnmatch

import pytest
import yaml

from spotmpi.aws.eks import Endpoint
from spotmpi.backends.kubernetes.client import kubeconfig_entries
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments.down import down
from spotmpi.environments.iam import policy
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.resource_inventory import read_inventory, record_resources
from spotmpi.environments.up import NotConfirmed, UpOptions, up
from spotmpi.runs.reader import RunState
from tests.cloud.account.answers import ACCOUNT, Tags
from tests.cloud.fake_environment import CNI, FakeEnvironment, Killed
from tests.command_line import CommandLine
from tests.transient_errors import TransientErrors
from tests.unit.core.test_environment import OUTPUTS

PREVIEW = "destroy --preview-only @lab"
STAYS = (
    "not deleted, and billed by the GB: the storage spotmpi-lab-data, which "
    "`spotmpi down lab --delete-data spotmpi-lab` deletes"
)
DESTROY, REMOVE = "destroy --yes --skip-preview @lab", "stack rm --yes --preserve-config @lab"


def test_down_stops_runs_removes_nodes_destroys_and_leaves_nothing(live: FakeEnvironment) -> None:
    live.runs = [RunState("a-1", "", "a", "running"), RunState("b-1", "", "b", "succeeded")]

    assert live.down() == []

    assert live.actions[:2] == ["Destroy spotmpi-lab and ALL DATA on its storage?", "stop a-1 on lab"]
    assert live.actions[2:] == ["wait"] * 5  # for the log group that EKS may make again
    group = live.account.autoscaling.groups["eks-g4dn"]
    assert (group["MaxSize"], group["Instances"]) == (0, [])
    assert live.pulumi_commands() == [PREVIEW, DESTROY, REMOVE]
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).ids == {}
    assert live.down() == [] and live.pulumi_commands() == []


def test_down_goes_on_where_aws_throttles_any_of_its_calls_and_says_how_long_it_waits(live: FakeEnvironment) -> None:
    live.account.requests.clear()
    said: list[str] = []
    pauses = live.account.tell(said.append)
    live.account.throttled = defaultdict(lambda: 2)
    assert live.down() == []
    assert live.account.autoscaling.groups["eks-g4dn"]["MaxSize"] == 0
    called = {name for name, _, _ in live.account.requests}
    assert len(said) == 2 * len(called) > 20 and sum(pauses) == 30.0 * len(called)
    assert "ec2:DescribeVolumes in us-east-1: throttled by AWS; sent again in 20 s" in said


@pytest.mark.parametrize("part", ["lab", "lab-data"])
def test_down_of_a_locked_stack_stops_no_run_and_names_who_holds_the_lock(lab: FakeEnvironment, part: str) -> None:
    lab.up_with_data_stack()
    lab.forget()
    lab.runs = [RunState("a-1", "", "a", "running")]
    (lab.folder / f"{part}.lock").write_text("ann@laptop (pid 7) at 2026-11-27T02:00:00Z")

    with pytest.raises(SpotmpiError) as refused:
        lab.down("spotmpi-lab")

    holder = "ann@laptop (pid 7) at 2026-11-27T02:00:00Z"
    remedy = f"if none is running, `pulumi cancel --yes --stack {part}`"
    assert str(refused.value) == f"stack {part} is locked by another update, of {holder}: {remedy}"
    assert lab.actions == ["Destroy spotmpi-lab and ALL DATA on its storage?"]
    assert lab.account.autoscaling.groups["eks-g4dn"]["MaxSize"] == 2
    assert {line.split(" @")[0] for line in lab.pulumi_commands()} <= {
        "destroy --preview-only",
        "destroy --preview-only --exclude-protected",
    }


def test_a_lock_without_content_is_named_as_damaged(live: FakeEnvironment) -> None:
    """Its time is Go's zero, as in the year 1."""
    (live.folder / "lab.lock").write_text("@ (pid 0) at 0001-01-01T00:00:00Z")
    with pytest.raises(SpotmpiError) as refused:
        live.down()
    remedy = "if no update of it is running, `pulumi cancel --yes --stack lab`"
    assert str(refused.value) == f"a lock of lab is damaged: {remedy}"


def test_down_with_credentials_of_another_account_touches_nothing(live: FakeEnvironment) -> None:
    """It may have an environment of that name in that region."""
    live.runs, live.account.sts.account = [RunState("a-1", "", "a", "running")], "999999999999"
    with pytest.raises(SpotmpiError, match="these credentials belong to account 999999999999, but stack lab is"):
        live.down()
    assert live.actions == ["Destroy spotmpi-lab and ALL DATA on its storage?"] and live.pulumi_commands() == []
    assert live.account.autoscaling.groups["eks-g4dn"]["MaxSize"] == 2


def test_an_environment_that_is_named_like_the_storage_of_another_is_neither_built_nor_deleted_as_that(
    lab: FakeEnvironment,
) -> None:
    lab.write_stack("", "lab-data")
    network = {"type": "aws:ec2/vpc:Vpc", "id": "vpc-2"}
    (lab.folder / "lab-data.held").write_text(json.dumps({"deployment": {"resources": [network]}}))
    lab.write_stack("  spotmpi:storage: {keep: true}\n")
    lab.forget()
    remedy = "`kind: compute`: set `kind` there back to data, or, if it is something else, rename one of the two"
    with pytest.raises(InputError, match=f"its storage is to be in stack lab-data, which has {remedy}"):
        lab.up(images=False)
    with pytest.raises(SpotmpiError, match="stack lab-data is an environment, not the storage of lab: nothing"):
        lab.down(delete_data="spotmpi-lab")
    assert lab.pulumi_commands() == []


@pytest.mark.parametrize("part", ["incomplete", "data"])
def test_down_forgets_no_stack_of_another_account_that_has_no_outputs(live: FakeEnvironment, part: str) -> None:
    """With other credentials Pulumi would find nothing to delete, and remove all from its state."""
    if part == "data":
        live.up_with_data_stack()
        (live.folder / "lab.held").unlink()
    (live.folder / "outputs").write_text("{}")
    live.forget()
    live.account.sts.account = "999999999999"
    stack = "lab-data" if part == "data" else "lab"
    with pytest.raises(SpotmpiError, match=f"account 999999999999, but stack {stack} is built in {ACCOUNT}: use a"):
        live.down(delete_data="spotmpi-lab")
    assert live.pulumi_commands() == []


def test_down_looks_for_leftovers_nowhere_else_than_where_the_environment_is(live: FakeEnvironment) -> None:
    path = live.folder / "stacks" / "Pulumi.lab.yaml"
    path.write_text(path.read_text().replace("us-east-1", "eu-west-1"))
    with pytest.raises(SpotmpiError, match="state has spotmpi-lab in us-east-1, not in eu-west-1: set aws:region back"):
        live.down()
    assert live.pulumi_commands() == []


def test_down_removes_the_cluster_from_the_kubeconfig_and_no_other(live: FakeEnvironment) -> None:
    """Nobody else removes it, and another cluster of that ARN will have another address."""
    arns = [OUTPUTS["cluster_arn"], "arn:aws:eks:us-west-2:123456789012:cluster/spotmpi-lab", "mine"]
    endpoints = [Endpoint(f"https://{number}", "Y2E=", arn) for number, arn in enumerate(arns)]
    path = live.folder / "kubeconfig"
    for each in reversed(endpoints):
        assert kubeconfig_entries.add(each, "training") == path
    own = kubeconfig_entries.own_file(endpoints[0], "training")
    live.account.eks.version = "1.35"
    live.down()
    assert own.exists() and yaml.safe_load(path.read_text())["current-context"] == arns[0]

    live.account.eks.version = ""
    assert live.down() == []

    left = yaml.safe_load(path.read_text())
    for key in ("clusters", "contexts", "users"):
        assert [each["name"] for each in left[key]] == ["mine", arns[1]]
    assert not left["current-context"] and not own.exists() and f"removed the cluster from {path}" in live.output


@pytest.mark.parametrize("place", [("eu-west-1", ACCOUNT), ("us-east-1", "999999999999")], ids=["region", "account"])
def test_an_environment_of_that_name_elsewhere_keeps_its_records(live: FakeEnvironment, place: tuple[str, str]) -> None:
    record_resources(read_inventory("spotmpi-lab", *place), [("keys", "theirs")])
    assert "theirs" not in read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).of("keys")
    assert live.down() == []
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).ids == {}
    assert read_inventory("spotmpi-lab", *place).of("keys") == {"theirs"}


def test_a_broken_kubeconfig_does_not_stop_down(live: FakeEnvironment) -> None:
    (live.folder / "kubeconfig").write_text("a: [")
    assert live.down() == []
    assert any("the kubeconfig can't be cleaned: KUBECONFIG" in line for line in live.output)


def test_down_stops_the_other_runs_if_one_cannot_be_stopped(live: FakeEnvironment) -> None:
    """The failure is one line, and the runs after it are stopped with a checkpoint too."""
    live.runs = [RunState(run, "", "a", "running") for run in ("a-1", "b-1")]
    live.failures["stop"] = "JobSet a-1 is of another version"
    assert live.down() == []
    assert "stop b-1 on lab" in live.actions
    assert "a-1 can't be stopped: JobSet a-1 is of another version" in live.output


@pytest.mark.parametrize("step", ["Destroy", "stop", "wait", "destroy", "stack rm"])
def test_a_killed_down_continues_and_leaves_nothing(
    live: FakeEnvironment, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.runs = [RunState("a-1", "", "a", "running")]
    live.account.autoscaling.slow = 1
    real_run = Pulumi.run

    def run(pulumi: Pulumi, stack: str, *words: str) -> None:
        if " ".join(words).startswith(step) and live.failures.pop(step, ""):
            raise Killed
        real_run(pulumi, stack, *words)

    monkeypatch.setattr(Pulumi, "run", run)
    live.failures[step] = Killed
    with pytest.raises(Killed):
        live.down()
    live.forget()

    assert live.down() == []

    assert live.runs == [] and live.dependencies.pulumi.state("lab") is None
    assert live.account.autoscaling.groups["eks-g4dn"]["Instances"] == []
    assert live.pulumi_commands()[-1] == REMOVE
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).ids == {}


def test_a_declined_confirmation_stops_nothing(live: FakeEnvironment) -> None:
    live.confirmations = [False]
    with pytest.raises(NotConfirmed):
        live.down()
    assert live.pulumi_commands() == [] and live.account.autoscaling.groups["eks-g4dn"]["MaxSize"] == 2


def test_an_interrupted_destroy_is_finished_by_the_next_and_forgets_nothing(live: FakeEnvironment) -> None:
    (live.folder / "destroy.failure").write_text("DependencyViolation")
    with pytest.raises(SpotmpiError, match=r"DependencyViolation: something .*; then the same command continues"):
        live.down()
    (live.folder / "lab.held").write_text('{"deployment": {"resources": []}}')  # most of it was gone already
    live.account.logs.groups.add("/aws/eks/spotmpi-lab/late")
    live.account.kms.keys["key-1"] = "Enabled"

    assert live.down() == [("log groups", "/aws/eks/spotmpi-lab/late"), ("keys", "key-1")]


def test_interfaces_that_block_a_subnet_are_deleted_and_the_destroy_repeated(live: FakeEnvironment) -> None:
    live.account.ec2.interfaces = {
        "eni-leaked": ("vpc-1", "available", CNI),
        "eni-other": ("vpc-9", "available", CNI),
        "eni-mine": ("vpc-1", "available", {}),
    }
    (live.folder / "destroy.failure").write_text("DependencyViolation")

    assert live.down() == []

    assert live.pulumi_commands().count(DESTROY) == 2
    assert set(live.account.ec2.interfaces) == {"eni-other", "eni-mine"}


@pytest.mark.parametrize("leaked", [{"eni-leaked": ("vpc-1", "available", CNI)}, {}])
def test_the_security_group_that_eks_left_is_deleted_once_unused(
    live: FakeEnvironment, leaked: dict[str, tuple[str, str, Tags]]
) -> None:
    live.account.ec2.interfaces = leaked
    live.account.ec2.security_groups = {
        "sg-cluster": ("vpc-1", {"aws:eks:cluster-name": "spotmpi-lab"}),
        "sg-mine": ("vpc-1", {}),
        "sg-other": ("vpc-9", {"aws:eks:cluster-name": "spotmpi-lab"}),
    }
    (live.folder / "destroy.failure").write_text("DependencyViolation")

    assert live.down() == []

    assert live.pulumi_commands().count(DESTROY) == 2
    assert set(live.account.ec2.security_groups) == {"sg-mine", "sg-other"}
    assert any("security group sg-cluster of EKS; destroying again" in line for line in live.output)


def test_roles_of_ci_are_no_environment(lab: FakeEnvironment) -> None:
    lab.write_stack("  spotmpi:kind: account\n", "account")
    with pytest.raises(InputError, match="the roles of CI: `pulumi destroy --stack account`"):
        down("account", lab.dependencies)
    with pytest.raises(InputError, match="the roles of CI, no environment: `pulumi up --stack account`"):
        up("account", lab.dependencies, UpOptions())
    assert lab.pulumi_commands() == []


def test_persistent_storage_stays_unless_its_deletion_names_the_environment(lab: FakeEnvironment) -> None:
    lab.up_with_data_stack()
    lab.forget()
    for wrong_name in ("lab", "yes", ""):
        with pytest.raises(InputError, match="must be the environment's name, spotmpi-lab, to delete its data"):
            lab.down(wrong_name)
    with pytest.raises(
        InputError, match="persistent storage: delete it with `spotmpi down lab --delete-data spotmpi-lab`"
    ):
        down("lab-data", lab.dependencies)
    assert lab.pulumi_commands() == []

    assert lab.down() == []
    assert lab.actions[0] == "Destroy spotmpi-lab?"
    assert {line.rpartition("@")[2] for line in lab.pulumi_commands()} == {"lab"}
    assert STAYS in lab.output

    assert lab.down("spotmpi-lab") == []
    assert lab.pulumi_commands() == [
        "destroy --preview-only --exclude-protected @lab-data",
        *("state unprotect --all --yes @lab-data", f"{DESTROY}-data", f"{REMOVE}-data"),
    ]
    assert lab.actions[-1] == "Destroy spotmpi-lab and ALL DATA on its storage?"

    lab.output.clear()
    assert lab.down() == [] and not any("not deleted" in line for line in lab.output), "nothing is left to be billed"


def test_down_names_the_storage_of_an_environment_whose_file_was_changed_to_keep_it_afterwards(
    live: FakeEnvironment,
) -> None:
    """Its file system is still in its own stack, and goes with it."""
    live.write_stack("  spotmpi:storage: {keep: true}\n")
    live.confirmations = [False]
    with pytest.raises(NotConfirmed):
        live.down()
    assert live.actions == ["Destroy spotmpi-lab and ALL DATA on its storage?"]


def test_down_knows_the_storage_of_an_environment_whose_file_does_not_keep_it_any_more(lab: FakeEnvironment) -> None:
    """It was billed on without a word, also after `--delete-data`."""
    lab.up_with_data_stack()
    lab.write_stack()
    lab.forget()
    assert lab.down() == []
    assert lab.actions[0] == "Destroy spotmpi-lab?"
    assert STAYS in lab.output
    assert lab.down("spotmpi-lab") == []
    assert f"{DESTROY}-data" in lab.pulumi_commands()


def test_down_says_that_storage_stays_that_was_kept_before_the_environment_got_storage_of_its_own(
    lab: FakeEnvironment,
) -> None:
    """It was billed on without a word."""
    lab.up_with_data_stack()
    lab.write_stack()
    (lab.folder / "steps").write_text("[]")
    lab.up(images=False)
    lab.forget()
    assert lab.down() == []
    assert lab.actions[0] == "Destroy spotmpi-lab and ALL DATA on its storage?"
    assert STAYS in lab.output

    lab.up(images=False)
    lab.forget()
    assert lab.down("spotmpi-lab") == []
    assert {DESTROY, f"{DESTROY}-data"} <= set(lab.pulumi_commands())
    assert lab.dependencies.pulumi.state("lab-data") is None


def test_down_asks_for_no_data_that_is_on_a_file_system_of_the_user(lab: FakeEnvironment) -> None:
    lab.write_stack("  spotmpi:storage: {file_system_id: fs-0123456789abcdef0, access_point_id: fsap-1}\n")
    lab.up(images=False)
    lab.forget()
    with pytest.raises(
        InputError, match=r"`storage\.file_system_id`, fs-0123456789abcdef0, is your own, which is never"
    ):
        lab.down("spotmpi-lab")
    assert lab.actions == lab.pulumi_commands() == []
    assert lab.down() == []
    assert lab.actions[0] == "Destroy spotmpi-lab?"


def test_an_unreachable_cluster_does_not_block_down(live: FakeEnvironment) -> None:
    live.cluster.refuse("list", "persistentvolumes", 0)
    assert live.down() == []
    assert any("cannot reach the cluster" in line for line in live.output)


def test_nodes_that_do_not_terminate_are_reported_and_do_not_block_down(live: FakeEnvironment) -> None:
    live.account.script("UpdateAutoScalingGroup")
    assert live.down() == []
    assert live.actions.count("wait") == 90 + 5
    assert "waiting until all nodes have terminated, for at most 900 s" in live.output
    assert "nodes still terminating: 1; they are deleted with their groups" in live.output


def test_groups_that_another_up_opens_while_down_waits_are_closed_again(
    live: FakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` without changes takes no lock, and neither does `down` before it destroys."""
    group, do = live.account.autoscaling.groups["eks-g4dn"], live.do

    def open_once(what: str) -> None:
        if what == "wait" and live.actions.count("wait") == 0:
            group.update(MinSize=1, MaxSize=2, DesiredCapacity=1)
        do(what)

    live.account.autoscaling.slow = 2
    monkeypatch.setattr(live, "do", open_once)
    assert live.down() == []
    assert (group["MinSize"], group["MaxSize"], group["DesiredCapacity"]) == (0, 0, 0)


def test_the_destroy_role_may_make_every_call_of_down(live: FakeEnvironment) -> None:
    live.account.ec2.interfaces["eni-1"] = ("vpc-1", "available", CNI)
    live.account.ec2.security_groups["sg-1"] = ("vpc-1", {"aws:eks:cluster-name": "spotmpi-lab"})
    live.account.logs.groups.add("/aws/eks/spotmpi-lab/cluster")
    (live.folder / "destroy.failure").write_text("deleting Subnet: DependencyViolation")
    live.account.rights.clear()
    assert live.down() == []
    calls = {each.replace("tagging:", "tag:") for each in live.account.rights}  # the IAM prefix of that service
    calls -= {"sts:GetCallerIdentity"}  # needs no permission (AWS STS API Reference)
    assert {"autoscaling:UpdateAutoScalingGroup", "ec2:DeleteSecurityGroup", "logs:DeleteLogGroup"} <= calls
    statements = [each for each in policy("destroy")["Statement"] if each["Effect"] == "Allow"]
    allowed = [action for each in statements for action in each["Action"]]
    assert {call for call in calls if not any(fnmatch(call, action) for action in allowed)} == set()


def test_node_groups_that_cannot_be_scaled_do_not_block_down(live: FakeEnvironment) -> None:
    """As while EKS is deleting them already, after an interrupted `down`."""
    live.account.refuse("UpdateAutoScalingGroup", "ValidationError")
    assert live.down() == [] and live.pulumi_commands() == [PREVIEW, DESTROY, REMOVE]
    assert any(line.startswith("the node groups can't be scaled to 0") for line in live.output)


def test_a_damaged_inventory_is_read_as_empty_and_an_unwritable_one_reported(
    lab: FakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = read_inventory("spotmpi-lab", "us-east-1", ACCOUNT)
    record_resources(record_resources(trace, [("keys", "b")]), [("keys", "a"), ("keys", "b")])
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).of("keys") == {"a", "b"}
    (lab.folder / "state" / "environments" / "spotmpi-lab.json").write_text("{")
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).ids == {}
    (lab.folder / "file").write_text("")
    monkeypatch.setenv("SPOTMPI_STATE", str(lab.folder / "file"))
    with pytest.raises(SpotmpiError, match="set SPOTMPI_STATE to a writable folder"):
        record_resources(trace, [])


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO])
def test_an_inventory_that_cannot_be_read_for_a_moment_is_neither_empty_nor_written_over(
    live: FakeEnvironment, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A key has neither name nor tag: only the inventory, here that of an interrupted `down`, has its id."""
    live.account.kms.keys["key-left"] = "Enabled"
    record_resources(read_inventory("spotmpi-lab", "us-east-1", ACCOUNT), [("keys", "key-left")])
    TransientErrors(monkeypatch.setattr).add("read", "*/environments/spotmpi-lab.json", error)

    with pytest.raises(SpotmpiError, match=f"{os.strerror(error)}; it has what spotmpi-lab may have left in AWS"):
        live.down()
    assert live.pulumi_commands() == []
    assert ("keys", "key-left") in live.down()


def test_the_commands_print_the_next_command_and_the_leftovers(lab: FakeEnvironment, command: CommandLine) -> None:
    up = ("up", "lab", "--no-images")
    code, output, _ = command(*up)
    assert code == 0
    following = "spotmpi init --example digits && spotmpi run digits.toml --on lab"
    assert output.startswith(f"spotmpi-lab is up in us-east-1a. Next: {following}\n")
    assert json.loads(command(*up, "--json")[1])["environment"]["cluster"] == "spotmpi-lab"
    for invalid in (("--expires", "1m"), ("--data", "set"), ("--data", "set=../x")):
        assert command("up", "lab", *invalid)[0] == 2
    assert command(*up, "--data", "https://x/#sha256=0=voc")[0] == 0
    assert lab.actions[-1] == "data https://x/#sha256=0 as voc on lab"
    lab.account.logs.groups.add("/aws/eks/spotmpi-lab/late")
    code, output, _ = command("down", "lab")
    assert code == 1 and output.startswith("log groups: /aws/eks/spotmpi-lab/late\n  -> aws logs delete-log-group")
    lab.account.logs.groups.clear()
    assert command("down", "lab", "--json")[:2] == (0, "[]\n")
