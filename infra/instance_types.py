"""The EC2 instance types of instance_types.json."""

import json
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_TABLE = Path(__file__).with_name("instance_types.json")


class InstanceType(BaseModel):
    """One instance type; memory in MiB, addresses are IPv4 addresses of one network interface."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vcpus: int
    memory_mib: int
    gpus: int
    gpu_model: str | None
    gpu_ami: bool
    efa_interfaces: int
    cluster_placement: bool
    interfaces: int
    addresses_per_interface: int

    @property
    def pods(self) -> int:
        """How many pods EKS allows on one node: the CNI's addresses, and 110 or 250 at most by vCPU."""
        by_address = self.interfaces * (self.addresses_per_interface - 1) + 2
        return min(by_address, 110 if self.vcpus <= 30 else 250)

    @property
    def allocatable_mib(self) -> int:
        """The most memory in MiB that pods of one node can have together.

        The kernel's page tables take 64 bytes a page of 4 KiB, nodeadm keeps 255 MiB and 11 MiB a pod, and evicts below
        100 MiB (amazon-eks-ami, nodeadm/internal/kubelet/config.go). Firmware takes some more, which is not documented.
        """
        return self.memory_mib - self.memory_mib // 64 - (255 + 11 * self.pods) - 100


@cache
def catalog() -> dict[str, InstanceType]:
    """Every instance type in the table by name."""
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))["types"]
    return {name: InstanceType(**row) for name, row in rows.items()}
