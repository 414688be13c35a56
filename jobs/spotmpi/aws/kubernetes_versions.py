"""The Kubernetes versions that EKS offers, and how long it supports them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from spotmpi.aws.account import Aws

_STANDARD = "STANDARD_SUPPORT"


@dataclass(frozen=True)
class KubernetesVersion:
    """A version that EKS offers; `standard_support_ends` is None where it is unknown."""

    version: str
    in_standard_support: bool
    standard_support_ends: date | None


def minor(version: str) -> int:
    """The minor version as a number: 35 of `1.35`."""
    return int(version.split(".")[1])


def offered(aws: Aws, region: str, versions: Sequence[str] = ()) -> dict[str, KubernetesVersion]:
    """The Kubernetes versions that EKS offers, oldest first, or of these *versions*; CallError."""
    only: dict[str, Any] = {"clusterVersions": list(versions)} if versions else {}
    description = aws.pages("eks", region, "describe_cluster_versions", "clusterVersions", **only)
    offers = [
        KubernetesVersion(
            version=str(each["clusterVersion"]),
            in_standard_support=each.get("versionStatus") == _STANDARD,
            standard_support_ends=_day(each.get("endOfStandardSupportDate")),
        )
        for each in description
    ]
    return {each.version: each for each in sorted(offers, key=lambda each: minor(each.version))}


def _day(moment: object) -> date | None:
    return moment.astimezone(UTC).date() if isinstance(moment, datetime) else None
