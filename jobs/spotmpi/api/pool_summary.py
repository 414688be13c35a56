"""Where a pool runs and what it has cost so far, for its representation in notebooks."""

from __future__ import annotations

import time
from pathlib import Path

from spotmpi.aws.billing import Kind, Lifetime, PriceCurve, Usage, make_bill
from spotmpi.core.environment import Environment
from spotmpi.core.names import RunPaths
from spotmpi.pools.pool import PoolSummary
from spotmpi.runs import node_usage, recorded_plan
from spotmpi.spec.source import load_spec

_KIND: Kind = ("", "", "")  # one price for all machines


def summarize(folder: Path, price: float | None, now: float | None = None) -> PoolSummary:
    """The nodes, zone and cost of a pool by its record in *folder*; *price* is of a node and hour, in US dollars."""
    paths, now = RunPaths(folder), now or time.time()
    uses = node_usage.machine_uses(paths)
    nodes = sorted({use.machine for use in uses if use.ended is None} - {node_usage.HERE})
    environment = recorded_plan.read(paths).environment
    zones = {zone for _, _, zone in node_usage.machine_kinds(paths).values() if zone}
    zone = " and ".join(sorted(zones)) or (str(environment["zone"]) if environment else None)
    return PoolSummary(tuple(nodes), zone, None if price is None else _dollars(uses, price, now))


def node_price(folder: Path) -> float | None:
    """US dollars for an hour of a node: by the spec, else the most expensive of the pool's groups; None if unknown."""
    paths = RunPaths(folder)
    spec, values = load_spec(paths.spec), recorded_plan.read(paths).environment
    if spec.price is not None or not values:
        return spec.price
    from spotmpi.aws.prices import highest_node_price
    from spotmpi.backends.kubernetes.submit.target import group_names

    environment = Environment.model_validate(values)
    names = group_names(spec, environment)
    groups = [group for group in environment.node_groups if group.name in names]
    return highest_node_price(environment, groups).node_hour if groups else None


def _dollars(uses: list[Usage], price: float, now: float) -> float:
    """The price of all machines while the pool held them; workers on the same machine count once."""
    machines = []
    for name in dict.fromkeys(use.machine for use in uses):
        own = [use for use in uses if use.machine == name]
        ended = None if any(use.ended is None for use in own) else max(use.ended or now for use in own)
        began = min(use.began for use in own)
        machines.append(Lifetime(name, None, "", _KIND, began, began, ended))
    bill = make_bill(machines, uses, {_KIND: PriceCurve(((0.0, price),))}, 0.0, now)
    return sum(share.dollars for share in bill.runs)
