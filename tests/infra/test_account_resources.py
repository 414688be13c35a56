"""Registry, budget, CI roles, tags, exports and IAM documents."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pulumi_aws
import pytest

from infra import policies
from spotmpi.core import environment
from tests.infra.mock_engine import Recording, run

CI = {"repository": "example/spotmpi", "state_bucket": "example-state"}
COMPUTE = ["lab", "p3", "g5", "cpu"]


@pytest.mark.parametrize("stack", COMPUTE)
def test_the_exports_are_what_the_package_reads(stack: str) -> None:
    parsed = environment.parse(json.loads(json.dumps(run(stack).exports)))
    assert parsed.name == parsed.cluster == f"spotmpi-{stack}"
    assert (parsed.uid, parsed.gid, parsed.namespace) == (1000, 1000, "training")
    assert set(parsed.model_dump()) == set(run(stack).exports)


def test_exported_groups_have_the_machine_labels_and_taint() -> None:
    group = environment.parse(run("p3").exports).group("p3")
    assert (group.gpus, group.vcpus, group.memory_mib, group.max, group.market) == (1, 8, 62464, 8, "spot")
    assert group.labels["spotmpi.dev/group"] == "p3"
    assert (group.taint.key, group.taint.effect) == ("nvidia.com/gpu", "NoSchedule")


def test_exported_labels_and_taint_are_those_of_the_nodes() -> None:
    recording = run("cpu")
    node = recording.one("aws:eks/nodeGroup:NodeGroup", "spotmpi-cpu-c6i").inputs
    group = environment.parse(recording.exports).group("c6i")
    assert group.labels == node["labels"]
    taint = node["taints"][0]
    assert (taint["key"], taint["value"], taint["effect"]) == (group.taint.key, group.taint.value, "NO_SCHEDULE")


@pytest.mark.parametrize("stack", COMPUTE)
def test_no_kubeconfig_or_key_is_exported(stack: str) -> None:
    text = json.dumps(run(stack).exports).lower()
    assert not [word for word in ("kubeconfig", "private", "token", "certificate") if word in text]


def taggable(kind: str) -> bool:
    """Whether the installed SDK lets a resource of this type carry tags."""
    _, module, name = kind.split(":")
    package = getattr(pulumi_aws, module.split("/")[0])
    return "tags" in inspect.signature(getattr(package, name)._internal_init).parameters


@pytest.mark.parametrize("stack", [*COMPUTE, "p3-data"])
def test_every_taggable_resource_is_tagged(stack: str) -> None:
    resources = [
        resource for resource in run(stack, tags={"team": "vision"}).resources if resource.kind.startswith("aws:")
    ]
    tagged = [one for one in resources if taggable(one.kind)]
    assert len(tagged) >= 2
    for one in tagged:
        assert one.inputs["tags"]["spotmpi:environment"] == f"spotmpi-{stack}", one.name
        assert one.inputs["tags"]["team"] == "vision", one.name


def test_the_provider_has_default_tags_and_refuses_other_accounts() -> None:
    inputs = run("lab", account="123456789012").one("pulumi:providers:aws").inputs
    assert json.loads(inputs["defaultTags"])["tags"]["spotmpi:environment"] == "spotmpi-lab"
    assert json.loads(inputs["allowedAccountIds"]) == ["123456789012"]
    assert inputs["region"] == "us-east-1"


def test_every_aws_resource_uses_that_provider() -> None:
    recording = run("g5")
    others = [
        resource.name
        for resource in recording.resources
        if resource.kind.startswith("aws:") and "::spotmpi-g5" not in resource.provider
    ]
    assert others == []


def test_each_image_has_a_repository_with_immutable_tags() -> None:
    recording = run("lab")
    names = {resource.inputs["name"] for resource in recording.of("aws:ecr/repository:Repository")}
    assert names == {"spotmpi-lab/chainermn", "spotmpi-lab/pytorch"}
    for resource in recording.of("aws:ecr/repository:Repository"):
        assert resource.inputs["imageTagMutability"] == "IMMUTABLE"
        assert resource.inputs["imageScanningConfiguration"] == {"scanOnPush": True}
        assert resource.inputs["forceDelete"] is True
    assert len(recording.of("LifecyclePolicy")) == 2


def test_no_budget_and_no_roles_by_default() -> None:
    recording = run("lab")
    assert recording.of("Budget") == recording.of("OpenIdConnectProvider") == []
    assert "ci_roles" not in recording.exports


def test_a_budget_counts_this_environment_only_and_mails_twice() -> None:
    recording = run("lab", budget={"monthly_usd": 150, "email": "ops@example.com"})
    inputs = recording.one("Budget").inputs
    assert (inputs["limitAmount"], inputs["limitUnit"], inputs["timeUnit"]) == ("150.00", "USD", "MONTHLY")
    assert inputs["costFilters"] == [{"name": "TagKeyValue", "values": ["user:spotmpi:environment$spotmpi-lab"]}]
    assert [(mail["notificationType"], mail["threshold"]) for mail in inputs["notifications"]] == [
        ("ACTUAL", 80),
        ("FORECASTED", 100),
    ]


ISSUER = "token.actions.githubusercontent.com"


def trust(recording: Recording, role: str) -> dict[str, Any]:
    document = json.loads(recording.one("aws:iam/role:Role", role).inputs["assumeRolePolicy"])
    return dict(document["Statement"][0]["Condition"]["StringEquals"])


def test_a_preview_only_reads_and_changes_need_a_github_environment_and_the_main_branch() -> None:
    recording = run("lab", ci=CI)
    assert trust(recording, "ci-spotmpi-lab-preview") == {
        f"{ISSUER}:aud": "sts.amazonaws.com",
        f"{ISSUER}:sub": ["repo:example/spotmpi:pull_request"],
    }
    environments = {"build": ["deploy"], "destroy": ["destroy", "nightly"]}
    for role, named in environments.items():
        assert trust(recording, f"ci-spotmpi-lab-{role}") == {
            f"{ISSUER}:aud": "sts.amazonaws.com",
            f"{ISSUER}:sub": [f"repo:example/spotmpi:environment:spotmpi-{each}" for each in named],
            f"{ISSUER}:ref": "refs/heads/main",
        }
    assert set(recording.exports["ci_roles"]) == {"preview", "build", "destroy", "boundary"}


def test_no_ci_role_is_an_administrator_or_may_change_itself() -> None:
    recording = run("lab", ci=CI)
    roles = [resource.name for resource in recording.of("aws:iam/role:Role") if resource.name.startswith("ci-")]
    assert len(roles) == 3
    attached = [resource for resource in recording.of("RolePolicyAttachment") if resource.name.startswith("ci-")]
    assert attached == []
    inline = {resource.name: json.loads(resource.inputs["policy"]) for resource in recording.of("RolePolicy")}
    for role in roles:
        text = json.dumps([inline[f"{role}-rights"], inline[f"{role}-state"]])
        assert '"*:*"' not in text and '"iam:*"' not in text and "role/ci-" not in text


def test_the_boundary_has_the_name_that_the_build_role_requires() -> None:
    boundary = run("lab", ci=CI).one("aws:iam/policy:Policy").inputs
    assert boundary["name"] == policies.BOUNDARY_NAME
    assert json.loads(boundary["policy"]) == policies.boundary()


def test_an_existing_oidc_provider_is_used() -> None:
    arn = "arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com"
    recording = run("lab", ci={**CI, "provider_arn": arn})
    assert recording.of("OpenIdConnectProvider") == []
    document = json.loads(recording.one("aws:iam/role:Role", "ci-spotmpi-lab-preview").inputs["assumeRolePolicy"])
    assert document["Statement"][0]["Principal"] == {"Federated": arn}


def test_a_preview_reads_the_state_and_neither_writes_nor_decrypts_it() -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/0123abcd-0123-4567-89ab-0123456789ab"
    recording = run("lab", ci={**CI, "secrets_key_arn": key})
    state = {
        resource.name: resource.inputs["policy"]
        for resource in recording.of("RolePolicy")
        if resource.name.endswith("-state")
    }
    actions = {
        name: sorted(action for each in json.loads(text)["Statement"] for action in _as_list(each["Action"]))
        for name, text in state.items()
    }
    writer = ["kms:Decrypt", "kms:Encrypt", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject"]
    assert actions == {
        "ci-spotmpi-lab-preview-state": ["s3:GetObject", "s3:ListBucket"],
        "ci-spotmpi-lab-build-state": writer,
        "ci-spotmpi-lab-destroy-state": writer,
    }
    assert all(
        json.loads(text)["Statement"][-1]["Resource"] == key for name, text in state.items() if "view" not in name
    )


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def test_the_autoscaler_resizes_only_groups_of_its_own_cluster() -> None:
    statements = policies.cluster_autoscaler("spotmpi-lab")["Statement"]
    changing = [statement for statement in statements if "autoscaling:SetDesiredCapacity" in statement["Action"]]
    owned = {"StringEquals": {"aws:ResourceTag/k8s.io/cluster-autoscaler/spotmpi-lab": "owned"}}
    assert [statement["Condition"] for statement in changing] == [owned]
    reading = [action for statement in statements if "Condition" not in statement for action in [statement["Action"]]]
    assert "Set" not in json.dumps(reading)
