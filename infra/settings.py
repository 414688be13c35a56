"""The settings of an environment: one frozen model that holds every default."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt
from pydantic.config import JsonDict

from infra import kubernetes_versions
from infra.instance_types import InstanceType

PROJECT = "spotmpi"
TAG_ENVIRONMENT = "spotmpi:environment"  # of every resource: its environment
BLOCK: Literal["capacity-block"] = "capacity-block"  # the market of a Capacity Block for ML
DEFAULT_THROUGHPUT = 125  # MiB/s of a gp3 disk, without additional cost

# Marks of settings that AWS or Kubernetes can't change in a built environment; fixed_settings.py refuses these changes.
FIXED: JsonDict = {"change": "fixed"}
ONE_WAY: JsonDict = {"change": "one way"}  # false to true only

Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,14}[a-z0-9])?$")]
Cidr = Annotated[str, Field(pattern=r"^\d{1,3}(\.\d{1,3}){3}/\d{1,2}$")]
AmiRelease = Annotated[str, Field(pattern=r"^1\.\d\d\.\d+-\d{8}$")]
_AMI_RELEASE = "EKS AMI release, such as 1.35.2-20260901; `spotmpi upgrade` writes it; default: EKS's newest"
# https://docs.aws.amazon.com/eks/latest/userguide/managing-add-ons.html
AddonVersion = Annotated[str, Field(pattern=r"^v\d+\.\d+\.\d+-eksbuild\.\d+$")]
# Of the one partition whose regions checks.py accepts; EKS takes no wildcards and no ARNs of sessions.
Arn = Annotated[str, Field(pattern=r"^arn:aws:iam::\d{12}:(role|user)/[\w+=,.@/-]+$")]
PolicyArn = Annotated[str, Field(pattern=r"^arn:aws:iam::\d{12}:policy/[\w+=,.@/-]+$")]
ProviderArn = Annotated[
    str, Field(pattern=r"^arn:aws:iam::\d{12}:oidc-provider/token\.actions\.githubusercontent\.com$")
]
KeyArn = Annotated[str, Field(pattern=r"^arn:aws:kms:[a-z0-9-]+:\d{12}:key/[0-9a-z-]+$")]


# Switches and numbers are strict: jobs/spotmpi/environments/stack_file.py reads them in their own type alone.
class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Network(_Part):
    """Addresses and internet access."""

    cidr: Cidr = Field(
        "10.0.0.0/16",
        description="addresses of the VPC, prefix 16 to 24; half of them are for nodes",
        json_schema_extra=FIXED,
    )
    private: StrictBool = Field(
        False,
        description="nodes in private subnets behind one NAT gateway (billed by the hour)",
        json_schema_extra=ONE_WAY,
    )
    https_out: StrictBool = Field(True, description="runs may reach HTTPS hosts outside; DNS is always allowed")


class SystemNodes(_Part):
    """The small on-demand group for everything but training."""

    type: str = Field("t3.medium", description="instance type of the system nodes")
    nodes: StrictInt = Field(2, ge=1, le=10, description="number of system nodes")
    disk_gib: StrictInt = Field(30, ge=20, le=16384, description="root disk of a system node in GiB")
    ami_release: AmiRelease | None = Field(None, description=_AMI_RELEASE)


class Cluster(_Part):
    """The EKS control plane and who may use it."""

    version: str = Field(
        f"1.{kubernetes_versions.DEFAULT}",
        pattern=r"^1\.\d\d$",
        description="Kubernetes version; `spotmpi upgrade` writes the next one",
    )
    logs: tuple[Literal["api", "audit", "authenticator", "controllerManager", "scheduler"], ...] = Field(
        ("api", "audit", "authenticator"), description="control-plane logs that go to CloudWatch (billed by the GB)"
    )
    encrypt_secrets: StrictBool = Field(
        False, description="encrypt Kubernetes Secrets with a KMS key of their own", json_schema_extra=ONE_WAY
    )
    ssm: StrictBool = Field(
        False, description="a shell on nodes by Session Manager (`aws ssm start-session`), for those that never join"
    )
    admins: tuple[Arn, ...] = Field((), description="IAM roles or users that administer the cluster")
    users: tuple[Arn, ...] = Field((), description="IAM roles or users that may only run jobs")
    max_node_groups: StrictInt = Field(
        30, ge=1, le=500, description="EKS quota of managed node groups; raise it when AWS has raised yours"
    )
    addon_versions: dict[str, AddonVersion] = Field(
        {}, description="EKS add-on versions by name; others get EKS's default"
    )
    system: SystemNodes = Field(default_factory=SystemNodes, description="the system node group")


class Group(_Part):
    """One group of identical machines, in each of its zones with nodes of its own."""

    name: Name = Field(description="name of the group")
    type: str = Field(description="EC2 instance type")
    zones: tuple[str, ...] = Field((), description="the zones of the group; default: all of the environment")
    max: StrictInt = Field(ge=1, le=100_000, description="the most nodes that may run at once in a zone")
    min: StrictInt = Field(0, ge=0, description="how many nodes are kept in a zone when nothing runs (all are billed)")
    market: Literal["spot", "on-demand", "capacity-block"] = Field("spot", description="how the machines are bought")
    reservation: Annotated[str, Field(pattern=r"^cr-[0-9a-f]{8,17}$")] | None = Field(
        None,
        description="the Capacity Block that `market: capacity-block` starts nodes in, bought beforehand, such as "
        "cr-0123456789abcdef0",
    )
    placement_group: StrictBool = Field(
        True, description="keep the nodes close together in a cluster placement group (those of a Capacity Block are)"
    )
    efa: StrictBool = Field(
        False,
        description="Elastic Fabric Adapter, if the type has one (with several network cards it needs "
        "`network.private`; and an image with libfabric and aws-ofi-nccl: chainermn and pytorch have neither, so NCCL "
        "uses TCP)",
    )
    disk_gib: StrictInt = Field(100, ge=30, le=16384, description="root disk of a node in GiB")
    disk_throughput: StrictInt | None = Field(
        None,
        ge=125,
        le=1000,
        description="MiB/s of the root disk (more than 125 is billed by the hour); default: 500 for GPUs that keep "
        "their images on it, else 125",
    )
    local_disks: StrictBool = Field(
        True,
        description="keep images, and what runs write outside of shared storage, on the machine's own NVMe disks "
        "(joined as RAID 0), if the type has any",
    )
    ami_release: AmiRelease | None = Field(None, description=_AMI_RELEASE)

    @property
    def has_placement_group(self) -> bool:
        """Whether its nodes are in a cluster placement group; a Capacity Block needs none, and is in none."""
        return self.placement_group and self.market != BLOCK

    def uses_local_disks(self, kind: InstanceType) -> bool:
        """Whether nodes keep images and the files of pods on the machine's own NVMe disks."""
        return self.local_disks and kind.local_disk_gb > 0

    def root_disk_throughput(self, kind: InstanceType) -> int:
        """MiB/s of a node's root disk: as set, else more than the default where GPUs would wait for images."""
        if self.disk_throughput is not None:
            return self.disk_throughput
        return 500 if kind.gpus and not self.uses_local_disks(kind) else DEFAULT_THROUGHPUT


class Accelerators(_Part):
    """Extras for GPUs."""

    on_demand: StrictBool = Field(False, description="allow on-demand GPU groups, at a multiple of the spot price")
    dcgm: StrictBool = Field(False, description="export GPU metrics with NVIDIA's DCGM exporter")


class Storage(_Part):
    """The shared file system."""

    keep: StrictBool = Field(
        False, description="the file system lives in the stack `<stack>-data` and outlives this one"
    )
    one_zone: StrictBool = Field(
        True,
        description="One Zone storage in the first zone (cheaper, one copy; from others it is reached across zones)",
        json_schema_extra=FIXED,
    )
    backup: StrictBool = Field(
        False, description="daily AWS Backup of the file system (billed by the GB, also for the 35 days after `down`)"
    )
    mount_options: tuple[str, ...] = Field(("noresvport",), description="NFS mount options of the volume")
    file_system_id: Annotated[str, Field(pattern=r"^fs-[0-9a-f]{8,40}$")] | None = Field(
        None, description="an existing file system to use instead, with `access_point_id`"
    )
    access_point_id: Annotated[str, Field(pattern=r"^fsap-[0-9a-f]{8,40}$")] | None = Field(
        None, description="the access point of `file_system_id`, with owner 1000:1000"
    )


class Team(_Part):
    """A team that shares the GPUs."""

    name: Name = Field(description="name of the team and of its queue")
    gpus: StrictInt = Field(
        ge=0, description="the most GPUs (in CPU environments: nodes) that the team may use at once"
    )


class Queueing(_Part):
    """Kueue: whole jobs are admitted, within quotas."""

    enabled: StrictBool = Field(False, description="install Kueue")
    teams: tuple[Team, ...] = Field((), description="the teams, each with a queue and a quota")


class Budget(_Part):
    """An alarm on the money spent."""

    monthly_usd: float = Field(ge=0.01, description="budget; a mail at 80 % of it, and when the forecast exceeds it")
    email: str = Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$", description="who gets the mail")


class Ci(_Part):
    """Roles for GitHub workflows."""

    repository: str = Field(
        pattern=r"^([\w.-]+/[\w.-]+|[\w.-]+@\d+/[\w.-]+@\d+)$",
        description="GitHub repository that may use the roles, as its tokens name it: `owner/name`, or "
        "`owner@ID/name@ID` if it was created, renamed or transferred after 15 July 2026",
    )
    state_bucket: str = Field(pattern=r"^[a-z0-9.-]{3,63}$", description="S3 bucket that holds the Pulumi state")
    provider_arn: ProviderArn | None = Field(
        None, description="GitHub's OIDC provider, where the account already has one"
    )
    branch: str = Field("main", pattern=r"^[\w./-]+$", description="the only branch that may build and destroy")
    secrets_key_arn: KeyArn | None = Field(
        None, description="KMS key of the stacks' secrets provider; build and destroy may use it, previews never"
    )


class Settings(_Part):
    """Everything that may differ between two environments."""

    project: str = PROJECT
    stack: str
    region: str = Field(
        pattern=r"^[a-z]{2}(-[a-z]+)+-\d$", description="AWS region (key `aws:region`)", json_schema_extra=FIXED
    )
    kind: Literal["compute", "data", "account"] = Field(
        "compute",
        description="a whole environment, only its persistent storage, or only the roles of CI in an account",
        json_schema_extra=FIXED,
    )
    account: Annotated[str, Field(pattern=r"^\d{12}$")] | None = Field(
        None, description="the AWS account that this stack belongs to; any other is refused"
    )
    zones: tuple[str, ...] = Field(
        min_length=1,
        description="Availability Zones of the groups, such as us-east-1a (none for an account); a run is in one of "
        "them. The first, fixed once built, also has the system nodes and One Zone storage",
    )
    second_zone: str | None = Field(
        None,
        description="the second zone that EKS needs (`spotmpi doctor` lists the supported ones); default: a or b",
        json_schema_extra=FIXED,
    )
    access: tuple[Cidr, ...] = Field((), description="addresses that may reach the Kubernetes API, never all of them")
    namespace: Name = Field("training", description="Kubernetes namespace of the runs", json_schema_extra=FIXED)
    images: tuple[Name, ...] = Field(("chainermn", "pytorch"), description="images that get an ECR repository")
    tags: dict[str, str] = Field({}, description="additional tags on every resource that can have tags")
    groups: tuple[Group, ...] = Field(
        (), description="the node groups; a run uses the first that it fits, unless it names others"
    )
    network: Network = Field(default_factory=Network, description="the VPC")
    cluster: Cluster = Field(default_factory=Cluster, description="the EKS cluster")
    accelerators: Accelerators = Field(default_factory=Accelerators, description="GPU extras")
    storage: Storage = Field(default_factory=Storage, description="the shared file system")
    queueing: Queueing = Field(default_factory=Queueing, description="Kueue")
    sources: dict[str, dict[str, str]] = Field({}, description="mirrors: replaced fields of infra/sources.py, by name")
    boundary: PolicyArn | None = Field(
        None, description="permissions boundary of every IAM role of the environment (CI's build role requires it)"
    )
    budget: Budget | None = Field(None, description="budget alarm; none unless set")
    ci: Ci | None = Field(None, description="OIDC roles for GitHub workflows, in a stack with `kind: account`")

    @property
    def name(self) -> str:
        """The environment's name, the prefix of every other name."""
        return f"{self.project}-{self.stack}"

    @property
    def zone(self) -> str:
        """The first zone, which has the system nodes, the NAT gateway and One Zone storage."""
        return self.zones[0]

    @property
    def other_zone(self) -> str:
        """The second zone of EKS: as set, else zone a, or b where the first is a."""
        return self.second_zone or self.region + ("b" if self.zone.endswith("a") else "a")

    def in_zones(self, group: Group) -> tuple[Group, ...]:
        """A group as one of its own in each of its zones; outside of the first zone its name ends with the letter."""
        return tuple(
            group.model_copy(
                update={"name": group.name + (f"-{zone[-1:]}" if zone != self.zone else ""), "zones": (zone,)}
            )
            for zone in group.zones or self.zones
        )

    @property
    def zone_groups(self) -> tuple[Group, ...]:
        """All groups, each in one zone, in the order of preference."""
        return tuple(each for group in self.groups for each in self.in_zones(group))

    @property
    def queued_groups(self) -> tuple[Group, ...]:
        """The groups whose nodes queues share; a Capacity Block has nodes for a while only, and runs wait for it."""
        return tuple(group for group in self.zone_groups if group.market != BLOCK)

    @property
    def all_tags(self) -> dict[str, str]:
        """The tags of every resource."""
        return {**self.tags, TAG_ENVIRONMENT: self.name, "spotmpi:stack": self.stack}
