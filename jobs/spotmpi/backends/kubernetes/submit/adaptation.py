"""What a cluster permits and denies, which changes the plan of a run before it is printed: egress, Secrets, queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from lightkube import ApiError

from spotmpi.agent import protocol, ssh
from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import already_exists, permitted, translate_errors
from spotmpi.backends.kubernetes.submit.objects import require_current_jobset
from spotmpi.core.errors import NotPermitted, input_error
from spotmpi.core.wording import Echo
from spotmpi.plan import cluster_plan, manifests
from spotmpi.plan.cluster_plan import ClusterPlan

_REFUSED = (400, 403, 422)  # by a webhook, or by the schema of an older version
_REASON_LENGTH = 240
_RIGHTS = (
    *((verb, cluster_api.JOBSET) for verb in ("create", "get", "patch", "delete")),
    ("list", cluster_api.POD),
)
_DNS_PORT = 53
_SHARED = {"ReadWriteMany", "ReadOnlyMany"}


async def adapt(api: ClusterApi, plan: ClusterPlan, echo: Echo) -> ClusterPlan:
    """The *plan* as its cluster takes it.

    Where the namespace denies egress, pods may reach each other; where the user may not create Secrets, the run uses
    the keys of the existing Secret that the plan names. *echo* gets a message where the user may not look.

    Raises:
        InputError: no queue of Kueue would ever admit the run, or its pods mount a claim that does not exist.
        NotPermitted: the user lacks a right without which nobody could start, follow and stop the run.
        SpotmpiError: the cluster does not answer, or would refuse the JobSet.
    """
    with translate_errors("look up what the cluster permits"):
        await _require_rights(api)
    with translate_errors("submit the run"):
        await _require_admission(api, plan["objects"][0])
    with translate_errors("look up what the cluster permits"):
        await _require_claims(api, plan["objects"], echo)
        await _require_queue(api, plan["objects"][0], echo)
        objects = await _with_egress(api, plan["objects"], echo)
        if not await api.may("create", cluster_api.SECRET):
            objects = await _without_secret(api, plan, objects)
            echo(f"you may not create Secrets: the run shares the keys of {plan['ssh_secret']}")
    return {**plan, "objects": list(objects)}


async def restart_obstacle(api: ClusterApi, run: str, nodes: int) -> str | None:
    """Why JobSet cannot restart the Job of one of *nodes* alone, as a note with the remedy; None where it can.

    Only its webhook knows: the feature gate RestartJob is off by default, and older versions lack the action.

    Raises:
        SpotmpiError: the cluster does not answer.
    """
    consequence = "where a node is lost, all pods of the run are replaced"
    if nodes > manifests.MAX_JOBS:
        return f"{consequence}: JobSet restarts single Jobs of at most {manifests.MAX_JOBS:,} nodes"
    with translate_errors("look up what JobSet can restart"):
        try:
            await api.create(manifests.restart_sample(api.namespace, f"{run}-sample"), dry_run=True)
        except ApiError as error:
            if error.status.code not in _REFUSED:
                raise
            reason = " ".join(str(error.status.message).split())[:_REASON_LENGTH]
            remedy = "JobSet 0.12 replaces the lost one alone with its feature gate RestartJob"
            return f"{consequence}; {remedy} (the cluster says: {reason})"
    return None


async def _require_rights(api: ClusterApi) -> None:
    """Refuse users who could not start a run, or would then be unable to follow and to stop it."""
    answers = await asyncio.gather(*(api.may(verb, kind) for verb, kind in _RIGHTS))
    missing: dict[str, list[str]] = {}
    for (verb, kind), may in zip(_RIGHTS, answers, strict=True):
        if not may:
            missing.setdefault(kind, []).append(verb)
    if missing:
        what = ", or ".join(f"{', '.join(verbs)} {kind}s" for kind, verbs in missing.items())
        raise NotPermitted(
            f"you may not {what} in namespace {api.namespace}, so no runs; ask its administrator for the "
            "rights in docs/sharing.md"
        )


async def _require_admission(api: ClusterApi, jobset: Object) -> None:
    """Raise ApiError or SpotmpiError where the cluster would refuse the JobSet, or has one that is too old."""
    try:
        answer = await api.create(jobset, dry_run=True)
    except ApiError as error:
        # A run that is resumed has one; a webhook that knows no dry run decides at the submission.
        if already_exists(error) or "does not support dry run" in str(error.status.message):
            return
        raise
    require_current_jobset(jobset, answer)


async def _require_claims(api: ClusterApi, objects: Sequence[Object], echo: Echo) -> None:
    """Refuse a run whose pods mount a claim that does not exist: they would wait for it until ``limits.start``.

    *echo* gets a message where only pods of one node can mount one at a time.
    """
    mounted = [each for pod in cluster_plan.templates(objects) for each in cluster_plan.mounted_claims(pod)]
    shares = cluster_plan.pod_count(objects[0]) > 1 or bool(cluster_plan.worker_templates(objects))
    for name, key in dict(mounted).items():
        claim = await permitted(api.find(cluster_api.CLAIM, name), {})  # else the scheduler says so
        if claim is None:
            problem = f"namespace {api.namespace} has no such PersistentVolumeClaim; `kubectl get pvc` lists them"
            raise input_error(key, name, problem)
        modes = (claim.get("spec") or {}).get("accessModes") or []
        if shares and modes and not _SHARED & {*modes}:
            remedy = f"use one with ReadWriteMany ({key})"
            echo(f"claim {name} is {', '.join(modes)}: if pods of the run are on several nodes, they wait; {remedy}")


async def _require_queue(api: ClusterApi, jobset: Object, echo: Echo) -> None:
    """Refuse a run whose queue does not exist: it would wait for ever, and Kueue writes no event about that.

    *echo* gets a message where the user may not look it up.
    """
    queue = jobset["metadata"]["labels"].get(manifests.LABEL_QUEUE)
    found: bool | None = queue is None or await permitted(api.has_queue(queue), None)
    if found is None:
        right = "ask for `get` on `localqueues` of kueue.x-k8s.io"
        echo(f"you may not read queues in namespace {api.namespace}: if it has no {queue}, the run waits; {right}")
    elif not found:
        problem = f"namespace {api.namespace} has no such LocalQueue of Kueue; `kubectl get localqueues` lists them"
        raise input_error("kubernetes.queue", queue, problem)


async def _with_egress(api: ClusterApi, objects: Sequence[Object], echo: Echo) -> Sequence[Object]:
    """The objects, with a policy that lets pods reach each other where the namespace denies egress."""
    jobset, *_ = objects
    single = cluster_plan.pod_count(jobset) == 1 and not cluster_plan.worker_templates(objects)
    labels = cluster_plan.pod_template(jobset)["metadata"]["labels"]
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    is_allowed = any("Egress" in each["spec"]["policyTypes"] for each in policies)
    if single or is_allowed or not await denies_egress(api, labels, echo):
        return objects
    return [manifests.with_egress(each) if each["kind"] == "NetworkPolicy" else each for each in objects]


async def _without_secret(api: ClusterApi, plan: ClusterPlan, objects: Sequence[Object]) -> Sequence[Object]:
    """The plan's objects with the keys of an existing Secret; NotPermitted where that is not possible."""
    variables = cluster_plan.forwarded_variables(objects)
    if cluster_plan.worker_templates(objects):
        raise NotPermitted(
            "you may not create the run's Secret, and workers share their TLS key with no other run; "
            f"ask for the right to create Secrets in {plan['namespace']}"
        )
    if plan["ssh_secret"] and not variables:
        await _require_tls_files(api, plan["ssh_secret"])
        return manifests.with_shared_keys(objects, plan["ssh_secret"])
    remedy = "name a Secret with keys for SSH and TLS (kubernetes.ssh_secret)"
    if variables:
        remedy = f"keep {', '.join(variables)} in a Secret (kubernetes.secret_env) instead of forwarding them"
    raise NotPermitted(
        f"you may not create the run's Secret; ask for the right to create Secrets in {plan['namespace']}, or {remedy}"
    )


async def _require_tls_files(api: ClusterApi, secret: str) -> None:
    """Refuse an existing Secret without TLS files, where the user may read it; elsewhere the run's agents do."""
    found = await permitted(api.find(cluster_api.SECRET, secret), {})
    if found is None:
        raise input_error(
            "kubernetes.ssh_secret", secret, f"namespace {api.namespace} has no such Secret, and you may create none"
        )
    if found and (missing := [name for name in protocol.TLS_FILES if name not in (found.get("data") or {})]):
        raise input_error("kubernetes.ssh_secret", secret, f"has no {', '.join(missing)}; {ssh.TLS_REMEDY}")


async def denies_egress(api: ClusterApi, labels: Mapping[str, str], echo: Echo) -> bool:
    """Whether a NetworkPolicy of the namespace isolates pods with *labels* for egress.

    False where the policies may not be listed; *echo* then gets a warning, and where none of them allows DNS.
    Semantics: networking.k8s.io/v1, NetworkPolicySpec.
    """
    policies = await permitted(api.list(cluster_api.NETWORK_POLICY), None)
    if policies is None:
        echo(
            f"you may not list the NetworkPolicies of namespace {api.namespace}: if they deny egress, nodes of the run "
            "will not reach each other"
        )
        return False
    isolating = [spec for policy in policies if _isolates(spec := policy.get("spec") or {}, labels)]
    rules = [rule for spec in isolating for rule in spec.get("egress") or []]
    if isolating and not any(map(_may_reach_dns, rules)):
        echo(
            f"the NetworkPolicies of namespace {api.namespace} deny egress, and none allows DNS (port 53), which "
            "nodes of a run without a run volume need to find each other, and most programs; ask for one that does"
        )
    return bool(isolating)


def _may_reach_dns(rule: Mapping[str, Any]) -> bool:
    """Whether an egress rule has port 53, and peers outside of the namespace, in which no cluster has its DNS."""
    ports, peers = rule.get("ports") or [], rule.get("to") or []
    has_port = not ports or any(_covers(each, _DNS_PORT) for each in ports)
    return has_port and (not peers or any("namespaceSelector" in each or "ipBlock" in each for each in peers))


def _covers(entry: Mapping[str, Any], number: int) -> bool:
    """Whether an entry of a rule's ports has that port; one with a name may."""
    port = entry.get("port")
    if isinstance(port, int):
        return port <= number <= int(entry.get("endPort") or port)
    return True


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
