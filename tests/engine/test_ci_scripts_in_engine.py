"""The CI scripts with the real engine on ready stacks: what a build lets in, and what a preview says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from infra.ci import commands
from infra.ci.pulumi_cli import Pulumi
from spotmpi.cli import environment_commands
from tests.command_line import invoke
from tests.engine.engine import Engine
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.aws_cluster import ADDON, ROLE
from tests.engine.providers.aws_network import CLUSTER
from tests.engine.providers.cloud import Cloud

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(600)]

TEAM, RUNNER = "198.51.100.0/24", "192.0.2.1/32"
Ci = Callable[..., int]


@pytest.fixture
def environment(engine: Engine, cloud: Cloud) -> EngineEnvironment:
    return EngineEnvironment(engine, cloud)


@pytest.fixture
def ci(engine: Engine, environment: EngineEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ci]:
    """Runs one of the commands on the engine's copy of the project, with the variables that the workflows set.

    The command of spotmpi that it starts runs in this process, where its account is the stand-in cloud.
    """
    variables = {**engine.variables(), "SPOTMPI_ACCOUNT": "123456789012", "SPOTMPI_ACCESS": TEAM}
    for name, value in {**variables, "SPOTMPI_STATE": str(tmp_path / "kept")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(engine.project)
    monkeypatch.setattr(environment_commands, "open_dependencies", lambda stack, yes: environment.dependencies)

    def run_spotmpi(pulumi: Pulumi, program: str, *arguments: str) -> int:
        output = invoke(*arguments)
        print(output.stderr, file=sys.stderr)
        return output.returncode

    monkeypatch.setattr(Pulumi, "run_spotmpi", run_spotmpi)
    with mock_aws():
        yield lambda command, *arguments: commands.main(command, arguments, engine.project)


def allowed_addresses(cloud: Cloud) -> list[str]:
    """The addresses that the stand-in's cluster lets in."""
    (cluster,) = cloud.records.of(CLUSTER)
    return list(cluster.inputs["vpcConfig"]["publicAccessCidrs"])


def known_to_moto(*cidrs: str) -> None:
    """The cluster as `describe_cluster` tells it: moto answers the scripts, the stand-in the engine."""
    boto3.client("eks", region_name="us-east-1").create_cluster(
        name="spotmpi-lab",
        roleArn="arn:aws:iam::123456789012:role/control",
        resourcesVpcConfig={"endpointPublicAccess": True, "publicAccessCidrs": list(cidrs)},
    )


def test_a_ready_stack_is_built_and_closed_to_the_runner_and_previewed_without_what_opens_its_state(
    ci: Ci,
    engine: Engine,
    cloud: Cloud,
    environment: EngineEnvironment,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known_to_moto(TEAM, RUNNER)
    assert ci("up", "lab", "--access", RUNNER) == 0
    assert [call.method for call in cloud.script.changes() if call.token == CLUSTER] == ["create", "update"]
    assert allowed_addresses(cloud) == engine.config("lab")["spotmpi:access"] == [TEAM]

    # What somebody deleted is built anew, by the rules of the guardrails.
    (addon, *_) = addons = cloud.records.of(ADDON)
    cloud.records.delete(addon)
    environment.output.clear()
    assert ci("up", "lab") == 0
    assert len(cloud.records.of(ADDON)) == len(addons)
    assert sum("spotmpi-guardrails@" in line for line in environment.output) == 2  # in its preview and its update

    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    files = {path: path.read_bytes() for path in engine.folder.rglob("*") if path.is_file() and "state" in path.parts}
    changes_of_up = len(cloud.script.changes())
    engine.configure("lab", {"spotmpi:groups": [{**engine.config("lab")["spotmpi:groups"][0], "max": 3}]})
    capfd.readouterr()
    assert ci("preview", "lab") == 0
    output = capfd.readouterr()
    assert '"0-2" => "0-3"' in output.out and "~ pulumi:providers:kubernetes: (update)" in output.out
    assert "~ 2 to update" in output.out and "to create" not in output.out and "to replace" not in output.out
    assert ": kubernetes:core/v1:Secret, pulumi:providers:kubernetes" in output.err
    assert len(cloud.script.changes()) == changes_of_up
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.nightly("an `up` of its own for one property of all roles")
def test_a_boundary_is_on_every_role_of_an_environment_those_inside_of_components_included(
    ci: Ci, engine: Engine, cloud: Cloud
) -> None:
    boundary = "arn:aws:iam::123456789012:policy/spotmpi-boundary"
    cloud.existing_arns.add(boundary)
    engine.configure("lab", {"spotmpi:boundary": boundary})
    assert ci("up", "lab") == 0
    roles = {call.name for call in cloud.script.changes() if call.token == ROLE}
    assert {"spotmpi-lab-nodes", "spotmpi-lab-autoscaler", "spotmpi-lab-eksRole-role"} <= roles
    assert {role.inputs.get("permissionsBoundary") for role in cloud.records.of(ROLE)} == {boundary}
    assert ci("preview", "lab") == 0
