"""`spotmpi up` and `spotmpi down` beside a Pulumi of the test's own; tests/engine has them with the real one."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.cli.main import main
from jobs.cloud import ledger, pulumi_cli
from jobs.cloud.checks.finding import Finding
from jobs.cloud.down import down
from jobs.cloud.hands import Hands
from jobs.cloud.pulumi_cli import Pulumi
from jobs.cloud.remains import KINDS
from jobs.cloud.stack_file import read_stack
from jobs.cloud.up import NotAgreed, Wishes, up
from jobs.environment import Environment
from jobs.errors import InputError, SpotmpiError
from jobs.images import Build
from jobs.runs import RunState
from tests.jobs.scripted_account import ScriptedAccount, World
from tests.jobs.scripted_cluster import ScriptedCluster
from tests.jobs.stocked_account import Stock
from tests.jobs.test_environment import OUTPUTS

GROUP_TAGS = {"k8s.io/cluster-autoscaler/node-template/label/spotmpi.dev/group": "g4dn"}
SETTINGS = "config:\n  aws:region: us-east-1\n  spotmpi:zone: us-east-1a\n"
CNI = {"node.k8s.amazonaws.com/instance_id": "i-1"}
MADE = {
    "aws:efs/fileSystem:FileSystem": "fs-1",
    "aws:cloudwatch/logGroup:LogGroup": "/aws/eks/spotmpi-lab/cluster",
    "aws:kms/key:Key": "key-1",
    "aws:ecr/repository:Repository": "spotmpi-lab/chainermn",
    "aws:ec2/vpc:Vpc": "vpc-1",
}

# What Pulumi does here: programs on PATH that answer as it does, with a file of what they were asked.
PULUMI = """#!{python} -SE
import json, pathlib, sys
here = pathlib.Path({folder!r})
words = sys.argv[1:]
stack = words[words.index("--stack") + 1]
held = here / (stack + ".held")
with open(here / "asked", "a") as file:
    file.write(" ".join(w for w in words if w not in ("--stack", stack, "--non-interactive")) + " @" + stack + "\\n")
trouble = here / (words[0] + ".trouble")
if trouble.exists():
    print("error: " + trouble.read_text()); trouble.unlink(); sys.exit(255)
if words[:2] in (["stack", "export"], ["stack", "output"]) and not held.exists():
    print("error: no stack named " + repr(stack) + " found", file=sys.stderr); sys.exit(255)
if words[:2] == ["stack", "export"]:
    print(held.read_text())
elif words[:2] == ["stack", "output"]:
    print((here / "outputs").read_text() if json.loads(held.read_text())["deployment"]["resources"] else "{{}}")
elif words[:2] == ["stack", "rm"]:
    held.unlink()
elif words[:2] == ["stack", "select"] and not held.exists():
    held.write_text(json.dumps({{"deployment": {{"resources": []}}}}))
elif words[0] == "preview" and not json.loads(held.read_text())["deployment"]["resources"]:
    print("error: no changes were expected but changes were proposed"); sys.exit(255)
elif words[0] == "up":
    made = {made!r} if not stack.endswith("-data") else {{"aws:efs/fileSystem:FileSystem": "fs-kept"}}
    listed = [{{"type": kind, "id": id}} for kind, id in made.items()]
    held.write_text(json.dumps({{"deployment": {{"resources": listed}}}}))
elif words[0] == "destroy":
    held.write_text(json.dumps({{"deployment": {{"resources": []}}}}))
if words[0] != "stack":
    print("done: " + words[0])
"""


class Life:
    """One environment's life: hands that do what the test says, and a list of what they did."""

    def __init__(self, folder: Path, account: ScriptedAccount) -> None:
        self.folder, self.stock, self.cluster = folder, Stock(), ScriptedCluster()
        self.stock.group("eks-g4dn", GROUP_TAGS, nodes=1)
        self.account = self.stock.account(account)
        self.did: list[str] = []
        self.answers: list[bool] = []
        self.findings: list[Finding] = []
        self.trouble: dict[str, str] = {}
        self.runs: list[RunState] = []
        self.known = False
        self.said: list[str] = []

    @property
    def hands(self) -> Hands:
        pulumi = Pulumi(self.said.append, self.folder, {"PATH": f"{self.folder}:/usr/bin:/bin"})
        made = Hands(self.account.aws, pulumi, self.said.append, self.agree)
        return replace(
            made,
            examine=lambda stack, aws: self.findings,
            cluster=lambda there: self.cluster,
            knows=lambda there: self.known,
            command=self.command,
            push=self.push,
            stage=lambda source, folder, where, say: self.do(f"stage {source} as {folder} on {where.place}"),
            run=self.run,
            list_runs=lambda where: self.runs,
            stop_run=lambda run, where: self.do(f"stop {run} on {where.place}"),
            sleep=lambda seconds: self.do("wait"),
        )

    def do(self, what: str) -> Any:
        """Note what is done, and fail once where that is asked for."""
        self.did.append(what)
        word = what.split()[0]
        if word in self.trouble:
            raise SpotmpiError(self.trouble.pop(word))

    def agree(self, question: str) -> bool:
        self.did.append(question)
        return self.answers.pop(0) if self.answers else True

    def command(self, words: Sequence[str]) -> None:
        self.do(" ".join(words))
        self.known = True

    def push(self, image: str, there: Environment, say: Any) -> str:
        self.do(f"push {image}")
        self.stock.images.add(f"{there.repositories[image].partition('/')[2]}:{Build(image).tag}")
        return image

    def run(self, values: dict[str, Any], **more: Any) -> RunState:
        self.do(f"run {values['image']} on {more['where'].place}")
        return RunState("smoke-1", "", "smoke", "succeeded")

    def asked(self) -> list[str]:
        """What Pulumi was asked so far, words that only look left out."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith(("stack export", "stack output"))]

    def stack(self, more: str = "", name: str = "lab") -> None:
        (self.folder / "stacks" / f"Pulumi.{name}.yaml").write_text(SETTINGS + more)


@pytest.fixture(scope="module")
def one_account() -> ScriptedAccount:
    return ScriptedAccount()


@pytest.fixture
def life(one_account: ScriptedAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stacks").mkdir()
    program = tmp_path / "pulumi"
    program.write_text(PULUMI.format(python=sys.executable, folder=str(tmp_path), made=MADE))
    program.chmod(0o755)
    (tmp_path / "outputs").write_text(json.dumps(OUTPUTS))
    made = Life(tmp_path, one_account)
    made.stack()
    return made


FIRST = ["stack select --create @lab", "preview --expect-no-changes @lab", "up --yes --skip-preview @lab"]


def test_up_builds_after_a_yes_and_ends_with_something_that_ran(life: Life) -> None:
    there = up("lab", life.hands)

    assert there.name == "spotmpi-lab" and life.asked() == FIRST
    command = "aws eks update-kubeconfig --name spotmpi-lab --region us-east-1"
    assert life.did == ["Build lab as shown?", command, "push chainermn", "run chainermn on lab"]
    assert ledger.read("spotmpi-lab", "us-east-1").of("file systems") == {"fs-1"}
    assert [line for line in life.said if line[1:3] == "/7"][-1] == "7/7 a small run"


def test_data_is_staged_before_something_runs_and_asked_for_again_by_the_next_up(life: Life) -> None:
    wished = Wishes(data=(("set", "voc"), ("s3://sets/coco/", "coco")))
    life.trouble["stage"] = "the terminal went away"
    with pytest.raises(SpotmpiError, match="the terminal went away"):
        up("lab", life.hands, wished)
    assert not any(each.startswith("run") for each in life.did)

    up("lab", life.hands, wished)

    staged = ["stage set as voc on lab", "stage s3://sets/coco/ as coco on lab"]
    assert life.did[-3:] == [*staged, "run chainermn on lab"]


def test_up_again_asks_nothing_and_repeats_nothing(life: Life) -> None:
    up("lab", life.hands)
    life.did.clear()
    life.asked()

    up("lab", life.hands)

    assert life.did == [] and life.asked() == FIRST[:2]


@pytest.mark.parametrize("step", ["up", "aws", "push", "run"])
def test_up_goes_on_where_it_was_broken_off(life: Life, step: str) -> None:
    if step == "up":
        (life.folder / "up.trouble").write_text("the network went away")
    else:
        life.trouble[step] = "the network went away"
    with pytest.raises(SpotmpiError, match="the network went away"):
        up("lab", life.hands)

    up("lab", life.hands)

    tries = [what.split()[0] for what in life.did]
    assert tries.count(step) == (2 if step != "up" else 0)
    assert all(tries.count(each) == 1 for each in ("aws", "push", "run") if each != step)
    assert life.asked().count("up --yes --skip-preview @lab") == (2 if step == "up" else 1)


def test_a_no_leaves_everything_as_it_is(life: Life) -> None:
    life.answers = [False]
    with pytest.raises(NotAgreed, match="lab was left as it is"):
        up("lab", life.hands)
    assert life.asked() == FIRST[:2] and life.did == ["Build lab as shown?"]


def test_what_the_doctor_calls_an_error_stands_in_the_way_and_a_warning_does_not(life: Life) -> None:
    life.findings = [Finding("quota", "warning", "7 of 8", "ask for more")]
    up("lab", life.hands)
    life.findings.append(Finding("credentials", "error", "expired", "log in again"))
    with pytest.raises(SpotmpiError, match="1 errors stand in the way; the first: expired: log in again"):
        up("lab", life.hands)
    assert "warning: quota 7 of 8" in life.said


def test_a_stack_without_a_zone_is_told_how_to_choose_one(life: Life) -> None:
    groups = "  spotmpi:groups:\n    - {name: g, type: g5.xlarge, max: 2}\n"
    (life.folder / "stacks" / "Pulumi.lab.yaml").write_text("config:\n  aws:region: us-east-1\n" + groups)
    with pytest.raises(InputError, match=r"`spotmpi plan --types g5.xlarge --nodes N --write lab` compares zones"):
        up("lab", life.hands)
    assert life.asked() == []


def test_kept_storage_is_built_first(life: Life) -> None:
    life.stack("  spotmpi:storage: {keep: true}\n")
    up("lab", life.hands, Wishes(images=False))
    assert [line.rpartition("@")[2] for line in life.asked()] == ["lab-data"] * 3 + ["lab"] * 3
    assert not any(each.startswith(("push", "run")) for each in life.did)


def test_groups_are_closed_by_aws_when_an_environment_expires_and_opened_by_the_next_up(life: Life) -> None:
    up("lab", life.hands, Wishes(images=False, expires=timedelta(hours=8)))

    end = life.stock.ends["eks-g4dn"]
    assert (end["MinSize"], end["MaxSize"], end["DesiredCapacity"]) == (0, 0, 0)
    assert timedelta(hours=7, minutes=59) < end["StartTime"] - datetime.now(UTC) <= timedelta(hours=8)
    life.stock.groups["eks-g4dn"]["MaxSize"] = 0  # as AWS leaves it after that time
    up("lab", life.hands, Wishes(images=False))
    assert life.stock.groups["eks-g4dn"]["MaxSize"] == 2 and life.stock.ends == {}


def test_a_small_run_that_fails_is_told_and_tried_again(life: Life) -> None:
    hands = replace(
        life.hands, run=lambda values, **more: RunState("smoke-1", "", "smoke", "failed", reason="no capacity")
    )
    with pytest.raises(SpotmpiError, match="the small run failed: no capacity; `spotmpi logs smoke-1` shows more"):
        up("lab", hands)
    up("lab", life.hands)
    assert life.did.count("run chainermn on lab") == 1


def test_down_stops_runs_takes_nodes_away_destroys_and_leaves_nothing(life: Life) -> None:
    up("lab", life.hands, Wishes(images=False))
    life.did.clear()
    life.asked()
    life.runs = [RunState("a-1", "", "a", "running"), RunState("b-1", "", "b", "succeeded")]

    assert down("lab", life.hands) == ()

    assert life.did == ["Take down spotmpi-lab and ALL DATA on its storage?", "stop a-1 on lab"]
    assert life.stock.groups["eks-g4dn"]["MaxSize"] == 0 and life.stock.groups["eks-g4dn"]["Instances"] == []
    assert life.asked() == ["destroy --yes --skip-preview @lab", "stack rm --yes --preserve-config @lab"]
    assert ledger.read("spotmpi-lab", "us-east-1").ids == {}
    assert down("lab", life.hands) == () and life.asked() == []


def test_a_no_stops_nothing(life: Life) -> None:
    up("lab", life.hands, Wishes(images=False))
    life.asked()
    life.answers = [False]
    with pytest.raises(NotAgreed):
        down("lab", life.hands)
    assert life.asked() == [] and life.stock.groups["eks-g4dn"]["MaxSize"] == 2


def test_a_destroy_that_is_broken_off_is_finished_by_the_next_and_forgets_nothing(life: Life) -> None:
    up("lab", life.hands, Wishes(images=False))
    (life.folder / "destroy.trouble").write_text("DependencyViolation")
    with pytest.raises(SpotmpiError, match="DependencyViolation; the same command goes on"):
        down("lab", life.hands)
    (life.folder / "lab.held").write_text('{"deployment": {"resources": []}}')  # most of it was gone already
    life.stock.logs.add("/aws/eks/spotmpi-lab/cluster")
    life.stock.keys["key-1"] = "Enabled"

    left = down("lab", life.hands)

    assert [(each.what, each.id) for each in left] == [
        ("log groups", "/aws/eks/spotmpi-lab/cluster"),
        ("keys", "key-1"),
    ]


def test_interfaces_that_hold_a_subnet_are_swept_and_it_goes_on_by_itself(life: Life) -> None:
    up("lab", life.hands, Wishes(images=False))
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


def test_one_untagged_thing_of_each_kind_is_found_by_name_or_by_its_written_down_id(life: Life) -> None:
    life.cluster.objects.append(
        {
            "kind": "PersistentVolume",
            "metadata": {"name": "pvc-1"},
            "spec": {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}},
        }
    )
    life.stock.interfaces = {"eni-1": ("vpc-1", "in-use", CNI)}
    up("lab", life.hands, Wishes(images=False))
    life.stock.systems["fs-1"] = {}
    life.stock.volumes["vol-1"] = {}
    life.stock.logs.add("/aws/eks/spotmpi-lab/late")
    life.stock.keys["key-1"] = "Enabled"
    life.stock.repositories |= {"spotmpi-lab/chainermn", "spotmpi-other/chainermn"}
    life.stock.stacks |= {"eksctl-spotmpi-lab-cluster"}
    life.stock.tagged = {
        "arn:aws:ec2:us-east-1:1:natgateway/nat-1": "spotmpi-lab",  # AWS remembers it for an hour
        "arn:aws:ec2:us-east-1:1:instance/i-1": "spotmpi-lab",
        "arn:aws:elasticloadbalancing:us-east-1:1:loadbalancer/net/x/1": "spotmpi-lab",
        "arn:aws:elasticfilesystem:us-east-1:1:file-system/fs-1": "spotmpi-lab",
        "arn:aws:sns:us-east-1:1:theirs": "spotmpi-other",
    }

    left = down("lab", life.hands)

    found = {each.what: each.id for each in left}
    assert found == {
        "CloudFormation stacks": "eksctl-spotmpi-lab-cluster",
        "file systems": "fs-1",
        "network interfaces": "eni-1",
        "volumes": "vol-1",
        "log groups": "/aws/eks/spotmpi-lab/late",
        "keys": "key-1",
        "image repositories": "spotmpi-lab/chainermn",
        "tagged": "arn:aws:elasticloadbalancing:us-east-1:1:loadbalancer/net/x/1",
    }
    assert set(found) - {"tagged"} == {kind.what for kind in KINDS} - {"mount targets"}
    assert all(each.id in each.command for each in left if each.what != "tagged")


def test_kept_storage_stays_unless_its_deletion_names_the_environment(life: Life) -> None:
    life.stack("  spotmpi:storage: {keep: true}\n")
    life.stack("  spotmpi:kind: data\n", "lab-data")
    up("lab", life.hands, Wishes(images=False))
    life.asked()
    for wrong_name in ("lab", "yes", ""):
        with pytest.raises(InputError, match="write the environment's name, spotmpi-lab, to delete its data"):
            down("lab", life.hands, wrong_name)
    with pytest.raises(InputError, match="is kept storage: `spotmpi down lab --delete-data spotmpi-lab` deletes it"):
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
    up("lab", life.hands, Wishes(images=False))
    life.cluster.refused["PersistentVolume"] = "could not list PersistentVolumes: the cluster cannot be reached"

    assert down("lab", life.hands) == ()
    assert any("the cluster cannot be reached" in line for line in life.said)


def test_nodes_that_do_not_go_are_told_and_do_not_stop_it(life: Life) -> None:
    up("lab", life.hands, Wishes(images=False))
    life.account.answers["UpdateAutoScalingGroup"] = lambda region, asked: {}

    assert down("lab", life.hands) == ()

    assert life.did.count("wait") == 90
    assert "1 nodes are still on their way out; they go with their groups" in life.said


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("the stack is currently locked by 1 lock(s)", "`pulumi cancel --yes --stack lab`"),
        ("incorrect passphrase", "set PULUMI_CONFIG_PASSPHRASE to the one that it was made with"),
        ("PULUMI_ACCESS_TOKEN must be set", "set PULUMI_BACKEND_URL, for example to s3://my-state"),
        ("the stack has pending operations", "`pulumi refresh --clear-pending-creates --stack lab`"),
        ("boom", "`pulumi up --stack lab` failed: boom; the same command goes on"),
    ],
)
def test_what_pulumi_complains_of_comes_with_a_way_out(life: Life, said: str, told: str) -> None:
    (life.folder / "up.trouble").write_text(said)
    with pytest.raises(SpotmpiError) as failed:
        up("lab", life.hands)
    assert told in str(failed.value) and "\n" not in str(failed.value)


def test_a_machine_without_pulumi_is_told(life: Life) -> None:
    with pytest.raises(SpotmpiError, match="pulumi is not on PATH"):
        Pulumi(print, life.folder, {"PATH": "/nowhere"}).run("lab", "preview")


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
    monkeypatch.setattr("jobs.cli.environment_life._hands", lambda stack, yes: life.hands)

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
    life.stock.logs.add("/aws/eks/spotmpi-lab/cluster")
    code, said = spotmpi("down", "lab")
    assert code == 1 and said.startswith("log groups: /aws/eks/spotmpi-lab/cluster\n  -> aws logs delete-log-group")
    life.stock.logs.clear()
    assert spotmpi("down", "lab", "--json") == (0, "[]\n")


def test_without_a_terminal_a_yes_has_to_be_said(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobs.cli import environment_life

    monkeypatch.setattr(environment_life, "open_account", lambda region: life.hands.aws)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    hands = environment_life._hands("lab", False)
    with pytest.raises(InputError, match=r"say --yes where nobody can be asked: Build lab"):
        hands.agree("Build lab as shown?")
    assert environment_life._hands("lab", True).agree("?") and isinstance(hands.pulumi, pulumi_cli.Pulumi)


def test_a_stack_without_a_zone_gets_the_best_row_after_a_yes_and_says_what_lost(
    life: Life, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = "config:\n  aws:region: us-east-1\n  spotmpi:groups:\n    - {name: g4dn, type: g4dn.xlarge, max: 2}\n"
    (life.folder / "stacks" / "Pulumi.lab.yaml").write_text(settings)
    markets, world = ScriptedAccount(), World()
    world.script(markets)
    monkeypatch.setattr("jobs.cloud.zone_plan.open_account", lambda: markets.aws)
    monkeypatch.setattr("jobs.cli.environment_life._hands", lambda stack, yes: life.hands)

    def up_by_hand() -> int:
        monkeypatch.setattr(sys, "argv", ["spotmpi", "up", "lab", "--no-images"])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    life.answers = [False]
    assert up_by_hand() == 1 and read_stack("lab").zone is None and life.asked() == []
    assert (
        "`spotmpi plan --types g4dn.xlarge --nodes 2 --write lab --row N` takes another row" in capsys.readouterr().err
    )
    life.did.clear()
    assert up_by_hand() == 0 and read_stack("lab").zone == "us-east-1a"
    assert life.did[:2] == ["lab has no zone yet. Take row 1, g4dn.xlarge in us-east-1a?", "Build lab as shown?"]
    assert "g4dn.xlarge in us-east-1b lost: " in capsys.readouterr().out
