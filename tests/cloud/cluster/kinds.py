"""The kinds of objects that a fake cluster has, with their places in the API."""

from __future__ import annotations

from typing import NamedTuple


class Resource(NamedTuple):
    """A kind of object: its API group with version, and its name in paths."""

    kind: str
    group: str  # empty for the core group
    version: str
    plural: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects have it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def title(self) -> str:
        """As messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_RESOURCES = (
    Resource("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets"),
    Resource("Job", "batch", "v1", "jobs"),
    Resource("Pod", "", "v1", "pods"),
    Resource("Event", "", "v1", "events"),
    Resource("ConfigMap", "", "v1", "configmaps"),
    Resource("Secret", "", "v1", "secrets"),
    Resource("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
    Resource("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    Resource("DaemonSet", "apps", "v1", "daemonsets"),
    Resource("Deployment", "apps", "v1", "deployments"),
    Resource("Node", "", "v1", "nodes", False),
    Resource("PersistentVolume", "", "v1", "persistentvolumes", False),
    Resource("LocalQueue", "kueue.x-k8s.io", "v1beta2", "localqueues"),
    Resource("SelfSubjectAccessReview", "authorization.k8s.io", "v1", "selfsubjectaccessreviews", False),
)
BY_KIND = {each.kind: each for each in _RESOURCES}
BY_PATH = {(each.group, each.version, each.plural): each for each in _RESOURCES}
GROUPS = {each.group: each.version for each in _RESOURCES}
