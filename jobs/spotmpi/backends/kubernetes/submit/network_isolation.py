"""What the NetworkPolicies of a namespace deny pods that are to come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightkube import ApiError

from spotmpi.backends.kubernetes.client import api as cluster_api
from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.core.progress import Say


async def denies_egress(api: ClusterApi, labels: Mapping[str, str], say: Say) -> bool:
    """Whether some policy of the namespace isolates pods with *labels* for egress.

    False where the policies may not be listed, which *say* hears. Semantics: networking.k8s.io/v1, NetworkPolicySpec.
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
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_fits(each, labels) for each in selector.get("matchExpressions") or [])


def _fits(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
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
