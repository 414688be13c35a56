"""The EC2 instance types of instance_types.json."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

TABLE = Path(__file__).with_name("instance_types.json")
# GPUs of EKS's AL2023 NVIDIA images: EKS user guide, ml-eks-optimized-ami.
_GPU_FAMILIES = (
    *("g4dn", "g5", "g5g", "g6", "g6e", "g6f", "g7e", "gr6", "gr6f", "p3", "p3dn", "p4d", "p4de"),
    *("p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200", "p6e-gb300"),
)


class InstanceType(BaseModel):
    """One instance type; memory in MiB, interfaces and IPv4 addresses are those of its first network card."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vcpus: int
    memory_mib: int
    arm: bool = False
    gpus: int
    gpu_model: str | None
    gpu_ami: bool
    local_disk_gb: int = 0  # all NVMe disks of the machine together
    spot: bool = True
    efa_interfaces: int
    first_efa_card: int = 0  # 1 where the first network card carries no EFA
    cluster_placement: bool
    interfaces: int
    addresses_per_interface: int
    retired: bool = False  # no longer in EC2's catalogue: it may be gone from every zone

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

    @property
    def ami_type(self) -> str:
        """EKS's name of the image that nodes of this type boot."""
        return f"AL2023_{'ARM_64' if self.arm else 'x86_64'}_{'NVIDIA' if self.gpus else 'STANDARD'}"

    def network_cards(self, efa: bool) -> list[int]:
        """The network cards on which a node has an interface: the first one, and with EFA each that carries an EFA."""
        cards = range(self.first_efa_card, self.first_efa_card + self.efa_interfaces) if efa else ()
        return sorted({0, *cards})


def facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What an environment needs of one entry of EC2's DescribeInstanceTypes; ValueError for other machines.

    Nodes are virtual and carry NVIDIA GPUs or none: others need device plugins and images that no environment has.
    """
    name, network = entry["InstanceType"], entry["NetworkInfo"]
    others = [
        key for key in ("NeuronInfo", "FpgaInfo", "InferenceAcceleratorInfo", "MediaAcceleratorInfo") if key in entry
    ]
    gpus = entry.get("GpuInfo", {}).get("Gpus", [])
    if others or entry["BareMetal"] or any(gpu["Manufacturer"] != "NVIDIA" for gpu in gpus):
        raise ValueError(f"{name}: environments run virtual machines with NVIDIA GPUs or none")
    efa = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0) if network["EfaSupported"] else 0
    cards = network["NetworkCards"]
    with_efa = [card["NetworkCardIndex"] for card in cards if "efa" in card.get("InterfaceTypes", ["efa"])]
    row = {
        "vcpus": entry["VCpuInfo"]["DefaultVCpus"],
        "memory_mib": entry["MemoryInfo"]["SizeInMiB"],
        "arm": "arm64" in entry["ProcessorInfo"]["SupportedArchitectures"],
        # A fraction of a GPU counts as none, and as one that the machine sees.
        "gpus": sum(gpu.get("LogicalGpuCount", gpu.get("Count", 0)) for gpu in gpus),
        "gpu_model": gpus[0]["Name"] if gpus else None,
        "gpu_ami": bool(gpus) and name.split(".")[0] in _GPU_FAMILIES,
        "local_disk_gb": entry.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        "spot": "spot" in entry["SupportedUsageClasses"],
        "efa_interfaces": efa,
        "first_efa_card": with_efa[0] if efa else 0,
        "cluster_placement": "cluster" in entry["PlacementGroupInfo"]["SupportedStrategies"],
        "interfaces": cards[network["DefaultNetworkCardIndex"]]["MaximumNetworkInterfaces"],
        "addresses_per_interface": network["Ipv4AddressesPerInterface"],
    }
    defaults = {key: field.default for key, field in InstanceType.model_fields.items() if not field.is_required()}
    return {key: value for key, value in row.items() if key not in defaults or value != defaults[key]}


@cache
def catalog() -> dict[str, InstanceType]:
    """Every instance type in the table by name."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["types"]
    return {name: InstanceType(**row) for name, row in rows.items()}
