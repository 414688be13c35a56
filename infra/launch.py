"""Launch templates: the settings that the machines of all groups share."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_aws import ec2

from infra.settings import BLOCK, DEFAULT_THROUGHPUT

DEFAULT_IOPS = 3000  # of a gp3 disk, without additional cost; each allows 0.25 MiB/s
# EKS adds its own part, with the cluster: https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html
_JOIN_LOCAL_DISKS = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="spotmpi"

--spotmpi
Content-Type: application/node.eks.aws

---
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0

--spotmpi--
"""


@dataclass(frozen=True)
class Machine:
    """What may differ between machines: disk in GiB and MiB/s, placement group by name, network interfaces.

    `join_local_disks` puts images and the files of pods on the machine's NVMe disks. `capacity_block` is the
    reservation that machines start in, and their type.
    """

    disk_gib: int
    throughput_mibps: int = DEFAULT_THROUGHPUT
    join_local_disks: bool = False
    placement_group: pulumi.Input[str] | None = None
    network_interfaces: Sequence[ec2.LaunchTemplateNetworkInterfaceArgs] | None = None
    capacity_block: tuple[str, str] | None = None


def launch_template(
    name: str, machine: Machine, tags: Mapping[str, str], opts: pulumi.ResourceOptions
) -> ec2.LaunchTemplate:
    """A template with IMDSv2 only, an encrypted gp3 disk, and tags on machines, disks and interfaces."""
    named = {**tags, "Name": name}
    group = machine.placement_group
    return ec2.LaunchTemplate(
        name,
        update_default_version=True,
        placement=ec2.LaunchTemplatePlacementArgs(group_name=group) if group is not None else None,
        metadata_options=ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled",
            http_tokens="required",
            # One hop keeps pods from the machine's own role.
            http_put_response_hop_limit=1,
        ),
        block_device_mappings=[_root_disk(machine)],
        user_data=b64encode(_JOIN_LOCAL_DISKS.encode()).decode() if machine.join_local_disks else None,
        network_interfaces=machine.network_interfaces,
        **_in_capacity_block(machine),
        tag_specifications=[
            ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=named)
            for kind in ("instance", "volume", "network-interface")
        ],
        tags=named,
        opts=opts,
    )


def _in_capacity_block(machine: Machine) -> dict[str, Any]:
    """What EKS requires in the template of a group that starts machines in a Capacity Block, its type included.

    https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html
    """
    if machine.capacity_block is None:
        return {}
    reservation, kind = machine.capacity_block
    target = ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
        capacity_reservation_id=reservation
    )
    return {
        "instance_type": kind,
        "instance_market_options": ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type=BLOCK),
        "capacity_reservation_specification": ec2.LaunchTemplateCapacityReservationSpecificationArgs(
            capacity_reservation_target=target
        ),
    }


def disk_iops(throughput_mibps: int) -> int:
    """The IOPS that a gp3 disk needs for its throughput."""
    return max(DEFAULT_IOPS, 4 * throughput_mibps)


def _root_disk(machine: Machine) -> ec2.LaunchTemplateBlockDeviceMappingArgs:
    return ec2.LaunchTemplateBlockDeviceMappingArgs(
        device_name="/dev/xvda",
        ebs=ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
            volume_size=machine.disk_gib,
            volume_type="gp3",
            throughput=machine.throughput_mibps,
            iops=disk_iops(machine.throughput_mibps),
            encrypted="true",
            delete_on_termination="true",
        ),
    )
