"""A cluster's nodes on stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from spotmpi.backends import targets
from spotmpi.backends.kubernetes.client.view import ClusterView, view_of
from spotmpi.backends.targets import Target
from spotmpi.cli.tables import show_table
from spotmpi.cli.view import say
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.environments.nodes import Node, list_nodes, placed
from spotmpi.spec.job import duration

_TITLES = (
    "NODE",
    "STATE",
    "GROUP",
    "TYPE",
    "ZONE",
    "MARKET",
    "PLACED IN",
    "CPU",
    "GIB",
    "GPU",
    "DRIVER",
    "AGE",
    "RUNS",
)


def find(target: Target) -> tuple[Node, ...]:
    """The nodes of the cluster at a place; what AWS may not be asked stays unknown, and stderr says why."""
    if target.place == targets.LOCAL:
        raise input_error("--on", target.place, "name an environment, or kubernetes: this machine has no nodes to list")
    environment = targets.environment_of(target)
    if environment is None:
        return list_nodes(ClusterView(None), target.place.partition("/")[2] or None)
    nodes = list_nodes(view_of(environment.cluster, environment.region), environment.namespace)
    try:
        from spotmpi.aws.account import open_account

        return placed(nodes, open_account(environment.region), environment.region)
    except SpotmpiError as error:
        say(f"placement groups are unknown: {error}")
        return nodes


def show(nodes: Sequence[Node], as_json: bool) -> None:
    """Print one row per node, or a JSON list."""
    if as_json:
        print(json.dumps([asdict(node) for node in nodes]))
        return
    show_table(_TITLES, [_row(node) for node in nodes])


def _row(node: Node) -> tuple[str, ...]:
    said = (node.group, node.type, node.zone, node.market, node.placement_group)
    numbers = (f"{node.cpus:g}", f"{node.memory_gib:.1f}", str(node.gpus))
    words = [word or "?" for word in said]
    return (node.name, node.state, *words, *numbers, node.driver or "?", _age(node.age), " ".join(node.runs))


def _age(seconds: float) -> str:
    unit = 86400 if seconds >= 2 * 86400 else 3600 if seconds >= 7200 else 60
    return duration(float(max(0, seconds) // unit * unit))
