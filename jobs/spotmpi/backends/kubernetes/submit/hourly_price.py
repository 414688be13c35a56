"""What a run on a cluster costs by the hour."""

from __future__ import annotations

from spotmpi.core.environment import Environment
from spotmpi.spec.job import JobSpec
from spotmpi.spec.node_groups import Choice, choose


def run_rate(spec: JobSpec, environment: Environment | None) -> float | None:
    """US dollars per hour of all nodes, where known; AWS is only asked where the run has a limit that needs it."""
    price = spec.price
    if price is None and spec.limits.cost is not None and environment and environment.node_groups:
        from spotmpi.aws.node_price import node_price

        choice = choose(spec, environment.node_groups)
        # What fits none is refused in any case; until then it costs what the dearest of all does.
        price = node_price(environment, choice.groups if isinstance(choice, Choice) else environment.node_groups)
    return None if price is None else price * spec.nodes
