"""`spotmpi plan` as it is typed: table, JSON, a changed stack file, a request after a yes."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core import names
from tests.cloud.scripted_account import NOW, SECRET, TOKEN, ScriptedAccount, World, increase
from tests.unit.conftest import InProcess


@pytest.fixture
def spotmpi(
    account: ScriptedAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: InProcess
) -> InProcess:
    """Runs a command in a folder with the ready stacks: exit code, stdout and stderr."""
    shutil.copytree(names.PROJECT / "stacks", tmp_path / "stacks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spotmpi.environments.zones.comparison.open_account", lambda: account.aws)
    return in_process


class Terminal(io.StringIO):
    """A person who has typed something."""

    def isatty(self) -> bool:
        return True


PLAN = ("plan", "--types", "g5.xlarge,g4dn.xlarge", "--nodes", "8")


def test_the_table_has_a_line_for_each_row_and_a_reason_for_all_but_the_first(spotmpi: InProcess) -> None:
    code, said, complaint = spotmpi(*PLAN)

    assert (code, complaint) == (0, "")
    rows = [line.split() for line in said.splitlines() if line.split()[1:2] in (["g5.xlarge"], ["g4dn.xlarge"])]
    table, reasons = rows[:6], rows[6:]
    assert [cells[0] for cells in table] == ["1", "2", "3", "4", "5", "6"]
    assert table[0][1:7] == ["g4dn.xlarge", "us-east-1a", "yes", "$0.2000", "0.2000-0.4000", "3"]
    assert "$0.5260 62% 32 of 64 - 0 16 yes no yes" in " ".join(table[0])
    assert [cells[0] for cells in reasons] == ["2", "3", "4", "5", "6"] and all("lost:" in cells for cells in reasons)
    assert "A whole environment at row 1: $0.20/h idle, $1.93/h with 8 nodes at work" in said


def test_a_narrow_terminal_gets_two_tables_with_whole_words(
    spotmpi: InProcess, account: ScriptedAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.refuse("GetProducts", "AccessDeniedException")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich, this is what makes a terminal

    said = re.sub(r"\x1b\[[0-9;]*m", "", spotmpi(*PLAN)[1])

    tables = said[: said.index("lost:")].splitlines()
    assert all(len(line) <= 80 for line in tables)
    numbered = [line.split()[0] for line in tables if line.split()[:1] and line.split()[0].isdigit()]
    assert numbered[:12] == ["1", "2", "3", "4", "5", "6"] * 2
    assert any("g4dn.xlarge" in line and "us-east-1a" in line and "0.2000-0.4000" in line for line in tables)


def test_a_best_row_that_lacks_quota_says_so(spotmpi: InProcess, world: World) -> None:
    world.quota["L-3819A6DF"] = 8.0

    assert "Row 1 lacks 24 vCPUs of spot quota for 8 nodes: --request-quota asks for them." in spotmpi(*PLAN)[1]


def test_a_column_that_is_not_permitted_says_so_and_stderr_says_what_to_allow(
    spotmpi: InProcess, account: ScriptedAccount
) -> None:
    account.refuse("GetSpotPlacementScores", "UnauthorizedOperation")

    code, said, complaint = spotmpi(*PLAN)

    assert code == 0 and "not permitted" in " ".join(said.split())
    assert complaint == (
        "spotmpi: ec2:GetSpotPlacementScores in us-east-1 is not permitted: let your IAM policy allow it\n"
    )


def test_open_requests_are_shown_with_their_age(spotmpi: InProcess, world: World) -> None:
    from datetime import UTC, datetime

    world.pending = [increase("L-3819A6DF", 64, datetime.now(UTC) - timedelta(days=3, hours=2))]

    said = spotmpi(*PLAN)[1]

    assert "Asked for 3 days ago: 64 vCPUs of spot G and VT in us-east-1 (PENDING, request r-1)." in said


def test_json_holds_every_row_and_says_null_for_what_is_unknown(spotmpi: InProcess, account: ScriptedAccount) -> None:
    account.refuse("GetProducts", "AccessDeniedException")

    code, said, _ = spotmpi(*PLAN, "--json")

    plan = json.loads(said)
    assert code == 0 and plan["rows"][0]["zone"] == "us-east-1a" and len(plan["rows"]) == 6
    assert plan["rows"][0]["on_demand"] is None and plan["rows"][0]["gaps"] == {"on_demand": "not permitted"}
    assert plan["written"] is None and plan["requested"] is None


def test_write_changes_three_lines_and_tells_why(spotmpi: InProcess) -> None:
    before = Path("stacks/Pulumi.lab.yaml").read_text()

    code, _, complaint = spotmpi(*PLAN, "--region", "us-west-2", "--write", "lab")

    after = Path("stacks/Pulumi.lab.yaml").read_text()
    changed = [line.strip() for line in after.splitlines() if line not in before.splitlines()]
    assert code == 0 and changed == ["aws:region: us-west-2", "spotmpi:zone: us-west-2a"]
    assert "zone us-west-2a, type g4dn.xlarge (row 1: best of 4)" in complaint
    assert "it was us-east-1a: where lab is built already" in complaint


def test_write_names_a_second_zone_where_eks_does_not_take_the_default_one(spotmpi: InProcess) -> None:
    code, _, complaint = spotmpi(*PLAN, "--write", "lab")

    assert code == 0 and "  spotmpi:second_zone: us-east-1c\n" in Path("stacks/Pulumi.lab.yaml").read_text()
    assert "second zone us-east-1c: EKS asks for one besides, and takes this one" in complaint

    assert "second zone" not in spotmpi(*PLAN, "--write", "lab")[2]
    assert "EKS takes no subnets in use1-az3; take another row" in spotmpi(*PLAN, "--row", "6", "--write", "lab")[2]


def test_another_row_is_written_only_when_it_is_named(spotmpi: InProcess) -> None:
    code, _, complaint = spotmpi(*PLAN, "--row", "3", "--write", "lab")

    assert code == 0 and "type: g5.xlarge" in Path("stacks/Pulumi.lab.yaml").read_text()
    assert "(row 3: $0.2000/h more for a node (+100%))" in complaint


def test_write_says_where_the_stack_asks_for_fewer_nodes_and_that_storage_is_elsewhere(spotmpi: InProcess) -> None:
    complaint = spotmpi("plan", "--types", "g5.xlarge", "-n", "20", "--write", "g5")[2]

    assert "group g5 has max 16: raise it to 20 for 20 nodes" in complaint
    assert "its storage is in the stack g5-data: that file has to name the same zone" in complaint


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--write", "nowhere"), "stack = 'nowhere': no file Pulumi.<stack>.yaml in stacks/; there are: cpu, g5, "),
        (("--write", "../stacks/lab"), "no file Pulumi.<stack>.yaml"),
        (("--row", "9", "--write", "lab"), "--row = 9: there are rows 1 to 6"),
        (("--row", "2", "--write", "lab", "--group", "x"), "--group = 'x': say which group of"),
        (("--request-quota",), "--yes: say --yes to ask AWS for spot G and VT in us-east-1: 0 -> 32 vCPUs"),
        (("--region", "moon"), "--region = 'moon': is not an AWS region"),
    ],
)
def test_what_can_not_be_done_is_one_line_and_exit_code_2(
    spotmpi: InProcess, world: World, account: ScriptedAccount, more: tuple[str, ...], told: str
) -> None:
    world.quota["L-3819A6DF"] = 0.0
    before = Path("stacks/Pulumi.lab.yaml").read_text()

    code, _, complaint = spotmpi(*PLAN, *more)

    assert code == 2 and told in complaint and len(complaint.splitlines()) == 1
    assert Path("stacks/Pulumi.lab.yaml").read_text() == before
    assert account.calls("RequestServiceQuotaIncrease") == []


def test_a_request_is_made_after_yes_and_told(spotmpi: InProcess, world: World, account: ScriptedAccount) -> None:
    world.quota["L-3819A6DF"] = 0.0

    code, said, complaint = spotmpi(*PLAN, "--request-quota", "--yes", "--json")

    assert code == 0 and json.loads(said)["requested"]["vcpus"] == 32
    assert "asked for spot G and VT in us-east-1: 0 -> 32 vCPUs (request r-1, PENDING)" in complaint


@pytest.mark.parametrize(("answer", "asked"), [("y", 1), ("n", 0)])
def test_a_person_is_asked_first(
    spotmpi: InProcess,
    world: World,
    account: ScriptedAccount,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    asked: int,
) -> None:
    world.quota["L-3819A6DF"] = 0.0
    monkeypatch.setattr(sys, "stdin", Terminal(answer + "\n"))

    spotmpi(*PLAN, "--request-quota")

    assert len(account.calls("RequestServiceQuotaIncrease")) == asked


def test_a_second_request_is_not_made_while_one_is_open(
    spotmpi: InProcess, world: World, account: ScriptedAccount
) -> None:
    world.quota["L-3819A6DF"], world.pending = 0.0, [increase("L-3819A6DF", 64, NOW)]

    code, _, complaint = spotmpi(*PLAN, "--request-quota", "--yes")

    assert code == 0 and "64 vCPUs are asked for already (PENDING, request r-1)" in complaint
    assert account.calls("RequestServiceQuotaIncrease") == []


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "no usable AWS credentials: run `aws configure sso`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "nobody"}, "set AWS_PROFILE to one of `aws configure list-profiles`"),
        ({"AWS_ACCESS_KEY_ID": "A" * 20}, "no usable AWS credentials"),
    ],
)
def test_without_credentials_a_real_process_says_so_in_one_line(
    tmp_path: Path, environment: dict[str, str], told: str
) -> None:
    base: dict[str, Any] = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [Path(sys.executable).with_name("spotmpi"), *PLAN, "--region", "us-east-1"],
        env=base | environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )

    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("spotmpi: ") and told in line


def test_no_secret_reaches_the_terminal_even_when_aws_repeats_it(spotmpi: InProcess, account: ScriptedAccount) -> None:
    def answer(region: str, asked: Any) -> Any:
        from tests.cloud.scripted_account import Refusal

        raise Refusal("InternalError", f"bad token X-Amz-Security-Token={TOKEN}&x=1 aws_secret_access_key: {SECRET}")

    account.answers["GetSpotPlacementScores"] = answer
    code, said, complaint = spotmpi(*PLAN)

    assert code == 0 and "InternalError" in complaint and "[redacted]" in complaint
    assert TOKEN not in said + complaint and SECRET not in said + complaint
