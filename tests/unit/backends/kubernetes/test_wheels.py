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
from spotmpi.spec.job import JobSpec, from_values
from tests.unit.backends.kubernetes.namespace import Namespace, planned
from tests.unit.backends.kubernetes.watched_cluster import Object

NAME = f"spotmpi-wheels-{PackedWheels('x86_64', b'wheels').digest}"


def pool(**kubernetes: Any) -> JobSpec:
    return from_values({"launcher": "pool", "pool": {"workers": 2}, "kubernetes": kubernetes})


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
        return asyncio.run(wheels.ship(namespace, planned(spec)["objects"], spec, messages.append)), messages

    return ship


def test_wheels_are_sent_once_and_the_last_config_map_says_that_all_are_there(ship: Any) -> None:
    namespace = Namespace()
    for _ in range(2):
        objects, messages = ship(namespace, pool())
        assert is_mounted(objects) and messages == []
        assert [each["metadata"]["name"] for each in namespace.created] == [f"{NAME}-0", NAME]


def test_two_submissions_at_once_may_send_the_same_wheels(ship: Any) -> None:
    namespace = Namespace()
    namespace.conflicts = ["ConfigMap"]
    assert is_mounted(ship(namespace, pool())[0])
    assert [each["metadata"]["name"] for each in namespace.created] == [NAME]


@pytest.mark.parametrize(
    ("namespace", "architecture", "reason"),
    [(Namespace("ConfigMap"), "arm64", "not permitted"), (Namespace(), "riscv64", "no wheels for riscv64")],
)
def test_a_pool_is_submitted_without_wheels_where_there_are_none(
    ship: Any, namespace: Namespace, architecture: str, reason: str
) -> None:
    spec = pool(node_selector={"kubernetes.io/arch": architecture})
    objects, (text,) = ship(namespace, spec)
    assert objects == planned(spec)["objects"]
    assert text.startswith("pods get no wheels of Dask, so the image has to bring it: ") and reason in text
