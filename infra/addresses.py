"""Subnet arithmetic: the address range of each subnet, and how many nodes fit into it."""

from dataclasses import dataclass
from ipaddress import IPv4Network

# AWS reserves the first four addresses and the last one of every subnet.
_RESERVED = 5
# One for the node itself, eight that the CNI keeps warm for pods, one spare (cluster.py sets these numbers).
WARM_POD_ADDRESSES = 8
ADDRESSES_PER_NODE = 1 + WARM_POD_ADDRESSES + 1
# EKS puts its own network interfaces into each subnet of a cluster and needs at least this many addresses there.
_CONTROL_PLANE = 16
SMALLEST_VPC = 24
LARGEST_VPC = 16


@dataclass(frozen=True)
class SubnetPlan:
    """The subnets of a VPC: `nodes` for all nodes, `second` in the second zone that EKS needs, `gateway` for NAT."""

    nodes: IPv4Network
    second: IPv4Network
    gateway: IPv4Network


def plan(vpc: str) -> SubnetPlan:
    """The parts of a VPC of prefix 16 to 24: half of it for nodes, an eighth each for the others.

    The parts depend on the VPC alone, so that a bigger environment never moves a subnet.
    """
    network = IPv4Network(vpc)
    nodes, rest = network.subnets(prefixlen_diff=1)
    second, gateway, *_spare = rest.subnets(prefixlen_diff=2)
    return SubnetPlan(nodes=nodes, second=second, gateway=gateway)


def nodes_that_fit(subnet: IPv4Network) -> int:
    """How many nodes a subnet can hold with every address that a node takes."""
    return max(0, subnet.num_addresses - _RESERVED - _CONTROL_PLANE) // ADDRESSES_PER_NODE


def prefix_for(nodes: int) -> int | None:
    """The longest VPC prefix (smallest VPC) whose node subnet holds that many nodes, or None when none does."""
    for prefix in range(SMALLEST_VPC, LARGEST_VPC - 1, -1):
        if nodes_that_fit(plan(f"10.0.0.0/{prefix}").nodes) >= nodes:
            return prefix
    return None
