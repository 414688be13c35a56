"""Capacity Blocks for ML: the reservations that the account has bought, each of one type in one zone for some days."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from spotmpi.core.names import CAPACITY_BLOCK

if TYPE_CHECKING:
    from spotmpi.aws.account import Aws

USABLE = ("active", "scheduled", "payment-pending")  # states of a block that has not ended


@dataclass(frozen=True)
class CapacityBlock:
    """A Capacity Block: its instances are there from *start*, and EC2 begins to end them 30 minutes before *end*."""

    id: str
    type: str
    zone: str
    nodes: int
    state: str
    start: datetime
    end: datetime

    def __str__(self) -> str:
        return f"{self.nodes} x {self.type} in {self.zone}, {self.state}, {self.period}"

    @property
    def period(self) -> str:
        """From when to when it is there."""
        return f"from {self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"


def capacity_blocks(aws: Aws, region: str) -> dict[str, CapacityBlock]:
    """The Capacity Blocks of the account in *region*, by id; other reservations of capacity are left out."""
    found = aws.pages("ec2", region, "describe_capacity_reservations", "CapacityReservations")
    return {
        each["CapacityReservationId"]: CapacityBlock(
            id=each["CapacityReservationId"],
            type=each["InstanceType"],
            zone=each["AvailabilityZone"],
            nodes=each["TotalInstanceCount"],
            state=each["State"],
            start=each["StartDate"],
            end=each["EndDate"],
        )
        for each in found
        if each.get("ReservationType") == CAPACITY_BLOCK
    }
