"""Why a cluster autoscaler brings no node, by the status that it writes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import yaml

from spotmpi.core.wording import counted

Object = Mapping[str, Any]

NAMESPACE, STATUS = "kube-system", "cluster-autoscaler-status"
TIMEOUT = 600.0  # seconds; a running autoscaler writes every ten
_MAX_GROUPS = 2  # that a message names
# An Auto Scaling group of EKS is its node group's name and a UUID; other clouds name groups by addresses.
_EKS_GROUP = re.compile(r"^eks-(.+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def problem_of(config_map: Object, now: float) -> str | None:
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
    if age > TIMEOUT:
        return f"the cluster autoscaler has not updated its status for {age / 60:.0f} min"
    if status["autoscalerStatus"] != "Running":
        return f"the cluster autoscaler is not running yet ({status['autoscalerStatus']})"
    problems = [problem for group in status.get("nodeGroups") or [] for problem in _group_problem(group)]
    more = [counted(len(problems) - _MAX_GROUPS, "more group")] if len(problems) > _MAX_GROUPS else []
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
    nodes = f"{ready} of {counted(target, 'machine')} {'is a ready node' if target == 1 else 'are ready nodes'}"
    if scaling.get("status") == "Backoff":
        backoff = scaling.get("backoffInfo") or {}
        reason = backoff.get("errorMessage") or backoff.get("errorCode") or "its last scale-up failed"
        yield f"group {name}: {reason}"
    elif health.get("status") == "Unhealthy":
        yield f"group {name}: unhealthy, {nodes}"
    elif late := counts.get("longUnregistered"):
        have = "machine has not registered as a node long after its start"
        several = "machines have not registered as nodes long after their start"
        yield f"group {name}: {counted(late, have, several)}"
    elif scaling.get("status") == "InProgress":
        yield f"group {name}: {nodes}"


def _parse_time(text: object, default: float) -> float:
    """Unix seconds of a time as the autoscaler writes it, such as ``2026-11-20 10:52:04.558615784 +0000 UTC``."""
    try:
        return datetime.fromisoformat(str(text)[:19]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return default
