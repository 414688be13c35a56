"""Hourly prices in US dollars: of an instance on spot and on demand, of a node, and of a whole environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.billing import PriceCurve
from spotmpi.core.environment import Environment, NodeGroup
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import CAPACITY_BLOCK
from spotmpi.core.price import Price

HISTORY = timedelta(days=7)
_PRICE_LIST_REGION = "us-east-1"  # the Price List API exists in a few regions and covers all
# Of a control plane, in standard and in extended support of its Kubernetes version.
CONTROL_PLANE, EXTENDED_SUPPORT = 0.10, 0.60
ENVIRONMENT_SOURCE = (
    f"control plane (in extended support ${EXTENDED_SUPPORT:.2f}), NAT gateway, disks, addresses: AWS list prices for "
    "us-east-1 as published in 2025, not confirmed since; "
    "system nodes and GPU nodes: the Price List API and the spot price now. Storage, logs and traffic come on top"
)
SYSTEM_TYPE = "t3.medium"  # as in infra/settings.py
KUBERNETES = "1.36"  # as in infra/settings.py
LIST_REGION = "us-east-1"  # of the list prices here
_SYSTEM_PRICE = 0.0416  # used where the Price List API is not permitted
_NAT_GATEWAY = 0.045
_ADDRESS = 0.005
# A gp3 disk: its size, and what it has above the throughput and IOPS that are free.
_GIB_HOUR = 0.08 / 730
_MIBPS_HOUR, _FREE_MIBPS = 0.04 / 730, 125
_IOPS_HOUR, _FREE_IOPS, _IOPS_PER_MIBPS = 0.005 / 730, 3000, 4  # AWS requires so many IOPS for the throughput
_GPU_DISK_MIBPS = 500  # as in infra/settings.py


@dataclass(frozen=True)
class SpotPrice:
    """The spot price of a type in a zone, $/h: now, and the lowest and highest of 7 days."""

    now: float
    low: float
    high: float


@dataclass(frozen=True)
class Design:
    """The settings that an environment's price depends on, besides its zone and machines; defaults are infra's.

    Nodes' disks have *disk_throughput* MiB/s, by default more for GPUs that do not keep images on disks of their own.
    """

    system_type: str = SYSTEM_TYPE
    system_nodes: int = 2
    system_disk_gib: int = 30
    node_disk_gib: int = 100
    disk_throughput: int | None = None
    local_disks: bool = True
    private: bool = False
    kubernetes: str = KUBERNETES

    def throughput(self, gpus: int, has_local_disks: bool) -> int:
        """MiB/s of the root disk of a node with so many GPUs."""
        if self.disk_throughput is not None:
            return self.disk_throughput
        return _GPU_DISK_MIBPS if gpus and not (self.local_disks and has_local_disks) else _FREE_MIBPS


@dataclass(frozen=True)
class EnvironmentPrice:
    """$/h of an environment: no job, and all nodes at work on spot (None: price unknown)."""

    idle: float | None
    busy: float | None


def spot_prices(aws: Aws, region: str, types: Sequence[str], now: datetime) -> dict[tuple[str, str], SpotPrice]:
    """Linux spot prices by (type, zone name); pairs without a price in 7 days are omitted."""
    history = _spot_history(aws, region, now - HISTORY, InstanceTypes=list(types))
    changes: dict[tuple[str, str], list[tuple[datetime, float]]] = {}
    for each in history:
        key = (each["InstanceType"], each["AvailabilityZone"])
        changes.setdefault(key, []).append((each["Timestamp"], float(each["SpotPrice"])))
    dollars = {key: [amount for _, amount in prices] for key, prices in changes.items()}
    return {key: SpotPrice(max(changes[key])[1], min(each), max(each)) for key, each in dollars.items()}


def spot_curve(aws: Aws, region: str, machine: str, zone: str, since: datetime) -> PriceCurve | None:
    """The Linux spot price of a type in a zone from *since* on; None where AWS has none (it keeps 90 days)."""
    history = _spot_history(aws, region, since, InstanceTypes=[machine], AvailabilityZone=zone)
    changes = {each["Timestamp"].timestamp(): float(each["SpotPrice"]) for each in history}
    return PriceCurve(tuple(sorted(changes.items()))) if changes else None


def _spot_history(aws: Aws, region: str, since: datetime, **chosen: Any) -> list[dict[str, Any]]:
    """The changes of Linux spot prices from *since* on, with the prices in effect then."""
    options = {"ProductDescriptions": ["Linux/UNIX"], "StartTime": since, **chosen}
    return aws.pages("ec2", region, "describe_spot_price_history", "SpotPriceHistory", **options)


def on_demand_price(aws: Aws, region: str, machine: str) -> float | None:
    """The list price of a Linux machine in *region*, $/h; None where the price list has none."""
    filters = {
        "instanceType": machine,
        "regionCode": region,
        "marketoption": "OnDemand",  # not Capacity Blocks, which the list has of the same types
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
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in filters.items()],
    )
    prices = [price for product in products for price in _list_prices(json.loads(product))]
    return min(prices, default=None)


def highest_node_price(environment: Environment, groups: Sequence[NodeGroup]) -> Price:
    """The price of a node of the most expensive of *groups*, with source and time; SpotmpiError where unknown."""
    now = datetime.now(UTC)
    prices = group_prices(environment, groups, now=now)
    group = max(groups, key=lambda group: prices[group.name])
    kinds = {"spot": "spot price", CAPACITY_BLOCK: "Capacity Block, paid in advance,"}
    kind = kinds.get(group.market, "list price on demand")
    what = f"{kind} of {group.type} in {group.zone}, with its disk" + " and address" * group.public_address
    return Price(prices[group.name], f"{what}, {now:%Y-%m-%d %H:%M} UTC")


def group_prices(
    environment: Environment, groups: Sequence[NodeGroup], aws: Aws | None = None, now: datetime | None = None
) -> dict[str, float]:
    """US dollars per hour of a node of each of *groups* now, by name; SpotmpiError where one is unknown."""
    aws, now = aws or open_account(environment.region), now or datetime.now(UTC)
    return {group.name: group_price(environment, group, aws, now) for group in groups}


def group_price(environment: Environment, group: NodeGroup, aws: Aws, now: datetime) -> float:
    """US dollars per hour of one node of *group* now: the zone's spot price or the list price on demand, and extras.

    A Capacity Block was paid when it was bought, whether nodes run in it or not: a node there costs its extras alone.
    """
    price: float | None
    if group.market == CAPACITY_BLOCK:
        price = 0.0
    elif group.market == "on-demand":
        price = on_demand_price(aws, environment.region, group.type)
    else:
        spot = spot_prices(aws, environment.region, [group.type], now).get((group.type, group.zone))
        price = spot.now if spot else None
    if price is None:
        raise SpotmpiError(f"AWS has no {group.market} price of {group.type} in {group.zone}")
    return price + node_extras(group)


def node_extras(group: NodeGroup) -> float:
    """US dollars per hour of what a node of *group* has besides its machine: the root disk and a public address."""
    return _extras(group.disk_gib, group.public_address, group.disk_throughput)


def environment_price(
    nodes: int,
    spot: float | None,
    system: float | None,
    design: Design | None = None,
    throughput: int = _FREE_MIBPS,
    extended_support: bool = False,
) -> EnvironmentPrice:
    """The price with *nodes* nodes at *spot* $/h each and system nodes at *system* $/h each.

    *system* may be None for infra's type, whose price in us-east-1 is used then. *throughput* is that of the nodes'
    root disks in MiB/s, and *extended_support* is whether its Kubernetes version has left standard support.
    """
    design = design or Design()
    if system is None and design.system_type != SYSTEM_TYPE:
        return EnvironmentPrice(None, None)
    idle = sum(idle_prices(design, _SYSTEM_PRICE if system is None else system, extended_support).values())
    extras = _extras(design.node_disk_gib, not design.private, throughput)
    return EnvironmentPrice(idle, None if spot is None else idle + nodes * (spot + extras))


def idle_prices(design: Design, system: float = _SYSTEM_PRICE, extended_support: bool = False) -> dict[str, float]:
    """$/h of an environment without jobs, by item, with system nodes at *system* $/h each; storage is not included."""
    nodes, disk = design.system_nodes, design.system_disk_gib
    addresses = 1 if design.private else nodes
    items = {
        "EKS control plane": EXTENDED_SUPPORT if extended_support else CONTROL_PLANE,
        f"{nodes} x {design.system_type}": nodes * system,
        f"{nodes} x {disk} GiB disk": nodes * _extras(disk, False),
        f"{addresses} public IPv4": addresses * _ADDRESS,
    }
    return items | ({"NAT gateway (+ $0.045 per GB)": _NAT_GATEWAY} if design.private else {})


def _extras(disk_gib: int, public_address: bool, throughput: int = _FREE_MIBPS) -> float:
    faster = max(0, throughput - _FREE_MIBPS) * _MIBPS_HOUR
    faster += max(0, throughput * _IOPS_PER_MIBPS - _FREE_IOPS) * _IOPS_HOUR
    return disk_gib * _GIB_HOUR + faster + _ADDRESS * public_address


def _list_prices(product: dict[str, Any]) -> list[float]:
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    units = [unit for term in terms for unit in term["priceDimensions"].values() if unit["unit"] == "Hrs"]
    amounts = [float(unit["pricePerUnit"].get("USD", 0)) for unit in units]
    return [amount for amount in amounts if amount > 0]  # prices of 0 belong to reservations
