"""Shared storage: the file system, who reaches it, the volume that runs claim, and storage that outlives its stack."""

from __future__ import annotations

import pulumi
import pytest

from tests.infra.mock_engine import run, run_with_data_stack


def test_the_file_system_is_encrypted_elastic_and_in_the_gpu_zone() -> None:
    inputs = run("lab").one("aws:efs/fileSystem:FileSystem").inputs
    assert inputs["encrypted"] is True
    assert inputs["throughputMode"] == "elastic"
    assert inputs["availabilityZoneName"] == "us-east-1a"


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
    recording = run("lab")
    rules = recording.of("SecurityGroupIngressRule")
    assert [rule.name for rule in rules] == ["spotmpi-lab-nfs"]
    assert rules[0].inputs["referencedSecurityGroupId"] == "sg-cluster"
    assert (rules[0].inputs["fromPort"], rules[0].inputs["toPort"], rules[0].inputs["ipProtocol"]) == (
        2049,
        2049,
        "tcp",
    )
    target = recording.one("MountTarget").inputs
    assert target["securityGroups"] == ["spotmpi-lab-nfs-id"]
    assert target["subnetId"] == "spotmpi-lab-nodes-id"


def test_nodes_are_deleted_before_the_mount_target() -> None:
    recording = run("p3")
    way = {recording.one("MountTarget").urn, recording.one("SecurityGroupIngressRule", "spotmpi-p3-nfs").urn}
    groups = [each for each in recording.of("aws:eks/nodeGroup:NodeGroup") if "system" not in each.name]
    assert len(groups) == 2
    assert all(way <= group.depends_on for group in groups)


def test_the_volume_is_static_shared_and_retained() -> None:
    spec = run("lab").one("PersistentVolume").inputs["spec"]
    assert spec == {
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
    recording = run("lab", storage={"size_gib": 50, "mount_options": ["nconnect=4"]})
    volume, claim = recording.one("PersistentVolume"), recording.one("PersistentVolumeClaim")
    assert claim.inputs["metadata"] == {"name": "runs", "namespace": "training"}
    assert claim.inputs["spec"]["volumeName"] == volume.inputs["metadata"]["name"]
    assert claim.inputs["spec"]["resources"]["requests"] == volume.inputs["spec"]["capacity"] == {"storage": "50Gi"}
    assert volume.inputs["spec"]["mountOptions"] == ["nconnect=4"]
    assert volume.urn in claim.depends_on


def test_a_data_stack_has_only_protected_storage() -> None:
    recording = run("p3-data")
    assert {resource.kind for resource in recording.resources} == {
        "pulumi:providers:aws",
        "spotmpi:storage:FileSystem",
        "aws:efs/fileSystem:FileSystem",
        "aws:efs/backupPolicy:BackupPolicy",
        "aws:efs/accessPoint:AccessPoint",
    }
    assert all(resource.protect for resource in recording.resources if resource.kind.startswith("aws:efs/"))
    assert recording.exports == {
        "zone": "us-east-1a",
        "file_system_id": "spotmpi-p3-data-id",
        "access_point_id": "spotmpi-p3-data-id",
    }


def test_a_stack_with_a_data_stack_has_no_storage_of_its_own() -> None:
    recording = run("p3")
    assert recording.of("aws:efs/fileSystem:FileSystem") == recording.of("AccessPoint") == []
    assert recording.one("MountTarget").inputs["fileSystemId"] == "fs-0123abcd"
    assert recording.one("PersistentVolume").inputs["spec"]["csi"]["volumeHandle"] == "fs-0123abcd::fsap-0123abcd"
    assert not any(resource.protect for resource in recording.resources)


def test_the_data_stack_is_found_by_name_in_the_same_project() -> None:
    assert run("p3").read == {"organization/spotmpi/p3-data": "pulumi:pulumi:StackReference"}


def test_a_data_stack_that_was_never_built_is_reported_with_the_command() -> None:
    with pytest.raises(pulumi.RunError, match=r"'p3-data' has no output '.*': run `pulumi up --stack p3-data` first"):
        run_with_data_stack("p3", {})


def test_persistent_storage_in_another_zone_is_refused() -> None:
    outputs = {"zone": "us-east-1f", "file_system_id": "fs-1", "access_point_id": "fsap-1"}
    with pytest.raises(pulumi.RunError, match="is in us-east-1f: set `zone` of 'p3' to us-east-1f"):
        run_with_data_stack("p3", outputs)


def test_an_existing_file_system_is_used_as_it_is() -> None:
    own = {"file_system_id": "fs-89abcdef", "access_point_id": "fsap-89abcdef"}
    recording = run("lab", storage=own)
    assert recording.of("aws:efs/fileSystem:FileSystem") == []
    assert recording.read == {}
    assert recording.one("MountTarget").inputs["fileSystemId"] == "fs-89abcdef"
