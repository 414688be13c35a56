"""`spotmpi zones` on the command line: table, JSON, a changed stack file, a confirmed request."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core import names
from tests.cloud.account.answers import SECRET, TOKEN, Refusal
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.market import NOW, quota_request
from tests.command_line import SPOTMPI, CommandLine, invoke


@pytest.fixture
def spotmpi(account: FakeAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs a command in a folder with the ready stacks: exit code, stdout and stderr."""
    shutil.copytree(names.PROJECT / "stacks", tmp_path / "stacks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spotmpi.environments.zones.comparison.open_account", lambda: account)
    return invoke


LAB_FILE = Path("stacks/Pulumi.lab.yaml")
G_QUOTA = "L-3819A6DF"
ZONES = ("zones", "--types", "g5.xlarge,g4dn.xlarge", "--nodes", "8")


def test_the_table_has_a_line_for_each_row_and_a_reason_for_all_but_the_first(spotmpi: CommandLine) -> None:
    code, out, err = spotmpi(*ZONES)

    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.split()[1:2] in (["g5.xlarge"], ["g4dn.xlarge"])]
    table, reasons = rows[:6], rows[6:]
    assert [cells[0] for cells in table] == ["1", "2", "3", "4", "5", "6"]
    assert table[0][1:7] == ["g4dn.xlarge", "us-east-1a", "yes", "$0.2000", "0.2000-0.4000", "3"]
    assert "$0.5260 62% 32 of 64 - 0 16 yes no yes" in " ".join(table[0])
    assert [cells[0] for cells in reasons] == ["2", "3", "4", "5", "6"]
    assert all(cells[2] == "in" and cells[4:] for cells in reasons)
    assert "A whole environment at row 1: $0.20/h idle, $1.93/h with 8 busy nodes" in out


def test_a_narrow_terminal_gets_two_tables_with_whole_words(
    spotmpi: CommandLine, account: FakeAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.refuse("GetProducts", "AccessDeniedException")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich, this is what makes a terminal

    out = re.sub(r"\x1b\[[0-9;]*m", "", spotmpi(*ZONES)[1])

    tables = out[: out.index(" in us-")].splitlines()
    assert all(len(line) <= 80 for line in tables)
    numbered = [line.split()[0] for line in tables if line.split()[:1] and line.split()[0].isdigit()]
    assert numbered[:12] == ["1", "2", "3", "4", "5", "6"] * 2
    assert any("g4dn.xlarge" in line and "us-east-1a" in line and "0.2000-0.4000" in line for line in tables)


def test_the_quota_that_the_first_row_lacks_is_printed(spotmpi: CommandLine, account: FakeAccount) -> None:
    account.quotas.values[G_QUOTA] = 8.0
    assert "Row 1 lacks 24 vCPUs of spot quota for 8 nodes: --request-quota requests them." in spotmpi(*ZONES)[1]


def test_a_column_that_is_not_permitted_is_marked_and_stderr_names_the_right_to_allow(
    spotmpi: CommandLine, account: FakeAccount
) -> None:
    account.refuse("GetSpotPlacementScores", "UnauthorizedOperation")
    code, out, err = spotmpi(*ZONES)
    assert code == 0 and "not permitted" in " ".join(out.split())
    assert err == ("spotmpi: ec2:GetSpotPlacementScores in us-east-1 is not permitted: allow it in your IAM policy\n")


def test_pending_requests_are_printed_with_their_age(spotmpi: CommandLine, account: FakeAccount) -> None:
    account.quotas.requests = [quota_request(G_QUOTA, 64, datetime.now(UTC) - timedelta(days=3, hours=2))]
    line = "Requested 3 days ago: 64 vCPUs of spot G and VT in us-east-1 (PENDING, request r-1)."
    assert line in spotmpi(*ZONES)[1]


def test_json_holds_every_row_and_null_for_unknown_values(spotmpi: CommandLine, account: FakeAccount) -> None:
    account.refuse("GetProducts", "AccessDeniedException")

    code, out, _ = spotmpi(*ZONES, "--json")

    comparison = json.loads(out)
    first = comparison["rows"][0]
    assert code == 0 and first["zone"] == "us-east-1a" and len(comparison["rows"]) == 6
    assert first["on_demand"] is None and first["unknown"] == {"on_demand": "not permitted"}
    assert comparison["written"] is None and comparison["requested"] is None


def test_write_changes_only_region_zone_and_type_and_prints_the_reason(spotmpi: CommandLine) -> None:
    before = LAB_FILE.read_text().splitlines()
    code, _, err = spotmpi(*ZONES, "--region", "us-west-2", "--write", "lab")
    changed = [line.strip() for line in LAB_FILE.read_text().splitlines() if line not in before]
    assert code == 0 and changed == ["aws:region: us-west-2", "spotmpi:zones: [us-west-2a]"]
    assert "zone us-west-2a, type g4dn.xlarge (row 1: best of 4)" in err
    assert "the first zone was us-east-1a: if lab is already built" in err


def test_write_sets_a_second_zone_where_eks_does_not_support_the_default_one(spotmpi: CommandLine) -> None:
    code, _, err = spotmpi(*ZONES, "--write", "lab")
    assert code == 0 and "  spotmpi:second_zone: us-east-1c\n" in LAB_FILE.read_text()
    assert "second zone set to us-east-1c: EKS needs a second one, and supports this one" in err
    assert "second zone" not in spotmpi(*ZONES, "--write", "lab")[2]
    assert "EKS does not support use1-az3; choose another row" in spotmpi(*ZONES, "--row", "6", "--write", "lab")[2]


def test_another_row_is_written_only_with_row(spotmpi: CommandLine) -> None:
    code, _, err = spotmpi(*ZONES, "--row", "3", "--write", "lab")
    assert code == 0 and "type: g5.xlarge" in LAB_FILE.read_text()
    assert "(row 3: $0.2000/h more per node (+100%))" in err


def test_write_warns_of_a_smaller_max_and_of_storage_in_another_stack(spotmpi: CommandLine) -> None:
    err = spotmpi("zones", "--types", "g5.xlarge", "-n", "20", "--write", "g5")[2]
    assert "group g5 has max 16: raise it to 20 for 20 nodes" in err
    assert "its storage is in the stack g5-data: set the same first zone in that stack's file" in err


def test_the_price_of_an_environment_is_that_of_the_stack_to_write(spotmpi: CommandLine) -> None:
    """The g5 stack is private: a NAT gateway with one address, instead of an address for each system node."""
    idle = [
        json.loads(spotmpi(*ZONES, "--write", stack, "--group", group, "--json")[1])["rows"][0]["idle"]
        for stack, group in (("lab", "g4dn"), ("g5", "g5"))
    ]
    assert idle[1] - idle[0] == pytest.approx(0.045 - 0.005)


def test_the_price_of_extended_support_is_said_where_it_is_in_that_of_an_environment(spotmpi: CommandLine) -> None:
    assert "extended support:" not in spotmpi(*ZONES, "--write", "lab")[1]
    LAB_FILE.write_text(LAB_FILE.read_text() + "  spotmpi:cluster: {version: '1.33'}\n")
    out = spotmpi(*ZONES, "--write", "lab")[1]
    assert "$0.50/h of that for Kubernetes 1.33, which EKS has in extended support: set a newer cluster.version" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--write", "nowhere"), "stack = 'nowhere': no file Pulumi.<stack>.yaml in stacks/; stacks: cpu, g5, "),
        (("--write", "../stacks/lab"), "no file Pulumi.<stack>.yaml"),
        (("--row", "9", "--write", "lab"), "--row = 9: give a row from 1 to 6"),
        (("--row", "2", "--write", "lab", "--group", "x"), "--group = 'x': name the group of"),
        (
            ("--request-quota",),
            "--yes: pass --yes to confirm without a terminal: Request spot G and VT in us-east-1: 0 -> 32 vCPUs?",
        ),
        (("--region", "moon"), "--region = 'moon': not an AWS region"),
    ],
)
def test_invalid_options_give_one_line_and_exit_code_2(
    spotmpi: CommandLine, account: FakeAccount, more: tuple[str, ...], message: str
) -> None:
    account.quotas.values[G_QUOTA] = 0.0
    before = LAB_FILE.read_text()
    code, _, err = spotmpi(*ZONES, *more)
    assert code == 2 and message in err and len(err.splitlines()) == 1
    assert LAB_FILE.read_text() == before
    assert account.requests_of("RequestServiceQuotaIncrease") == []


@pytest.mark.parametrize(("answer", "requests"), [("y", 1), ("n", 0)])
def test_a_request_needs_confirmation(
    spotmpi: CommandLine, account: FakeAccount, monkeypatch: pytest.MonkeyPatch, answer: str, requests: int
) -> None:
    account.quotas.values[G_QUOTA] = 0.0
    terminal = io.StringIO(f"{answer}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    spotmpi(*ZONES, "--request-quota")
    assert len(account.requests_of("RequestServiceQuotaIncrease")) == requests


def test_a_confirmed_request_is_made_and_no_second_one_while_it_is_pending(
    spotmpi: CommandLine, account: FakeAccount
) -> None:
    account.quotas.values[G_QUOTA] = 0.0
    code, out, err = spotmpi(*ZONES, "--request-quota", "--yes", "--json")
    assert code == 0 and json.loads(out)["requested"]["vcpus"] == 32
    assert "requested spot G and VT in us-east-1: 0 -> 32 vCPUs (request r-1, PENDING)" in err

    account.quotas.requests = [quota_request(G_QUOTA, 64, NOW)]
    code, _, err = spotmpi(*ZONES, "--request-quota", "--yes")
    assert code == 0 and "a request for 64 vCPUs is pending (PENDING, request r-1)" in err
    assert len(account.requests_of("RequestServiceQuotaIncrease")) == 1


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no usable AWS credentials: run `aws configure sso`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "nobody"}, "set AWS_PROFILE to one of `aws configure list-profiles`"),
        ({"AWS_ACCESS_KEY_ID": "A" * 20}, "no usable AWS credentials"),
        ({"AWS_PROFILE": "sso"}, "the AWS login has expired (Error loading SSO Token: Token for corp does not exist)"),
        ({"AWS_CONFIG_FILE": "broken"}, "Unable to parse config file: broken: correct that file"),
    ],
)
def test_without_credentials_a_real_process_prints_one_line(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        "[profile sso]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = dev\n"
        "[sso-session corp]\nsso_region = us-east-1\nsso_start_url = https://corp.example\n"
    )
    (tmp_path / "broken").write_text("[profile")
    base: dict[str, Any] = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    result = subprocess.run(
        [SPOTMPI, *ZONES, "--region", "us-east-1"],
        env=base | environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )

    assert result.returncode == 1 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("spotmpi: ") and message in line


def test_no_secret_reaches_the_terminal_even_when_aws_repeats_it(spotmpi: CommandLine, account: FakeAccount) -> None:
    text = f"bad token X-Amz-Security-Token={TOKEN}&x=1 aws_secret_access_key: {SECRET}"
    account.refusals["GetSpotPlacementScores"] = None, Refusal("InternalError", text)
    code, out, err = spotmpi(*ZONES)
    assert code == 0 and "InternalError" in err and "[redacted]" in err
    assert TOKEN not in out + err and SECRET not in out + err
