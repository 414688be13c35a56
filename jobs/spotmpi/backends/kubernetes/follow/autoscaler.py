"""What the cluster autoscaler says of its node groups, in its ConfigMap. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import yaml

NAMESPACE, NAME = "kube-system", "cluster-autoscaler-status"
SILENT = 600.0  # seconds; a living autoscaler writes every ten
_TOLD = 2  # groups that are named
# An Auto Scaling group of EKS is its node group's name and a UUID; other clouds name groups by addresses.
_EKS = re.compile(r"^eks-(.+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def word_of(config_map: Mapping[str, Any], now: float) -> str | None:
    """Why there are no more nodes yet, as far as the autoscaler knows; None where nothing is wrong or told.

    *now* is in Unix seconds. Autoscalers before 1.30 write prose, which is passed over.
    """
    try:
        status = yaml.safe_load((config_map.get("data") or {}).get("status") or "")
    except yaml.YAMLError:
        return None
    if not isinstance(status, Mapping) or "autoscalerStatus" not in status:
        return None
    silent = now - _moment(status.get("time"), now)
    if silent > SILENT:
        return f"the cluster autoscaler has said nothing for {silent / 60:.0f} min"
    if status["autoscalerStatus"] != "Running":
        return f"the cluster autoscaler is not at work yet ({status['autoscalerStatus']})"
    words = [word for group in status.get("nodeGroups") or [] for word in _of_group(group)]
    more = [f"{len(words) - _TOLD} more groups"] if len(words) > _TOLD else []
    return "; ".join([*words[:_TOLD], *more]) or None


def _of_group(group: Mapping[str, Any]) -> Iterator[str]:
    """What stands in the way of a group's next machine; nothing where none is wanted of it."""
    name = str(group.get("name", "")).rpartition("/")[2]
    eks = _EKS.match(name)
    name = eks[1] if eks else name
    health, scaling = group.get("health") or {}, group.get("scaleUp") or {}
    counts = health.get("nodeCounts") or {}
    registered = counts.get("registered") or {}
    target, ready = health.get("cloudProviderTarget") or 0, registered.get("ready") or 0
    if scaling.get("status") == "Backoff":
        why = scaling.get("backoffInfo") or {}
        yield f"group {name}: {why.get('errorMessage') or why.get('errorCode') or 'its last start of a machine failed'}"
    elif health.get("status") == "Unhealthy":
        yield f"group {name}: the autoscaler calls it unhealthy, {ready} of {target} machines are ready nodes"
    elif counts.get("longUnregistered"):
        yield f"group {name}: {counts['longUnregistered']} machines have started long ago and have not become nodes"
    elif scaling.get("status") == "InProgress":
        yield f"group {name}: {ready} of {target} machines are ready nodes"


def _moment(said: object, otherwise: float) -> float:
    """Unix seconds of a moment as the autoscaler writes it, such as ``2026-11-20 10:52:04.558615784 +0000 UTC``."""
    try:
        return datetime.fromisoformat(str(said)[:19]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return otherwise
