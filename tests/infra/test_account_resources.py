"""Registry, budget, CI roles, tags, exports and IAM documents."""

from __future__ import annotations

import inspect
import json
from fnmatch import fnmatch
from typing import Any

import pulumi_aws
import pytest

from infra import policies, program
from infra.stack_config import read
from spotmpi.core import environment
from spotmpi.environments.iam import BOUNDARY
from tests.infra.mock_engine import TODAY, Recording, record, run

CI = {"repository": "example/spotmpi", "state_bucket": "example-state"}
COMPUTE = ["lab", "p3", "g5", "cpu"]
ISSUER = "token.actions.githubusercontent.com"


@pytest.mark.parametrize("stack", COMPUTE)
def test_the_exports_are_what_the_package_reads_without_any_kubeconfig_or_key(stack: str) -> None:
    exports = json.dumps(run(stack).exports)
    parsed = environment.parse(json.loads(exports))
    assert parsed.name == parsed.cluster == f"spotmpi-{stack}"
    assert parsed.namespace == "training"
    assert set(parsed.model_dump()) == set(run(stack).exports)
    assert not [word for word in ("kubeconfig", "private", "token", "certificate") if word in exports.lower()]


def test_exported_groups_have_the_machine_labels_and_taint() -> None:
    group = environment.parse(run("p3").exports).group("p3")
    assert (group.gpus, group.vcpus, group.memory_mib, group.max, group.market) == (1, 8, 62464, 8, "spot")
    assert group.labels["spotmpi.dev/group"] == "p3"
    assert (group.taint.key, group.taint.effect) == ("nvidia.com/gpu", "NoSchedule")


def test_exported_labels_and_taint_are_those_of_the_nodes() -> None:
    node = run("cpu").node_groups["c6i"].inputs
    group = environment.parse(run("cpu").exports).group("c6i")
    assert group.labels == node["labels"]
    assert node["taints"] == [{"key": group.taint.key, "value": group.taint.value, "effect": "NO_SCHEDULE"}]


def taggable(kind: str) -> bool:
    """Whether the installed SDK lets a resource of this type carry tags."""
    _, module, name = kind.split(":")
    package = getattr(pulumi_aws, module.split("/")[0])
    return "tags" in inspect.signature(getattr(package, name)._internal_init).parameters


@pytest.mark.parametrize("stack", [*COMPUTE, "p3-data"])
def test_every_taggable_resource_is_tagged(stack: str) -> None:
    resources = run(stack, tags={"team": "vision"}).resources
    tagged = [one for one in resources if one.kind.startswith("aws:") and taggable(one.kind)]
    assert len(tagged) >= 2
    for one in tagged:
        assert one.inputs["tags"]["spotmpi:environment"] == f"spotmpi-{stack}", one.name
        assert one.inputs["tags"]["team"] == "vision", one.name


def test_every_aws_resource_uses_a_provider_that_has_default_tags_and_refuses_other_accounts() -> None:
    recording = run("g5", account="123456789012")
    inputs = recording.one("pulumi:providers:aws").inputs
    assert json.loads(inputs["defaultTags"])["tags"]["spotmpi:environment"] == "spotmpi-g5"
    assert json.loads(inputs["allowedAccountIds"]) == ["123456789012"]
    assert inputs["region"] == "us-east-1"
    resources = [resource for resource in recording.resources if resource.kind.startswith("aws:")]
    assert [resource.name for resource in resources if "::spotmpi-g5" not in resource.provider] == []


def test_each_image_has_a_repository_with_immutable_tags() -> None:
    repositories = [resource.inputs for resource in run("lab").of("aws:ecr/repository:Repository")]
    assert {each["name"] for each in repositories} == {"spotmpi-lab/chainermn", "spotmpi-lab/pytorch"}
    for repository in repositories:
        assert (repository["imageTagMutability"], repository["forceDelete"]) == ("IMMUTABLE", True)
        assert repository["imageScanningConfiguration"] == {"scanOnPush": True}
    assert len(run("lab").of("LifecyclePolicy")) == 2


def test_no_budget_and_no_roles_by_default() -> None:
    assert run("lab").of("Budget") == run("lab").of("OpenIdConnectProvider") == []
    assert "ci_roles" not in run("lab").exports


def test_a_budget_counts_this_environment_only_and_mails_twice() -> None:
    inputs = run("lab", budget={"monthly_usd": 150, "email": "ops@example.com"}).one("Budget").inputs
    assert (inputs["limitAmount"], inputs["limitUnit"], inputs["timeUnit"]) == ("150.00", "USD", "MONTHLY")
    assert inputs["costFilters"] == [
        {"name": "TagKeyValue", "values": ["user:spotmpi:environment$spotmpi-lab"]},
        {"name": "Region", "values": ["us-east-1"]},  # the tag is also that of a stack `lab` elsewhere
    ]
    mails = [(mail["notificationType"], mail["threshold"]) for mail in inputs["notifications"]]
    assert mails == [("ACTUAL", 80), ("FORECASTED", 100)]


def roles_of(ci: dict[str, str], stack: str = "account") -> Recording:
    """The program of a stack that has the roles of CI alone."""
    config = {"aws:region": "us-east-1", "spotmpi:kind": "account", "spotmpi:ci": json.dumps(ci)}
    settings = read(stack, config)
    return record(lambda: program.build(settings, TODAY), stack)


def test_the_roles_of_ci_need_no_environment() -> None:
    recording = roles_of(CI)
    kinds = {each.kind for each in recording.resources if each.kind.startswith(("aws:", "eks:", "kubernetes:"))}
    assert kinds == {
        *("aws:iam/role:Role", "aws:iam/rolePolicy:RolePolicy", "aws:iam/policy:Policy"),
        "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
    }
    assert set(recording.exports) == {"ci_roles"}


def trust(recording: Recording, role: str) -> dict[str, Any]:
    """The only statement about who may assume a role of CI."""
    document = json.loads(recording.one("aws:iam/role:Role", f"ci-spotmpi-account-{role}").inputs["assumeRolePolicy"])
    return dict(document["Statement"][0])


# The second as in the tokens of repositories created after 15 July 2026.
@pytest.mark.parametrize("repository", ["example/spotmpi", "example@123456/spotmpi@456789"])
def test_a_preview_only_reads_and_changes_need_a_github_environment_and_the_main_branch(repository: str) -> None:
    recording = roles_of({**CI, "repository": repository})
    audience = {f"{ISSUER}:aud": "sts.amazonaws.com"}
    assert trust(recording, "preview")["Condition"]["StringEquals"] == {
        **audience,
        f"{ISSUER}:sub": [f"repo:{repository}:pull_request"],
    }
    for role, environments in {"build": ["deploy"], "destroy": ["destroy", "nightly"]}.items():
        assert trust(recording, role)["Condition"]["StringEquals"] == {
            **audience,
            f"{ISSUER}:sub": [f"repo:{repository}:environment:spotmpi-{each}" for each in environments],
            f"{ISSUER}:ref": "refs/heads/main",
        }
    assert set(recording.exports["ci_roles"]) == {"preview", "build", "destroy", "boundary"}


def test_no_ci_role_is_an_administrator_or_may_change_itself() -> None:
    recording = roles_of(CI)
    roles = [resource.name for resource in recording.of("aws:iam/role:Role") if resource.name.startswith("ci-")]
    assert len(roles) == 3
    assert [each.name for each in recording.of("RolePolicyAttachment") if each.name.startswith("ci-")] == []
    inline = {resource.name: resource.inputs["policy"] for resource in recording.of("RolePolicy")}
    for role in roles:
        text = inline[f"{role}-rights"] + inline[f"{role}-state"]
        assert '"*:*"' not in text and '"iam:*"' not in text and "role/ci-" not in text


def test_every_stack_with_roles_of_ci_has_a_boundary_of_its_own_that_its_build_role_requires() -> None:
    """Pulumi makes the name unique, so two repositories and two regions of one account can have one each."""
    for stack in ("account", "second"):
        boundary = roles_of(CI, stack).one("aws:iam/policy:Policy")
        assert "name" not in boundary.inputs
        assert fnmatch(f"arn:aws:iam::123456789012:policy/{boundary.name}-1a2b3c4", BOUNDARY)
        assert json.loads(boundary.inputs["policy"]) == policies.boundary()


def test_an_existing_oidc_provider_is_used() -> None:
    arn = f"arn:aws:iam::123456789012:oidc-provider/{ISSUER}"
    recording = roles_of({**CI, "provider_arn": arn})
    assert recording.of("OpenIdConnectProvider") == []
    assert trust(recording, "preview")["Principal"] == {"Federated": arn}


def test_a_preview_reads_the_state_and_neither_writes_nor_decrypts_it() -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/0123abcd-0123-4567-89ab-0123456789ab"
    recording = roles_of({**CI, "secrets_key_arn": key})

    def statements(role: str) -> list[dict[str, Any]]:
        policy = json.loads(recording.one("RolePolicy", f"ci-spotmpi-account-{role}-state").inputs["policy"])
        return list(policy["Statement"])

    def actions(role: str) -> list[str]:
        allowed = [each for each in statements(role) if each["Effect"] == "Allow"]
        return sorted(action for each in allowed for action in _as_list(each["Action"]))

    assert actions("preview") == ["s3:GetObject", "s3:ListBucket"]
    (objects,) = statements("preview")[0]["Resource"]
    for state in ("example-state/.pulumi/stacks/lab.json", "example-state/team/.pulumi/stacks/lab.json"):
        assert fnmatch(f"arn:aws:s3:::{state}", objects) and not fnmatch("arn:aws:s3:::example-state/data", objects)
    writer = ["kms:Decrypt", "kms:Encrypt", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject"]
    assert actions("build") == actions("destroy") == writer
    for role in ("build", "destroy"):
        use, deny = statements(role)[-2:]
        assert use["Resource"] == deny["Resource"] == key and deny["Effect"] == "Deny"
        # With the tag of an environment it could be deleted, and the state's secrets with it.
        assert {"kms:ScheduleKeyDeletion", "kms:TagResource"} <= set(deny["Action"])


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def test_the_autoscaler_resizes_only_groups_of_its_own_cluster() -> None:
    statements = policies.cluster_autoscaler("spotmpi-lab")["Statement"]
    changing = [statement for statement in statements if "autoscaling:SetDesiredCapacity" in statement["Action"]]
    owned = {"StringEquals": {"aws:ResourceTag/k8s.io/cluster-autoscaler/spotmpi-lab": "owned"}}
    assert [statement["Condition"] for statement in changing] == [owned]
    reading = [statement["Action"] for statement in statements if "Condition" not in statement]
    assert "Set" not in json.dumps(reading)
