"""What the doctor says of the Kubernetes version: how long EKS supports it, and nodes that are behind."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from spotmpi.environments.checks.account import kubernetes_version
from spotmpi.environments.checks.check import Finding, LiveEnvironment, Subject
from tests.unit.environments.doctor.healthy_environment import NODE_GROUP, HealthyEnvironment
from tests.unit.environments.doctor.unbuilt import tool_output

TITLE = "Kubernetes version"
ENDS = datetime(2027, 3, 27, tzinfo=UTC)
OVER = "standard support of 1.35 ended on 2027-03-27: EKS may upgrade the control plane at any time"
SOON = "standard support of 1.35 ends on 2027-03-27, in 90 days: then EKS upgrades the control plane"


def support(healthy: HealthyEnvironment, ends: datetime, status: str, today: date) -> Finding:
    """What is found on a day, where EKS says that standard support ends then."""
    version = {"clusterVersion": "1.35", "versionStatus": status, "endOfStandardSupportDate": ends}
    healthy.account.script("DescribeClusterVersions", clusterVersions=[version])
    subject = Subject(healthy.account, "us-east-1", None, tool_output)
    (finding,) = kubernetes_version(subject, LiveEnvironment(healthy.environment, healthy.cluster), today)
    return finding


@pytest.mark.parametrize(
    ("today", "status", "level", "message"),
    [
        (date(2026, 12, 26), "STANDARD_SUPPORT", "ok", "1.35, in standard support until 2027-03-27"),
        (date(2026, 12, 27), "STANDARD_SUPPORT", "warning", SOON),
        (date(2027, 3, 28), "STANDARD_SUPPORT", "error", OVER),
        (date(2027, 3, 27), "EXTENDED_SUPPORT", "error", OVER),
    ],
)
def test_support_that_ends_is_reported_in_time(
    healthy: HealthyEnvironment, today: date, status: str, level: str, message: str
) -> None:
    finding = support(healthy, ENDS, status, today)
    assert (finding.level, finding.message) == (level, message)
    assert finding.command == ("" if level == "ok" else "spotmpi upgrade mine")
    assert healthy.account.requests_of("DescribeClusterVersions")[-1] == {"clusterVersions": ["1.35"]}


def test_a_day_counts_in_utc_as_aws_bills_it(healthy: HealthyEnvironment) -> None:
    evening = datetime.fromisoformat("2027-03-26T17:00:00-07:00")
    assert "until 2027-03-27" in support(healthy, evening, "STANDARD_SUPPORT", date(2026, 1, 1)).message


def test_the_doctor_reports_support_and_where_it_is_unknown(healthy: HealthyEnvironment) -> None:
    assert healthy.findings()[TITLE].level == "ok"
    healthy.account.script("DescribeClusterVersions", clusterVersions=[])
    assert healthy.findings()[TITLE].message == "1.35: the end of its standard support is unknown"
    healthy.account.refuse("DescribeClusterVersions", "AccessDeniedException")
    finding = healthy.findings()[TITLE]
    assert finding.level == "warning" and "eks:DescribeClusterVersions in us-east-1 is not permitted" in finding.message


def test_nodes_older_than_the_control_plane_are_named(healthy: HealthyEnvironment) -> None:
    assert "node versions" not in healthy.findings()
    healthy.account.script(
        "DescribeNodegroup", nodegroup={**NODE_GROUP, "version": "1.34", "releaseVersion": "1.34.6-20260501"}
    )
    finding = healthy.findings()["node versions"]
    assert (finding.level, finding.command) == ("warning", "spotmpi upgrade mine")
    assert finding.message == "spotmpi-mine-g4dn-1234567 are older than the control plane, 1.35"
