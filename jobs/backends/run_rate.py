"""What a run on a cluster costs by the hour."""

from __future__ import annotations

from jobs.environment import Environment
from jobs.spec import JobSpec


def run_rate(spec: JobSpec, environment: Environment | None) -> float | None:
    """US dollars per hour of all nodes, where known; AWS is only asked where the run has a limit that needs it."""
    price = spec.price
    if price is None and spec.limits.cost is not None and environment is not None:
        from jobs.cloud.node_price import node_price

        price = node_price(environment, spec.resources.gpu * spec.slots)
    return None if price is None else price * spec.nodes
