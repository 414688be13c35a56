"""What AWS offers: regions, zones, instance types, prices, placement scores and quotas."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.cloud.account.answers import Refusal, Request

NETWORK_QUOTAS = {"L-F678F1CE": "vpc", "L-A4707A72": "vpc", "L-0263D0A3": "ec2"}
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def capacity_block(id: str = "cr-0123456789abcdef0", state: str = "scheduled", **more: Any) -> dict[str, Any]:
    """A Capacity Block as DescribeCapacityReservations returns it: blocks start and end at 11:30 UTC.

    EC2 User Guide, Capacity Blocks for ML: how they work, and View Capacity Blocks.
    """
    start = NOW.replace(hour=11, minute=30) + timedelta(days=1)
    return {
        "CapacityReservationId": id,
        "ReservationType": "capacity-block",
        "InstanceType": "g5.xlarge",
        "AvailabilityZone": "us-east-1a",
        "TotalInstanceCount": 8,
        "State": state,
        "StartDate": start,
        "EndDate": start + timedelta(days=2),
        **more,
    }


def _zones() -> dict[str, dict[str, str]]:
    """Two regions; letters don't identify a zone: us-east-1b is use1-az3 here, which EKS does not support."""
    return {
        "us-east-1": {"us-east-1a": "use1-az6", "us-east-1b": "use1-az3", "us-east-1c": "use1-az1"},
        "us-west-2": {"us-west-2a": "usw2-az2", "us-west-2b": "usw2-az1"},
    }


def _types() -> dict[str, tuple[int, int, bool, bool]]:
    """vCPUs, GPUs, and whether cluster placement groups and EFA are supported."""
    return {
        "g5.xlarge": (4, 1, True, False),
        "g4dn.xlarge": (4, 1, True, False),
        "t3.xlarge": (4, 0, False, False),
        "t3.medium": (2, 0, False, False),
    }


@dataclass
class Ec2Market:
    """EC2's zones, types and spot prices, as in the EC2 API reference."""

    zones: dict[str, dict[str, str]] = field(default_factory=_zones)
    enabled: dict[str, bool] = field(
        default_factory=lambda: {"us-east-1": True, "us-west-2": True, "af-south-1": False}
    )
    types: dict[str, tuple[int, int, bool, bool]] = field(default_factory=_types)
    local_disks: set[str] = field(default_factory=lambda: {"g5.xlarge", "g4dn.xlarge"})  # types with disks of their own
    not_offered: set[tuple[str, str]] = field(default_factory=set)  # type and zone
    spot_prices: dict[str, float] = field(
        default_factory=lambda: {"g5.xlarge": 0.40, "g4dn.xlarge": 0.20, "t3.xlarge": 0.05}
    )
    zone_prices: dict[tuple[str, str], float] = field(default_factory=dict)  # spot prices by type and zone
    reservations: list[dict[str, Any]] = field(default_factory=list)  # as `capacity_block` makes one
    scores: dict[str, dict[str, int]] = field(default_factory=dict)  # by type and zone id, 3 otherwise

    def describe_capacity_reservations(self, region: str, request: Request) -> Any:
        """All reservations in a region, those that have ended too: each state of a block is one that it may show."""
        return {"CapacityReservations": [each for each in self.reservations if each["AvailabilityZone"][:-1] == region]}

    def describe_regions(self, region: str, request: Request) -> Any:
        status = {True: "opted-in", False: "not-opted-in"}
        return {"Regions": [{"RegionName": name, "OptInStatus": status[on]} for name, on in self.enabled.items()]}

    def describe_availability_zones(self, region: str, request: Request) -> Any:
        return {"AvailabilityZones": [{"ZoneName": name, "ZoneId": id} for name, id in self.zones[region].items()]}

    def describe_instance_types(self, region: str, request: Request) -> Any:
        return {"InstanceTypes": [self._type(name) for name in request["Filters"][0]["Values"] if name in self.types]}

    def _type(self, name: str) -> dict[str, Any]:
        vcpus, gpus, group, efa = self.types[name]
        return {
            "InstanceType": name,
            "VCpuInfo": {"DefaultVCpus": vcpus},
            "GpuInfo": {"Gpus": [{"Count": gpus}]} if gpus else {},
            "InstanceStorageSupported": name in self.local_disks,
            "PlacementGroupInfo": {"SupportedStrategies": ["cluster", "spread"] if group else ["spread"]},
            "NetworkInfo": {"EfaSupported": efa},
            "SupportedUsageClasses": ["on-demand", "spot"],
        }

    def describe_instance_type_offerings(self, region: str, request: Request) -> Any:
        pairs = [(name, zone) for name in request["Filters"][0]["Values"] for zone in self.zones[region]]
        offered = [pair for pair in pairs if pair not in self.not_offered and pair[0] in self.types]
        return {"InstanceTypeOfferings": [{"InstanceType": name, "Location": zone} for name, zone in offered]}

    def describe_spot_price_history(self, region: str, request: Request) -> Any:
        """Two prices a page apart: twice the price 3 days ago, and the price of an hour ago."""
        last = "NextToken" in request
        history = [
            {
                "InstanceType": name,
                "AvailabilityZone": zone,
                "SpotPrice": str(self.zone_prices.get((name, zone), self.spot_prices[name]) * (2 if last else 1)),
                "Timestamp": NOW - (timedelta(days=3) if last else timedelta(hours=1)),
            }
            for name in request["InstanceTypes"]
            if name in self.spot_prices
            for zone in self.zones[region]
            if (name, zone) not in self.not_offered
        ]
        return {"SpotPriceHistory": history, **({} if last else {"NextToken": "more"})}

    def get_spot_placement_scores(self, region: str, request: Request) -> Any:
        """The ten best zones of the regions of a request (EC2 API Reference, GetSpotPlacementScoresResult)."""
        (name,) = request["InstanceTypes"]
        if len(request["RegionNames"]) > 10:  # the most that botocore's model has
            raise Refusal("InvalidParameterValue", "RegionNames")
        scores = self.scores.get(name, {})
        every = [
            {"Region": where, "AvailabilityZoneId": id, "Score": scores.get(id, 3)}
            for where in request["RegionNames"]
            for id in self.zones[where].values()
        ]
        return {"SpotPlacementScores": sorted(every, key=lambda each: -each["Score"])[:10]}


@dataclass
class Pricing:
    """The Price List API: on-demand prices, with a free tier beside each.

    Unless a filter on `marketoption` excludes them, Capacity Blocks of a type are products, too (the attributes of
    AmazonEC2 in the bulk price list, and Karpenter's pricing provider, which filters them).
    """

    on_demand: dict[str, float] = field(
        default_factory=lambda: {"g5.xlarge": 1.006, "g4dn.xlarge": 0.526, "t3.xlarge": 0.1664, "t3.medium": 0.0416}
    )
    capacity_blocks: dict[str, float] = field(default_factory=dict)

    def get_products(self, region: str, request: Request) -> Any:
        fields = {each["Field"]: each["Value"] for each in request["Filters"]}
        lists = {"OnDemand": self.on_demand, "CapacityBlock": self.capacity_blocks}
        prices = [
            each.get(fields["instanceType"])
            for option, each in lists.items()
            if fields.get("marketoption", option) == option
        ]
        return {"PriceList": [_product(price) for price in prices if price is not None]}


def _product(price: float) -> str:
    unit = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price}0000"}}
    free = {"unit": "Hrs", "pricePerUnit": {"USD": "0.0000000000"}}
    terms = {"OnDemand": {"a": {"priceDimensions": {"b": unit}}, "c": {"priceDimensions": {"d": free}}}}
    return json.dumps({"terms": terms})


@dataclass
class ServiceQuotas:
    """Quotas by code, 64 vCPUs by default, and requests for higher ones, which are all in us-east-1.

    Those of networks are 5 by default (Amazon VPC User Guide, quotas), and of the service vpc or, for addresses, ec2.
    """

    values: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NETWORK_QUOTAS, 5.0))
    requests: list[dict[str, Any]] = field(default_factory=list)

    def get_service_quota(self, region: str, request: Request) -> Any:
        if request["ServiceCode"] != NETWORK_QUOTAS.get(request["QuotaCode"], "ec2"):
            raise Refusal("NoSuchResourceException")
        return {"Quota": {"Value": self.values.get(request["QuotaCode"], 64.0)}}

    def list_requested_service_quota_change_history_by_quota(self, region: str, request: Request) -> Any:
        requests = [each for each in self.requests if each["QuotaCode"] == request["QuotaCode"]]
        return {"RequestedQuotas": requests if region == "us-east-1" else []}

    def request_service_quota_increase(self, region: str, request: Request) -> Any:
        return {"RequestedQuota": quota_request(request["QuotaCode"], request["DesiredValue"], NOW)}


def quota_request(code: str, vcpus: float, created: datetime, status: str = "PENDING") -> dict[str, Any]:
    """A request for a quota as Service Quotas describes it."""
    return {"Id": "r-1", "QuotaCode": code, "DesiredValue": vcpus, "Status": status, "Created": created}
