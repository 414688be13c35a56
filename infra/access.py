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
    return [_rule(*rule) for rule in rules]


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
            _rule("jobset.x-k8s.io", ("jobsets",), ("get", "patch")),
            _rule("batch", ("jobs",), ("patch",)),
            _rule("", ("pods",), ("list", "patch")),
            _rule("", ("events",), ("list",)),
        ]
        owner = core.v1.ServiceAccount(f"{self._name}-placement", metadata=self._meta(account), opts=self.child())
        subject = rbac.v1.SubjectArgs(kind="ServiceAccount", name=account, namespace=self.namespace)
        self._grant(subject, "placement", account, self.namespace, rules, owner)
        server = networking.v1.NetworkPolicyEgressRuleArgs(
            ports=[networking.v1.NetworkPolicyPortArgs(protocol="TCP", port=443)]
        )
        self._policy("allow-api-server", ["Egress"], [server], {names.LABEL_PURPOSE: names.PLACEMENT})

    def _users(self, args: AccessArgs) -> None:
        """Rights in the namespace, and to read why a run waits: nodes, their events, the autoscaler's status."""
        group = rbac.v1.SubjectArgs(kind="Group", name=names.USERS_GROUP, api_group="rbac.authorization.k8s.io")
        self._grant(group, "users", "spotmpi-users", self.namespace, run_rules(args.queueing))
        cluster_role = rbac.v1.ClusterRole(
            f"{self._name}-users",
            metadata=meta.v1.ObjectMetaArgs(name="spotmpi-users"),
            rules=[
                _rule("", ("nodes",), _READ),
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
        self._grant(group, "autoscaler-status", "spotmpi-autoscaler-status", "kube-system", [_AUTOSCALER_STATUS])
        self._grant(group, "node-events", "spotmpi-node-events", "default", [_EVENTS])

    def _grant(
        self,
        subject: rbac.v1.SubjectArgs,
        what: str,
        role: str,
        namespace: pulumi.Input[str],
        rules: Sequence[rbac.v1.PolicyRuleArgs],
        *after: pulumi.Resource,
    ) -> None:
        """A Role of that name in a namespace, and its binding to *subject*, which waits for *after*."""
        metadata = meta.v1.ObjectMetaArgs(name=role, namespace=namespace)
        created = rbac.v1.Role(f"{self._name}-{what}", metadata=metadata, rules=list(rules), opts=self.child())
        rbac.v1.RoleBinding(
            f"{self._name}-{what}",
            metadata=metadata,
            role_ref=_role_ref("Role", role),
            subjects=[subject],
            opts=self.child(*after, created),
        )


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> rbac.v1.PolicyRuleArgs:
    return rbac.v1.PolicyRuleArgs(api_groups=[group], resources=list(resources), verbs=list(verbs))


def _labelled(key: str, value: str) -> meta.v1.LabelSelectorArgs:
    return meta.v1.LabelSelectorArgs(match_labels={key: value})


def _role_ref(kind: str, name: str) -> rbac.v1.RoleRefArgs:
    return rbac.v1.RoleRefArgs(api_group="rbac.authorization.k8s.io", kind=kind, name=name)
