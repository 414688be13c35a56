"""Settings: a stack file becomes one model, and all its problems are reported at once."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import pytest

from infra import errors, kubernetes_versions
from infra.checks import find_warnings
from infra.errors import SettingsError
from infra.settings import Settings
from infra.stack_config import current, read
from tests.infra.mock_engine import TODAY, settings_of

ME = "arn:aws:iam::123456789012:role/me"
CI = {"repository": "example/spotmpi", "state_bucket": "example-state"}
OWN = {"file_system_id": "fs-0123abcd", "access_point_id": "fsap-0123abcd"}
BUDGET = {"monthly_usd": 100, "email": "me@example.org"}
GROUP = {"name": "g4dn", "type": "g4dn.xlarge", "max": 2, "placement_group": False}


def group(**values: Any) -> dict[str, Any]:
    return {**GROUP, **values}


def block(**values: Any) -> dict[str, Any]:
    return group(market="capacity-block", reservation="cr-0123456789abcdef0", **values)


def groups(count: int, most: int) -> list[dict[str, Any]]:
    return [group(name=f"g{index}", max=most) for index in range(count)]


def problems(stack: str, settings: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """The problems of a configuration: key to (value, remedy); `spotmpi:` is left out of keys."""
    base = {"aws:region": "us-east-1", "zones": ["us-east-1a"], "access": ["198.51.100.7/32"], "groups": [GROUP]}
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
    assert (settings.cluster.version, settings.network.cidr, settings.storage.keep) == ("1.36", "10.0.0.0/16", False)
    assert settings.groups[0].market == "spot"
    assert settings.other_zone == "us-east-1b"
    assert settings_of("lab", zones=["us-east-1d"]).other_zone == "us-east-1a"


def test_the_program_reads_what_pulumi_passes_to_it_and_finds_unknown_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    group = {"name": "g", "type": "g4dn.xlarge", "max": 1}
    config = {"aws:region": "us-east-1", "spotmpi:zones": '["us-east-1a"]', "spotmpi:groups": json.dumps([group])}
    config["spotmpi:access"] = json.dumps(["198.51.100.7/32"])
    monkeypatch.setattr("pulumi.get_stack", lambda: "lab")
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(config))
    assert current().groups[0].type == "g4dn.xlarge"
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({**config, "spotmpi:colour": "red"}))
    with pytest.raises(SettingsError, match="colour"):
        current()


def test_an_account_keeps_its_leading_zero_and_a_version_stays_text() -> None:
    settings = settings_of("lab", account="012345678901", cluster={"version": "1.34"})
    assert (settings.account, settings.cluster.version) == ("012345678901", "1.34")


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"aws:region": None}, "aws:region", "set it"),
    ({"aws:region": "virginia"}, "aws:region", "write a region such as us-east-1"),
    ({"aws:region": "cn-north-1", "zones": ["cn-north-1a"]}, "aws:region", "ARNs of China, GovCloud and the like"),
    ({"aws:region": "us-iso-east-1", "zones": ["us-iso-east-1a"]}, "aws:region", "ARNs of China, GovCloud"),
    ({"aws:region": "eu-isoe-west-1", "zones": ["eu-isoe-west-1a"]}, "aws:region", "ARNs of China, GovCloud"),
    ({"aws:region": None}, "aws:region", "set it: pulumi config set aws:region VALUE"),
    ({"zones": None}, "zones", "set it: pulumi config set --path 'zones[0]' VALUE"),
    ({"groups": [{"name": "g", "type": "g4dn.xlarge"}]}, "groups.0.max", "set --path 'groups[0].max' VALUE"),
    ({"zones": "us-east-1a"}, "zones", "write a list, such as [a, b]"),
    ({"groups": {"name": "g"}}, "groups", "write a list"),
    ({"groups": ["g"]}, "groups.0", "write its keys below it, each with a value"),
    ({"groups": [group(max="4")]}, "groups.0.max", "write a whole number, without quotes"),
    ({"groups": [group(max=True)]}, "groups.0.max", "write a whole number, without quotes"),
    ({"groups": [group(efa="no")]}, "groups.0.efa", "write true or false, without quotes"),
    ({"storage": {"keep": "yes"}}, "storage.keep", "write true or false, without quotes"),
    ({"storage": {"keep": 1}}, "storage.keep", "write true or false, without quotes"),
    ({"tags": {"cost": 12}}, "tags.cost", "write text, in quotes"),
    ({"tags": ["cost"]}, "tags", "write its keys below it, each with a value"),
    ({"cluster": {"version": 1.36}}, "cluster.version", "write text, in quotes"),
    ({"cluster": {"system": None}}, "cluster.system", "write its keys below it, each with a value, or remove it"),
    ({"zones": []}, "zones", "tuple should have at least 1 item"),
    ({"zone": "us-east-1a"}, "zone", "unknown setting; use one of:"),
    ({"zones": ["us-west-2a"]}, "zones.0", "use a zone of region us-east-1"),
    ({"zones": ["us-east-1a", "us-east-1-bos-1a"]}, "zones.1", "use a zone of region us-east-1"),
    ({"zones": ["us-east-1A"]}, "zones.0", "use a zone of region us-east-1"),
    ({"zones": ["us-east-1a", "us-east-1b", "us-east-1a"]}, "zones.2", "listed twice, remove one"),
    ({"zones": ["us-east-1a", "us-east-1z"]}, "zones", "remove it: the network has no subnet for it"),
    ({"groups": [group(zones=["us-east-1b"])]}, "groups.0.zones", "(us-east-1a), or add it to `zones`"),
    ({"groups": [group(zones=[""])]}, "groups.0.zones", "(us-east-1a), or add it to `zones`"),
    ({"groups": [group(zones=["us-east-1a"] * 2)]}, "groups.0.zones", "list each zone once"),
    ({"groups": [group(max=10**30)]}, "groups.0.max", "less than or equal to 100000"),
    (
        {"zones": ["us-east-1a", "us-east-1b"], "groups": [group(), group(name="g4dn-b", zones=["us-east-1a"])]},
        "groups.1.name",
        "use a name that no other group has",
    ),
    (
        {"zones": ["us-east-1a", "us-east-1b", "us-east-1c"], "groups": [group(max=410)]},
        "network.cidr",
        "room for 407 of 410 nodes in us-east-1c with 10 addresses each: lower the max of the groups",
    ),
    (
        {"zones": ["us-east-1a", "us-east-1b"], "groups": [group(max=24)], "network": {"cidr": "10.0.0.0/21"}},
        "network.cidr",
        "room for 23 of 24 nodes in us-east-1b with 10 addresses each: use a /20 in a new stack",
    ),
    ({"second_zone": "us-east-1a"}, "second_zone", "use a zone other than the first"),
    ({"second_zone": "eu-west-1a"}, "second_zone", "use a zone of region us-east-1"),
    ({"account": "1234"}, "account", "write the 12 digits of an account"),
    ({"access": ["home"]}, "access.0", "write a range such as 198.51.100.0/24"),
    ({"cluster": {"addon_versions": {"coredns": "1"}}}, "cluster.addon_versions.coredns", "such as v1"),
    ({"access": None}, "access", "list the addresses that may reach the Kubernetes API"),
    ({"access": ["0.0.0.0/0"]}, "access.0", "too wide; list your own addresses"),
    ({"access": ["10.1.2.3/8"]}, "access.0", "first address of a range"),
    (
        {"access": ["192.168.1.0/24"]},
        "access.0",
        "private or reserved; EKS sees your public address: pulumi",
    ),
    ({"access": ["240.0.0.0/8"]}, "access.0", "private or reserved"),
    ({"access": ["224.0.0.0/8"]}, "access.0", "private or reserved"),
    ({"access": ["0.0.0.0/8"]}, "access.0", "private or reserved"),
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
    ({"groups": [group(name="G4")]}, "groups.0.name", "use up to 16 lower-case letters"),
    ({"groups": [group(type="g4dn.huge")]}, "groups.0.type", "use one of: g4dn.12xlarge"),
    ({"groups": [group(type="z9.large")]}, "groups.0.type", ".venv/bin/python scripts/instance-types z9.large"),
    ({"groups": [group(type="p2.xlarge")]}, "groups.0.type", "no current EKS GPU image supports K80"),
    ({"groups": [group(type="t3.large", placement_group=True)]}, "groups.0.placement_group", "does not"),
    ({"groups": [group(efa=True)]}, "groups.0.efa", "g4dn.xlarge has no Elastic Fabric Adapter"),
    ({"groups": [group(type="p4d.24xlarge", efa=True)]}, "groups.0.efa", "network.private: true"),
    ({"groups": [group(type="hpc7a.96xlarge")]}, "groups.0.market", "no spot market for hpc7a.96xlarge"),
    ({"groups": [group(type="t3.nano")]}, "groups.0.type", "its 4 pods are taken by the node's own"),
    ({"groups": [group(disk_throughput=100)]}, "groups.0.disk_throughput", "greater than or equal to 125"),
    ({"groups": [group(market="on-demand")]}, "groups.0.market", "accelerators.on_demand: true"),
    ({"groups": [group(market="borrowed")]}, "groups.0.market", "'spot', 'on-demand' or 'capacity-block'"),
    ({"groups": [group(market="capacity-block")]}, "groups.0.reservation", "name the Capacity Block that was bought"),
    ({"groups": [group(reservation="cr-0123abcd")]}, "groups.0.reservation", "set the group's market to capacity-bl"),
    (
        {"groups": [group(market="capacity-block", reservation="cb-0123abcd")]},
        "groups.0.reservation",
        "write an id such as cr-",
    ),
    ({"groups": [block(min=1)]}, "groups.0.min", "set it to 0: before the Capacity Block starts"),
    ({"groups": [block(placement_group=True)]}, "groups.0.placement_group", "start in no placement group"),
    (
        {"zones": ["us-east-1a", "us-east-1b"], "storage": {"one_zone": False}, "groups": [block()]},
        "groups.0.zones",
        "name one, that of the Capacity Block",
    ),
    ({"cluster": {"system": {"type": "p3.2xlarge"}}}, "cluster.system.type", "without GPUs"),
    ({"cluster": {"version": "latest"}}, "cluster.version", "write a minor version such as 1.35"),
    ({"cluster": {"version": "1.30"}}, "cluster.version", "use one of 1.31 to 1.37, or a later"),
    ({"cluster": {"version": "1.41"}}, "cluster.version", "that EKS offers, up to 1.40"),
    ({"groups": [group(ami_release="1.35")]}, "groups.0.ami_release", "write a release such as 1."),
    ({"groups": [group(ami_release="1.37.0-20261110")]}, "groups.0.ami_release", "newer than the"),
    ({"groups": [group(ami_release="1.32.9-20251001")]}, "groups.0.ami_release", "1.33 or newer"),
    (
        {"cluster": {"system": {"ami_release": "1.37.0-20261110"}}},
        "cluster.system.ami_release",
        "`spotmpi upgrade` raises both in order",
    ),
    ({"namespace": "kube-system"}, "namespace", "reserved; use another name"),
    ({"images": ["chainermn", "chainermn"]}, "images.1", "listed twice"),
    ({"images": ["own--image"]}, "images.0", "single hyphens: ECR takes no other names"),
    ({"tags": {"aws:owner": "me"}}, "tags.aws:owner", "without aws:"),
    ({"tags": {"spotmpi:environment": "other"}}, "tags.spotmpi:environment", "or spotmpi:"),
    ({"tags": {"AWS:owner": "me"}}, "tags.AWS:owner", "without aws:"),
    ({"tags": {"Spotmpi:environment": "other"}}, "tags.Spotmpi:environment", "or spotmpi:"),
    ({"tags": {"owner": "Aws:me"}}, "tags.owner", "use a value without aws: at its beginning"),
    ({"tags": {"note": "x" * 300}}, "tags.note", "shorten it by 44"),
    ({"tags": {"team": "R&D"}}, "tags.team", "use letters, digits, spaces"),
    ({"tags": {f"key{index}": "" for index in range(41)}}, "tags", "use at most 40"),
    ({"tags": {"Team": "a", "team": "b"}}, "tags.team", "remove it or Team: to IAM these are the same key"),
    ({"cluster": {"admins": ["alice"]}}, "cluster.admins.0", "write the ARN of a role or user"),
    ({"cluster": {"admins": ["arn:aws:iam::123456789012:role/*"]}}, "cluster.admins.0", "write the ARN of"),
    ({"cluster": {"users": ["arn:aws-cn:iam::123456789012:role/me"]}}, "cluster.users.0", "write the ARN of"),
    ({"cluster": {"addon_versions": {"core-dns": "v1.12.4-eksbuild.1"}}}, "cluster.addon_versions.core-dns", "coredns"),
    (
        {"cluster": {"addon_versions": {"coredns": "1.12.4"}}},
        "cluster.addon_versions.coredns",
        "write a version such as",
    ),
    ({"storage": {"file_system_id": "fs-0123abcd"}}, "storage", "set both"),
    ({"storage": {"keep": True, "backup": True}}, "storage.backup", "or set it in stack lab-data: this stack would"),
    ({"storage": {"keep": True, "one_zone": False}}, "storage.one_zone", "or set it in stack lab-data"),
    ({"storage": {**OWN, "backup": True}}, "storage.backup", "or set it in AWS, for a file system of your own"),
    ({"storage": {**OWN, "keep": True}}, "storage.file_system_id", "or set storage.keep to false"),
    ({"kind": "data", "groups": None, "storage": {"keep": True}}, "storage.keep", "set it in the stack that mounts"),
    ({"kind": "data", "groups": None, "storage": {"mount_options": []}}, "storage.mount_options", "that mounts"),
    ({"storage": {"size_gib": 2048}}, "storage.size_gib", "unknown setting"),
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
    (
        {"groups": [block()], "queueing": {"enabled": True, "teams": [{"name": "a", "gpus": 0}]}},
        "queueing.enabled",
        "queues share no nodes of Capacity Blocks",
    ),
    ({"budget": {"monthly_usd": 100, "email": "me"}}, "budget.email", "write an address such as"),
    ({"budget": {**BUDGET, "monthly_usd": 0.001}}, "budget.monthly_usd", "greater than or equal to 0.01"),
    ({"ci": CI}, "ci", "move it to a stack with `kind: account`"),
    ({"kind": "data", "groups": None, "ci": CI}, "ci", "`kind: account`: this one has storage alone"),
    ({"kind": "data", "groups": None, "budget": BUDGET}, "budget", "`kind: compute`: this one has storage alone"),
    ({"kind": "data"}, "groups", "`kind: compute`: this one has storage alone"),
    ({"kind": "data", "groups": None, "network": {"private": True}}, "network", "this one has storage alone"),
    ({"kind": "account", "groups": None}, "ci", "set ci.repository and ci.state_bucket"),
    ({"kind": "account", "groups": None, "ci": CI, "budget": BUDGET}, "budget", "`kind: compute`"),
    ({"kind": "account", "groups": None, "ci": CI, "storage": {"keep": True}}, "storage", "the roles of CI alone"),
    ({"kind": "account", "groups": None, "ci": {**CI, "provider_arn": "github"}}, "ci.provider_arn", "write arn:"),
    ({"sources": {"dcgm-exporter": {"tag": "4.4.2"}}}, "sources.dcgm-exporter", "set image and tag too"),
    ({"sources": {"helm": {"version": "1"}}}, "sources.helm", "use one of: cluster-autoscaler"),
    ({"sources": {"kueue": {"colour": "red"}}}, "sources.kueue.colour", "use one of: chart"),
]


@pytest.mark.parametrize(("config", "key", "remedy"), CASES)
def test_an_invalid_setting_is_reported_with_its_remedy(config: dict[str, Any], key: str, remedy: str) -> None:
    reported = problems("lab", config)
    assert key in reported, reported
    assert remedy in reported[key][1]


@pytest.mark.parametrize("cidr", ["127.0.0.0/16", "169.254.0.0/16", "240.0.0.0/16", "192.0.2.0/24", "198.18.0.0/16"])
def test_a_vpc_has_addresses_that_are_for_private_networks(cidr: str) -> None:
    value, remedy = problems("lab", {"network": {"cidr": cidr}})["network.cidr"]
    assert value == cidr and "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10" in remedy


@pytest.mark.parametrize("cidr", ["10.100.0.0/16", "172.31.0.0/20", "192.168.4.0/22", "100.127.0.0/16"])
def test_every_private_range_is_accepted(cidr: str) -> None:
    assert settings_of("lab", network={"cidr": cidr}).network.cidr == cidr


@pytest.mark.parametrize(
    ("system", "queueing", "room"),
    [
        ({"type": "t3.nano"}, False, "each can run 0, and 8 have to fit on 2"),
        ({"type": "t3.micro", "nodes": 10}, False, "each can run 0, and 8 have to fit on 10"),
        ({"type": "t3.small", "nodes": 1}, False, "each can run 6, and 8 have to fit on 1"),
        ({"type": "c5.large", "nodes": 1}, True, None),  # 29 pods
        ({"type": "t3.small", "nodes": 2}, True, None),
    ],
)
def test_system_nodes_have_room_for_the_pods_that_run_on_them(
    system: dict[str, Any], queueing: bool, room: str | None
) -> None:
    teams = [{"name": "a", "gpus": 1}] if queueing else []
    values = {"cluster": {"system": system}, "queueing": {"enabled": queueing, "teams": teams}}
    if room is None:
        assert settings_of("lab", **values)
    else:
        value, remedy = problems("lab", values)["cluster.system.type"]
        assert value == system["type"] and room in remedy


@pytest.mark.parametrize("kind", ["g5.8xlarge", "g6.8xlarge", "c5n.18xlarge", "g4dn.8xlarge"])
def test_efa_with_one_interface_needs_no_private_network(kind: str) -> None:
    """EC2 gives a public address to a machine with a single interface."""
    assert settings_of("lab", groups=[group(type=kind, efa=True)]).groups[0].efa


def test_only_the_first_interface_of_an_efa_node_takes_an_address() -> None:
    big = {"network": {"cidr": "10.0.0.0/24", "private": True}, "groups": [group(type="p5.48xlarge", efa=True, max=8)]}
    assert settings_of("lab", **big).groups[0].max == 8
    big["groups"][0]["max"] = 9  # type: ignore[index]
    assert "room for 10 of 11 nodes" in problems("lab", big)["network.cidr"][1]


def test_all_problems_are_reported_at_once_with_their_values() -> None:
    invalid = {"zones": ["eu-west-1a"], "access": ["0.0.0.0/0"], "groups": [group(min=9)]}
    reported = problems("lab", invalid)
    assert {key: value for key, (value, _) in reported.items()} == {
        "zones.0": "eu-west-1a",
        "access.0": "0.0.0.0/0",
        "groups.0.min": 9,
    }


def test_every_setting_with_a_form_has_an_example_of_it() -> None:
    schema = Settings.model_json_schema()
    tables = [schema["properties"], *(each.get("properties", {}) for each in schema["$defs"].values())]
    formed = {name for table in tables for name, each in table.items() if '"pattern"' in json.dumps(each)}
    assert formed == set(errors._FORMS)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (errors.Problem("spotmpi:zones", None, "set it"), "spotmpi:zones: set it"),
        (errors.Problem("spotmpi:a", False, "remove it"), "spotmpi:a = false: remove it"),
        (errors.Problem("spotmpi:a", 0, "remove it"), "spotmpi:a = 0: remove it"),
    ],
)
def test_a_value_is_shown_as_yaml_has_it(problem: errors.Problem, text: str) -> None:
    assert str(problem) == text


def test_the_message_has_key_value_and_remedy_line_by_line() -> None:
    with pytest.raises(SettingsError) as caught:
        read(
            "lab", {"aws:region": "us-east-1", "spotmpi:zones": '["us-east-1a"]', "spotmpi:groups": json.dumps([GROUP])}
        )
    assert str(caught.value).splitlines() == [
        "stack lab can't be built, settings to change: 1",
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


def test_arm_machines_and_types_that_ec2_no_longer_lists_give_a_warning() -> None:
    (arm,) = find_warnings(settings_of("lab", groups=[group(type="c7g.xlarge")]), TODAY)
    assert "c7g.xlarge, an Arm machine: runs need an image for it" in arm
    assert all("p3.2xlarge: EC2 no longer lists it" in warning for warning in find_warnings(settings_of("p3"), TODAY))
    assert len(find_warnings(settings_of("p3"), TODAY)) == 2


def test_metrics_of_gpus_without_gpus_give_a_warning() -> None:
    (warning,) = find_warnings(settings_of("cpu", accelerators={"dcgm": True}), TODAY)
    assert warning.startswith("spotmpi:accelerators.dcgm: no group has GPUs")
    assert find_warnings(settings_of("lab", accelerators={"dcgm": True}), TODAY) == []


def test_a_group_with_efa_gives_a_warning_about_our_images() -> None:
    without_efa = {"name": "g5", "type": "g5.48xlarge", "max": 2, "placement_group": False}
    (warning,) = find_warnings(
        settings_of("lab", groups=[{**without_efa, "efa": True}], network={"private": True}), TODAY
    )
    assert warning.startswith("spotmpi:groups: g5 has efa: true: NCCL uses it only with libfabric")
    assert find_warnings(settings_of("lab", groups=[without_efa]), TODAY) == []


@pytest.mark.parametrize(
    ("version", "today", "support"),
    [
        ("1.34", date(2026, 10, 2), None),
        ("1.34", date(2026, 10, 3), "standard support of 1.34 ends on 2026-12-02: then EKS upgrades the control plane"),
        ("1.34", date(2026, 12, 2), "standard support of 1.34 ends on 2026-12-02: then EKS upgrades the control plane"),
        ("1.34", date(2026, 12, 3), "standard support of 1.34 ended on 2026-12-02: EKS bills $0.60 an hour for the"),
        ("1.31", date(2026, 11, 26), "standard support of 1.31 ended on 2025-11-26: EKS bills $0.60 an hour for the"),
        ("1.31", date(2026, 11, 27), "EKS's support of 1.31 ended on 2026-11-26: it creates no cluster with it"),
        ("1.36", TODAY, None),
        ("1.37", date(2030, 1, 1), None),  # unknown
    ],
)
def test_a_version_whose_support_has_ended_or_soon_will_gives_a_warning_with_the_price(
    version: str, today: date, support: str | None
) -> None:
    warnings = find_warnings(settings_of("lab", cluster={"version": version}), today)
    assert len(warnings) == (support is not None)
    for warning in warnings:
        assert warning.startswith(f"spotmpi:cluster.version: {support}")
        assert warning.endswith("build a new environment with 1.36, and raise one that exists by `spotmpi upgrade lab`")


def test_the_end_of_support_is_known_of_every_version_up_to_the_default_and_is_no_matter_of_other_stacks() -> None:
    versions = kubernetes_versions
    assert list(versions.STANDARD_SUPPORT_ENDS) == [*range(versions.OLDEST, versions.DEFAULT + 1)]
    (billed,) = find_warnings(settings_of("lab", cluster={"version": "1.34"}), date(2026, 12, 3))
    assert "EKS bills $0.60 an hour for the control plane in place of $0.10, or upgrades it by itself" in billed
    later = versions.STANDARD_SUPPORT_ENDS[versions.DEFAULT] + timedelta(days=1)
    (warning,) = find_warnings(settings_of("lab"), later)
    assert f"build a new environment with 1.{versions.NEWEST}" in warning
    assert find_warnings(settings_of("g5-data"), later) == []
