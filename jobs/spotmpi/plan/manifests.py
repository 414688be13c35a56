"""Makes the Kubernetes objects of a run. Pure; keys, times and code are arguments."""

from __future__ import annotations

import base64
import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotmpi.agent import protocol, record, ssh
from spotmpi.agent.placement import initial, to_text
from spotmpi.agent.plan import NODE, STANDBY, RunPlan, UserCode
from spotmpi.agent.pod_context import AGENT_PLAN, PLACEMENT_ANNOTATION
from spotmpi.core import names
from spotmpi.core.archives import digest
from spotmpi.plan import placement, pods, pool
from spotmpi.plan.agent_plan import AgentInputs, agent_plan, pod_layout
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.cluster_plan import ANNOTATION_SPEC, agent_plan_text, cached_plan, pod_templates
from spotmpi.plan.placement import Beginning
from spotmpi.plan.templates import Object
from spotmpi.spec.job import JobSpec
from spotmpi.spec.workers import Workers

OWNER_UID = "<uid of the JobSet>"  # filled in once the JobSet exists
TTL_SECONDS = 24 * 3600
ANNOTATION_PLAN = "spotmpi.dev/plan"
ANNOTATION_OWNER = "spotmpi.dev/owner"
ANNOTATION_FOLDER = "spotmpi.dev/folder"
ANNOTATION_STOPPED = "spotmpi.dev/stopped"  # why it is being deleted
ANNOTATION_GIVEN_UP = "spotmpi.dev/given-up"  # why a follower ended a run that had no coordinator
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
RESTART_JOB = "RestartJob"  # action of a failure policy: one Job alone
MAX_JOBS = 1024  # of a JobSet with that action
JOBSET_API = "jobset.x-k8s.io/v1alpha2"


@dataclass(frozen=True)
class Submission:
    """What differs from one submission of the same spec to the next."""

    run: str
    owner: str
    keys: dict[str, str]  # of the run's Secret
    code: dict[str, bytes]  # archives by file name
    work: dict[str, Any]
    user_code: UserCode | None = None
    rate: float | None = None  # US dollars per hour of all nodes, where known
    rates: Mapping[str, float] = field(default_factory=dict)  # and by node group, where the gang may be on several
    versions: dict[str, str] | None = None  # of Python and packages where the run is submitted
    beginning: Beginning = field(default_factory=Beginning)  # where the gang may be on several


def kubernetes_plan(
    spec: JobSpec, target: ClusterTarget, submission: Submission, worker_targets: Sequence[ClusterTarget] = ()
) -> list[Object]:
    """The JobSet, then what it owns: ConfigMap, Secret, NetworkPolicy, the workers' Jobs; in the order of creation.

    *worker_targets* are those of each role of workers, by default *target*.
    """
    job = _job(spec, target, submission)
    agents = _agents(spec, target, submission, pods.image(job["spec"]["template"]))
    state = to_text(initial(agents["capacity"])) if target.order else None
    parts = [_config_map(submission, agents), _secret(submission), _network_policy(submission, target.egress_denied)]
    for workers, on in zip(spec.workers, worker_targets or [target] * len(spec.workers), strict=True):
        parts.append(_workers(spec, workers, on, submission))
    if state is not None:
        parts.append(_controller(spec, target, submission))
    for part in parts:
        part["metadata"]["namespace"] = target.namespace
    jobset = _jobset(spec, target, submission, job, digest(json.dumps(agents, sort_keys=True).encode()))
    for part in [jobset, *pod_templates(jobset)] if state is not None else ():
        part["metadata"]["annotations"][PLACEMENT_ANNOTATION] = state
    return [jobset, *parts]


def with_shared_keys(objects: Sequence[Object], secret: str) -> list[Object]:
    """A plan's objects without its Secret; the pods take the SSH key pair and the TLS files of *secret* instead."""
    remaining = [copy.deepcopy(each) for each in objects if each["kind"] != "Secret"]
    for volume in (each for pod in pod_templates(remaining[0]) for each in pod["spec"]["volumes"]):
        if volume["name"] == pods.KEYS:
            keys = (ssh.CLIENT_KEY, ssh.PUBLIC_KEY, ssh.AUTHORIZED, *protocol.TLS_FILES)
            # Where keys are missing, the agent says which ones, instead of a pod that waits for ever.
            taken = {"secretName": secret, "items": [{"key": key, "path": key} for key in keys], "optional": True}
            volume["secret"] = {**volume["secret"], **taken}
    return remaining


def _agents(spec: JobSpec, target: ClusterTarget, submission: Submission, image: str | None) -> RunPlan:
    """The plan that the agents in pods of this *image* carry out."""
    run = submission.run
    cached = json.dumps(cached_plan(spec.title, run, None, target.namespace), indent=1) + "\n"
    files = {names.SPEC: spec.to_toml(), record.PLAN: cached}
    work = {**submission.work, "container": image}
    inputs = AgentInputs(work, files, submission.user_code, submission.rate, dict(target.machine), submission.versions)
    agents = agent_plan(spec, run, inputs, pod_layout(run, spec.nodes, target.job_per_node))
    if target.job_per_node:
        agents["replaces_nodes"] = True
    with_standby = spec.checkpoint.grace / 2 if spec.standby else None
    if (margin := spec.checkpoint.margin or with_standby) is not None:
        agents["margin"] = margin
    if spec.standby:
        agents["standby"] = [names.standby_host(run, index) for index in range(spec.standby)]
    if target.order:
        agents["capacity"] = placement.capacity(spec, target, run, submission.rates, submission.beginning)
    return agents


def _jobset(spec: JobSpec, target: ClusterTarget, submission: Submission, job: Object, plan_hash: str) -> Object:
    """The JobSet, suspended, with the *job* of its nodes and that of pods that stand by."""
    run = submission.run
    annotations = {
        ANNOTATION_SPEC: json.dumps(spec.model_dump(mode="json", exclude_defaults=True), sort_keys=True),
        ANNOTATION_PLAN: plan_hash,
        ANNOTATION_OWNER: submission.owner,
        ANNOTATION_FOLDER: f"runs/{run}" if target.volume else "",
    }
    # Of several allowed numbers the largest, in a type that the client of Kubernetes encodes.
    replicas = int(spec.nodes) if target.job_per_node else 1
    replicated = [{"name": NODE, "replicas": replicas, "template": job}]
    if standby := _standby(spec, target, submission):
        replicated.append(standby)
    if spec.workers:
        annotations[pool.ANNOTATION_WORKERS] = str(spec.workers[0].count)
    return {
        "apiVersion": JOBSET_API,
        "kind": "JobSet",
        "metadata": {
            "name": run,
            "namespace": target.namespace,
            "labels": _queued_labels(spec, run),
            "annotations": annotations,
        },
        "spec": {
            "suspend": True,
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            # Of Jobs for one node each, node 0's ends first: others wait for the end of the JobSet.
            **({"successPolicy": {"operator": "Any"}} if target.job_per_node else {}),
            "failurePolicy": _failure_policy(spec.limits.failures, target.job_per_node, standby is not None),
            "replicatedJobs": replicated,
        },
    }


def _queued_labels(spec: JobSpec, run: str) -> dict[str, str]:
    """The labels of what a queue, if there is one, admits."""
    queue = {LABEL_QUEUE: spec.kubernetes.queue} if spec.kubernetes.queue else {}
    return spec.kubernetes.labels | names.run_labels(run) | queue


def restart_sample(namespace: str, run: str) -> Object:
    """A JobSet by which the API server tells whether JobSet restarts single Jobs; never created."""
    pod = {"restartPolicy": "Never", "containers": [{"name": pods.CONTAINER, "image": pods.CONTAINER}]}
    job = {"spec": {"backoffLimit": 0, "template": {"spec": pod}}}
    return {
        "apiVersion": JOBSET_API,
        "kind": "JobSet",
        "metadata": {"name": run, "namespace": namespace, "labels": names.run_labels(run)},
        "spec": {
            "suspend": True,
            "failurePolicy": _failure_policy(0, job_per_node=True),
            "replicatedJobs": [{"name": NODE, "replicas": 1, "template": job}],
        },
    }


def _standby(spec: JobSpec, target: ClusterTarget, submission: Submission) -> Object | None:
    """The replicated Job of the pods that stand by, if there are any: created once all nodes have their pods.

    So they take no place that a node needs, and the run begins without them where there is no room.
    """
    if not spec.standby:
        return None
    assert target.job_per_node, "else no lost node is replaced alone"
    job = _job(spec, target, submission, STANDBY)
    ready = {"name": NODE, "status": "Ready"}
    return {"name": STANDBY, "replicas": spec.standby, "dependsOn": [ready], "template": job}


def _failure_policy(failures: int, job_per_node: bool, standby: bool = False) -> Object:
    """The first rule that matches decides: not retryable, an interruption, else a failure that counts.

    Of pods that stand by none counts: agents record what happens to one that was promoted.
    """
    restart = RESTART_JOB if job_per_node else "RestartJobSet"  # which is the default
    failed = [{"name": "failed", "action": restart}] if job_per_node else []
    of_standby = {"name": "standby", "action": f"{restart}AndIgnoreMaxRestarts", "targetReplicatedJobs": [STANDBY]}
    return {
        "maxRestarts": failures,
        "rules": [
            {
                "name": "notRetryable",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": [f".* exit code {protocol.NOT_RETRYABLE} .*"],
            },
            *([of_standby] if standby else []),
            {
                "name": "interrupted",
                "action": f"{restart}AndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            },
            *failed,
        ],
    }


def _job(spec: JobSpec, target: ClusterTarget, submission: Submission, role: str = NODE) -> Object:
    """The Job of all pods of a role, or of one where each has its own; none starts a pod again by itself."""
    pods_of_job = 1 if target.job_per_node else spec.nodes
    job: Object = {
        "parallelism": pods_of_job,
        "completions": pods_of_job,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                pods.on_exit("FailJob", protocol.INTERRUPTED, protocol.NOT_RETRYABLE),
                pods.on_disruption("FailJob"),
            ]
        },
        "template": pods.template(spec, target, submission.run, role),
    }
    if spec.limits.run is not None:
        # It starts anew with each attempt: a backstop of the deadline that the agents enforce.
        job["activeDeadlineSeconds"] = math.ceil(spec.limits.run + spec.limits.start)
        if target.order:
            job["activeDeadlineSeconds"] += math.ceil(spec.capacity.patience)
    if not target.job_per_node and not (spec.launcher == "none" and spec.run_on == "all"):
        job["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    return {"metadata": {"labels": spec.kubernetes.labels | names.run_labels(submission.run)}, "spec": job}


def _part(kind: str, version: str, submission: Submission) -> Object:
    owner = {"apiVersion": JOBSET_API, "kind": "JobSet", "name": submission.run, "uid": OWNER_UID}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": names.parts_name(submission.run),
            "labels": names.run_labels(submission.run),
            "ownerReferences": [owner],
        },
    }


def _workers(spec: JobSpec, workers: Workers, target: ClusterTarget, submission: Submission) -> Object:
    part = _part("Job", "batch/v1", submission)
    metadata = {
        **part["metadata"],
        "name": names.workers_name(submission.run, workers.role),
        "labels": _queued_labels(spec, submission.run),
    }
    return {**part, "metadata": metadata, "spec": pool.workers_job(spec, workers, target, submission.run)}


def _controller(spec: JobSpec, target: ClusterTarget, submission: Submission) -> Object:
    part = _part("Job", "batch/v1", submission)
    metadata = {**part["metadata"], "name": names.controller_name(submission.run)}
    return {**part, "metadata": metadata, "spec": placement.controller_job(spec, target, submission.run)}


def _config_map(submission: Submission, agents: RunPlan) -> Object:
    return {
        **_part("ConfigMap", "v1", submission),
        "data": {AGENT_PLAN: agent_plan_text(agents), **pods.config_files()},
        "binaryData": {name: base64.b64encode(data).decode() for name, data in sorted(submission.code.items())},
    }


def _secret(submission: Submission) -> Object:
    return {**_part("Secret", "v1", submission), "type": "Opaque", "stringData": dict(submission.keys)}


def _network_policy(submission: Submission, egress_denied: bool) -> Object:
    """Pods of one run may reach each other on all ports; all else is up to the namespace."""
    policy = {
        **_part("NetworkPolicy", "networking.k8s.io/v1", submission),
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_RUN: submission.run}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [_peers(submission.run)]}],
        },
    }
    return with_egress(policy) if egress_denied else policy


def with_egress(policy: Object) -> Object:
    """A run's NetworkPolicy for a namespace that denies egress: its pods may also open connections to each other.

    In other namespaces it would close what is open: a policy for egress denies all egress that no policy allows.
    """
    run = policy["spec"]["podSelector"]["matchLabels"][names.LABEL_RUN]
    both = {"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [_peers(run)]}]}
    return {**policy, "spec": {**policy["spec"], **both}}


def _peers(run: str) -> Object:
    return {"podSelector": {"matchLabels": {names.LABEL_RUN: run}}}
