"""Checks that involve several settings or AWS limits: what can't be built, and what needs a warning."""

import re
from collections.abc import Iterator
from datetime import date
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError

from pydantic import BaseModel

from infra import addresses, names
from infra.errors import Problem
from infra.instance_types import InstanceType, catalog
from infra.kubernetes_versions import (
    KUBELET_SKEW,
    LATER,
    NEWEST,
    OLDEST,
    minor,
    node_version,
    support_warning,
    supported,
)
from infra.quotas import units
from infra.settings import BLOCK, Group, Settings
from infra.sources import CHARTS, Chart

# EKS quota, not adjustable: address ranges of the public endpoint.
MAX_ACCESS_RANGES = 40
# What a machine has behind a router or a VPN, or no machine has. EKS refuses reserved addresses, and would never see
# them: https://docs.aws.amazon.com/eks/latest/userguide/config-cluster-endpoint.html
_PRIVATE = [
    *addresses.PRIVATE_RANGES,
    *map(IPv4Network, ("127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4")),
]
# AWS allows 50 tags; two are ours, one is a name, one marks on-demand GPUs, the rest is room for EKS's own.
MAX_TAGS = 40
# Pods that each node carries: CNI, kube-proxy, Pod Identity, EFS driver, node monitoring.
_PODS_PER_NODE = 5
# Two each of CoreDNS, metrics-server and the EFS controller; the autoscaler and JobSet.
_SYSTEM_PODS = 8
# What IAM and EFS accept in tags: https://docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html
_TAG = re.compile(r"[\w .:/=+\-@]*")
# Of regions outside of the partition `aws`, by botocore's partitions.json; eusc-* matches no pattern of ours.
_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-iso")
RESERVED_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease", "jobset-system", "kueue-system")
_GPU_AMI = "P3 and newer, G4dn and newer"


# Settings of a kind of stack that another kind would ignore.
_OF_KIND = {
    "compute": ("accelerators", "budget", "cluster", "groups", "images", "namespace", "network", "queueing", "sources"),
    "data": (),
    "account": ("ci",),
}
_HAS = {"compute": "the environment", "data": "storage alone", "account": "the roles of CI alone"}


def find_problems(settings: Settings) -> list[Problem]:
    """Every problem of settings that are individually valid."""
    problems = [*_kind(settings), *_zones(settings), *_names(settings), *_tags(settings), *_storage(settings)]
    problems += _sources(settings)
    if settings.kind == "compute":
        problems += [*_access(settings), *_network(settings), *_cluster(settings)]
        problems += [*_groups(settings), *_capacity(settings), *_queues(settings)]
    return problems


def _kind(settings: Settings) -> Iterator[Problem]:
    """What a stack of this kind would silently leave out; the roles of CI outlive the environments that they build."""
    others = {field: kind for kind, fields in _OF_KIND.items() for field in fields if kind != settings.kind}
    if settings.kind == "account":
        others |= {"storage": "compute", "boundary": "compute"}
        if settings.ci is None:
            yield Problem(
                "spotmpi:ci", None, "set ci.repository and ci.state_bucket: this stack has the roles of CI alone"
            )
    for field in sorted(others.keys() & settings.model_fields_set):
        value = getattr(settings, field)
        shown = value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
        remedy = f"remove it, or move it to a stack with `kind: {others[field]}`: this one has {_HAS[settings.kind]}"
        yield Problem(f"spotmpi:{field}", shown, remedy)


def _zones(settings: Settings) -> Iterator[Problem]:
    if settings.region.startswith(_OTHER_PARTITIONS):
        yield Problem("aws:region", settings.region, "use another region: ARNs of China, GovCloud and the like differ")
    zones = {f"zones.{index}": zone for index, zone in enumerate(settings.zones)}
    for key, zone in (*zones.items(), ("second_zone", settings.other_zone)):
        if not re.fullmatch(re.escape(settings.region) + "[a-z]", zone):
            remedy = f"use a zone of region {settings.region}, for example {settings.region}a, or change aws:region"
            yield Problem(f"spotmpi:{key}", zone, remedy)
    for index, zone in enumerate(settings.zones):
        if zone in settings.zones[:index]:
            yield Problem(f"spotmpi:zones.{index}", zone, "listed twice, remove one")
    if settings.second_zone == settings.zone:
        yield Problem("spotmpi:second_zone", settings.second_zone, "use a zone other than the first: EKS needs two")
    if settings.kind == "data" and len(settings.zones) > 1:
        remedy = "leave one, that of One Zone storage: this stack has storage alone"
        yield Problem("spotmpi:zones", settings.zones, remedy)
    for index, group in enumerate(settings.groups):
        for zone in sorted(set(group.zones) - set(settings.zones)):
            remedy = f"use zones of the environment ({', '.join(settings.zones)}), or add it to `zones`"
            yield Problem(f"spotmpi:groups.{index}.zones", zone, remedy)
        if len(set(group.zones)) < len(group.zones):
            yield Problem(f"spotmpi:groups.{index}.zones", group.zones, "list each zone once")


def _names(settings: Settings) -> Iterator[Problem]:
    for name, limit, what in names.overlong_names(settings):
        remedy = f"shorten the stack or group name by {len(name) - limit}: {what} {name!r} may have {limit} characters"
        yield Problem("stack", settings.stack, remedy)
    if not names.is_label(settings.name):
        yield Problem("stack", settings.stack, "use lower-case letters, digits and single hyphens in the stack name")


def _access(settings: Settings) -> Iterator[Problem]:
    example = "pulumi config set --path 'access[0]' \"$(curl -s https://checkip.amazonaws.com)/32\""
    if not settings.access:
        yield Problem("spotmpi:access", [], f"list the addresses that may reach the Kubernetes API: {example}")
    if len(settings.access) > MAX_ACCESS_RANGES:
        yield Problem("spotmpi:access", len(settings.access), f"merge ranges: EKS allows at most {MAX_ACCESS_RANGES}")
    for index, cidr in enumerate(settings.access):
        network = _network_of(cidr)
        if network is None:
            yield Problem(
                f"spotmpi:access.{index}", cidr, "write the first address of a range, such as 198.51.100.0/24"
            )
        elif network.prefixlen < 8:
            yield Problem(f"spotmpi:access.{index}", cidr, f"too wide; list your own addresses: {example}")
        elif any(network.overlaps(private) for private in _PRIVATE):
            yield Problem(
                f"spotmpi:access.{index}", cidr, f"private or reserved; EKS sees your public address: {example}"
            )


def _cluster(settings: Settings) -> Iterator[Problem]:
    yield from _versions(settings)
    if settings.namespace in RESERVED_NAMESPACES:
        yield Problem(
            "spotmpi:namespace",
            settings.namespace,
            "reserved; use another name, for example training",
        )
    principals = [("admins", arn) for arn in settings.cluster.admins] + [
        ("users", arn) for arn in settings.cluster.users
    ]
    for index, (key, arn) in enumerate(principals):
        if arn in [other for _, other in principals[:index]]:
            yield Problem(
                f"spotmpi:cluster.{key}",
                arn,
                "listed twice, remove one: EKS allows one access entry per role or user",
            )
    for index, image in enumerate(settings.images):
        if image in settings.images[:index]:
            yield Problem(f"spotmpi:images.{index}", image, "listed twice, remove one")
        if not names.is_label(image):
            remedy = "use lower-case letters, digits and single hyphens: ECR takes no other names"
            yield Problem(f"spotmpi:images.{index}", image, remedy)
    for addon in sorted(settings.cluster.addon_versions.keys() - set(names.ADDONS)):
        version = settings.cluster.addon_versions[addon]
        remedy = f"remove it: the environment has the add-ons {', '.join(names.ADDONS)}"
        yield Problem(f"spotmpi:cluster.addon_versions.{addon}", version, remedy)


def _versions(settings: Settings) -> Iterator[Problem]:
    version = settings.cluster.version
    if not OLDEST <= minor(version) <= NEWEST + LATER:
        remedy = f"use one of 1.{OLDEST} to 1.{NEWEST}, or a later one that EKS offers, up to 1.{NEWEST + LATER}"
        yield Problem("spotmpi:cluster.version", version, remedy)
        return
    releases = {f"groups.{index}": group.ami_release for index, group in enumerate(settings.groups)}
    for section, release in {"cluster.system": settings.cluster.system.ami_release, **releases}.items():
        behind = minor(version) - minor(node_version(release, version))
        if behind < 0:
            remedy = f"nodes can't be newer than the control plane, {version}: `spotmpi upgrade` raises both in order"
            yield Problem(f"spotmpi:{section}.ami_release", release, remedy)
        elif behind > KUBELET_SKEW:
            remedy = f"use a release of 1.{minor(version) - KUBELET_SKEW} or newer: the control plane runs {version}"
            yield Problem(f"spotmpi:{section}.ami_release", release, remedy)


def _tags(settings: Settings) -> Iterator[Problem]:
    spellings: dict[str, str] = {}
    for key, value in settings.tags.items():
        if (other := spellings.setdefault(key.lower(), key)) != key:
            yield Problem(f"spotmpi:tags.{key}", value, f"remove it or {other}: to IAM these are the same key")
        # AWS reserves its prefix in any mix of cases, and to IAM our own keys are those of other cases.
        if key.lower().startswith(("aws:", f"{settings.project}:")) or not 1 <= len(key) <= 128:
            yield Problem(
                f"spotmpi:tags.{key}",
                value,
                "use a key of 1 to 128 characters without aws: or spotmpi:",
            )
        if not (_TAG.fullmatch(key) and _TAG.fullmatch(value)):
            yield Problem(f"spotmpi:tags.{key}", value, "use letters, digits, spaces and _ . : / = + - @ only")
        if value.lower().startswith("aws:"):
            yield Problem(f"spotmpi:tags.{key}", value, "use a value without aws: at its beginning, which AWS reserves")
        if len(value) > 256:
            yield Problem(
                f"spotmpi:tags.{key}",
                value,
                f"shorten it by {len(value) - 256}: 256 characters are allowed",
            )
    if len(settings.tags) > MAX_TAGS:
        yield Problem("spotmpi:tags", len(settings.tags), f"use at most {MAX_TAGS}: AWS allows 50, some are ours")


def _network_of(cidr: str) -> IPv4Network | None:
    try:
        return IPv4Network(cidr)
    except (AddressValueError, NetmaskValueError, ValueError):
        return None


def _network(settings: Settings) -> Iterator[Problem]:
    cidr = settings.network.cidr
    network = _network_of(cidr)
    if network is None or not addresses.LARGEST_VPC <= network.prefixlen <= addresses.SMALLEST_VPC:
        yield Problem("spotmpi:network.cidr", cidr, "use a range with a prefix of 16 to 24, for example 10.0.0.0/16")
    elif not any(network.subnet_of(each) for each in addresses.PRIVATE_RANGES):
        ranges = ", ".join(map(str, addresses.PRIVATE_RANGES))
        yield Problem("spotmpi:network.cidr", cidr, f"use private addresses, of {ranges}; for example 10.0.0.0/16")


def _capacity(settings: Settings) -> Iterator[Problem]:
    """Whether subnet addresses and EKS's quotas suffice for the most nodes that can run at once."""
    network = _network_of(settings.network.cidr)
    if network is not None and addresses.LARGEST_VPC <= network.prefixlen <= addresses.SMALLEST_VPC:
        for zone in settings.zones:
            yield from _room(settings, zone)
    eks_groups = 1 + sum(len(names.eks_groups(group)) for group in settings.zone_groups)
    quota = settings.cluster.max_node_groups
    if eks_groups > quota:
        remedy = (
            f"EKS allows {quota} node groups, the system group included, of {names.NODES_PER_EKS_GROUP} nodes each:"
        )
        remedy += " use fewer groups, a lower max or a second stack, or raise the quota and cluster.max_node_groups"
        yield Problem("spotmpi:groups", eks_groups, remedy)


def _room(settings: Settings, zone: str) -> Iterator[Problem]:
    """Whether the subnet of a zone has addresses for its nodes."""

    def subnet(plan: addresses.SubnetPlan) -> IPv4Network:
        return plan.of_zones(settings.zones, settings.other_zone)[zone]

    cidr = settings.network.cidr
    nodes = sum(group.max for group in settings.zone_groups if zone in group.zones)
    nodes += settings.cluster.system.nodes if zone == settings.zone else 0
    plan = addresses.plan(cidr)
    if zone not in plan.of_zones(settings.zones, settings.other_zone):
        yield Problem("spotmpi:zones", zone, "remove it: the network has no subnet for it")
    elif nodes > (fit := addresses.nodes_that_fit(subnet(plan))):
        prefix = addresses.prefix_for(nodes, subnet)
        where = f" in {zone}" * (len(settings.zones) > 1)
        remedy = f"room for {fit} of {nodes} nodes{where} with {addresses.ADDRESSES_PER_NODE} addresses each: "
        remedy += f"use a /{prefix} in a new stack" if prefix else "lower the max of the groups; no VPC is larger"
        yield Problem("spotmpi:network.cidr", cidr, remedy)


def _groups(settings: Settings) -> Iterator[Problem]:
    if not settings.groups:
        yield Problem("spotmpi:groups", [], "define at least one group with name, type and max")
    seen: set[str] = {"system"}
    for index, group in enumerate(settings.groups):
        key = f"spotmpi:groups.{index}"
        own = {name for each in settings.in_zones(group) for name in names.eks_groups(each)}
        if seen & own:
            yield Problem(f"{key}.name", group.name, "use a name that no other group has (`system` is reserved)")
        seen |= own
        if group.min > group.max:
            yield Problem(f"{key}.min", group.min, f"use at most max, which is {group.max}")
        yield from _type(f"{key}.type", group.type)
        if (kind := catalog().get(group.type)) is not None:
            yield from _features(key, group, kind, settings)
    yield from _system_nodes(settings)


def _system_nodes(settings: Settings) -> Iterator[Problem]:
    """Whether the system nodes can carry what runs on them: else `up` waits for add-ons until it times out."""
    system, key = settings.cluster.system, "spotmpi:cluster.system.type"
    yield from _type(key, system.type, gpus=False)
    if (kind := catalog().get(system.type)) is None:
        return
    needed = _SYSTEM_PODS + settings.queueing.enabled
    room = system.nodes * max(0, kind.pods - _PODS_PER_NODE)
    if room < needed:
        remedy = "use a larger type, for example t3.medium, or more nodes: besides its own pods each can run "
        remedy += f"{room // system.nodes}, and {needed} have to fit on {system.nodes}"
        yield Problem(key, system.type, remedy)


def _type(key: str, name: str, gpus: bool = True) -> Iterator[Problem]:
    kind = catalog().get(name)
    if kind is None:
        family = name.split(".")[0]
        similar = sorted(other for other in catalog() if other.split(".")[0] == family)
        remedy = f"use one of: {', '.join(similar)}" if similar else "check the name"
        command = f".venv/bin/python scripts/instance-types {name}"
        yield Problem(key, name, f"{remedy}; a newer type is added to infra/instance_types.json by: {command}")
    elif kind.gpus and not gpus:
        yield Problem(key, name, "use a type without GPUs: system pods need none")
    elif kind.gpus and not kind.gpu_ami:
        remedy = f"no current EKS GPU image supports {kind.gpu_model}: use {_GPU_AMI}, for example g4dn.xlarge"
        yield Problem(key, name, remedy)


def _features(key: str, group: Group, kind: InstanceType, settings: Settings) -> Iterator[Problem]:
    if group.has_placement_group and not kind.cluster_placement:
        remedy = f"set it to false: {group.type} does not support cluster placement groups"
        yield Problem(f"{key}.placement_group", True, remedy)
    if kind.pods <= _PODS_PER_NODE:
        yield Problem(f"{key}.type", group.type, f"use a larger type: its {kind.pods} pods are taken by the node's own")
    if group.market == "spot" and not kind.spot:
        yield Problem(f"{key}.market", group.market, f"set it to on-demand: EC2 has no spot market for {group.type}")
    if group.market == "on-demand" and kind.gpus and not settings.accelerators.on_demand:
        remedy = "set it to spot, or confirm with accelerators.on_demand: true"
        yield Problem(f"{key}.market", group.market, remedy)
    yield from _capacity_block(key, group, settings)
    if group.efa and not kind.efa_interfaces:
        yield Problem(f"{key}.efa", True, f"set it to false: {group.type} has no Elastic Fabric Adapter")
    if len(kind.network_cards(group.efa)) > 1 and not settings.network.private:
        remedy = "set network.private: true; nodes with several network interfaces get no public address"
        yield Problem(f"{key}.efa", True, remedy)


def _capacity_block(key: str, group: Group, settings: Settings) -> Iterator[Problem]:
    """What a group in a Capacity Block has to have; whether the block is as the group says, the doctor asks AWS."""
    if group.market != BLOCK:
        if group.reservation:
            remedy = f"set the group's market to {BLOCK}, or remove it: {group.market} nodes start in no reservation"
            yield Problem(f"{key}.reservation", group.reservation, remedy)
        return
    if group.reservation is None:
        remedy = "name the Capacity Block that was bought, such as cr-0123456789abcdef0; `aws ec2 "
        remedy += "describe-capacity-reservations` lists them"
        yield Problem(f"{key}.reservation", None, remedy)
    if len(zones := group.zones or settings.zones) > 1:
        yield Problem(f"{key}.zones", zones, "name one, that of the Capacity Block, which is in one zone")
    if group.min:
        remedy = "set it to 0: before the Capacity Block starts, and after its end, AWS starts no node in it"
        yield Problem(f"{key}.min", group.min, remedy)
    if group.placement_group and "placement_group" in group.model_fields_set:
        remedy = "remove it: a Capacity Block's instances are close together, and start in no placement group"
        yield Problem(f"{key}.placement_group", True, remedy)


def find_warnings(settings: Settings, today: date) -> list[str]:
    """Warnings about settings that can be built, but may not have the expected effect."""
    warnings = [f"spotmpi:groups: {warning}" for group in settings.groups for warning in _warnings(group)]
    if settings.kind == "compute" and len(settings.zones) > 1 and settings.storage.one_zone:
        others = " and ".join(settings.zones[1:])
        warnings.append(
            f"spotmpi:zones: nodes in {others} reach the storage in {settings.zone} across zones, which is slower and "
            "billed in both directions; a new stack with storage.one_zone: false has a mount target in each"
        )
    if settings.accelerators.dcgm and not any(catalog()[group.type].gpus for group in settings.groups):
        warnings.append("spotmpi:accelerators.dcgm: no group has GPUs, so there are no metrics to export")
    version = settings.cluster.version
    if settings.kind == "compute" and (support := support_warning(version, today)):
        remedy = f"build a new environment with {supported(today)}, and raise one that exists by `spotmpi upgrade "
        warnings.append(f"spotmpi:cluster.version: {support}; {remedy}{settings.stack}`")
    return warnings


def _warnings(group: Group) -> Iterator[str]:
    kind = catalog()[group.type]
    if group.efa:
        reason = "NCCL uses it only with libfabric and aws-ofi-nccl in the image; chainermn and pytorch use TCP"
        yield f"{group.name} has efa: true: {reason}"
    if kind.arm:
        reason = "runs need an image for it; chainermn and pytorch are built for x86_64"
        yield f"{group.name} has {group.type}, an Arm machine: {reason}"
    if kind.retired:
        reason = "EC2 no longer lists it, and EKS refuses a type that the zone lacks"
        yield f"{group.name} has {group.type}: {reason}; `spotmpi zones --types {group.type}` finds zones"


def _storage(settings: Settings) -> Iterator[Problem]:
    storage = settings.storage
    if (storage.file_system_id is None) != (storage.access_point_id is None):
        value = storage.file_system_id or storage.access_point_id
        yield Problem("spotmpi:storage", value, "set both file_system_id and access_point_id, or neither")
    if settings.kind == "data" and storage.file_system_id:
        yield Problem("spotmpi:storage.file_system_id", storage.file_system_id, "remove it: this stack creates one")
    if settings.kind == "compute" and storage.keep and storage.file_system_id:
        remedy = "remove it, or set storage.keep to false: an environment has one file system"
        yield Problem("spotmpi:storage.file_system_id", storage.file_system_id, remedy)
    for field in sorted(_ignored_storage(settings) & storage.model_fields_set):
        remedy = f"remove it, or set it in {_owner_of_storage(settings)}: this stack would ignore it"
        yield Problem(f"spotmpi:storage.{field}", getattr(storage, field), remedy)


def _ignored_storage(settings: Settings) -> set[str]:
    """The settings of the storage that a stack would ignore: those of a file system that it does not create."""
    if settings.kind == "data":
        return {"keep", "mount_options"}
    borrowed = settings.storage.keep or settings.storage.file_system_id
    if not borrowed or settings.kind != "compute":
        return set()
    return {"backup"} if len(settings.zones) > 1 else {"one_zone", "backup"}


def _owner_of_storage(settings: Settings) -> str:
    if settings.kind == "data":
        return "the stack that mounts the file system"
    return f"stack {names.data_stack(settings)}" if settings.storage.keep else "AWS, for a file system of your own"


def _sources(settings: Settings) -> Iterator[Problem]:
    for name, fields in settings.sources.items():
        if name not in CHARTS:
            yield Problem(f"spotmpi:sources.{name}", fields, f"use one of: {', '.join(sorted(CHARTS))}")
        for field in sorted(set(fields) - set(Chart.model_fields)):
            remedy = f"use one of: {', '.join(Chart.model_fields)}"
            yield Problem(f"spotmpi:sources.{name}.{field}", fields[field], remedy)
        needed = [field for field in ("image", "tag") if getattr(CHARTS.get(name), field, "") is None]
        if name != "cluster-autoscaler" and {"image", "tag", "digest"} & set(fields) and set(needed) - set(fields):
            remedy = f"set {' and '.join(needed)} too: this chart's own image is not known here"
            yield Problem(f"spotmpi:sources.{name}", fields, remedy)


def _queues(settings: Settings) -> Iterator[Problem]:
    queueing = settings.queueing
    if queueing.enabled and not queueing.teams:
        yield Problem("spotmpi:queueing.teams", [], "define at least one team with its number of GPUs")
    if queueing.teams and not queueing.enabled:
        yield Problem("spotmpi:queueing.enabled", False, "set it to true, or remove the teams")
    assigned = sum(team.gpus for team in queueing.teams)
    available = units([group for group in settings.queued_groups if group.type in catalog()])
    if queueing.enabled and settings.groups and not settings.queued_groups:
        remedy = "set it to false, or add a group on spot or on demand: queues share no nodes of Capacity Blocks"
        yield Problem("spotmpi:queueing.enabled", True, remedy)
    elif assigned > available:
        remedy = f"assign at most {available} in total, the most that can run, or Kueue admits jobs that never fit"
        yield Problem("spotmpi:queueing.teams", assigned, remedy)
    team_names = [team.name for team in queueing.teams]
    for index, name in enumerate(team_names):
        if name in team_names[:index]:
            yield Problem(f"spotmpi:queueing.teams.{index}.name", name, "use a name that no other team has")
