"""An AWS account with resources, which answers as EC2, EFS, ECR and others do, filters included.

The tagging API lists what is in `tagged`, whether it exists or not. The original lists terminated instances for an
hour (boto3#1704), which EC2 returns as terminated; deleted volumes, which EC2 does not return (aws-cli#8197); and KMS
keys until their deletion, which KMS returns as pending. EKS recreates the log group of a deleted cluster, without tags,
when late log lines arrive (terraform-aws-eks#2446, #2763): `late_logs` is how often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spotmpi.environments.resource_kinds import CNI_INSTANCE
from tests.cloud.scripted_account import Refusal, ScriptedAccount

Tags = dict[str, str]
Answer = Callable[[Mapping[str, Any]], Any]
# EC2's list operations, each with the key of its items, the key of an id and the prefix of ids.
_OTHERS = (
    ("DescribeAddresses", "Addresses", "AllocationId", "eipalloc-"),
    ("DescribeInternetGateways", "InternetGateways", "InternetGatewayId", "igw-"),
    ("DescribeLaunchTemplates", "LaunchTemplates", "LaunchTemplateId", "lt-"),
    ("DescribePlacementGroups", "PlacementGroups", "GroupId", "pg-"),
    ("DescribeRouteTables", "RouteTables", "RouteTableId", "rtb-"),
    ("DescribeSecurityGroupRules", "SecurityGroupRules", "SecurityGroupRuleId", "sgr-"),
    ("DescribeSpotInstanceRequests", "SpotInstanceRequests", "SpotInstanceRequestId", "sir-"),
    ("DescribeSubnets", "Subnets", "SubnetId", "subnet-"),
    ("DescribeVpcEndpoints", "VpcEndpoints", "VpcEndpointId", "vpce-"),
)


@dataclass
class AccountResources:
    """The resources by id with their tags; interfaces have their network and whether they are attached."""

    file_systems: dict[str, Tags] = field(default_factory=dict)
    mount_targets: dict[str, str] = field(default_factory=dict)  # file system by mount target
    volumes: dict[str, Tags] = field(default_factory=dict)
    networks: dict[str, Tags] = field(default_factory=dict)
    interfaces: dict[str, tuple[str, str, Tags]] = field(default_factory=dict)  # network, status, tags
    security_groups: dict[str, tuple[str, Tags]] = field(default_factory=dict)  # security groups: network, tags
    logs: set[str] = field(default_factory=set)
    keys: dict[str, str] = field(default_factory=dict)  # state
    repositories: set[str] = field(default_factory=set)
    stacks: dict[str, Tags] = field(default_factory=dict)  # CloudFormation's
    tagged: dict[str, str] = field(default_factory=dict)  # environment by ARN, as the tagging API lists them
    machines: dict[str, tuple[str, Tags]] = field(default_factory=dict)  # state, tags
    gateways: dict[str, tuple[str, Tags]] = field(default_factory=dict)  # NAT gateways: state, tags
    others: dict[str, Tags] = field(default_factory=dict)  # other EC2 resources: subnets, templates and so on
    clusters: set[str] = field(default_factory=set)
    late_logs: dict[str, int] = field(default_factory=dict)  # how often EKS recreates a deleted log group
    images: set[str] = field(default_factory=set)  # repository:tag
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)  # Auto Scaling groups as AWS describes them
    scheduled_actions: dict[str, dict[str, Any]] = field(default_factory=dict)
    buckets: dict[str, dict[str, Any]] = field(default_factory=dict)  # the settings of each
    slow: int = 0  # descriptions of groups in which their machines stay after a scale-down
    before_answer: Callable[[], None] = lambda: None  # called before every answer

    def account(self, account: ScriptedAccount | None = None) -> ScriptedAccount:
        """*account*, or a new one, with these resources; creating an account's clients takes a while."""
        account = account or ScriptedAccount()

        def answered(answer: Answer, asked: Mapping[str, Any]) -> Any:
            self.before_answer()
            return answer(asked)

        for operation, answer in (
            self._data() | self._network() | self._leftovers() | self._machines() | self._s3()
        ).items():
            account.answers[operation] = lambda region, asked, answer=answer: answered(answer, asked)  # type: ignore[misc]
        return account

    def group(self, name: str, tags: Tags, most: int = 2, nodes: int = 0) -> None:
        """Add an Auto Scaling group that has *nodes* machines."""
        self.groups[name] = {
            "AutoScalingGroupName": name,
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            "MinSize": 0,
            "MaxSize": most,
            "DesiredCapacity": nodes,
            "Instances": [{"InstanceId": f"i-{number:08x}"} for number in range(nodes)],
        }

    def _data(self) -> dict[str, Answer]:
        """Resources that hold data, or keys to it."""
        return {
            "DescribeFileSystems": lambda asked: {
                "FileSystems": [_tagged("FileSystemId", *i) for i in self.file_systems.items()]
            },
            "DescribeMountTargets": self._targets,
            "DescribeAccessPoints": lambda asked: {"AccessPoints": []},
            "DescribeVolumes": lambda asked: {"Volumes": _filtered("VolumeId", "volume-id", self.volumes, asked)},
            "DescribeKey": self._key,
            "DescribeRepositories": lambda asked: {"repositories": [{"repositoryName": n} for n in self.repositories]},
            "DescribeImages": self._image,
        }

    def _network(self) -> dict[str, Answer]:
        return {
            "DescribeVpcs": lambda asked: {"Vpcs": _filtered("VpcId", "vpc-id", self.networks, asked)},
            "DescribeNetworkInterfaces": self._interfaces,
            "DeleteNetworkInterface": lambda asked: self.interfaces.pop(asked["NetworkInterfaceId"]) and {},
            "DescribeNatGateways": lambda asked: {
                "NatGateways": _in_states("NatGatewayId", "state", self.gateways, asked["Filter"])
            },
            **{operation: partial(self._other, key, id, start) for operation, key, id, start in _OTHERS},
            "DescribeSecurityGroups": self._security_groups,
            "DeleteSecurityGroup": self._delete_security_group,
        }

    def _security_groups(self, asked: Mapping[str, Any]) -> Any:
        """Security groups of a network, and those of `others`."""
        held = [
            _tagged("GroupId", id, tags)
            for id, (network, tags) in self.security_groups.items()
            if _fits({"vpc-id": network}, tags, asked["Filters"])
        ]
        return {"SecurityGroups": [*held, *self._other("SecurityGroups", "GroupId", "sg-", asked)["SecurityGroups"]]}

    def _other(self, key: str, id: str, start: str, asked: Mapping[str, Any]) -> Any:
        """EC2's list of one kind: those of `others` whose id has that kind's prefix."""
        mine = {name: tags for name, tags in self.others.items() if name.startswith(start)}
        tags = [each for each in asked["Filters"] if each["Name"].startswith("tag")]
        return {key: [_tagged(id, name, its) for name, its in mine.items() if _fits({}, its, tags)]}

    def _leftovers(self) -> dict[str, Answer]:
        """Other possible leftovers: log groups, CloudFormation stacks, and whatever is tagged."""
        return {
            "DescribeLogGroups": lambda asked: {
                "logGroups": [{"logGroupName": n} for n in self.logs if n.startswith(asked["logGroupNamePrefix"])]
            },
            "DeleteLogGroup": self._delete_logs,
            "DescribeCluster": self._cluster,
            "DescribeStacks": lambda asked: {
                "Stacks": [
                    {**_tagged("StackName", *each), "CreationTime": 0, "StackStatus": "CREATE_COMPLETE"}
                    for each in self.stacks.items()
                ]
            },
            "GetResources": lambda asked: {
                "ResourceTagMappingList": [
                    {"ResourceARN": arn}
                    for arn, name in self.tagged.items()
                    if [name] == asked["TagFilters"][0]["Values"]
                ]
            },
        }

    def _machines(self) -> dict[str, Answer]:
        return {
            "DescribeInstances": lambda asked: {
                "Reservations": [
                    {"Instances": [each]}
                    for each in _in_states("InstanceId", "instance-state-name", self.machines, asked["Filters"])
                ]
            },
            "DescribeAutoScalingGroups": self._groups,
            "UpdateAutoScalingGroup": self._resize,
            "PutScheduledUpdateGroupAction": lambda asked: (
                self.scheduled_actions.update({asked["AutoScalingGroupName"]: asked}) or {}
            ),
            "DeleteScheduledAction": self._delete_scheduled_action,
        }

    def _s3(self) -> dict[str, Answer]:
        return {
            "CreateBucket": lambda asked: self.buckets.update({asked["Bucket"]: {}}) or {},
            "GetBucketVersioning": lambda asked: self._bucket(asked).get("VersioningConfiguration", {}),
            "GetPublicAccessBlock": self._public_access,
            **dict.fromkeys(("PutPublicAccessBlock", "PutBucketEncryption", "PutBucketVersioning"), self._put),
        }

    def _bucket(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["Bucket"] not in self.buckets:
            raise Refusal("NoSuchBucket")
        return self.buckets[asked["Bucket"]]

    def _public_access(self, asked: Mapping[str, Any]) -> Any:
        if "PublicAccessBlockConfiguration" not in self._bucket(asked):
            raise Refusal("NoSuchPublicAccessBlockConfiguration")
        return self._bucket(asked)

    def _put(self, asked: Mapping[str, Any]) -> Any:
        self._bucket(asked).update(asked)

    def _delete_security_group(self, asked: Mapping[str, Any]) -> Any:
        """Delete a security group; interfaces of the CNI carry the cluster's own one (aws-k8s-tester#416)."""
        network, _ = self.security_groups[asked["GroupId"]]
        if any(held == network and CNI_INSTANCE in tags for held, _, tags in self.interfaces.values()):
            raise Refusal("DependencyViolation")
        del self.security_groups[asked["GroupId"]]
        return {}

    def _interfaces(self, asked: Mapping[str, Any]) -> Any:
        found = []
        for id, (network, status, tags) in self.interfaces.items():
            if _fits({"vpc-id": network, "status": status, "network-interface-id": id}, tags, asked["Filters"]):
                found.append({"NetworkInterfaceId": id})
        return {"NetworkInterfaces": found}

    def _targets(self, asked: Mapping[str, Any]) -> Any:
        if "FileSystemId" in asked:
            found = [target for target, system in self.mount_targets.items() if system == asked["FileSystemId"]]
            return {"MountTargets": [{"MountTargetId": target} for target in found]}
        if asked["MountTargetId"] not in self.mount_targets:
            raise Refusal("MountTargetNotFound")
        return {"MountTargets": [{"MountTargetId": asked["MountTargetId"]}]}

    def _delete_logs(self, asked: Mapping[str, Any]) -> Any:
        name = asked["logGroupName"]
        if name not in self.logs:
            raise Refusal("ResourceNotFoundException")
        self.logs.discard(name)
        if self.late_logs.get(name):
            self.late_logs[name] -= 1
            self.logs.add(name)
        return {}

    def _cluster(self, asked: Mapping[str, Any]) -> Any:
        if asked["name"] not in self.clusters:
            raise Refusal("ResourceNotFoundException")
        return {"cluster": {"name": asked["name"]}}

    def _key(self, asked: Mapping[str, Any]) -> Any:
        if asked["KeyId"] not in self.keys:
            raise Refusal("NotFoundException")
        return {"KeyMetadata": {"KeyState": self.keys[asked["KeyId"]]}}

    def _image(self, asked: Mapping[str, Any]) -> Any:
        if f"{asked['repositoryName']}:{asked['imageIds'][0]['imageTag']}" not in self.images:
            raise Refusal("ImageNotFoundException")
        return {"imageDetails": []}

    def _resize(self, asked: Mapping[str, Any]) -> Any:
        group = self.groups[asked["AutoScalingGroupName"]]
        group.update({key: value for key, value in asked.items() if key != "AutoScalingGroupName"})
        return {}

    def _groups(self, asked: Mapping[str, Any]) -> Any:
        for group in self.groups.values():
            if len(group["Instances"]) > group["MaxSize"]:
                if self.slow == 0:
                    group["Instances"] = group["Instances"][: group["MaxSize"]]
                self.slow = max(0, self.slow - 1)
        return {"AutoScalingGroups": list(self.groups.values())}

    def _delete_scheduled_action(self, asked: Mapping[str, Any]) -> Any:
        if self.scheduled_actions.pop(asked["AutoScalingGroupName"], None) is None:
            raise Refusal("ValidationError", "Scheduled action name not found")
        return {}


def _tagged(key: str, id: str, tags: Tags) -> dict[str, Any]:
    return {key: id, "Tags": [{"Key": name, "Value": value} for name, value in tags.items()]}


def _in_states(
    key: str, called: str, things: Mapping[str, tuple[str, Tags]], filters: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    def facts(id: str, state: str) -> dict[str, str]:
        return {called: state, "instance-id": id, "nat-gateway-id": id}

    return [
        {**_tagged(key, id, tags), "State": {"Name": state} if key == "InstanceId" else state}
        for id, (state, tags) in things.items()
        if _fits(facts(id, state), tags, filters)
    ]


def _filtered(key: str, called: str, things: Mapping[str, Tags], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        _tagged(key, id, tags)
        for id, tags in things.items()
        if _fits({called: id, "status": "in-use"}, tags, asked["Filters"])
    ]


def _fits(facts: Mapping[str, str], tags: Tags, filters: Sequence[Mapping[str, Any]]) -> bool:
    return all(_fits_one(facts, tags, each["Name"], each["Values"]) for each in filters)


def _fits_one(facts: Mapping[str, str], tags: Tags, name: str, values: Sequence[str]) -> bool:
    if name == "tag-key":
        return any(value in tags for value in values)
    if name.startswith("tag:"):
        return tags.get(name.removeprefix("tag:")) in values
    return facts[name] in values
