"""The objects of a run, created in their order: the JobSet suspended, then what it owns, then it is let go."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lightkube import ApiError

from spotmpi.backends.kubernetes import stop
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import already_exists, translate_errors
from spotmpi.backends.kubernetes.follow.state import submitted
from spotmpi.backends.kubernetes.submit.keys import make_keys
from spotmpi.backends.kubernetes.submit.network_isolation import denies_egress
from spotmpi.core.errors import NotPermitted, RunInUse
from spotmpi.core.progress import Say
from spotmpi.plan import manifests, pods, shared_keys

_COLLECTION = 20.0  # seconds in which the cluster garbage-collects what a deleted object owned
_INTERVAL = 0.2  # seconds between tries


class _NoSecret(Exception):
    """The user may not create Secrets."""


class Created(NamedTuple):
    """A run's objects as they were created, and when that was by the API server's clock, in whole Unix seconds."""

    objects: Sequence[Object]
    submitted: float


async def create(api: ClusterApi, plan: Mapping[str, Any], say: Say) -> Created:
    """Create a planned run.

    Where the user may not create Secrets, the run takes the key pair of the Secret that the plan names for that.

    Raises:
        RunInUse: there is a run of that name.
        SpotmpiError: the cluster does not take it, and says why; nothing of the run is left then.
    """
    with translate_errors("submit the run"):
        try:
            await stop.make_room(api, plan["run"])
            plan = {**plan, "objects": await _with_egress(api, plan["objects"], say)}
            try:
                return await _created(api, plan["objects"])
            except _NoSecret as refused:
                objects = _without_secret(plan, refused)
                say(f"you may not create Secrets: the run shares the SSH keys of {plan['ssh_secret']}")
                await stop.until_gone(api, plan["run"])
                return await _created(api, objects)
        except ApiError as error:
            if already_exists(error):
                raise RunInUse(f"run {plan['run']} exists in {plan['namespace']} already") from error
            raise


async def _with_egress(api: ClusterApi, objects: Sequence[Object], say: Say) -> Sequence[Object]:
    """The objects, with a policy that lets pods reach each other where the namespace denies egress."""
    jobset, *_ = objects
    alone = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] == 1
    labels = manifests.pod_template(jobset)["metadata"]["labels"]
    if alone or any(_opens_egress(each) for each in objects) or not await denies_egress(api, labels, say):
        return objects
    return [manifests.allowing_egress(each) if each["kind"] == "NetworkPolicy" else each for each in objects]


def _opens_egress(part: Object) -> bool:
    return part["kind"] == "NetworkPolicy" and "Egress" in part["spec"]["policyTypes"]


async def _created(api: ClusterApi, objects: Sequence[Object]) -> Created:
    jobset, *parts = objects
    made = await api.create(jobset)
    run, moment = jobset["metadata"]["name"], submitted(made)
    parts = [_dated(part, moment) for part in parts]
    try:
        # The Secret first: where it is refused the JobSet is deleted and created anew, and owns nothing yet.
        uid = made["metadata"]["uid"]
        for part in parts:
            if part["kind"] == "Secret":
                await _create_part(api, part, uid)
        creating = (_create_part(api, part, uid) for part in parts if part["kind"] != "Secret")
        # The others at once. All are waited for: one created after the JobSet was deleted would stay for a while.
        for failure in await asyncio.gather(*creating, return_exceptions=True):
            if failure is not None:
                raise failure
        if manifests.LABEL_QUEUE not in jobset["metadata"]["labels"]:
            await api.patch(cluster_api.JOBSET, run, {"spec": {"suspend": False}})
    except BaseException:
        await api.delete(cluster_api.JOBSET, run)
        raise
    return Created([jobset, *parts], moment)


def _dated(part: Object, moment: float) -> Object:
    """A part of the plan; the agents' own in the ConfigMap says when the run was submitted: limits count from then."""
    if part["kind"] != cluster_api.CONFIG_MAP:
        return part
    agents = {**json.loads(part["data"]["plan.json"]), "submitted": moment}
    return {**part, "data": {**part["data"], "plan.json": json.dumps(agents, indent=1, sort_keys=True)}}


async def _create_part(api: ClusterApi, part: Object, uid: str) -> None:
    """Create one part; that of an earlier JobSet of this name, which the cluster is about to delete, is waited for."""
    deadline = time.monotonic() + _COLLECTION
    while True:
        try:
            await api.create(_filled(part, uid))
            return
        except ApiError as error:
            if part["kind"] == "Secret" and error.status.code == 403:
                raise _NoSecret(str(error.status.message)) from error
            if not already_exists(error) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_INTERVAL)


def _without_secret(plan: Mapping[str, Any], refused: _NoSecret) -> Sequence[Object]:
    """The plan's objects with keys from a Secret that is there; NotPermitted where that is no way out."""
    variables = shared_keys.forwarded(plan["objects"])
    if plan["ssh_secret"] and not variables:
        return shared_keys.sharing(plan["objects"], plan["ssh_secret"])
    remedy = "name a Secret with a key pair for SSH (kubernetes.ssh_secret)"
    if variables:
        remedy = f"keep {', '.join(variables)} in a Secret (kubernetes.secret_env) instead of forwarding them"
    raise NotPermitted(
        f"could not create the run's Secret: not permitted ({refused}); "
        f"ask for the right to create Secrets in {plan['namespace']}, or {remedy}"
    ) from refused


def _filled(part: Object, uid: str) -> Object:
    """A part of the plan with its owner's uid, and keys where it is the Secret."""
    owners = [{**owner, "uid": uid} for owner in part["metadata"]["ownerReferences"]]
    keys = {"stringData": {**make_keys(), **_forwarded(part)}} if part["kind"] == "Secret" else {}
    return {**part, "metadata": {**part["metadata"], "ownerReferences": owners}, **keys}


def _forwarded(secret: Object) -> dict[str, str]:
    """The variables that the run's Secret is to hold, by key, from where the command was given."""
    wanted = {pods.forwarded_key(name): value for name, value in os.environ.items()}
    return {key: wanted[key] for key in secret["stringData"] if key in wanted}
