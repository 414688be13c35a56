"""The Kubernetes objects of a run. Pure and deterministic: keys, times and code come in as arguments."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from spotmpi.agent import protocol
from spotmpi.core import names
from spotmpi.core.archives import digest
from spotmpi.core.errors import UnreadableRun
from spotmpi.plan import pods
from spotmpi.plan.agent_plan import Shipped, pod_plan
from spotmpi.plan.cluster_target import ClusterTarget
from spotmpi.spec.job import JobSpec

Object = dict[str, Any]

OWNER_UID = "<uid of the JobSet>"  # filled in once the JobSet exists
TTL_SECONDS = 24 * 3600
ANNOTATION_SPEC = "spotmpi.dev/spec"
ANNOTATION_PLAN = "spotmpi.dev/plan"
ANNOTATION_OWNER = "spotmpi.dev/owner"
ANNOTATION_FOLDER = "spotmpi.dev/folder"
ANNOTATION_STOPPED = "spotmpi.dev/stopped"  # why somebody deletes it
ANNOTATION_GIVEN_UP = "spotmpi.dev/given-up"  # why a follower ended a run that nobody led
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
LABEL_INDEX = "batch.kubernetes.io/job-completion-index"
BACKEND = names.KUBERNETES
JOBSET_API = "jobset.x-k8s.io/v1alpha2"


@dataclass(frozen=True)
class Submission:
    """What differs from one submission of the same spec to the next."""

    run: str
    owner: str
    keys: dict[str, str]  # of the run's Secret
    code: dict[str, bytes]  # archives by file name
    work: dict[str, Any]
    user_code: dict[str, Any] | None = None  # as in `pod_plan.Shipped`
    rate: float | None = None  # US dollars per hour of all nodes, where known


def kubernetes_plan(spec: JobSpec, target: ClusterTarget, submission: Submission) -> list[Object]:
    """The JobSet, then what it owns: ConfigMap, Secret, NetworkPolicy; in the order of creation."""
    copied = json.dumps(copied_plan(spec, submission.run, None, target.namespace), indent=1) + "\n"
    files = {"spec.toml": spec.to_toml(), "plan.yaml": copied}
    job = _job(spec, target, submission)
    work = {**submission.work, "container": pods.image(job["spec"]["template"])}
    shipped = Shipped(work, files, submission.user_code, submission.rate, dict(target.machine))
    agents = pod_plan(spec, submission.run, shipped)
    parts = [_config_map(submission, agents), _secret(submission), _network_policy(submission, target.egress_denied)]
    for part in parts:
        part["metadata"]["namespace"] = target.namespace
    return [_jobset(spec, target, submission, job, digest(json.dumps(agents, sort_keys=True).encode())), *parts]


def spec_of(jobset: Mapping[str, Any]) -> JobSpec:
    """The spec that a run's JobSet carries in its annotations; UnreadableRun where it carries none that we know."""
    name, text = jobset["metadata"]["name"], annotations_of(jobset).get(ANNOTATION_SPEC)
    if text is None:
        remedy = f"`kubectl describe jobset {name}` shows whose it is"
        raise UnreadableRun(f"JobSet {name} has no annotation {ANNOTATION_SPEC}; {remedy}")
    try:
        return JobSpec.model_validate(json.loads(text))
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UnreadableRun(f"this version cannot read JobSet {name} ({found}); upgrade spotmpi") from error
    except ValueError as error:
        raise UnreadableRun(f"annotation {ANNOTATION_SPEC} of JobSet {name} is not JSON: {error}") from error


def annotations_of(jobset: Mapping[str, Any]) -> Mapping[str, str]:
    """The annotations of a JobSet, which may have none."""
    found: Mapping[str, str] = jobset["metadata"].get("annotations") or {}
    return found


def pod_template(jobset: Mapping[str, Any]) -> Object:
    """The pod template within a run's JobSet."""
    template: Object = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return template


def copied_plan(spec: JobSpec, run: str, context: str | None, namespace: str) -> dict[str, Any]:
    """The plan in a copy of a run: where the run really is."""
    return {"run": run, "name": spec.title, "backend": BACKEND, "context": context, "namespace": namespace}


def mounted(jobset: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]] | None:
    """The claim, image and pull secrets that a run's pods have; None for a run without a run volume."""
    pod = pod_template(jobset)["spec"]
    kept: Object = next((volume for volume in pod.get("volumes") or [] if volume["name"] == "volume"), {})
    if "persistentVolumeClaim" not in kept:
        return None
    secrets = tuple(secret["name"] for secret in pod.get("imagePullSecrets") or [])
    return kept["persistentVolumeClaim"]["claimName"], str(pods.image(pod_template(jobset))), secrets


def _jobset(spec: JobSpec, target: ClusterTarget, submission: Submission, job: Object, plan_hash: str) -> Object:
    run = submission.run
    labels = spec.kubernetes.labels | names.run_labels(run)
    if spec.kubernetes.queue:
        labels[LABEL_QUEUE] = spec.kubernetes.queue
    return {
        "apiVersion": JOBSET_API,
        "kind": "JobSet",
        "metadata": {
            "name": run,
            "namespace": target.namespace,
            "labels": labels,
            "annotations": {
                ANNOTATION_SPEC: json.dumps(spec.model_dump(mode="json", exclude_defaults=True), sort_keys=True),
                ANNOTATION_PLAN: plan_hash,
                ANNOTATION_OWNER: submission.owner,
                ANNOTATION_FOLDER: f"runs/{run}" if target.volume else "",
            },
        },
        "spec": {
            "suspend": True,
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": _failure_policy(spec),
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": job}],
        },
    }


def _failure_policy(spec: JobSpec) -> Object:
    """The first rule that fits decides: an end for good, an interruption, else a failure that counts."""
    return {
        "maxRestarts": spec.limits.failures,
        "rules": [
            {
                "name": "notRetryable",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": [f".* exit code {protocol.NOT_RETRYABLE} .*"],
            },
            {
                "name": "interrupted",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            },
        ],
    }


def _job(spec: JobSpec, target: ClusterTarget, submission: Submission) -> Object:
    job: Object = {
        "parallelism": spec.nodes,
        "completions": spec.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": pods.CONTAINER,
                        "operator": "In",
                        "values": [protocol.INTERRUPTED, protocol.NOT_RETRYABLE],
                    },
                },
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": pods.template(spec, target, submission.run),
    }
    if spec.limits.run is not None:
        # Starts anew with each attempt: the agents hold the real deadline, this one only backs them up.
        job["activeDeadlineSeconds"] = math.ceil(spec.limits.run + spec.limits.start)
    if not (spec.launcher == "none" and spec.where == "every"):
        job["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    return {"metadata": {"labels": names.run_labels(submission.run)}, "spec": job}


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


def _config_map(submission: Submission, agents: dict[str, Any]) -> Object:
    return {
        **_part("ConfigMap", "v1", submission),
        "data": {"plan.json": json.dumps(agents, indent=1, sort_keys=True), **pods.config_files()},
        "binaryData": {name: base64.b64encode(data).decode() for name, data in sorted(submission.code.items())},
    }


def _secret(submission: Submission) -> Object:
    return {**_part("Secret", "v1", submission), "type": "Opaque", "stringData": dict(submission.keys)}


def _network_policy(submission: Submission, egress_denied: bool) -> Object:
    """Pods of one run talk to each other on all ports; what else they may do, the namespace says."""
    policy = {
        **_part("NetworkPolicy", "networking.k8s.io/v1", submission),
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_RUN: submission.run}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [_peers(submission.run)]}],
        },
    }
    return allowing_egress(policy) if egress_denied else policy


def allowing_egress(policy: Object) -> Object:
    """A run's NetworkPolicy for a namespace that denies egress: its pods may open connections to each other too.

    Elsewhere this would close what is open: a policy for egress denies all egress that none allows.
    """
    run = policy["spec"]["podSelector"]["matchLabels"][names.LABEL_RUN]
    both = {"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [_peers(run)]}]}
    return {**policy, "spec": {**policy["spec"], **both}}


def _peers(run: str) -> Object:
    return {"podSelector": {"matchLabels": {names.LABEL_RUN: run}}}
