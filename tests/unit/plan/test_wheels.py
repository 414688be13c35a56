"""The ConfigMaps with the wheels of Dask, and pods that mount them."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from spotmpi.agent import pod_context
from spotmpi.images.wheels import PackedWheels
from spotmpi.plan import cluster_plan, wheels
from spotmpi.plan.cluster import ClusterTarget
from spotmpi.plan.manifests import Submission, kubernetes_plan
from spotmpi.spec.source import from_values

PACKED = PackedWheels("x86_64", b"0123456789")
VERSIONS = {"python": "3.11"}


@pytest.fixture(autouse=True)
def pieces_of_four_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "LARGEST", 4)


def pool_plan(**values: Any) -> list[dict[str, Any]]:
    spec = from_values({"launcher": "pool", "pool": {"count": 2}, **values})
    target = ClusterTarget("team", "debian", None, {}, (), False)
    return kubernetes_plan(spec, target, Submission("pool-1", "ann", {}, {}, {}, versions=VERSIONS))


def agent_plan(objects: list[dict[str, Any]]) -> Any:
    (config_map,) = [each for each in objects if each["kind"] == "ConfigMap"]
    return json.loads(config_map["data"]["plan.json"])


def test_an_archive_is_cut_into_immutable_config_maps_that_are_named_by_its_content() -> None:
    *pieces, last = wheels.config_maps(PACKED, "team")
    name = f"spotmpi-wheels-{PACKED.digest}"
    assert [each["metadata"]["name"] for each in pieces] == [f"{name}-{number}" for number in range(3)]
    assert b"".join(base64.b64decode(each["binaryData"]["piece"]) for each in pieces) == PACKED.archive
    assert last["metadata"]["name"] == name and f"{name}-2" in last["data"]["about"]
    assert all(each["immutable"] and each["metadata"]["namespace"] == "team" for each in [*pieces, last])


def stream_plan() -> list[dict[str, Any]]:
    """Of a run with nodes, workers and a pod that stands by."""
    stream = {"source": "s3://set/*.csv", "batch": 8}
    spec = from_values({"launcher": "mpirun", "command": ["x"], "nodes": 2, "standby": 1, "stream": stream})
    target = ClusterTarget("team", "debian", None, {}, (), False, job_per_node=True)
    return kubernetes_plan(spec, target, Submission("x-1", "ann", {}, {}, {}, versions=VERSIONS))


@pytest.mark.parametrize(("planned", "pods"), [(pool_plan, 2), (stream_plan, 3)], ids=["pool", "stream"])
def test_all_pods_mount_the_pieces_and_their_agents_know_the_digest(
    planned: Callable[[], list[dict[str, Any]]], pods: int
) -> None:
    objects = planned()
    before = copy.deepcopy(objects)

    changed = wheels.with_wheels(objects, PACKED)

    assert objects == before
    templates = [*cluster_plan.pod_templates(changed[0]), *cluster_plan.worker_templates(changed)]
    assert len(templates) == pods
    for template in templates:
        assert template is not None
        pod: Any = template["spec"]
        (volume,) = [each["projected"]["sources"] for each in pod["volumes"] if each["name"] == "wheels"]
        assert [each["configMap"]["items"][0]["path"] for each in volume] == ["0", "1", "2"]
        (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "wheels"]
        assert mount["mountPath"] == pod_context.WHEELS
    plan = agent_plan(changed)
    assert (plan["wheels"]["sha256"], plan["wheels"]["architecture"]) == (PACKED.sha256, "x86_64")
    assert plan["versions"] == (VERSIONS if planned is pool_plan else None), "of a driver elsewhere"


@pytest.mark.parametrize(
    "values", [{"command": ["true"]}, {"limits": {"driver": "none"}}], ids=["the driver is in the pod", "detached"]
)
def test_a_pool_that_waits_for_no_driver_from_here_takes_any_version(values: dict[str, Any]) -> None:
    assert agent_plan(pool_plan(**values))["versions"] is None
