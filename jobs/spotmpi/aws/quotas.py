"""EC2's quotas for spot machines, in vCPUs per region: how many there may be, run, and are asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallFailed

SERVICE = "ec2"
# Quota code: the families it counts, as an expression over the type's name.
_FAMILIES: Mapping[str, str] = {
    "L-3819A6DF": r"(g|vt)\d",
    "L-7212CCBC": r"p[2-4]",
    "L-C4BD4855": r"p5",
    "L-34B43A08": r"(a|c|d|h|i|im|is|m|r|t|z)\d",
}
NAMES: Mapping[str, str] = {
    "L-3819A6DF": "spot G and VT",
    "L-7212CCBC": "spot P2, P3 and P4",
    "L-C4BD4855": "spot P5",
    "L-34B43A08": "spot standard (A, C, D, H, I, M, R, T, Z)",
}
_PENDING = {"PENDING", "CASE_OPENED"}


@dataclass(frozen=True)
class Increase:
    """A request for a higher quota: vCPUs wanted, AWS's state of it and when it was made."""

    id: str
    region: str
    code: str
    vcpus: int
    status: str
    created: datetime


def quota_code(machine: str) -> str | None:
    """The code of the spot quota that counts machines of this type; None for families that we don't know."""
    return next((code for code, families in _FAMILIES.items() if re.match(families, machine)), None)


def limit(aws: Aws, region: str, code: str) -> int:
    """How many vCPUs the account may have under a quota in *region*."""
    which = {"ServiceCode": SERVICE, "QuotaCode": code}
    try:
        answer = aws.call("service-quotas", region, "get_service_quota", **which)
    except CallFailed as error:
        if error.code != "NoSuchResourceException":
            raise
        # An account that never touched a quota may have only the default.
        answer = aws.call("service-quotas", region, "get_aws_default_service_quota", **which)
    return int(answer["Quota"]["Value"])


def running(aws: Aws, region: str) -> Counter[str]:
    """How many vCPUs of spot machines start or run in *region*, by quota code."""
    only = [
        {"Name": "instance-lifecycle", "Values": ["spot"]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    used: Counter[str] = Counter()
    for reservation in aws.pages("ec2", region, "describe_instances", "Reservations", Filters=only):
        for machine in reservation["Instances"]:
            code = quota_code(machine["InstanceType"])
            if code:
                cpu = machine.get("CpuOptions", {})
                used[code] += cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 1)
    return used


def pending_increases(aws: Aws, region: str, code: str) -> tuple[Increase, ...]:
    """Requests for more of a quota that AWS has not decided on, oldest first."""
    found = aws.pages(
        "service-quotas",
        region,
        "list_requested_service_quota_change_history_by_quota",
        "RequestedQuotas",
        ServiceCode=SERVICE,
        QuotaCode=code,
    )
    made = [_increase(region, each) for each in found if each["Status"] in _PENDING]
    return tuple(sorted(made, key=lambda increase: increase.created))


def ask_for(aws: Aws, region: str, code: str, vcpus: int) -> Increase:
    """Asks AWS to raise a quota to *vcpus*; CallFailed where a request is open already."""
    answer = aws.call(
        "service-quotas",
        region,
        "request_service_quota_increase",
        ServiceCode=SERVICE,
        QuotaCode=code,
        DesiredValue=float(vcpus),
    )
    return _increase(region, answer["RequestedQuota"])


def _increase(region: str, request: Mapping[str, Any]) -> Increase:
    return Increase(
        id=request["Id"],
        region=region,
        code=request["QuotaCode"],
        vcpus=int(request["DesiredValue"]),
        status=request["Status"],
        created=request["Created"],
    )
