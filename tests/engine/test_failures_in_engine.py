"""What goes wrong around an environment, in the real engine: each ends with a clear message or a way on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import pytest

from spotmpi.core.errors import SpotmpiError
from spotmpi.core.termination import Terminated
from spotmpi.environments.down import down
from spotmpi.environments.up import UpOptions, up
from tests.engine.engine import Engine
from tests.engine.engine_environment import EngineEnvironment
from tests.engine.providers.aws_cluster import ADDON
from tests.engine.providers.aws_network import CLUSTER, NAT, NODE_GROUP, VPC
from tests.engine.providers.aws_services import FILE_SYSTEM, MOUNT_TARGET
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.script import Script
from tests.engine.stack_lifecycle import ACCESS, prepare

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(600)]


def _wait(until: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    while not until():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def _creations(script: Script) -> list[tuple[str, str]]:
    return [(call.token, call.name) for call in script.changes() if call.method == "create"]


def test_a_killed_up_leaves_a_lock_and_what_it_was_creating_and_the_next_up_names_both(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment
) -> None:
    """AWS has created what the killed provider was waiting for."""
    prepare(engine, "lab")
    slow = cloud.script.slow("create", NODE_GROUP, 120, times=2, after_success=True)
    process = engine.start("up", "--stack", "lab", "--yes", "--skip-preview")
    _wait(lambda: slow.matched == 2 and engine.state_is_stable("lab"), process)
    slow.times = 0
    engine.kill(process)
    locked = engine.up("lab").require_failure()
    assert "currently locked" in locked.text
    for command in (up, down):
        with pytest.raises(
            SpotmpiError, match=r"stack lab is locked by another update, of .+ at 20.+`pulumi cancel --yes"
        ):
            command("lab", environment.dependencies)
    assert not any("was killed" in line or line == "3/6 runs" for line in environment.output)
    engine.run("cancel", "--yes", "--stack", "lab").require_success()

    unknown = cloud.records.of(NODE_GROUP)
    with pytest.raises(
        SpotmpiError, match="was killed while it created aws:eks/nodeGroup:NodeGroup spotmpi-lab"
    ) as refused:
        up("lab", environment.dependencies)
    assert cloud.records.of(NODE_GROUP) == unknown and len(unknown) == 2
    with pytest.raises(SpotmpiError, match="`aws eks list-nodegroups --cluster-name spotmpi-lab` lists"):
        down("lab", environment.dependencies)
    assert str(refused.value) in environment.output
    for group in unknown:
        cloud.records.delete(group)
    engine.run("refresh", "--yes", "--skip-preview", "--clear-pending-creates", "--stack", "lab").require_success()
    up("lab", environment.dependencies, UpOptions(images=False))
    assert engine.up("lab").changes == []
    assert down("lab", environment.dependencies) == () and len(cloud.records) == 0


def test_what_somebody_deletes_in_aws_is_built_anew_and_without_its_cluster_an_environment_goes_down(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment
) -> None:
    options = UpOptions(images=False)
    engine.configure("cpu", {"spotmpi:access": ACCESS})
    up("cpu", environment.dependencies, options)
    kinds = (NODE_GROUP, MOUNT_TARGET, ADDON)
    for kind in kinds:
        cloud.records.delete(cloud.records.of(kind)[-1])
    before = {kind: len(cloud.records.of(kind)) for kind in kinds}

    up("cpu", environment.dependencies, options)

    assert {kind: len(cloud.records.of(kind)) for kind in kinds} == {
        kind: number + 1 for kind, number in before.items()
    }
    assert any(line.startswith("to be built anew: deleted outside of Pulumi: ") for line in environment.output)
    assert engine.up("cpu").changes == []

    (cluster,) = cloud.records.of(CLUSTER)
    for record in cloud.records:
        if record.inputs.get("clusterName") == cluster.id or record.key == cluster.key:
            cloud.records.delete(record)
    with pytest.raises(
        SpotmpiError, match="deleted outside of Pulumi: cluster spotmpi-cpu: `spotmpi down cpu` deletes"
    ):
        up("cpu", environment.dependencies, options)
    assert down("cpu", environment.dependencies) == () and len(cloud.records) == 0


OTHERS = pytest.mark.nightly("the same for other parts; by day a node group, and each part with a fake Pulumi")


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (
            NODE_GROUP,
            "node group",
            "unexpected state 'CREATE_FAILED', wanted target 'ACTIVE'. last error: i-1: NodeCreationFailure: x",
        ),
        pytest.param(
            NAT,
            "NAT gateway",
            "waiting for EC2 NAT Gateway (nat-1) create: unexpected state 'failed', wanted target 'available'. last "
            "error: InsufficientFreeAddressesInSubnet: Subnet has insufficient free addresses",
            marks=OTHERS,
        ),
        pytest.param(
            MOUNT_TARGET,
            "mount target",
            "waiting for EFS Mount Target (fsmt-1) create: unexpected state 'error', wanted target 'available'",
            marks=OTHERS,
        ),
    ],
    ids=["node group", "gateway", "mount target"],
)
def test_what_failed_after_its_creation_is_deleted_and_built_anew_which_pulumi_alone_would_keep(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment, kind: str, words: str, message: str
) -> None:
    options, private = UpOptions(images=False), {"spotmpi:network": {"private": True}}
    engine.configure("cpu", {"spotmpi:access": ACCESS, **(private if kind == NAT else {})})
    name = "spotmpi-cpu-c6i" if kind == NODE_GROUP else "*"
    cloud.script.fail("create", kind, name=name, after_success=True, incomplete=True).message = message
    with pytest.raises(SpotmpiError, match=rf"aws:\w+:\w+ spotmpi-cpu.*: .*{message.rpartition(': ')[2][:40]}"):
        up("cpu", environment.dependencies, options)
    (failed,) = [each for each in cloud.records.of(kind) if each.failed]
    engine.up("cpu").require_success()
    assert failed in cloud.records.of(kind)

    up("cpu", environment.dependencies, options)

    assert cloud.records.of(kind) and not any(each.failed for each in cloud.records)
    shown = failed.inputs.get("nodeGroupName", failed.id)
    assert f"Delete {words} {shown}, which failed in AWS, and build anew?" in environment.actions
    assert engine.up("cpu").changes == []
    assert down("cpu", environment.dependencies) == () and len(cloud.records) == 0


@pytest.mark.nightly("an `up` more; by day the same with a fake Pulumi")
def test_an_up_that_another_one_overtakes_changes_nothing_and_the_next_has_nothing_to_do(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment
) -> None:
    options, other = UpOptions(images=False), EngineEnvironment(engine, cloud)
    engine.configure("cpu", {"spotmpi:access": ACCESS})

    def confirm(question: str) -> bool:
        up("cpu", other.dependencies, options)
        return True

    with pytest.raises(SpotmpiError, match="another update has changed it since this preview: repeat the command"):
        up("cpu", replace(environment.dependencies, confirm=confirm), options)
    created = _creations(cloud.script)
    up("cpu", environment.dependencies, options)
    assert _creations(cloud.script) == created and len(created) == len(set(created))


@pytest.mark.nightly("14 s; the killed `up` shows the same of the lock and of going on")
def test_a_killed_destroy_is_finished_by_the_next(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "cpu")
    engine.up("cpu").require_success()
    slow = cloud.script.slow("delete", CLUSTER, 120)
    process = engine.start("destroy", "--stack", "cpu", "--yes", "--skip-preview")
    _wait(lambda: slow.matched > 0 and engine.state_is_stable("cpu"), process)
    engine.kill(process)
    engine.run("cancel", "--yes", "--stack", "cpu").require_success()
    engine.destroy("cpu").require_success()
    assert len(cloud.records) == 0


@pytest.mark.nightly("20 s; the killed `up` is the harder case")
def test_an_interrupted_up_stops_by_itself_and_leaves_no_lock(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment
) -> None:
    """As CI cancels a job: only spotmpi gets the signal."""
    prepare(engine, "cpu")
    slow = cloud.script.slow("create", VPC, 3)

    def end() -> None:
        while not slow.matched:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=end, daemon=True).start()
    with pytest.raises(Terminated):
        environment.pulumi.run("cpu", "up", "--yes", "--skip-preview")
    engine.up("cpu").require_success()
    assert len(_creations(cloud.script)) == len(set(_creations(cloud.script)))


@pytest.mark.nightly("10 s; `spotmpi down` without a cluster covers it, which destroys likewise")
def test_a_cluster_that_is_gone_does_not_block_destroy(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "lab")
    engine.up("lab").require_success()
    (cluster,) = cloud.records.of(CLUSTER)
    for record in cloud.records:
        if record.inputs.get("clusterName") == cluster.id or record.key == cluster.key:
            cloud.records.delete(record)
    engine.destroy("lab").require_success()
    assert len(cloud.records) == 0


@pytest.mark.nightly("11 s; tests/infra holds the provider's allowed accounts under the mock engine")
def test_another_account_is_refused_before_anything_is_made(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "cpu")
    engine.configure("cpu", {"spotmpi:account": "210987654321"})
    refused = engine.up("cpu").require_failure()
    assert "account ID not allowed: 123456789012" in refused.text
    assert len(cloud.records) == 0


def test_every_problem_of_the_settings_is_reported_at_once_and_nothing_is_made(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "cpu")
    engine.configure("cpu", {"spotmpi:zones": ["eu-west-1a"], "spotmpi:network": {"cidr": "8.8.0.0/16"}})
    refused = engine.up("cpu").require_failure()
    assert "eu-west-1a" in refused.text
    assert "8.8.0.0/16" in refused.text
    assert "Traceback" not in refused.text
    assert _creations(cloud.script) == []


def test_an_unknown_stack_is_named(engine: Engine) -> None:
    refused = engine.up("nowhere").require_failure()
    assert "nowhere" in refused.text


def test_persistent_storage_must_exist_first(engine: Engine, cloud: Cloud) -> None:
    engine.init("p3", {"spotmpi:access": ["198.51.100.0/24"]})
    refused = engine.up("p3").require_failure()
    assert "p3-data" in refused.text


@pytest.mark.nightly("25 s; the engine test of `spotmpi up` and `down` keeps storage too")
def test_persistent_storage_outlives_its_environment_and_is_protected(engine: Engine, cloud: Cloud) -> None:
    prepare(engine, "p3")
    engine.up("p3").require_success()
    engine.destroy("p3").require_success()
    refused = engine.destroy("p3-data").require_failure()
    assert "protect" in refused.text
    assert len(cloud.records.of(FILE_SYSTEM)) == 1
    engine.run("state", "unprotect", "--all", "--yes", "--stack", "p3-data").require_success()
    engine.destroy("p3-data").require_success()
    assert len(cloud.records) == 0


def test_up_and_down_end_with_one_line_that_names_resource_reason_and_remedy(
    engine: Engine, cloud: Cloud, environment: EngineEnvironment
) -> None:
    """A quota that is used up at `up`, and at `down` something in the network that is in no state."""
    engine.configure("cpu", {"spotmpi:access": ACCESS})
    head = "operation error EC2: {}, https response error StatusCode: 400, RequestID: 6bd3b1c6-0b1a, api error "

    full = "VpcLimitExceeded: The maximum number of VPCs has been reached"
    refusal = cloud.script.fail("create", VPC, once_made=FILE_SYSTEM)  # after a refusal Pulumi begins nothing more
    refusal.message = f"creating EC2 VPC: {head.format('CreateVpc')}{full}."
    with pytest.raises(SpotmpiError) as failed:
        up("cpu", environment.dependencies)
    assert str(failed.value) == (
        f"`pulumi up --stack cpu` failed: aws:ec2:Vpc spotmpi-cpu: creating EC2 VPC: {full}: a quota of the account is "
        "used up: delete what nobody needs, or request an increase in Service Quotas; then the same command continues"
    )
    assert any("RequestID: 6bd3b1c6-0b1a" in line for line in environment.output), "the details come before"

    used = "DependencyViolation: resource sg-0a1b2c3d has a dependent object"
    group = f"deleting Security Group (sg-0a1b2c3d): {head.format('DeleteSecurityGroup')}{used}"
    cloud.script.fail("delete", FILE_SYSTEM).message = group
    with pytest.raises(SpotmpiError) as failed:
        down("cpu", environment.dependencies)
    assert str(failed.value).startswith("`pulumi destroy --stack cpu` failed: aws:efs:FileSystem spotmpi-cpu: deleting")
    assert "--filters Name=group-id,Values=sg-0a1b2c3d` in its region lists interfaces" in str(failed.value)
    assert down("cpu", environment.dependencies) == () and len(cloud.records) == 0
