"""NetworkPolicies as packet filter rules. Pure: objects of the cluster in, lines for `iptables-restore` out.

Semantics from the API's reference (networking.k8s.io/v1, NetworkPolicy): policies add up; a pod is isolated for a
direction as soon as one policy selects it for that direction; a connection passes where both ends allow it; answers
to an allowed connection pass; the node itself always reaches its pods. Packets that nothing allows are dropped, as
VPC CNI and kube-router do. Every pod is held to its policies, also those without an owner, which VPC CNI leaves alone
(aws-network-policy-agent#327): what works here works under the strictest engine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
NAME_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Endpoint:
    """Something with an address that policies know by its labels: a pod, with the ports that it names."""

    namespace: str
    labels: Mapping[str, str]
    address: str
    ports: Mapping[str, int] = field(default_factory=dict)


def endpoint(pod: Object) -> Endpoint | None:
    """A pod as policies see it; None for one without an address of its own, or whose containers have ended."""
    status = pod.get("status") or {}
    if not status.get("podIP") or pod["spec"].get("hostNetwork") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    named = {
        port["name"]: port["containerPort"]
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or []
        if port.get("name")
    }
    meta = pod["metadata"]
    return Endpoint(meta["namespace"], meta.get("labels") or {}, status["podIP"], named)


def rules(
    chain: str, policies: Sequence[Object], endpoints: Sequence[Endpoint], namespaces: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """The filter table's lines for two chains, *chain* and the one of its second half; *namespaces* have labels.

    A packet passes the rules of its sender, then those of its receiver.
    """
    second = f"{chain}-IN"
    lines = [f":{chain} - [0:0]", f":{second} - [0:0]"]
    lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
    sorted_endpoints = sorted(endpoints, key=lambda each: each.address)
    for each in sorted_endpoints:
        lines += _half(chain, each, policies, sorted_endpoints, namespaces, "Egress", f"-g {second}")
    lines.append(f"-A {chain} -g {second}")
    for each in sorted_endpoints:
        lines += _half(second, each, policies, sorted_endpoints, namespaces, "Ingress", "-j ACCEPT")
    return [*lines, f"-A {second} -j ACCEPT"]


def _half(
    chain: str,
    of: Endpoint,
    policies: Sequence[Object],
    endpoints: Sequence[Endpoint],
    namespaces: Mapping[str, Mapping[str, str]],
    direction: str,
    passed: str,
) -> list[str]:
    """What one direction allows an endpoint; nothing where no policy isolates it."""
    selecting = [policy for policy in policies if _selects(policy, of, direction)]
    if not selecting:
        return []
    own, other = ("-s", "-d") if direction == "Egress" else ("-d", "-s")
    lines = []
    for policy in selecting:
        for rule in policy["spec"].get(direction.lower()) or []:
            peers = rule.get("to" if direction == "Egress" else "from")
            for address, peer in _addresses(peers, policy["metadata"]["namespace"], endpoints, namespaces):
                receiver = peer if direction == "Egress" else of
                for port in _ports(rule.get("ports"), receiver):
                    lines.append(f"-A {chain} {own} {of.address} {other} {address}{port} {passed}")
    itself = f"-A {chain} -s {of.address} -d {of.address} {passed}"
    return [*dict.fromkeys([itself, *lines]), f"-A {chain} {own} {of.address} -j DROP"]


def _selects(policy: Object, of: Endpoint, direction: str) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    same = policy["metadata"]["namespace"] == of.namespace
    return same and direction in types and matches(spec.get("podSelector") or {}, of.labels)


def _addresses(
    peers: Sequence[Object] | None,
    namespace: str,
    endpoints: Sequence[Endpoint],
    namespaces: Mapping[str, Mapping[str, str]],
) -> Iterator[tuple[str, Endpoint | None]]:
    """The addresses of peers, with the endpoint where it is one; all addresses without peers."""
    if not peers:
        yield "0.0.0.0/0", None
        return
    for peer in peers:
        if peer.get("ipBlock"):
            yield from ((block, None) for block in _blocks(peer["ipBlock"]))
            continue
        selector = peer.get("namespaceSelector")
        for each in endpoints:
            labels = namespaces.get(each.namespace, {})
            in_namespace = each.namespace == namespace if selector is None else matches(selector, labels)
            if in_namespace and matches(peer.get("podSelector") or {}, each.labels):
                yield each.address, each


def _blocks(block: Object) -> list[str]:
    remaining = [ipaddress.ip_network(block["cidr"])]
    if remaining[0].version != 4:
        return []
    for text in block.get("except") or []:
        hole = ipaddress.ip_network(text)
        remaining = [part for whole in remaining for part in _without(whole, hole)]
    return [str(part) for part in sorted(remaining, key=lambda part: part.network_address.packed)]


def _without(whole: Any, hole: Any) -> Iterable[Any]:
    if whole.version != hole.version or not whole.overlaps(hole):
        return [whole]
    return [] if whole.subnet_of(hole) else whole.address_exclude(hole)


def _ports(ports: Sequence[Object] | None, receiver: Endpoint | None) -> Iterator[str]:
    if not ports:
        yield ""
        return
    for port in ports:
        protocol, number = port.get("protocol", "TCP").lower(), port.get("port")
        if isinstance(number, str):
            number = receiver.ports.get(number) if receiver else None
            if number is None:
                continue  # nothing of that name, so nothing that the rule allows
        last = f":{port['endPort']}" if "endPort" in port else ""
        yield f" -p {protocol}" + (f" --dport {number}{last}" if number is not None else "")


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector fits labels; an empty one fits all."""
    match_labels = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in match_labels.items()):
        return False
    return all(_fits(each, labels) for each in selector.get("matchExpressions") or [])


def _fits(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    result: bool = {
        "In": key in labels and labels[key] in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[expression["operator"]]
    return result
