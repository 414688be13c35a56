"""Every Kubernetes object of the program on a real API server with its controllers (no nodes needed)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime import rpc

from tests.infra.mock_engine import Recording, run
from tests.testbed.control_plane import ControlPlane
from tests.testbed.daemon import wait_until
from tests.testbed.kubernetes import Kubernetes, as_yaml
from tests.testbed.programs import module_file

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
QUEUES = {"enabled": True, "teams": [{"name": "vision", "gpus": 1}, {"name": "speech", "gpus": 1}]}
STACKS = ["lab", "p3", "g5", "cpu"]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that knows JobSet's kinds."""
    control_plane = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        control_plane.start()
        Kubernetes(control_plane.kubeconfig).define(module_file("jobset", "bases"))
        yield control_plane
    finally:
        control_plane.stop()


@pytest.fixture
def kubernetes(plane: ControlPlane) -> Kubernetes:
    """The API of that control plane, as its administrator."""
    return Kubernetes(plane.kubeconfig)


def objects(recording: Recording) -> list[dict[str, Any]]:
    """The objects of a run as they reach the API server, namespaces first; charts bring their own."""
    declared = [dict(one.inputs) for one in recording.resources if one.kind.startswith("kubernetes:")]
    plain = [_unwrap(one) for one in declared if one.get("kind")]
    assert len(plain) > 10
    return sorted(plain, key=lambda one: one["kind"] != "Namespace")


def _unwrap(value: Any) -> Any:
    """Secrets without the engine's wrapping."""
    if isinstance(value, dict):
        if value.get(rpc._special_sig_key) == rpc._special_secret_sig:
            return _unwrap(value["value"])
        return {key: _unwrap(inner) for key, inner in value.items()}
    return [_unwrap(inner) for inner in value] if isinstance(value, list) else value


def create_objects(kubernetes: Kubernetes, recording: Recording) -> None:
    """Create all objects of a run, each field checked."""
    kubernetes.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=as_yaml(objects(recording)))


@pytest.mark.parametrize("stack", STACKS)
def test_a_strict_dry_run_accepts_every_object(kubernetes: Kubernetes, stack: str) -> None:
    validate_strictly(kubernetes, objects(run(stack)))


def validate_strictly(kubernetes: Kubernetes, items: list[dict[str, Any]]) -> None:
    """Hold the API server's strict check against every object."""
    kubernetes.apply(items[0])
    strict = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
    result = kubernetes.try_kubectl(*strict, stdin=as_yaml(items))
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.split()) == len(items)


def test_an_object_with_a_misspelt_field_would_be_refused(kubernetes: Kubernetes) -> None:
    volume = next(one for one in objects(run("lab")) if one["kind"] == "PersistentVolume")
    volume = {**volume, "spec": {**volume["spec"], "accessMode": ["ReadWriteMany"]}}
    result = kubernetes.try_kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(volume)
    )
    assert result.returncode != 0
    assert "accessMode" in result.stderr


def test_the_volume_and_its_claim_bind_to_each_other(kubernetes: Kubernetes) -> None:
    recording = run("lab")
    create_objects(kubernetes, recording)
    (volume,) = (one["metadata"]["name"] for one in objects(recording) if one["kind"] == "PersistentVolume")

    def unbound() -> str:
        claim = kubernetes.get("pvc", "runs", "-n", "training")
        return "" if claim["status"].get("phase") == "Bound" else str(claim["status"])

    wait_until("the claim bound", unbound, 60)
    assert kubernetes.get("pvc", "runs", "-n", "training")["spec"]["volumeName"] == volume
    assert kubernetes.get("pv", volume)["status"]["phase"] == "Bound"


def test_applying_everything_again_changes_nothing(kubernetes: Kubernetes) -> None:
    recording = run("lab")
    create_objects(kubernetes, recording)
    kinds = ("pv", "pvc", "networkpolicy", "role", "rolebinding", "serviceaccount")

    def versions() -> dict[str, str]:
        lists = [kubernetes.get(kind, "-A")["items"] for kind in kinds]
        ours = [one for items in lists for one in items if "kube-system" not in one["metadata"].get("namespace", "")]
        return {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in ours}

    before = versions()
    create_objects(kubernetes, recording)
    assert versions() == before


JOBSETS, JOBS, RBAC = "jobsets.jobset.x-k8s.io", "jobs.batch", "rbac.authorization.k8s.io"
PODS = ("pods", "pods/exec", "pods/portforward")
MAY = {
    "create": (JOBSETS, JOBS, "configmaps", "secrets", "networkpolicies.networking.k8s.io", *PODS),
    "delete": (JOBSETS, JOBS),
    "get": ("pods/log",),
    "watch": ("events",),
}
MAY_NOT = {
    "create": (f"rolebindings.{RBAC}", f"roles.{RBAC}", "serviceaccounts/token", "daemonsets.apps"),
    "delete": ("persistentvolumeclaims",),
}


@pytest.fixture
def user(plane: ControlPlane, kubernetes: Kubernetes, tmp_path: Path) -> Kubernetes:
    """The API as a user who is in the users' group and nothing else."""
    create_objects(kubernetes, run("lab"))
    return Kubernetes(plane.kubeconfig_of("trainer", groups=["spotmpi:users"]))


def allowed(user: Kubernetes, verb: str, what: str, *place: str) -> bool:
    resource, _, part = what.partition("/")
    subresource = [f"--subresource={part}"] if part else []
    return user.try_kubectl("auth", "can-i", verb, resource, *subresource, *place).stdout.strip() == "yes"


def test_users_have_all_rights_for_runs_in_the_namespace_and_none_in_others(user: Kubernetes) -> None:
    may, may_not = ([(verb, what) for verb in rights for what in rights[verb]] for rights in (MAY, MAY_NOT))
    assert [right for right in may if not allowed(user, *right, "-n", "training")] == []
    assert [right for right in may_not if allowed(user, *right, "-n", "training")] == []
    assert [right for right in may + may_not if allowed(user, *right, "-n", "default")] == []


def test_users_see_nodes_and_why_the_autoscaler_waits_but_change_neither(user: Kubernetes) -> None:
    assert allowed(user, "list", "nodes")
    assert not allowed(user, "delete", "nodes")
    status = ("configmaps/cluster-autoscaler-status", "-n", "kube-system")
    assert user.try_kubectl("auth", "can-i", "get", *status).stdout.strip() == "yes"
    assert user.try_kubectl("auth", "can-i", "update", *status).stdout.strip() == "no"


def test_users_list_the_events_of_nodes_and_change_none(user: Kubernetes, kubernetes: Kubernetes) -> None:
    node = {"involvedObject": {"kind": "Node", "name": "one"}, "reason": "SpotInterruption", "message": "soon"}
    about = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "one.soon", "namespace": "default"}, **node}
    kubernetes.apply(about, namespace="default")

    of_nodes = ("-n", "default", "--field-selector", "involvedObject.kind=Node")
    (event,) = user.get("events", *of_nodes)["items"]
    assert event["reason"] == "SpotInterruption"
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
    assert [verb for verb in verbs if allowed(user, verb, "events", "-n", "default")] == ["list"]
    assert not allowed(user, "list", "events", "-n", "kube-system")


def test_the_namespace_refuses_a_privileged_pod(kubernetes: Kubernetes) -> None:
    create_objects(kubernetes, run("lab"))
    container = {"name": "main", "image": "image", "securityContext": {"privileged": True}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}, "spec": {"containers": [container]}}
    result = kubernetes.try_kubectl("create", "-n", "training", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    assert 'violates PodSecurity "restricted:latest"' in result.stderr


@pytest.mark.tools("kueue")
@pytest.mark.nightly("builds Kueue, 2 minutes where it is missing")
def test_teams_get_queues_with_their_quota(kubernetes: Kubernetes) -> None:
    kubernetes.define(module_file("kueue", "bases"))
    validate_strictly(kubernetes, objects(run("lab", queueing=QUEUES)))
    create_objects(kubernetes, run("lab", queueing=QUEUES))
    queue = kubernetes.get("clusterqueues.kueue.x-k8s.io", "vision")
    resources = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    assert {one["name"]: one["nominalQuota"] for one in resources}["nvidia.com/gpu"] == "1"
    assert kubernetes.get("localqueues.kueue.x-k8s.io", "speech", "-n", "training")["spec"]["clusterQueue"] == "speech"
