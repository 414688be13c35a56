"""A namespace as an environment's program declares it: its policies, roles and labels, and an ordinary user of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra import names
from tests.infra import mock_engine
from tests.testbed.cluster import Cluster
from tests.testbed.kubernetes import as_yaml

USER = "engineer"


def objects(namespace: str, *, https_out: bool = False) -> list[dict[str, Any]]:
    """The objects that the program declares for runs in *namespace*: policies and roles."""
    declared = mock_engine.run("cpu", namespace=namespace, network={"https_out": https_out}).resources
    return [dict(each.inputs) for each in declared if "spotmpi:inside:Access" in each.parent]


def user_kubeconfig(testbed: Cluster, user: str = USER) -> Path:
    """The kubeconfig of a user with the rights of the environment's group of users only."""
    return testbed.plane.kubeconfig_of(user, groups=[names.USERS_GROUP])


@contextmanager
def environment_namespace(testbed: Cluster, *, https_out: bool = False) -> Iterator[str]:
    """Give the name of a fresh namespace of an environment, which is deleted at the end of the block."""
    with testbed.namespace() as namespace:
        declared = as_yaml(_namespace_first(objects(namespace, https_out=https_out)))
        testbed.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=declared)
        yield namespace


def _namespace_first(declared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects, with namespaces before the objects in them."""
    return sorted(declared, key=lambda each: each["kind"] != "Namespace")
