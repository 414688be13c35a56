"""Users of an environment have exactly the rights in its namespace that the CLI's requests need.

The requests are read from the source: the methods of `ClusterApi` and `ClusterView` with the kind that they are called
with, and the kinds of all objects that plans are made of. Which verb a request takes is from Kubernetes' documentation
(https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import yaml

from infra.access import run_rules
from tests.tools import REPOSITORY

Right = tuple[str, str]  # resource, verb

_RESOURCES = {
    "JOBSET": "jobsets",
    "JobSet": "jobsets",
    "JOB": "jobs",
    "Job": "jobs",
    "POD": "pods",
    "Pod": "pods",
    "CONFIG_MAP": "configmaps",
    "ConfigMap": "configmaps",
    "EVENT": "events",
    "CLAIM": "persistentvolumeclaims",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Secret": "secrets",
    "NETWORK_POLICY": "networkpolicies",
    "NetworkPolicy": "networkpolicies",
}
_VERBS = {
    "find": ("get",),
    "get": ("get",),
    "list": ("list",),
    "watch": ("list", "watch"),
    "patch": ("patch",),
    "delete": ("delete",),
}
# A connection into a pod is upgraded by GET, which from 1.35 on takes `create` as well, as POST always did.
_INTO_PODS = {
    "evict": {("pods/eviction", "create")},
    "execute": {("pods/exec", "create"), ("pods/exec", "get")},
    "stream": {("pods/exec", "create"), ("pods/exec", "get")},
    "websocket": {("pods/portforward", "create"), ("pods/portforward", "get")},
    "last_line": {("pods/log", "get")},
    "log": {("pods/log", "get")},
}
# The doctor reads the shared keys if the user may do so, as administrators of the cluster may.
_OF_ADMINISTRATORS = {("secrets", "get")}
# Rights for kubectl commands in messages and docs.
_KUBECTL = {("configmaps", "list")}


def requests() -> Iterator[Right]:
    """Every request of the CLI in the namespace of the runs."""
    for path in (REPOSITORY / "jobs").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute):
                yield from _of_call(call.func, call.args)
        if path.parent.name in ("plan", "data"):
            kinds = re.findall(r"(?:\"kind\": |_part\()\"(\w+)\"", text)
            yield from ((_RESOURCES[kind], "create") for kind in kinds if kind in _RESOURCES)


def _of_call(method: ast.Attribute, arguments: list[ast.expr]) -> Iterator[Right]:
    who = ast.unparse(method.value)
    if method.attr in _INTO_PODS and who.endswith(("api", "_client", "client", "_http")):
        yield from _INTO_PODS[method.attr]
    if method.attr not in _VERBS or not arguments:
        return
    kind = ast.unparse(arguments[0]).rpartition(".")[2].strip("'\"")
    if kind in _RESOURCES and (who.endswith(("api", "_client", "cluster")) or "cluster(" in who):
        yield from ((_RESOURCES[kind], verb) for verb in _VERBS[method.attr])


def granted_in_environments() -> set[tuple[str, Right]]:
    """The rights of users in the namespace of an environment, with their API groups."""
    granted: set[tuple[str, Right]] = set()
    for rule in run_rules(queueing=False):
        assert isinstance(rule.resources, list) and isinstance(rule.verbs, list) and isinstance(rule.api_groups, list)
        (group,) = rule.api_groups
        granted |= {(str(group), (str(what), str(verb))) for what in rule.resources for verb in rule.verbs}
    return granted


def test_the_role_for_a_cluster_of_ones_own_has_the_same_rights() -> None:
    text = (REPOSITORY / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (block,) = (each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Role" in each)
    role = yaml.safe_load(block)
    documented = {
        (group, (what, verb))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for what in rule["resources"]
        for verb in rule["verbs"]
    }
    assert documented == granted_in_environments()


def test_users_have_every_right_that_the_cli_needs_and_no_other() -> None:
    requested = set(requests())
    known = {("jobsets", "watch"), ("jobs", "patch"), ("pods/exec", "get"), ("secrets", "create"), ("pods", "delete")}
    assert requested >= known | _OF_ADMINISTRATORS  # else the source is not read as it should be
    granted = {right for _, right in granted_in_environments()}
    assert granted == (requested - _OF_ADMINISTRATORS) | _KUBECTL
    # `patch`, `update` and `delete` may answer with the whole object, so each of them reads as well.
    assert {verb for what, verb in granted if what == "secrets"} == {"create"}
