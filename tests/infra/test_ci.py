"""The CI scripts as a whole, with a scripted `pulumi` on PATH and moto behind real boto3."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ProfileNotFound
from moto import mock_aws
from moto.s3.models import s3_backends

from infra import names
from infra.ci import aws, losses, stack_file
from infra.ci.errors import CiError
from infra.ci.redaction import redact
from spotmpi.environments import changes
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.pulumi_errors import explain
from tests.cloud.account.fake_account import FakeAccount
from tests.infra.conftest import ACCOUNT, Ci
from tests.infra.scripted_pulumi import STATE, ScriptedPulumi, secret

PREVIEW = "preview --policy-pack infra/guardrails"
UP = "up --yes --skip-preview --policy-pack infra/guardrails"


def node_group_step(op: str, scaling_group: str) -> dict[str, Any]:
    """A step with a node group as the engine's event log has it."""
    outputs = {"resources": [{"autoscalingGroups": [{"name": scaling_group}]}]}
    old = {"id": f"lab:{scaling_group.removeprefix('eks-')}", "outputs": outputs}
    return {"op": op, "type": "aws:eks/nodeGroup:NodeGroup", "old": old}


SET_ACCESS = "config set --path spotmpi:access"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No spotmpi next to Python, as in a project that `spotmpi init --environment` wrote."""
    monkeypatch.setattr("sys.executable", "/nowhere/python")


@pytest.mark.usefixtures("alone")
def test_a_stack_with_a_kms_key_needs_no_passphrase(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, lab_file: Path
) -> None:
    key = "awskms://alias/spotmpi-state?region=us-east-1"
    lab_file.write_text(lab_file.read_text() + f"secretsprovider: {key}\n")
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    pulumi.answers(*["0 done"] * 3)
    assert ci("up", "lab")[0] == 0
    assert pulumi.commands == [f"stack select --create --secrets-provider {key}", PREVIEW, UP]


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        ({"PULUMI_BACKEND_URL": ""}, ("up", "lab"), "PULUMI_BACKEND_URL is (not set): set it to the bucket"),
        (
            {"PULUMI_BACKEND_URL": "https://api.pulumi.com"},
            ("up", "lab"),
            "PULUMI_BACKEND_URL is https://api.pulumi.com",
        ),
        ({"PULUMI_CONFIG_PASSPHRASE": None}, ("up", "lab"), "it decrypts the state's secrets"),
        ({"SPOTMPI_ACCOUNT": None}, ("up", "lab"), "has no account: set spotmpi:account there, or SPOTMPI_ACCOUNT"),
        (
            {"SPOTMPI_ACCOUNT": "999999999999"},
            ("destroy", "lab"),
            "account 123456789012, but stack lab belongs to 999999999999: assume a role there; nothing was changed",
        ),
        ({}, ("destroy", "nope"), "use one of lab, p3-data, or create it"),
        ({}, ("destroy", "p3-data"), "holds persistent storage"),
    ],
)
def test_a_command_that_is_refused_runs_no_pulumi(
    pulumi: ScriptedPulumi,
    ci: Ci,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str | None],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    code, _, errors = ci(*arguments)
    assert code == 1 and message in errors
    assert pulumi.calls == []


@pytest.mark.parametrize("command", ["preview", "up"])
def test_a_stack_without_access_is_refused_with_the_variable_to_set(
    pulumi: ScriptedPulumi, ci: Ci, lab_file: Path, command: str
) -> None:
    lab_file.write_text("config:\n  aws:region: us-east-1\n")
    code, _, errors = ci(command, "lab")
    assert code == 1 and "set spotmpi:access in its file, or SPOTMPI_ACCESS" in errors
    assert pulumi.calls == []


@pytest.mark.parametrize("arguments", [(), ("lab", "p3"), ("--yes",)])
def test_wrong_usage_is_status_2(pulumi: ScriptedPulumi, ci: Ci, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        ci("destroy", *arguments)
    assert exit.value.code == 2
    assert pulumi.calls == []


@pytest.mark.parametrize("status", [0, 1])
def test_a_stack_is_taken_down_by_spotmpi_down(
    pulumi: ScriptedPulumi, ci: Ci, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    program = tmp_path / "spotmpi"
    program.write_text(f'#!/bin/sh\necho "$* [$PULUMI_BACKEND_URL] [$AWS_REGION]" > {tmp_path}/call\nexit {status}\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")  # of the state's bucket
    pulumi.answers("0 lab")
    assert ci("destroy", "lab")[0] == status
    assert (tmp_path / "call").read_text() == "down lab --yes [s3://example-state] [eu-west-1]\n"
    assert pulumi.commands == ["stack --show-name"]


@pytest.mark.parametrize("status", [0, 1])
def test_an_environment_is_built_by_spotmpi_up_and_closed_to_the_runner_however_that_ends(
    pulumi: ScriptedPulumi, ci: Ci, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    program = tmp_path / "bin" / "spotmpi"
    program.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/call\npulumi by spotmpi\nexit {status}\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    create_cluster("198.51.100.7/32", "192.0.2.1/32")
    pulumi.answers(*["0 done"] * 6)
    assert ci("up", "lab", "--access", "192.0.2.1/32")[0] == status
    assert (tmp_path / "call").read_text() == "up lab --yes --no-images --policy-pack infra/guardrails\n"
    *before, by_spotmpi, removed, preview, update = pulumi.commands
    assert by_spotmpi.startswith("by spotmpi")
    assert before == ["stack select --create", f"{SET_ACCESS}[1] 192.0.2.1/32"]
    assert [removed, preview, update] == [
        "config rm --path spotmpi:access[1]",
        "preview --target **aws:eks/cluster:Cluster::**",
        "up --yes --skip-preview --target **aws:eks/cluster:Cluster::**",
    ]


def test_spotmpi_up_is_the_real_command_with_the_options_that_ci_gives(
    pulumi: ScriptedPulumi, ci: Ci, lab_file: Path
) -> None:
    pulumi.answers("0 selected")
    code, _, errors = ci("up", "lab")
    assert code == 2 and "--policy-pack" in errors and "infra/guardrails" in errors  # which the small project lacks


def test_spotmpi_down_is_the_real_command(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.never_built()  # else the state is shown, which needs no passphrase
    pulumi.answers("0 lab", "255 error: incorrect passphrase")
    code, _, errors = ci("destroy", "lab")
    assert code == 1 and "the state of lab can't be decrypted: set PULUMI_CONFIG_PASSPHRASE" in errors
    assert pulumi.commands == ["stack --show-name", "stack export"]


def test_what_ci_confirms_by_a_variable_refuses_no_preview_of_spotmpi_down(
    pulumi: ScriptedPulumi, tmp_path: Path
) -> None:
    variables = {**os.environ, "PULUMI_SKIP_CONFIRMATIONS": "true"}
    pulumi.answers("0 previewed")
    Pulumi(lambda line: None, tmp_path, variables).run("lab", "destroy", "--preview-only")
    assert pulumi.commands == ["destroy --preview-only"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("status", [0, 255])
def test_without_spotmpi_next_to_python_pulumi_takes_the_stack_down(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """As in a project that `spotmpi init --environment` wrote."""
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    pulumi.answers("0 lab", f"{status} destroyed", "0 removed")
    code, _, errors = ci("destroy", "lab")
    assert code == status and "/nowhere/spotmpi is not installed: leftover resources are not listed" in errors
    remove = [] if status else ["stack rm --yes --preserve-config"]
    assert pulumi.commands == ["stack --show-name", "destroy --yes --skip-preview", *remove]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("arguments", "answers", "status", "message"),
    [
        (
            ("up", "lab"),
            ("255 error: the stack is currently locked by 1 lock(s).",),
            1,
            "pulumi cancel --yes --stack lab",
        ),
        # What is not built is not a failure at night.
        (("destroy", "lab", "--if-built"), ("255 error: no stack named 'lab' found",), 0, "nothing to destroy"),
        (("up", "lab"), ("0 selected", "7 quota"), 7, "quota"),
        # As the AWS provider reports a log group that EKS recreated (terraform-aws-eks#920, #2277 and others).
        (
            ("up", "lab"),
            (
                "0 selected",
                "255 error: creating CloudWatch Logs Log Group (/aws/eks/spotmpi-lab/cluster): "
                "ResourceAlreadyExistsException: The ...",
            ),
            1,
            "aws logs delete-log-group --log-group-name /aws/eks/spotmpi-lab/cluster --region us-east-1",
        ),
    ],
    ids=["a stale lock", "never built", "a failed step", "a recreated log group"],
)
def test_pulumis_first_error_ends_the_command_with_a_remedy(
    pulumi: ScriptedPulumi, ci: Ci, arguments: tuple[str, ...], answers: tuple[str, ...], status: int, message: str
) -> None:
    pulumi.answers(*answers)
    code, output, errors = ci(*arguments)
    assert code == status and message in output + errors
    assert len(pulumi.calls) == len(answers)


QUOTA = (
    "error: aws:ec2:Vpc resource 'spotmpi-lab' has a problem: creating EC2 VPC: operation error EC2: CreateVpc, https "
    "response error StatusCode: 400, RequestID: 6bd3b1c6-0b1a, api error VpcLimitExceeded: The maximum number of VPCs "
    "has been reached."
)


@pytest.mark.parametrize(("command", "stack"), [("up", "p3-data"), ("preview", "lab")])
def test_what_pulumi_says_is_explained_as_by_spotmpi_up(
    pulumi: ScriptedPulumi, ci: Ci, command: str, stack: str
) -> None:
    pulumi.answers("0 done", "0 done", f"7 {QUOTA}")
    code, output, errors = ci(command, stack)
    assert code == 7 and QUOTA in output
    assert errors.splitlines()[-1] == f"error: {explain(stack, command, QUOTA)}"
    assert "a quota of the account is used up: delete what nobody needs, or request an increase" in errors


@pytest.mark.usefixtures("alone")
def test_without_spotmpi_pulumis_own_words_are_all_that_is_shown(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("0 selected", f"7 {QUOTA}")
    code, output, errors = ci("up", "lab")
    assert code == 7 and QUOTA in output and "error: " not in errors


def test_a_state_that_cannot_be_read_is_explained_too(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.never_built()
    pulumi.answers("255 error: failed to load checkpoint: blob (code=Unknown): ExpiredToken: The token has expired.")
    code, _, errors = ci("preview", "lab")
    assert code == 1 and "the AWS credentials are missing, wrong or expired: log in again (`aws sso login`" in errors


def lock_message(age: timedelta, count: int = 1) -> str:
    """What Pulumi prints: pulumi, pkg/backend/diy/lock.go, checkForLock. As a line of echo, which knows \\n."""
    taken = (datetime.now(UTC) - age).isoformat(timespec="seconds").replace("+00:00", "Z")
    lock = f"s3://example-state/.pulumi/locks/lab/1.json: created by runner@fv-az1 (pid 7) at {taken}"
    return f"error: the stack is currently locked by {count} lock(s). Either wait for the other process(es)\\n  {lock}"


NO_CONTENT = "s3://example-state/1.json: created by @ (pid 0) at 0001-01-01T00:00:00Z"  # what it says of {}
CANCELLED = ["destroy --yes --skip-preview", "cancel --yes", "destroy --yes --skip-preview"]


@pytest.mark.parametrize("by_spotmpi", [True, False])
def test_at_night_a_lock_that_no_job_can_hold_any_more_is_cancelled(
    pulumi: ScriptedPulumi, ci: Ci, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_spotmpi: bool
) -> None:
    program = tmp_path / "bin" / "spotmpi"
    if by_spotmpi:  # which passes on what Pulumi says
        program.write_text("#!/bin/sh\npulumi destroy --yes --skip-preview --stack lab\n")
        program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    pulumi.answers("0 lab", f"255 {lock_message(timedelta(minutes=121))}", "0 cancelled", "0 destroyed", "0 removed")
    code, _, errors = ci("destroy", "lab", "--if-built", "--cancel-locks-after", "120")
    assert code == 0 and "cancelling the lock of" in errors and "no job runs for 121 minutes" in errors
    assert pulumi.commands[1:4] == CANCELLED


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("age", "count", "options"),
    [
        (timedelta(minutes=119), 1, ("--cancel-locks-after", "120")),
        (timedelta(days=9), 2, ("--cancel-locks-after", "120")),  # the other's time is unknown
        (None, 1, ("--cancel-locks-after", "120")),
        (timedelta(days=9), 1, ()),
    ],
    ids=["young", "two", "without a time", "by hand"],
)
def test_any_other_lock_is_left_to_whoever_holds_it(
    pulumi: ScriptedPulumi,
    ci: Ci,
    monkeypatch: pytest.MonkeyPatch,
    age: timedelta | None,
    count: int,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    # Written here, not with the parameters, which are made minutes before on a slow machine.
    message = lock_message(age, count) if age else f"error: the stack is currently locked by {count} lock(s)."
    pulumi.answers("0 lab", f"255 {message}")
    code, _, errors = ci("destroy", "lab", *options)
    assert code == 1 and "pulumi cancel --yes --stack lab" in errors
    assert pulumi.commands == ["stack --show-name", "destroy --yes --skip-preview"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("age", "code"), [(121, 0), (119, 1)])
def test_of_a_damaged_lock_in_a_bucket_its_object_has_the_age(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, age: int, code: int
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://example-state/team?region=us-east-1")
    client, now = boto3.client("s3", region_name="us-east-1"), datetime.now(UTC)
    client.create_bucket(Bucket="example-state")
    for file, minutes in {"lab/1.json": age + 60, "lab/2.json": age, "lab-two/1.json": 0}.items():
        key = f"team/.pulumi/locks/organization/spotmpi/{file}"
        client.put_object(Bucket="example-state", Key=key)
        written = (now - timedelta(minutes=minutes)).replace(tzinfo=None)
        s3_backends[ACCOUNT]["aws"].buckets["example-state"].keys[key].last_modified = written
    pulumi.answers("0 lab", "255 error: unexpected end of JSON input", "0 cancelled", "0 destroyed", "0 removed")
    result, _, errors = ci("destroy", "lab", "--cancel-locks-after", "120")
    assert (result, pulumi.commands[1:4] == CANCELLED) == (code, code == 0)
    assert (f"no job runs for {age} minutes" if code == 0 else "a lock of lab is damaged: if no update") in errors


LOCKS = ".pulumi/locks/organization/spotmpi/lab/"


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("backend", "show", "delete"),
    [
        (
            "gs://states/team",
            f"gcloud storage ls --long gs://states/team/{LOCKS}",
            f"gcloud storage rm 'gs://states/team/{LOCKS}*.json'",
        ),
        (
            "gs://states",
            f"gcloud storage ls --long gs://states/{LOCKS}",
            f"gcloud storage rm 'gs://states/{LOCKS}*.json'",
        ),
        (
            "azblob://states/team?storage_account=ours",
            f"az storage blob list --account-name ours --container-name states --prefix team/{LOCKS} "
            "--query '[].[name, properties.lastModified]' --output tsv",
            f"az storage blob delete-batch --account-name ours --source states --pattern 'team/{LOCKS}*.json'",
        ),
        (
            "azblob://states",
            f"az storage blob list --container-name states --prefix {LOCKS} "
            "--query '[].[name, properties.lastModified]' --output tsv",
            f"az storage blob delete-batch --source states --pattern '{LOCKS}*.json'",
        ),
    ],
)
def test_of_a_damaged_lock_in_another_store_the_commands_are_named_that_say_its_age_and_delete_it(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, backend: str, show: str, delete: str
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
    pulumi.answers("0 lab", "255 error: unexpected end of JSON input")
    code, _, errors = ci("destroy", "lab", "--cancel-locks-after", "120")
    remedy = "if no update of it is running, `pulumi cancel --yes --stack lab`"
    commands = f"`{show}` says when it was written, and `{delete}` deletes it as well"
    assert code == 1 and f"error: a lock of lab is damaged: {remedy}; {commands}\n" in errors


@pytest.mark.usefixtures("alone")
def test_a_lock_in_another_store_that_says_its_time_is_cancelled_by_that(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://states")
    pulumi.answers("0 lab", f"255 {lock_message(timedelta(minutes=121))}", "0 cancelled", "0 destroyed", "0 removed")
    code, _, errors = ci("destroy", "lab", "--cancel-locks-after", "120")
    assert code == 0 and "gcloud" not in errors and pulumi.commands[1:4] == CANCELLED


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("age", [timedelta(minutes=1), None], ids=["", "damaged"])
def test_a_lock_is_reported_in_the_words_of_spotmpi_which_a_project_may_lack(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, age: timedelta | None
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    message = lock_message(age) if age else f"error: the stack is currently locked by 1 lock(s).\\n  {NO_CONTENT}"
    pulumi.answers("0 lab", f"255 {message}")
    code, _, errors = ci("destroy", "lab")
    assert code == 1 and f"{explain('lab', 'destroy', message)}\n" in errors


def test_a_missing_pulumi_is_reported(pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, errors = ci("preview", "lab")
    assert code == 1 and "pulumi is not on PATH" in errors


@pytest.mark.parametrize(
    "error", [NoCredentialsError(), ProfileNotFound(profile="x"), EndpointConnectionError(endpoint_url="x")]
)
def test_unusable_credentials_name_the_account_to_log_in_to(error: Exception) -> None:
    class Refusing:
        def get_caller_identity(self) -> Any:
            raise error

        def describe_cluster(self, name: str) -> Any:
            raise error

    file = stack_file.StackFile("lab", "us-east-1", ACCOUNT, "compute")
    with pytest.raises(CiError, match="log in, or assume a role in account 123456789012"):
        aws.check_account(file, Refusing())
    with pytest.raises(CiError, match="who may reach cluster spotmpi-lab"):
        aws.allowed_cidrs(file, ["192.0.2.1/32"], Refusing())


def test_a_region_that_does_not_know_the_keys_may_have_to_be_enabled() -> None:
    file = stack_file.StackFile("lab", "af-south-1", ACCOUNT, "compute")
    with pytest.raises(CiError, match=r"enable the region .`aws account enable-region --region-name af-south-1`"):
        aws.check_account(file, FakeAccount().client("sts", "af-south-1"))


def test_file_and_variable_have_to_agree_on_the_account(lab_file: Path) -> None:
    lab_file.write_text(f'config:\n  aws:region: us-east-1\n  spotmpi:account: "{ACCOUNT}"\n')
    assert stack_file.read("lab", lab_file.parent, {}).account == ACCOUNT
    with pytest.raises(CiError, match="make them agree"):
        stack_file.read("lab", lab_file.parent, {"SPOTMPI_ACCOUNT": "999999999999"})


def create_cluster(*cidrs: str) -> None:
    """Create stack lab's cluster in moto, whose public endpoint allows the CIDRs."""
    boto3.client("eks", region_name="us-east-1").create_cluster(
        name="spotmpi-lab",
        roleArn=f"arn:aws:iam::{ACCOUNT}:role/control",
        resourcesVpcConfig={"endpointPublicAccess": True, "publicAccessCidrs": list(cidrs)},
    )


@pytest.mark.usefixtures("alone")
def test_up_appends_addresses_to_those_of_the_file(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_ACCESS", "203.0.113.0/24,198.51.100.7/32")
    pulumi.answers(*["0 done"] * 4)
    assert ci("up", "lab")[0] == 0
    assert pulumi.commands == ["stack select --create", f"{SET_ACCESS}[1] 203.0.113.0/24", PREVIEW, UP]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("build_answer", "status"), [("0 built", 0), ("7 quota", 7)])
def test_a_temporary_address_is_removed_however_the_build_ends(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, build_answer: str, status: int
) -> None:
    monkeypatch.setenv("SPOTMPI_ACCESS", "203.0.113.0/24")
    create_cluster("198.51.100.7/32", "203.0.113.0/24", "192.0.2.1/32")
    pulumi.answers(*["0 done"] * 4, build_answer, *["0 done"] * 3)
    code, _, errors = ci("up", "lab", "--access", "192.0.2.1/32")
    assert code == status
    assert pulumi.commands[1:] == [
        f"{SET_ACCESS}[1] 203.0.113.0/24",
        f"{SET_ACCESS}[2] 192.0.2.1/32",
        PREVIEW,
        UP,
        "config rm --path spotmpi:access[2]",
        "preview --target **aws:eks/cluster:Cluster::**",
        "up --yes --skip-preview --target **aws:eks/cluster:Cluster::**",
    ]
    assert "removing access to the Kubernetes API for 192.0.2.1/32" in errors


@pytest.mark.usefixtures("alone")
def test_a_build_without_a_cluster_has_no_access_to_remove(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("0 selected", "0 set", "7 quota", "0 removed")
    assert ci("up", "lab", "--access", "192.0.2.1/32")[0] == 7
    assert pulumi.commands[-1] == "config rm --path spotmpi:access[1]"


@pytest.mark.usefixtures("alone")
def test_an_address_that_could_not_be_removed_is_reported_and_fails_the_command(pulumi: ScriptedPulumi, ci: Ci) -> None:
    create_cluster("198.51.100.7/32", "192.0.2.1/32")
    pulumi.answers("0 selected", "0 set", "0 previewed", "0 built", "0 removed", "0 previewed", "9 throttled")
    code, _, errors = ci("up", "lab", "--access", "192.0.2.1/32")
    assert code == 9 and "may still be open to 192.0.2.1/32: repeat the command" in errors


@pytest.mark.usefixtures("alone")
def test_an_address_that_an_earlier_build_left_is_not_removed_by_an_update_that_was_refused(
    pulumi: ScriptedPulumi, ci: Ci
) -> None:
    create_cluster("198.51.100.7/32", "192.0.2.1/32")
    pulumi.announce({"op": "replace", "type": "aws:eks/cluster:Cluster", "old": {"id": "spotmpi-lab"}})
    pulumi.answers(*["0 done"] * 5)
    code, _, errors = ci("up", "lab", "--access", "192.0.2.1/32")
    assert code == 1 and not [command for command in pulumi.commands if command.startswith("up")]
    assert "would end Cluster spotmpi-lab" in errors and "may still be open to 192.0.2.1/32" in errors


def test_persistent_storage_needs_no_access(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("0 selected", "0 previewed", "0 built")
    assert ci("up", "p3-data")[0] == 0


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("step", "lost"),
    [
        ({"op": "delete", "type": "aws:efs/fileSystem:FileSystem", "old": {"id": "fs-1"}}, "FileSystem fs-1"),
        ({"op": "replace", "type": "aws:eks/cluster:Cluster", "old": {"id": "spotmpi-lab"}}, "Cluster spotmpi-lab"),
        ({"op": "delete", "type": losses.RELEASE, "old": {"inputs": {"name": "kueue"}}}, "kueue, and with it all runs"),
        ({"op": "delete", "type": losses.RELEASE, "old": {"inputs": {"name": "dcgm-exporter"}}}, None),
        ({"op": "delete", "type": changes.LOCAL_QUEUE, "old": {"id": "training/vision"}}, "LocalQueue training/vision"),
        (node_group_step("delete", "eks-busy"), "3 running nodes of lab:busy"),
        (node_group_step("delete", "eks-idle"), None),
        (node_group_step("update", "eks-busy"), None),  # the program's hooks refuse what replaces nodes
    ],
)
def test_a_build_that_would_lose_data_or_running_nodes_is_left_to_a_person(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, step: dict[str, Any], lost: str | None
) -> None:
    monkeypatch.setattr(aws, "running_nodes", lambda file: {"eks-busy": 3, "eks-idle": 0})
    pulumi.announce(step)
    pulumi.answers("0 selected", "0 previewed", *["0 built"] * (lost is None))
    code, _, errors = ci("up", "lab")
    assert (code, pulumi.commands[-1]) == ((0, UP) if lost is None else (1, PREVIEW))
    if lost:
        assert f"stack lab was not changed: the update would end {lost}: undo the change, or run `spot" in errors


def test_a_build_whose_preview_can_not_be_read_is_not_applied(tmp_path: Path) -> None:
    with pytest.raises(CiError, match="stack lab was not changed: Pulumi wrote no event log"):
        losses.require_none(tmp_path / "none", "lab", dict)


def test_running_nodes_are_counted_in_the_stacks_own_cluster() -> None:
    file = stack_file.StackFile("lab", "us-east-1", ACCOUNT, "compute")
    with mock_aws():
        autoscaling = boto3.client("autoscaling", region_name="us-east-1")
        autoscaling.create_launch_configuration(LaunchConfigurationName="c", ImageId="ami-1", InstanceType="t3.small")
        for cluster, nodes in (("spotmpi-lab", 2), ("spotmpi-other", 1)):
            autoscaling.create_auto_scaling_group(
                AutoScalingGroupName=f"eks-{cluster}",
                LaunchConfigurationName="c",
                MinSize=nodes,
                MaxSize=nodes,
                AvailabilityZones=["us-east-1a"],
                Tags=[{"Key": "eks:cluster-name", "Value": cluster}],
            )
        assert aws.running_nodes(file) == {"eks-spotmpi-lab": 2}


def test_ci_and_the_cli_know_the_same_kinds_of_resources_that_must_not_go() -> None:
    assert set(losses.LOST) == {*changes._ENVIRONMENT, *changes._DATA, *changes._IN_USE}
    assert (names.NODE_GROUP, losses.GONE) == (changes.NODE_GROUP, changes._GONE)
    assert (losses.RELEASE, losses.RELEASES_OF_RUNS) == (changes._RELEASE, changes._RELEASES_OF_RUNS)


def test_a_preview_checks_the_account_and_the_guardrails(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("0 created", "0 imported", "0 1 to create")
    code, output, errors = ci("preview", "lab")
    assert code == 0
    ssh = "urn:pulumi:lab::spotmpi::spotmpi:inside:MpiSsh$kubernetes:core/v1:Secret::mpi-ssh"
    command = f"preview --diff --policy-pack infra/guardrails --exclude {ssh} --stack lab --non-interactive"
    assert pulumi.calls[-1].startswith(f"{command} [file:///")
    assert pulumi.calls[-1].endswith("/state] [true] [us-east-1]")
    assert "account (account), as arn:aws:sts:***" in errors
    left_out = "not compared, because they hold secrets (providers are shown as updated): kubernetes:core/v1:Secret"
    assert left_out in errors
    assert "1 to create" in output


def test_a_preview_shows_no_account_no_role_and_no_address_of_people(
    pulumi: ScriptedPulumi, ci: Ci, lab_file: Path
) -> None:
    """Its output is in a public log and a public comment, where the repository is public."""
    printed = (
        '+ arn:aws:iam::123456789012:role/ci-x publicAccessCidrs: ["198.51.100.7/32", "2001:db8::/48"] '
        "registry 123456789012.dkr.ecr.us-east-1.amazonaws.com mail: ops@example.org vpc: 10.0.0.0/16 version 0.10.1 "
        "refused: 198.51.100.8."
    )
    pulumi.answers("0 created", "0 imported", f"0 {printed}")
    code, output, errors = ci("preview", "lab")
    assert code == 0
    shown = (
        '+ arn:aws:iam:*** publicAccessCidrs: ["(address)", "(address)"] '
        "registry (account).dkr.ecr.us-east-1.amazonaws.com mail: (mail) vpc: 10.0.0.0/16 version 0.10.1 "
        "refused: (address)."
    )
    assert shown in output
    everything = output + errors
    assert not [each for each in (ACCOUNT, "198.51.100", "2001:db8", "ops@", "arn:aws:sts::") if each in everything]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("from 2001::1, 2001:DB8::7/128 and 1:2:3:4:5:6:7:8", "from (address), (address) and (address)"),
        ("2001:db8::1: refused; [2001:db8:0:1::]:443 too.", "(address): refused; [(address)]:443 too."),
        ("::1 and ::ffff:198.51.100.7", "(address) and (address):(address)"),
        *((each, each) for each in ("created at 12:34:56", "2026-11-27T12:34:56Z", "::/0", "urn:pulumi:cafe::dead::x")),
        *((each, each) for each in ("02:42:ac:11:00:02", "aws:ec2/vpc:Vpc", "lab::", "12::34g")),
    ],
)
def test_a_preview_hides_every_way_to_write_an_ipv6_address_and_nothing_else_with_colons(
    printed: str, shown: str
) -> None:
    assert redact(printed) == shown


def test_a_refused_preview_shows_no_account_either(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_ACCOUNT", "999999999999")
    code, _, errors = ci("preview", "lab")
    assert code == 1 and "credentials are for account (account)" in errors and "999999999999" not in errors


def test_a_preview_reads_the_state_once_and_gets_neither_secrets_nor_keys(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, lab_file: Path
) -> None:
    lab_file.write_text(lab_file.read_text() + "encryptionsalt: v1:x\n")
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    pulumi.answers("0 created", "0 imported", "0 1 to create")
    assert ci("preview", "lab")[0] == 0
    reads = [call.split(" [")[0] for call in pulumi.calls if "[s3://example-state]" in call]
    assert reads == ["stack export --stack lab --non-interactive"]
    assert "ciphertext" not in json.dumps(pulumi.imported)
    key, vpc, ssh, shell = pulumi.imported["resources"]
    replacement = secret(plaintext=json.dumps("apiVersion: v1\nkind: Config\n"))
    assert key["outputs"]["private"] == shell["inputs"]["kubeconfig"] == replacement
    assert ssh["inputs"]["stringData"] == [replacement]
    assert vpc == STATE["resources"][1]
    assert lab_file.read_text().endswith("encryptionsalt: v1:x\n")


def test_a_preview_includes_the_storage_of_the_data_stack(pulumi: ScriptedPulumi, ci: Ci, lab_file: Path) -> None:
    lab_file.write_text(lab_file.read_text() + "  spotmpi:storage: {keep: true}\n")
    pulumi.answers(*["0 done"] * 5)
    assert ci("preview", "lab")[0] == 0
    exported = [call for call in pulumi.calls if "[s3://example-state]" in call]
    assert [call.split("--stack ")[1].split()[0] for call in exported] == ["lab-data", "lab"]


def test_a_preview_includes_permanent_access(pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_ACCESS", "203.0.113.0/24")
    pulumi.answers(*["0 done"] * 4)
    assert ci("preview", "lab")[0] == 0
    assert pulumi.commands[-2] == f"{SET_ACCESS}[1] 203.0.113.0/24"


def test_a_preview_of_a_stack_that_was_never_built_is_reported(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.never_built()
    pulumi.answers("255 error: no stack named 'lab' found")
    code, _, errors = ci("preview", "lab")
    assert code == 1 and "no state of stack lab in s3://example-state" in errors
