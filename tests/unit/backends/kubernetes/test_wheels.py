"""Sending the wheels of Dask to a namespace whose every answer is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spotmpi.agent import pod_context
from spotmpi.backends.kubernetes.submit import wheels
from spotmpi.core.errors import SpotmpiError
from spotmpi.images.wheels import PackedWheels
from spotmpi.plan import manifests
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.spec.job import JobSpec, from_values
from tests.unit.backends.kubernetes.test_submit import Namespace, refused
from tests.unit.backends.kubernetes.watched_cluster import Object

NAME = f"spotmpi-wheels-{PackedWheels('x86_64', b'wheels').digest}"


class ConfigMaps(Namespace):
    """A namespace in which objects are found by their names."""

    async def find(self, kind: str, name: str) -> Object | None:
        return next((each for each in self.created if each["metadata"]["name"] == name), None)


def pool(**kubernetes: Any) -> JobSpec:
    return from_values({"launcher": "pool", "pool": {"workers": 2}, "kubernetes": kubernetes})


def plan(spec: JobSpec) -> list[Object]:
    return kubernetes_plan(
        spec, ClusterTarget("here", "i", None, {}, (), "any"), Submission("pool-1", "ann", {}, {}, {})
    )


def is_mounted(objects: Sequence[Object]) -> bool:
    container = manifests.pod_template(objects[0])["spec"]["containers"][0]
    return any(mount["mountPath"] == pod_context.WHEELS for mount in container["volumeMounts"])


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Sequence[Object], list[str]]]:
    """A function that sends wheels for a spec; the objects, and what it said."""

    def pack(architecture: str, say: Callable[[str], None]) -> PackedWheels:
        if architecture not in ("x86_64", "aarch64"):
            raise SpotmpiError(f"no wheels for {architecture}")
        return PackedWheels(architecture, b"wheels")

    monkeypatch.setattr("spotmpi.images.wheels.pack", pack)

    def ship(namespace: Any, spec: JobSpec) -> tuple[Sequence[Object], list[str]]:
        messages: list[str] = []
        return asyncio.run(wheels.ship(namespace, plan(spec), spec, messages.append)), messages

    return ship


def test_wheels_are_sent_once_and_the_last_config_map_says_that_all_are_there(ship: Any) -> None:
    namespace = ConfigMaps()
    for _ in range(2):
        objects, messages = ship(namespace, pool())
        assert is_mounted(objects) and messages == []
        assert [each["metadata"]["name"] for each in namespace.created] == [f"{NAME}-0", NAME]


def test_two_submissions_at_once_may_send_the_same_wheels(ship: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = ConfigMaps()
    ship(namespace, pool())
    (existing, _), namespace.created = namespace.created, namespace.created[:1]

    async def create(values: Object) -> Object:
        if values["metadata"]["name"] == existing["metadata"]["name"]:
            raise refused(409, "already exists")
        namespace.created.append(values)
        return {}

    monkeypatch.setattr(namespace, "create", create)
    assert is_mounted(ship(namespace, pool())[0])
    assert namespace.created[-1]["metadata"]["name"] == NAME


@pytest.mark.parametrize(
    ("namespace", "architecture", "reason"),
    [(ConfigMaps("ConfigMap"), "arm64", "not permitted"), (ConfigMaps(), "riscv64", "no wheels for riscv64")],
)
def test_a_pool_is_submitted_without_wheels_where_there_are_none(
    ship: Any, namespace: ConfigMaps, architecture: str, reason: str
) -> None:
    spec = pool(node_selector={"kubernetes.io/arch": architecture})
    objects, (text,) = ship(namespace, spec)
    assert objects == plan(spec)
    assert text.startswith("pods get no wheels of Dask, so the image has to bring it: ") and reason in text
