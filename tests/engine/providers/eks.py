"""The `eks` stand-in: a component that makes its children through the engine, as the real one does."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from pulumi.runtime.proto import resource_pb2, resource_pb2_grpc

from tests.engine.providers.aws_cluster import ACCESS_ENTRY, ATTACHMENT, ROLE
from tests.engine.providers.aws_network import CLUSTER
from tests.engine.providers.cloud import Provider
from tests.engine.providers.kinds import Kind
from tests.engine.providers.records import Refusal
from tests.engine.providers.schema import UNKNOWN
from tests.engine.providers.wire import from_struct, secret, to_struct

COMPONENT = "eks:index:Cluster"
_TRUST = {
    "Effect": "Allow",
    "Principal": {"Service": "eks.amazonaws.com"},
    "Action": ["sts:AssumeRole", "sts:TagSession"],
}
# What the program switches off in the real component, which would make more children.
_ABSENT = {
    "skipDefaultNodeGroup": True,
    "skipDefaultSecurityGroups": True,
    "useDefaultVpcCni": True,
    "corednsAddonOptions": {"enabled": False},
    "kubeProxyAddonOptions": {"enabled": False},
}


class Eks(Provider):
    """Components only; it has no resource of its own."""

    package = "eks"

    def kind(self, token: str, inputs: Mapping[str, Any]) -> Kind | None:
        """None: components are constructed."""
        return None


@dataclass(frozen=True)
class Child:
    """A child as the engine answers: its URN, id and outputs."""

    urn: str
    id: str
    outputs: dict[str, Any]

    def output(self, name: str) -> Any:
        """An output, or the mark of one that is not known yet."""
        return self.outputs.get(name, UNKNOWN)


@dataclass
class Construction:
    """The engine's side of one construction; `providers` and options go on to every child of the component."""

    monitor: resource_pb2_grpc.ResourceMonitorStub
    name: str
    inputs: Mapping[str, Any]
    providers: dict[str, str]
    options: Mapping[str, Any]

    def register(self, token: str, name: str, parent: str, inputs: Mapping[str, Any], *after: Child) -> Child:
        """Register one resource, which waits for some children."""
        return self._request(
            type=token,
            name=name,
            parent=parent,
            custom=True,
            object=to_struct({key: value for key, value in inputs.items() if value is not None}),
            dependencies=[child.urn for child in after],
            provider=self.providers.get("aws", ""),
        )

    def register_component(self, token: str, name: str, parent: str, **more: Any) -> Child:
        """Register one component, which hands the providers on."""
        return self._request(type=token, name=name, parent=parent, providers=self.providers, **more)

    def _request(self, **fields: Any) -> Child:
        request = resource_pb2.RegisterResourceRequest(supportsPartialValues=True, **self.options, **fields)
        answer = self.monitor.RegisterResource(request)
        return Child(answer.urn, answer.id or UNKNOWN, from_struct(answer.object))

    def children(self, parent: str) -> dict[str, Any]:
        """Make the component's children; gives its outputs."""
        role, attachment = self._role(parent)
        cluster = self._control_plane(parent, role, attachment)
        for key, entry in (self.inputs.get("accessEntries") or {}).items():
            self._access(parent, f"{self.name}-{key}", entry, cluster)
        kubeconfig, vpc_config = _kubeconfig(cluster), cluster.output("vpcConfig")
        return {
            "clusterSecurityGroupId": vpc_config["clusterSecurityGroupId"] if vpc_config != UNKNOWN else UNKNOWN,
            "kubeconfig": secret(kubeconfig if kubeconfig == UNKNOWN else json.loads(kubeconfig)),
            "kubeconfigJson": secret(kubeconfig),
        }

    def _role(self, parent: str) -> tuple[Child, Child]:
        name = f"{self.name}-eksRole"
        shell = self.register_component("eks:index:ServiceRole", name, parent)
        trust = json.dumps({"Version": "2012-10-17", "Statement": [_TRUST]})
        role_inputs = {"assumeRolePolicy": trust, "tags": self.inputs.get("tags")}
        role = self.register(ROLE, f"{name}-role", shell.urn, role_inputs)
        policy = {"role": role.output("name"), "policyArn": "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"}
        return role, self.register(ATTACHMENT, f"{name}-4b490823", shell.urn, policy, role)

    def _control_plane(self, parent: str, role: Child, *after: Child) -> Child:
        inputs, key = self.inputs, self.inputs.get("encryptionConfigKeyArn")
        same = ("name", "version", "enabledClusterLogTypes", "upgradePolicy", "tags")
        cluster_inputs = {
            **{name: inputs.get(name) for name in same},
            "roleArn": role.output("arn"),
            "vpcConfig": {
                "subnetIds": inputs["subnetIds"],
                "endpointPublicAccess": inputs.get("endpointPublicAccess", True),
                "endpointPrivateAccess": inputs.get("endpointPrivateAccess", False),
                "publicAccessCidrs": inputs.get("publicAccessCidrs") or ["0.0.0.0/0"],
            },
            "accessConfig": {
                "authenticationMode": inputs.get("authenticationMode", "CONFIG_MAP"),
                "bootstrapClusterCreatorAdminPermissions": True,
            },
            "encryptionConfig": {"provider": {"keyArn": key}, "resources": ["secrets"]} if key else None,
            "bootstrapSelfManagedAddons": inputs.get("bootstrapSelfManagedAddons", False),
        }
        return self.register(CLUSTER, f"{self.name}-eksCluster", parent, cluster_inputs, role, *after)

    def _access(self, parent: str, name: str, entry: Mapping[str, Any], cluster: Child) -> None:
        common = {"clusterName": cluster.output("name"), "principalArn": entry["principalArn"]}
        entry_inputs = {**common, "kubernetesGroups": entry.get("kubernetesGroups"), "type": "STANDARD"}
        child = self.register(ACCESS_ENTRY, name, parent, entry_inputs, cluster)
        token = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
        for key, policy in (entry.get("accessPolicies") or {}).items():
            self.register(token, f"{name}-{key}", parent, {**common, **policy}, child)


def construct(request: Any) -> tuple[str, dict[str, Any]]:
    """Make a cluster's children and give the component's URN and outputs."""
    inputs = from_struct(request.inputs)
    if more := [key for key, value in _ABSENT.items() if inputs.get(key) != value]:
        raise Refusal(f"add what the real component makes without {', '.join(more)} to tests/engine/providers/eks.py")
    options = {"deletedWith": request.deletedWith, "protect": request.protect}
    with grpc.insecure_channel(request.monitorEndpoint) as channel:
        monitor = resource_pb2_grpc.ResourceMonitorStub(channel)
        construction = Construction(monitor, request.name, inputs, dict(request.providers), options)
        component = construction.register_component(
            COMPONENT,
            request.name,
            request.parent,
            aliasURNs=list(request.aliases),
            dependencies=list(request.dependencies),
        )
        return component.urn, construction.children(component.urn)


def _kubeconfig(cluster: Child) -> str:
    endpoint, name, authority = (cluster.output(key) for key in ("endpoint", "name", "certificateAuthority"))
    if UNKNOWN in (endpoint, name, authority):
        return UNKNOWN
    server = {"server": endpoint, "certificate-authority-data": authority["data"]}
    arguments = ["eks", "get-token", "--cluster-name", name]
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws", "args": arguments}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return json.dumps(config)
