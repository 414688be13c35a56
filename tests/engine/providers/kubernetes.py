"""The `kubernetes` stand-in: objects of one cluster, and Helm releases that need nodes to run on."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.engine.providers.aws_cluster import nodes_of
from tests.engine.providers.aws_network import CLUSTER
from tests.engine.providers.cloud import Cloud, Provider, ResourceRequest
from tests.engine.providers.kinds import Kind, Target
from tests.engine.providers.records import Record, Records, Refusal, value_at, values_at
from tests.engine.providers.schema import UNKNOWN

RELEASE = "kubernetes:helm.sh/v3:Release"
NAMESPACE = "kubernetes:core/v1:Namespace"
# What every cluster is born with.
_BORN_WITH = ("default", "kube-system", "kube-public", "kube-node-lease")
_CLUSTER_WIDE = ("Namespace", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "StorageClass", "PriorityClass")
_CLUSTER_WIDE_CUSTOM = ("ClusterQueue", "ResourceFlavor", "WorkloadPriorityClass", "Topology", "AdmissionCheck")
# Which chart brings the types of an API group that Kubernetes doesn't have.
_BROUGHT_BY = {"jobset.x-k8s.io": "jobset", "kueue.x-k8s.io": "kueue"}
# What the objects of a queueing system name without Kubernetes looking: a wrong name would only make jobs wait.
_NAMED = {
    "LocalQueue": ("spec.clusterQueue", "ClusterQueue"),
    "ClusterQueue": ("spec.resourceGroups[].flavors[].name", "ResourceFlavor"),
}
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CORE = "kubernetes:core/v1:"
_REFERS = {
    "PersistentVolumeClaim": {"spec.volumeName": (Target(_CORE + "PersistentVolume", "metadata.name"),)},
}
# What the provider replaces: forceNewProperties in provider/pkg/provider/diff.go of pulumi-kubernetes; Secrets unless
# `enableSecretMutable` is set, which it is not.
_FIXED = {
    "Secret": ("type", "stringData", "data"),
    "RoleBinding": ("roleRef",),
    "ClusterRoleBinding": ("roleRef",),
    "PersistentVolume": ("spec.csi",),
    "PersistentVolumeClaim": ("spec.accessModes", "spec.selector", "spec.storageClassName", "spec.volumeName"),
}


def object_name(inputs: Mapping[str, Any]) -> str:
    """`namespace/name` of an object, the name alone where there is no namespace."""
    namespace, name = value_at(inputs, "metadata.namespace"), value_at(inputs, "metadata.name")
    return f"{namespace}/{name}" if namespace else str(name)


def _cluster_wide(inputs: Mapping[str, Any]) -> bool:
    return inputs.get("kind") in (*_CLUSTER_WIDE, *_CLUSTER_WIDE_CUSTOM)


# What the API server refuses to change in place: validation.go of Kubernetes' core and rbac APIs, and the rules in
# localqueue_types.go of Kueue. Of a claim's spec all but the requested storage.
_IMMUTABLE = {
    "PersistentVolume": ("spec.csi", "spec.volumeMode"),
    "RoleBinding": ("roleRef",),
    "ClusterRoleBinding": ("roleRef",),
    "Secret": ("type",),
    "LocalQueue": ("spec.clusterQueue",),
}


def _keep_immutable(existing: Record, inputs: dict[str, Any]) -> None:
    """Refuse what the API server refuses of an update."""
    kind, name = str(inputs.get("kind")), object_name(inputs)
    if kind == "PersistentVolumeClaim":
        _keep_claim(existing, inputs)
    for path in _IMMUTABLE.get(kind, ()):
        if value_at(existing.inputs, path) != value_at(inputs, path):
            raise Refusal(f"{kind} {name!r} is invalid: {path}: field is immutable")


def _keep_claim(claim: Record, inputs: dict[str, Any]) -> None:
    """Refuse another size or other spec of a bound static claim; the words are those of a real API server (1.35)."""
    path, name = "spec.resources.requests.storage", value_at(inputs, "metadata.name")
    if _without_size(claim.inputs) != _without_size(inputs):
        raise Refusal(
            f"PersistentVolumeClaim {name!r} is invalid: spec: Forbidden: spec is immutable after creation except "
            "resources.requests and volumeAttributesClassName for bound claims"
        )
    before, after = (int(str(value_at(each, path)).removesuffix("Gi")) for each in (claim.inputs, inputs))
    if after < before:
        raise Refusal(f"PersistentVolumeClaim {name!r} is invalid: {path}: field can not be less than status.capacity")
    if after > before:
        raise Refusal(
            f'persistentvolumeclaims "{name}" is forbidden: only dynamically provisioned pvc can be resized and the '
            "storageclass that provisions the pvc must support resize"
        )


def _without_size(claim: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (claim.get("spec") or {}).items() if key != "resources"}


class Kubernetes(Provider):
    """Objects in the cluster that the last configured kubeconfig names."""

    package = "kubernetes"

    def __init__(self, cloud: Cloud):
        super().__init__(cloud)
        self._endpoint: str | None = None

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Read the kubeconfig, if it is known yet."""
        text = settings.get("kubeconfig")
        if not isinstance(text, str) or text == UNKNOWN:
            return
        try:
            self._endpoint = json.loads(text)["clusters"][0]["cluster"]["server"]
        except (ValueError, KeyError, IndexError) as error:
            raise Refusal(f"failed to parse kubeconfig: {error}") from error

    def scope(self) -> str | None:
        """The cluster at the kubeconfig's address."""
        for cluster in self.cloud.records.of(CLUSTER):
            if cluster.outputs["endpoint"] == self._endpoint:
                return cluster.id
        return None

    def reach(self) -> None:
        """Refuse when no cluster answers."""
        if self.scope() is None:
            raise Refusal(f"configured Kubernetes cluster is unreachable: no cluster at {self._endpoint}")

    def kind(self, token: str, inputs: Mapping[str, Any]) -> Kind | None:
        """Every type that the SDK has behaves alike, but for releases."""
        if token == RELEASE:
            return Kind(
                "{namespace}/{name}",
                replaces=("name", "namespace"),  # forceNewFields in helm_release.go; another chart is an upgrade
                answers=lambda values, identity, records: {"status": {"status": "deployed", "name": identity}},
                unknown=("status",),
                create_rule=self._release_rule,
            )
        where = () if _cluster_wide(inputs) else ("metadata.namespace",)
        kind = str(inputs.get("kind"))
        return Kind(
            "",
            replaces=("metadata.name", *where, *_FIXED.get(kind, ())),
            refers=_REFERS.get(kind, {}),
            create_rule=self._object_rule,
            update_rule=_keep_immutable,
            delete_rule=self._protection_rule,
        )

    def deletes_first(self, resource: ResourceRequest, news: Mapping[str, Any]) -> bool:
        """Whether a named object keeps its name and place (`deleteBeforeReplace` in provider.go of the original)."""
        return resource.token != RELEASE and self._named(str(news.get("kind")), object_name(news)) is not None

    def _protection_rule(self, record: Record, records: Records) -> None:
        """The finalizers of volumes and claims: a delete does not return while a claim or a pod uses the object.

        kubernetes.io/pv-protection and pvc-protection: Kubernetes documentation, "Storage Object in Use Protection".
        The original waits for the deletion until its timeout.
        """
        kind, name = record.inputs.get("kind"), object_name(record.inputs)
        if kind == "PersistentVolume" and record.scope in {
            claim.scope for claim in records if value_at(claim.inputs, "spec.volumeName") == name
        }:
            raise Refusal(f"timed out waiting for deletion of {name}: finalizers [kubernetes.io/pv-protection]")
        if kind == "PersistentVolumeClaim" and name in self.cloud.mounted:
            raise Refusal(f"timed out waiting for deletion of {name}: finalizers [kubernetes.io/pvc-protection]")

    def check(
        self, resource: ResourceRequest, olds: Mapping[str, Any], news: Mapping[str, Any], seed: bytes
    ) -> tuple[dict[str, Any], list[str]]:
        """Give objects a namespace and a name, as the real provider does, and check both."""
        inputs, failures = super().check(resource, olds, news, seed)
        made_up = f"{resource.name.replace('/', '-')}-{seed.hex()[:8]}"
        if resource.token == RELEASE:
            inputs.setdefault("namespace", "default")
            inputs.setdefault("name", olds.get("name") or made_up)
            return inputs, failures
        metadata = inputs["metadata"] = dict(inputs.get("metadata") or {})
        metadata.setdefault("name", value_at(olds, "metadata.name") or made_up)
        if not _cluster_wide(inputs):
            metadata.setdefault("namespace", "default")
        elif "namespace" in metadata:
            failures.append(f"metadata.namespace: {inputs.get('kind')} is cluster-wide")
        pattern = _LABEL if inputs.get("kind") in ("Namespace", "Service") else _SUBDOMAIN
        is_rbac = "rbac" in resource.token
        if metadata["name"] != UNKNOWN and not is_rbac and not pattern.fullmatch(metadata["name"]):
            failures.append(f"metadata.name: {metadata['name']!r} is not a name of Kubernetes")
        return inputs, failures

    def identity(self, kind: Kind, words: Mapping[str, Any]) -> str:
        """An object's own name; a release's is its namespace and name."""
        return object_name(words) if "metadata" in words else kind.identity.format(**words)

    def more_uses(self, inputs: Mapping[str, Any]) -> frozenset[str]:
        """An object uses its namespace."""
        namespace = value_at(inputs, "metadata.namespace")
        record = self._named("Namespace", namespace) if namespace else None
        return frozenset({record.key}) if record else frozenset()

    def _named(self, kind: str, name: str) -> Record | None:
        for record in self.cloud.records:
            if record.scope and record.inputs.get("kind") == kind and object_name(record.inputs) == name:
                return record
        return None

    def _object_rule(self, inputs: dict[str, Any], records: Records) -> None:
        group = str(inputs.get("apiVersion")).split("/", 1)[0]
        if (chart := _BROUGHT_BY.get(group)) and not any(self._is_chart(one, chart) for one in records.of(RELEASE)):
            raise Refusal(f"no matches for kind {inputs.get('kind')!r} in {inputs['apiVersion']}: {chart} brings it")
        self._check_namespace(value_at(inputs, "metadata.namespace"))
        place, required_kind = _NAMED.get(str(inputs.get("kind")), ("", ""))
        for name in values_at(inputs, place) if place else []:
            if self._named(required_kind, name) is None:
                raise Refusal(
                    f"{required_kind} {name!r} not found: everything in {object_name(inputs)} would wait for ever"
                )
        for kind, path in (("RoleBinding", "roleRef"), ("ClusterRoleBinding", "roleRef")):
            if inputs.get("kind") == kind:
                self._check_role(inputs[path], value_at(inputs, "metadata.namespace"))

    @staticmethod
    def _is_chart(release: Record, chart: str) -> bool:
        return str(release.inputs["chart"]).rstrip("/").rsplit("/", 1)[-1] == chart

    def _check_namespace(self, namespace: str | None) -> None:
        if namespace and namespace not in _BORN_WITH and self._named("Namespace", namespace) is None:
            made_by_charts = {
                release.inputs["namespace"]
                for release in self.cloud.records.of(RELEASE)
                if release.inputs.get("createNamespace")
            }
            if namespace not in made_by_charts:
                raise Refusal(f'namespaces "{namespace}" not found')

    def _check_role(self, role: Mapping[str, Any], namespace: str | None) -> None:
        name = role["name"] if role["kind"] == "ClusterRole" else f"{namespace}/{role['name']}"
        born_with = role["kind"] == "ClusterRole" and (role["name"] in ("view", "edit", "admin", "cluster-admin"))
        if not born_with and self._named(role["kind"], name) is None:
            raise Refusal(f"{role['kind']} {name!r} not found: nobody would get any right")

    def _release_rule(self, inputs: dict[str, Any], records: Records) -> None:
        if not inputs.get("createNamespace"):
            self._check_namespace(inputs["namespace"])
        if not inputs.get("skipAwait") and not nodes_of(str(self.scope()), records):
            raise Refusal(f"timed out waiting for release {inputs['name']}: no node takes its pods")
