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


def problems(stack: str, settings: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """The problems of a configuration: key to (value, remedy); `spotmpi:` is left out of keys."""
    base = {"aws:region": "us-east-1", "zone": "us-east-1a", "access": ["198.51.100.7/32"], "groups": [GROUP]}
    config = {
        key if ":" in key else f"spotmpi:{key}": value if isinstance(value, str) else json.dumps(value)
        for key, value in {**base, **settings}.items()
        if value is not None
    }
    with pytest.raises(SettingsError) as caught:
        read(stack, config)
    return {each.key.removeprefix("spotmpi:"): (each.value, each.remedy) for each in caught.value.problems}


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
    ({"aws:region": "cn-north-1", "zone": "cn-north-1a"}, "aws:region", "ARNs of China and GovCloud differ"),
    ({"zone": None}, "zone", "set it: pulumi config set --path 'zone' VALUE"),
    ({"zone": "us-west-2a"}, "zone", "use a zone of region us-east-1"),
    ({"zone": "us-east-1-bos-1a"}, "zone", "use a zone of region us-east-1"),
    ({"second_zone": "us-east-1a"}, "second_zone", "use a zone other than `zone`"),
    ({"second_zone": "eu-west-1a"}, "second_zone", "use a zone of region us-east-1"),
    ({"account": "1234"}, "account", "does not match"),
    ({"access": None}, "access", "list the addresses that may reach the Kubernetes API"),
    ({"access": ["0.0.0.0/0"]}, "access.0", "too wide; list your own addresses"),
    ({"access": ["10.1.2.3/8"]}, "access.0", "first address of a range"),
    ({"access": ["192.168.1.0/24"]}, "access.0", "private; EKS sees your public address: pulumi config set"),
    ({"access": [f"198.51.100.{i}/32" for i in range(41)]}, "access", "EKS allows at most 40"),
    ({"colour": "red"}, "colour", "unknown setting; use one of: accelerators, access, account"),
    ({"storage": {"kept": True}}, "storage.kept", "use one of: access_point_id, backup"),
    ({"stack": "other"}, "stack", "remove it"),
    ({"network": {"cidr": "10.0.0.0/26"}}, "network.cidr", "prefix of 16 to 24"),
    ({"network": {"cidr": "10.0.0.0/8"}}, "network.cidr", "prefix of 16 to 24"),
    ({"network": {"cidr": "8.8.0.0/16"}}, "network.cidr", "use private addresses"),
    ({"groups": None}, "groups", "define at least one group"),
    ({"groups": [group(max=0)]}, "groups.0.max", "greater than or equal to 1"),
    ({"groups": [group(min=3)]}, "groups.0.min", "use at most max, which is 2"),
    ({"groups": [GROUP, GROUP]}, "groups.1.name", "no other group has"),
    ({"groups": [group(name="system")]}, "groups.0.name", "`system` is reserved"),
    ({"groups": [group(max=500), group(name="g4dn-2")]}, "groups.1.name", "no other group has"),
    ({"groups": [group(name="g4dn-2"), group(max=500)]}, "groups.1.name", "no other group has"),
    ({"groups": [group(name="G4")]}, "groups.0.name", "does not match"),
    ({"groups": [group(type="g4dn.huge")]}, "groups.0.type", "use one of g4dn.12xlarge"),
    ({"groups": [group(type="z9.large")]}, "groups.0.type", "scripts/instance-types"),
    ({"groups": [group(type="p2.xlarge")]}, "groups.0.type", "no current EKS GPU image supports K80"),
    ({"groups": [group(type="t3.large", placement_group=True)]}, "groups.0.placement_group", "does not"),
    ({"groups": [group(efa=True)]}, "groups.0.efa", "network.private: true"),
    ({"groups": [group(market="on-demand")]}, "groups.0.market", "accelerators.on_demand: true"),
    ({"groups": [group(market="borrowed")]}, "groups.0.market", "'spot' or 'on-demand'"),
    ({"cluster": {"system": {"type": "p3.2xlarge"}}}, "cluster.system.type", "without GPUs"),
    ({"cluster": {"version": "latest"}}, "cluster.version", "does not match"),
    ({"cluster": {"version": "1.30"}}, "cluster.version", "use one of 1.31 to 1.37, or a later"),
    ({"cluster": {"version": "1.41"}}, "cluster.version", "that EKS offers, up to 1.40"),
    ({"groups": [group(ami_release="1.35")]}, "groups.0.ami_release", "does not match"),
    ({"groups": [group(ami_release="1.36.0-20261110")]}, "groups.0.ami_release", "newer than the"),
    ({"groups": [group(ami_release="1.31.9-20251001")]}, "groups.0.ami_release", "1.32 or newer"),
    (
        {"cluster": {"system": {"ami_release": "1.36.0-20261110"}}},
        "cluster.system.ami_release",
        "`spotmpi upgrade` raises both in order",
    ),
    ({"namespace": "kube-system"}, "namespace", "reserved; use another name"),
    ({"images": ["chainermn", "chainermn"]}, "images.1", "listed twice"),
    ({"tags": {"aws:owner": "me"}}, "tags.aws:owner", "without aws:"),
    ({"tags": {"spotmpi:environment": "other"}}, "tags.spotmpi:environment", "or spotmpi:"),
    ({"tags": {"note": "x" * 300}}, "tags.note", "shorten it by 44"),
    ({"tags": {"team": "R&D"}}, "tags.team", "use letters, digits, spaces"),
    ({"tags": {f"key{index}": "" for index in range(41)}}, "tags", "use at most 40"),
    ({"cluster": {"admins": ["alice"]}}, "cluster.admins.0", "match the pattern ^arn:aws"),
    ({"storage": {"file_system_id": "fs-0123abcd"}}, "storage", "set both"),
    ({"storage": {"size_gib": 0}}, "storage.size_gib", "greater than or equal to 1"),
    ({"queueing": {"enabled": True}}, "queueing.teams", "define at least one team"),
    ({"queueing": {"teams": [{"name": "a", "gpus": 1}]}}, "queueing.enabled", "set it to true"),
    (
        {"queueing": {"enabled": True, "teams": [{"name": "a", "gpus": 1}, {"name": "a", "gpus": 1}]}},
        "queueing.teams.1.name",
        "no other team has",
    ),
    (
        {"queueing": {"enabled": True, "teams": [{"name": "a", "gpus": 2}, {"name": "b", "gpus": 1}]}},
        "queueing.teams",
        "assign at most 2 in total",
    ),
    ({"budget": {"monthly_usd": 100, "email": "me"}}, "budget.email", "does not match"),
    ({"sources": {"helm": {"version": "1"}}}, "sources.helm", "use one of cluster-autoscaler"),
    ({"sources": {"kueue": {"colour": "red"}}}, "sources.kueue.colour", "use one of chart"),
]


@pytest.mark.parametrize(("config", "key", "remedy"), CASES)
def test_an_invalid_setting_is_reported_with_its_remedy(config: dict[str, Any], key: str, remedy: str) -> None:
    reported = problems("lab", config)
    assert key in reported, reported
    assert remedy in reported[key][1]


def test_all_problems_are_reported_at_once_with_their_values() -> None:
    invalid = {"zone": "eu-west-1a", "access": ["0.0.0.0/0"], "groups": [group(min=9)]}
    reported = problems("lab", invalid)
    assert {key: value for key, (value, _) in reported.items()} == {
        "zone": "eu-west-1a",
        "access.0": "0.0.0.0/0",
        "groups.0.min": 9,
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
            {"network": {"cidr": "10.0.0.0/20"}, "groups": [group(max=512)]},
            "network.cidr",
            "10.0.0.0/20",
            "room for 202 of 514 nodes with 10 addresses each: use a /18 in a new stack",
        ),
        ({"groups": groups(8, 450)}, "network.cidr", "10.0.0.0/16", "no VPC is larger"),
        ({"groups": groups(30, 1)}, "groups", 31, "EKS allows 30 node groups"),
        (
            {"network": {"private": True}, "groups": [group(efa=True)]},
            "groups.0.efa",
            True,
            "set it to false: g4dn.xlarge has no Elastic Fabric Adapter",
        ),
        ({"cluster": {"admins": [ME], "users": [ME]}}, "cluster.users", ME, "listed twice, remove one"),
        ({"cluster": {"users": [ME, ME]}}, "cluster.users", ME, "listed twice, remove one"),
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
