"""Shared storage: the EFS file system, its mount target in the nodes' zone, and the volume that runs claim."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
from pulumi_aws import ec2, efs, vpc
from pulumi_kubernetes import core, meta

from infra import names
from infra.inside import Inside
from infra.settings import Storage


@dataclass(frozen=True)
class FileSystemIds:
    """A file system and the access point that runs see."""

    file_system_id: pulumi.Output[str]
    access_point_id: pulumi.Output[str]


@dataclass(frozen=True)
class FileSystemArgs:
    """The storage as set; `protect` refuses its deletion until somebody lifts that by hand."""

    storage: Storage
    zone: str
    protect: bool
    tags: Mapping[str, str]


class FileSystem(pulumi.ComponentResource):
    """An encrypted elastic EFS with one access point owned by 1000:1000; gives `ids`."""

    def __init__(self, name: str, args: FileSystemArgs, opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:storage:FileSystem", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, protect=args.protect)
        tags = {**args.tags, "Name": name}
        system = efs.FileSystem(
            name,
            encrypted=True,
            throughput_mode="elastic",
            availability_zone_name=args.zone if args.storage.one_zone else None,
            tags=tags,
            opts=child,
        )
        efs.BackupPolicy(
            name,
            file_system_id=system.id,
            backup_policy=efs.BackupPolicyBackupPolicyArgs(status="ENABLED" if args.storage.backup else "DISABLED"),
            opts=child,
        )
        owner = efs.AccessPointRootDirectoryCreationInfoArgs(
            owner_uid=names.UID, owner_gid=names.GID, permissions="0770"
        )
        point = efs.AccessPoint(
            name,
            file_system_id=system.id,
            posix_user=efs.AccessPointPosixUserArgs(uid=names.UID, gid=names.GID),
            root_directory=efs.AccessPointRootDirectoryArgs(path="/spotmpi", creation_info=owner),
            tags=tags,
            opts=child,
        )
        self.ids = FileSystemIds(system.id, point.id)
        self.register_outputs({"file_system_id": system.id, "access_point_id": point.id})


@dataclass(frozen=True)
class MountArgs:
    """A file system, and the nodes that may mount it (those that carry the cluster's security group)."""

    file_system_id: pulumi.Input[str]
    vpc_id: pulumi.Input[str]
    subnet_id: pulumi.Input[str]
    cluster_security_group_id: pulumi.Input[str]
    tags: Mapping[str, str]


class Mount(pulumi.ComponentResource):
    """A mount target that only the cluster's nodes reach, on the NFS port; gives `ready` to wait for."""

    def __init__(self, name: str, args: MountArgs, opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:storage:Mount", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        tags = {**args.tags, "Name": f"{name}-nfs"}
        group = ec2.SecurityGroup(
            f"{name}-nfs",
            vpc_id=args.vpc_id,
            description="NFS from the cluster's nodes",
            tags=tags,
            opts=child,
        )
        rule = vpc.SecurityGroupIngressRule(
            f"{name}-nfs",
            security_group_id=group.id,
            referenced_security_group_id=args.cluster_security_group_id,
            ip_protocol="tcp",
            from_port=2049,
            to_port=2049,
            description="NFS from the cluster's nodes",
            tags=tags,
            opts=child,
        )
        target = efs.MountTarget(
            name, file_system_id=args.file_system_id, subnet_id=args.subnet_id, security_groups=[group.id], opts=child
        )
        self.ready: list[pulumi.Resource] = [target, rule]
        self.register_outputs({})


@dataclass(frozen=True)
class VolumeArgs:
    """What the volume is of, and where it is claimed."""

    storage: Storage
    ids: FileSystemIds
    namespace: pulumi.Input[str]


class Volume(Inside):
    """A static PersistentVolume and the claim that runs mount, readable and writable by many nodes at once."""

    def __init__(self, name: str, args: VolumeArgs, opts: pulumi.ResourceOptions):
        super().__init__("Volume", name, opts)
        size = {"storage": f"{args.storage.size_gib}Gi"}
        handle = pulumi.Output.concat(args.ids.file_system_id, "::", args.ids.access_point_id)
        volume = core.v1.PersistentVolume(
            name,
            metadata=meta.v1.ObjectMetaArgs(name=name),
            spec=core.v1.PersistentVolumeSpecArgs(
                capacity=size,
                access_modes=["ReadWriteMany"],
                persistent_volume_reclaim_policy="Retain",
                storage_class_name="",
                volume_mode="Filesystem",
                mount_options=list(args.storage.mount_options),
                csi=core.v1.CSIPersistentVolumeSourceArgs(driver="efs.csi.aws.com", volume_handle=handle),
                # Nobody else's claim may take it.
                claim_ref=core.v1.ObjectReferenceArgs(namespace=args.namespace, name=names.VOLUME_CLAIM),
            ),
            opts=self.child(),
        )
        core.v1.PersistentVolumeClaim(
            name,
            metadata=meta.v1.ObjectMetaArgs(name=names.VOLUME_CLAIM, namespace=args.namespace),
            spec=core.v1.PersistentVolumeClaimSpecArgs(
                access_modes=["ReadWriteMany"],
                storage_class_name="",
                volume_name=name,
                resources=core.v1.VolumeResourceRequirementsArgs(requests=size),
            ),
            opts=self.child(volume),
        )
        self.register_outputs({})
