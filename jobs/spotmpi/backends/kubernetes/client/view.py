"""A cluster as its API tells it, read only: objects as plain values, from any namespace."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from lightkube import ApiError, Client
from lightkube.core.exceptions import ConfigError
from lightkube.resources import apps_v1, batch_v1, core_v1

from spotmpi.backends.kubernetes.client import kubeconfig
from spotmpi.backends.kubernetes.client.api import missing, told
from spotmpi.core.errors import SpotmpiError

Object = dict[str, Any]
_RESOURCES: dict[str, Any] = {
    "Node": core_v1.Node,
    "Pod": core_v1.Pod,
    "Secret": core_v1.Secret,
    "ConfigMap": core_v1.ConfigMap,
    "Event": core_v1.Event,
    "Job": batch_v1.Job,
    "PersistentVolumeClaim": core_v1.PersistentVolumeClaim,
    "PersistentVolume": core_v1.PersistentVolume,
    "DaemonSet": apps_v1.DaemonSet,
    "Deployment": apps_v1.Deployment,
}
EVERYWHERE = "*"


class Reads(Protocol):
    """What may be asked of a cluster; a test gives its own answers."""

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, None where there is none; SpotmpiError where it can't be asked."""
        ...

    def list(self, kind: str, namespace: str | None = None, labels: dict[str, str] | None = None) -> list[Object]:
        """The objects of a kind; SpotmpiError where they can't be asked."""
        ...


class ClusterView:
    """The cluster of a kubeconfig context; may be used from several threads."""

    def __init__(self, context: str | None) -> None:
        self._client: Any = Client(
            config=kubeconfig.configuration(context), namespace="default", field_manager="spotmpi"
        )
        self._one_at_a_time = threading.Lock()

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, None where there is none."""
        with told(f"read {kind} {name}"), self._one_at_a_time:
            try:
                found: Object = self._client.get(_RESOURCES[kind], name, **_there(kind, namespace)).to_dict()
            except ApiError as error:
                if missing(error):
                    return None
                raise
            return found

    def list(self, kind: str, namespace: str | None = None, labels: dict[str, str] | None = None) -> list[Object]:
        """The objects of a kind, in *namespace* or everywhere (``*``)."""
        with told(f"list {kind}s"), self._one_at_a_time:
            found = self._client.list(_RESOURCES[kind], labels=labels, **_there(kind, namespace))
            return [item.to_dict() for item in found]


def context_of(cluster: str) -> str | None:
    """The kubeconfig context of an EKS cluster by name, as `aws eks update-kubeconfig` writes it; None without one."""
    try:
        config = kubeconfig.read()
    except ConfigError:
        return None
    for name, context in config.contexts.items():
        if cluster in (name, context.cluster) or str(context.cluster).endswith(f":cluster/{cluster}"):
            return name
    return None


def view_of(cluster: str, region: str) -> ClusterView:
    """The view of an EKS cluster; SpotmpiError names the command that makes it known to this machine."""
    context = context_of(cluster)
    if context is None:
        command = f"aws eks update-kubeconfig --name {cluster} --region {region}"
        raise SpotmpiError(f"this machine's kubeconfig has no context of cluster {cluster}: `{command}` makes one")
    return ClusterView(context)


def _there(kind: str, namespace: str | None) -> dict[str, str]:
    return {} if kind in ("Node", "PersistentVolume") or namespace is None else {"namespace": namespace}
