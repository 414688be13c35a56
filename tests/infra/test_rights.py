"""The policy that `spotmpi doctor --iam up` prints allows all resources of environments, and no more."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch

import pytest
from moto.iam.aws_managed_policies import aws_managed_policies_data

from infra import policies
from spotmpi.environments.iam import BOUNDARY, BUILD, POLICIES, PUSH, policy
from tests.infra.mock_engine import run
from tests.tools import REPOSITORY

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
    assert len(json.dumps(document, separators=(",", ":"))) <= 6144
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


def test_the_build_gives_rights_only_to_roles_with_the_boundary() -> None:
    giving = {"iam:AttachRolePolicy", "iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy"}
    statements = [each for each in policy("build")["Statement"] if giving & set(each["Action"])]
    assert [(set(each["Action"]), each["Resource"], each["Condition"]) for each in statements] == [
        (giving, "arn:aws:iam::*:role/spotmpi-*", {"StringLike": {"iam:PermissionsBoundary": BOUNDARY}})
    ]
    assert BOUNDARY.endswith(f"policy/{policies.BOUNDARY_NAME}")
    # Nor can it change the boundary, or take it off.
    assert not {action for action in allowed("build") if "PolicyVersion" in action or "DeleteRolePerm" in action}
    # People push images at the end of `up`, and upgrade; workflows do neither.
    assert allowed("build") - {"iam:PutRolePermissionsBoundary"} == allowed("up") - {*PUSH, "ssm:GetParameter"}


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
    documents = [managed[name]["Document"] for name in (*names, "AmazonEKSClusterPolicy")]
    documents.append(policies.cluster_autoscaler("spotmpi-lab"))
    attached = {action for each in documents for one in each["Statement"] for action in _as_list(one["Action"])}
    bounds = policies.boundary()["Statement"][0]["Action"]
    outside = {action for action in attached if not any(fnmatch(action, bound) for bound in bounds)}
    assert outside == {"iam:CreateServiceLinkedRole"}
    assert not [bound for bound in bounds if bound.startswith(("iam:", "sts:", "s3:", "*", "kms:Decrypt"))]
    assert len(json.dumps(policies.boundary(), separators=(",", ":"))) <= 6144


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
