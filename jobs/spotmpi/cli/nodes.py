"""`spotmpi nodes`: the machines there are now."""

from spotmpi.cli.options import Json, On, target


def command(on: On = None, json: Json = False) -> None:
    """List a cluster's nodes: type, zone, placement group, CPU, memory, GPUs, driver, and the runs on them."""
    from spotmpi.cli import node_table

    node_table.show(node_table.find(target(on, None)), json)
