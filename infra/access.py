"""The namespace of the runs: what may run there, who may use it, and what it may talk to."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_kubernetes import core, meta, networking, rbac

from infra import names
from infra.inside import Inside

_READ = ("get", "list", "watch")
# Link-local addresses hold the machine's metadata and credentials.
_NOT_OUTSIDE = "169.254.0.0/16"
_AUTOSCALER_STATUS = rbac.v1.PolicyRuleArgs(
    api_groups=[""], resources=["configmaps"], resource_names=["cluster-autoscaler-status"], verbs=["get"]
)
# A rule cannot tell events by what they are about; but `default`, where those about nodes are, never holds runs.
_EVENTS = rbac.v1.PolicyRuleArgs(api_groups=[""], resources=["events"], verbs=["list"])


@dataclass(frozen=True)
class AccessArgs:
    """The namespace's name, whether runs may reach HTTPS hosts, and whether Kueue's objects exist."""

    namespace: str
    https_out: bool
    queueing: bool


def run_rules(queueing: bool) -> list[rbac.v1.PolicyRuleArgs]:
    """What the CLI's users may do in the namespace: what the CLI asks in their name, and nothing else.

    They make Secrets and neither read nor change any: what a run owns goes with it. docs/sharing.md says what users can
    do to each other all the same.
    """
    rules: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        ("jobset.x-k8s.io", ("jobsets",), ("create", "delete", "get", "list", "patch", "watch")),
        ("batch", ("jobs",), ("create", "delete", "get", "patch")),
        ("", ("pods",), ("create", "delete", "get", "list", "patch", "watch")),
        ("", ("pods/log",), ("get",)),
        ("", ("pods/exec",), ("create", "get")),
        ("", ("pods/eviction",), ("create",)),
        ("", ("configmaps",), ("create", "get", "list")),
        ("", ("secrets",), ("create",)),
        ("", ("events",), ("list", "watch")),
        ("", ("persistentvolumeclaims",), ("get",)),
        ("networking.k8s.io", ("networkpolicies",), ("create", "list")),
    ]
    if queueing:
        rules.append(("kueue.x-k8s.io", ("localqueues", "workloads"), _READ))
    return [
        rbac.v1.PolicyRuleArgs(api_groups=[group], resources=list(what), verbs=list(verbs))
        for group, what, verbs in rules
    ]


class Access(Inside):
    """A namespace under the restricted Pod Security Standard that denies all traffic but DNS; gives `namespace`."""

    def __init__(self, name: str, args: AccessArgs, opts: pulumi.ResourceOptions):
        super().__init__("Access", name, opts)
        self._name = name
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
        made = core.v1.Namespace(
            name, metadata=meta.v1.ObjectMetaArgs(name=args.namespace, labels=levels), opts=self.child()
        )
        self.namespace: pulumi.Output[str] = made.metadata.apply(lambda metadata: str(metadata.name))
        core.v1.ServiceAccount(
            name,
            metadata=self._meta(names.SERVICE_ACCOUNT),
            automount_service_account_token=False,
            opts=self.child(made),
        )
        self._policy("deny-all", ["Ingress", "Egress"], [])
        self._policy("allow-dns", ["Egress"], [self._dns()])
        if args.https_out:
            self._policy("allow-https", ["Egress"], [self._https()])
        self._users(args)
        self.register_outputs({})

    def _meta(self, name: str) -> meta.v1.ObjectMetaArgs:
        return meta.v1.ObjectMetaArgs(name=name, namespace=self.namespace)

    def _policy(
        self, name: str, types: Sequence[str], egress: Sequence[networking.v1.NetworkPolicyEgressRuleArgs]
    ) -> None:
        networking.v1.NetworkPolicy(
            f"{self._name}-{name}",
            metadata=self._meta(name),
            spec=networking.v1.NetworkPolicySpecArgs(
                pod_selector=meta.v1.LabelSelectorArgs(), policy_types=list(types), egress=list(egress) or None
            ),
            opts=self.child(),
        )

    def _dns(self) -> networking.v1.NetworkPolicyEgressRuleArgs:
        return networking.v1.NetworkPolicyEgressRuleArgs(
            to=[
                networking.v1.NetworkPolicyPeerArgs(
                    namespace_selector=_labelled("kubernetes.io/metadata.name", "kube-system"),
                    pod_selector=_labelled("k8s-app", "kube-dns"),
                )
            ],
            ports=[networking.v1.NetworkPolicyPortArgs(protocol=protocol, port=53) for protocol in ("UDP", "TCP")],
        )

    def _https(self) -> networking.v1.NetworkPolicyEgressRuleArgs:
        outside = networking.v1.IPBlockArgs(cidr="0.0.0.0/0", except_=[_NOT_OUTSIDE])
        return networking.v1.NetworkPolicyEgressRuleArgs(
            to=[networking.v1.NetworkPolicyPeerArgs(ip_block=outside)],
            ports=[networking.v1.NetworkPolicyPortArgs(protocol="TCP", port=443)],
        )

    def _users(self, args: AccessArgs) -> None:
        """What a run takes in the namespace; nodes, their events and the autoscaler's status: why a run waits."""
        group = rbac.v1.SubjectArgs(kind="Group", name=names.USERS_GROUP, api_group="rbac.authorization.k8s.io")
        role = rbac.v1.Role(
            f"{self._name}-users",
            metadata=self._meta("spotmpi-users"),
            rules=run_rules(args.queueing),
            opts=self.child(),
        )
        rbac.v1.RoleBinding(
            f"{self._name}-users",
            metadata=self._meta("spotmpi-users"),
            role_ref=_role_ref("Role", "spotmpi-users"),
            subjects=[group],
            opts=self.child(role),
        )
        reading = rbac.v1.ClusterRole(
            f"{self._name}-users",
            metadata=meta.v1.ObjectMetaArgs(name="spotmpi-users"),
            rules=[
                rbac.v1.PolicyRuleArgs(api_groups=[""], resources=["nodes"], verbs=list(_READ)),
                rbac.v1.PolicyRuleArgs(
                    api_groups=["apiextensions.k8s.io"],
                    resources=["customresourcedefinitions"],
                    resource_names=["jobsets.jobset.x-k8s.io"],
                    verbs=["get"],
                ),
            ],
            opts=self.child(),
        )
        rbac.v1.ClusterRoleBinding(
            f"{self._name}-users",
            metadata=meta.v1.ObjectMetaArgs(name="spotmpi-users"),
            role_ref=_role_ref("ClusterRole", "spotmpi-users"),
            subjects=[group],
            opts=self.child(reading),
        )
        self._looking(group, "autoscaler-status", "kube-system", _AUTOSCALER_STATUS)
        self._looking(group, "node-events", "default", _EVENTS)

    def _looking(self, group: rbac.v1.SubjectArgs, what: str, namespace: str, rule: rbac.v1.PolicyRuleArgs) -> None:
        """One thing that tells why a run waits, which lives in a namespace that is not of the runs."""
        place = meta.v1.ObjectMetaArgs(name=f"spotmpi-{what}", namespace=namespace)
        role = rbac.v1.Role(f"{self._name}-{what}", metadata=place, rules=[rule], opts=self.child())
        rbac.v1.RoleBinding(
            f"{self._name}-{what}",
            metadata=place,
            role_ref=_role_ref("Role", f"spotmpi-{what}"),
            subjects=[group],
            opts=self.child(role),
        )


def _labelled(key: str, value: str) -> meta.v1.LabelSelectorArgs:
    return meta.v1.LabelSelectorArgs(match_labels={key: value})


def _role_ref(kind: str, name: str) -> rbac.v1.RoleRefArgs:
    return rbac.v1.RoleRefArgs(api_group="rbac.authorization.k8s.io", kind=kind, name=name)
