"""`spotmpi up` with a fake Pulumi; tests/engine has it with the real one."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotmpi.aws.scaling import GROUP_TAG
from spotmpi.cli import environment_commands
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.environments.checks.check import Finding
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.resource_inventory import read_inventory
from spotmpi.environments.stack_file import read_stack
from spotmpi.environments.up import NotConfirmed, up
from spotmpi.runs.reader import RunState
from tests.cloud.account.answers import ACCOUNT
from tests.cloud.fake_environment import FIRST, GROUP_TAGS, FakeEnvironment, Killed
from tests.command_line import CommandLine
from tests.unit.core.test_environment import OUTPUTS


def test_up_builds_after_a_confirmation_and_ends_with_a_smoke_run(lab: FakeEnvironment) -> None:
    environment = lab.up()
    assert environment.name == "spotmpi-lab" and lab.pulumi_commands() == FIRST
    assert lab.actions == ["Build lab as shown?", "push chainermn", "run chainermn on lab"]
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).of("file systems") == {"fs-1"}
    assert [line for line in lab.output if line[1:3] == "/7"][-1] == "7/7 smoke run"


def test_without_images_there_is_nothing_to_run(lab: FakeEnvironment) -> None:
    (lab.folder / "outputs").write_text(json.dumps({**OUTPUTS, "repositories": {}}))
    lab.up()
    assert lab.actions == ["Build lab as shown?"] and lab.output[-1] == "no images, so there is nothing to run"


@pytest.mark.parametrize(("most", "nodes"), [(1, 1), (2, 2), (16, 2)])
def test_the_smoke_run_has_two_nodes_if_a_group_allows_them(lab: FakeEnvironment, most: int, nodes: int) -> None:
    """One node alone would not show that pods reach each other."""
    (group,) = OUTPUTS["node_groups"]
    (lab.folder / "outputs").write_text(json.dumps({**OUTPUTS, "node_groups": [{**group, "max": most}]}))
    lab.up()
    assert lab.smoke_run["nodes"] == nodes


@pytest.mark.parametrize("alone", [True, False])
def test_the_smoke_run_waits_for_no_capacity_block(lab: FakeEnvironment, alone: bool) -> None:
    (group,) = OUTPUTS["node_groups"]
    block = {**group, "name": "block", "gpus": 0, "max": 1, "market": "capacity-block", "reservation": "cr-00000001"}
    groups = [block] if alone else [block, {**group, "max": 2}]
    (lab.folder / "outputs").write_text(json.dumps({**OUTPUTS, "node_groups": groups}))
    lab.account.autoscaling.add("eks-block", {**GROUP_TAGS, GROUP_TAG: "block"}, most=1)
    lab.up()
    if alone:
        assert lab.output[-1] == "all node groups are in Capacity Blocks, so nothing is run before these start"
    else:
        assert (lab.smoke_run["nodes"], lab.smoke_run["resources"]["gpu"]) == (2, 1)


def test_data_is_pushed_before_the_smoke_run_and_again_by_the_next_up(lab: FakeEnvironment) -> None:
    data = (("set", "voc"), ("s3://sets/coco/", "coco"))
    lab.failures["data"] = "the terminal went away"
    with pytest.raises(SpotmpiError, match="the terminal went away"):
        lab.up(data=data)
    assert not any(each.startswith("run") for each in lab.actions)

    lab.up(data=data)

    staged = ["data set as voc on lab", "data s3://sets/coco/ as coco on lab"]
    assert lab.actions[-3:] == [*staged, "run chainermn on lab"]


def test_up_again_needs_no_confirmation_and_repeats_nothing(lab: FakeEnvironment) -> None:
    lab.up()
    lab.forget()
    lab.up()
    assert lab.actions == [] and lab.pulumi_commands() == FIRST[:2]


def test_a_new_stack_gets_the_secrets_provider_of_its_file(lab: FakeEnvironment) -> None:
    """`pulumi stack select --create` alone would write a passphrase's salt in its place."""
    lab.write_stack("secretsprovider: awskms://alias/state\nencryptedkey: AQ==\n")
    lab.up(images=False)
    assert lab.pulumi_commands()[0] == "stack select --create --secrets-provider awskms://alias/state @lab"


def test_a_failed_build_is_repeated(lab: FakeEnvironment) -> None:
    (lab.folder / "up.failure").write_text("the network went away")
    with pytest.raises(SpotmpiError, match="the network went away"):
        lab.up()
    lab.up()
    assert [action.split()[0] for action in lab.actions] == ["Build", "Build", "push", "run"]
    assert lab.pulumi_commands().count("up --yes --skip-preview @lab") == 2


@pytest.mark.parametrize("failure", ["the network went away", Killed], ids=["failed", "killed"])
@pytest.mark.parametrize("step", ["Build", "push", "data", "run"])
def test_a_failed_or_killed_up_continues_and_does_nothing_twice(
    lab: FakeEnvironment, step: str, failure: str | type[Killed]
) -> None:
    options: dict[str, Any] = {"data": (("set", "voc"),), "expires": timedelta(hours=8)}
    lab.failures[step] = failure
    with pytest.raises((SpotmpiError, Killed)):
        lab.up(**options)
    assert lab.actions[-1].split()[0] == step

    lab.up(**options)

    tries = [what.split()[0] for what in lab.actions]
    steps = ["Build", "push", "data", "run"]
    assert list(dict.fromkeys(tries)) == steps
    again = {step, "data"} if step == "run" else {step}  # what is staged is looked at each time
    assert {each for each in steps if tries.count(each) == 2} == again and len(tries) == len(steps) + len(again)
    assert lab.pulumi_commands().count("up --yes --skip-preview @lab") == 1
    assert read_inventory("spotmpi-lab", "us-east-1", ACCOUNT).of("file systems") == {"fs-1"}
    assert lab.account.autoscaling.scheduled_actions["eks-g4dn"]["MaxSize"] == 0


def test_up_with_credentials_of_another_account_than_the_stacks_changes_nothing(live: FakeEnvironment) -> None:
    live.account.sts.account = "999999999999"
    with pytest.raises(
        SpotmpiError, match="credentials belong to account 999999999999, but this is cluster spotmpi-lab"
    ):
        live.up()
    assert live.actions == live.pulumi_commands() == []


GROUP = "/aws/eks/spotmpi-lab/cluster"


def test_a_recreated_log_group_of_a_former_environment_is_deleted_after_a_confirmation(lab: FakeEnvironment) -> None:
    lab.account.logs.groups = {GROUP, "/aws/eks/spotmpi-lab-two/cluster"}
    lab.up(images=False)
    assert lab.actions[0].startswith(f"Delete log group {GROUP}? EKS recreated it")
    assert lab.account.logs.groups == {"/aws/eks/spotmpi-lab-two/cluster"}


def test_declining_to_delete_the_log_group_builds_nothing_and_prints_the_command(lab: FakeEnvironment) -> None:
    lab.account.logs.groups, lab.confirmations = {GROUP}, [False]
    with pytest.raises(NotConfirmed, match=f"aws logs delete-log-group --log-group-name {GROUP} --region us-east-1"):
        lab.up()
    assert lab.pulumi_commands() == [] and lab.account.logs.groups == {GROUP}


def test_the_stacks_own_log_group_is_not_deleted(live: FakeEnvironment) -> None:
    live.account.logs.groups = {GROUP}
    live.up(images=False)
    assert live.actions == [] and live.account.logs.groups == {GROUP}


def test_a_cluster_outside_the_state_is_an_error(lab: FakeEnvironment) -> None:
    lab.account.logs.groups, lab.account.eks.version = {GROUP}, "1.35"
    with pytest.raises(SpotmpiError, match="cluster spotmpi-lab exists in us-east-1 but is not in this stack's state"):
        lab.up()
    assert lab.pulumi_commands() == [] and lab.account.logs.groups == {GROUP}


def test_a_declined_confirmation_changes_nothing(lab: FakeEnvironment) -> None:
    lab.confirmations = [False]
    with pytest.raises(NotConfirmed, match="lab was not changed"):
        lab.up()
    assert lab.pulumi_commands() == FIRST[:2] and lab.actions == ["Build lab as shown?"]


def test_an_update_that_another_one_overtakes_before_the_confirmation_is_not_carried_out(
    lab: FakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another checkout, whose node groups this one would remove without having shown them."""
    confirm = lab.confirm

    def confirm_late(question: str) -> bool:
        monkeypatch.setattr(lab, "confirm", confirm)
        return bool(lab.up(images=False).name)

    monkeypatch.setattr(lab, "confirm", confirm_late)
    with pytest.raises(SpotmpiError, match="lab was not changed: another update has changed it since this"):
        lab.up(images=False)
    assert lab.pulumi_commands() == [*FIRST[:2], *FIRST]
    lab.up(images=False)


def test_an_error_of_the_doctor_stops_up_and_a_warning_does_not(lab: FakeEnvironment) -> None:
    lab.findings = [Finding("quota", "warning", "7 of 8", "ask for more")]
    lab.up()
    lab.findings.append(Finding("credentials", "error", "expired", "log in again"))
    with pytest.raises(SpotmpiError, match="errors of the doctor: 1; the first: credentials expired: log in again"):
        lab.up()
    assert "warning: quota 7 of 8" in lab.output


def test_a_stack_without_a_zone_is_an_error_with_the_command_to_choose_one(lab: FakeEnvironment) -> None:
    groups = "  spotmpi:groups:\n    - {name: g, type: g5.xlarge, max: 2}\n"
    (lab.folder / "stacks" / "Pulumi.lab.yaml").write_text("config:\n  aws:region: us-east-1\n" + groups)
    with pytest.raises(InputError, match=r"`spotmpi zones --types g5.xlarge --nodes N --write lab` compares zones"):
        lab.up()
    assert lab.pulumi_commands() == []


def test_persistent_storage_is_built_first(lab: FakeEnvironment) -> None:
    lab.up_with_data_stack()
    assert [line.rpartition("@")[2] for line in lab.pulumi_commands()] == ["lab-data"] * 3 + ["lab"] * 3
    assert not any(each.startswith(("push", "run")) for each in lab.actions)


def test_up_says_what_stays_billed_before_it_asks_once_storage_is_not_kept_any_more(lab: FakeEnvironment) -> None:
    lab.up_with_data_stack()
    assert not any("not deleted" in line for line in lab.output)
    lab.write_stack()
    (lab.folder / "steps").write_text("[]")
    lab.confirmations = [False]
    with pytest.raises(NotConfirmed):
        lab.up(images=False)
    assert lab.output[-1] == (
        "not deleted, and billed by the GB: the storage spotmpi-lab-data, which this environment does not use: `pulumi "
        "state unprotect --all --yes --stack lab-data && pulumi destroy --stack lab-data` deletes it with its data"
    )


def test_aws_closes_groups_when_an_environment_expires_and_the_next_up_opens_them(lab: FakeEnvironment) -> None:
    lab.up(images=False, expires=timedelta(hours=8))

    end = lab.account.autoscaling.scheduled_actions["eks-g4dn"]
    assert (end["MinSize"], end["MaxSize"], end["DesiredCapacity"]) == (0, 0, 0)
    assert timedelta(hours=7, minutes=59) < end["StartTime"] - datetime.now(UTC) <= timedelta(hours=8)
    lab.account.autoscaling.groups["eks-g4dn"]["MaxSize"] = 0  # as AWS leaves it after that time
    lab.up(images=False)
    assert lab.account.autoscaling.groups["eks-g4dn"]["MaxSize"] == 2
    assert lab.account.autoscaling.scheduled_actions == {}


def test_a_group_that_aws_does_not_show_is_not_taken_for_one_that_will_be_closed(lab: FakeEnvironment) -> None:
    hidden = lab.account.autoscaling.groups.pop("eks-g4dn")
    with pytest.raises(SpotmpiError, match="AWS shows no Auto Scaling group of g4dn in spotmpi-lab: repeat"):
        lab.up(images=False, expires=timedelta(hours=8))
    lab.account.autoscaling.groups["eks-g4dn"] = hidden
    lab.up(images=False, expires=timedelta(hours=8))
    assert list(lab.account.autoscaling.scheduled_actions) == ["eks-g4dn"]


def test_the_sizes_of_all_parts_of_a_closed_group_are_restored(lab: FakeEnvironment) -> None:
    lab.up()
    for name, sizes in (("eks-g4dn", "2-450"), ("eks-g4dn-2", "0-50")):
        lab.account.autoscaling.add(name, {**GROUP_TAGS, "spotmpi:nodes": sizes}, most=0)
    lab.up()
    opened = {name: (group["MinSize"], group["MaxSize"]) for name, group in lab.account.autoscaling.groups.items()}
    assert opened == {"eks-g4dn": (2, 450), "eks-g4dn-2": (0, 50)}


def test_a_failed_smoke_run_is_reported_and_repeated_by_the_next_up(lab: FakeEnvironment) -> None:
    failed = RunState("smoke-1", "", "smoke", "failed", reason="no capacity")
    dependencies = replace(lab.dependencies, run_job=lambda values, **more: failed)
    with pytest.raises(SpotmpiError, match="the smoke run failed: no capacity; see `spotmpi logs smoke-1`"):
        up("lab", dependencies)
    lab.up()
    assert lab.actions.count("run chainermn on lab") == 1


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("the stack is currently locked by 1 lock(s)", "`pulumi cancel --yes --stack lab`"),
        (
            "could not create secrets manager for new stack: passphrase must be set with PULUMI_CONFIG_PASSPHRASE",
            "choose one and set PULUMI_CONFIG_PASSPHRASE, or name a KMS key as `secretsprovider` in its file",
        ),
        (
            "Could not automatically download and install resource plugin 'pulumi-resource-aws' at version v7.12.0",
            "Pulumi lacks a plugin and could not install it: check this machine's network",
        ),
        ("incorrect passphrase", "set PULUMI_CONFIG_PASSPHRASE to the one it was created with"),
        # pkg/cmd/pulumi/util.go and pkg/cmd/pulumi/cmd/errors.go
        (
            "the stack 'lab' is newer than what this version of the Pulumi CLI understands. Please update your version",
            "a newer Pulumi wrote the state of lab: update this one, then repeat the command",
        ),
        (
            "The Pulumi CLI encountered a snapshot integrity error. This is a bug!" + "\n* line" * 20,
            "the state of lab is damaged: `pulumi state repair --stack lab`, or restore an earlier version of it",
        ),
        (
            "could not deserialize deployment: unexpected end of JSON input",
            "the state of lab is damaged: `pulumi state",
        ),
        ("PULUMI_ACCESS_TOKEN must be set", "set PULUMI_BACKEND_URL, for example to s3://my-state"),
        (
            "MissingRegion: could not find region",
            "append it to PULUMI_BACKEND_URL, as in s3://my-state?region=us-east-1",
        ),
        ("AWS account ID not allowed: 1, not one of 2", "for another account than that of lab: assume a role there"),
        ("stack lab can't be built, settings to change: 1", "settings to change: 1; they are listed above"),
        ("exit code: 1\nModuleNotFoundError: No module named 'pulumi'", "run `./scripts/setup` there"),
        ("boom", "`pulumi up --stack lab` failed: boom; the same command continues"),
        (
            "creating EKS Access Entry (spotmpi-lab:arn:aws:iam::1:role/me): operation error EKS: CreateAccessEntry, "
            "ResourceInUseException: The specified access entry resource is already in use on this cluster.",
            "arn:aws:iam::1:role/me already has access to the cluster",
        ),
    ],
)
def test_pulumis_errors_come_with_a_remedy(lab: FakeEnvironment, failure: str, message: str) -> None:
    (lab.folder / "up.failure").write_text(failure)
    with pytest.raises(SpotmpiError) as failed:
        lab.up()
    assert message in str(failed.value) and "\n" not in str(failed.value)


def test_a_policy_pack_is_asked_at_the_preview_and_at_the_update(lab: FakeEnvironment, tmp_path: Path) -> None:
    lab.up(images=False, policy_pack=tmp_path)
    select, preview, update = lab.pulumi_commands()
    assert (select, preview.split()[-3:-1], update.split()[-3:-1]) == (
        *(FIRST[0], ["--policy-pack", str(tmp_path)], ["--policy-pack", str(tmp_path)]),
    )


def test_pulumi_is_a_process_in_the_project_whose_output_is_shown_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\necho "$* $SPOTMPI_REPLACE_NODES $PULUMI_SKIP_UPDATE_CHECK in ${PWD##*/}"\n'
        'case $1 in up) error=boom;; stack) error="no stack named lab";; *) exit 0;; esac\n'
        'echo "error: $error" >&2; exit 255\n'
    )
    program.chmod(0o755)
    output: list[str] = []
    pulumi = Pulumi(output.append, tmp_path / "project", {"PATH": f"{program.parent}:/usr/bin:/bin"})

    assert not pulumi.with_flags("SPOTMPI_REPLACE_NODES").preview("lab").changes
    (line,) = output
    assert line.startswith("preview --expect-no-changes --event-log /")
    assert line.endswith("/events --stack lab --non-interactive 1 true in project")
    with pytest.raises(SpotmpiError, match="`pulumi up --stack lab` failed: boom"):
        pulumi.run("lab", "up")
    assert output[-1] == "error: boom" and pulumi.state("lab") is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, None])
def test_what_ends_spotmpi_lets_pulumi_finish_which_would_leave_a_lock_and_what_it_was_creating(
    tmp_path: Path, number: signal.Signals | None
) -> None:
    """As a terminal that is closed, CI, which signals spotmpi alone, or `| head`; Pulumi must get one signal, once."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests under nohup inherit as ignored
    program = tmp_path / "pulumi"
    program.write_text(
        f"#!{sys.executable} -S\nimport signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})\n"
        "print('creating', flush=True)\nsignal.sigwait({signal.SIGINT})\nprint('finished', flush=True)\n"
        f"open({str(tmp_path / 'end')!r}, 'w').write(str(signal.sigpending()))\n"
    )
    program.chmod(0o755)
    output: list[str] = []

    def echo(line: str) -> None:
        output.append(line)
        if line == "creating" and number:
            os.kill(os.getpid(), number)
        elif line == "creating":
            raise BrokenPipeError

    with pytest.raises((KeyboardInterrupt, SystemExit) if number else BrokenPipeError) as ended:
        Pulumi(echo, tmp_path, {"PATH": str(tmp_path)}).run("lab", "up")
    # As commands that follow a run; that of a Ctrl-C is 130 as well.
    assert not isinstance(ended.value, SystemExit) or ended.value.code == 128 + (number or 0)
    assert isinstance(ended.value, SystemExit) == (number in (signal.SIGTERM, signal.SIGHUP))
    assert output == ["creating", "waiting for Pulumi to shut down"]
    assert (tmp_path / "end").read_text() == "set()"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_missing_pulumi_is_reported(lab: FakeEnvironment) -> None:
    with pytest.raises(SpotmpiError, match="command not found: pulumi"):
        Pulumi(print, lab.folder, {"PATH": "/nowhere"}).run("lab", "preview")


def test_without_a_terminal_up_needs_yes(lab: FakeEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_commands, "open_account", lambda region, echo: lab.dependencies.aws)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    dependencies = environment_commands.open_dependencies("lab", False)
    with pytest.raises(InputError, match=r"pass --yes to confirm without a terminal: Build lab"):
        dependencies.confirm("Build lab as shown?")
    assert isinstance(dependencies.pulumi, Pulumi)
    assert environment_commands.open_dependencies("lab", True).confirm("?")


def test_a_stack_without_a_zone_gets_the_best_row_after_a_confirmation(
    lab: FakeEnvironment, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    settings = "config:\n  aws:region: us-east-1\n  spotmpi:groups:\n    - {name: g4dn, type: g4dn.xlarge, max: 2}\n"
    (lab.folder / "stacks" / "Pulumi.lab.yaml").write_text(settings)
    monkeypatch.setattr("spotmpi.environments.zones.comparison.open_account", lambda: lab.account)
    lab.confirmations = [False]
    code, _, errors = command("up", "lab", "--no-images")
    assert code == 1 and read_stack("lab").zone is None and lab.pulumi_commands() == []
    assert "`spotmpi zones --types g4dn.xlarge --nodes 2 --write lab --row N` chooses another row" in errors
    lab.actions.clear()
    code, output, _ = command("up", "lab", "--no-images")
    assert code == 0 and read_stack("lab").zone == "us-east-1a"
    assert lab.actions[:2] == ["lab has no zone yet. Use row 1, g4dn.xlarge in us-east-1a?", "Build lab as shown?"]
    assert "g4dn.xlarge in us-east-1b: " in output
