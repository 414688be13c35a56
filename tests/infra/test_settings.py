"""Settings: a stack file becomes one model, and all its problems are reported at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.checks import find_warnings
from infra.errors import SettingsError
from infra.stack_config import read
from tests.infra.mock_engine import settings_of

ME = "arn:aws:iam::123456789012:role/me"
GROUP = {"name": "g4dn", "type": "g4dn.xlarge", "max": 2, "placement_group": False}


def group(**values: Any) -> dict[str, Any]:
    return {**GROUP, **values}


def groups(count: int, most: int) -> list[dict[str, Any]]:
    return [group(name=f"g{index}", max=most) for index in range(count)]


def problems(stack: str, config: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """The problems of a configuration: key to (value, remedy)."""
    base: dict[str, Any] = {
        "aws:region": "us-east-1",
        "spotmpi:zone": "us-east-1a",
        "spotmpi:access": ["198.51.100.7/32"],
        "spotmpi:groups": [GROUP],
    }
    merged = {key: value for key, value in {**base, **config}.items() if value is not None}
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in merged.items()}
    with pytest.raises(SettingsError) as caught:
        read(stack, text)
    return {problem.key: (problem.value, problem.remedy) for problem in caught.value.problems}


@pytest.mark.parametrize("stack", ["lab", "p3", "g5", "cpu", "p3-data", "g5-data"])
def test_every_ready_stack_is_valid(stack: str) -> None:
    assert settings_of(stack).name == f"spotmpi-{stack}"


def test_defaults_of_the_model_reach_the_settings() -> None:
    settings = settings_of("lab")
    assert (settings.cluster.version, settings.network.cidr, settings.storage.keep) == ("1.35", "10.0.0.0/16", False)
    assert settings.groups[0].market == "spot"
    assert settings.other_zone == "us-east-1b"
    assert settings_of("lab", zone="us-east-1d").other_zone == "us-east-1a"


def test_an_account_keeps_its_leading_zero_and_a_version_stays_text() -> None:
    settings = settings_of("lab", account="012345678901", cluster={"version": "1.34"})
    assert (settings.account, settings.cluster.version) == ("012345678901", "1.34")


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"aws:region": None}, "aws:region", "set it"),
    ({"aws:region": "virginia"}, "aws:region", "does not match the pattern"),
    ({"spotmpi:zone": None}, "spotmpi:zone", "set it: pulumi config set --path 'zone' VALUE"),
    ({"spotmpi:zone": "us-west-2a"}, "spotmpi:zone", "use a zone of region us-east-1"),
    ({"spotmpi:zone": "us-east-1-bos-1a"}, "spotmpi:zone", "use a zone of region us-east-1"),
    ({"spotmpi:second_zone": "us-east-1a"}, "spotmpi:second_zone", "use a zone other than `zone`"),
    ({"spotmpi:second_zone": "eu-west-1a"}, "spotmpi:second_zone", "use a zone of region us-east-1"),
    ({"spotmpi:account": "1234"}, "spotmpi:account", "does not match"),
    ({"spotmpi:access": None}, "spotmpi:access", "list the addresses that may reach the Kubernetes API"),
    ({"spotmpi:access": ["0.0.0.0/0"]}, "spotmpi:access.0", "too wide; list your own addresses"),
    ({"spotmpi:access": ["10.1.2.3/8"]}, "spotmpi:access.0", "first address of a range"),
    ({"spotmpi:access": [f"198.51.100.{i}/32" for i in range(41)]}, "spotmpi:access", "EKS allows at most 40"),
    ({"spotmpi:colour": "red"}, "spotmpi:colour", "unknown setting; use one of: accelerators, access, account"),
    ({"spotmpi:storage": {"kept": True}}, "spotmpi:storage.kept", "use one of: access_point_id, backup"),
    ({"spotmpi:stack": "other"}, "spotmpi:stack", "remove it"),
    ({"spotmpi:network": {"cidr": "10.0.0.0/26"}}, "spotmpi:network.cidr", "prefix of 16 to 24"),
    ({"spotmpi:network": {"cidr": "10.0.0.0/8"}}, "spotmpi:network.cidr", "prefix of 16 to 24"),
    ({"spotmpi:network": {"cidr": "8.8.0.0/16"}}, "spotmpi:network.cidr", "use private addresses"),
    ({"spotmpi:groups": None}, "spotmpi:groups", "define at least one group"),
    ({"spotmpi:groups": [group(max=0)]}, "spotmpi:groups.0.max", "greater than or equal to 1"),
    ({"spotmpi:groups": [group(min=3)]}, "spotmpi:groups.0.min", "use at most max, which is 2"),
    ({"spotmpi:groups": [GROUP, GROUP]}, "spotmpi:groups.1.name", "no other group has"),
    ({"spotmpi:groups": [group(name="system")]}, "spotmpi:groups.0.name", "`system` is reserved"),
    ({"spotmpi:groups": [group(max=500), group(name="g4dn-2")]}, "spotmpi:groups.1.name", "no other group has"),
    ({"spotmpi:groups": [group(name="g4dn-2"), group(max=500)]}, "spotmpi:groups.1.name", "no other group has"),
    ({"spotmpi:groups": [group(name="G4")]}, "spotmpi:groups.0.name", "does not match"),
    ({"spotmpi:groups": [group(type="g4dn.huge")]}, "spotmpi:groups.0.type", "use one of g4dn.12xlarge"),
    ({"spotmpi:groups": [group(type="z9.large")]}, "spotmpi:groups.0.type", "scripts/instance-types"),
    ({"spotmpi:groups": [group(type="p2.xlarge")]}, "spotmpi:groups.0.type", "no current EKS GPU image supports K80"),
    (
        {"spotmpi:groups": [group(type="t3.large", placement_group=True)]},
        "spotmpi:groups.0.placement_group",
        "does not",
    ),
    ({"spotmpi:groups": [group(efa=True)]}, "spotmpi:groups.0.efa", "network.private: true"),
    ({"spotmpi:groups": [group(market="on-demand")]}, "spotmpi:groups.0.market", "accelerators.on_demand: true"),
    ({"spotmpi:groups": [group(market="borrowed")]}, "spotmpi:groups.0.market", "'spot' or 'on-demand'"),
    ({"spotmpi:cluster": {"system": {"type": "p3.2xlarge"}}}, "spotmpi:cluster.system.type", "without GPUs"),
    ({"spotmpi:cluster": {"version": "latest"}}, "spotmpi:cluster.version", "does not match"),
    ({"spotmpi:cluster": {"version": "1.30"}}, "spotmpi:cluster.version", "use one of 1.31, 1.32"),
    ({"spotmpi:cluster": {"version": "1.99"}}, "spotmpi:cluster.version", "infra/kubernetes_versions.py lists"),
    ({"spotmpi:groups": [group(ami_release="1.35")]}, "spotmpi:groups.0.ami_release", "does not match"),
    ({"spotmpi:groups": [group(ami_release="1.36.0-20261110")]}, "spotmpi:groups.0.ami_release", "newer than the"),
    ({"spotmpi:groups": [group(ami_release="1.31.9-20251001")]}, "spotmpi:groups.0.ami_release", "1.32 or newer"),
    (
        {"spotmpi:cluster": {"system": {"ami_release": "1.36.0-20261110"}}},
        "spotmpi:cluster.system.ami_release",
        "`spotmpi upgrade` raises both in order",
    ),
    ({"spotmpi:namespace": "kube-system"}, "spotmpi:namespace", "reserved; use another name"),
    ({"spotmpi:images": ["chainermn", "chainermn"]}, "spotmpi:images.1", "listed twice"),
    ({"spotmpi:tags": {"aws:owner": "me"}}, "spotmpi:tags.aws:owner", "without aws:"),
    ({"spotmpi:tags": {"spotmpi:environment": "other"}}, "spotmpi:tags.spotmpi:environment", "or spotmpi:"),
    ({"spotmpi:tags": {"note": "x" * 300}}, "spotmpi:tags.note", "shorten it by 44"),
    ({"spotmpi:tags": {f"key{index}": "" for index in range(41)}}, "spotmpi:tags", "use at most 40"),
    ({"spotmpi:cluster": {"admins": ["alice"]}}, "spotmpi:cluster.admins.0", "match the pattern ^arn:aws"),
    ({"spotmpi:storage": {"file_system_id": "fs-0123abcd"}}, "spotmpi:storage", "set both"),
    ({"spotmpi:storage": {"size_gib": 0}}, "spotmpi:storage.size_gib", "greater than or equal to 1"),
    ({"spotmpi:queueing": {"enabled": True}}, "spotmpi:queueing.teams", "define at least one team"),
    ({"spotmpi:queueing": {"teams": [{"name": "a", "gpus": 1}]}}, "spotmpi:queueing.enabled", "set it to true"),
    (
        {"spotmpi:queueing": {"enabled": True, "teams": [{"name": "a", "gpus": 1}, {"name": "a", "gpus": 1}]}},
        "spotmpi:queueing.teams.1.name",
        "no other team has",
    ),
    (
        {"spotmpi:queueing": {"enabled": True, "teams": [{"name": "a", "gpus": 2}, {"name": "b", "gpus": 1}]}},
        "spotmpi:queueing.teams",
        "assign at most 2 in total",
    ),
    ({"spotmpi:budget": {"monthly_usd": 100, "email": "me"}}, "spotmpi:budget.email", "does not match"),
    ({"spotmpi:sources": {"helm": {"version": "1"}}}, "spotmpi:sources.helm", "use one of cluster-autoscaler"),
    ({"spotmpi:sources": {"kueue": {"colour": "red"}}}, "spotmpi:sources.kueue.colour", "use one of chart"),
]


@pytest.mark.parametrize(("config", "key", "remedy"), CASES)
def test_an_invalid_setting_is_reported_with_its_remedy(config: dict[str, Any], key: str, remedy: str) -> None:
    reported = problems("lab", config)
    assert key in reported, reported
    assert remedy in reported[key][1]


def test_all_problems_are_reported_at_once_with_their_values() -> None:
    invalid = {"spotmpi:zone": "eu-west-1a", "spotmpi:access": ["0.0.0.0/0"], "spotmpi:groups": [group(min=9)]}
    reported = problems("lab", invalid)
    assert {key: value for key, (value, _) in reported.items()} == {
        "spotmpi:zone": "eu-west-1a",
        "spotmpi:access.0": "0.0.0.0/0",
        "spotmpi:groups.0.min": 9,
    }


def test_the_message_has_key_value_and_remedy_line_by_line() -> None:
    with pytest.raises(SettingsError) as caught:
        read("lab", {"aws:region": "us-east-1", "spotmpi:zone": "us-east-1a", "spotmpi:groups": json.dumps([GROUP])})
    assert str(caught.value).splitlines() == [
        "stack 'lab' can't be built, settings to change: 1",
        "  - spotmpi:access = []: list the addresses that may reach the Kubernetes API: "
        "pulumi config set --path 'access[0]' \"$(curl -s https://checkip.amazonaws.com)/32\"",
    ]


@pytest.mark.parametrize(
    ("stack", "remedy"),
    [
        ("a-very-long-stack-name-for-one-experiment", "shorten the stack or group name by"),
        *((stack, "lower-case letters") for stack in ("Lab", "my_lab", "lab-", "a--b")),
    ],
)
def test_a_stack_name_that_is_too_long_or_no_label_is_refused(stack: str, remedy: str) -> None:
    assert remedy in problems(stack, {})["stack"][1]


@pytest.mark.parametrize(
    ("config", "key", "value", "remedy"),
    [
        (
            {"spotmpi:network": {"cidr": "10.0.0.0/20"}, "spotmpi:groups": [group(max=512)]},
            "spotmpi:network.cidr",
            "10.0.0.0/20",
            "room for 202 of 514 nodes with 10 addresses each: use a /18 in a new stack",
        ),
        ({"spotmpi:groups": groups(8, 450)}, "spotmpi:network.cidr", "10.0.0.0/16", "no VPC is larger"),
        ({"spotmpi:groups": groups(30, 1)}, "spotmpi:groups", 31, "EKS allows 30 node groups"),
        (
            {"spotmpi:network": {"private": True}, "spotmpi:groups": [group(efa=True)]},
            "spotmpi:groups.0.efa",
            True,
            "set it to false: g4dn.xlarge has no Elastic Fabric Adapter",
        ),
        ({"spotmpi:cluster": {"admins": [ME], "users": [ME]}}, "spotmpi:cluster.users", ME, "listed twice, remove one"),
        ({"spotmpi:cluster": {"users": [ME, ME]}}, "spotmpi:cluster.users", ME, "listed twice, remove one"),
    ],
    ids=["addresses", "any VPC", "node groups", "EFA behind NAT", "admin and user", "user twice"],
)
def test_settings_that_do_not_fit_together_are_one_problem_with_value_and_remedy(
    config: dict[str, Any], key: str, value: object, remedy: str
) -> None:
    reported = problems("lab", config)
    assert list(reported) == [key]
    assert reported[key][0] == value and remedy in reported[key][1]


def test_a_raised_quota_is_a_setting_and_512_nodes_fit_the_default_network() -> None:
    assert len(settings_of("lab", groups=groups(100, 1), cluster={"max_node_groups": 101}).groups) == 100
    assert settings_of("lab", groups=[group(max=512)]).groups[0].max == 512


def test_a_group_with_efa_gives_a_warning_about_our_images() -> None:
    without_efa = {"name": "g5", "type": "g5.48xlarge", "max": 2, "placement_group": False}
    (warning,) = find_warnings(settings_of("lab", groups=[{**without_efa, "efa": True}], network={"private": True}))
    assert warning.startswith("spotmpi:groups: g5 has efa: true: NCCL uses it only with libfabric")
    assert find_warnings(settings_of("lab", groups=[without_efa])) == []
