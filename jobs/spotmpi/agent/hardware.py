"""What a machine is made of, as far as it decides how fast a run is. Standard library only."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any, Dict

from . import gpus, machine

Facts = Dict[str, Any]  # Python 3.8 takes no dict[...] outside of annotations

IMAGE_RECORD = "/opt/spotmpi/image.json"  # what the build of our images wrote down
LABELS = "labels"  # the pod's labels, by downward API; Kubernetes 1.35 adds the zone of the node to them
_ZONE = "topology.kubernetes.io/zone"
_SHOWN = ("image", "python", "versions", "cuda_of_base", "cuda_of_framework", "nccl_loaded", "mpi", "mpi_cuda_aware")


class Unfit(Exception):
    """The machine cannot run what the image holds; the message names both and the remedy."""


def describe(found: Sequence[Mapping[str, str]]) -> Facts:
    """``cpu`` model, usable ``cores``, ``memory_gib``, ``gpus`` (the *found* ones) and ``system``."""
    return {
        "cpu": cpu_model(_text("/proc/cpuinfo")) or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(_memory_bytes() / 2**30),
        "gpus": [dict(gpu) for gpu in found],
        "system": "%s %s" % (platform.system(), platform.release()),
    }


def of_pod(pod_info: str, expected: Mapping[str, str]) -> Facts:
    """`describe`, the ``driver_cuda``, and where in the cloud a pod is: ``zone``, ``type`` and what was *expected*.

    *pod_info* is the folder of the downward API. What the machine itself tells wins over the plan's word.
    """
    told = {"zone": _label(pod_info, _ZONE), "type": machine.kind(), "driver_cuda": gpus.driver_cuda()}
    return {**describe(gpus.found()), **expected, **{key: value for key, value in told.items() if value}}


def image() -> Facts:
    """What the image's own record says of its software; empty for an image that is not ours."""
    try:
        facts: Facts = json.loads(_text(IMAGE_RECORD) or "{}")
    except ValueError:
        return {}
    return facts


def shown(record: Mapping[str, Any]) -> Facts:
    """What a summary tells of an image's *record*."""
    return {key: record[key] for key in _SHOWN if record.get(key) is not None}


def require_fit(facts: Facts, record: Mapping[str, Any], gpus_wanted: int) -> None:
    """Raise `Unfit` where the driver is too old for the image's CUDA, or the image has no kernels for a GPU."""
    if not record or not gpus_wanted:
        return
    cuda, driver = record.get("cuda_of_framework"), facts.get("driver_cuda")
    if not cuda:
        raise Unfit("the image has no CUDA but GPUs are asked for: build it on a CUDA base, see its Dockerfile")
    if driver and _major(driver) < _major(cuda):
        name = facts["gpus"][0]["driver"] if facts["gpus"] else "is here"
        remedy = "update the nodes' driver, or use an image for CUDA %s" % _major(driver)
        raise Unfit("driver %s runs CUDA up to %s, the image has CUDA %s: %s" % (name, driver, cuda, remedy))
    kinds = record.get("architectures", [])
    for gpu in facts["gpus"]:
        if not gpus.have_kernels(kinds, gpu["capability"]):
            name = "%s (sm_%s)" % (gpu["name"], gpu["capability"].replace(".", ""))
            remedy = "use an image that is built for it"
            raise Unfit("the image has kernels for %s, none for the %s: %s" % (", ".join(kinds), name, remedy))


def grouped(found: Mapping[int, Facts]) -> list[Facts]:
    """The facts by node index, those of like machines once, with the ``nodes`` that have them."""
    groups: dict[str, Facts] = {}
    for node in sorted(found):
        groups.setdefault(json.dumps(found[node], sort_keys=True), {**found[node], "nodes": []})["nodes"].append(node)
    return list(groups.values())


def work_machine(found: Mapping[int, Facts]) -> Facts | None:
    """The machine of node 0 in the shape in which runs are compared, or None where it is not known."""
    if 0 not in found:
        return None
    return {key: found[0].get(key) for key in ("cpu", "cores", "memory_gib", "gpus", "system")}


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name in the text of ``/proc/cpuinfo``, or None where it has none (as on most ARM machines)."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(match.group(1).split()) if match else None


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _label(pod_info: str, wanted: str) -> str | None:
    for line in _text(os.path.join(pod_info, LABELS)).splitlines():
        key, _, value = line.partition("=")
        if key == wanted:
            return str(json.loads(value))
    return None


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
