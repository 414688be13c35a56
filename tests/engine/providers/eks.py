"""The `eks` stand-in: a component that makes its children through the engine, as the real one does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from pulumi.runtime.proto import resource_pb2, resource_pb2_grpc

from tests.engine.providers.aws_cluster import ACCESS_ENTRY, ADDON, ATTACHMENT, ROLE
from tests.engine.providers.aws_network import CLUSTER, SECURITY_GROUP
from tests.engine.providers.cloud import Provider
from tests.engine.providers.kinds import Kind
from tests.engine.providers.schema import UNKNOWN
from tests.engine.providers.wire import from_struct, secret, to_struct

COMPONENT = "eks:index:Cluster"
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "eks.amazonaws.com"},
            "Action": ["sts:AssumeRole", "sts:TagSession"],
        }
    ],
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


@dataclass
class Engine:
    """The engine's side of one construction; `providers` and options go on to every child."""

    monitor: resource_pb2_grpc.ResourceMonitorStub
    providers: dict[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)

    def register(self, token: str, name: str, parent: str, **more: Any) -> Child:
        """Register one resource; `inputs` and `after` (URNs) are its inputs and what it waits for."""
        inputs, after = more.get("inputs", {}), more.get("after", ())
        custom = more.get("custom", True)
        request = resource_pb2.RegisterResourceRequest(
            type=token,
            name=name,
            parent=parent,
            custom=custom,
            object=to_struct({key: value for key, value in inputs.items() if value is not None}),
            dependencies=list(after),
            provider=self.providers.get("aws", "") if custom else "",
            providers={} if custom else self.providers,
            supportsPartialValues=True,
            **self.options,
        )
        answer = self.monitor.RegisterResource(request)
        return Child(answer.urn, answer.id or UNKNOWN, from_struct(answer.object))


def construct(request: Any) -> tuple[str, dict[str, Any]]:
    """Make a cluster's children and give the component's URN and outputs."""
    inputs = from_struct(request.inputs)
    options = {"deletedWith": request.deletedWith, "protect": request.protect}
    with grpc.insecure_channel(request.monitorEndpoint) as channel:
        engine = Engine(resource_pb2_grpc.ResourceMonitorStub(channel), dict(request.providers), options)
        outer = Engine(engine.monitor, engine.providers, {**options, "aliasURNs": list(request.aliases)})
        component = outer.register(
            COMPONENT, request.name, request.parent, custom=False, after=list(request.dependencies)
        )
        return component.urn, _children(engine, component.urn, request.name, inputs)


def _children(engine: Engine, parent: str, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    role, attached = _role(engine, parent, name, inputs)
    groups = [] if inputs.get("skipDefaultSecurityGroups") else [_security_group(engine, parent, name, inputs)]
    control_plane = _control_plane(engine, parent, name, inputs, role, [*attached, *groups])
    outputs = control_plane.outputs
    cluster_name = outputs.get("name", UNKNOWN)
    for key, entry in (inputs.get("accessEntries") or {}).items():
        _access(engine, parent, f"{name}-{key}", cluster_name, entry, control_plane.urn)
    _addons(engine, parent, name, inputs, cluster_name, control_plane.urn)
    kubeconfig = _kubeconfig(outputs)
    vpc_config = outputs.get("vpcConfig")
    return {
        "clusterSecurityGroupId": vpc_config["clusterSecurityGroupId"] if isinstance(vpc_config, dict) else UNKNOWN,
        "kubeconfig": secret(kubeconfig if kubeconfig == UNKNOWN else json.loads(kubeconfig)),
        "kubeconfigJson": secret(kubeconfig),
        "nodeSecurityGroupId": groups[0].id if groups else "",
        "clusterIngressRuleId": "",
        "oidcProviderArn": "",
        "oidcProviderUrl": "",
        "oidcIssuer": "",
        "autoModeNodeRoleName": "",
        "fargateProfileId": "",
        "fargateProfileStatus": "",
        "defaultNodeGroupAsgName": "",
    }


def _role(engine: Engine, parent: str, name: str, inputs: Mapping[str, Any]) -> tuple[Child, list[Child]]:
    shell = engine.register("eks:index:ServiceRole", f"{name}-eksRole", parent, custom=False)
    role_inputs = {"assumeRolePolicy": json.dumps(_TRUST), "tags": inputs.get("tags")}
    role = engine.register(ROLE, f"{name}-eksRole-role", shell.urn, inputs=role_inputs)
    attachment = {
        "role": role.outputs.get("name", UNKNOWN),
        "policyArn": "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy",
    }
    attached = engine.register(ATTACHMENT, f"{name}-eksRole-4b490823", shell.urn, inputs=attachment, after=[role.urn])
    return role, [attached]


def _security_group(engine: Engine, parent: str, name: str, inputs: Mapping[str, Any]) -> Child:
    security_group_inputs = {"vpcId": inputs.get("vpcId"), "description": "control plane", "tags": inputs.get("tags")}
    return engine.register(SECURITY_GROUP, f"{name}-eksClusterSecurityGroup", parent, inputs=security_group_inputs)


def _control_plane(
    engine: Engine, parent: str, name: str, inputs: Mapping[str, Any], role: Child, after: Sequence[Child]
) -> Child:
    subnets = [key for key in ("subnetIds", "publicSubnetIds", "privateSubnetIds") if inputs.get(key)]
    key = inputs.get("encryptionConfigKeyArn")
    cluster_inputs = {
        "name": inputs.get("name"),
        "roleArn": role.outputs.get("arn", UNKNOWN),
        "version": inputs.get("version"),
        "vpcConfig": {
            "subnetIds": [subnet for group in subnets for subnet in inputs[group]],
            "securityGroupIds": [child.id for child in after if ":SecurityGroup::" in child.urn],
            "endpointPublicAccess": inputs.get("endpointPublicAccess", True),
            "endpointPrivateAccess": inputs.get("endpointPrivateAccess", False),
            "publicAccessCidrs": inputs.get("publicAccessCidrs") or ["0.0.0.0/0"],
        },
        "accessConfig": {
            "authenticationMode": inputs.get("authenticationMode", "CONFIG_MAP"),
            "bootstrapClusterCreatorAdminPermissions": True,
        },
        "enabledClusterLogTypes": inputs.get("enabledClusterLogTypes"),
        "encryptionConfig": {"provider": {"keyArn": key}, "resources": ["secrets"]} if key else None,
        "upgradePolicy": inputs.get("upgradePolicy"),
        "bootstrapSelfManagedAddons": inputs.get("bootstrapSelfManagedAddons", False),
        "tags": inputs.get("tags"),
    }
    return engine.register(
        CLUSTER, f"{name}-eksCluster", parent, inputs=cluster_inputs, after=[role.urn, *(child.urn for child in after)]
    )


def _access(engine: Engine, parent: str, name: str, cluster: str, entry: Mapping[str, Any], after: str) -> None:
    principal = entry["principalArn"]
    groups = entry.get("kubernetesGroups")
    child = engine.register(
        ACCESS_ENTRY,
        name,
        parent,
        inputs={"clusterName": cluster, "principalArn": principal, "kubernetesGroups": groups, "type": "STANDARD"},
        after=[after],
    )
    for key, policy in (entry.get("accessPolicies") or {}).items():
        engine.register(
            "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
            f"{name}-{key}",
            parent,
            inputs={"clusterName": cluster, "principalArn": principal, **policy},
            after=[child.urn],
        )


def _addons(engine: Engine, parent: str, name: str, inputs: Mapping[str, Any], cluster: str, after: str) -> None:
    names = [] if inputs.get("useDefaultVpcCni") else ["vpc-cni"]
    for key, addon in (("corednsAddonOptions", "coredns"), ("kubeProxyAddonOptions", "kube-proxy")):
        if (inputs.get(key) or {}).get("enabled", True):
            names.append(addon)
    for addon in names:
        addon_inputs = {"clusterName": cluster, "addonName": addon, "tags": inputs.get("tags")}
        engine.register(ADDON, f"{name}-{addon}", parent, inputs=addon_inputs, after=[after])


def _kubeconfig(outputs: Mapping[str, Any]) -> str:
    endpoint, name = outputs.get("endpoint", UNKNOWN), outputs.get("name", UNKNOWN)
    authority = outputs.get("certificateAuthority", UNKNOWN)
    if UNKNOWN in (endpoint, name, authority):
        return UNKNOWN
    server = {"server": endpoint, "certificate-authority-data": authority["data"]}
    arguments = ["eks", "get-token", "--cluster-name", name]
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws", "args": arguments}}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": server}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )
