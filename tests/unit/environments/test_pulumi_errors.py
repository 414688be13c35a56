"""What a user reads last when Pulumi or AWS refuses: one line with the reason and the remedy, for each ordinary error.

AWS's words are as pulumi-aws prints them: of the issues that are named, else with the codes of the API references.
"""

from __future__ import annotations

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.pulumi_errors import explain
from tests.cloud.fake_environment import FakeEnvironment

V2 = "https response error StatusCode: 400, RequestID: 6bd3b1c6-0b1a, "
CONTINUES = "; then the same command continues"
REFUSED = {
    "quota of networks": (
        f"aws:ec2:Vpc (spotmpi-lab): 1 error occurred:\n    \t* creating EC2 VPC: operation error EC2: CreateVpc, {V2}"
        "api error VpcLimitExceeded: The maximum number of VPCs has been reached.",
        "aws:ec2:Vpc spotmpi-lab: creating EC2 VPC: VpcLimitExceeded: The maximum number of VPCs has been reached",
        "a quota of the account is used up: delete what nobody needs, or request an increase in Service Quotas",
    ),
    "quota of addresses": (
        f"aws:ec2:Eip (spotmpi-lab-nat): sdk-v2/provider2.go:572: sdk.helper_schema: creating EC2 EIP: operation error "
        f"EC2: AllocateAddress, {V2}api error AddressLimitExceeded: The maximum number of addresses has been reached.: "
        "provider=aws@7.12.0",
        "creating EC2 EIP: AddressLimitExceeded: The maximum number of addresses has been reached: a quota",
        "request an increase in Service Quotas",
    ),
    # terraform-aws-eks#2149, terraform-provider-aws#39904
    "quota of vCPUs": (
        "aws:eks:NodeGroup (spotmpi-lab-system): waiting for EKS Node Group (spotmpi-lab:spotmpi-lab-system-1234567) "
        "create"
        ": unexpected state 'CREATE_FAILED', wanted target 'ACTIVE'. last error: 2 errors occurred:\n    \t* "
        "eks-spotmpi-"
        "lab-system-1234567-74c19ba3: AsgInstanceLaunchFailures: Could not launch On-Demand Instances. "
        "VcpuLimitExceeded "
        "- You have requested more vCPU capacity than your current vCPU limit of 0 allows.\n    \t* DUMMY_085e351a: "
        "NodeCreationFailure: Instances failed to join the kubernetes cluster",
        "aws:eks:NodeGroup spotmpi-lab-system: eks-spotmpi-lab-system-1234567-74c19ba3: AsgInstanceLaunchFailures: ",
        "the account's on-demand quota is exhausted: request an increase in Service Quotas, service ec2",
    ),
    # aws/containers-roadmap#2204
    "no capacity": (
        "aws:eks:NodeGroup (spotmpi-lab-system): waiting for EKS Node Group (a:b) create: unexpected state "
        "'CREATE_FAILED'"
        ", wanted target 'ACTIVE'. last error: eks-b: AsgInstanceLaunchFailures: Could not launch On-Demand Instances. "
        "InsufficientInstanceCapacity - We currently do not have sufficient t3.medium capacity in the Availability "
        "Zone "
        "you requested (us-east-1a).",
        "InsufficientInstanceCapacity - We currently do not have sufficient t3.medium capacity",
        "choose another type or zone for it (`spotmpi zones` compares them), or wait for capacity",
    ),
    # terraform-provider-aws#34234
    "not permitted": (
        f"aws:ec2:Vpc (spotmpi-lab): creating EC2 VPC: operation error EC2: CreateVpc, {V2}api error "
        "UnauthorizedOperation:"
        " You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/me is not authorized "
        "to "
        "perform: ec2:CreateVpc on resource: arn:aws:ec2:us-east-1:123456789012:vpc/* because no identity-based policy "
        "allows the ec2:CreateVpc action. Encoded authorization failure message: " + "x" * 900,
        "creating EC2 VPC: UnauthorizedOperation: You are not authorized to perform this operation. User:",
        "allow ec2:CreateVpc in your IAM policy; `spotmpi doctor --iam up` prints all that is needed",
    ),
    "denied by the organization": (
        f"aws:iam:Role (spotmpi-lab-nodes): creating IAM Role: operation error IAM: CreateRole, {V2}api error "
        "AccessDenied: User: arn:aws:sts::123456789012:assumed-role/dev/me is not authorized to perform: "
        "iam:CreateRole "
        "with an explicit deny in a service control policy",
        "AccessDenied",
        "allow iam:CreateRole: a policy denies it, of the organization or a permissions boundary",
    ),
    "a gateway that failed": (
        "aws:ec2:NatGateway (spotmpi-lab): waiting for EC2 NAT Gateway (nat-0a1b) create: unexpected state 'failed', "
        "wanted target 'available'. last error: InternalError: Network interface eni-1 was created and attached, but "
        "is still in a transitional state",
        "aws:ec2:NatGateway spotmpi-lab: waiting for EC2 NAT Gateway (nat-0a1b) create: unexpected state 'failed'",
        "AWS had an internal error: wait a few minutes; then the same command continues",
    ),
    "a zone without One Zone storage": (
        f"aws:efs:FileSystem (spotmpi-lab): creating EFS file system: operation error EFS: CreateFileSystem, {V2}"
        "UnsupportedAvailabilityZone: One Zone file systems are not supported in this Availability Zone",
        "creating EFS file system: UnsupportedAvailabilityZone",
        "set `storage.one_zone` to false, or choose another zone; then the same command continues",
    ),
    "a token that the cluster does not know": (
        "kubernetes:core/v1:Namespace (training): the server has asked for the client to provide credentials",
        "kubernetes:core/v1:Namespace training: the server has asked",
        "use the role that built it, which can add to `cluster.admins`",
    ),
    "a right in the cluster that is missing": (
        'kubernetes:core/v1:Secret (ssh): secrets "ssh" is forbidden: User "arn:aws:sts::1:assumed-role/dev/me" cannot '
        'create resource "secrets" in API group "" in the namespace "training"',
        'secrets "ssh" is forbidden',
        "use the role that built it, which can add to `cluster.admins`",
    ),
    "a webhook without pods": (
        "kubernetes:kueue.x-k8s.io/v1beta1:ClusterQueue (all): Internal error occurred: failed calling webhook "
        '"mclusterqueue.kb.io": failed to call webhook: Post "https://kueue-webhook-service.kueue-system.svc": '
        "dial tcp 10.0.1.7:9443: connect: connection refused",
        "failed calling webhook",
        "are not ready yet: wait a minute; then the same command continues",
    ),
    "a chart whose pods do not start": (
        'kubernetes:helm.sh/v3:Release (kueue): 1 error occurred:\n    * Helm release "kueue-system/kueue" was '
        "created, but failed to initialize completely. Use Helm CLI to investigate.: failed to become available within "
        "allocated timeout. Error: Helm Release kueue-system/kueue: context deadline exceeded",
        "was created, but failed to initialize completely",
        "its pods do not become ready: `kubectl get pods --all-namespaces` shows which",
    ),
    "an add-on whose pods do not start": (
        "aws:eks:Addon (coredns): waiting for EKS Add-On (spotmpi-lab:coredns) create: timeout while waiting for state "
        "to become 'ACTIVE' (last state: 'DEGRADED', timeout: 20m0s)",
        "waiting for EKS Add-On (spotmpi-lab:coredns) create: timeout",
        "its pods do not become ready",
    ),
    # sts, GetCallerIdentity in a region that is not enabled
    "unknown keys": (
        f"aws:iam:Role (spotmpi-lab): operation error STS: GetCallerIdentity, {V2}api error InvalidClientTokenId: The "
        "security token included in the request is invalid",
        "InvalidClientTokenId",
        "AWS does not know these credentials in the stack's region: log in again (`aws sso login`, or new keys), or "
        "that region is not enabled in the account (`aws account enable-region`)",
    ),
    # pulumi-aws#3310, #3866
    "expired credentials": (
        "pulumi:providers:aws (spotmpi-lab): pulumi:providers:aws resource 'spotmpi-lab' has a problem: Invalid "
        "credentials"
        " configured.\n    Please see https://www.pulumi.com/docs/intro/cloud-providers/aws/setup/ for more "
        "information.\n"
        "    Details: validating provider credentials: retrieving caller identity from STS: operation error STS: "
        f"GetCallerIdentity, {V2}api error ExpiredToken: The security token included in the request is expired",
        "pulumi:providers:aws spotmpi-lab: Invalid credentials configured. validating provider credentials: retrieving",
        "the AWS credentials are missing, wrong or expired: log in again (`aws sso login`, or new keys)",
    ),
    # pulumi#19452
    "expired credentials of the state": (
        "post-step event returned an error: failed to save snapshot: An IO error occurred while writing the new "
        "snapshot "
        'file: blob (key ".pulumi/stacks/lab.json") (code=Unknown): ExpiredToken: The provided token has expired.\n'
        "\tstatus code: 400, request id: Y45095KT8PN4FZ82, host id: rHnkECvJ2pQYheEiF3AkKNW=",
        "failed to save snapshot",
        "the AWS credentials are missing, wrong or expired: log in again",
    ),
    "a key that may not be used": (
        "getting stack configuration: get stack secrets manager: secrets (code=Unknown): AccessDeniedException: User: "
        "arn:aws:iam::123456789012:user/me is not authorized to perform: kms:Decrypt on resource: "
        "arn:aws:kms:us-east-1:"
        "123456789012:key/1",
        "get stack secrets manager",
        "allow kms:Decrypt in your IAM policy",
    ),
    "a key that is to be deleted": (
        "getting stack configuration: get stack secrets manager: secrets (code=FailedPrecondition): "
        "KMSInvalidStateException: arn:aws:kms:us-east-1:123456789012:key/1 is pending deletion.",
        "is pending deletion",
        "the KMS key can't be used: cancel its deletion (`aws kms cancel-key-deletion`), or enable it",
    ),
    "a name that exists": (
        f"aws:ecr:Repository (spotmpi-lab-chainermn): creating ECR Repository (spotmpi-lab/chainermn): operation "
        "error ECR:"
        f" CreateRepository, {V2}RepositoryAlreadyExistsException: The repository with name 'spotmpi-lab/chainermn' "
        "already"
        " exists in the registry with id '123456789012'",
        "RepositoryAlreadyExistsException",
        "another stack or a former environment has it: `spotmpi doctor lab` lists leftovers; delete it, or rename the "
        "stack",
    ),
    "a cluster of that name": (
        f"aws:eks:Cluster (spotmpi-lab-eksCluster): creating EKS Cluster (spotmpi-lab): operation error EKS: "
        "CreateCluster,"
        f" {V2}ResourceInUseException: Cluster already exists with name: spotmpi-lab",
        "ResourceInUseException: Cluster already exists with name: spotmpi-lab",
        "another stack or a former environment has it",
    ),
    "a file system that AWS changes": (
        "aws:efs:BackupPolicy (spotmpi-lab): deleting EFS Backup Policy (fs-1): operation error EFS: PutBackupPolicy, "
        f"{V2}IncorrectFileSystemLifeCycleState: File system 'fs-1' is in the wrong state: updating",
        "deleting EFS Backup Policy (fs-1): IncorrectFileSystemLifeCycleState",
        "AWS is still at work on an earlier change of it: wait a few minutes",
    ),
    "a deletion that takes too long": (
        "aws:ec2:NatGateway (spotmpi-lab): waiting for EC2 NAT Gateway (nat-1) delete: timeout while waiting for state "
        "to become 'deleted' (last state: 'deleting', timeout: 30m0s)",
        "delete: timeout while waiting for state to become 'deleted'",
        "AWS is still at work on an earlier change of it: wait a few minutes",
    ),
    "throttled": (
        f"aws:ec2:Route (spotmpi-lab-public): creating Route: operation error EC2: CreateRoute, exceeded maximum "
        "number of "
        f"attempts, 25, {V2}api error RequestLimitExceeded: Request limit exceeded.",
        "creating Route: RequestLimitExceeded",
        "AWS throttles the account's calls: wait a minute",
    ),
    "no access to the cluster": (
        "kubernetes:core/v1:Namespace (spotmpi-lab): configured Kubernetes cluster is unreachable: unable to load "
        "schema "
        'information from the API server: Get "https://1.eks.amazonaws.com/openapi/v2": dial tcp 1.2.3.4:443: i/o '
        "timeout",
        "configured Kubernetes cluster is unreachable",
        "check that your address is in `access` (https://checkip.amazonaws.com shows it), and the network",
    ),
    "a zone without EKS": (
        f"aws:eks:Cluster (spotmpi-lab-eksCluster): creating EKS Cluster (spotmpi-lab): operation error EKS: "
        "CreateCluster,"
        f" {V2}UnsupportedAvailabilityZoneException: Cannot create cluster 'spotmpi-lab' because EKS does not support "
        "creating control plane instances in us-east-1e, the targeted availability zone. Retry cluster creation using "
        "control plane subnets that span at least two of these availability zones: us-east-1a, us-east-1b",
        "UnsupportedAvailabilityZoneException",
        "set `second_zone` to one of those that are named above",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_up_ends_with_one_line_that_has_reason_and_remedy(lab: FakeEnvironment, case: str) -> None:
    failure, reason, remedy = REFUSED[case]
    (lab.folder / "up.failure").write_text(failure)
    with pytest.raises(SpotmpiError) as failed:
        lab.up()
    message = str(failed.value)
    assert message.startswith("`pulumi up --stack lab` failed: ") and "update failed" not in message
    assert reason in message and f"{remedy}" in message and message.endswith(CONTINUES), message
    assert "\n" not in message and "RequestID" not in message and "Encoded" not in message and len(message) < 500
    assert any(failure.splitlines()[-1][-60:].strip() in line for line in lab.output), "the details come before"


# Refused creations beyond REFUSED, whose remedy each is in no other place.
CREATIONS = {
    # kubernetes/kops#16475; a code that begins as that of unknown keys
    "aws:eks:NodeGroup (a): eks-a: AsgInstanceLaunchFailures: Could not launch Spot Instances. AuthFailure."
    "ServiceLinkedRoleCreationNotPermitted - The provided credentials do not have permission to create the "
    "service-linked role for EC2 Spot Instances.": "`aws iam create-service-linked-role --aws-service-name spot.",
    # LinkedInLearning/learning-terraform-3087701#345
    "aws:eks:NodeGroup (a): eks-a: AsgInstanceLaunchFailures: Could not launch On-Demand Instances. "
    "InvalidParameterCombination - The specified instance type is not eligible for Free Tier.": "to the paid plan",
    # UA-TECH-POWER/DDoS_terraform_aws#5
    "aws:eks:NodeGroup (a): eks-a: AsgInstanceLaunchFailures: Could not launch Spot Instances. PendingVerification - "
    "Your request for accessing resources in this region is being validated": "wait for its e-mail, up to 4 hours",
    f"aws:efs:MountTarget (a): creating EFS Mount Target (fs-1): operation error EFS: CreateMountTarget, {V2}"
    "NoFreeAddressesInSubnet: no free IP addresses": "the subnet has no free addresses: set a larger `network.cidr`",
    # terraform-aws-eks#2969
    "aws:eks:AccessEntry (a): creating EKS Access Entry (a:arn:aws:iam::1:role/x): operation error EKS: "
    f"CreateAccessEntry, {V2}InvalidParameterException: The specified principalArn is invalid: invalid principal.": (
        "IAM has no such role or user: correct its ARN in `cluster.admins` or `cluster.users`"
    ),
    # pulumi-kubernetes#2054, #2758
    "kubernetes:helm.sh/v3:Release (kueue): another operation (install/upgrade/rollback) is in progress": "`helm list",
    "kubernetes:helm.sh/v3:Release (kueue): cannot re-use a name that is still in use": "`helm uninstall` one whose",
    # NewAlreadyExists in apimachinery, errors.go
    'kubernetes:core/v1:Namespace (a): namespaces "training" already exists': "delete it with kubectl",
    f"aws:eks:Addon (a): creating EKS Add-On (a:b): operation error EKS: CreateAddon, {V2}ServerException: These "
    "errors are usually caused by a server-side issue.": "AWS had an internal error: wait a few minutes",
}


@pytest.mark.parametrize("failure", CREATIONS)
def test_a_refused_creation_is_told_with_its_own_remedy(failure: str) -> None:
    resource, _, reason = failure.partition(": ")
    message = explain("lab", "up", f"Diagnostics:\n  {resource}:\n    error: {reason}\n")
    assert CREATIONS[failure] in message and message.endswith(CONTINUES) and "credentials are" not in message, message
    assert "\n" not in message and len(message) < 500


def test_a_state_without_a_reason_is_named_and_no_nil_of_go(lab: FakeEnvironment) -> None:
    """As the provider words what waits for EFS, whose answers have no reason (resource.StateChangeConf)."""
    state = "waiting for EFS Mount Target (fsmt-1) create: unexpected state 'error', wanted target 'available'"
    (lab.folder / "up.failure").write_text(f"aws:efs:MountTarget (spotmpi-lab): {state}. last error: %!s(<nil>)")
    with pytest.raises(SpotmpiError) as failed:
        lab.up()
    end = "; the same command continues"
    assert str(failed.value) == f"`pulumi up --stack lab` failed: aws:efs:MountTarget spotmpi-lab: {state}{end}"


# pulumi-zephyr/zephyr-app#9, pulumi-awsx#905
@pytest.mark.parametrize(
    ("failure", "query"),
    [
        (
            "aws:ec2:Vpc (spotmpi-lab): deleting urn:pulumi:lab::spotmpi::aws:ec2/vpc:Vpc::spotmpi-lab: 1 error "
            "occurred:\n"
            "    \t* deleting EC2 VPC (vpc-0c13ea95e1fc1879d): DependencyViolation: The vpc 'vpc-0c13ea95e1fc1879d' "
            "has "
            "dependencies and cannot be deleted.\n    \tstatus code: 400, request id: 24a9f053-d232",
            "--filters Name=vpc-id,Values=vpc-0c13ea95e1fc1879d`",
        ),
        (
            f"aws:ec2:SecurityGroup (spotmpi-lab-nfs): deleting Security Group (sg-0123456789abcdef0): operation "
            "error EC2: "
            f"DeleteSecurityGroup, {V2}api error DependencyViolation: resource sg-0123456789abcdef0 has a dependent "
            "object",
            "--filters Name=group-id,Values=sg-0123456789abcdef0`",
        ),
        (
            "aws:eks:Cluster (spotmpi-lab-eksCluster): deleting EKS Cluster (spotmpi-lab): operation error EKS: "
            f"DeleteCluster, {V2}ResourceInUseException: Cluster has nodegroups attached",
            "`aws eks list-nodegroups --cluster-name spotmpi-lab` lists them in its region; delete them",
        ),
        (
            "aws:eks:Cluster (spotmpi-lab-eksCluster): deleting EKS Cluster (spotmpi-lab): operation error EKS: "
            f"DeleteCluster, {V2}ResourceInUseException: Cannot DeleteCluster, cluster has an update in progress",
            "AWS is still at work on an earlier change of it: wait a few minutes",
        ),
        (
            f"aws:iam:Role (spotmpi-lab-nodes): deleting IAM Role (spotmpi-lab-nodes-1234567): operation error IAM: "
            f"DeleteRole, {V2}DeleteConflict: Cannot delete entity, must detach all policies first.",
            "something that is not in this stack's state uses it: delete that",
        ),
    ],
)
def test_down_names_what_is_in_the_way_or_how_to_find_it(lab: FakeEnvironment, failure: str, query: str) -> None:
    lab.up(images=False)
    (lab.folder / "destroy.failure").write_text(failure)
    with pytest.raises(SpotmpiError) as failed:
        lab.down()
    message = str(failed.value)
    assert message.startswith("`pulumi destroy --stack lab` failed: aws:") and "deleting " in message
    assert query in message and message.endswith(CONTINUES) and "\n" not in message, message


def test_of_several_errors_the_one_with_a_remedy_is_told_and_the_others_are_counted() -> None:
    output = (
        "Diagnostics:\n  pulumi:pulumi:Stack (spotmpi-lab):\n    error: update failed\n\n"
        "  aws:ec2:Subnet (spotmpi-lab-nodes):\n    error: something odd\n\n"
        "  aws:ec2:Vpc (spotmpi-lab):\n    error: creating EC2 VPC: api error VpcLimitExceeded: full\n"
        "    error: creating EC2 VPC: api error VpcLimitExceeded: full\n"
    )
    message = explain("lab", "up", output)
    assert "aws:ec2:Vpc spotmpi-lab: creating EC2 VPC" in message and "(and 1 more error, above)" in message
    assert "something odd" in explain("lab", "up", output.replace("VpcLimitExceeded", "Odd"))


def test_a_hook_that_is_cancelled_because_the_program_refuses_is_not_the_reason() -> None:
    """As of g5 with another first zone than its storage, on a busy machine: the program ends before a hook has."""
    reason = "the storage of g5-data is in us-east-1a: make it the first of `zones` of g5"
    cancelled = (
        'before hook "spotmpi-g5-network-fixed" failed: rpc error: code = Unavailable desc = Cancelling all calls'
    )
    refused = 'before hook "spotmpi-g5-a-creation" failed: group a has 2 running nodes'
    output = f"Diagnostics:\n  aws:ec2:Vpc (spotmpi-g5):\n    error: Preview failed: {cancelled}\n\n"
    other = "  pulumi:pulumi:Stack (spotmpi-g5):\n    error: {}\n    error: preview failed\n"
    assert explain("g5", "preview", output + other.format(reason)) == (
        f"`pulumi preview --stack g5` failed: pulumi:pulumi:Stack spotmpi-g5: {reason}; the same command continues"
    )
    assert explain("g5", "preview", output + other.format(refused)) == "g5 was not changed: group a has 2 running nodes"


def test_that_the_engine_ended_the_program_is_not_the_reason() -> None:
    output = (
        "Diagnostics:\n  pulumi:pulumi:Stack (spotmpi-lab):\n    error: grpc: the client connection is closing\n\n"
        "  aws:ec2:NatGateway (spotmpi-lab):\n    error: boom\n\n"
    )
    expected = "`pulumi up --stack lab` failed: aws:ec2:NatGateway spotmpi-lab: boom; the same command continues"
    assert explain("lab", "up", output) == expected


def test_an_engine_that_ends_without_a_reason_shows_its_last_line() -> None:
    assert explain("lab", "up", "one\ntwo\n") == "`pulumi up --stack lab` failed: two; the same command continues"
    assert "failed: no output;" in explain("lab", "up", "")


def test_of_an_exception_in_the_program_the_last_line_is_told() -> None:
    frames = "".join(f'      File "/project/{number}.py", line 1, in build\n        call()\n' for number in range(20))
    output = (
        "Diagnostics:\n  pulumi:pulumi:Stack (spotmpi-lab):\n    error: Program failed with an unhandled exception:\n"
        f"    Traceback (most recent call last):\n{frames}    ValueError: boom\n\nResources:\n    2 unchanged\n"
    )
    assert explain("lab", "preview", output) == (
        "`pulumi preview --stack lab` failed: pulumi:pulumi:Stack spotmpi-lab: Program failed with an unhandled "
        "exception: "
        "ValueError: boom; the same command continues"
    )


@pytest.mark.parametrize("number", [1, 2])
def test_what_breaks_a_policy_is_told_instead_of_the_interrupt_by_which_the_program_then_ends(number: int) -> None:
    """As Pulumi 3.272 prints it."""
    violations = "".join(
        f"        - [mandatory]  no-world-open-api  (aws:eks/cluster:Cluster: spotmpi-lab{each})\n"
        "          a Kubernetes API open to the world\n          0.0.0.0/0 may reach it\n"
        for each in range(number)
    )
    output = (
        " +  pulumi:pulumi:Stack spotmpi-lab create 1 error\nPolicies:\n"
        f"    \u274c spotmpi-guardrails@v0.0.1 (local: infra/guardrails)\n{violations}\nDiagnostics:\n"
        "  pulumi:pulumi:Stack (spotmpi-lab):\n    error: preview failed\n\n    Traceback (most recent call last):\n"
        '      File "selectors.py", line 468, in select\n    KeyboardInterrupt\n\n'
    )
    more = " (and 1 more violation, above)" if number > 1 else ""
    assert explain("lab", "preview", output) == (
        f"lab breaks a policy: spotmpi-lab0: 0.0.0.0/0 may reach it (no-world-open-api){more}: "
        "change the stack's settings, or the policy pack"
    )


@pytest.mark.parametrize("problem", ["no space left on device", "permission denied", "read-only file system"])
def test_a_state_that_can_not_be_written_is_told_with_the_lock_that_may_stay(problem: str) -> None:
    """As Pulumi 3.272 prints it."""
    lock = ".pulumi/locks/organization/spotmpi/lab/6a33d8aa.json"
    output = f'error: blob (key "{lock}") (code=Unknown): write /mnt/state/{lock}.18ec51b7.tmp: {problem}\n'
    assert explain("lab", "up", output) == (
        f"Pulumi can't write the state of lab: {problem}: fix that; if a lock stays, "
        "`pulumi cancel --yes --stack lab`; then repeat the command"
    )
