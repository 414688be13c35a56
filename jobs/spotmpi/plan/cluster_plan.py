"""The plan of a run on a cluster, and what its objects tell: spec, pods, volume and forwarded variables. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import ValidationError

from spotmpi.agent.plan import VERSION, WORKER, WORKERS
from spotmpi.agent.pod_context import AGENT_PLAN
from spotmpi.core import names
from spotmpi.core.errors import UnreadableRun
from spotmpi.plan import pods, pool
from spotmpi.plan.templates import Object
from spotmpi.plan.volume_pod import Volume
from spotmpi.spec.job import JobSpec

ANNOTATION_SPEC = "spotmpi.dev/spec"


class _RunReference(TypedDict):
    version: int
    run: str
    name: str
    backend: Literal["kubernetes"]
    context: str | None
    namespace: str


class CachedPlan(_RunReference, total=False):
    """The plan in a local copy of a cluster's run: where the run really is."""

    owner: str


class PlannedCode(TypedDict):
    """The digest of the user's code, and whether it goes through the run volume."""

    digest: str
    from_volume: bool


class ClusterPlan(_RunReference):
    """The plan of a run on a cluster: the objects in the order of creation, without its keys."""

    notes: list[str]  # for people
    code: PlannedCode | None
    owner: str
    ssh_secret: str | None  # whose keys the run may share where its user may not create Secrets
    unchecked: str | None  # why the cluster could not be asked what it permits; such a plan is not submitted
    environment: str | None
    outputs: dict[str, Any] | None  # of the environment's stack
    objects: list[dict[str, Any]]


def cached_plan(name: str, run: str, context: str | None, namespace: str) -> CachedPlan:
    """The plan for a local copy of a run that is called *name*."""
    return {
        "version": VERSION,
        "run": run,
        "name": name,
        "backend": names.KUBERNETES,
        "context": context,
        "namespace": namespace,
    }


def spec_of(jobset: Mapping[str, Any]) -> JobSpec:
    """The spec in the annotations of a run's JobSet; UnreadableRun where it has none that this version can read."""
    name, text = jobset["metadata"]["name"], annotations_of(jobset).get(ANNOTATION_SPEC)
    if text is None:
        remedy = f"`kubectl describe jobset {name}` shows what created it"
        raise UnreadableRun(f"JobSet {name} has no annotation {ANNOTATION_SPEC}; {remedy}")
    try:
        return JobSpec.model_validate(json.loads(text))
    except ValidationError as error:
        found = [
            (".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")) for each in error.errors()
        ]
        problems = "; ".join(map(": ".join, found))
        raise UnreadableRun(f"this version cannot read JobSet {name} ({problems}); upgrade spotmpi") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableRun(f"annotation {ANNOTATION_SPEC} of JobSet {name} is not JSON: {error}") from error


def annotations_of(jobset: Mapping[str, Any]) -> Mapping[str, str]:
    """The annotations of a JobSet, which may have none."""
    annotations: Mapping[str, str] = jobset["metadata"].get("annotations") or {}
    return annotations


def worker_count(jobset: Mapping[str, Any], role: str = WORKER) -> int | None:
    """The number of workers that a run is to have in a role, by its JobSet; None where that does not say it.

    It always says it for the role `WORKER` of a run that has workers, and for others once they were resized.
    """
    text = annotations_of(jobset).get(pool.annotation(role), "")
    return int(text) if text.isdecimal() else None


def pod_count(jobset: Mapping[str, Any]) -> int:
    """The number of pods of a JobSet: of nodes, and of those that stand by."""
    jobs = jobset["spec"]["replicatedJobs"]
    return sum(int(each["replicas"]) * int(each["template"]["spec"]["completions"]) for each in jobs)


def agent_plan_text(plan: Mapping[str, Any]) -> str:
    """The agent plan as the ConfigMap of a run has it."""
    return json.dumps(plan, indent=1, sort_keys=True)


def agent_plans(objects: Sequence[Object]) -> list[Object]:
    """The agent plan within the objects of a run's plan: one, in its ConfigMap."""
    return [json.loads(part["data"][AGENT_PLAN]) for part in objects if part["kind"] == "ConfigMap"]


def with_agent_plan(part: Object, **values: Any) -> Object:
    """An object of a run's plan; the agent plan in its ConfigMap gets *values*."""
    if part["kind"] != "ConfigMap":
        return part
    (plan,) = agent_plans([part])
    return {**part, "data": {**part["data"], AGENT_PLAN: agent_plan_text({**plan, **values})}}


def worker_templates(objects: Sequence[Object]) -> list[Object]:
    """The pod template of each role of a run's workers within the objects of its plan."""
    run = objects[0]["metadata"]["name"]
    jobs = [names.workers_name(run, role) for role in WORKERS]
    return [part["spec"]["template"] for part in objects if part["metadata"]["name"] in jobs]


def templates(objects: Sequence[Object]) -> list[Object]:
    """The pod templates of all members of a run within the objects of its plan."""
    return [*pod_templates(objects[0]), *worker_templates(objects)]


def pod_template(jobset: Mapping[str, Any]) -> Object:
    """The pod template of the nodes within a run's JobSet."""
    return pod_templates(jobset)[0]


def pod_templates(jobset: Mapping[str, Any]) -> list[Object]:
    """The pod templates within a run's JobSet: of its nodes, and of its pods that stand by, if there are any."""
    return [each["template"]["spec"]["template"] for each in jobset["spec"]["replicatedJobs"]]


def run_volume(jobset: Mapping[str, Any]) -> Volume | None:
    """The run volume of a JobSet's pods; None for a run without one."""
    pod = pod_template(jobset)["spec"]
    volume: Object = next((volume for volume in pod.get("volumes") or [] if volume["name"] == "volume"), {})
    if "persistentVolumeClaim" not in volume:
        return None
    secrets = tuple(secret["name"] for secret in pod.get("imagePullSecrets") or [])
    image = str(pods.image(pod_template(jobset)))
    own = tuple(each for each in pod.get("tolerations") or [] if not pods.is_automatic(each))
    labels, selector = (pod_template(jobset).get("metadata") or {}).get("labels") or {}, pod.get("nodeSelector") or {}
    return Volume(
        volume["persistentVolumeClaim"]["claimName"],
        image,
        secrets,
        own,
        tuple((key, value) for key, value in labels.items() if not names.is_reserved(key)),
        tuple((key, selector[key]) for key in (names.LABEL_ARCHITECTURE,) if key in selector),
    )


def mounted_claims(pod: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The claims that a pod of this template mounts, each with the key of the spec that names it."""
    volumes = [each for each in pod["spec"].get("volumes") or [] if "persistentVolumeClaim" in each]
    keys = {"volume": "kubernetes.volume"}
    return [
        (each["persistentVolumeClaim"]["claimName"], keys.get(each["name"], "kubernetes.mounts")) for each in volumes
    ]


def forwarded_variables(objects: Sequence[Object]) -> list[str]:
    """The names of the variables that a plan's Secret forwards from the submitting process."""
    prefix = pods.forwarded_key("")
    keys = [key for part in objects if part["kind"] == "Secret" for key in part["stringData"]]
    return [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
