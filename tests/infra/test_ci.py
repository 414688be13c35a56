"""The CI scripts as a whole, with a scripted `pulumi` on PATH and moto behind real boto3."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from infra.ci import aws, stack_file
from infra.ci.errors import CiError
from tests.infra.ci_account import ACCOUNT, LAB
from tests.infra.conftest import Ci
from tests.infra.scripted_pulumi import ScriptedPulumi


def test_a_stack_with_a_kms_key_needs_no_passphrase(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    path = project / "stacks" / "Pulumi.lab.yaml"
    path.write_text(path.read_text() + "secretsprovider: awskms://alias/spotmpi-state?region=us-east-1\n")
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    pulumi.answers(*["0 done"] * 2)
    assert ci("up", "lab")[0] == 0
    select = "stack select --create --secrets-provider awskms://alias/spotmpi-state?region=us-east-1"
    assert pulumi.commands == [select, "up --yes --policy-pack infra/guardrails"]


def test_another_account_is_refused_before_pulumi_runs(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_ACCOUNT", "999999999999")
    code, _, errors = ci("destroy", "lab")
    assert code == 1
    assert pulumi.calls == []
    assert "account 123456789012, but stack 'lab' belongs to 999999999999" in errors
    assert "nothing was changed" in errors


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PULUMI_BACKEND_URL": ""}, "PULUMI_BACKEND_URL is (not set): set it to the bucket"),
        ({"PULUMI_BACKEND_URL": "https://api.pulumi.com"}, "PULUMI_BACKEND_URL is https://api.pulumi.com"),
        ({"PULUMI_CONFIG_PASSPHRASE": None}, "it decrypts the state's secrets"),
        ({"SPOTMPI_ACCOUNT": None}, "has no account: set spotmpi:account there, or SPOTMPI_ACCOUNT"),
    ],
)
def test_a_missing_variable_is_named(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str | None], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    code, _, errors = ci("up", "lab")
    assert code == 1
    assert message in errors
    assert pulumi.calls == []


@pytest.mark.parametrize("arguments", [(), ("lab", "p3"), ("--yes",)])
def test_wrong_usage_is_status_2(pulumi: ScriptedPulumi, ci: Ci, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as exit:
        ci("destroy", *arguments)
    assert exit.value.code == 2
    assert pulumi.calls == []


def test_an_unknown_stack_lists_the_known_ones(pulumi: ScriptedPulumi, ci: Ci) -> None:
    code, _, errors = ci("destroy", "nope")
    assert code == 1 and "use one of lab, p3-data, or create it" in errors


def test_persistent_storage_is_never_destroyed_by_ci(pulumi: ScriptedPulumi, ci: Ci) -> None:
    code, _, errors = ci("destroy", "p3-data")
    assert code == 1 and "holds persistent storage" in errors
    assert pulumi.calls == []


class ScriptedDown:
    """A `spotmpi` beside Python that records its arguments and variables, and exits with a given status."""

    def __init__(self, folder: Path):
        self._call, self._status = folder / "call", folder / "status"
        self.python = folder / "python"
        program = folder / "spotmpi"
        program.write_text(
            f'#!/bin/sh\necho "$* [$PULUMI_BACKEND_URL] [$AWS_REGION]" > {self._call}\nexit $(cat {self._status})\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.exit_with(0)

    def exit_with(self, status: int) -> None:
        self._status.write_text(str(status))

    @property
    def call(self) -> str:
        return self._call.read_text().strip()


@pytest.fixture
def down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedDown:
    scripted = ScriptedDown(tmp_path)
    monkeypatch.setattr("sys.executable", str(scripted.python))
    return scripted


@pytest.mark.parametrize("status", [0, 1])
def test_a_stack_is_taken_down_by_spotmpi_down(pulumi: ScriptedPulumi, ci: Ci, down: ScriptedDown, status: int) -> None:
    pulumi.answers("0 lab")
    down.exit_with(status)
    assert ci("destroy", "lab")[0] == status
    assert down.call == "down lab --yes [s3://example-state] [us-east-1]"
    assert [call.split(" --stack")[0] for call in pulumi.calls] == ["stack --show-name"]


def test_spotmpi_down_is_the_real_command(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.never_built()  # else the state is shown, which needs no passphrase
    pulumi.answers("0 lab", "255 error: incorrect passphrase")
    code, _, errors = ci("destroy", "lab")
    assert code == 1 and "the state of lab can't be decrypted: set PULUMI_CONFIG_PASSPHRASE" in errors
    assert [call.split(" --stack")[0] for call in pulumi.calls] == ["stack --show-name", "stack export"]


def test_without_spotmpi_next_to_python_the_error_names_setup(
    pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    pulumi.answers("0 lab")
    code, _, errors = ci("destroy", "lab")
    assert code == 1 and "command not found: /nowhere/spotmpi; run ./scripts/setup" in errors


def test_a_stale_lock_is_reported_with_the_remedy(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("255 error: the stack is currently locked by 1 lock(s).")
    code, _, errors = ci("up", "lab")
    assert code == 1 and "pulumi cancel --yes --stack lab" in errors
    assert len(pulumi.calls) == 1, "a locked stack is not tried again"


def test_a_stack_that_was_never_built_is_reported(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.never_built()
    pulumi.answers("255 error: no stack named 'lab' found")
    code, _, errors = ci("preview", "lab")
    assert code == 1 and "no state of stack 'lab' in s3://example-state" in errors


def test_a_stack_that_was_never_built_is_no_failure_at_night(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("255 error: no stack named 'lab' found")
    code, _, errors = ci("destroy", "lab", "--if-built")
    assert code == 0 and "nothing to destroy" in errors
    assert len(pulumi.calls) == 1


def test_up_stops_at_the_first_step_that_fails(pulumi: ScriptedPulumi, ci: Ci) -> None:
    pulumi.answers("0 selected", "7 quota")
    assert ci("up", "lab")[0] == 7
    assert len(pulumi.calls) == 2


def test_a_log_group_that_eks_recreated_is_reported_with_the_remedy(pulumi: ScriptedPulumi, ci: Ci) -> None:
    # As the AWS provider reports it (terraform-aws-eks#920, #2277 and others).
    message = (
        "creating CloudWatch Logs Log Group (/aws/eks/spotmpi-lab/cluster): ResourceAlreadyExistsException: The ..."
    )
    pulumi.answers("0 selected", f"255 error: {message}")
    code, _, errors = ci("up", "lab")
    assert code == 1
    command = "aws logs delete-log-group --log-group-name /aws/eks/spotmpi-lab/cluster --region us-east-1"
    assert command in errors


def test_a_missing_pulumi_is_reported(pulumi: ScriptedPulumi, ci: Ci, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, errors = ci("preview", "lab")
    assert code == 1 and "pulumi is not on PATH" in errors


def test_missing_credentials_name_the_account_to_log_in_to() -> None:
    class Sts:
        def get_caller_identity(self) -> Any:
            raise NoCredentialsError

    with pytest.raises(CiError, match="log in, or assume a role in account 123456789012"):
        aws.check_account(LAB, Sts())


def test_file_and_variable_have_to_agree_on_the_account(project: Path) -> None:
    path = project / "stacks" / "Pulumi.lab.yaml"
    path.write_text(f'config:\n  aws:region: us-east-1\n  spotmpi:account: "{ACCOUNT}"\n')
    assert stack_file.read("lab", path.parent, {}).account == ACCOUNT
    with pytest.raises(CiError, match="make them agree"):
        stack_file.read("lab", path.parent, {"SPOTMPI_ACCOUNT": "999999999999"})
