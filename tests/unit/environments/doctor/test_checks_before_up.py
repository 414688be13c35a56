"""`spotmpi doctor` before anything is built: each check passing and failing."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.settings import Settings
from spotmpi.aws.zones import default_second_zone
from spotmpi.environments.doctor import doctor, run_tool
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.environments.doctor.unbuilt import STACK, TOOLS, finding_of, stack, tool_output


def test_in_a_healthy_account_every_line_is_ok(account: FakeAccount) -> None:
    findings = doctor("mine", account, tool_output)

    assert [finding for finding in findings if finding.level != "ok"] == []
    assert [finding.check for finding in findings] == [
        *("credentials", "region", "zone", "second zone", "pulumi", "aws", "kubectl", "group gpus", "quota of gpus"),
        *(
            f"leftover {what}"
            for what in (
                "CloudFormation stacks",
                "file systems",
                "mount targets",
                "network interfaces",
                "volumes",
                "log groups",
                "keys",
                "image repositories",
            )
        ),
    ]


def test_without_a_stack_only_account_and_tools_are_checked(account: FakeAccount) -> None:
    findings = doctor(None, account, tool_output)

    assert [finding.check for finding in findings] == ["credentials", "region", "pulumi", "aws", "kubectl"]


def test_credentials_of_another_account_end_the_account_checks(account: FakeAccount) -> None:
    stack(STACK + "  spotmpi:account: '999999999999'\n")

    findings = doctor("mine", account, tool_output)

    assert findings[0].level == "error" and "the stack to 999999999999" in findings[0].message
    assert [finding.check for finding in findings[1:]] == ["pulumi", "aws", "kubectl", "account"]


def test_the_root_user_is_a_warning(account: FakeAccount) -> None:
    account.script("GetCallerIdentity", Account="1", Arn="arn:aws:iam::1:root")

    assert finding_of(account, "credentials").level == "warning"


def test_expired_credentials_are_one_error_and_the_tools_are_still_checked(account: FakeAccount) -> None:
    account.refuse("GetCallerIdentity", "ExpiredToken")

    findings = doctor("mine", account, tool_output)

    assert [finding.level for finding in findings] == ["error", "ok", "ok", "ok", "warning"]
    assert "have expired" in findings[0].message and "not checked without credentials" in findings[-1].message


@pytest.mark.parametrize(
    ("region", "message"), [("af-south-1", "is not enabled"), ("eu-nowhere-1", "AWS has no region")]
)
def test_an_unusable_region_is_an_error(account: FakeAccount, region: str, message: str) -> None:
    stack(STACK.replace("us-east-1\n", f"{region}\n"))

    finding = finding_of(account, "region")

    assert finding.level == "error" and message in finding.message and finding.remedy


def test_a_zone_of_another_region_is_an_error_that_lists_the_zones(account: FakeAccount) -> None:
    stack(STACK.replace("us-east-1a", "us-west-2a"))

    finding = finding_of(account, "zone")

    assert (
        finding.level == "error" and finding.remedy == "set spotmpi:zone to one of us-east-1a, us-east-1b, us-east-1c"
    )


def test_a_zone_without_one_zone_storage_is_an_error_if_the_stack_needs_it(account: FakeAccount) -> None:
    account.ec2.zones["us-east-1"]["us-east-1d"] = "use1-az9"  # a zone younger than the table
    stack(STACK.replace("us-east-1a", "us-east-1d"))
    assert "EFS has no One Zone storage in us-east-1d (use1-az9)" in finding_of(account, "zone").message

    stack(STACK.replace("us-east-1a", "us-east-1d") + "  spotmpi:storage: {one_zone: false}\n")
    assert finding_of(account, "zone").level == "ok"


def test_a_zone_that_eks_does_not_support_is_an_error_whatever_its_letter(account: FakeAccount) -> None:
    stack(STACK.replace("us-east-1a", "us-east-1b") + "  spotmpi:storage: {one_zone: false}\n")
    assert finding_of(account, "zone").message == "EKS does not support zone us-east-1b (use1-az3)"

    account.ec2.zones["us-east-1"]["us-east-1b"] = "use1-az2"
    assert finding_of(account, "zone").level == "ok"


DEFAULT = STACK.replace("  spotmpi:second_zone: us-east-1c\n", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEFAULT, "EKS does not support zone us-east-1b (use1-az3), the default"),
        (STACK.replace("us-east-1c", "us-east-1b"), "EKS does not support zone us-east-1b (use1-az3)"),
        (STACK.replace("us-east-1c", "us-east-1f"), "us-east-1 has no zone us-east-1f"),
        (STACK.replace("us-east-1c", "us-east-1a"), "us-east-1a is the first zone; EKS needs a second one"),
    ],
)
def test_an_unusable_second_zone_lists_the_usable_ones(account: FakeAccount, text: str, message: str) -> None:
    account.ec2.zones["us-east-1"]["us-east-1d"] = "use1-az4"
    stack(text)

    finding = finding_of(account, "second zone")

    assert (finding.level, finding.message) == ("error", message)
    assert finding.remedy == "set spotmpi:second_zone to one of us-east-1c, us-east-1d"


def test_the_default_second_zone_is_that_of_infra_and_checked_by_its_id(account: FakeAccount) -> None:
    account.ec2.zones["us-east-1"] = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az4"}
    stack(DEFAULT)
    assert finding_of(account, "second zone").message == "us-east-1b is use1-az4"
    for zone in ("us-east-1a", "us-east-1b", "us-east-1f"):
        settings = Settings(stack="mine", region="us-east-1", zone=zone)
        assert settings.other_zone == default_second_zone("us-east-1", zone)


@pytest.mark.parametrize(
    ("name", "answer", "level", "message"),
    [
        ("pulumi", None, "error", "command not found"),
        ("pulumi", "v3.199.0", "error", "v3.199.0 is too old"),
        ("pulumi", "3.200.1-dev", "ok", "3.200.1"),
        ("aws", None, "error", "command not found"),
        ("aws", "aws-cli/1.44.0 Python/3", "error", "1.44.0 is too old"),
        ("kubectl", None, "warning", "command not found"),
        ("kubectl", "Client Version: v1.30.2", "warning", "v1.30.2 is too old"),
        ("kubectl", "", "warning", "unknown version"),
    ],
)
def test_each_tool_must_be_installed_and_new_enough(
    account: FakeAccount, name: str, answer: str | None, level: str, message: str
) -> None:
    finding = finding_of(account, name, lambda command: answer if command[0] == name else TOOLS[command[0]])

    assert (finding.level, message in finding.message) == (level, True)
    assert (finding.level == "ok") or finding.command.startswith("https://")


def test_versions_are_read_from_real_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "pulumi"
    program.write_text('#!/bin/sh\necho "v3.$#.7"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert run_tool(("pulumi", "version")) == "v3.1.7\n"
    assert run_tool(("no-such-program",)) is None


def test_a_type_that_the_zone_does_not_offer_is_an_error_with_the_remedy(account: FakeAccount) -> None:
    account.ec2.not_offered.add(("g5.xlarge", "us-east-1a"))

    finding = finding_of(account, "group gpus")

    assert (finding.level, finding.message) == ("error", "g5.xlarge is not offered in us-east-1a")
    assert finding.command == "spotmpi zones --types g5.xlarge --nodes 8 --write mine"


def test_a_type_that_does_not_exist_is_an_error(account: FakeAccount) -> None:
    stack(STACK.replace("g5.xlarge", "g99.xlarge"))

    assert "has no instance type g99.xlarge" in finding_of(account, "group gpus").message


def test_a_group_that_needs_a_placement_group_its_type_lacks_is_an_error(account: FakeAccount) -> None:
    stack(STACK.replace("g5.xlarge", "t3.xlarge"))
    assert "does not support cluster placement groups" in finding_of(account, "group gpus").message

    stack(STACK.replace("g5.xlarge, max: 8", "t3.xlarge, max: 8, placement_group: false"))
    assert finding_of(account, "group gpus").level == "ok"


@pytest.mark.parametrize(
    ("quota", "running", "level", "message"),
    [
        (32.0, [], "ok", "leaves 32 vCPUs: 8 of 8"),
        (32.0, ["g4dn.xlarge"], "warning", "leaves 28 vCPUs: 7 of 8"),
        (3.0, [], "error", "leaves 3 vCPUs: 0 of 8"),
        (0.0, ["g4dn.xlarge"], "error", "leaves 0 vCPUs: 0 of 8"),
    ],
)
def test_the_quota_is_compared_with_the_groups_max(
    account: FakeAccount, quota: float, running: list[str], level: str, message: str
) -> None:
    account.quotas.values["L-3819A6DF"], account.ec2.spot_types["us-east-1"] = quota, running

    finding = finding_of(account, "quota of gpus")

    assert finding.level == level and message in finding.message
    assert ("--request-quota" in finding.command) == (level != "ok")
