"""What a machine costs by the hour, in US dollars: on spot and on demand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from spotmpi.aws.account import Aws
from spotmpi.aws.billing import Curve

HISTORY = timedelta(days=7)
_PRICE_LIST_REGION = "us-east-1"  # the Price List API lives in few regions and answers for all


@dataclass(frozen=True)
class SpotPrice:
    """The spot price of a type in a zone, $/h: now, and the lowest and highest of 7 days."""

    now: float
    low: float
    high: float


def spot_prices(aws: Aws, region: str, types: Sequence[str], now: datetime) -> dict[tuple[str, str], SpotPrice]:
    """Linux spot prices by (type, zone name); a pair without any offer in 7 days is left out."""
    history = aws.pages(
        "ec2",
        region,
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=list(types),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now - HISTORY,
    )
    changes: dict[tuple[str, str], list[tuple[datetime, float]]] = {}
    for each in history:
        place = (each["InstanceType"], each["AvailabilityZone"])
        changes.setdefault(place, []).append((each["Timestamp"], float(each["SpotPrice"])))
    return {place: _summed_up(prices) for place, prices in changes.items()}


def spot_curve(aws: Aws, region: str, machine: str, zone: str, since: datetime) -> Curve | None:
    """The Linux spot price of a type in a zone from *since* on; None where AWS has none (it keeps 90 days)."""
    history = aws.pages(
        "ec2",
        region,
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=[machine],
        AvailabilityZone=zone,
        ProductDescriptions=["Linux/UNIX"],
        StartTime=since,  # the price that held then comes with it
    )
    changes = {each["Timestamp"].timestamp(): float(each["SpotPrice"]) for each in history}
    return Curve(tuple(sorted(changes.items()))) if changes else None


def on_demand_price(aws: Aws, region: str, machine: str) -> float | None:
    """The list price of a Linux machine in *region*, $/h; None where the price list has none."""
    wanted = {
        "instanceType": machine,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    products = aws.pages(
        "pricing",
        _PRICE_LIST_REGION,
        "get_products",
        "PriceList",
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
    )
    found = [price for product in products for price in _list_prices(json.loads(product))]
    return min(found, default=None)


def _summed_up(prices: list[tuple[datetime, float]]) -> SpotPrice:
    amounts = [amount for _, amount in prices]
    return SpotPrice(max(prices)[1], min(amounts), max(amounts))


def _list_prices(product: dict[str, Any]) -> list[float]:
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    units = [unit for term in terms for unit in term["priceDimensions"].values() if unit["unit"] == "Hrs"]
    amounts = [float(unit["pricePerUnit"].get("USD", 0)) for unit in units]
    return [amount for amount in amounts if amount > 0]  # a price of 0 belongs to reservations
