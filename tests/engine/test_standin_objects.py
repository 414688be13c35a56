"""The rules of the stand-in Kubernetes, asked directly: what passes, and what a cluster would refuse."""

from typing import Any

import pytest

from tests.engine.providers.aws_network import (
    CLUSTER,
)
from tests.engine.providers.cloud import Asked
from tests.engine.providers.kubernetes import NAMESPACE, RELEASE
from tests.engine.providers.records import Refused
from tests.engine.world import World


def _object(kind: str, name: str, namespace: str | None = None, version: str = "v1", **more: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def test_objects_want_their_namespace_and_releases_want_nodes(world: World) -> None:
    subnets = world.ready()
    world.reach_kubernetes()
    secret = _object("Secret", "keys", "training", stringData={"a": "b"})
    with pytest.raises(Refused, match="not found"):
        world.make("kubernetes:core/v1:Secret", **secret)
    namespace = world.make(NAMESPACE, **_object("Namespace", "training"))
    world.make("kubernetes:core/v1:Secret", **secret)
    with pytest.raises(Refused, match="DependencyViolation"):
        world.kubernetes.delete(Asked(NAMESPACE, "it", ""), namespace.id)
    with pytest.raises(Refused, match="no node"):
        world.make(RELEASE, chart="jobset", namespace="kube-system")
    world.nodes(subnets)
    world.make(RELEASE, chart="jobset", namespace="kube-system")


def test_custom_objects_want_the_chart_that_brings_their_type(world: World) -> None:
    world.nodes(world.ready())
    world.reach_kubernetes()
    queue = _object("LocalQueue", "team", version="kueue.x-k8s.io/v1beta1", spec={"clusterQueue": "none"})
    token = "kubernetes:kueue.x-k8s.io/v1beta1:LocalQueue"
    with pytest.raises(Refused, match="kueue brings it"):
        world.make(token, **queue)
    world.make(RELEASE, chart="oci://registry.k8s.io/kueue/charts/kueue", namespace="kube-system")
    with pytest.raises(Refused, match="would wait for ever"):
        world.make(token, **queue)
    world.make(
        "kubernetes:kueue.x-k8s.io/v1beta1:ClusterQueue", **_object("ClusterQueue", "none", version=queue["apiVersion"])
    )
    world.make(token, **queue)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("kubernetes:core/v1:Pood", "no such resource"),
        ("kubernetes:batch/v1:Jobs", "no such resource"),
        ("kubernetes:kueue.x-k8s.io/v1beta2:LocalQueue", "are not those of"),
    ],
)
def test_an_object_is_of_a_type_that_there_is(world: World, token: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        world.make(token, **_object("LocalQueue", "team", version="kueue.x-k8s.io/v1beta1"))


def test_a_binding_wants_its_role(world: World) -> None:
    world.ready()
    world.reach_kubernetes()
    binding = _object("RoleBinding", "users", "default", "rbac.authorization.k8s.io/v1")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "users"}
    with pytest.raises(Refused, match="nobody would get any right"):
        world.make("kubernetes:rbac.authorization.k8s.io/v1:RoleBinding", **binding, roleRef=reference)


def test_nothing_in_a_cluster_answers_when_it_is_gone(world: World) -> None:
    world.ready()
    world.reach_kubernetes()
    namespace = world.make(NAMESPACE, **_object("Namespace", "training"))
    world.cloud.records.drop(world.cloud.records.of(CLUSTER)[0])
    assert world.cloud.records.of(NAMESPACE) == []
    with pytest.raises(Refused, match="unreachable"):
        world.kubernetes.delete(Asked(NAMESPACE, "it", ""), namespace.id)
