"""Launch templates: the settings that the machines of all groups share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_aws import ec2


@dataclass(frozen=True)
class Machine:
    """What may differ between machines: disk in GiB, placement group by name, network interfaces."""

    disk_gib: int
    placement_group: pulumi.Input[str] | None = None
    network_interfaces: Sequence[ec2.LaunchTemplateNetworkInterfaceArgs] | None = None


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
        block_device_mappings=[_root_disk(machine.disk_gib)],
        network_interfaces=machine.network_interfaces,
        tag_specifications=[
            ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=named)
            for kind in ("instance", "volume", "network-interface")
        ],
        tags=named,
        opts=opts,
    )


def _root_disk(gib: int) -> ec2.LaunchTemplateBlockDeviceMappingArgs:
    return ec2.LaunchTemplateBlockDeviceMappingArgs(
        device_name="/dev/xvda",
        ebs=ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
            volume_size=gib, volume_type="gp3", encrypted="true", delete_on_termination="true"
        ),
    )
