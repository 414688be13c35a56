"""`spotmpi down` beside a Pulumi of the test's own; tests/engine has it with the real one."""

from __future__ import annotations

import json
import sys

import pytest

from spotmpi.cli.main import main
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments import ledger
from spotmpi.environments.down import down
from spotmpi.environments.inventory import KINDS
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.up import NotAgreed, UpOptions, up
from spotmpi.runs.reader import RunState
from tests.cloud.environment_life import CNI, Killed, Life


def test_down_stops_runs_takes_nodes_away_destroys_and_leaves_nothing(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.did.clear()
    life.asked()
    life.runs = [RunState("a-1", "", "a", "running"), RunState("b-1", "", "b", "succeeded")]

    assert down("lab", life.hands) == ()

    assert life.did[:2] == ["Take down spotmpi-lab and ALL DATA on its storage?", "stop a-1 on lab"]
    assert life.did[2:] == ["wait"] * 5  # for the log group that EKS may make again
    assert life.stock.groups["eks-g4dn"]["MaxSize"] == 0 and life.stock.groups["eks-g4dn"]["Instances"] == []
    assert life.asked() == ["destroy --yes --skip-preview @lab", "stack rm --yes --preserve-config @lab"]
    assert ledger.read("spotmpi-lab", "us-east-1").ids == {}
    assert down("lab", life.hands) == () and life.asked() == []


def test_down_stops_the_other_runs_where_one_cannot_be_stopped(life: Life) -> None:
    """It works: one line on it. It fails: the runs after it lose what they did since their last checkpoint."""
    up("lab", life.hands, UpOptions(images=False))
    life.runs = [RunState(run, "", "a", "running") for run in ("a-1", "b-1")]
    life.trouble["stop"] = "JobSet a-1 is of another version"
    assert down("lab", life.hands) == ()
    assert "stop b-1 on lab" in life.did
    assert "a-1 can't be stopped: JobSet a-1 is of another version" in life.said


@pytest.mark.parametrize("step", ["Take", "stop", "wait", "destroy", "stack rm"])
def test_down_that_was_killed_at_a_step_goes_on_and_leaves_nothing(
    life: Life, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.runs = [RunState("a-1", "", "a", "running")]
    life.stock.slow = 1
    ran = Pulumi.run

    def run(pulumi: Pulumi, stack: str, *words: str) -> None:
        if " ".join(words).startswith(step) and life.trouble.pop(step, ""):
            raise Killed
        ran(pulumi, stack, *words)

    monkeypatch.setattr(Pulumi, "run", run)
    life.trouble[step] = Killed
    with pytest.raises(Killed):
        down("lab", life.hands)
    life.asked()

    assert down("lab", life.hands) == ()

    assert life.runs == [] and life.hands.pulumi.state("lab") is None
    assert life.stock.groups["eks-g4dn"]["Instances"] == []
    assert life.asked()[-1] == "stack rm --yes --preserve-config @lab"
    assert ledger.read("spotmpi-lab", "us-east-1").ids == {}


def test_a_no_stops_nothing(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.asked()
    life.answers = [False]
    with pytest.raises(NotAgreed):
        down("lab", life.hands)
    assert life.asked() == [] and life.stock.groups["eks-g4dn"]["MaxSize"] == 2


def test_a_destroy_that_is_broken_off_is_finished_by_the_next_and_forgets_nothing(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    (life.folder / "destroy.trouble").write_text("DependencyViolation")
    with pytest.raises(SpotmpiError, match="DependencyViolation; the same command goes on"):
        down("lab", life.hands)
    (life.folder / "lab.held").write_text('{"deployment": {"resources": []}}')  # most of it was gone already
    life.stock.logs.add("/aws/eks/spotmpi-lab/late")
    life.stock.keys["key-1"] = "Enabled"

    left = down("lab", life.hands)

    assert [(each.what, each.id) for each in left] == [
        ("log groups", "/aws/eks/spotmpi-lab/late"),
        ("keys", "key-1"),
    ]


def test_interfaces_that_hold_a_subnet_are_swept_and_it_goes_on_by_itself(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.asked()
    life.stock.interfaces = {
        "eni-leaked": ("vpc-1", "available", CNI),
        "eni-other": ("vpc-9", "available", CNI),
        "eni-mine": ("vpc-1", "available", {}),
    }
    (life.folder / "destroy.trouble").write_text("DependencyViolation")

    assert down("lab", life.hands) == ()

    assert life.asked().count("destroy --yes --skip-preview @lab") == 2
    assert set(life.stock.interfaces) == {"eni-other", "eni-mine"}


@pytest.mark.parametrize("leaked", [{"eni-leaked": ("vpc-1", "available", CNI)}, {}])
def test_the_security_group_that_eks_left_goes_once_nothing_uses_it(
    life: Life, leaked: dict[str, tuple[str, str, dict[str, str]]]
) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.asked()
    life.stock.interfaces = leaked
    life.stock.shields = {
        "sg-cluster": ("vpc-1", {"aws:eks:cluster-name": "spotmpi-lab"}),
        "sg-mine": ("vpc-1", {}),
        "sg-other": ("vpc-9", {"aws:eks:cluster-name": "spotmpi-lab"}),
    }
    (life.folder / "destroy.trouble").write_text("DependencyViolation")

    assert down("lab", life.hands) == ()

    assert life.asked().count("destroy --yes --skip-preview @lab") == 2
    assert set(life.stock.shields) == {"sg-mine", "sg-other"}
    assert any("security group sg-cluster of EKS; once more" in line for line in life.said)


def leave_one_of_each_kind(life: Life) -> None:
    """Put into the account what an environment may leave, and what is somebody else's or only remembered."""
    life.stock.systems["fs-1"] = {}
    life.stock.targets["fsmt-12345678"] = "fs-of-another-stack"
    life.stock.volumes["vol-1"] = {}
    life.stock.logs.add("/aws/eks/spotmpi-lab/late")
    life.stock.keys["key-1"] = "Enabled"
    life.stock.repositories |= {"spotmpi-lab/chainermn", "spotmpi-other/chainermn"}
    life.stock.stacks = {
        "eksctl-spotmpi-lab-cluster": {"alpha.eksctl.io/cluster-name": "spotmpi-lab"},
        "eksctl-spotmpi-lab-two-cluster": {"alpha.eksctl.io/cluster-name": "spotmpi-lab-two"},
        "spotmpi-lab-two": {},
    }
    life.stock.tagged = {
        "arn:aws:elasticloadbalancing:us-east-1:1:loadbalancer/net/x/1": "spotmpi-lab",
        "arn:aws:elasticfilesystem:us-east-1:1:file-system/fs-1": "spotmpi-lab",
        "arn:aws:sns:us-east-1:1:theirs": "spotmpi-other",
    }


def test_one_untagged_thing_of_each_kind_is_found_by_name_or_by_its_written_down_id(life: Life) -> None:
    csi = {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}
    life.cluster.objects.append({"kind": "PersistentVolume", "metadata": {"name": "pvc-1"}, "spec": {"csi": csi}})
    life.stock.interfaces = {"eni-1": ("vpc-1", "in-use", CNI)}
    up("lab", life.hands, UpOptions(images=False))
    leave_one_of_each_kind(life)

    left = down("lab", life.hands)

    found = {each.what: each.id for each in left}
    assert found == {
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
    assert set(found) - {"tagged"} == {kind.what for kind in KINDS}
    assert all(each.id in each.command for each in left if each.what != "tagged")


def test_kept_storage_stays_unless_its_deletion_names_the_environment(life: Life) -> None:
    life.stack("  spotmpi:storage: {keep: true}\n")
    life.stack("  spotmpi:kind: data\n", "lab-data")
    up("lab", life.hands, UpOptions(images=False))
    life.asked()
    for wrong_name in ("lab", "yes", ""):
        with pytest.raises(InputError, match="write the environment's name, spotmpi-lab, to delete its data"):
            down("lab", life.hands, wrong_name)
    with pytest.raises(
        InputError, match="is persistent storage: `spotmpi down lab --delete-data spotmpi-lab` deletes it"
    ):
        down("lab-data", life.hands)
    assert life.asked() == []

    assert down("lab", life.hands) == ()
    assert {line.rpartition("@")[2] for line in life.asked()} == {"lab"}
    assert "kept, and billed by the GB: the storage of spotmpi-lab-data" in life.said

    assert down("lab", life.hands, "spotmpi-lab") == ()
    assert life.asked() == [
        "state unprotect --all --yes @lab-data",
        "destroy --yes --skip-preview @lab-data",
        "stack rm --yes --preserve-config @lab-data",
    ]
    assert life.did[-1] == "Take down spotmpi-lab and ALL DATA on its storage?"


def test_a_cluster_that_does_not_answer_keeps_no_environment_alive(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.cluster.refused["PersistentVolume"] = "could not list PersistentVolumes: cannot reach the cluster"

    assert down("lab", life.hands) == ()
    assert any("cannot reach the cluster" in line for line in life.said)


def test_nodes_that_do_not_go_are_told_and_do_not_stop_it(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.account.answers["UpdateAutoScalingGroup"] = lambda region, asked: {}

    assert down("lab", life.hands) == ()

    assert life.did.count("wait") == 90 + 5
    assert "1 nodes are still on their way out; they go with their groups" in life.said


def test_what_is_written_down_survives_damage_and_is_told_where_it_cannot_be(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = ledger.read("spotmpi-lab", "us-east-1")
    ledger.add(ledger.add(trace, [("keys", "b")]), [("keys", "a"), ("keys", "b")])
    assert ledger.read("spotmpi-lab", "us-east-1").of("keys") == {"a", "b"}
    (life.folder / "kept" / "environments" / "spotmpi-lab.json").write_text("{")
    assert ledger.read("spotmpi-lab", "us-east-1").ids == {}
    (life.folder / "file").write_text("")
    monkeypatch.setenv("SPOTMPI_STATE", str(life.folder / "file"))
    with pytest.raises(SpotmpiError, match="set SPOTMPI_STATE to a folder of yours"):
        ledger.add(trace, [])


def test_the_commands_say_what_comes_next_and_what_is_left(
    life: Life, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spotmpi.cli.environment_commands._hands", lambda stack, yes: life.hands)

    def spotmpi(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["spotmpi", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().out

    code, said = spotmpi("up", "lab", "--no-images")
    assert code == 0 and said.startswith("spotmpi-lab is up in us-east-1a. Next: spotmpi run jobs/examples/digits.toml")
    assert json.loads(spotmpi("up", "lab", "--no-images", "--json")[1])["environment"]["cluster"] == "spotmpi-lab"
    assert spotmpi("up", "lab", "--expires", "1m")[0] == 2
    assert spotmpi("up", "lab", "--data", "set")[0] == spotmpi("up", "lab", "--data", "set=../x")[0] == 2
    assert spotmpi("up", "lab", "--no-images", "--data", "https://x/#sha256=0=voc")[0] == 0
    assert life.did[-1] == "stage https://x/#sha256=0 as voc on lab"
    life.stock.logs.add("/aws/eks/spotmpi-lab/late")
    code, said = spotmpi("down", "lab")
    assert code == 1 and said.startswith("log groups: /aws/eks/spotmpi-lab/late\n  -> aws logs delete-log-group")
    life.stock.logs.clear()
    assert spotmpi("down", "lab", "--json") == (0, "[]\n")
