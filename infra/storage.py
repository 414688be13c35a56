"""Shared storage: the EFS file system, or an existing one, its mount target, and the volume that runs claim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_aws import ec2, efs, vpc
from pulumi_kubernetes import core, meta

from infra import names
from infra.fixed_settings import as_tag, of_storage, refuse_changes
from infra.kubernetes_component import KubernetesComponent
from infra.settings import Settings, Storage

# Kubernetes asks for a size; EFS has none, and a claim's can't be changed without dynamic provisioning.
_SIZE = {"storage": "1024Gi"}


@dataclass(frozen=True)
class FileSystemIds:
    """A file system and the access point that runs see."""

    file_system_id: pulumi.Output[str]
    access_point_id: pulumi.Output[str]


@dataclass(frozen=True)
class FileSystemArgs:
    """The settings of the storage; `protect` refuses its deletion until someone unprotects it by hand."""

    storage: Storage
    zone: str
    protect: bool
    fixed: Mapping[str, str]
    tags: Mapping[str, str]


class FileSystem(pulumi.ComponentResource):
    """An encrypted elastic EFS with one access point owned by 1000:1000; provides `ids`."""

    def __init__(self, name: str, args: FileSystemArgs, opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:storage:FileSystem", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, protect=args.protect)
        tags = {**args.tags, "Name": name}
        # Another zone would be another, empty file system: the change of the tag is refused instead.
        fixed = pulumi.ResourceOptions(ignore_changes=["availabilityZoneName"], hooks=refuse_changes(f"{name}-storage"))
        system = efs.FileSystem(
            name,
            encrypted=True,
            throughput_mode="elastic",
            availability_zone_name=args.zone if args.storage.one_zone else None,
            tags={**tags, names.TAG_FIXED: as_tag(args.fixed)},
            opts=pulumi.ResourceOptions.merge(child, fixed),
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


def file_system_ids(settings: Settings, opts: pulumi.ResourceOptions) -> FileSystemIds:
    """The ids of the file system that the settings name, of the data stack's one, or of a new one."""
    storage = settings.storage
    if storage.file_system_id and storage.access_point_id:
        return FileSystemIds(
            pulumi.Output.from_input(storage.file_system_id), pulumi.Output.from_input(storage.access_point_id)
        )
    if settings.kind == "compute" and storage.keep:
        return _data_stack_ids(settings)
    protect = settings.kind == "data"
    args = FileSystemArgs(storage, settings.zone, protect, of_storage(settings), settings.all_tags)
    return FileSystem(settings.name, args, opts).ids


def _data_stack_ids(settings: Settings) -> FileSystemIds:
    stack = names.data_stack(settings)
    reference = pulumi.StackReference(f"{pulumi.get_organization()}/{settings.project}/{stack}")

    def checked(key: str, zone: str | None, value: str | None) -> str:
        if value is None:
            raise pulumi.RunError(f"stack {stack} has no output {key}: run `pulumi up --stack {stack}` first")
        if zone is not None and zone != settings.zone:
            remedy = f"make it the first of `zones` of {settings.stack}"
            raise pulumi.RunError(f"the storage of {stack} is in {zone}: {remedy}")
        if len(settings.zones) > 1 and (zone is not None) != settings.storage.one_zone:
            is_one, wanted = (f"in {zone} alone", "true") if zone else ("in all zones", "false")
            remedy = f"set storage.one_zone of {settings.stack} to {wanted}, which decides where it is mounted"
            raise pulumi.RunError(f"the storage of {stack} is {is_one}: {remedy}")
        return value

    def output(key: str) -> pulumi.Output[str]:
        both = pulumi.Output.all(reference.get_output("zone"), reference.get_output(key))
        return both.apply(lambda pair: checked(key, *pair))

    return FileSystemIds(output("file_system_id"), output("access_point_id"))


def mount_zones(settings: Settings) -> Sequence[str]:
    """The zones with a mount target: One Zone storage can't have another than that of its own zone."""
    return settings.zones[:1] if settings.storage.one_zone else settings.zones


def mount_options(settings: Settings) -> list[str]:
    """The NFS mount options of the volume; nodes in other zones have to name the one with the mount target.

    https://docs.aws.amazon.com/efs/latest/ug/mounting-one-zone.html
    """
    crossing = len(mount_zones(settings)) < len(settings.zones)
    return [*settings.storage.mount_options, *([f"az={settings.zone}"] if crossing else [])]


@dataclass(frozen=True)
class MountArgs:
    """A file system, and the nodes that may mount it (those that carry the cluster's security group).

    `subnet_ids` has the subnet of each zone in which it can be mounted, the first zone first.
    """

    file_system_id: pulumi.Input[str]
    vpc_id: pulumi.Input[str]
    subnet_ids: Mapping[str, pulumi.Input[str]]
    cluster_security_group_id: pulumi.Input[str]
    tags: Mapping[str, str]


class Mount(pulumi.ComponentResource):
    """A mount target in each zone that only the cluster's nodes reach, by NFS; provides `ready` to wait for."""

    def __init__(self, name: str, args: MountArgs, opts: pulumi.ResourceOptions | None = None):
        super().__init__("spotmpi:storage:Mount", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        tags = {**args.tags, "Name": f"{name}-nfs"}
        group = ec2.SecurityGroup(
            f"{name}-nfs",
            vpc_id=args.vpc_id,
            description="NFS from the nodes",
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
            description="NFS from the nodes",
            tags=tags,
            opts=child,
        )
        targets = [
            efs.MountTarget(
                f"{name}-{zone[-1]}" if index else name,
                file_system_id=args.file_system_id,
                subnet_id=subnet,
                security_groups=[group.id],
                opts=child,
            )
            for index, (zone, subnet) in enumerate(args.subnet_ids.items())
        ]
        self.ready: list[pulumi.Resource] = [*targets, rule]
        self.register_outputs({"mount_target_ids": [target.id for target in targets]})


@dataclass(frozen=True)
class VolumeArgs:
    """The file system behind the volume, its NFS mount options, and the namespace of its claim."""

    mount_options: Sequence[str]
    ids: FileSystemIds
    namespace: pulumi.Input[str]


class Volume(KubernetesComponent):
    """A static PersistentVolume and the claim that runs mount, readable and writable by many nodes at once."""

    def __init__(self, name: str, args: VolumeArgs, opts: pulumi.ResourceOptions):
        super().__init__("Volume", name, opts)
        handle = pulumi.Output.concat(args.ids.file_system_id, "::", args.ids.access_point_id)
        volume = core.v1.PersistentVolume(
            name,
            # The source of a volume is immutable, and a bound volume can't be deleted: another file system is a volume
            # of another name, to which the claim moves before the old one goes.
            metadata=meta.v1.ObjectMetaArgs(name=pulumi.Output.concat(name, "-", args.ids.access_point_id)),
            spec=core.v1.PersistentVolumeSpecArgs(
                capacity=_SIZE,
                access_modes=["ReadWriteMany"],
                persistent_volume_reclaim_policy="Retain",
                storage_class_name="",
                volume_mode="Filesystem",
                mount_options=list(args.mount_options),
                csi=core.v1.CSIPersistentVolumeSourceArgs(driver="efs.csi.aws.com", volume_handle=handle),
                # No other claim may bind it.
                claim_ref=core.v1.ObjectReferenceArgs(namespace=args.namespace, name=names.VOLUME_CLAIM),
            ),
            opts=self.child(),
        )
        claim = core.v1.PersistentVolumeClaim(
            name,
            metadata=meta.v1.ObjectMetaArgs(name=names.VOLUME_CLAIM, namespace=args.namespace),
            spec=core.v1.PersistentVolumeClaimSpecArgs(
                access_modes=["ReadWriteMany"],
                storage_class_name="",
                volume_name=volume.metadata.apply(lambda metadata: str(metadata.name)),
                resources=core.v1.VolumeResourceRequirementsArgs(requests=_SIZE),
            ),
            opts=pulumi.ResourceOptions.merge(self.child(volume), pulumi.ResourceOptions(delete_before_replace=True)),
        )
        self.register_outputs({"volume": volume.id, "claim": claim.id})
