"""What a whole environment costs by the hour, in US dollars: idle, and with all nodes at work."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = (
    "control plane, disks and addresses: AWS list prices for us-east-1 as published in 2025, not confirmed since; "
    "system nodes and GPU nodes: the Price List API and the spot price now. Storage and traffic come on top"
)
SYSTEM_TYPE = "t3.medium"  # as infra/settings.py has it: two of these with 30 GiB each
_SYSTEM_NODES = 2
_SYSTEM_PRICE = 0.0416  # us-east-1, where the Price List API may not be asked
_CONTROL_PLANE = 0.10
_ADDRESS = 0.005
_GIB_HOUR = 0.08 / 730
_SYSTEM_DISK, _NODE_DISK = 30, 100


@dataclass(frozen=True)
class EnvironmentPrice:
    """$/h of an environment with the default settings: no job, and all nodes at work on spot (None: price unknown)."""

    idle: float
    busy: float | None


def environment_price(nodes: int, spot: float | None, system: float | None) -> EnvironmentPrice:
    """The price with *nodes* nodes at *spot* $/h each and system nodes at *system* $/h each (None: us-east-1's)."""
    each = _SYSTEM_PRICE if system is None else system
    idle = _CONTROL_PLANE + _SYSTEM_NODES * (each + _SYSTEM_DISK * _GIB_HOUR + _ADDRESS)
    busy = None if spot is None else idle + nodes * (spot + _NODE_DISK * _GIB_HOUR + _ADDRESS)
    return EnvironmentPrice(idle, busy)
