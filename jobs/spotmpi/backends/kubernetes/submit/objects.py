"""Creates the objects of a run in order: the JobSet suspended, then the parts it owns; then unsuspends it."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lightkube import ApiError

from spotmpi.agent import ssh
from spotmpi.agent.placement import waits_until
from spotmpi.backends.kubernetes import stop
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import already_exists, translate_errors
from spotmpi.backends.kubernetes.follow.jobset import placement_state, submission_time
from spotmpi.core import names
from spotmpi.core.certificates import run_certificates
from spotmpi.core.errors import RunInUse, SpotmpiError
from spotmpi.core.wording import Echo
from spotmpi.plan import manifests, pods
from spotmpi.plan.cluster_plan import ClusterPlan, with_agent_plan

_GARBAGE_COLLECTION = 20.0  # seconds in which the cluster deletes what a deleted object owned
_RETRY_INTERVAL = 0.2  # seconds


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


async def create(api: ClusterApi, plan: ClusterPlan, echo: Echo) -> CreatedRun:
    """Create a planned run: its objects as they were printed, with the owner's uid, new keys and the time.

    A run of that name that has just ended is waited for, of which *echo* tells.

    Raises:
        RunInUse: a run of that name exists.
        SpotmpiError: the API server refused an object, or JobSet is too old; nothing of the run is left.
    """
    with translate_errors("submit the run"):
        try:
            await stop.delete_ended(api, plan["run"], echo)
            return await _create_all(api, plan["objects"])
        except ApiError as error:
            if already_exists(error):
                why = f"its JobSet has not ended within {stop.END_TIMEOUT:g} s; `spotmpi stop {plan['run']}` ends it"
                raise RunInUse(f"run {plan['run']} already exists in {plan['namespace']}: {why}") from error
            raise


async def _create_all(api: ClusterApi, objects: Sequence[Object]) -> CreatedRun:
    """Create the JobSet, the objects that it owns, and start it; if one is refused, all are deleted."""
    jobset, *parts = objects
    answer = await api.create(jobset)
    run, time_submitted = jobset["metadata"]["name"], submission_time(answer)
    parts = [with_agent_plan(part, submitted=time_submitted) for part in parts]  # from which limits count
    try:
        require_current_jobset(jobset, answer)
        requests = [_create_part(api, part, answer["metadata"]["uid"]) for part in parts]
        requests.append(_check_job(api, jobset))
        # All are waited for: one created after the JobSet was deleted would stay for a while.
        for failure in await asyncio.gather(*requests, return_exceptions=True):
            if failure is not None:
                raise failure
        if manifests.LABEL_QUEUE not in jobset["metadata"]["labels"]:
            jobs = [(part["kind"], part["metadata"]["name"]) for part in parts if part["kind"] == cluster_api.JOB]
            state = placement_state(jobset)  # its controller resumes a run that waits for a Capacity Block
            waits = state is not None and waits_until(state) is not None
            for kind, name in [*([] if waits else [(cluster_api.JOBSET, run)]), *jobs]:
                await api.patch(kind, name, {"spec": {"suspend": False}})
    except BaseException:
        await api.delete(cluster_api.JOBSET, run)
        raise
    return CreatedRun([jobset, *parts], time_submitted)


def require_current_jobset(jobset: Object, created: Object) -> None:
    """Refuse a JobSet that is too old: the API server drops the fields that it does not know, without an error."""
    rules = [(each["spec"].get("failurePolicy") or {}).get("rules") or [] for each in (jobset, created)]
    patterns = [[rule.get("onJobFailureMessagePatterns") for rule in each] for each in rules]
    if patterns[0] != patterns[1]:
        chart = "oci://registry.k8s.io/jobset/charts/jobset"
        raise SpotmpiError(
            "the CRD of JobSet on the cluster is older than 0.10, and runs would end for good if a node is reclaimed; "
            f"upgrade JobSet with `helm upgrade jobset {chart} --namespace jobset-system`, and the CRD, which Helm "
            f"skips, with `helm show crds {chart} | kubectl apply --server-side --force-conflicts -f -`"
        )


async def _check_job(api: ClusterApi, jobset: Object) -> None:
    """Raise ApiError where the API server or an admission webhook refuses the gang's Job; SpotmpiError for an old one.

    JobSet would try to create it again and again, and say so in its own log only (kubernetes-sigs/jobset#1024).
    """
    replicated = jobset["spec"]["replicatedJobs"][0]  # others have the same
    metadata = {"name": names.job_name(jobset["metadata"]["name"]), "namespace": jobset["metadata"]["namespace"]}
    metadata["labels"] = replicated["template"]["metadata"]["labels"]
    job = {"apiVersion": "batch/v1", "kind": cluster_api.JOB, "metadata": metadata}
    spec = replicated["template"]["spec"]
    try:
        answer = await api.create({**job, "spec": spec}, dry_run=True)
        if "successPolicy" in spec and not (answer.get("spec") or {}).get("successPolicy"):
            raise SpotmpiError(
                "Kubernetes on the cluster is older than 1.31 and drops the success policy of Jobs, so a run would not "
                "end when node 0 has; upgrade it"
            )
    except ApiError as error:
        # Others say nothing of the Job: a user without the right to create it, a webhook that knows no dry run.
        if error.status.code == 422 or re.search("denied (the )?request", str(error.status.message)):
            raise


async def _create_part(api: ClusterApi, part: Object, uid: str) -> None:
    """Create one part; waits while one of an earlier JobSet of this name is still being garbage-collected."""
    deadline = time.monotonic() + _GARBAGE_COLLECTION
    while True:
        try:
            await api.create(_complete(part, uid))
            return
        except ApiError as error:
            if not already_exists(error) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_RETRY_INTERVAL)


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
