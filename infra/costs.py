"""What an environment costs while nothing runs, and the most that a GPU-hour costs, overhead included."""

from collections.abc import Mapping
from datetime import date

from infra.instance_types import catalog
from infra.kubernetes_versions import CONTROL_PLANE, EXTENDED_SUPPORT, STANDARD_SUPPORT_ENDS, minor
from infra.launch import DEFAULT_IOPS, disk_iops
from infra.settings import DEFAULT_THROUGHPUT, Settings

# AWS list prices for us-east-1, on demand, as published in 2025 and not confirmed since; other regions differ.
_HOURS_PER_MONTH = 730
NAT_GATEWAY = 0.045
PUBLIC_ADDRESS = 0.005
GP3_GIB_MONTH = 0.08
GP3_MIBPS_MONTH = 0.04  # above DEFAULT_THROUGHPUT
GP3_IOPS_MONTH = 0.005  # above launch.DEFAULT_IOPS
# On demand, per hour: the system nodes' price, and the most that a GPU node of a ready stack can cost.
MACHINES: Mapping[str, float] = {
    "t3.medium": 0.0416,
    "c6i.xlarge": 0.17,
    "g4dn.xlarge": 0.526,
    "g5.xlarge": 1.006,
    "g6.xlarge": 0.8048,
    "p3.2xlarge": 3.06,
}


def idle(settings: Settings, today: date) -> dict[str, float]:
    """US dollars per hour by item while no job runs, without storage; empty for other stacks than environments.

    The control plane costs what the support of its version does *today*.

    KeyError for system nodes whose price is not in MACHINES.
    """
    if settings.kind != "compute":
        return {}
    system, private = settings.cluster.system, settings.network.private
    addresses = 1 if private else system.nodes
    disks = system.nodes * _disk(system.disk_gib)
    ends = STANDARD_SUPPORT_ENDS.get(minor(settings.cluster.version))
    items = {
        "EKS control plane": EXTENDED_SUPPORT if ends is not None and today > ends else CONTROL_PLANE,
        f"{system.nodes} x {system.type}": system.nodes * MACHINES[system.type],
        f"{system.nodes} x {system.disk_gib} GiB disk": disks,
        f"{addresses} public IPv4": addresses * PUBLIC_ADDRESS,
    }
    if private:
        items["NAT gateway (+ $0.045 per GB)"] = NAT_GATEWAY
    return items


def gpu_hour_ceiling(settings: Settings, today: date) -> dict[str, float]:
    """US dollars per GPU-hour (node-hour without GPUs) by group: all nodes busy, on demand, idle costs included."""
    overhead = sum(idle(settings, today).values())
    address = 0 if settings.network.private else PUBLIC_ADDRESS
    ceilings = {}
    for group in settings.groups:
        kind = catalog()[group.type]
        units = group.max * max(1, kind.gpus)
        disk = _disk(group.disk_gib, group.root_disk_throughput(kind))
        node = MACHINES[group.type] + disk + address
        ceilings[group.name] = (group.max * node + overhead) / units
    return ceilings


def _disk(gib: int, throughput: int = DEFAULT_THROUGHPUT) -> float:
    more, iops = throughput - DEFAULT_THROUGHPUT, disk_iops(throughput) - DEFAULT_IOPS
    return (gib * GP3_GIB_MONTH + more * GP3_MIBPS_MONTH + iops * GP3_IOPS_MONTH) / _HOURS_PER_MONTH
