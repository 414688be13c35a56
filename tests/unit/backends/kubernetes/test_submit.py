"""Creating the objects of a run and sending it wheels, also where the user may not create Secrets."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import pod_context, protocol, ssh
from spotmpi.agent.plan import NODE, WORKER, Block
from spotmpi.backends.kubernetes import stop
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.submit import objects as submitting
from spotmpi.backends.kubernetes.submit import wheels
from spotmpi.backends.kubernetes.submit.adaptation import adapt, restart_obstacle
from spotmpi.backends.kubernetes.submit.objects import generate_keys
from spotmpi.core import names, reminders
from spotmpi.core.errors import InputError, NotPermitted, RunInUse, SpotmpiError
from spotmpi.images.wheels import PackedWheels
from spotmpi.plan import cluster_plan, manifests, pods
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.placement import Beginning
from spotmpi.plan.pods import CONTAINER, forwarded_key
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import from_values
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.cloud.cluster.objects import a_pod, of_kind
from tests.cloud.cluster.store import Object

SPEC = {"command": ["x"], "nodes": 2, "launcher": "mpirun"}
GO = {"spec": {"suspend": False}}


def planned(spec: JobSpec, run: str = "x-1", ssh_secret: str | None = None) -> Any:
    """The plan of a run in the namespace."""
    keys = [*generate_keys(), *protocol.TLS_FILES, *map(forwarded_key, spec.env_passthrough)]
    target = ClusterTarget("here", "any:1", None, {}, (), False)
    submission = manifests.Submission(run, "ann", dict.fromkeys(keys, "later"), {}, {})
    objects = manifests.kubernetes_plan(spec, target, submission)
    return {"run": run, "namespace": "here", "objects": objects, "ssh_secret": ssh_secret}


def plan(ssh_secret: str | None = None, **values: Any) -> Any:
    return planned(from_values({**SPEC, **values}), ssh_secret=ssh_secret)


def pool(**kubernetes: Any) -> JobSpec:
    return from_values({"launcher": "pool", "pool": {"count": 3}, "kubernetes": kubernetes})


def submit(cluster: FakeCluster, run_plan: Any) -> tuple[list[Object], list[str]]:
    messages, before = list[str](), len(cluster.created)
    adapted = asyncio.run(adapt(cluster.api(), run_plan, messages.append))
    created = asyncio.run(submitting.create(cluster.api(), adapted, messages.append))
    jobset = cluster.get("JobSet", run_plan["run"])
    assert created.submitted == datetime.fromisoformat(jobset["metadata"]["creationTimestamp"]).timestamp()
    assert_as_printed(adapted["objects"], cluster.created[before:], jobset["metadata"]["uid"])
    return list(created.objects), messages


def assert_as_printed(printed: Sequence[Object], created: Sequence[Object], uid: str) -> None:
    """Only the owner's uid, the values of keys and the time of submission differ."""
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in created}
    assert len(by_name) == len(printed)
    for each in printed:
        sent = copy.deepcopy(by_name[each["kind"], each["metadata"]["name"]])
        for owner in sent["metadata"].get("ownerReferences", []):
            assert owner.pop("uid") == uid
            owner["uid"] = each["metadata"]["ownerReferences"][0]["uid"]
        if each["kind"] == "Secret":
            assert sent["stringData"].keys() >= each["stringData"].keys()
            sent["stringData"] = each["stringData"]
        if each["kind"] == "ConfigMap":
            sent["data"] = {**sent["data"], "plan.json": without_time(sent)}
            each = {**each, "data": {**each["data"], "plan.json": without_time(each)}}
        assert sent == each


def without_time(config_map: Object) -> Object:
    plan: Object = json.loads(config_map["data"]["plan.json"])
    return {**plan, "submitted": None}


def created(cluster: FakeCluster, kind: str) -> Object:
    """The only object of that kind, as it was sent."""
    items = [each for each in cluster.created if each["kind"] == kind]
    assert len(items) == 1
    return items[0]


def keys_volume(cluster: FakeCluster) -> Object:
    pod = created(cluster, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    values: Object = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "secret")
    return values


def test_a_run_has_a_secret_of_its_own_with_keys_for_ssh_and_tls(cluster: FakeCluster) -> None:
    objects, messages = submit(cluster, plan("mpi-ssh"))
    assert sorted(cluster.kinds_created()) == ["ConfigMap", "JobSet", "NetworkPolicy", "Secret"] and not messages
    assert cluster.patched == [("JobSet", "x-1", GO)] and keys_volume(cluster)["secretName"] == "x-1-parts"
    keys = created(cluster, "Secret")["stringData"]
    assert "PRIVATE KEY" in keys["id"] and "PRIVATE KEY" not in str(objects)
    assert "BEGIN PRIVATE KEY" in keys[protocol.TLS_KEY] and "CERTIFICATE" in keys[protocol.TLS_CA]


def test_the_workers_of_a_pool_start_with_node_0_once_all_parts_are_created(cluster: FakeCluster) -> None:
    submit(cluster, planned(pool()))
    assert sorted(cluster.kinds_created()) == ["ConfigMap", "Job", "JobSet", "NetworkPolicy", "Secret"]
    assert cluster.patched == [("JobSet", "x-1", GO), ("Job", "x-1-worker", GO)]
    uid = cluster.get("JobSet", "x-1")["metadata"]["uid"]
    assert created(cluster, "Job")["metadata"]["ownerReferences"][0]["uid"] == uid


def test_a_queue_starts_a_pool_and_its_workers(cluster: FakeCluster) -> None:
    cluster.put(of_kind("LocalQueue", "gpus"))
    submit(cluster, planned(pool(queue="gpus")))
    assert not cluster.patched


def test_a_user_who_may_not_read_queues_hears_that_nobody_has_looked_for_his(cluster: FakeCluster) -> None:
    cluster.forbid("get", "localqueues")
    _, messages = submit(cluster, plan(kubernetes={"queue": "typo"}))
    right = "ask for `get` on `localqueues` of kueue.x-k8s.io"
    assert messages == [f"you may not read queues in namespace here: if it has no typo, the run waits; {right}"]
    assert cluster.kinds_created()[0] == "JobSet"
    assert submit(cluster, planned(from_values(SPEC), "x-2"))[1] == [], "a run without a queue needs no right"


@pytest.mark.parametrize(
    ("queue", "fields", "refusal", "words"),
    [
        ("typo", [], None, "kubernetes.queue = 'typo': namespace here has no such LocalQueue of Kueue"),
        (None, ["onJobFailureMessagePatterns"], None, "the CRD of JobSet on the cluster is older than 0.10"),
        (None, ["rules"], None, "the CRD of JobSet on the cluster is older than 0.10"),
        (None, ["failurePolicy"], None, "the CRD of JobSet on the cluster is older than 0.10"),
        (None, ["successPolicy"], None, "Kubernetes on the cluster is older than 1.31 and drops the success policy"),
        (None, [], (422, "Job is invalid: effect: Unsupported"), "could not submit the run: Job is invalid"),
        (None, [], (403, 'webhook "x" denied the request: no owner'), "denied the request: no owner"),
    ],
    ids=["queue", "old JobSet", "older JobSet", "oldest JobSet", "old Kubernetes", "invalid Job", "admission webhook"],
)
def test_a_run_that_would_wait_for_ever_or_never_restart_is_refused_and_nothing_of_it_is_left(
    cluster: FakeCluster, queue: str | None, fields: list[str], refusal: tuple[int, str] | None, words: str
) -> None:
    cluster.pruned = fields
    if refusal:
        cluster.refuse("create", "jobs", *refusal)
    with pytest.raises(SpotmpiError, match=words):
        submit(cluster, plan(kubernetes={"queue": queue}))
    assert not cluster.store.objects and not cluster.patched


def test_a_user_who_may_not_create_jobs_can_still_submit_runs(cluster: FakeCluster) -> None:
    cluster.forbid("create", "jobs")
    submit(cluster, plan())
    assert cluster.patched == [("JobSet", "x-1", GO)]


def test_agents_count_limits_from_the_creation_of_the_jobset(cluster: FakeCluster) -> None:
    """`limits.run` starts by the cluster's clock, not by a terminal's that is behind."""
    cluster.ahead = 600.0
    submit(cluster, plan("mpi-ssh"))
    plan_json = json.loads(created(cluster, "ConfigMap")["data"]["plan.json"])
    moment = cluster.get("JobSet", "x-1")["metadata"]["creationTimestamp"]
    assert plan_json["submitted"] == datetime.fromisoformat(moment).timestamp() > time.time() + 500


def test_a_run_that_waits_for_a_capacity_block_stays_suspended_and_its_controller_begins(cluster: FakeCluster) -> None:
    spec = from_values({**SPEC, "capacity": {"order": ["block"]}})
    target = ClusterTarget("here", "any:1", None, {}, (), False, machine=(("node_group", "block"), ("type", "p5")))
    machine = (*target.machine, ("market", "capacity-block"))
    target = replace(target, order=(replace(target, machine=machine),), placement_account="mover")
    block = Block(reservation="cr-00000001", start=1.0, leave=2.0, end=3.0)
    keys = dict.fromkeys([*generate_keys(), *protocol.TLS_FILES], "later")
    submission = manifests.Submission("x-1", "ann", keys, {}, {}, beginning=Beginning(blocks={"block": block}))
    objects = manifests.kubernetes_plan(spec, target, submission)
    submit(cluster, {"run": "x-1", "namespace": "here", "objects": objects, "ssh_secret": None})
    assert cluster.patched == [("Job", "x-1-placement", GO)]


@pytest.mark.parametrize("readable", [False, True], ids=["as in environments", "that may be read"])
def test_a_user_who_may_not_create_secrets_gets_the_keys_of_an_existing_one_and_a_message(
    cluster: FakeCluster, readable: bool
) -> None:
    cluster.forbid("create", "secrets")
    cluster.put(of_kind("Secret", "mpi-ssh", data=dict.fromkeys([*protocol.TLS_FILES, "id"], "")))
    if not readable:
        cluster.forbid("get", "secrets")
    objects, messages = submit(cluster, plan("mpi-ssh"))
    assert [each["kind"] for each in objects] == ["JobSet", "ConfigMap", "NetworkPolicy"]
    assert cluster.patched == [("JobSet", "x-1", GO)]
    volume = keys_volume(cluster)
    assert volume["secretName"] == "mpi-ssh" and volume["defaultMode"] == 0o440
    keys = ["id", "id.pub", "authorized_keys", "ca.pem", "cert.pem", "key.pem"]
    assert [item["key"] for item in volume["items"]] == keys and volume["optional"]
    assert messages == ["you may not create Secrets: the run shares the keys of mpi-ssh"]


@pytest.mark.parametrize(
    ("secret", "data", "error"),
    [
        (
            "mpi-ssh",
            {"id": "", "ca.pem": ""},
            r"kubernetes\.ssh_secret = 'mpi-ssh': has no cert\.pem, key\.pem; in an environment `pulumi up` adds them; "
            r".* `openssl req",
        ),
        (
            "other",
            {},
            r"kubernetes\.ssh_secret = 'mpi-ssh': namespace here has no such Secret, and you may create none",
        ),
    ],
    ids=["of before", "none"],
)
def test_an_existing_secret_without_tls_files_is_refused_before_the_run_is_created(
    cluster: FakeCluster, secret: str, data: Object, error: str
) -> None:
    cluster.forbid("create", "secrets")
    cluster.put(of_kind("Secret", secret, data=data))
    with pytest.raises(SpotmpiError, match=error):
        submit(cluster, plan("mpi-ssh"))
    assert cluster.created == []


@pytest.mark.parametrize(
    ("run_plan", "error"),
    [
        (
            plan(),
            r"you may not create the run's Secret; ask for the right to create Secrets in here, "
            r"or name a Secret .* \(kubernetes.ssh_secret\)",
        ),
        (
            plan("mpi-ssh", env_passthrough=["HF_TOKEN"]),
            r"you may not create the run's Secret; ask for the right to create Secrets in here, "
            r"or keep HF_TOKEN in a Secret \(kubernetes.secret_env\) instead of forwarding",
        ),
        (
            planned(pool()),
            r"you may not create the run's Secret, and workers share their TLS key with no other run; "
            r"ask for the right to create Secrets in here",
        ),
    ],
    ids=["no key pair", "forwarded variables", "pool"],
)
def test_a_run_that_needs_a_secret_of_its_own_is_not_created_without_one_and_the_error_has_the_remedy(
    cluster: FakeCluster, run_plan: Object, error: str
) -> None:
    cluster.forbid("create", "secrets")
    with pytest.raises(NotPermitted, match=error):
        submit(cluster, run_plan)
    assert cluster.created == []


PEERS = {"podSelector": {"matchLabels": {"spotmpi.dev/run": "x-1"}}}


def policy(selector: Object | None = None, **spec: Any) -> Object:
    return of_kind("NetworkPolicy", "p", spec={"podSelector": selector or {}, **spec})


def created_policy(cluster: FakeCluster) -> Object:
    values: Object = created(cluster, "NetworkPolicy")["spec"]
    return values


@pytest.mark.parametrize(
    "denying",
    [
        policy(policyTypes=["Ingress", "Egress"]),
        policy(egress=[{"to": []}]),  # rules for egress make it a policy of egress
        policy({"matchLabels": {"app.kubernetes.io/managed-by": "spotmpi"}}, policyTypes=["Egress"]),
        policy({"matchExpressions": [{"key": "spotmpi.dev/run", "operator": "Exists"}]}, policyTypes=["Egress"]),
        policy({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, policyTypes=["Egress"]),
        policy({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, policyTypes=["Egress"]),
    ],
)
@pytest.mark.parametrize("run_plan", [plan(), planned(pool())], ids=["gang", "pool"])
def test_in_a_namespace_that_denies_egress_pods_of_a_run_may_reach_each_other(
    cluster: FakeCluster, run_plan: Object, denying: Object
) -> None:
    cluster.put(denying)
    objects, _ = submit(cluster, run_plan)
    assert created_policy(cluster)["policyTypes"] == ["Ingress", "Egress"]
    assert created_policy(cluster)["egress"] == [{"to": [PEERS]}]
    assert [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"] == [created_policy(cluster)]


@pytest.mark.parametrize(
    "policies",
    [
        [],
        None,
        [policy(policyTypes=["Ingress"], egress=[{}])],
        [policy({"matchLabels": {"app": "web"}}, policyTypes=["Egress"])],
        [policy({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, policyTypes=["Egress"])],
    ],
)
def test_a_run_does_not_restrict_egress_that_is_open(cluster: FakeCluster, policies: list[Object] | None) -> None:
    if policies is None:
        cluster.forbid("list", "networkpolicies")
    cluster.put(*policies or [])
    _, messages = submit(cluster, plan())
    assert created_policy(cluster)["policyTypes"] == ["Ingress"] and "egress" not in created_policy(cluster)
    note = "you may not list the NetworkPolicies of namespace here: if they deny egress, nodes of the run "
    assert messages == ([] if policies is not None else [note + "will not reach each other"])


KUBE_SYSTEM = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}


@pytest.mark.parametrize(
    ("rules", "allows_dns"),
    [
        ([], False),
        ([{}], True),
        ([{"ports": [{"port": 53, "protocol": "UDP"}]}], True),
        ([{"to": [KUBE_SYSTEM], "ports": [{"port": 53, "protocol": "UDP"}]}], True),
        ([{"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}]}], True),
        ([{"to": [KUBE_SYSTEM], "ports": [{"port": 1, "endPort": 100}]}, {"ports": [{"port": 443}]}], True),
        ([{"to": [KUBE_SYSTEM], "ports": [{"port": "dns"}]}], True),
        ([{"to": [{"podSelector": {}}]}], False),
        ([{"ports": [{"port": 443}]}], False),
    ],
    ids=str,
)
def test_a_namespace_that_denies_dns_as_well_is_noted_as_nodes_would_not_find_each_other(
    cluster: FakeCluster, rules: list[Object], allows_dns: bool
) -> None:
    cluster.put(policy(policyTypes=["Egress"], egress=rules))
    _, messages = submit(cluster, plan())
    note = (
        "the NetworkPolicies of namespace here deny egress, and none allows DNS (port 53), which nodes of a run "
        "without a run volume need to find each other, and most programs; ask for one that does"
    )
    assert messages == ([] if allows_dns else [note])


def test_a_run_of_one_node_gets_no_egress_rule(cluster: FakeCluster) -> None:
    cluster.put(policy(policyTypes=["Egress"]))
    submit(cluster, plan(nodes=1))
    assert created_policy(cluster)["policyTypes"] == ["Ingress"]


def test_other_refusals_are_reported_unchanged(cluster: FakeCluster) -> None:
    cluster.forbid("create", "networkpolicies")
    with pytest.raises(NotPermitted, match=r"could not submit the run: not permitted .*networkpolicies"):
        submit(cluster, plan("mpi-ssh"))
    assert not cluster.store.objects


def test_parts_of_an_earlier_jobset_that_the_cluster_is_about_to_delete_are_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection comes after the owner has gone (Kubernetes docs: background cascading deletion)."""
    monkeypatch.setattr(submitting, "_RETRY_INTERVAL", 0.001)
    cluster.forbid("*", "secrets")
    cluster.refuse("create", "networkpolicies", 409, times=2)
    cluster.refuse("create", "configmaps", 409, times=1)
    submit(cluster, plan("mpi-ssh"))
    assert sorted(cluster.kinds_created()) == ["ConfigMap", "JobSet", "NetworkPolicy"]


def test_an_existing_run_of_that_name_is_an_error(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "END_TIMEOUT", 0.0)
    cluster.put(of_kind("JobSet", "x-1", spec={}))
    text = "run x-1 already exists in here: its JobSet has not ended within 0 s; `spotmpi stop x-1` ends it"
    with pytest.raises(RunInUse, match=text):
        submit(cluster, plan())


def test_a_run_that_has_just_ended_is_resumed_once_its_jobset_has_ended_too(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent records the end before its pod ends, which is what JobSet's controller waits for."""
    cluster.put(of_kind("JobSet", "x-1", spec={}))
    ends = [of_kind("JobSet", "x-1", spec={}, status={"conditions": [{"type": "Failed", "status": "True"}]})]
    deleted = iter([of_kind("JobSet", "x-1", spec={})])  # while its pods are
    find = ClusterApi.find

    async def find_before_its_end(api: ClusterApi, kind: str, name: str) -> Object | None:
        found = await find(api, kind, name)
        if ends:
            cluster.put(ends.pop())
        return found or next(deleted, None)

    monkeypatch.setattr(stop, "_END_INTERVAL", 0.0)
    monkeypatch.setattr(reminders, "QUIET", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(ClusterApi, "find", find_before_its_end)
        _, messages = submit(cluster, plan("mpi-ssh"))
    assert "waiting until JobSet has seen that run x-1 has ended (gives up after 90 s)" in messages
    assert "waiting until the pods of run x-1 and its JobSet are deleted (gives up after 150 s)" in messages
    assert cluster.kinds_created()[0] == "JobSet"


def test_a_run_that_has_failed_for_good_is_resumed_though_its_jobset_has_not_seen_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watches of Kubernetes' Job controller pause for up to 30 s each time that an API server comes back."""
    cluster.put(of_kind("JobSet", "x-1", spec={}))

    def pod(role: str, code: int, age: float = 0.0) -> Object:
        status = {"containerStatuses": [{"name": CONTAINER, "state": {"terminated": {"exitCode": code}}}]}
        labels = {**names.run_labels("x-1"), names.LABEL_ROLE: role}
        made = a_pod(f"x-1-{role}-{code}-{age:g}", "Failed", labels, age, **status)
        return {**made, "metadata": {**made["metadata"], "namespace": "here"}}

    others = [pod(NODE, protocol.INTERRUPTED), pod(WORKER, protocol.NOT_RETRYABLE)]
    cluster.put(*others, pod(NODE, protocol.NOT_RETRYABLE, 60.0))
    with monkeypatch.context() as patch, pytest.raises(RunInUse):
        patch.setattr(stop, "END_TIMEOUT", 0.0)
        submit(cluster, plan("mpi-ssh"))
    cluster.put(pod(NODE, protocol.NOT_RETRYABLE))

    _, messages = submit(cluster, plan("mpi-ssh"))

    assert not messages


def test_a_key_pair_that_runs_share_is_the_host_key_as_well(tmp_path: Path) -> None:
    own = generate_keys()
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "id").write_text(own["id"])
    (secret / "id.pub").write_text(own["authorized_keys"])
    (secret / "authorized_keys").write_text(own["authorized_keys"])
    ssh.install_keys(str(secret), str(tmp_path / "ssh"))
    laid = {path.name: path.read_text() for path in (tmp_path / "ssh").iterdir()}
    assert laid["host_key"] == laid["id"] == own["id"]
    assert laid["known_hosts"] == "* " + own["authorized_keys"]
    assert (tmp_path / "ssh" / "host_key").stat().st_mode & 0o777 == 0o600


WHEELS = f"spotmpi-wheels-{PackedWheels('x86_64', b'wheels').digest}"


def is_mounted(objects: Sequence[Object]) -> bool:
    container = cluster_plan.pod_template(objects[0])["spec"]["containers"][0]
    return any(mount["mountPath"] == pod_context.WHEELS for mount in container["volumeMounts"])


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Sequence[Object], list[str]]]:
    """A function that sends wheels for a spec; the objects, and what it said."""

    def pack(architecture: str, echo: Callable[[str], None]) -> PackedWheels:
        if architecture not in ("x86_64", "aarch64"):
            raise SpotmpiError(f"no wheels for {architecture}")
        return PackedWheels(architecture, b"wheels")

    monkeypatch.setattr("spotmpi.images.wheels.pack", pack)

    def ship(cluster: FakeCluster, spec: JobSpec) -> tuple[Sequence[Object], list[str]]:
        messages: list[str] = []
        objects = wheels.mount(planned(spec)["objects"], spec, messages.append)
        asyncio.run(wheels.send(cluster.api(), objects, spec, messages.append))
        return objects, messages

    return ship


def test_wheels_are_sent_once_and_the_last_config_map_says_that_all_are_there(cluster: FakeCluster, ship: Any) -> None:
    for _ in range(2):
        objects, messages = ship(cluster, pool())
        assert is_mounted(objects) and messages == []
        assert [each["metadata"]["name"] for each in cluster.created] == [f"{WHEELS}-0", WHEELS]


def test_two_submissions_at_once_may_send_the_same_wheels(cluster: FakeCluster, ship: Any) -> None:
    cluster.refuse("create", "configmaps", 409, times=1)
    assert is_mounted(ship(cluster, pool())[0])
    assert [each["metadata"]["name"] for each in cluster.created] == [WHEELS]


def test_a_pool_is_submitted_without_wheels_where_there_are_none(cluster: FakeCluster, ship: Any) -> None:
    spec = pool(node_selector={"kubernetes.io/arch": "riscv64"})
    objects, (text,) = ship(cluster, spec)
    assert objects == planned(spec)["objects"] and cluster.created == []
    assert text == "pods get no wheels of Dask, so the image has to contain it: no wheels for riscv64"


def test_wheels_that_may_not_be_sent_end_the_submission_as_the_printed_pods_mount_them(
    cluster: FakeCluster, ship: Any
) -> None:
    cluster.forbid("create", "configmaps")
    with pytest.raises(NotPermitted, match="could not send the wheels of Dask to the cluster: not permitted"):
        ship(cluster, pool())


def test_a_plan_that_was_made_while_the_cluster_did_not_answer_is_printed_and_not_submitted(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    messages: list[str] = []
    backend, spec = KubernetesBackend(tmp_path), from_values({"command": ["x"], "kubernetes": {"image": "any:1"}})
    cluster.close()
    spec = spec.model_copy(update={"nodes": 2})
    planned = backend.plan(spec, "x-1", messages.append)
    reason = "could not look up what the cluster permits: cannot reach the cluster (All connection attempts failed)"
    reason += "; try `kubectl version`"
    assert planned["objects"][0]["kind"] == "JobSet"
    assert planned["unchecked"] == reason and messages == [], "a submission raises it, and a dry run says it"
    with pytest.raises(SpotmpiError, match=re.escape(reason)):
        backend.submit(spec, planned, messages.append)
    assert cluster.created == []


def without_jobset(cluster: FakeCluster) -> None:
    cluster.missing.add("jobset.x-k8s.io")


def with_old_jobset(cluster: FakeCluster) -> None:
    cluster.pruned = ["rules"]


def with_a_policy(cluster: FakeCluster) -> None:
    cluster.refuse("create", "jobsets", 403, 'admission webhook "v" denied the request: every JobSet needs an owner')


@pytest.mark.parametrize(
    ("has", "words"),
    [
        (without_jobset, "JobSet, which runs need, is not installed on the cluster; install its chart with `helm"),
        (with_old_jobset, "the CRD of JobSet on the cluster is older than 0.10"),
        (with_a_policy, 'admission webhook "v" denied the request: every JobSet needs an owner'),
    ],
)
def test_a_dry_run_says_that_the_cluster_would_refuse_the_run(
    tmp_path: Path, cluster: FakeCluster, has: Callable[[FakeCluster], None], words: str
) -> None:
    has(cluster)
    messages: list[str] = []
    spec = from_values({"command": ["x"], "kubernetes": {"image": "any:1"}})
    planned = KubernetesBackend(tmp_path).plan(spec, "x-1", messages.append)
    assert words in str(planned["unchecked"]) and not messages and cluster.created == []


def test_agents_of_a_resumed_run_are_told_of_the_attempts_that_an_empty_folder_cannot_show(
    tmp_path: Path, cluster: FakeCluster
) -> None:
    spec = from_values({"command": ["x"], "kubernetes": {"image": "any:1"}})
    (tmp_path / "x-1").mkdir()
    event = {"t": 1.0, "event": "started", "attempt": 7, "failures": 0, "interruptions": 6}
    (tmp_path / "x-1" / "events.jsonl").write_text(json.dumps(event) + "\n")
    objects = KubernetesBackend(tmp_path).plan(spec, "x-1", print)["objects"]
    assert json.loads(objects[1]["data"]["plan.json"])["attempts_before"] == 7


def test_a_user_who_may_not_create_runs_hears_so_before_anything_else(cluster: FakeCluster) -> None:
    cluster.forbid("create", "jobsets")
    cluster.forbid("create", "secrets")
    with pytest.raises(NotPermitted, match=r"you may not create JobSets in namespace here.*docs/sharing\.md"):
        submit(cluster, plan("mpi-ssh"))
    assert cluster.created == []


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ([("get", "jobsets")], "you may not get JobSets in"),
        ([("patch", "jobsets"), ("delete", "jobsets")], "you may not patch, delete JobSets in"),
        ([("create", "jobsets"), ("list", "pods")], "you may not create JobSets, or list Pods in"),
        ([("list", "pods")], "you may not list Pods in namespace here, so no runs"),
    ],
)
def test_a_user_who_could_not_start_follow_or_stop_a_run_creates_none(
    cluster: FakeCluster, rights: list[tuple[str, str]], words: str
) -> None:
    """It would hold nodes which only somebody else could give back."""
    for verb, resource in rights:
        cluster.forbid(verb, resource)
    with pytest.raises(NotPermitted, match=words):
        submit(cluster, plan())
    assert cluster.created == []


def claim(*modes: str, name: str = "runs") -> Object:
    return of_kind("PersistentVolumeClaim", name, spec={"accessModes": [*modes]})


@pytest.fixture
def shared(cluster: FakeCluster) -> None:
    """The namespace has a claim that pods on all nodes can mount."""
    cluster.put(claim("ReadWriteMany", name="shared"))


def with_claim(spec: JobSpec) -> Any:
    """The plan of a run with the run volume ``runs``."""
    run_plan = planned(spec)
    for pod in cluster_plan.templates(run_plan["objects"]):
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "volume")
        del volume["emptyDir"]
        volume["persistentVolumeClaim"] = {"claimName": "runs"}
    return run_plan


@pytest.mark.parametrize(
    ("kubernetes", "key", "missing"),
    [({}, "kubernetes.volume", "runs"), ({"mounts": [{"path": "/w", "claim": "w"}]}, "kubernetes.mounts", "w")],
)
def test_a_claim_that_does_not_exist_is_refused_before_the_run_is_created(
    cluster: FakeCluster, kubernetes: Object, key: str, missing: str
) -> None:
    cluster.put(claim("ReadWriteMany", name="runs" if missing == "w" else "other"))
    words = f"{key} = '{missing}': namespace here has no such PersistentVolumeClaim; `kubectl get pvc` lists them"
    with pytest.raises(InputError, match=words):
        submit(cluster, with_claim(from_values({**SPEC, "kubernetes": kubernetes})))
    assert cluster.created == []
    cluster.forbid("get", "persistentvolumeclaims")
    submit(cluster, with_claim(from_values({**SPEC, "kubernetes": kubernetes})))


@pytest.mark.parametrize(("mode", "nodes", "is_noted"), [("ReadWriteOnce", 2, True), ("ReadWriteOnce", 1, False)])
def test_a_claim_for_one_node_at_a_time_is_noted_for_a_run_of_several(
    cluster: FakeCluster, mode: str, nodes: int, is_noted: bool
) -> None:
    cluster.put(claim(mode))
    _, messages = submit(cluster, with_claim(from_values({**SPEC, "nodes": nodes})))
    note = "claim runs is ReadWriteOnce: if pods of the run are on several nodes, they wait"
    assert messages == [f"{note}; use one with ReadWriteMany (kubernetes.volume)"] * is_noted


@pytest.mark.usefixtures("shared")
def test_each_node_has_a_job_where_jobset_restarts_single_ones(cluster: FakeCluster, tmp_path: Path) -> None:
    image = "registry/any@sha256:0"
    spec = from_values({**SPEC, "kubernetes": {"image": image, "volume": "shared"}})
    backend = KubernetesBackend(tmp_path)
    cluster.restarts_jobs = True
    own = backend.plan(spec, "x-1", print)
    # The end of the JobSet would take what other nodes printed along.
    unkept = backend.plan(from_values({**SPEC, "kubernetes": {"image": image}}), "x-1", print)
    assert unkept["objects"][0]["spec"]["replicatedJobs"][0]["replicas"] == 1
    cluster.restarts_jobs = False
    shared = backend.plan(spec, "x-1", print)

    assert own["objects"][0]["spec"]["replicatedJobs"][0]["replicas"] == 2
    assert shared["objects"][0]["spec"]["replicatedJobs"][0]["replicas"] == 1
    (note,) = set(shared["notes"]) - set(own["notes"])
    assert note.startswith("where a node is lost, all pods of the run are replaced; JobSet 0.12 replaces the lost one")
    assert note.endswith("not allowed when RestartJob feature gate is disabled)")
    assert not cluster.created


@pytest.mark.usefixtures("shared")
def test_pods_stand_by_where_jobset_restarts_single_jobs_and_elsewhere_a_line_says_that_none_do(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    kubernetes = {"image": "registry/any@sha256:0", "volume": "shared"}
    spec = from_values({**SPEC, "standby": 1, "price": 2.5, "kubernetes": kubernetes})
    backend = KubernetesBackend(tmp_path)
    cluster.restarts_jobs = True
    own = backend.plan(spec, "x-1", print)
    cluster.restarts_jobs = False
    shared = backend.plan(spec, "x-1", print)

    _, standby = own["objects"][0]["spec"]["replicatedJobs"]
    assert (standby["replicas"], standby["dependsOn"]) == (1, [{"name": "node", "status": "Ready"}])
    note = "1 pod stands by for lost nodes for $2.5 of $7.5 an hour; where there is no room, the run goes on without"
    assert note in own["notes"]
    assert agent_plan(own)["rate"] == 7.5 and agent_plan(own)["standby"] == ["x-1-standby-0-0"]

    cluster.restarts_jobs = True
    cluster.put(of_kind("LocalQueue", "q"))
    queued = backend.plan(
        from_values({**SPEC, "standby": 1, "price": 2.5, "kubernetes": {**kubernetes, "queue": "q"}}), "x-1", print
    )
    admits = "queue q admits the run once it has quota for all 3 pods"
    assert f"1 pod stands by for lost nodes for $2.5 of $7.5 an hour; {admits}" in queued["notes"]

    assert len(shared["objects"][0]["spec"]["replicatedJobs"]) == 1
    assert "standby = 1 has no effect: no pod can take the place of a single lost node here" in shared["notes"]
    assert agent_plan(shared)["rate"] == 5.0 and "standby" not in agent_plan(shared), "for which nobody pays"


@pytest.mark.usefixtures("shared", "ship")
def test_pods_stand_by_for_the_nodes_of_a_stream_and_cost_as_nodes_do_not_as_workers(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    kubernetes = {"image": "registry/any@sha256:0", "volume": "shared"}
    workers = {"count": 4, "price": 0.25}
    stream = {"source": "s3://set/*.csv", "batch": 8, "workers": workers}
    cluster.restarts_jobs = True
    spec = from_values({**SPEC, "standby": 1, "price": 2.5, "kubernetes": kubernetes, "stream": stream})

    plan = KubernetesBackend(tmp_path).plan(spec, "x-1", print)

    note = "1 pod stands by for lost nodes for $2.5 of $8.5 an hour; where there is no room, the run goes on without"
    assert note in plan["notes"] and agent_plan(plan)["rate"] == 8.5
    nodes, standby = plan["objects"][0]["spec"]["replicatedJobs"]
    assert (nodes["replicas"], standby["replicas"]) == (2, 1)
    (workers_job,) = [each for each in plan["objects"] if each["metadata"]["name"] == "x-1-worker"]
    assert workers_job["spec"]["completions"] == 4


@pytest.mark.usefixtures("shared", "ship")
def test_the_workers_of_each_stage_have_their_image_and_price(cluster: FakeCluster, tmp_path: Path) -> None:
    stream = {
        "source": "s3://set/*.csv",
        "batch": 8,
        "postprocess": "flow:post",
        "workers": {"count": 4, "price": 0.25},
        "postprocess_workers": {"count": 2, "price": 1, "image": "registry/video@sha256:1"},
    }
    kubernetes = {"image": "registry/any@sha256:0", "volume": "shared"}
    spec = from_values({**SPEC, "price": 2.5, "kubernetes": kubernetes, "stream": stream})

    plan = KubernetesBackend(tmp_path).plan(spec, "x-1", print)

    assert agent_plan(plan)["rate"] == 2 * 2.5 + 4 * 0.25 + 2 * 1
    jobs = {each["metadata"]["name"]: each["spec"] for each in plan["objects"] if each["kind"] == "Job"}
    assert {name: (job["completions"], pods.image(job["template"])) for name, job in jobs.items()} == {
        "x-1-worker": (4, "registry/any@sha256:0"),
        "x-1-postprocess": (2, "registry/video@sha256:1"),
    }
    assert [role["table"] for role in agent_plan(plan)["roles"]] == [
        "resources",
        "stream.workers",
        "stream.postprocess_workers",
    ]


@pytest.mark.usefixtures("shared")
def test_several_numbers_of_nodes_need_a_jobset_that_restarts_single_jobs(cluster: FakeCluster, tmp_path: Path) -> None:
    kubernetes = {"image": "registry/any@sha256:0", "volume": "shared"}
    spec = from_values({**SPEC, "nodes": [2, 4], "price": 2.5, "kubernetes": kubernetes})
    backend = KubernetesBackend(tmp_path)
    cluster.restarts_jobs = True
    plan = backend.plan(spec, "x-1", print)
    (nodes,) = plan["objects"][0]["spec"]["replicatedJobs"]
    assert nodes["replicas"] == 4
    agents = agent_plan(plan)
    assert agents["elastic"] == {"sizes": [2, 4], "patience": 600.0} and agents["replaces_nodes"]
    assert (len(agents["hosts"]), agents["rate"]) == (4, 10.0)
    note = "each attempt has 2 or 4 nodes, as many as there are; pods beyond that stand by, and cost as much as nodes"
    assert note in plan["notes"]
    backend.submit(spec, plan, print)
    assert cluster.created, "each number is one that the client can encode"

    cluster.restarts_jobs = False
    with pytest.raises(InputError) as refused:
        backend.plan(spec, "x-1", print)
    (line,) = map(str, refused.value.problems)
    assert line.startswith("nodes = [2, 4]: give one number of nodes: where a node is lost, all pods of the run")
    assert "JobSet 0.12 replaces the lost one alone with its feature gate RestartJob" in line


def agent_plan(plan: Any) -> dict[str, Any]:
    """The agent plan in the ConfigMap of a plan."""
    (part,) = [each for each in plan["objects"] if each["kind"] == "ConfigMap"]
    values: dict[str, Any] = json.loads(part["data"]["plan.json"])
    return values


def test_nobody_asks_what_jobset_restarts_for_a_run_of_one_node_or_of_too_many(cluster: FakeCluster) -> None:
    cluster.restarts_jobs = True
    reason = asyncio.run(restart_obstacle(cluster.api(), "x-1", 1025))
    assert (
        reason
        == "where a node is lost, all pods of the run are replaced: JobSet restarts single Jobs of at most 1,024 nodes"
    )
    assert not cluster.requests
    assert asyncio.run(restart_obstacle(cluster.api(), "x-1", 1024)) is None
    (request,) = cluster.requests
    assert request.parameters["dryRun"] == "All" and request.name == "x-1-sample"


def test_a_cluster_that_does_not_answer_what_jobset_restarts_says_so(cluster: FakeCluster) -> None:
    cluster.refuse("create", "jobsets", 500, "no endpoints available for service jobset-webhook-service")
    with pytest.raises(SpotmpiError, match=r"look up what JobSet can restart: .*no endpoints available"):
        asyncio.run(restart_obstacle(cluster.api(), "x-1", 2))
