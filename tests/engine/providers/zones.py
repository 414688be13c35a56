"""Availability Zones as one account has them: letters that lead to zone ids, some letters to none.

Letters differ from account to account and ids do not (AWS RAM user guide, Availability Zone IDs). EKS takes no subnets
in use1-az3, usw1-az2 and cac1-az3 (EKS user guide, networking requirements for VPC and subnets).
"""

from collections.abc import Mapping

from tests.engine.providers.records import Refusal

_BY_LETTER: Mapping[str, Mapping[str, str]] = {
    "us-east-1": {
        **{"a": "use1-az6", "b": "use1-az1", "c": "use1-az2"},
        **{"d": "use1-az4", "e": "use1-az3", "f": "use1-az5"},
    },
    "us-west-2": {"a": "usw2-az2", "b": "usw2-az1", "c": "usw2-az3", "d": "usw2-az4"},
    "ap-northeast-1": {"a": "apne1-az4", "c": "apne1-az1", "d": "apne1-az2"},
}
_NOT_OF_EKS = ("use1-az3", "usw1-az2", "cac1-az3")


def zone_id(region: str, zone: str) -> str:
    """The id of a zone of this account; Refused, as EC2 refuses a subnet, where the region has none of that name."""
    letters = _BY_LETTER.get(region, {})
    if zone[:-1] != region or zone[-1:] not in letters:
        zones = ", ".join(region + letter for letter in letters)
        raise Refusal(f"InvalidParameterValue: Value ({zone}) for parameter availabilityZone is invalid, use {zones}")
    return letters[zone[-1]]


def require_eks(region: str, zone: str) -> None:
    """Refuse a zone in which EKS takes no subnets of a cluster."""
    if zone_id(region, zone) in _NOT_OF_EKS:
        raise Refusal(f"UnsupportedAvailabilityZoneException: Cannot create cluster because {zone} is not supported")
