"""What cannot work ends with a clear state and one line that says why, within its deadline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.submit.objects import generate_keys
from spotmpi.core import names
from spotmpi.core.certificates import run_certificates
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.spec.source import from_values
from tests.cluster.environment_namespace import objects
from tests.cluster.runs import Runs, plain, runs_in
from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import Kubernetes, Object
from tests.testbed.waiting import wait_for
from tests.tools import IS_OLDEST

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
as_without_mpirun = pytest.mark.nightly("an image without mpirun takes the same way")
a_wait_more = pytest.mark.nightly("a wait of its own for the start limit, as the image that cannot be pulled")


@pytest.mark.parametrize(
    ("values", "image", "words"),
    [
        ({"nodes": 2}, "registry.invalid/none:1", ["2/2 nodes", "registry.invalid/none:1"]),
        ({"resources": {"gpu": 1}}, "base", ["1/1 nodes", "Insufficient nvidia.com/gpu"]),
        pytest.param({"kubernetes": {"secrets": ["absent"]}}, "base", ['secret "absent" not found'], marks=a_wait_more),
    ],
    ids=["image", "GPU", "Secret"],
)
def test_what_a_run_needs_and_does_not_get_is_named_until_the_start_limit_ends_the_run(
    runs: Runs, values: dict[str, Any], image: str, words: list[str]
) -> None:
    # A kubelet that asks for a new claim too early tries again after 10 s or more.
    run = runs.start(plain("true", limits={"start": "25s"}, **values), image=image)

    end = run.end(75)
    assert end.kind == "failed"
    assert str(end.reason).startswith("limits.start") and all(word in str(end.reason) for word in words), end.reason
    assert any("gives up in" in reason for reason in run.reasons())
    assert runs.backend.state(run.id).state == "failed"
    run.wait_until_gone()


def test_a_claim_that_does_not_exist_is_refused_before_the_run_is_created(runs: Runs) -> None:
    with pytest.raises(InputError, match=r"kubernetes.volume = 'absent': .* has no such PersistentVolumeClaim"):
        runs.submit(plain("true", kubernetes={"volume": "absent"}), image="base")


@contextmanager
def report_on_nodes(testbed: Cluster) -> Iterator[None]:
    """The autoscaler's ConfigMap with a group that gets no machine, and word of a reclaim of every node."""
    moment = datetime.now(UTC)
    group = {
        "name": "gpu-a",
        "health": {"status": "Healthy", "nodeCounts": {"registered": {"total": 0}}, "cloudProviderTarget": 1},
        "scaleUp": {"status": "Backoff", "backoffInfo": {"errorCode": "x", "errorMessage": "no capacity in the zone"}},
    }
    status = {"time": f"{moment:%Y-%m-%d %H:%M:%S}.123 +0000 UTC", "autoscalerStatus": "Running", "nodeGroups": [group]}
    about = {"name": "cluster-autoscaler-status", "namespace": "kube-system"}
    planted: list[Object] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"status": yaml.safe_dump(status)}}
    ]
    for node in testbed.nodes:
        planted.append(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{node.name}.reclaimed", "namespace": "default"},
                "involvedObject": {"kind": "Node", "name": node.name},
                "reason": "SpotInterruption",
                "message": "the machine will be reclaimed",
                "lastTimestamp": f"{moment + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}",
            }
        )
    try:
        for each in planted:
            testbed.apply(each, namespace=each["metadata"]["namespace"])
        yield
    finally:
        for each in planted:
            where = ("-n", each["metadata"]["namespace"])
            testbed.kubectl("delete", each["kind"], each["metadata"]["name"], "--ignore-not-found", *where)


@pytest.mark.nightly("the reason's text is tested on scripted nodes; here two waits more")
def test_autoscaler_status_and_node_events_are_part_of_the_waiting_reason(runs: Runs) -> None:
    with report_on_nodes(runs.testbed):
        without = runs.start(plain("true", resources={"gpu": 1}), image="base")
        stuck = runs.start(plain("true"), image="registry.invalid/none:1")
        for run, words in (
            (without, ("Insufficient nvidia.com/gpu", "; group gpu-a: no capacity in the zone")),
            (stuck, ("registry.invalid/none:1", "; node node-", ": SpotInterruption: the machine will be reclaimed")),
        ):
            run.until_reason(*words)
            runs.backend.stop(run.id, "seen", now=True)
            assert run.end().kind == "stopped"


def test_a_detached_run_that_waited_too_long_is_ended_by_the_next_status(runs: Runs) -> None:
    run = runs.submit(plain("true", resources={"gpu": 1}, limits={"start": "2s"}), image="base")
    wait_for("the run is over", lambda: runs.backend.state(run).over, 30)
    state = runs.backend.state(run)
    assert state.state == "failed" and "limits.start (2s) is over: 1/1 nodes: 0/2 nodes" in str(state.reason)


@pytest.mark.pod_images("chainermn")
def test_wrong_ssh_keys_keep_no_run_from_its_ranks(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents start mpirun's daemons; sshd is there for programs that call ssh themselves."""
    keys = {**generate_keys(), "id": "no key at all\n"}
    monkeypatch.setattr("spotmpi.backends.kubernetes.submit.objects.generate_keys", lambda: keys)
    run = runs.start({**plain("sh", "-c", "echo from $HOSTNAME", nodes=2), "launcher": "mpirun"})

    assert run.end().kind == "succeeded", run.recent_events()
    hosts = [names.pod_host(run.id, node, job_per_node=not IS_OLDEST) for node in (0, 1)]
    assert sorted(run.lines()) == [f"from {host}" for host in hosts]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({**plain("true", nodes=2), "launcher": "mpirun"}, "the image has no mpirun on PATH"),
        pytest.param(plain("trane", limits={"failures": 0}), "trane: command not found", marks=as_without_mpirun),
    ],
    ids=["mpirun", "command"],
)
def test_a_program_that_the_image_does_not_have_is_named_at_once(
    runs: Runs, values: dict[str, Any], reason: str
) -> None:
    end = runs.start(values, image="base").end(60)
    assert end.kind == "failed" and reason in str(end.reason)


@pytest.mark.parametrize("node", [pytest.param(0, marks=pytest.mark.nightly("the node that also leads")), 1])
def test_a_full_volume_ends_the_run_with_its_remedy(runs: Runs, node: int) -> None:
    runs.testbed.shared_volume(runs.namespace, "small", megabytes=2)
    fill = "dd if=/dev/zero of=/spotmpi/volume/fill bs=1M count=9; seq 100000"
    fill = f'if [ "$RANK" = {node} ]; then {fill}; fi; sleep 60'
    end = runs.start(plain("sh", "-c", fill, nodes=2, kubernetes={"volume": "small"}), image="base").end(60)
    assert end.kind == "failed"
    assert "No space left on device; free some space" in str(end.reason), end.reason


def test_a_user_who_may_not_submit_gets_one_line(
    testbed: Cluster, runs_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(testbed.plane.kubeconfig_of("nobody")))
    with pytest.raises(
        SpotmpiError, match="you may not create, get, patch, delete JobSets, or list Pods in namespace"
    ) as refused:
        submit(tmp_path, runs_namespace)
    assert "\n" not in str(refused.value)


@pytest.mark.pod_images("chainermn")
def test_a_user_who_may_not_create_secrets_uses_the_keys_of_the_namespace(
    testbed: Cluster, runs_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = generate_keys()
    keys = {"id": own["id"], "id.pub": own["authorized_keys"], "authorized_keys": own["authorized_keys"]}
    testbed.apply(*_rights_without_secrets("limited"), namespace=runs_namespace)
    with runs_in(testbed, runs_namespace, tmp_path / "copies", volume=False) as runs:
        runs.apply("Secret", "mpi-ssh", stringData={**keys, **run_certificates("shared")})
        runs.apply("Secret", "old-ssh", stringData=keys)
        monkeypatch.setenv("KUBECONFIG", str(testbed.plane.kubeconfig_of("limited")))
        values = {**plain("sh", "-c", "echo from $HOSTNAME", nodes=2), "launcher": "mpirun"}
        with pytest.raises(SpotmpiError, match=r"you may not create the run's Secret.*kubernetes\.ssh_secret"):
            runs.submit(values)
        run = runs.start({**values, "kubernetes": {"ssh_secret": "mpi-ssh"}})
        assert run.end().kind == "succeeded", run.recent_events()
        assert sorted(run.lines()) == [f"from {names.pod_host(run.id, node)}" for node in (0, 1)]
        end = runs.start({**values, "kubernetes": {"ssh_secret": "old-ssh"}}).end()
        assert end.kind == "failed" and "the SSH Secret has no ca.pem, cert.pem, key.pem; " in str(end.reason)


def _rights_without_secrets(user: str) -> list[Object]:
    """All that an environment's users may do in its namespace, but for Secrets."""
    roles = [each for each in objects("any") if each["kind"] == "Role" and each["metadata"]["namespace"] == "any"]
    (role,) = [each for each in roles if each["metadata"]["name"] == "spotmpi-users"]
    rules = [rule for rule in role["rules"] if "secrets" not in rule["resources"]]
    api, name = "rbac.authorization.k8s.io", f"{user}-runs"
    to = {"apiGroup": api, "kind": "Role", "name": name}
    who = [{"apiGroup": api, "kind": "User", "name": user}]
    return [
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": {"name": name}, "roleRef": to, "subjects": who},
    ]


@pytest.mark.nightly("stops a controller for all")
def test_a_cluster_whose_jobset_webhook_is_down_is_reported_as_such(
    testbed: Cluster, runs_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(testbed.kubeconfig))
    with (
        testbed.jobset.stopped(),
        pytest.raises(SpotmpiError, match="JobSet's webhook does not answer: check `kubectl -n jobset-system"),
    ):
        submit(tmp_path, runs_namespace)
    assert testbed.kubectl("get", "jobsets,secrets,configmaps", "-n", runs_namespace, "-l", "spotmpi.dev/run") == ""


def test_a_cluster_without_jobset_is_reported_with_the_command_to_install_it(
    api_server: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    with pytest.raises(SpotmpiError, match=r"JobSet, which runs need, is not installed.*helm install jobset"):
        submit(tmp_path, "default")


def test_an_unreachable_cluster_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, testbed: Cluster) -> None:
    nowhere = tmp_path / "kubeconfig"
    address = testbed.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
    nowhere.write_text(testbed.kubeconfig.read_text().replace(address, "https://127.0.0.1:1"))
    monkeypatch.setenv("KUBECONFIG", str(nowhere))
    with pytest.raises(SpotmpiError, match=r"cannot reach the cluster .*try `kubectl version`"):
        submit(tmp_path, "default")


def submit(folder: Path, namespace: str) -> None:
    """Submit any run."""
    backend = KubernetesBackend(folder / "copies", namespace=namespace)
    spec = from_values(plain("true", kubernetes={"image": "any"}))
    backend.submit(spec, backend.plan(spec, "any-1", print), lambda text: None)
