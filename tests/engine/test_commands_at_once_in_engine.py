"""`spotmpi up` beside `spotmpi down` of one stack, and `spotmpi` killed alone, in the real engine: nothing is left."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.environments.down import down
from spotmpi.environments.up import UpOptions, up
from tests.contract import processes
from tests.engine.engine import Engine
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.aws_cluster import LOG_GROUP
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP, VPC
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.scaling import autoscale, sizes
from tests.engine.stack_lifecycle import ACCESS, prepare

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(900)]

OPTIONS = UpOptions(images=False)


@pytest.fixture
def other(engine: Engine, cloud: Cloud, environment: EngineEnvironment) -> EngineEnvironment:
    """A second terminal with the same environment, built without images."""
    engine.configure("cpu", {"spotmpi:access": ACCESS})
    up("cpu", environment.dependencies, OPTIONS)
    return EngineEnvironment(engine, cloud)


def add_a_group(engine: Engine) -> None:
    """Let the next `up` have something to change."""
    groups = engine.config("cpu")["spotmpi:groups"]
    engine.configure("cpu", {"spotmpi:groups": [*groups, {**groups[0], "name": "more"}]})


@pytest.mark.nightly("an `up` and a `down` more; by day the same with a fake Pulumi")
def test_an_up_whose_environment_goes_down_while_it_asks_builds_nothing(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment, other: EngineEnvironment
) -> None:
    add_a_group(engine)

    def confirm(question: str) -> bool:
        assert down("cpu", other.dependencies) == ()
        return True

    with pytest.raises(SpotmpiError, match="another update has changed it since this preview: repeat the command"):
        up("cpu", replace(environment.dependencies, confirm=confirm), OPTIONS)
    assert len(cloud.records) == 0


@pytest.mark.nightly("two ups and a `down` more; by day the same with a fake Pulumi")
def test_a_down_takes_away_what_an_up_opens_and_adds_beside_it(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment, other: EngineEnvironment
) -> None:
    """The whole `up` runs between the closing of the groups and the destroy, and the autoscaler wants nodes again."""
    add_a_group(engine)
    closed: list[str] = []

    def resize_and_up(region: str, request: Mapping[str, Any]) -> None:
        environment.resize(region, request)
        closed.append(request["AutoScalingGroupName"])
        if len(closed) == 1:
            up("cpu", other.dependencies, OPTIONS)
            autoscale(cloud, "spotmpi-cpu-c6i", 2)

    environment.account.answers["UpdateAutoScalingGroup"] = resize_and_up
    groups: list[tuple[int, int, int]] = []

    def destroying(line: str) -> None:
        if "Destroying" in line and not groups:
            groups.extend(sizes(each) for each in cloud.records.of(NODE_GROUP) if "system" not in each.id)
        environment.output.append(line)

    pulumi = replace(environment.pulumi, echo=destroying)
    assert down("cpu", replace(environment.dependencies, pulumi=pulumi)) == ()
    assert len(closed) > 2 and groups == [(0, 0, 0)] * len(groups) and len(groups) == 2
    assert len(cloud.records) == 0 and environment.pulumi.state("cpu") is None


@pytest.mark.nightly("a `down` more; by day the same with a fake Pulumi")
def test_an_up_beside_a_destroy_is_refused_and_forgets_nothing_of_it(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment, other: EngineEnvironment
) -> None:
    """AWS has deleted a node group and then the cluster that the state still has, as the destroy is at work."""
    refused: list[str] = []

    def up_beside() -> None:
        for slow in (of_groups, of_cluster):
            while not slow.matched:
                time.sleep(0.05)
            with pytest.raises(SpotmpiError) as error:
                up("cpu", other.dependencies, OPTIONS)
            refused.append(str(error.value))
            slow.seconds = 0

    of_groups = cloud.script.slow("delete", NODE_GROUP, 60, after_success=True)
    of_cluster = cloud.script.slow("delete", CLUSTER, 60, after_success=True)
    beside = Thread(target=up_beside)
    beside.start()
    assert down("cpu", environment.dependencies) == ()
    beside.join()
    assert [each.partition(", of ")[0] for each in refused] == ["stack cpu is locked by another update"] * 2
    assert len(cloud.records) == 0


KILLED = """
import sys
from pathlib import Path
from spotmpi.environments.pulumi_cli import Pulumi
Pulumi(lambda line: None, Path(sys.argv[1])).run("cpu", "up", "--yes", "--skip-preview")
"""


def follow(engine: Engine, message: str) -> None:
    """Run each command of Pulumi that stands in a message, as a shell in the project's folder would."""
    commands = re.findall(r"`(pulumi [^`]+)`", message)
    assert commands, message
    for command in commands:
        engine.run(*shlex.split(command)[1:]).require_success()


@pytest.mark.nightly("an `up` and a `down` more; the killed `up` shows the same of the lock")
def test_after_spotmpi_alone_is_killed_each_message_followed_literally_leads_on(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment
) -> None:
    """Pulumi dies at its next line, as nobody reads it; AWS goes on with what it was asked for."""
    prepare(engine, "cpu")
    cloud.script.slow("create", LOG_GROUP, 6, after_success=True)
    slow = cloud.script.slow("create", VPC, 6, after_success=True)
    command = [sys.executable, "-c", KILLED, str(engine.project)]
    variables = engine.variables()
    with subprocess.Popen(command, env=variables, text=True, start_new_session=True) as process:
        while not slow.matched:
            assert process.poll() is None
            time.sleep(0.05)
        (pulumi,) = processes.children(process.pid)
        process.kill()
    processes.wait_until(lambda: processes.are_gone([pulumi]), 600)
    engine.kill(process)  # what Pulumi has left behind ends with the stand-ins only

    told: list[str] = []
    while True:
        try:
            up("cpu", environment.dependencies, OPTIONS)
            break
        except SpotmpiError as error:
            assert len(told) < 2, error
            told.append(str(error))
            if "was killed while it created" in str(error):
                known = {each.get("id") for each in engine.resources("cpu")}
                for record in [each for each in cloud.records if each.id not in known]:
                    cloud.records.delete(record)  # by hand, as the message says
            follow(engine, str(error))
    assert f"(pid {pulumi})" in told[0] and ["locked by" in each for each in told] == [True, False], told
    assert engine.up("cpu").changes == []
    assert down("cpu", environment.dependencies) == () and len(cloud.records) == 0
