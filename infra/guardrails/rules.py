"""Rules for every environment: each is a pure function from a resource's type and inputs to its findings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.instance_types import catalog
from infra.names import NODE_GROUP, TAG_ON_DEMAND
from infra.settings import TAG_ENVIRONMENT

Inputs = Mapping[str, Any]
Check = Callable[[str, Inputs], Iterator[str]]

# A shorter prefix is nobody's own address range, but in effect the whole internet.
_WIDEST_PREFIX = 8
_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
# Billed resources, and those that create them: all must be identifiable by their tag.
_TAGGED = (
    "aws:ec2/eip:Eip",
    "aws:ec2/natGateway:NatGateway",
    "aws:ec2/vpc:Vpc",
    "aws:ecr/repository:Repository",
    "aws:efs/fileSystem:FileSystem",
    "aws:eks/cluster:Cluster",
    NODE_GROUP,
    _TEMPLATE,
)


@dataclass(frozen=True)
class Rule:
    """A rule by name, what it forbids in words, and its check."""

    name: str
    forbids: str
    check: Check


def world_open_ingress(kind: str, inputs: Inputs) -> Iterator[str]:
    """Security group rules that are open to the world, in each of AWS's three forms."""
    cidrs: list[Any] = []
    if kind in ("aws:ec2/securityGroup:SecurityGroup", "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"):
        for rule in _list(inputs, "ingress"):
            cidrs += [*_list(rule, "cidrBlocks"), *_list(rule, "ipv6CidrBlocks")]
    elif kind == "aws:ec2/securityGroupRule:SecurityGroupRule" and inputs.get("type") == "ingress":
        cidrs += [*_list(inputs, "cidrBlocks"), *_list(inputs, "ipv6CidrBlocks")]
    elif kind == "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule":
        cidrs += [inputs.get("cidrIpv4"), inputs.get("cidrIpv6")]
    yield from (
        f"allows ingress from {cidr}: allow only your own addresses or a security group" for cidr in _open(cidrs)
    )


def world_open_api(kind: str, inputs: Inputs) -> Iterator[str]:
    """A Kubernetes API that is open to the world, which is AWS's default."""
    if kind == "aws:eks/cluster:Cluster":
        config = inputs.get("vpcConfig") or {}
        public = config.get("endpointPublicAccess", True)
    elif kind == "eks:index:Cluster" and inputs:
        # In the engine the component itself may have no inputs: its child is checked as well.
        config, public = inputs, inputs.get("endpointPublicAccess", True)
    else:
        return
    cidrs = _list(config, "publicAccessCidrs")
    if public and not cidrs:
        yield "opens the Kubernetes API to the world: set publicAccessCidrs (setting `access`)"
    yield from (
        f"opens the Kubernetes API to {cidr}: list your own addresses (setting `access`)" for cidr in _open(cidrs)
    )


def unencrypted_storage(kind: str, inputs: Inputs) -> Iterator[str]:
    """File systems and disks that are not encrypted, or whose encryption is left to the account's default."""
    if kind == "aws:efs/fileSystem:FileSystem" and not _true(inputs.get("encrypted")):
        yield "is not encrypted: set encrypted, which can't be changed later"
    if kind == "aws:ebs/volume:Volume" and not _true(inputs.get("encrypted")):
        yield "is not encrypted: set encrypted"
    if kind == _TEMPLATE:
        disks = [mapping.get("ebs") or {} for mapping in _list(inputs, "blockDeviceMappings")]
        if not disks:
            yield "leaves the root disk to the image, unencrypted: add a block device mapping"
        if any(not _true(disk.get("encrypted")) for disk in disks):
            yield "has a disk that is not encrypted: set ebs.encrypted"


def old_metadata_service(kind: str, inputs: Inputs) -> Iterator[str]:
    """Machines whose metadata, and with it their role, is readable without a token (IMDSv1)."""
    if kind == _TEMPLATE and (inputs.get("metadataOptions") or {}).get("httpTokens") != "required":
        yield "allows IMDSv1: set metadataOptions.httpTokens to required"


def gpus_over_zones(kind: str, inputs: Inputs) -> Iterator[str]:
    """GPU groups in several zones: traffic between zones is slow and billed."""
    if kind == NODE_GROUP and _has_gpus(inputs) and len(_list(inputs, "subnetIds")) != 1:
        yield "spreads GPUs over several zones: give the group one subnet"


def gpus_without_taint(kind: str, inputs: Inputs) -> Iterator[str]:
    """GPU groups that accept any pod, which would keep expensive machines running for nothing."""
    if kind == NODE_GROUP and _has_gpus(inputs):
        effects = [taint.get("effect") for taint in _list(inputs, "taints")]
        if not set(effects) & {"NO_SCHEDULE", "NO_EXECUTE"}:
            yield "has GPUs but no taint: add one with effect NO_SCHEDULE"


_NOT_ON_DEMAND = ("SPOT", "CAPACITY_BLOCK")  # a block has been paid for


def on_demand_gpus(kind: str, inputs: Inputs) -> Iterator[str]:
    """GPUs at the on-demand price, unless the stack allows that."""
    allowed = (inputs.get("tags") or {}).get(TAG_ON_DEMAND) == "requested"
    if kind == NODE_GROUP and _has_gpus(inputs) and inputs.get("capacityType") not in _NOT_ON_DEMAND and not allowed:
        yield "buys GPUs on demand: use spot, or set accelerators.on_demand in the stack"


def load_balancers(kind: str, inputs: Inputs) -> Iterator[str]:
    """Services of type LoadBalancer: billed, open to the world by default, and left behind when the cluster goes."""
    if kind == "kubernetes:core/v1:Service" and (inputs.get("spec") or {}).get("type") == "LoadBalancer":
        yield "creates a load balancer: use type ClusterIP and kubectl port-forward"
    if kind.startswith("kubernetes:helm.sh/") and _has_load_balancer(inputs.get("values")):
        yield "creates a load balancer by its chart's values: use type ClusterIP"


def missing_tags(kind: str, inputs: Inputs) -> Iterator[str]:
    """Billed resources without the tag of their environment."""
    if kind in _TAGGED and not _tagged(inputs.get("tags")) and not _tagged(inputs.get("tagsAll")):
        yield f"has no tag {TAG_ENVIRONMENT}: billed resources must be identifiable"
    if kind == _TEMPLATE:
        covered = {
            entry.get("resourceType") for entry in _list(inputs, "tagSpecifications") if _tagged(entry.get("tags"))
        }
        for what in sorted({"instance", "volume"} - covered):
            yield f"starts a {what} without tag {TAG_ENVIRONMENT}: add it to tagSpecifications"


RULES: tuple[Rule, ...] = (
    Rule("no-world-open-ingress", "security groups open to the world", world_open_ingress),
    Rule("no-world-open-api", "a Kubernetes API open to the world", world_open_api),
    Rule("no-unencrypted-storage", "file systems and disks without encryption", unencrypted_storage),
    Rule("no-imdsv1", "machine metadata without a token", old_metadata_service),
    Rule("gpus-in-one-zone", "GPU groups over several zones", gpus_over_zones),
    Rule("gpus-tainted", "GPU groups without a taint", gpus_without_taint),
    Rule("gpus-on-spot", "GPUs on demand unless the stack allows them", on_demand_gpus),
    Rule("no-load-balancers", "Services of type LoadBalancer", load_balancers),
    Rule("tagged", "billed resources without the environment's tag", missing_tags),
)


def _list(inputs: Any, key: str) -> Sequence[Any]:
    value = inputs.get(key) if isinstance(inputs, Mapping) else None
    return value if isinstance(value, Sequence) and not isinstance(value, str) else []


def _open(cidrs: Sequence[Any]) -> list[Any]:
    return [cidr for cidr in cidrs if cidr and int(str(cidr).rpartition("/")[2]) < _WIDEST_PREFIX]


def _true(value: Any) -> bool:
    """Whether a value is true; EC2 has the booleans of launch templates as text."""
    return value in (True, "true")


def _has_gpus(inputs: Inputs) -> bool:
    kinds = [catalog().get(name) for name in _list(inputs, "instanceTypes")]
    return "NVIDIA" in str(inputs.get("amiType") or "") or any(kind is not None and kind.gpus for kind in kinds)


def _tagged(tags: Any) -> bool:
    return isinstance(tags, Mapping) and bool(tags.get(TAG_ENVIRONMENT))


def _has_load_balancer(values: Any) -> bool:
    if isinstance(values, Mapping):
        return values.get("type") == "LoadBalancer" or any(_has_load_balancer(inner) for inner in values.values())
    if isinstance(values, Sequence) and not isinstance(values, str):
        return any(_has_load_balancer(inner) for inner in values)
    return False
