"""Creates the objects of a run in order: the JobSet suspended, then the parts it owns; then unsuspends it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lightkube import ApiError

from spotmpi.agent import protocol, ssh
from spotmpi.backends.kubernetes import stop
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import already_exists, translate_errors
from spotmpi.backends.kubernetes.follow.jobset import submission_time
from spotmpi.core import names
from spotmpi.core.certificates import run_certificates
from spotmpi.core.errors import NotPermitted, RunInUse, SpotmpiError, input_error
from spotmpi.core.progress import Say
from spotmpi.plan import manifests, pods
from spotmpi.plan.cluster import ClusterPlan

_GARBAGE_COLLECTION = 20.0  # seconds in which the cluster deletes what a deleted object owned
_RETRY_INTERVAL = 0.2  # seconds


class _SecretForbidden(Exception):
    """The user may not create Secrets."""


class CreatedRun(NamedTuple):
    """A run's objects, and the time of submission by the API server's clock, in whole Unix seconds."""

    objects: Sequence[Object]
    submitted: float


def generate_keys() -> dict[str, str]:
    """The SSH keys of a run's Secret by file name: new ED25519 keys in OpenSSH's formats.

    One client key, and one host key that all pods of the run share.
    """
    client, host = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    return {
        ssh.CLIENT_KEY: _private_key(client),
        ssh.AUTHORIZED: f"{_public_key(client)}\n",
        ssh.HOST_KEY: _private_key(host),
        ssh.KNOWN_HOSTS: f"* {_public_key(host)}\n",
    }


def _private_key(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    ).decode()


def _public_key(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def with_attempts_before(plan: ClusterPlan, attempts: int) -> ClusterPlan:
    """The plan of a run that has had so many attempts: without a run volume its pods cannot know."""
    return {**plan, "objects": [_with_agent_plan(part, attempts_before=attempts) for part in plan["objects"]]}


async def create(api: ClusterApi, plan: ClusterPlan, say: Say) -> CreatedRun:
    """Create a planned run.

    Where the user may not create Secrets, the run uses the keys of the existing Secret that the plan names.

    Raises:
        RunInUse: a run of that name exists.
        InputError: no queue of Kueue would ever admit it.
        SpotmpiError: the API server refused an object, JobSet is too old, or an existing Secret lacks keys; nothing of
            the run is left.
    """
    with translate_errors("submit the run"):
        try:
            await _require_queue(api, plan["objects"][0], say)
            await stop.delete_ended(api, plan["run"])
            objects = await _with_egress(api, plan["objects"], say)
            try:
                return await _create_all(api, objects)
            except _SecretForbidden as error:
                objects = await _without_secret(api, plan, objects, error)
                say(f"you may not create Secrets: the run shares the keys of {plan['ssh_secret']}")
                await stop.delete_and_wait(api, plan["run"])
                return await _create_all(api, objects)
        except ApiError as error:
            if already_exists(error):
                raise RunInUse(f"run {plan['run']} already exists in {plan['namespace']}") from error
            raise


async def _require_queue(api: ClusterApi, jobset: Object, say: Say) -> None:
    """Refuse a run whose queue does not exist: it would wait for ever, and Kueue writes no event about that.

    *say* gets a message where the user may not look it up.
    """
    queue = jobset["metadata"]["labels"].get(manifests.LABEL_QUEUE)
    try:
        if queue is None or await api.has_queue(queue):
            return
    except ApiError as error:
        if error.status.code == 403:
            right = "ask for `get` on `localqueues` of kueue.x-k8s.io"
            say(f"you may not read queues in namespace {api.namespace}: if it has no {queue}, the run waits; {right}")
            return
        raise
    problem = f"namespace {api.namespace} has no such LocalQueue of Kueue; `kubectl get localqueues` lists them"
    raise input_error("kubernetes.queue", queue, problem)


async def _with_egress(api: ClusterApi, objects: Sequence[Object], say: Say) -> Sequence[Object]:
    """The objects, with a policy that lets pods reach each other where the namespace denies egress."""
    jobset, *_ = objects
    single = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] == 1
    single = single and manifests.workers_template(objects) is None
    labels = manifests.pod_template(jobset)["metadata"]["labels"]
    if single or any(_allows_egress(each) for each in objects) or not await denies_egress(api, labels, say):
        return objects
    return [manifests.with_egress(each) if each["kind"] == "NetworkPolicy" else each for each in objects]


def _allows_egress(part: Object) -> bool:
    return part["kind"] == "NetworkPolicy" and "Egress" in part["spec"]["policyTypes"]


async def _create_all(api: ClusterApi, objects: Sequence[Object]) -> CreatedRun:
    jobset, *parts = objects
    answer = await api.create(jobset)
    run, time_submitted = jobset["metadata"]["name"], submission_time(answer)
    parts = [_with_agent_plan(part, submitted=time_submitted) for part in parts]  # from which limits count
    try:
        _require_current_jobset(jobset, answer)
        # The Secret first: where it is refused the JobSet is deleted and created anew, and owns nothing yet.
        uid = answer["metadata"]["uid"]
        for part in parts:
            if part["kind"] == "Secret":
                await _create_part(api, part, uid)
        requests = [_create_part(api, part, uid) for part in parts if part["kind"] != "Secret"]
        requests.append(_check_job(api, jobset))
        # The others at once. All are waited for: one created after the JobSet was deleted would stay for a while.
        for failure in await asyncio.gather(*requests, return_exceptions=True):
            if failure is not None:
                raise failure
        if manifests.LABEL_QUEUE not in jobset["metadata"]["labels"]:
            jobs = [(part["kind"], part["metadata"]["name"]) for part in parts if part["kind"] == cluster_api.JOB]
            for kind, name in [(cluster_api.JOBSET, run), *jobs]:
                await api.patch(kind, name, {"spec": {"suspend": False}})
    except BaseException:
        await api.delete(cluster_api.JOBSET, run)
        raise
    return CreatedRun([jobset, *parts], time_submitted)


def _require_current_jobset(jobset: Object, created: Object) -> None:
    """Refuse a JobSet that is too old: the API server drops the fields that it does not know, without an error."""
    patterns = [
        [rule.get("onJobFailureMessagePatterns") for rule in each["spec"]["failurePolicy"]["rules"]]
        for each in (jobset, created)
    ]
    if patterns[0] != patterns[1]:
        chart = "oci://registry.k8s.io/jobset/charts/jobset"
        raise SpotmpiError(
            "the CRD of JobSet on the cluster is older than 0.10, and runs would end for good if a node is reclaimed; "
            f"upgrade JobSet with `helm upgrade jobset {chart} --namespace jobset-system`, and the CRD, which Helm "
            f"skips, with `helm show crds {chart} | kubectl apply --server-side --force-conflicts -f -`"
        )


async def _check_job(api: ClusterApi, jobset: Object) -> None:
    """Raise ApiError where the API server or an admission webhook refuses the gang's Job.

    JobSet would try to create it again and again, and say so in its own log only (kubernetes-sigs/jobset#1024).
    """
    (replicated,) = jobset["spec"]["replicatedJobs"]
    metadata = {"name": names.job_name(jobset["metadata"]["name"]), "namespace": jobset["metadata"]["namespace"]}
    metadata["labels"] = replicated["template"]["metadata"]["labels"]
    job = {"apiVersion": "batch/v1", "kind": cluster_api.JOB, "metadata": metadata}
    try:
        await api.create({**job, "spec": replicated["template"]["spec"]}, dry_run=True)
    except ApiError as error:
        # Others say nothing of the Job: a user without the right to create it, a webhook that knows no dry run.
        if error.status.code == 422 or re.search("denied (the )?request", str(error.status.message)):
            raise


def _with_agent_plan(part: Object, **values: float) -> Object:
    """A part of the plan; the ConfigMap's agent plan gets what only the submission knows."""
    if part["kind"] != cluster_api.CONFIG_MAP:
        return part
    agent_plan = {**json.loads(part["data"]["plan.json"]), **values}
    return {**part, "data": {**part["data"], "plan.json": json.dumps(agent_plan, indent=1, sort_keys=True)}}


async def _create_part(api: ClusterApi, part: Object, uid: str) -> None:
    """Create one part; waits while one of an earlier JobSet of this name is still being garbage-collected."""
    deadline = time.monotonic() + _GARBAGE_COLLECTION
    while True:
        try:
            await api.create(_complete(part, uid))
            return
        except ApiError as error:
            if part["kind"] == "Secret" and error.status.code == 403:
                raise _SecretForbidden(str(error.status.message)) from error
            if not already_exists(error) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_RETRY_INTERVAL)


async def _without_secret(
    api: ClusterApi, plan: ClusterPlan, objects: Sequence[Object], refusal: _SecretForbidden
) -> Sequence[Object]:
    """The plan's objects with the keys of an existing Secret; NotPermitted where that is not possible."""
    variables = manifests.forwarded_variables(objects)
    if manifests.workers_template(objects) is not None:
        raise NotPermitted(
            "could not create the run's Secret, and workers share their TLS key with no other run: "
            f"not permitted ({refusal}); ask for the right to create Secrets in {plan['namespace']}"
        ) from refusal
    if plan["ssh_secret"] and not variables:
        await _require_tls_files(api, plan["ssh_secret"])
        return manifests.with_shared_keys(objects, plan["ssh_secret"])
    remedy = "name a Secret with keys for SSH and TLS (kubernetes.ssh_secret)"
    if variables:
        remedy = f"keep {', '.join(variables)} in a Secret (kubernetes.secret_env) instead of forwarding them"
    raise NotPermitted(
        f"could not create the run's Secret: not permitted ({refusal}); "
        f"ask for the right to create Secrets in {plan['namespace']}, or {remedy}"
    ) from refusal


async def _require_tls_files(api: ClusterApi, secret: str) -> None:
    """Refuse an existing Secret without TLS files, where the user may read it; elsewhere the run's agents do."""
    try:
        found = await api.find("Secret", secret)
    except ApiError as error:
        if error.status.code == 403:
            return
        raise
    if found is None:
        raise SpotmpiError(f"namespace {api.namespace} has no Secret {secret}; name another in kubernetes.ssh_secret")
    if missing := [name for name in protocol.TLS_FILES if name not in (found.get("data") or {})]:
        raise SpotmpiError(f"Secret {secret} has no {', '.join(missing)}; {ssh.TLS_REMEDY}")


def _complete(part: Object, uid: str) -> Object:
    """A part of the plan with its owner's uid, and keys where it is the Secret."""
    owners = [{**owner, "uid": uid} for owner in part["metadata"]["ownerReferences"]]
    if part["kind"] != "Secret":
        return {**part, "metadata": {**part["metadata"], "ownerReferences": owners}}
    certificates = run_certificates(part["metadata"]["name"])
    keys = {"stringData": {**generate_keys(), **certificates, **_forwarded_values(part)}}
    return {**part, "metadata": {**part["metadata"], "ownerReferences": owners}, **keys}


def _forwarded_values(secret: Object) -> dict[str, str]:
    """The forwarded variables of the run's Secret, by key, with their values in this process's environment."""
    values = {pods.forwarded_key(name): value for name, value in os.environ.items()}
    return {key: values[key] for key in secret["stringData"] if key in values}


async def denies_egress(api: ClusterApi, labels: Mapping[str, str], say: Say) -> bool:
    """Whether a NetworkPolicy of the namespace isolates pods with *labels* for egress.

    False where the policies may not be listed; *say* then gets a warning. Semantics: networking.k8s.io/v1,
    NetworkPolicySpec.
    """
    try:
        policies = await api.list(cluster_api.NETWORK_POLICY)
    except ApiError as error:
        if error.status.code != 403:
            raise
        say(
            f"you may not list the NetworkPolicies of namespace {api.namespace}: if they deny egress, nodes of the run "
            "will not reach each other"
        )
        return False
    return any(_isolates(policy.get("spec") or {}, labels) for policy in policies)


def _isolates(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    types = spec.get("policyTypes") or (["Egress"] if spec.get("egress") else [])
    return "Egress" in types and _selects(spec.get("podSelector") or {}, labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    required = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in required.items()):
        return False
    return all(_matches(each, labels) for each in selector.get("matchExpressions") or [])


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels
