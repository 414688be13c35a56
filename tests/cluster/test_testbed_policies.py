"""NetworkPolicies as packet filter rules: what the test cluster lets through."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testbed.network_policies import NAME_LABEL, Endpoint, endpoint, matches, rules

NEAR = {NAME_LABEL: "here"}
FAR = {NAME_LABEL: "there", "team": "vision"}
NAMESPACES = {"here": NEAR, "there": FAR}
A = Endpoint("here", {"run": "a"}, "10.0.0.1", {"web": 8080})
B = Endpoint("here", {"run": "b"}, "10.0.0.2")
C = Endpoint("there", {"run": "a"}, "10.0.0.3")


def policy(namespace: str = "here", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": {"podSelector": {}, **spec}}


def lines(*policies: dict[str, Any]) -> list[str]:
    """The rules but for those that every cluster has."""
    usual = set(rules("X", [], [], {}))
    return [line for line in rules("X", policies, [A, B, C], NAMESPACES) if line not in usual]


def test_without_policies_all_traffic_is_allowed() -> None:
    assert lines() == []


def test_a_pod_that_a_policy_selects_is_isolated_in_that_direction_only() -> None:
    denied = lines(policy(podSelector={"matchLabels": {"run": "a"}}, policyTypes=["Ingress"]))
    assert denied == ["-A X-IN -s 10.0.0.1 -d 10.0.0.1 -j ACCEPT", "-A X-IN -d 10.0.0.1 -j DROP"]


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({"policyTypes": ["Ingress"], "egress": [{}]}, {"policyTypes": ["Ingress"]}),  # rules without effect
        ({}, {"policyTypes": ["Ingress"]}),
        ({"egress": [{}]}, {"policyTypes": ["Ingress", "Egress"], "egress": [{}]}),
    ],
)
def test_a_policy_is_of_its_types_or_of_ingress_and_with_egress_rules_of_both(
    spec: dict[str, Any], types: dict[str, Any]
) -> None:
    assert lines(policy(**spec)) == lines(policy(**types))


def test_a_packet_has_to_pass_its_sender_and_then_its_receiver() -> None:
    same = {"podSelector": {"matchLabels": {"run": "a"}}}
    rules = lines(policy(podSelector=same["podSelector"], policyTypes=["Egress"], egress=[{"to": [same]}]))
    assert rules == [
        "-A X -s 10.0.0.1 -d 10.0.0.1 -g X-IN",
        "-A X -s 10.0.0.1 -j DROP",
    ]


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ({"podSelector": {"matchLabels": {"run": "a"}}}, ["10.0.0.1"]),
        ({"podSelector": {}}, ["10.0.0.1", "10.0.0.2"]),
        ({"namespaceSelector": {"matchLabels": {"team": "vision"}}}, ["10.0.0.3"]),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"run": "a"}}}, ["10.0.0.1", "10.0.0.3"]),
        ({"ipBlock": {"cidr": "192.0.2.0/30", "except": ["192.0.2.0/31"]}}, ["192.0.2.2/31"]),
        ({"ipBlock": {"cidr": "2001:db8::/32"}}, []),
    ],
)
def test_peers_are_pods_by_their_labels_or_ranges_less_their_holes(peer: dict[str, Any], expected: list[str]) -> None:
    rules = lines(policy(podSelector={"matchLabels": {"run": "b"}}, ingress=[{"from": [peer]}]))
    # A pod always reaches itself, whatever its policies say.
    own = "-A X-IN -s 10.0.0.2 -d 10.0.0.2 -j ACCEPT"
    assert rules == [
        own,
        *(f"-A X-IN -d 10.0.0.2 -s {each} -j ACCEPT" for each in expected),
        "-A X-IN -d 10.0.0.2 -j DROP",
    ]


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ({"port": 53, "protocol": "UDP"}, " -p udp --dport 53"),
        ({"port": 443}, " -p tcp --dport 443"),
        ({"port": 100, "endPort": 200}, " -p tcp --dport 100:200"),
        ({"protocol": "TCP"}, " -p tcp"),
        ({"port": "web"}, " -p tcp --dport 8080"),
    ],
)
def test_ports_are_numbers_ranges_or_names_of_the_receiver(port: dict[str, Any], expected: str) -> None:
    rules = lines(policy(podSelector={"matchLabels": {"run": "a"}}, ingress=[{"ports": [port]}]))
    assert f"-A X-IN -d 10.0.0.1 -s 0.0.0.0/0{expected} -j ACCEPT" in rules


def test_a_port_name_that_the_receiver_does_not_have_allows_nothing() -> None:
    rules = lines(policy(podSelector={"matchLabels": {"run": "b"}}, ingress=[{"ports": [{"port": "web"}]}]))
    assert rules == ["-A X-IN -s 10.0.0.2 -d 10.0.0.2 -j ACCEPT", "-A X-IN -d 10.0.0.2 -j DROP"]


def test_policies_are_additive() -> None:
    one = policy(podSelector={"matchLabels": {"run": "b"}}, ingress=[{"from": [{"podSelector": {}}]}])
    rules = lines(one, policy(policyTypes=["Ingress"]))
    assert "-A X-IN -d 10.0.0.2 -s 10.0.0.1 -j ACCEPT" in rules
    assert "-A X-IN -d 10.0.0.1 -s 10.0.0.2 -j ACCEPT" not in rules


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [("In", ["a"], True), ("NotIn", ["a"], False), ("Exists", [], True), ("DoesNotExist", [], False)],
)
def test_selectors_may_be_expressions(operator: str, values: list[str], fits: bool) -> None:
    assert matches({"matchExpressions": [{"key": "run", "operator": operator, "values": values}]}, A.labels) == fits


def test_policies_do_not_apply_to_pods_without_an_address_of_their_own() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "here"},
        "spec": {"containers": [{}]},
        "status": {"podIP": "10.0.0.9"},
    }
    assert endpoint(pod) == Endpoint("here", {}, "10.0.0.9")
    assert endpoint({**pod, "spec": {"hostNetwork": True}}) is None
    assert endpoint({**pod, "status": {"podIP": "10.0.0.9", "phase": "Succeeded"}}) is None
    assert endpoint({**pod, "status": {}}) is None
