"""What else explains that pods wait: the cloud, the cluster autoscaler, and the events of the pods' nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import httpx2
import yaml
from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.follow.waiting import Observations
from spotmpi.core.errors import SpotmpiError

Object = Mapping[str, Any]
CloudDiagnosis = Callable[[], str | None]  # why there is no machine; blocks; may raise SpotmpiError
INTERVAL = 30.0  # seconds between requests
AUTOSCALER_NAMESPACE, AUTOSCALER_STATUS = "kube-system", "cluster-autoscaler-status"
AUTOSCALER_TIMEOUT = 600.0  # seconds; a running autoscaler writes every ten
_MAX_GROUPS = 2  # that a message names
# An Auto Scaling group of EKS is its node group's name and a UUID; other clouds name groups by addresses.
_EKS_GROUP = re.compile(r"^eks-(.+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class PendingDiagnostics:
    """Asks at intervals, only while a pod waits; ignores what is not permitted or does not exist."""

    def __init__(self, client: ClusterApi, cloud: CloudDiagnosis | None) -> None:
        self._client = client
        self._cloud = cloud
        self._latest: dict[str, float] = {}  # when each request was made, by the monotonic clock

    async def update(self, seen: Observations, since: float) -> None:
        """Add what is known to *seen*; of nodes only what happened after *since*, Unix seconds."""
        pods = list(seen.pods.values())
        if not any(map(_lacks_node, pods)):
            seen.machine_problem = None
        elif self._is_due("machines"):
            seen.machine_problem = await self._ask_cloud() or await self._ask_autoscaler()
        if any(map(_waits_on_node, pods)) and self._is_due("nodes"):
            seen.set_node_events(await self._node_events(), since)

    def _is_due(self, question: str) -> bool:
        if time.monotonic() < self._latest.get(question, float("-inf")) + INTERVAL:
            return False
        self._latest[question] = time.monotonic()
        return True

    async def _ask_cloud(self) -> str | None:
        if self._cloud is None:
            return None
        try:
            return await anyio.to_thread.run_sync(self._cloud, abandon_on_cancel=True)
        except SpotmpiError:
            return None  # The pods' own conditions remain.

    async def _ask_autoscaler(self) -> str | None:
        try:
            status = await self._client.find(api.CONFIG_MAP, AUTOSCALER_STATUS, AUTOSCALER_NAMESPACE)
        except (ApiError, httpx2.HTTPError):
            return None
        return autoscaler_problem(status, self._client.now()) if status else None

    async def _node_events(self) -> Sequence[Object]:
        try:
            return await self._client.node_events()
        except (ApiError, httpx2.HTTPError):
            return []


def _lacks_node(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def _waits_on_node(pod: Object) -> bool:
    """Whether the pod has a node and has not started there, or the node does not respond."""
    status = pod.get("status", {})
    if not pod.get("spec", {}).get("nodeName"):
        return False
    unready = any(each["type"] == "Ready" and each["status"] != "True" for each in status.get("conditions") or [])
    return status.get("phase") == "Pending" or (status.get("phase") == "Running" and unready)


def autoscaler_problem(config_map: Object, now: float) -> str | None:
    """Why there are no more nodes yet, by the autoscaler's status ConfigMap; None where nothing is wrong or known.

    *now* is in Unix seconds. Autoscalers before 1.30 write prose, which is ignored.
    """
    try:
        status = yaml.safe_load((config_map.get("data") or {}).get("status") or "")
    except yaml.YAMLError:
        return None
    if not isinstance(status, Mapping) or "autoscalerStatus" not in status:
        return None
    age = now - _parse_time(status.get("time"), now)
    if age > AUTOSCALER_TIMEOUT:
        return f"the cluster autoscaler has not updated its status for {age / 60:.0f} min"
    if status["autoscalerStatus"] != "Running":
        return f"the cluster autoscaler is not running yet ({status['autoscalerStatus']})"
    problems = [problem for group in status.get("nodeGroups") or [] for problem in _group_problem(group)]
    more = [f"{len(problems) - _MAX_GROUPS} more groups"] if len(problems) > _MAX_GROUPS else []
    return "; ".join([*problems[:_MAX_GROUPS], *more]) or None


def _group_problem(group: Object) -> Iterator[str]:
    """What delays a group's next machine; nothing where the group needs none."""
    name = str(group.get("name", "")).rpartition("/")[2]
    eks = _EKS_GROUP.match(name)
    name = eks[1] if eks else name
    health, scaling = group.get("health") or {}, group.get("scaleUp") or {}
    counts = health.get("nodeCounts") or {}
    registered = counts.get("registered") or {}
    target, ready = health.get("cloudProviderTarget") or 0, registered.get("ready") or 0
    if scaling.get("status") == "Backoff":
        backoff = scaling.get("backoffInfo") or {}
        reason = backoff.get("errorMessage") or backoff.get("errorCode") or "its last scale-up failed"
        yield f"group {name}: {reason}"
    elif health.get("status") == "Unhealthy":
        yield f"group {name}: unhealthy, {ready} of {target} machines are ready nodes"
    elif counts.get("longUnregistered"):
        yield f"group {name}: {counts['longUnregistered']} machines have not registered as nodes long after their start"
    elif scaling.get("status") == "InProgress":
        yield f"group {name}: {ready} of {target} machines are ready nodes"


def _parse_time(text: object, default: float) -> float:
    """Unix seconds of a time as the autoscaler writes it, such as ``2026-11-20 10:52:04.558615784 +0000 UTC``."""
    try:
        return datetime.fromisoformat(str(text)[:19]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return default
