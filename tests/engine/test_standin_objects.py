"""The rules of the stand-in Kubernetes, called directly: what passes, and what a cluster would refuse."""

from typing import Any

import pytest

from tests.engine.cloud_builder import CloudBuilder
from tests.engine.providers.aws_network import (
    CLUSTER,
)
from tests.engine.providers.cloud import ResourceRequest
from tests.engine.providers.kubernetes import NAMESPACE, RELEASE
from tests.engine.providers.records import Record, Refusal


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


VOLUME, CLAIM = "kubernetes:core/v1:PersistentVolume", "kubernetes:core/v1:PersistentVolumeClaim"
SECRET, QUEUE = "kubernetes:core/v1:Secret", "kubernetes:kueue.x-k8s.io/v1beta1:LocalQueue"


def _volume(handle: str = "fs-1::fsap-1") -> dict[str, Any]:
    return _object("PersistentVolume", "lab", spec={"csi": {"driver": "efs.csi.aws.com", "volumeHandle": handle}})


def _claim(size: str = "1024Gi", volume: str = "lab") -> dict[str, Any]:
    spec = {"volumeName": volume, "resources": {"requests": {"storage": size}}}
    return _object("PersistentVolumeClaim", "runs", "default", spec=spec)


def test_a_volume_and_its_claim_stay_while_something_uses_them(cloud_builder: CloudBuilder) -> None:
    cloud_builder.node_group_requirements()
    cloud_builder.configure_kubernetes()
    volume, claim = cloud_builder.make(VOLUME, **_volume()), cloud_builder.make(CLAIM, **_claim())
    kubernetes, cloud = cloud_builder.kubernetes, cloud_builder.cloud
    with pytest.raises(Refusal, match=r"kubernetes\.io/pv-protection"):
        kubernetes.delete(ResourceRequest(VOLUME, "it", ""), volume.id)
    cloud.mounted.add("default/runs")
    with pytest.raises(Refusal, match=r"kubernetes\.io/pvc-protection"):
        kubernetes.delete(ResourceRequest(CLAIM, "it", ""), claim.id)
    cloud.mounted.clear()
    kubernetes.delete(ResourceRequest(CLAIM, "it", ""), claim.id)
    kubernetes.delete(ResourceRequest(VOLUME, "it", ""), volume.id)


def test_the_source_of_a_volume_and_the_volume_of_a_claim_are_replaced_and_the_size_is_fixed(
    cloud_builder: CloudBuilder,
) -> None:
    cloud_builder.node_group_requirements()
    cloud_builder.configure_kubernetes()
    cloud_builder.make(VOLUME, **_volume())
    claim, kubernetes = cloud_builder.make(CLAIM, **_claim()), cloud_builder.kubernetes
    volume, request = ResourceRequest(VOLUME, "it", ""), ResourceRequest(CLAIM, "it", "")
    assert kubernetes.replaced_by(volume, _volume(), _volume("fs-2::fsap-2"), {}) == ["spec.csi"]
    assert kubernetes.replaced_by(request, _claim(), _claim(volume="other"), {}) == ["spec.volumeName"]
    assert kubernetes.replaced_by(request, _claim(), _claim("2048Gi"), {}) == []
    # Both keep their names, so that the old ones have to go first.
    assert kubernetes.deletes_first(volume, _volume()) and kubernetes.deletes_first(request, _claim())
    for size, message in (("2048Gi", "only dynamically provisioned pvc can be resized"), ("50Gi", "can not be less")):
        with pytest.raises(Refusal, match=message):
            kubernetes.update(request, claim.id, _claim(size), {})
    with pytest.raises(Refusal, match="spec is immutable after creation except"):
        kubernetes.update(request, claim.id, {**_claim(), "spec": {**_claim()["spec"], "volumeMode": "Block"}}, {})
    with pytest.raises(Refusal, match=r"spec\.csi: field is immutable"):
        kubernetes.update(volume, "lab", _volume("fs-2::fsap-2"), {})


def test_other_data_replaces_a_secret_and_a_queue_stays_with_its_cluster_queue(cloud_builder: CloudBuilder) -> None:
    cloud_builder.node_group_requirements()
    cloud_builder.configure_kubernetes()
    secret, kubernetes = ResourceRequest(SECRET, "it", ""), cloud_builder.kubernetes
    before, after = (_object("Secret", "mpi-ssh", "default", stringData={"id": value}) for value in "ab")
    assert kubernetes.replaced_by(secret, before, after, {}) == ["stringData"]
    queue = Record(QUEUE, "default/a", "", {**_object("LocalQueue", "a", "default", spec={"clusterQueue": "a"})}, {})
    update_rule = kubernetes.kind(QUEUE, queue.inputs).update_rule  # type: ignore[union-attr]
    assert update_rule is not None
    update_rule(queue, dict(queue.inputs))
    with pytest.raises(Refusal, match=r"spec\.clusterQueue: field is immutable"):
        update_rule(queue, _object("LocalQueue", "a", "default", spec={"clusterQueue": "b"}))
