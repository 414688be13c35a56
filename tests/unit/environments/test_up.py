"""`spotmpi up` beside a Pulumi of the test's own; tests/engine has it with the real one."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spotmpi.cli.main import main
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments import ledger, pulumi_cli
from spotmpi.environments.checks.finding import Finding
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.stack_file import read_stack
from spotmpi.environments.up import NotAgreed, UpOptions, up
from spotmpi.runs.reader import RunState
from tests.cloud.environment_life import FIRST, GROUP_TAGS, Killed, Life
from tests.cloud.scripted_account import ScriptedAccount, World
from tests.unit.core.test_environment import OUTPUTS


def test_up_builds_after_a_yes_and_ends_with_something_that_ran(life: Life) -> None:
    there = up("lab", life.hands)

    assert there.name == "spotmpi-lab" and life.asked() == FIRST
    command = "aws eks update-kubeconfig --name spotmpi-lab --region us-east-1"
    assert life.did == ["Build lab as shown?", command, "push chainermn", "run chainermn on lab"]
    assert ledger.read("spotmpi-lab", "us-east-1").of("file systems") == {"fs-1"}
    assert [line for line in life.said if line[1:3] == "/7"][-1] == "7/7 a small run"


@pytest.mark.parametrize(("most", "nodes"), [(1, 1), (2, 2), (16, 2)])
def test_the_small_run_takes_two_nodes_where_a_group_may_have_them(life: Life, most: int, nodes: int) -> None:
    """One node alone would not show that pods reach each other."""
    (group,) = OUTPUTS["node_groups"]
    (life.folder / "outputs").write_text(json.dumps({**OUTPUTS, "node_groups": [{**group, "max": most}]}))
    up("lab", life.hands)
    assert life.small_run["nodes"] == nodes


def test_data_is_staged_before_something_runs_and_asked_for_again_by_the_next_up(life: Life) -> None:
    wished = UpOptions(data=(("set", "voc"), ("s3://sets/coco/", "coco")))
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


WISHED = UpOptions(data=(("set", "voc"),), expires=timedelta(hours=8))


@pytest.mark.parametrize("step", ["Build", "aws", "push", "stage", "run"])
def test_up_that_was_killed_at_a_step_does_the_rest_and_nothing_twice(life: Life, step: str) -> None:
    life.trouble[step] = Killed
    with pytest.raises(Killed):
        up("lab", life.hands, WISHED)
    assert [each.split()[0] for each in life.did][-1] == step

    up("lab", life.hands, WISHED)

    tries = [what.split()[0] for what in life.did]
    steps = ["Build", "aws", "push", "stage", "run"]
    assert list(dict.fromkeys(tries)) == steps
    again = {step, "stage"} if step == "run" else {step}  # what is staged is looked at each time
    assert {each for each in steps if tries.count(each) == 2} == again and len(tries) == len(steps) + len(again)
    assert life.asked().count("up --yes --skip-preview @lab") == 1
    assert ledger.read("spotmpi-lab", "us-east-1").of("file systems") == {"fs-1"}
    assert life.stock.ends["eks-g4dn"]["MaxSize"] == 0


GROUP = "/aws/eks/spotmpi-lab/cluster"


def test_the_log_group_that_eks_made_again_after_a_former_environment_goes_after_a_yes(life: Life) -> None:
    life.stock.logs = {GROUP, "/aws/eks/spotmpi-lab-two/cluster"}

    up("lab", life.hands, UpOptions(images=False))

    assert life.did[0].startswith(f"Delete log group {GROUP}? EKS made it again")
    assert life.stock.logs == {"/aws/eks/spotmpi-lab-two/cluster"}


def test_a_no_to_deleting_the_log_group_builds_nothing_and_tells_the_command(life: Life) -> None:
    life.stock.logs, life.answers = {GROUP}, [False]
    with pytest.raises(NotAgreed, match=f"aws logs delete-log-group --log-group-name {GROUP} --region us-east-1"):
        up("lab", life.hands)
    assert life.asked() == [] and life.stock.logs == {GROUP}


def test_the_log_group_of_the_stack_itself_is_left_alone(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False))
    life.stock.logs = {GROUP}
    life.did.clear()

    up("lab", life.hands, UpOptions(images=False))

    assert life.did == [] and life.stock.logs == {GROUP}


def test_a_cluster_that_the_state_does_not_hold_stands_in_the_way(life: Life) -> None:
    life.stock.logs, life.stock.clusters = {GROUP}, {"spotmpi-lab"}
    with pytest.raises(
        SpotmpiError, match="a cluster spotmpi-lab exists in us-east-1, and is not of this stack's state"
    ):
        up("lab", life.hands)
    assert life.asked() == [] and life.stock.logs == {GROUP}


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
    with pytest.raises(InputError, match=r"`spotmpi zones --types g5.xlarge --nodes N --write lab` compares zones"):
        up("lab", life.hands)
    assert life.asked() == []


def test_kept_storage_is_built_first(life: Life) -> None:
    life.stack("  spotmpi:storage: {keep: true}\n")
    up("lab", life.hands, UpOptions(images=False))
    assert [line.rpartition("@")[2] for line in life.asked()] == ["lab-data"] * 3 + ["lab"] * 3
    assert not any(each.startswith(("push", "run")) for each in life.did)


def test_groups_are_closed_by_aws_when_an_environment_expires_and_opened_by_the_next_up(life: Life) -> None:
    up("lab", life.hands, UpOptions(images=False, expires=timedelta(hours=8)))

    end = life.stock.ends["eks-g4dn"]
    assert (end["MinSize"], end["MaxSize"], end["DesiredCapacity"]) == (0, 0, 0)
    assert timedelta(hours=7, minutes=59) < end["StartTime"] - datetime.now(UTC) <= timedelta(hours=8)
    life.stock.groups["eks-g4dn"]["MaxSize"] = 0  # as AWS leaves it after that time
    up("lab", life.hands, UpOptions(images=False))
    assert life.stock.groups["eks-g4dn"]["MaxSize"] == 2 and life.stock.ends == {}


REFUSAL = "group g4dn runs 2 nodes, runs included: stop the runs, or set SPOTMPI_REPLACE_NODES=1 to interrupt them"


def test_nodes_are_not_replaced_while_runs_are_live(life: Life) -> None:
    up("lab", life.hands)
    (life.folder / "refusal").write_text(REFUSAL)
    life.runs = [RunState("a-1", "", "a", "running"), RunState("b-1", "", "b", "succeeded")]
    with pytest.raises(SpotmpiError) as refused:
        up("lab", life.hands)
    assert str(refused.value) == f"lab was left as it is: {REFUSAL}; live runs: a-1"
    assert life.asked().count("up --yes --skip-preview @lab") == 1

    life.runs = []
    up("lab", life.hands)
    assert life.asked().count("replacing nodes: up --yes --skip-preview @lab") == 1
    assert "nodes run, but no run is on them: they are replaced" in life.said


def test_a_closed_group_of_several_parts_gets_the_sizes_of_each_part_back(life: Life) -> None:
    up("lab", life.hands)
    for name, sizes in (("eks-g4dn", "2-450"), ("eks-g4dn-2", "0-50")):
        life.stock.group(name, {**GROUP_TAGS, "spotmpi:nodes": sizes}, most=0)
    up("lab", life.hands)
    opened = {name: (group["MinSize"], group["MaxSize"]) for name, group in life.stock.groups.items()}
    assert opened == {"eks-g4dn": (2, 450), "eks-g4dn-2": (0, 50)}


def test_a_small_run_that_fails_is_told_and_tried_again(life: Life) -> None:
    hands = replace(
        life.hands, run=lambda values, **more: RunState("smoke-1", "", "smoke", "failed", reason="no capacity")
    )
    with pytest.raises(SpotmpiError, match="the small run failed: no capacity; `spotmpi logs smoke-1` shows more"):
        up("lab", hands)
    up("lab", life.hands)
    assert life.did.count("run chainermn on lab") == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("the stack is currently locked by 1 lock(s)", "`pulumi cancel --yes --stack lab`"),
        ("incorrect passphrase", "set PULUMI_CONFIG_PASSPHRASE to the one that it was made with"),
        ("PULUMI_ACCESS_TOKEN must be set", "set PULUMI_BACKEND_URL, for example to s3://my-state"),
        ("the stack has pending operations", "`pulumi refresh --clear-pending-creates --stack lab`"),
        ("boom", "`pulumi up --stack lab` failed: boom; the same command goes on"),
        (
            "creating EKS Access Entry (spotmpi-lab:arn:aws:iam::1:role/me): operation error EKS: CreateAccessEntry, "
            "ResourceInUseException: The specified access entry resource is already in use on this cluster.",
            "arn:aws:iam::1:role/me has access to the cluster already",
        ),
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


def test_without_a_terminal_a_yes_has_to_be_said(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    from spotmpi.cli import environment_commands

    monkeypatch.setattr(environment_commands, "open_account", lambda region: life.hands.aws)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    hands = environment_commands._hands("lab", False)
    with pytest.raises(InputError, match=r"say --yes where nobody can be asked: Build lab"):
        hands.agree("Build lab as shown?")
    assert environment_commands._hands("lab", True).agree("?") and isinstance(hands.pulumi, pulumi_cli.Pulumi)


def test_a_stack_without_a_zone_gets_the_best_row_after_a_yes_and_says_what_lost(
    life: Life, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = "config:\n  aws:region: us-east-1\n  spotmpi:groups:\n    - {name: g4dn, type: g4dn.xlarge, max: 2}\n"
    (life.folder / "stacks" / "Pulumi.lab.yaml").write_text(settings)
    markets, world = ScriptedAccount(), World()
    world.script(markets)
    monkeypatch.setattr("spotmpi.environments.zones.comparison.open_account", lambda: markets.aws)
    monkeypatch.setattr("spotmpi.cli.environment_commands._hands", lambda stack, yes: life.hands)

    def up_by_hand() -> int:
        monkeypatch.setattr(sys, "argv", ["spotmpi", "up", "lab", "--no-images"])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    life.answers = [False]
    assert up_by_hand() == 1 and read_stack("lab").zone is None and life.asked() == []
    assert (
        "`spotmpi zones --types g4dn.xlarge --nodes 2 --write lab --row N` takes another row" in capsys.readouterr().err
    )
    life.did.clear()
    assert up_by_hand() == 0 and read_stack("lab").zone == "us-east-1a"
    assert life.did[:2] == ["lab has no zone yet. Take row 1, g4dn.xlarge in us-east-1a?", "Build lab as shown?"]
    assert "g4dn.xlarge in us-east-1b: " in capsys.readouterr().out
