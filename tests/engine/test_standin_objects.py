"""The rules of the stand-in Kubernetes, called directly: what passes, and what a cluster would refuse."""

from typing import Any

import pytest

from tests.engine.cloud_builder import CloudBuilder
from tests.engine.providers.aws_network import (
    CLUSTER,
)
from tests.engine.providers.cloud import ResourceRequest
from tests.engine.providers.kubernetes import NAMESPACE, RELEASE
from tests.engine.providers.records import Refusal


def _object(kind: str, name: str, namespace: str | None = None, version: str = "v1", **more: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def test_objects_need_their_namespace_and_releases_need_nodes(cloud_builder: CloudBuilder) -> None:
    subnets = cloud_builder.node_group_requirements()
    cloud_builder.configure_kubernetes()
    secret = _object("Secret", "keys", "training", stringData={"a": "b"})
    with pytest.raises(Refusal, match="not found"):
        cloud_builder.make("kubernetes:core/v1:Secret", **secret)
    namespace = cloud_builder.make(NAMESPACE, **_object("Namespace", "training"))
    cloud_builder.make("kubernetes:core/v1:Secret", **secret)
    with pytest.raises(Refusal, match="DependencyViolation"):
        cloud_builder.kubernetes.delete(ResourceRequest(NAMESPACE, "it", ""), namespace.id)
    with pytest.raises(Refusal, match="no node"):
        cloud_builder.make(RELEASE, chart="jobset", namespace="kube-system")
    cloud_builder.nodes(subnets)
    cloud_builder.make(RELEASE, chart="jobset", namespace="kube-system")


def test_custom_objects_need_the_chart_that_brings_their_type(cloud_builder: CloudBuilder) -> None:
    cloud_builder.nodes(cloud_builder.node_group_requirements())
    cloud_builder.configure_kubernetes()
    queue = _object("LocalQueue", "team", version="kueue.x-k8s.io/v1beta1", spec={"clusterQueue": "none"})
    token = "kubernetes:kueue.x-k8s.io/v1beta1:LocalQueue"
    with pytest.raises(Refusal, match="kueue brings it"):
        cloud_builder.make(token, **queue)
    cloud_builder.make(RELEASE, chart="oci://registry.k8s.io/kueue/charts/kueue", namespace="kube-system")
    with pytest.raises(Refusal, match="would wait for ever"):
        cloud_builder.make(token, **queue)
    cloud_builder.make(
        "kubernetes:kueue.x-k8s.io/v1beta1:ClusterQueue", **_object("ClusterQueue", "none", version=queue["apiVersion"])
    )
    cloud_builder.make(token, **queue)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("kubernetes:core/v1:Pood", "no such resource"),
        ("kubernetes:batch/v1:Jobs", "no such resource"),
        ("kubernetes:kueue.x-k8s.io/v1beta2:LocalQueue", "are not those of"),
    ],
)
def test_an_object_of_an_unknown_type_is_refused(cloud_builder: CloudBuilder, token: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        cloud_builder.make(token, **_object("LocalQueue", "team", version="kueue.x-k8s.io/v1beta1"))


def test_a_binding_needs_its_role(cloud_builder: CloudBuilder) -> None:
    cloud_builder.node_group_requirements()
    cloud_builder.configure_kubernetes()
    binding = _object("RoleBinding", "users", "default", "rbac.authorization.k8s.io/v1")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "users"}
    with pytest.raises(Refusal, match="nobody would get any right"):
        cloud_builder.make("kubernetes:rbac.authorization.k8s.io/v1:RoleBinding", **binding, roleRef=reference)


def test_nothing_in_a_cluster_answers_when_it_is_gone(cloud_builder: CloudBuilder) -> None:
    cloud_builder.node_group_requirements()
    cloud_builder.configure_kubernetes()
    namespace = cloud_builder.make(NAMESPACE, **_object("Namespace", "training"))
    cloud_builder.cloud.records.delete(cloud_builder.cloud.records.of(CLUSTER)[0])
    assert cloud_builder.cloud.records.of(NAMESPACE) == []
    with pytest.raises(Refusal, match="unreachable"):
        cloud_builder.kubernetes.delete(ResourceRequest(NAMESPACE, "it", ""), namespace.id)
