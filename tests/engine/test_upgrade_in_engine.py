"""`spotmpi upgrade` with the real Pulumi engine, beside a stand-in EKS that refuses what EKS refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.up import UpOptions, up
from spotmpi.environments.upgrade import UpgradeOptions, upgrade
from tests.engine.engine import Engine
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.aws_cluster import ADDON
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP
from tests.engine.providers.cloud import Cloud
from tests.engine.stack_lifecycle import ACCESS
from tests.tools import REPOSITORY

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(900)]

OLD = "1.34.6-20260501"
RELEASE = "kubernetes:helm.sh/v3:Release"
NEWEST = {"1.34": "1.34.9-20261101", "1.35": "1.35.4-20261110", "1.36": "1.36.1-20261110"}


@pytest.fixture
def lab(engine: Engine, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineEnvironment:
    monkeypatch.setenv("SPOTMPI_STATE", str(tmp_path / "kept"))
    monkeypatch.chdir(engine.project)
    environment = EngineEnvironment(engine, cloud)
    groups = engine.config("lab")["spotmpi:groups"]
    cluster = {"version": "1.34", "system": {"ami_release": OLD}}
    old = {"spotmpi:groups": [{**groups[0], "ami_release": OLD}], "spotmpi:cluster": cluster}
    engine.configure("lab", {"spotmpi:access": ACCESS, **old})
    up("lab", environment.dependencies, UpOptions(images=False))
    environment.actions.clear()
    cloud.script.calls.clear()
    return environment


def new_changes(lab: EngineEnvironment) -> list[str]:
    """The types that were updated since the last look, in order, each once."""
    tokens = [call.token for call in lab.cloud.script.changes()]
    assert {call.method for call in lab.cloud.script.changes()} <= {"update"}
    lab.cloud.script.calls.clear()
    return list(dict.fromkeys(tokens))


def running(lab: EngineEnvironment) -> dict[str, set[str]]:
    records = lab.cloud.records
    return {
        "control plane": {str(each.outputs["version"]) for each in records.of(CLUSTER)},
        "add-ons": {str(each.outputs["addonVersion"]) for each in records.of(ADDON)},
        "nodes": {str(each.outputs["releaseVersion"]) for each in records.of(NODE_GROUP)},
    }


def upgrade_lab(lab: EngineEnvironment, **options: Any) -> None:
    upgrade("lab", lab.dependencies, UpgradeOptions(**options), lambda plan: None)


def test_an_upgrade_moves_control_plane_add_ons_and_nodes_in_this_order_and_nothing_else(
    lab: EngineEnvironment,
) -> None:
    path = lab.engine.project / "stacks" / "Pulumi.lab.yaml"
    before = path.read_bytes()
    upgrade_lab(lab, dry_run=True)
    assert new_changes(lab) == [] and path.read_bytes() == before and lab.actions == []

    upgrade_lab(lab)
    # The autoscaler has the version of its control plane.
    assert new_changes(lab) == [CLUSTER, ADDON, RELEASE, NODE_GROUP]
    assert running(lab) == {
        "control plane": {"1.35"},
        "add-ons": {"v1.35.1-eksbuild.2"},
        "nodes": {NEWEST["1.35"]},
    }
    assert [question.split()[:2] for question in lab.actions] == [["Upgrade", "control"], ["Upgrade", "nodes"]]

    # What an upgrade has written is what runs: the next `up` finds nothing to do.
    up("lab", lab.dependencies, UpOptions(images=False))
    assert new_changes(lab) == [] and not any(action.endswith("?") for action in lab.actions[2:])

    # The next one, with the nodes left where they are.
    upgrade_lab(lab, nodes=False)
    assert new_changes(lab) == [CLUSTER, ADDON, RELEASE]
    assert running(lab)["control plane"] == {"1.36"} and running(lab)["nodes"] == {NEWEST["1.35"]}
    up("lab", lab.dependencies, UpOptions(images=False))
    assert new_changes(lab) == []

    # EKS would create no group with the older version of these nodes.
    groups = lab.engine.config("lab")["spotmpi:groups"]
    lab.engine.configure("lab", {"spotmpi:groups": [{**groups[0], "type": "g4dn.2xlarge"}]})
    with pytest.raises(SpotmpiError, match=r"group g4dn would be created with Kubernetes 1\.35.* set `ami_release` to"):
        up("lab", lab.dependencies, UpOptions(images=False))
    assert new_changes(lab) == []


@pytest.mark.nightly("an environment of its own; tests/infra and test_upgrade hold both halves")
def test_a_version_that_the_program_does_not_know_fails_in_the_preview_and_leaves_the_file(
    lab: EngineEnvironment,
) -> None:
    (cluster,) = lab.cloud.records.of(CLUSTER)
    lab.cloud.records.change(cluster, outputs={**cluster.outputs, "version": "1.36"})
    upgrade_lab(lab)
    new_changes(lab)
    # A program that is older than what EKS offers.
    program = lab.engine.project / "infra"
    program.unlink()
    shutil.copytree(REPOSITORY / "infra", program, ignore=shutil.ignore_patterns("__pycache__"))
    versions = program / "kubernetes_versions.py"
    versions.write_text(versions.read_text().replace("OLDEST, NEWEST = 31, 37", "OLDEST, NEWEST = 30, 33"))
    path = lab.engine.project / "stacks" / "Pulumi.lab.yaml"
    before = path.read_bytes()
    with pytest.raises(SpotmpiError, match="stack lab can't be built, settings to change: 1"):
        upgrade_lab(lab, to="1.37")
    assert any("spotmpi:cluster.version = '1.37': use one of" in line for line in lab.output)
    assert new_changes(lab) == [] and path.read_bytes() == before


@pytest.mark.nightly("an environment of its own; test_pins holds what is written without an engine")
def test_nodes_that_a_new_launch_template_moved_are_not_rolled_back_by_the_next_up(lab: EngineEnvironment) -> None:
    groups = lab.engine.config("lab")["spotmpi:groups"]
    lab.engine.configure("lab", {"spotmpi:groups": [{**groups[0], "disk_gib": 200}]})
    up("lab", lab.dependencies, UpOptions(images=False))
    assert running(lab)["nodes"] == {OLD, NEWEST["1.34"]}
    new_changes(lab)

    up("lab", lab.dependencies, UpOptions(images=False))
    assert new_changes(lab) == []
    assert f"updated stacks/Pulumi.lab.yaml to the running versions: AMI release {NEWEST['1.34']} on g4dn" in lab.output


@pytest.mark.nightly("an environment of its own; test_pins holds what is written without an engine")
def test_a_control_plane_that_eks_upgraded_by_itself_is_followed(lab: EngineEnvironment) -> None:
    (cluster,) = lab.cloud.records.of(CLUSTER)
    lab.cloud.records.change(cluster, outputs={**cluster.outputs, "version": "1.35"})
    upgrade_lab(lab)
    assert CLUSTER not in new_changes(lab)
    assert running(lab) == {
        "control plane": {"1.35"},
        "add-ons": {"v1.35.1-eksbuild.2"},
        "nodes": {NEWEST["1.35"]},
    }
