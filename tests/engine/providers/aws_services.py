"""IAM, KMS, EFS, ECR, CloudWatch and Budgets as AWS answers them."""

import json
from collections.abc import Iterator
from typing import Any

from tests.engine.providers.aws_cluster import ATTACHMENT, KEY, LOG_GROUP, ROLE
from tests.engine.providers.aws_network import SECURITY_GROUPS, SUBNET, zone_of
from tests.engine.providers.kinds import Kind, Name, Target
from tests.engine.providers.records import ACCOUNT, Records, Refusal

POLICY = "aws:iam/policy:Policy"
OPEN_ID = "aws:iam/openIdConnectProvider:OpenIdConnectProvider"
FILE_SYSTEM = "aws:efs/fileSystem:FileSystem"
MOUNT_TARGET = "aws:efs/mountTarget:MountTarget"
ACCESS_POINT = "aws:efs/accessPoint:AccessPoint"
REPOSITORY = "aws:ecr/repository:Repository"
_OF_ROLE = {"role": (Target(ROLE, "name"),)}
_OF_FILE_SYSTEM = {"fileSystemId": (Target(FILE_SYSTEM),)}


def _documents(*keys: str) -> Any:
    def rule(inputs: dict[str, Any], records: Records) -> None:
        for key in keys:
            _check_document(key, inputs[key])

    return rule


def _check_document(key: str, text: str) -> None:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Refusal(f"MalformedPolicyDocument: {key} is not JSON: {error}") from error
    if document.get("Version") != "2012-10-17" or not document.get("Statement"):
        raise Refusal(f"MalformedPolicyDocument: {key} lacks version 2012-10-17 or statements")
    for statement in document["Statement"]:
        allowed = {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition", "Principal"}
        if statement.get("Effect") not in ("Allow", "Deny") or set(statement) - allowed:
            raise Refusal(f"MalformedPolicyDocument: {key} has a statement {statement}")
        if "assume" in key.lower() and "Principal" not in statement:
            raise Refusal(f"MalformedPolicyDocument: {key} trusts nobody")


def _attachment_rule(inputs: dict[str, Any], records: Records) -> None:
    arn = inputs["policyArn"]
    if not arn.startswith("arn:aws:iam::aws:policy/") and records.find(POLICY, "arn", arn) is None:
        raise Refusal(f"NoSuchEntity: policy {arn} does not exist")


def _file_system_rule(inputs: dict[str, Any], records: Records) -> None:
    if inputs.get("availabilityZoneName") and inputs.get("performanceMode") == "maxIO":
        raise Refusal("BadRequest: One Zone file systems have no maxIO")


def _mount_target_rule(inputs: dict[str, Any], records: Records) -> None:
    system, subnet = records.get(FILE_SYSTEM, inputs["fileSystemId"]), records.get(SUBNET, inputs["subnetId"])
    assert subnet
    zone, id = zone_of(subnet.inputs), inputs["fileSystemId"]
    only = system.inputs.get("availabilityZoneName") if system else None  # one from before the test has no record
    if only and zone != only:
        raise Refusal(f"AvailabilityZonesMismatch: {id} is in {only}, {subnet.id} in {zone}")
    for other in records.of(MOUNT_TARGET):
        peer = records.get(SUBNET, other.inputs["subnetId"])
        if other.inputs["fileSystemId"] == id and peer and zone_of(peer.inputs) == zone:
            raise Refusal(f"MountTargetConflict: {id} has a mount target in {zone} already")


def _open_id_answers(inputs: dict[str, Any], identity: str, records: Records) -> dict[str, Any]:
    return {"arn": f"arn:aws:iam::{ACCOUNT}:oidc-provider/{identity.removeprefix('https://')}"}


def _lifecycle_rule(inputs: dict[str, Any], records: Records) -> None:
    if not json.loads(inputs["policy"]).get("rules"):
        raise Refusal("InvalidParameterException: a lifecycle policy has rules")


def _iam() -> Iterator[tuple[str, Kind]]:
    yield (
        ROLE,
        Kind(
            "{name}",
            "arn:aws:iam::{account}:role/{name}",
            name=Name("name", 64, pattern=r"[\w+=,.@-]+"),
            replaces=("name", "path"),
            answers=lambda inputs, identity, records: {"uniqueId": f"AROA{records.new_hex(identity).upper()}"},
            create_rule=_documents("assumeRolePolicy"),
            unknown=("uniqueId",),
        ),
    )
    yield (
        POLICY,
        Kind(
            "arn:aws:iam::{account}:policy/{name}",
            "arn:aws:iam::{account}:policy/{name}",
            name=Name("name", 128),
            replaces=("name", "path", "description"),
            create_rule=_documents("policy"),
        ),
    )
    yield (
        "aws:iam/rolePolicy:RolePolicy",
        Kind(
            "{role}:{name}",
            name=Name("name", 128),
            replaces=("name", "role"),
            refers=_OF_ROLE,
            create_rule=_documents("policy"),
        ),
    )
    yield (
        ATTACHMENT,
        Kind("{role}/{policyArn}", replaces=("role", "policyArn"), refers=_OF_ROLE, create_rule=_attachment_rule),
    )


def _keys() -> Iterator[tuple[str, Kind]]:
    yield OPEN_ID, Kind("{url}", replaces=("url",), answers=_open_id_answers, unknown=("arn",))
    yield (
        KEY,
        Kind(
            "{hex}",
            "arn:aws:kms:{region}:{account}:key/{id}",
            answers=lambda inputs, identity, records: {"keyId": identity},
            unknown=("keyId",),
        ),
    )


def _storage() -> Iterator[tuple[str, Kind]]:
    arn = "arn:aws:elasticfilesystem:{region}:{account}"
    yield (
        FILE_SYSTEM,
        Kind(
            "fs-{hex}",
            arn + ":file-system/{id}",
            replaces=("encrypted", "availabilityZoneName", "kmsKeyId", "performanceMode", "creationToken"),
            answers=lambda inputs, identity, records: {"dnsName": f"{identity}.efs.{records.region}.amazonaws.com"},
            unknown=("dnsName",),
            create_rule=_file_system_rule,
        ),
    )
    yield (
        "aws:efs/backupPolicy:BackupPolicy",
        Kind("{fileSystemId}", replaces=("fileSystemId",), refers=_OF_FILE_SYSTEM),
    )
    yield (
        ACCESS_POINT,
        Kind(
            "fsap-{hex}",
            arn + ":access-point/{id}",
            replaces=("fileSystemId", "posixUser", "rootDirectory"),
            refers=_OF_FILE_SYSTEM,
        ),
    )
    yield (
        MOUNT_TARGET,
        Kind(
            "fsmt-{hex}",
            replaces=("fileSystemId", "subnetId"),
            refers={**_OF_FILE_SYSTEM, "subnetId": (Target(SUBNET),), "securityGroups[]": SECURITY_GROUPS},
            create_rule=_mount_target_rule,
        ),
    )


def kinds() -> Iterator[tuple[str, Kind]]:
    """Every type of these services that the stand-in has."""
    yield from _iam()
    yield from _keys()
    yield from _storage()
    yield (
        REPOSITORY,
        Kind(
            "{name}",
            "arn:aws:ecr:{region}:{account}:repository/{name}",
            name=Name("name", 256, pattern=r"[a-z0-9]+(?:[._/-][a-z0-9]+)*"),
            replaces=("name", "encryptionConfigurations"),
            answers=lambda inputs, identity, records: {
                "repositoryUrl": f"123456789012.dkr.ecr.{records.region}.amazonaws.com/{identity}",
                "registryId": "123456789012",
            },
            unknown=("repositoryUrl", "registryId"),
        ),
    )
    yield (
        "aws:ecr/lifecyclePolicy:LifecyclePolicy",
        Kind(
            "{repository}",
            replaces=("repository",),
            refers={"repository": (Target(REPOSITORY, "name"),)},
            create_rule=_lifecycle_rule,
        ),
    )
    yield (
        LOG_GROUP,
        Kind("{name}", "arn:aws:logs:{region}:{account}:log-group:{name}", name=Name("name", 512), replaces=("name",)),
    )
    yield (
        "aws:budgets/budget:Budget",
        Kind(
            "{account}:{name}", "arn:aws:budgets::{account}:budget/{name}", name=Name("name", 100), replaces=("name",)
        ),
    )
