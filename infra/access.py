"""The namespace of the runs: its pod security, its users and its network policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_kubernetes import core, meta, networking, rbac

from infra import names
from infra.kubernetes_component import KubernetesComponent

_READ = ("get", "list", "watch")
# Link-local addresses serve the machine's metadata and credentials.
_LINK_LOCAL = "169.254.0.0/16"
_AUTOSCALER_STATUS = rbac.v1.PolicyRuleArgs(
    api_groups=[""], resources=["configmaps"], resource_names=["cluster-autoscaler-status"], verbs=["get"]
)
# A rule cannot select events by their object; but `default`, which has those about nodes, never holds runs.
_EVENTS = rbac.v1.PolicyRuleArgs(api_groups=[""], resources=["events"], verbs=["list"])


@dataclass(frozen=True)
class AccessArgs:
    """The namespace's name, whether runs may reach HTTPS hosts, and whether Kueue's objects exist."""

    namespace: str
    https_out: bool
    queueing: bool


def run_rules(queueing: bool) -> list[rbac.v1.PolicyRuleArgs]:
    """What the CLI's users may do in the namespace: the calls of the CLI, and nothing else.

    They create Secrets and neither read nor change any; a run's own are deleted with it. docs/sharing.md says what
    users can still do to each other.
    """
    rules: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        ("jobset.x-k8s.io", ("jobsets",), ("create", "delete", "get", "list", "patch", "watch")),
        ("batch", ("jobs",), ("create", "delete", "get", "patch")),
        ("", ("pods",), ("create", "delete", "get", "list", "patch", "watch")),
        ("", ("pods/log",), ("get",)),
        ("", ("pods/exec", "pods/portforward"), ("create", "get")),
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


class Access(KubernetesComponent):
    """A namespace under the restricted Pod Security Standard that denies all traffic but DNS; provides `namespace`."""

    def __init__(self, name: str, args: AccessArgs, opts: pulumi.ResourceOptions):
        super().__init__("Access", name, opts)
        self._name = name
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
        namespace = core.v1.Namespace(
            name, metadata=meta.v1.ObjectMetaArgs(name=args.namespace, labels=levels), opts=self.child()
        )
        self.namespace: pulumi.Output[str] = namespace.metadata.apply(lambda metadata: str(metadata.name))
        core.v1.ServiceAccount(
            name,
            metadata=self._meta(names.SERVICE_ACCOUNT),
            automount_service_account_token=False,
            opts=self.child(namespace),
        )
        self._policy("deny-all", ["Ingress", "Egress"], [])
        self._policy("allow-dns", ["Egress"], [self._dns()])
        if args.https_out:
            self._policy("allow-https", ["Egress"], [self._https()])
        self._placement()
        self._users(args)
        self.register_outputs({"namespace": self.namespace})

    def _meta(self, name: str) -> meta.v1.ObjectMetaArgs:
        return meta.v1.ObjectMetaArgs(name=name, namespace=self.namespace)

    def _policy(
        self,
        name: str,
        types: Sequence[str],
        egress: Sequence[networking.v1.NetworkPolicyEgressRuleArgs],
        pods: Mapping[str, str] | None = None,
    ) -> None:
        """A NetworkPolicy for the pods with these labels, by default all; traffic of its *types* needs a rule."""
        networking.v1.NetworkPolicy(
            f"{self._name}-{name}",
            metadata=self._meta(name),
            spec=networking.v1.NetworkPolicySpecArgs(
                pod_selector=meta.v1.LabelSelectorArgs(match_labels=pods),
                policy_types=list(types),
                egress=list(egress) or None,
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
        outside = networking.v1.IPBlockArgs(cidr="0.0.0.0/0", except_=[_LINK_LOCAL])
        return networking.v1.NetworkPolicyEgressRuleArgs(
            to=[networking.v1.NetworkPolicyPeerArgs(ip_block=outside)],
            ports=[networking.v1.NetworkPolicyPortArgs(protocol="TCP", port=443)],
        )

    def _placement(self) -> None:
        """The account of the controllers that move a run to another node group, and their way to the API server.

        They read and change JobSets, change Jobs and pods, and list pods and what the autoscaler says of these, which
        every user of the namespace may do too. An address of the API server is known to no policy.
        """
        account = names.PLACEMENT_ACCOUNT
        rules = [
            rbac.v1.PolicyRuleArgs(api_groups=["jobset.x-k8s.io"], resources=["jobsets"], verbs=["get", "patch"]),
            rbac.v1.PolicyRuleArgs(api_groups=["batch"], resources=["jobs"], verbs=["patch"]),
            rbac.v1.PolicyRuleArgs(api_groups=[""], resources=["pods"], verbs=["list", "patch"]),
            rbac.v1.PolicyRuleArgs(api_groups=[""], resources=["events"], verbs=["list"]),
        ]
        owner = core.v1.ServiceAccount(f"{self._name}-placement", metadata=self._meta(account), opts=self.child())
        role = rbac.v1.Role(f"{self._name}-placement", metadata=self._meta(account), rules=rules, opts=self.child())
        subject = rbac.v1.SubjectArgs(kind="ServiceAccount", name=account, namespace=self.namespace)
        rbac.v1.RoleBinding(
            f"{self._name}-placement",
            metadata=self._meta(account),
            role_ref=_role_ref("Role", account),
            subjects=[subject],
            opts=self.child(owner, role),
        )
        server = networking.v1.NetworkPolicyEgressRuleArgs(
            ports=[networking.v1.NetworkPolicyPortArgs(protocol="TCP", port=443)]
        )
        self._policy("allow-api-server", ["Egress"], [server], {names.LABEL_PURPOSE: names.PLACEMENT})

    def _users(self, args: AccessArgs) -> None:
        """Rights in the namespace, and to read why a run waits: nodes, their events, the autoscaler's status."""
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
        cluster_role = rbac.v1.ClusterRole(
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
            opts=self.child(cluster_role),
        )
        self._read_rights(group, "autoscaler-status", "kube-system", _AUTOSCALER_STATUS)
        self._read_rights(group, "node-events", "default", _EVENTS)

    def _read_rights(self, group: rbac.v1.SubjectArgs, what: str, namespace: str, rule: rbac.v1.PolicyRuleArgs) -> None:
        """The right to read one reason why runs wait, in a namespace other than the runs' own."""
        metadata = meta.v1.ObjectMetaArgs(name=f"spotmpi-{what}", namespace=namespace)
        role = rbac.v1.Role(f"{self._name}-{what}", metadata=metadata, rules=[rule], opts=self.child())
        rbac.v1.RoleBinding(
            f"{self._name}-{what}",
            metadata=metadata,
            role_ref=_role_ref("Role", f"spotmpi-{what}"),
            subjects=[group],
            opts=self.child(role),
        )


def _labelled(key: str, value: str) -> meta.v1.LabelSelectorArgs:
    return meta.v1.LabelSelectorArgs(match_labels={key: value})


def _role_ref(kind: str, name: str) -> rbac.v1.RoleRefArgs:
    return rbac.v1.RoleRefArgs(api_group="rbac.authorization.k8s.io", kind=kind, name=name)
