"""A namespace that takes the objects of runs, but for what the user may not do, and plans of such runs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from lightkube import ApiError

from spotmpi.agent import protocol
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.submit.objects import generate_keys
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.plan.pods import forwarded_key
from spotmpi.spec.job import JobSpec
from tests.unit.backends.kubernetes.watched_cluster import Object, api_error

CREATED = "2026-11-20T11:00:00Z"


class Namespace:
    """Takes objects, but for kinds that the user may not create; `policies` are there, None if nobody may list them.

    The API server says when it made an object (``metadata.creationTimestamp``: RFC 3339, whole seconds, by its own
    clock, read-only for clients; https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/).
    """

    namespace = "here"

    def __init__(self, *forbidden: str) -> None:
        self.forbidden = forbidden
        self.policies: Sequence[Object] | None = []
        self.created: list[Object] = []
        self.conflicts: list[str] = []  # kinds that exist already, once each
        self.patched: list[tuple[str, str, Object]] = []  # kind, name and values
        self.deleting = False
        self.queues = ["gpus"]
        self.job_refusal: ApiError | None = None  # of a Job that is only checked
        self.secrets: dict[str, Object] | None = None  # existing ones; None if the user may not read them
        self.unknown_fields: Sequence[str] = ()  # of failure policies, which the API server drops silently

    async def create(self, values: Object, dry_run: bool = False) -> Object:
        kind = values["kind"]
        if dry_run:
            assert kind == api.JOB
            if self.job_refusal:
                raise self.job_refusal
            return values
        if kind in self.forbidden:
            raise api_error(403, f'secrets is forbidden: User "ann" cannot create {kind}')
        if kind in self.conflicts:
            self.conflicts.remove(kind)
            raise api_error(409, "already exists")
        if kind == api.JOBSET and self.created:
            raise api_error(409, "already exists")
        self.created.append(values)
        created = copy.deepcopy(values)
        for rule in created.get("spec", {}).get("failurePolicy", {}).get("rules", []):
            for field in self.unknown_fields:  # https://kubernetes.io/docs: "Field pruning" of custom resources
                rule.pop(field, None)
        return {**created, "metadata": {"uid": "u", "creationTimestamp": CREATED}}

    async def may_create(self, kind: str) -> bool:
        """As a SelfSubjectAccessReview answers, which system:basic-user lets everyone create (RBAC's defaults)."""
        return kind not in self.forbidden

    async def has_queue(self, name: str) -> bool:
        if "LocalQueue" in self.forbidden:
            raise api_error(403, f'localqueues.kueue.x-k8s.io "{name}" is forbidden: User "ann" cannot get resource')
        return name in self.queues

    async def find(self, kind: str, name: str) -> Object | None:
        if kind == "Secret":
            if self.secrets is None:
                raise api_error(403, f'secrets "{name}" is forbidden: User "ann" cannot get resource "secrets"')
            return self.secrets.get(name)
        if self.deleting:  # it is visible until all it owned is gone
            self.deleting, self.created = False, []
            return {"metadata": {"deletionTimestamp": "now"}}
        same = [each for each in self.created if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return same[0] if same else None

    async def list(self, kind: str) -> Sequence[Object]:
        assert kind == api.NETWORK_POLICY
        if self.policies is None:
            raise api_error(403, "networkpolicies is forbidden")
        return self.policies

    async def delete(self, kind: str, name: str, wait: bool = False) -> None:
        self.deleting = wait
        self.created = self.created if wait else []

    async def patch(self, kind: str, name: str, values: Object) -> None:
        self.patched.append((kind, name, values))

    def kinds(self) -> Sequence[str]:
        return [each["kind"] for each in self.created]


def planned(spec: JobSpec, run: str = "x-1", ssh_secret: str | None = None) -> Object:
    """The plan of a run in that namespace."""
    names = [*generate_keys(), *protocol.TLS_FILES, *map(forwarded_key, spec.env_passthrough)]
    target = ClusterTarget("here", "any:1", None, {}, (), "any")
    objects = kubernetes_plan(spec, target, Submission(run, "ann", dict.fromkeys(names, "later"), {}, {}))
    return {"run": run, "namespace": "here", "objects": objects, "ssh_secret": ssh_secret}
