"""The whole program, stack by stack."""

from __future__ import annotations

from collections import Counter
from datetime import date

import pulumi
import pytest

from infra import program
from tests.infra.mock_engine import record, run, settings_of


@pytest.mark.parametrize("stack", ["lab", "p3", "g5", "cpu", "p3-data", "g5-data"])
def test_a_stack_needs_no_look_ups_and_each_resource_has_a_component_and_a_unique_name(stack: str) -> None:
    resources = run(stack).resources
    assert run(stack).lookups == []
    assert [one.name for one in resources if not one.name.startswith(f"spotmpi-{stack}")] == []
    assert [urn for urn, count in Counter(one.urn for one in resources).items() if count > 1] == []
    at_the_root = {one.kind for one in resources if one.parent.split("::")[2] == "pulumi:pulumi:Stack"}
    loose = {kind for kind in at_the_root if not kind.startswith("spotmpi:")}
    assert loose <= {"pulumi:providers:aws", "pulumi:providers:kubernetes"}


def test_two_runs_declare_the_same() -> None:
    first, second = run("g5"), run("g5", images=["chainermn", "pytorch"])
    assert {one.urn: one.inputs for one in first.resources} == {one.urn: one.inputs for one in second.resources}


def test_ten_groups_declare_ten_times_the_resources_of_one() -> None:
    groups = [{"name": f"g{index}", "type": "g4dn.xlarge", "max": 8} for index in range(10)]
    one, two, ten = (len(run("lab", groups=groups[:count]).resources) for count in (1, 2, 10))
    assert ten == one + 9 * (two - one)


def test_components_register_what_they_provide() -> None:
    recording = run("lab")
    outputs = {urn.split("::")[2].rpartition("$")[2].split(":")[-1]: each for urn, each in recording.outputs.items()}
    assert {component: set(each) for component, each in outputs.items() if each and component != "Stack"} == {
        "Network": {"vpc_id", "node_subnet_ids", "subnet_ids"},
        "Cluster": {"name", "arn", "security_group_id", "node_role_arn"},
        "NodeGroup": {"node_groups"},
        "FileSystem": {"file_system_id", "access_point_id"},
        "Mount": {"mount_target_ids"},
        "Access": {"namespace"},
        "Volume": {"volume", "claim"},
        "Registry": {"urls"},
    }
    assert outputs["Registry"]["urls"].keys() == {"chainermn", "pytorch"}


def test_the_warnings_of_a_day_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", shown.append)
    settings = settings_of("lab", cluster={"version": "1.34"})
    record(lambda: program.build(settings, date(2026, 10, 2)))
    assert shown == []
    record(lambda: program.build(settings, date(2026, 12, 3)))
    (warning,) = shown
    assert warning.startswith("spotmpi:cluster.version: standard support of 1.34 ended on 2026-12-02")
