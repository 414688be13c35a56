"""The doctor on what a live environment's cluster says, each check passing and failing."""

from __future__ import annotations

import pytest

from tests.cloud.account.ec2 import machine
from tests.cloud.cluster.objects import node
from tests.cloud.cluster.store import Object
from tests.unit.environments.doctor.scenarios import (
    CONTROLLERS,
    KEY,
    PRIVATE,
    PUBLIC,
    HealthyEnvironment,
    autoscaler_status,
    claim,
    device_plugin,
    secret,
)

UNKNOWN = {"conditions": [{"type": "Ready", "status": "Unknown"}]}


@pytest.mark.parametrize(
    ("node_object", "message"),
    [
        (node("a") | {"status": node("a")["status"] | UNKNOWN}, "is not ready"),
        (
            node("a", 1, **{"node.kubernetes.io/instance-type": "g5.xlarge"}),
            "is of type g5.xlarge, but group g4dn has g4dn.xlarge",
        ),
        (node("a", gpus=0), "has 0 of 1 GPU:"),
    ],
    ids=["not ready", "another type", "no GPU"],
)
def test_a_node_that_differs_from_its_group_is_an_error(
    healthy: HealthyEnvironment, node_object: Object, message: str
) -> None:
    healthy.cluster.put(node_object)
    kind = node_object["metadata"]["labels"]["node.kubernetes.io/instance-type"]
    healthy.account.ec2.machines[f"i-{'a':0>17}"]["InstanceType"] = kind
    finding = healthy.findings()["node a"]
    assert finding.level == "error" and message in finding.message and finding.remedy


@pytest.mark.parametrize(
    ("zone", "placement_group", "message"),
    [
        ("us-east-1b", "x", "is in us-east-1b, but group g4dn is in us-east-1a"),
        ("us-east-1a", "", "is in no placement group, but its node group sets one"),
    ],
)
def test_a_node_with_the_wrong_placement_is_an_error(
    healthy: HealthyEnvironment, zone: str, placement_group: str, message: str
) -> None:
    place = {"AvailabilityZone": zone, "GroupName": placement_group}
    healthy.account.ec2.machines[f"i-{'a':0>17}"] = machine(Placement=place)
    assert healthy.findings()["node a"].message == message


@pytest.mark.parametrize(
    ("name", "check", "message"),
    [
        ("jobset-controller", "JobSet", "it manages every run"),
        ("cluster-autoscaler", "autoscaler", "it adds and removes nodes"),
        ("coredns", "DNS", "it resolves the pods' names"),
        ("nvidia-device-plugin", "device plugin", "on 0 of 1 GPU node"),
    ],
)
def test_a_stopped_or_missing_controller_is_an_error(
    healthy: HealthyEnvironment, name: str, check: str, message: str
) -> None:
    stopped = device_plugin(ready=0) if name == "nvidia-device-plugin" else {**CONTROLLERS[name], "status": {}}
    healthy.cluster.put(stopped)
    finding = healthy.findings()[check]
    assert finding.level == "error" and message in finding.message
    healthy.cluster.remove(stopped)
    assert "is not installed" in healthy.findings()[check].message


def test_the_autoscalers_own_status_is_read(healthy: HealthyEnvironment) -> None:
    healthy.cluster.put(autoscaler_status("Unhealthy"))
    assert healthy.findings()["scaling"].message == "the autoscaler reports the cluster as Unhealthy"
    healthy.cluster.remove(autoscaler_status())
    assert healthy.findings()["scaling"].level == "warning"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**KEY, "id": ""}, "lacks id"),
        ({**KEY, "id": PRIVATE.rstrip()}, "has an `id` that is not an OpenSSH private key"),
        ({**KEY, "id": "thisIsTheKey\n"}, "has an `id` that is not an OpenSSH private key"),
        ({**KEY, "id.pub": "ssh-rsa AAAA"}, "has an `id.pub` that is not an ED25519 public key"),
        ({**KEY, "authorized_keys": PUBLIC.replace("A", "B")}, "has `authorized_keys` without its own public key"),
        ({key: KEY[key] for key in ("id", "id.pub", "authorized_keys")}, "lacks ca.pem, cert.pem, key.pem"),
        ({**KEY, "key.pem": KEY["cert.pem"]}, "has a `key.pem` that does not begin with `-----BEGIN PRIVATE KEY-----`"),
        (None, "does not exist"),
    ],
)
def test_an_invalid_or_missing_key_is_an_error_and_is_never_shown(
    healthy: HealthyEnvironment, values: dict[str, str] | None, message: str
) -> None:
    healthy.cluster.clear("Secret")
    healthy.cluster.put(*([] if values is None else [secret(values)]))
    finding = healthy.findings()["SSH key"]
    assert finding.level == "error" and finding.message.startswith(f"Secret mpi-ssh {message}")
    assert "thisIsTheKey" not in str(finding)


def test_without_permission_to_read_secrets_the_key_is_reported_as_not_checked(healthy: HealthyEnvironment) -> None:
    healthy.cluster.forbid("get", "secrets")
    finding = healthy.findings()["SSH key"]
    assert finding.level == "ok"
    assert finding.message == "not checked: only administrators of the cluster may read Secret mpi-ssh"


def test_an_unbound_claim_is_an_error(healthy: HealthyEnvironment) -> None:
    healthy.cluster.put(claim("Pending"))
    finding = healthy.findings()["volume"]
    assert finding.message == "claim runs is Pending" and "describe pvc runs" in finding.command
