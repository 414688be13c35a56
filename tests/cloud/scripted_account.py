"""An AWS account with scripted answers, behind real boto3 clients that validate every parameter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import boto3

from spotmpi.aws.account import Aws

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
KEY_ID, SECRET, TOKEN = "AKIA" + "Q" * 16, "thisIsTheSecretKey/0123456789abcdefXYZ", "FwoGZXIvYXdzTOKENtokenTOKEN=="
Answer = Callable[[str, Mapping[str, Any]], Any]  # (region, parameters) -> the answer; Refusal to refuse


class Refusal(Exception):
    """The refusal of a call, with AWS's error code."""

    def __init__(self, code: str, message: str = "", date: str | None = None) -> None:
        super().__init__(code)
        self.parsed = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPHeaders": {"date": date} if date else {}},
        }


class ScriptedAccount:
    """An account with `answers` by operation; other calls go to moto if it is active, else to no network."""

    def __init__(self, region: str | None = "us-east-1") -> None:
        session = boto3.Session(KEY_ID, SECRET, TOKEN, region_name=region)
        session.events.register("before-parameter-build", self._remember)
        session.events.register("before-call", self._answer)
        self.aws = Aws(session, region)
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.rights: set[str] = set()  # the IAM actions of all calls so far
        self.delay = 0.0

    def refuse(self, operation: str, code: str, region: str | None = None, date: str | None = None) -> None:
        """Refuse an operation, in one region or in all."""
        usual = self.answers.get(operation)

        def answer(where: str, parameters: Mapping[str, Any]) -> Any:
            if region in (None, where):
                raise Refusal(code, f"message of {code}", date)
            assert usual is not None
            return usual(where, parameters)

        self.answers[operation] = answer

    def calls(self, operation: str) -> list[dict[str, Any]]:
        """The parameters of every call of an operation so far."""
        return [parameters for name, _, parameters in self.asked if name == operation]

    def _remember(self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        context["asked"] = params
        self.asked.append((model.name, context.get("client_region", ""), params))
        self.rights.add(f"{model.service_model.signing_name}:{model.name}")

    def _answer(self, model: Any, context: dict[str, Any], **_: Any) -> Any:
        answer = self.answers.get(model.name)
        if answer is None:
            return None
        time.sleep(self.delay)
        try:
            return SimpleNamespace(status_code=200), answer(context["client_region"], context["asked"])
        except Refusal as refusal:
            return SimpleNamespace(status_code=400), refusal.parsed


class SpotMarket:
    """What AWS offers: two regions with zones, three types, prices, scores and quotas; a test may change all.

    Letters don't identify a zone: us-east-1b is use1-az3 here, which EKS does not support.
    """

    def __init__(self) -> None:
        self.zones = {
            "us-east-1": {"us-east-1a": "use1-az6", "us-east-1b": "use1-az3", "us-east-1c": "use1-az1"},
            "us-west-2": {"us-west-2a": "usw2-az2", "us-west-2b": "usw2-az1"},
        }
        self.enabled = {"us-east-1": True, "us-west-2": True, "af-south-1": False}
        self.types = {
            "g5.xlarge": (4, 1, True, False),
            "g4dn.xlarge": (4, 1, True, False),
            "t3.xlarge": (4, 0, False, False),
        }
        self.not_offered: set[tuple[str, str]] = set()
        self.spot = {"g5.xlarge": 0.40, "g4dn.xlarge": 0.20, "t3.xlarge": 0.05}
        self.spot_there: dict[tuple[str, str], float] = {}
        self.on_demand = {"g5.xlarge": 1.006, "g4dn.xlarge": 0.526, "t3.xlarge": 0.1664, "t3.medium": 0.0416}
        self.scores: dict[str, dict[str, int]] = {}
        self.quota: dict[str, float] = {}
        self.running: dict[str, list[str]] = {}
        self.pending: list[dict[str, Any]] = []

    def script(self, account: ScriptedAccount) -> None:
        """Let *account* answer from this market."""
        account.asked.clear()
        account.delay = 0.0
        account.answers = {
            "DescribeRegions": lambda region, asked: {
                "Regions": [
                    {"RegionName": name, "OptInStatus": "opted-in" if on else "not-opted-in"}
                    for name, on in self.enabled.items()
                ]
            },
            "DescribeAvailabilityZones": lambda region, asked: {
                "AvailabilityZones": [{"ZoneName": name, "ZoneId": id} for name, id in self.zones[region].items()]
            },
            "DescribeInstanceTypes": self._types,
            "DescribeInstanceTypeOfferings": self._offerings,
            "DescribeSpotPriceHistory": self._history,
            "DescribeInstances": self._instances,
            "GetSpotPlacementScores": self._scores,
            "GetServiceQuota": lambda region, asked: {"Quota": {"Value": self.quota.get(asked["QuotaCode"], 64.0)}},
            "ListRequestedServiceQuotaChangeHistoryByQuota": lambda region, asked: {
                "RequestedQuotas": [each for each in self.pending if each["QuotaCode"] == asked["QuotaCode"]]
                if region == "us-east-1"
                else []
            },
            "RequestServiceQuotaIncrease": lambda region, asked: {
                "RequestedQuota": increase(asked["QuotaCode"], asked["DesiredValue"], NOW)
            },
            "GetProducts": self._products,
        }

    def _types(self, region: str, asked: Mapping[str, Any]) -> Any:
        made = []
        for name in asked["Filters"][0]["Values"]:
            if name in self.types:
                vcpus, gpus, group, efa = self.types[name]
                made.append(
                    {
                        "InstanceType": name,
                        "VCpuInfo": {"DefaultVCpus": vcpus},
                        "GpuInfo": {"Gpus": [{"Count": gpus}]} if gpus else {},
                        "PlacementGroupInfo": {"SupportedStrategies": ["cluster", "spread"] if group else ["spread"]},
                        "NetworkInfo": {"EfaSupported": efa},
                        "SupportedUsageClasses": ["on-demand", "spot"],
                    }
                )
        return {"InstanceTypes": made}

    def _offerings(self, region: str, asked: Mapping[str, Any]) -> Any:
        pairs = [(name, zone) for name in asked["Filters"][0]["Values"] for zone in self.zones[region]]
        open_pairs = [pair for pair in pairs if pair not in self.not_offered and pair[0] in self.types]
        return {"InstanceTypeOfferings": [{"InstanceType": name, "Location": zone} for name, zone in open_pairs]}

    def _history(self, region: str, asked: Mapping[str, Any]) -> Any:
        """Two prices a page apart: twice the price 3 days ago, and the price of an hour ago."""
        last = "NextToken" in asked
        history = [
            {
                "InstanceType": name,
                "AvailabilityZone": zone,
                "SpotPrice": str(self.spot_there.get((name, zone), self.spot[name]) * (2 if last else 1)),
                "Timestamp": NOW - (timedelta(days=3) if last else timedelta(hours=1)),
            }
            for name in asked["InstanceTypes"]
            if name in self.spot
            for zone in self.zones[region]
            if (name, zone) not in self.not_offered
        ]
        return {"SpotPriceHistory": history, **({} if last else {"NextToken": "more"})}

    def _instances(self, region: str, asked: Mapping[str, Any]) -> Any:
        cpus = {"CoreCount": 2, "ThreadsPerCore": 2}
        machines = [{"InstanceType": name, "CpuOptions": cpus} for name in self.running.get(region, [])]
        return {"Reservations": [{"Instances": [machine]} for machine in machines]}

    def _scores(self, region: str, asked: Mapping[str, Any]) -> Any:
        (name,) = asked["InstanceTypes"]
        return {
            "SpotPlacementScores": [
                {"Region": where, "AvailabilityZoneId": id, "Score": self.scores.get(name, {}).get(id, 3)}
                for where in asked["RegionNames"]
                for id in self.zones[where].values()
            ]
        }

    def _products(self, region: str, asked: Mapping[str, Any]) -> Any:
        wanted = {each["Field"]: each["Value"] for each in asked["Filters"]}
        price = self.on_demand.get(wanted["instanceType"])
        unit = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price}0000"}}
        free = {"unit": "Hrs", "pricePerUnit": {"USD": "0.0000000000"}}
        terms = {"OnDemand": {"a": {"priceDimensions": {"b": unit}}, "c": {"priceDimensions": {"d": free}}}}
        return {"PriceList": [] if price is None else [json.dumps({"terms": terms})]}


def increase(code: str, vcpus: float, created: datetime, status: str = "PENDING") -> dict[str, Any]:
    """A quota request as Service Quotas tells of it."""
    return {"Id": "r-1", "QuotaCode": code, "DesiredValue": vcpus, "Status": status, "Created": created}
