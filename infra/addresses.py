"""Subnet arithmetic: the address range of each subnet, and how many nodes fit into it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

# Of RFC 1918, and those that RFC 6598 shares between networks.
PRIVATE_RANGES = [IPv4Network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")]
# AWS reserves the first four addresses and the last one of every subnet.
_RESERVED = 5
# One for the node itself, eight that the CNI keeps warm for pods, one spare (cluster.py sets these numbers).
WARM_POD_ADDRESSES = 8
ADDRESSES_PER_NODE = 1 + WARM_POD_ADDRESSES + 1
# EKS puts its own network interfaces into each subnet of a cluster and needs at least this many addresses there.
_CONTROL_PLANE = 16
SMALLEST_VPC = 24
LARGEST_VPC = 16
_LETTERS = "abcdef"  # of the zones of a region; no region has more


@dataclass(frozen=True)
class SubnetPlan:
    """The subnets of a VPC: `nodes` in the first zone, `second` in the second one that EKS needs, `gateway` for NAT.

    `more` are for nodes in further zones.
    """

    nodes: IPv4Network
    second: IPv4Network
    gateway: IPv4Network
    more: tuple[IPv4Network, ...]

    def of_zones(self, zones: Sequence[str], second: str) -> dict[str, IPv4Network]:
        """The subnet for the nodes of each zone; a zone without one is left out.

        It depends on the letter of the zone, the first zone and EKS's *second* one alone: zones come and go, and no
        other moves.
        """
        further = [zones[0][:-1] + letter for letter in _LETTERS]
        further = [zone for zone in further if zone not in (zones[0], second)]
        known = dict(zip(further, self.more, strict=False)) | {second: self.second, zones[0]: self.nodes}
        return {zone: known[zone] for zone in zones if zone in known}


def plan(vpc: str) -> SubnetPlan:
    """The parts of a VPC of prefix 16 to 24: half of it for the first zone's nodes, an eighth for each of two others.

    Four further zones have a sixteenth each.

    The parts depend on the VPC alone, so that a bigger environment never moves a subnet.
    """
    network = IPv4Network(vpc)
    nodes, rest = network.subnets(prefixlen_diff=1)
    second, gateway, *spare = rest.subnets(prefixlen_diff=2)
    return SubnetPlan(nodes, second, gateway, more=tuple(half for each in spare for half in each.subnets()))


def nodes_that_fit(subnet: IPv4Network) -> int:
    """How many nodes a subnet can hold with every address that a node takes."""
    return max(0, subnet.num_addresses - _RESERVED - _CONTROL_PLANE) // ADDRESSES_PER_NODE


def prefix_for(nodes: int, subnet: Callable[[SubnetPlan], IPv4Network]) -> int | None:
    """The longest VPC prefix (smallest VPC) whose *subnet* holds that many nodes, or None when none does."""
    for prefix in range(SMALLEST_VPC, LARGEST_VPC - 1, -1):
        if nodes_that_fit(subnet(plan(f"10.0.0.0/{prefix}"))) >= nodes:
            return prefix
    return None
