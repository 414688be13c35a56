"""`spotmpi nodes`: the nodes of a cluster at this moment."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from spotmpi.cli.options import Json, On

if TYPE_CHECKING:
    from spotmpi.backends.targets import Target
    from spotmpi.environments.nodes import Node

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


def command(on: On = None, as_json: Json = False) -> None:
    """List a cluster's nodes: type, zone, placement group, CPU, memory, GPUs, driver, and the runs on them."""
    from spotmpi.backends.targets import Target
    from spotmpi.cli.tables import show_table

    nodes = _nodes(Target(on))
    if as_json:
        print(json.dumps([asdict(node) for node in nodes]))
    else:
        show_table(_TITLES, [_row(node) for node in nodes])


def _nodes(target: Target) -> tuple[Node, ...]:
    """The nodes of a target's cluster; what AWS does not permit to read stays unknown, and stderr has the reason."""
    from spotmpi.aws.account import open_account
    from spotmpi.backends import targets
    from spotmpi.backends.kubernetes.client.view import ClusterView
    from spotmpi.core.errors import SpotmpiError, input_error
    from spotmpi.core.wording import echo
    from spotmpi.environments.nodes import list_nodes, with_placement

    if target.is_slurm:
        raise input_error("--on", target.name, "give an environment or kubernetes: `sinfo` lists the nodes of Slurm")
    if target.is_local:
        raise input_error("--on", target.name, "give an environment or kubernetes: the local backend has no nodes")
    environment = targets.environment_of(target)
    if environment is None:
        return list_nodes(ClusterView(None), target.name.partition("/")[2] or None)
    nodes = list_nodes(ClusterView(environment.context), environment.namespace)
    try:
        return with_placement(nodes, open_account(environment.region, echo=echo), environment.region)
    except SpotmpiError as error:
        echo(f"placement groups are unknown: {error}")
        return nodes


def _row(node: Node) -> tuple[str, ...]:
    labels = (node.group, node.type, node.zone, node.market, node.placement_group)
    numbers = (f"{node.cpus:g}", f"{node.memory_gib:.1f}", str(node.gpus))
    words = [label or "?" for label in labels]
    return (node.name, node.state, *words, *numbers, node.driver or "?", _age(node.age), " ".join(node.runs))


def _age(seconds: float) -> str:
    from spotmpi.core.wording import duration

    unit = 86400 if seconds >= 2 * 86400 else 3600 if seconds >= 7200 else 60
    return duration(float(max(0, seconds) // unit * unit))
