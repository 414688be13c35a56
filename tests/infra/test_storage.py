"""Shared storage: the file system, who reaches it, the volume that runs claim, and storage that outlives its stack."""

from __future__ import annotations

import pulumi
import pytest

from tests.infra.mock_engine import run, run_with_data_stack


def test_the_file_system_is_encrypted_elastic_and_in_the_gpu_zone() -> None:
    inputs = run("lab").one("aws:efs/fileSystem:FileSystem").inputs
    assert inputs["encrypted"] is True
    assert (inputs["throughputMode"], inputs["availabilityZoneName"]) == ("elastic", "us-east-1a")


def test_regional_storage_names_no_zone() -> None:
    recording = run("lab", storage={"one_zone": False})
    assert "availabilityZoneName" not in recording.one("aws:efs/fileSystem:FileSystem").inputs


@pytest.mark.parametrize(("backup", "status"), [(False, "DISABLED"), (True, "ENABLED")])
def test_backups_are_enabled_or_disabled_explicitly(backup: bool, status: str) -> None:
    recording = run("lab", storage={"backup": backup})
    assert recording.one("BackupPolicy").inputs["backupPolicy"] == {"status": status}


def test_the_access_point_has_a_folder_of_user_1000() -> None:
    inputs = run("lab").one("AccessPoint").inputs
    assert inputs["posixUser"] == {"uid": 1000, "gid": 1000}
    owner = {"ownerUid": 1000, "ownerGid": 1000, "permissions": "0770"}
    assert inputs["rootDirectory"] == {"path": "/spotmpi", "creationInfo": owner}


def test_only_the_clusters_nodes_reach_the_mount_target_and_only_by_nfs() -> None:
    rule = run("lab").one("SecurityGroupIngressRule")
    assert rule.name == "spotmpi-lab-nfs"
    nfs = {"referencedSecurityGroupId": "sg-cluster", "fromPort": 2049, "toPort": 2049, "ipProtocol": "tcp"}
    assert {key: rule.inputs[key] for key in nfs} == nfs
    target = run("lab").one("MountTarget").inputs
    assert (target["securityGroups"], target["subnetId"]) == (["spotmpi-lab-nfs-id"], "spotmpi-lab-nodes-id")


def test_nodes_are_deleted_before_the_mount_target() -> None:
    recording = run("p3")
    way = {recording.one("MountTarget").urn, recording.one("SecurityGroupIngressRule", "spotmpi-p3-nfs").urn}
    assert set(recording.node_groups) == {"p3", "p3-spread", "system"}
    assert all(way <= group.depends_on for name, group in recording.node_groups.items() if name != "system")


def test_the_volume_is_static_shared_and_retained() -> None:
    assert run("lab").one("PersistentVolume").inputs["spec"] == {
        "capacity": {"storage": "1024Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "volumeMode": "Filesystem",
        "mountOptions": ["noresvport"],
        "csi": {"driver": "efs.csi.aws.com", "volumeHandle": "spotmpi-lab-id::spotmpi-lab-id"},
        "claimRef": {"namespace": "training", "name": "runs"},
    }


def test_the_claim_names_its_volume_so_that_both_bind() -> None:
    recording = run("lab", storage={"mount_options": ["nconnect=4"]})
    volume, claim = recording.one("PersistentVolume"), recording.one("PersistentVolumeClaim")
    assert claim.inputs["metadata"] == {"name": "runs", "namespace": "training"}
    assert claim.inputs["spec"]["volumeName"] == volume.inputs["metadata"]["name"]
    assert claim.inputs["spec"]["resources"]["requests"] == volume.inputs["spec"]["capacity"]
    assert volume.inputs["metadata"]["name"] == "spotmpi-lab-spotmpi-lab-id"
    assert volume.inputs["spec"]["mountOptions"] == ["nconnect=4"]
    assert volume.urn in claim.depends_on


def test_a_data_stack_has_only_protected_storage() -> None:
    recording = run("p3-data")
    assert {resource.kind: resource.protect for resource in recording.resources} == {
        "pulumi:providers:aws": False,
        "spotmpi:storage:FileSystem": False,
        "aws:efs/fileSystem:FileSystem": True,
        "aws:efs/backupPolicy:BackupPolicy": True,
        "aws:efs/accessPoint:AccessPoint": True,
    }
    ids = {"file_system_id": "spotmpi-p3-data-id", "access_point_id": "spotmpi-p3-data-id"}
    assert recording.exports == {"zone": "us-east-1a", **ids}


def test_a_stack_with_a_data_stack_mounts_its_storage_and_has_none_of_its_own() -> None:
    recording = run("p3")
    assert recording.read == {"organization/spotmpi/p3-data": "pulumi:pulumi:StackReference"}
    assert recording.of("aws:efs/fileSystem:FileSystem") == recording.of("AccessPoint") == []
    assert recording.one("MountTarget").inputs["fileSystemId"] == "fs-0123abcd"
    assert recording.one("PersistentVolume").inputs["spec"]["csi"]["volumeHandle"] == "fs-0123abcd::fsap-0123abcd"
    assert not any(resource.protect for resource in recording.resources)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, r"stack p3-data has no output \w+: run `pulumi up --stack p3-data` first"),
        (
            {"zone": "us-east-1f", "file_system_id": "fs-1", "access_point_id": "fsap-1"},
            "is in us-east-1f: make it the first of `zones` of p3",
        ),
    ],
    ids=["never built", "in another zone"],
)
def test_an_unusable_data_stack_is_refused_with_the_remedy(outputs: dict[str, str], message: str) -> None:
    with pytest.raises(pulumi.RunError, match=message):
        run_with_data_stack("p3", outputs)


def test_an_existing_file_system_is_used_as_it_is() -> None:
    recording = run("lab", storage={"file_system_id": "fs-89abcdef", "access_point_id": "fsap-89abcdef"})
    assert recording.of("aws:efs/fileSystem:FileSystem") == []
    assert recording.read == {}
    assert recording.one("MountTarget").inputs["fileSystemId"] == "fs-89abcdef"
