"""`spotmpi upgrade` with the real Pulumi engine, beside a stand-in EKS that refuses what EKS refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.up import UpOptions, up
from spotmpi.environments.upgrade import Request, upgrade
from tests.engine.engine import Engine
from tests.engine.journey import ACCESS
from tests.engine.life import Life
from tests.engine.providers.aws_cluster import ADDON
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP
from tests.engine.providers.cloud import Cloud

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(900)]

OLD = "1.34.6-20260501"
NEWEST = {"1.34": "1.34.9-20261101", "1.35": "1.35.4-20261110", "1.36": "1.36.1-20261110"}


@pytest.fixture
def life(engine: Engine, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
    monkeypatch.chdir(engine.project)
    made = Life(engine, cloud)
    groups = engine.config("lab")["spotmpi:groups"]
    cluster = {"version": "1.34", "system": {"ami_release": OLD}}
    old = {"spotmpi:groups": [{**groups[0], "ami_release": OLD}], "spotmpi:cluster": cluster}
    engine.configure("lab", {"spotmpi:access": ACCESS, **old})
    up("lab", made.hands, UpOptions(images=False))
    made.did.clear()
    cloud.script.calls.clear()
    return made


def changed(life: Life) -> list[str]:
    """The types that were updated since the last look, in order, each once."""
    found = [call.token for call in life.cloud.script.changes()]
    assert {call.method for call in life.cloud.script.changes()} <= {"update"}
    life.cloud.script.calls.clear()
    return list(dict.fromkeys(found))


def running(life: Life) -> dict[str, set[str]]:
    records = life.cloud.records
    return {
        "control plane": {str(each.outputs["version"]) for each in records.of(CLUSTER)},
        "add-ons": {str(each.outputs["addonVersion"]) for each in records.of(ADDON)},
        "nodes": {str(each.outputs["releaseVersion"]) for each in records.of(NODE_GROUP)},
    }


def go(life: Life, **wishes: Any) -> None:
    upgrade("lab", life.hands, Request(**wishes), lambda plan: None)


def test_an_upgrade_moves_control_plane_add_ons_and_nodes_in_this_order_and_nothing_else(life: Life) -> None:
    path = life.engine.project / "stacks" / "Pulumi.lab.yaml"
    before = path.read_bytes()
    go(life, dry_run=True)
    assert changed(life) == [] and path.read_bytes() == before and life.did == []

    go(life)
    assert changed(life) == [CLUSTER, ADDON, NODE_GROUP]
    assert running(life) == {
        "control plane": {"1.35"},
        "add-ons": {"v1.35.1-eksbuild.2"},
        "nodes": {NEWEST["1.35"]},
    }
    assert life.did == ["agree", "agree"]

    # What an upgrade has written is what runs: the next `up` finds nothing to do.
    up("lab", life.hands, UpOptions(images=False))
    assert changed(life) == [] and "agree" not in life.did[2:]

    # The next one, with the nodes left where they are.
    go(life, nodes=False)
    assert changed(life) == [CLUSTER, ADDON]
    assert running(life)["control plane"] == {"1.36"} and running(life)["nodes"] == {NEWEST["1.35"]}
    up("lab", life.hands, UpOptions(images=False))
    assert changed(life) == []


@pytest.mark.nightly("an environment of its own; test_standin_versions refuses the same without an engine")
def test_a_skipped_minor_version_that_is_written_by_hand_is_refused_by_eks_and_changes_nothing(life: Life) -> None:
    life.engine.configure("lab", {"spotmpi:cluster": {"version": "1.36", "system": {"ami_release": OLD}}})
    with pytest.raises(SpotmpiError, match="`pulumi up --stack lab` failed"):
        up("lab", life.hands, UpOptions(images=False))
    assert any("Unsupported Kubernetes minor version update from 1.34 to 1.36" in line for line in life.said)
    assert changed(life) == [] and running(life)["control plane"] == {"1.34"}


@pytest.mark.nightly("an environment of its own; tests/infra and test_upgrade hold both halves")
def test_a_version_that_the_program_does_not_know_fails_in_the_preview_and_leaves_the_file(life: Life) -> None:
    (cluster,) = life.cloud.records.of(CLUSTER)
    life.cloud.records.change(cluster, outputs={**cluster.outputs, "version": "1.36"})
    go(life)
    changed(life)
    path = life.engine.project / "stacks" / "Pulumi.lab.yaml"
    before = path.read_bytes()
    with pytest.raises(SpotmpiError, match="`pulumi preview --stack lab` failed"):
        go(life, to="1.37")
    assert any("spotmpi:cluster.version = '1.37': use one of" in line for line in life.said)
    assert changed(life) == [] and path.read_bytes() == before


@pytest.mark.nightly("an environment of its own; test_pins holds what is written without an engine")
def test_nodes_that_a_new_launch_template_moved_are_not_rolled_back_by_the_next_up(life: Life) -> None:
    groups = life.engine.config("lab")["spotmpi:groups"]
    life.engine.configure("lab", {"spotmpi:groups": [{**groups[0], "disk_gib": 200}]})
    up("lab", life.hands, UpOptions(images=False))
    assert running(life)["nodes"] == {OLD, NEWEST["1.34"]}
    changed(life)

    up("lab", life.hands, UpOptions(images=False))
    assert changed(life) == []
    assert f"stacks/Pulumi.lab.yaml now says what runs: AMI release {NEWEST['1.34']} on g4dn" in life.said


@pytest.mark.nightly("an environment of its own; test_pins holds what is written without an engine")
def test_a_control_plane_that_eks_upgraded_by_itself_is_followed(life: Life) -> None:
    (cluster,) = life.cloud.records.of(CLUSTER)
    life.cloud.records.change(cluster, outputs={**cluster.outputs, "version": "1.35"})
    go(life)
    assert CLUSTER not in changed(life)
    assert running(life) == {
        "control plane": {"1.35"},
        "add-ons": {"v1.35.1-eksbuild.2"},
        "nodes": {NEWEST["1.35"]},
    }
