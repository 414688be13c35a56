"""Quotas of a region: those of instances in vCPUs, with usage and pending increases, and those of networks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spotmpi.aws.account import Aws

SERVICE = "ec2"
SPOT, ON_DEMAND = "spot", "on-demand"
_STANDARD = r"(a|c|d|h|i|im|is|m|r|t|z)\d"
# The instance families that each quota counts, as a regular expression for the type's name.
_FAMILIES: Mapping[str, Mapping[str, str]] = {
    SPOT: {"L-3819A6DF": r"(g|gr|vt)\d", "L-7212CCBC": r"p[2-4]", "L-C4BD4855": r"p5", "L-34B43A08": _STANDARD},
    ON_DEMAND: {"L-DB2E81BA": r"(g|gr|vt)\d", "L-417A185B": r"p\d", "L-1216C47A": _STANDARD},
}
NAMES: Mapping[str, str] = {
    "L-3819A6DF": "spot G and VT",
    "L-7212CCBC": "spot P2, P3 and P4",
    "L-C4BD4855": "spot P5",
    "L-34B43A08": "spot standard (A, C, D, H, I, M, R, T, Z)",
    "L-DB2E81BA": "on-demand G and VT",
    "L-417A185B": "on-demand P",
    "L-1216C47A": "on-demand standard (A, C, D, H, I, M, R, T, Z)",
}
_PENDING = {"PENDING", "CASE_OPENED"}


@dataclass(frozen=True)
class Increase:
    """A request for a higher quota: the requested vCPUs, its status and time."""

    id: str
    region: str
    code: str
    vcpus: int
    status: str
    created: datetime


def quota_code(machine: str, market: str = SPOT) -> str | None:
    """The code of the quota of *market* that counts machines of this type; None for unknown families."""
    return next((code for code, families in _FAMILIES[market].items() if re.match(families, machine)), None)


def limit(aws: Aws, region: str, code: str, service: str = SERVICE) -> int:
    """What a quota allows the account in *region*: vCPUs, or a number of resources."""
    arguments = {"ServiceCode": service, "QuotaCode": code}
    response = aws.find("service-quotas", region, "get_service_quota", {"NoSuchResourceException"}, **arguments)
    if response is None:  # a quota that was never changed may have a default value only
        response = aws.call("service-quotas", region, "get_aws_default_service_quota", **arguments)
    return int(response["Quota"]["Value"])


def vcpus_in_use(aws: Aws, region: str, market: str = SPOT, without: tuple[str, str] | None = None) -> Counter[str]:
    """The vCPUs of pending and running instances of *market* in *region*, by quota code.

    Those with the tag *without* (key and value) are not counted.
    """
    filters = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    if market == SPOT:  # there is no filter for the others
        filters.insert(0, {"Name": "instance-lifecycle", "Values": ["spot"]})
    used: Counter[str] = Counter()
    for reservation in aws.pages("ec2", region, "describe_instances", "Reservations", Filters=filters):
        for instance in reservation["Instances"]:
            code = quota_code(instance["InstanceType"], market)
            tags = {(tag["Key"], tag["Value"]) for tag in instance.get("Tags", ())}
            if code and instance.get("InstanceLifecycle", ON_DEMAND) == market and without not in tags:
                cpu = instance.get("CpuOptions", {})
                used[code] += cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 1)
    return used


def pending_increases(aws: Aws, region: str, code: str) -> tuple[Increase, ...]:
    """Requests for an increase of a quota that AWS has not decided on, oldest first."""
    requests = aws.pages(
        "service-quotas",
        region,
        "list_requested_service_quota_change_history_by_quota",
        "RequestedQuotas",
        ServiceCode=SERVICE,
        QuotaCode=code,
    )
    increases = [_increase(region, each) for each in requests if each["Status"] in _PENDING]
    return tuple(sorted(increases, key=lambda increase: increase.created))


def request_increase(aws: Aws, region: str, code: str, vcpus: int) -> Increase | None:
    """Request an increase of a quota to *vcpus*; None where a request is already open."""
    request = {"ServiceCode": SERVICE, "QuotaCode": code, "DesiredValue": float(vcpus)}
    open_already = {"ResourceAlreadyExistsException"}
    response = aws.find("service-quotas", region, "request_service_quota_increase", open_already, **request)
    return None if response is None else _increase(region, response["RequestedQuota"])


def increase_command(region: str, service: str, code: str, value: int) -> str:
    """The command of the AWS CLI that requests an increase of a quota."""
    return (
        f"aws service-quotas request-service-quota-increase --service-code {service} --quota-code {code} "
        f"--desired-value {value} --region {region}"
    )


def _increase(region: str, request: Mapping[str, Any]) -> Increase:
    return Increase(
        id=request["Id"],
        region=region,
        code=request["QuotaCode"],
        vcpus=int(request["DesiredValue"]),
        status=request["Status"],
        created=request["Created"],
    )
