"""The policy that `spotmpi doctor --iam up` prints allows all resources of environments, and no more."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from typing import Any

import pytest
from moto.iam.aws_managed_policies import aws_managed_policies_data

from infra import policies
from spotmpi.environments.iam import BOUNDARY, BUILD, POLICIES, PUSH, policy
from tests.infra.mock_engine import run
from tests.tools import REPOSITORY

LOGIN = "ecr:GetAuthorizationToken"
FULL = {
    "cluster": {"encrypt_secrets": True, "admins": ["arn:aws:iam::123456789012:role/a"]},
    "network": {"private": True},
    "groups": [{"name": "big", "type": "p4d.24xlarge", "max": 2, "efa": True}],
    "budget": {"monthly_usd": 5, "email": "a@b.c"},
}


def test_the_rights_are_for_the_kinds_of_resources_that_stacks_have_and_no_others() -> None:
    recordings = [run("lab", **FULL), *(run(stack) for stack in ("lab", "p3", "g5", "cpu", "p3-data"))]
    kinds = {resource.kind for recording in recordings for resource in recording.resources}
    assert set(BUILD) == {kind for kind in kinds if kind.startswith(("aws:", "eks:"))}


@pytest.mark.parametrize("purpose", POLICIES)
def test_a_policy_fits_into_one_managed_policy_without_administrator_rights(purpose: str) -> None:
    document = policy(purpose)
    longest = policy(purpose, "b" * 63)  # the longest name of a bucket
    assert len(json.dumps(longest, separators=(",", ":"))) <= 6144
    actions = [action for statement in document["Statement"] for action in statement["Action"]]
    assert "*" not in actions and not any(action.endswith(":*") for action in actions)
    wild = [action.partition(":")[2] for action in actions if "*" in action]
    assert all(action in ("Describe*", "Get*", "List*") for action in wild)


def test_roles_may_be_created_and_passed_only_with_the_projects_names() -> None:
    statements = {each["Sid"]: each for each in policy("up")["Statement"]}
    assert {"iam:CreateRole", "iam:AttachRolePolicy"} <= set(statements["Roles"]["Action"])
    for name in ("Roles", "HandRolesOver"):
        assert statements[name]["Resource"] == "arn:aws:iam::*:role/spotmpi-*"
    role_actions = [action for action in statements["Build"]["Action"] if re.match("iam:.*Role", action)]
    assert all("Linked" in action for action in role_actions)


def test_settings_can_be_changed_after_the_build() -> None:
    """What the AWS provider calls for other `tags`, `network.private` and `cluster.encrypt_secrets`."""
    tagging = {action for action in allowed("up") if ":TagR" in action}
    assert "budgets:TagResource" in tagging
    assert {action.replace(":Tag", ":Untag") for action in tagging} <= allowed("up")
    assert {"ec2:ReplaceRouteTableAssociation", "eks:AssociateEncryptionConfig"} <= allowed("up")


CI_RIGHTS = REPOSITORY / "infra" / "ci_rights.json"


def test_the_roles_of_ci_have_the_rights_that_doctor_prints_for_them(request: pytest.FixtureRequest) -> None:
    text = json.dumps({purpose: policy(purpose) for purpose in ("preview", "build", "destroy")}, indent=1) + "\n"
    if request.config.getoption("--update-golden"):
        CI_RIGHTS.write_text(text, encoding="utf-8")
    assert CI_RIGHTS.read_text(encoding="utf-8") == text, "run pytest with --update-golden, and look at the difference"


def allowed(purpose: str) -> set[str]:
    return {action for each in policy(purpose)["Statement"] if each["Effect"] == "Allow" for action in each["Action"]}


def test_a_preview_changes_nothing() -> None:
    assert all(action.partition(":")[2].startswith(("Describe", "Get", "List")) for action in allowed("preview"))
    assert not {action for action in allowed("preview") if action.startswith(("s3:", "ssm:", "secretsmanager:"))}
    # Nor does it read images: a pull request decides what it does.
    assert not permits("preview", LOGIN) and not permits("preview", "ecr:GetDownloadUrlForLayer")
    assert permits("preview", "ecr:GetLifecyclePolicy") and permits("up", LOGIN) and permits("run", LOGIN)


def test_the_build_gives_rights_only_to_roles_with_the_boundary() -> None:
    giving = {"iam:AttachRolePolicy", "iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy"}
    statements = [each for each in policy("build")["Statement"] if giving & set(each["Action"])]
    assert [(set(each["Action"]), each["Resource"], each["Condition"]) for each in statements] == [
        (giving, "arn:aws:iam::*:role/spotmpi-*", {"StringLike": {"iam:PermissionsBoundary": BOUNDARY}})
    ]
    # Nor can it change the boundary, or take it off.
    assert not {action for action in allowed("build") if "PolicyVersion" in action or "DeleteRolePerm" in action}
    # People push images at the end of `up`, and upgrade; workflows do neither.
    registries = {action for action in allowed("build") | allowed("up") if action.startswith("ecr:Get")}
    own = {"iam:PutRolePermissionsBoundary", *PUSH, *registries}
    assert allowed("build") - own == allowed("up") - own


def permits(purpose: str, action: str, resource: str = "*", **context: str) -> bool:
    """Whether IAM would allow an action on one resource; `tag`, `new_tag` and `creating` are what it knows of it."""
    keys = {
        "aws:ResourceTag/spotmpi:environment": context.get("tag"),
        "aws:ResourceTag/aws:eks:cluster-name": context.get("cluster"),
        "aws:RequestTag/spotmpi:environment": context.get("new_tag"),
        "ec2:CreateAction": context.get("creating"),
        "elasticfilesystem:CreateAction": context.get("creating"),
        "autoscaling:MaxSize": context.get("max_size"),
    }

    def applies(statement: dict[str, Any]) -> bool:
        patterns = [pattern for pairs in statement.get("Condition", {}).values() for pattern in pairs.items()]
        return (
            any(fnmatch(action, each) for each in statement["Action"])
            and any(fnmatch(resource, each) for each in _as_list(statement["Resource"]))
            and all((value := keys[key]) is not None and fnmatch(value, pattern) for key, pattern in patterns)
        )

    effects = {each["Effect"] for each in policy(purpose)["Statement"] if "iam:" not in action and applies(each)}
    return effects == {"Allow"}


def arn(service: str, resource: str) -> str:
    return f"arn:aws:{service}:us-east-1:123456789012:{resource}"


NAMED = {
    "autoscaling:DeleteTags": "autoscaling autoScalingGroup:1:autoScalingGroupName/eks-{}-g4dn-1234567-2",
    "budgets:ModifyBudget": "budgets budget/{}-1234567",
    "ecr:DeleteRepository": "ecr repository/{}/pytorch",
    "eks:DeleteAccessEntry": "eks access-entry/{}/user/123456789012/alice/1",
    "eks:DeleteAddon": "eks addon/{}/coredns/1",
    "eks:DeleteCluster": "eks cluster/{}",
    "eks:DeleteNodegroup": "eks nodegroup/{}/{}-g4dn-1234567/1",
    "eks:DeletePodIdentityAssociation": "eks podidentityassociation/{}/a-1",
    "logs:DeleteLogGroup": "logs log-group:/aws/eks/{}/cluster",
}
TAGGED = {
    *("ec2:DeleteVpc", "ec2:DeleteSubnet", "ec2:DeleteSecurityGroup", "ec2:DeleteNatGateway", "ec2:ReleaseAddress"),
    *("ec2:DeleteLaunchTemplate", "ec2:DeletePlacementGroup", "ec2:DeleteInternetGateway", "ec2:DeleteRouteTable"),
    *("ec2:DeleteVpcEndpoints", "elasticfilesystem:DeleteFileSystem", "elasticfilesystem:DeleteAccessPoint"),
    *("kms:ScheduleKeyDeletion", "elasticfilesystem:PutBackupPolicy"),
}


@pytest.mark.parametrize("purpose", ["build", "destroy", "up"])
def test_only_resources_of_environments_can_be_deleted(purpose: str) -> None:
    """Which action takes names or tags is from AWS's Service Authorization Reference."""
    for action, pattern in NAMED.items():
        service, _, resource = pattern.partition(" ")
        ours, others = (arn(service, resource.replace("{}", name)) for name in ("spotmpi-lab", "production"))
        if service == "budgets":
            ours, others = (each.replace(":us-east-1:", "::") for each in (ours, others))
        assert permits(purpose, action, ours), action
        assert not permits(purpose, action, others) and not permits(purpose, action, others, tag="production"), action
    for action in TAGGED:
        assert permits(purpose, action, tag="spotmpi-lab"), action
        assert not permits(purpose, action) and not permits(purpose, action, tag="production"), action
    # EKS creates this group, with its own tag, and leaves it behind.
    group = arn("ec2", "security-group/sg-1")
    assert permits(purpose, "ec2:DeleteSecurityGroup", group, cluster="spotmpi-lab")
    assert not permits(purpose, "ec2:DeleteSecurityGroup", group, cluster="production")


@pytest.mark.parametrize("purpose", ["build", "up"])
def test_a_build_can_create_what_has_no_name_and_no_tag_yet(purpose: str) -> None:
    creations = {
        action for each in BUILD.values() for action in each if re.match("(ec2|kms|elasticf.*):Create", action)
    }
    later = {"ec2:CreateRoute", "ec2:CreateLaunchTemplateVersion", "elasticfilesystem:CreateAccessPoint"}
    for action in creations - later - {"ec2:CreateTags"}:
        assert permits(purpose, action, new_tag="spotmpi-lab"), action
    for action in later:
        assert permits(purpose, action, tag="spotmpi-lab") and not permits(purpose, action), action
    assert permits(purpose, "eks:CreateCluster") and permits(purpose, "kms:TagResource")
    assert permits(purpose, "ec2:CreateTags", arn("ec2", "vpc/vpc-1"), creating="CreateVpc")
    assert permits(purpose, "ec2:CreateTags", arn("ec2", "vpc/vpc-1"), tag="spotmpi-lab")
    assert permits(purpose, "elasticfilesystem:TagResource", creating="CreateFileSystem")
    # The default group of a new VPC is tagged later; another resource can't be made one of ours.
    assert permits(purpose, "ec2:CreateTags", arn("ec2", "security-group/sg-1"), new_tag="spotmpi-lab")
    assert not permits(purpose, "ec2:CreateTags", arn("ec2", "vpc/vpc-1"), new_tag="spotmpi-lab")


def test_storage_that_is_kept_or_was_brought_is_not_destroyed() -> None:
    for action in ("elasticfilesystem:DeleteFileSystem", "elasticfilesystem:DeleteAccessPoint"):
        assert not permits("destroy", action) and not permits("destroy", action, tag="spotmpi-g5-data")
        assert permits("destroy", action, tag="spotmpi-lab")
    assert permits("destroy", "elasticfilesystem:DeleteMountTarget", tag="spotmpi-g5-data")


def test_the_destroy_role_creates_nothing_and_can_not_delete_persistent_storage() -> None:
    (close,) = [each for each in policy("destroy")["Statement"] if each["Sid"] == "CloseNodeGroups"]
    assert close["Condition"] == {"NumericEquals": {"autoscaling:MaxSize": "0"}}
    verbs = {action.partition(":")[2] for action in allowed("destroy") - set(close["Action"])}
    assert not {verb for verb in verbs if verb.startswith(("Create", "Run", "Attach", "Authorize", "Pass", "Update"))}
    deletions = {"eks:DeleteCluster", "ec2:DeleteVpc", "elasticfilesystem:DeleteFileSystem", "iam:DeleteRole"}
    assert deletions <= allowed("destroy")
    (deny,) = [each for each in policy("destroy")["Statement"] if each["Effect"] == "Deny"]
    assert set(deny["Action"]) == {"elasticfilesystem:DeleteAccessPoint", "elasticfilesystem:DeleteFileSystem"}
    assert deny["Condition"] == {"StringLike": {"aws:ResourceTag/spotmpi:environment": "spotmpi-*-data"}}


def test_the_boundary_allows_the_policies_of_an_environments_roles_and_no_escalation() -> None:
    """AWS's managed policies as moto ships them, from AWS's own documentation of them."""
    managed = json.loads(aws_managed_policies_data)
    names = [arn.rpartition("/")[2] for arn in (*policies.NODE_POLICIES.values(), policies.EFS_DRIVER_POLICY)]
    names.append(policies.SSM_POLICY.rpartition("/")[2])
    documents = [managed[name]["Document"] for name in (*names, "AmazonEKSClusterPolicy")]
    documents.append(policies.cluster_autoscaler("spotmpi-lab"))
    attached = {action for each in documents for one in each["Statement"] for action in _as_list(one["Action"])}
    bounds = policies.boundary()["Statement"][0]["Action"]
    outside = {action for action in attached if not any(fnmatch(action, bound) for bound in bounds)}
    assert outside == {"iam:CreateServiceLinkedRole", "ssm:GetParameter", "ssm:GetParameters"}
    assert not [bound for bound in bounds if bound.startswith(("iam:", "sts:", "s3:", "*", "kms:Decrypt"))]
    assert len(json.dumps(policies.boundary(), separators=(",", ":"))) <= 6144


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
