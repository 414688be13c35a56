"""A fake environment for tests of `up`, `upgrade` and `down` with the real engine over the stand-in cloud."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from spotmpi.environments.pulumi_cli import Pulumi
from tests.cloud.account.ec2 import machine
from tests.cloud.account.eks import RELEASES, STANDARD
from tests.cloud.account.fake_account import FakeAccount
from tests.cloud.account.management import SIZES
from tests.cloud.fake_environment import FakeEnvironment
from tests.engine.engine import Engine
from tests.engine.providers import eks_versions
from tests.engine.providers.aws_cluster import ACCESS_ENTRY, ADDON, KEY, LOG_GROUP
from tests.engine.providers.aws_network import CLUSTER, ENDPOINT, NAT, NODE_GROUP, VPC
from tests.engine.providers.aws_services import ACCESS_POINT, FILE_SYSTEM, MOUNT_TARGET, REPOSITORY
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.scaling import resize, scaling_groups

# By operation: the type that it deletes, and the parameter with the id or name.
DELETIONS = {
    "DeleteNatGateway": (NAT, "NatGatewayId"),
    "DeleteVpcEndpoints": (ENDPOINT, "VpcEndpointIds"),
    "DeleteMountTarget": (MOUNT_TARGET, "MountTargetId"),
    "DeleteAccessPoint": (ACCESS_POINT, "AccessPointId"),
    "DeleteNodegroup": (NODE_GROUP, "nodegroupName"),
}


def offer_versions(account: FakeAccount) -> None:
    """Let EKS offer the versions of the stand-in cloud."""
    versions = RELEASES
    account.eks.offered = {version: (STANDARD, datetime(2027, 12, 1, tzinfo=UTC)) for version in versions}
    account.eks.addon_versions = {
        version: [(each, number == 0) for number, each in enumerate(eks_versions.addon_versions(version))]
        for version in versions
    }


class EngineEnvironment(FakeEnvironment):
    """A fake environment with the real Pulumi, whose account has what is in the stand-in cloud."""

    def __init__(self, engine: Engine, cloud: Cloud) -> None:
        super().__init__(engine.project, FakeAccount())
        self.engine, self.cloud = engine, cloud
        self.account.before_answer = self.read_cloud
        self.account.answers["DeleteLogGroup"] = self.delete_log_group
        self.account.answers["UpdateAutoScalingGroup"] = self.resize
        for operation, (kind, key) in DELETIONS.items():
            self.account.answers[operation] = partial(self.delete, kind, key)
        offer_versions(self.account)

    def read_cloud(self) -> None:
        """Update the resources from the stand-in cloud, with those that the test has added."""
        records = self.cloud.records
        self.account.ec2.networks = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(VPC)}
        self.account.ec2.gateways = {
            each.id: ("failed" if each.failed else "available", dict(each.inputs.get("tags", {})))
            for each in records.of(NAT)
        }
        self.account.ec2.others = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(ENDPOINT)}
        self.account.ec2.states = {each.id: "failed" for each in records.of(ENDPOINT) if each.failed}
        self.account.efs.states = {
            each.id: "error" for kind in (MOUNT_TARGET, ACCESS_POINT) for each in records.of(kind) if each.failed
        }
        self.account.efs.file_systems = {each.id: dict(each.inputs.get("tags", {})) for each in records.of(FILE_SYSTEM)}
        self.account.efs.mount_targets = {each.id: each.inputs["fileSystemId"] for each in records.of(MOUNT_TARGET)}
        self.account.efs.access_points = {each.id for each in records.of(ACCESS_POINT)}
        planted = {name for name in self.account.logs.groups if "late" in name}
        self.account.logs.groups = (
            {each.id for each in records.of(LOG_GROUP)} | self.cloud.deleted_resources.log_groups | planted
        )
        self.account.ecr.repositories = {each.id for each in records.of(REPOSITORY)}
        self._read_cluster()
        self._read_memories()
        self.account.autoscaling.groups = scaling_groups(self.cloud)

    def resize(self, region: str, request: Mapping[str, Any]) -> None:
        """Set sizes of an Auto Scaling group in the stand-in cloud."""
        resize(self.cloud, request["AutoScalingGroupName"], {key: request[key] for key in SIZES if key in request})

    def _read_memories(self) -> None:
        """Deleted resources that the tagging API still lists, and their states in their services."""
        self.account.tagging.resources = dict(self.cloud.deleted_resources.tagged)
        deleted = {arn.rpartition("/")[2]: arn for arn in self.account.tagging.resources}
        self.account.kms.keys = {id: "PendingDeletion" for id, arn in deleted.items() if ":key/" in arn}
        self.account.kms.keys |= {each.id: "Enabled" for each in self.cloud.records.of(KEY)}
        self.account.ec2.machines = {id: machine("terminated") for id, arn in deleted.items() if ":instance/" in arn}

    def _read_cluster(self) -> None:
        """The only cluster, if there is one."""
        eks, records = self.account.eks, self.cloud.records
        eks.version = next((str(each.outputs["version"]) for each in records.of(CLUSTER)), "")
        eks.principals = {each.inputs["principalArn"] for each in records.of(ACCESS_ENTRY)}
        eks.addons = {each.inputs["addonName"]: str(each.outputs["addonVersion"]) for each in records.of(ADDON)}
        eks.groups = {
            each.inputs["nodeGroupName"]: {key: each.outputs[key] for key in ("version", "releaseVersion", "status")}
            | {"labels": each.inputs["labels"], "amiType": each.inputs["amiType"]}
            for each in records.of(NODE_GROUP)
        }

    def delete_log_group(self, region: str, request: Mapping[str, Any]) -> None:
        """Delete one that EKS has recreated in the stand-in cloud as well."""
        self.cloud.deleted_resources.log_groups.discard(request["logGroupName"])
        self.account.logs.delete_log_group(region, request)

    def delete(self, kind: str, key: str, region: str, request: Mapping[str, Any]) -> None:
        """Delete from the stand-in cloud what a request names, outside of Pulumi."""
        wanted = [request[key]] if isinstance(request[key], str) else request[key]
        for record in self.cloud.records.of(kind):
            if record.id.rpartition(":")[2] in wanted:  # behind the name of its cluster
                self.cloud.records.delete(record)

    @property
    def pulumi(self) -> Pulumi:
        """The real program."""
        return Pulumi(self.output.append, self.engine.project, self.engine.variables())

    def changes(self, method: str) -> list[tuple[str, str]]:
        """Type and name of what the engine created or deleted so far, in order."""
        return [(call.token, call.name) for call in self.cloud.script.changes() if call.method == method]
