"""The machine of a pod or of a local run: processor, memory, GPUs, driver, and where in the cloud it is.

What most machines never need is imported where it is needed: every start of a run imports this file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Dict

from .files import read_text
from .plan import Member

Facts = Dict[str, Any]  # Python 3.8 takes no dict[...] outside of annotations

ENV_NODE_NAME = "SPOTMPI_MACHINE"  # the Kubernetes node's name
IMAGE_RECORD = "/opt/spotmpi/image.json"  # written by the build of our images
LABELS = "labels"  # the pod's labels, by downward API; Kubernetes 1.35 adds the zone of the node to them
CGROUP = "/sys/fs/cgroup"
_ZONE = "topology.kubernetes.io/zone"
_SUMMARY_KEYS = (
    "image",
    "python",
    "versions",
    "cuda_of_base",
    "cuda_of_framework",
    "nccl_loaded",
    "mpi",
    "mpi_cuda_aware",
)
_GPU_FIELDS = ("name", "memory", "driver", "capability")
_GPU_QUERY = "--query-gpu=name,memory.total,driver_version,compute_cap"
GPU_TIMEOUT = 60.0  # seconds: a driver that hangs answers never, one without persistence after some
_DMI = "sys/devices/virtual/dmi/id"
INSTANCE_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")  # of EC2; older virtual machines have none here
INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}")
_OOM_FILES = ("memory.events", "memory/memory.oom_control", "vmstat")  # of cgroup version 2, of version 1, in /proc


class Incompatible(Exception):
    """The machine cannot run what the image holds; the message names both and the remedy."""


def describe(gpus: Sequence[Mapping[str, str]]) -> Facts:
    """``cpu`` model, usable ``cores``, ``memory_gib``, *gpus* and ``system`` of this machine."""
    system = os.uname()
    return {
        "cpu": cpu_model(_read("/proc/cpuinfo")) or _architecture(),
        "cores": usable_cores(),
        "memory_gib": round(_memory_bytes() / 2**30),
        "gpus": [dict(gpu) for gpu in gpus],
        "system": "%s %s" % (system.sysname, system.release),
    }


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_pod(pod_info: str | None, expected: Mapping[str, str]) -> Facts:
    """`describe` for a pod, with ``driver_cuda``, ``zone``, ``type`` and what the plan *expected* of the machine.

    *pod_info* is the folder of the downward API, if any. What the machine itself reports wins over the plan.
    """
    reported = {"zone": pod_info and _label(pod_info, _ZONE), "type": instance_type(), "driver_cuda": driver_cuda()}
    return {**describe(list_gpus()), **expected, **{key: value for key, value in reported.items() if value}}


def identify(member: Member, since: float, root: str = "/") -> Facts:
    """The machine that is billed for *member*: ``since`` (Unix seconds) and, where known, its name and type.

    The keys are ``member``, ``since``, ``name`` (of the Kubernetes node), ``type`` and ``instance`` (of EC2).
    """
    return {
        "member": member.text,
        "since": since,
        "name": os.environ.get(ENV_NODE_NAME),
        "type": instance_type(root),
        "instance": _dmi(root, "board_asset_tag", INSTANCE_ID),
    }


def instance_type(root: str = "/") -> str | None:
    """The EC2 type, such as ``g5.xlarge``, or None where the machine does not report one."""
    return _dmi(root, "product_name", INSTANCE_TYPE)


def list_gpus() -> list[dict[str, str]]:
    """``name``, ``memory``, ``driver`` and compute ``capability`` ("8.6") of each GPU that nvidia-smi knows."""
    import shutil

    if not shutil.which("nvidia-smi"):
        return []
    try:
        code, answer = ask_nvidia_smi(_GPU_QUERY, "--format=csv,noheader")
    except subprocess.TimeoutExpired:
        return []
    return parse_gpus(answer) if code == 0 else []


def ask_nvidia_smi(*options: str) -> tuple[int, str]:
    """Exit code and output of nvidia-smi; `subprocess.TimeoutExpired` where the driver hangs."""
    command = ["nvidia-smi", *options]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate(timeout=GPU_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()  # without a wait for its end: no signal interrupts a call of a driver that hangs
        raise
    return process.returncode, output.decode("utf-8", "replace")


def parse_gpus(answer: str) -> list[dict[str, str]]:
    """The GPUs in an answer of nvidia-smi."""
    import csv

    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines())]
    complete = [row for row in rows if len(row) == len(_GPU_FIELDS)]
    return [{field: row[column] for column, field in enumerate(_GPU_FIELDS)} for row in complete]


def driver_cuda() -> str | None:
    """The newest CUDA that the driver, or a compatibility library before it, can run, such as "12.4"; None without."""
    import ctypes

    try:
        version = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return "%d.%d" % (version.value // 1000, version.value % 1000 // 10) if version.value else None


def have_kernels(architectures: Sequence[str], capability: str) -> bool:
    """Whether code for any of *architectures* ("sm_80") runs on a GPU of *capability* ("8.6").

    Compiled code runs on its own generation (the major number) from its own minor number on.
    """
    major, minor = (int(part) for part in capability.split("."))
    compiled = [re.fullmatch(r"sm_(\d+)(\d)[af]?", each) for each in architectures]
    return any(int(each.group(1)) == major and int(each.group(2)) <= minor for each in compiled if each)


def image_record(path: str) -> Facts:
    """The software versions that the image's build recorded in *path*; empty for an image that is not ours."""
    try:
        facts: Facts = json.loads(_read(path) or "{}")
    except ValueError:
        return {}
    return facts


def image_summary(record: Mapping[str, Any]) -> Facts:
    """The part of an image's *record* that a run's summary holds."""
    return {key: record[key] for key in _SUMMARY_KEYS if record.get(key) is not None}


def require_compatible(facts: Facts, record: Mapping[str, Any], requested_gpus: int) -> None:
    """Raise `Incompatible` where the driver is too old for the image's CUDA, or the image has no kernels for a GPU."""
    if not record or not requested_gpus:
        return
    cuda, driver = record.get("cuda_of_framework"), facts.get("driver_cuda")
    if not cuda:
        raise Incompatible("the run requests GPUs but its image has no CUDA: build the image on a CUDA base image")
    if driver and _major(driver) < _major(cuda):
        version = " " + facts["gpus"][0]["driver"] if facts["gpus"] else ""
        remedy = "update the nodes' driver, or use an image for CUDA %s" % _major(driver)
        raise Incompatible(
            "driver%s supports CUDA up to %s, the image has CUDA %s: %s" % (version, driver, cuda, remedy)
        )
    architectures = record.get("architectures", [])
    for gpu in facts["gpus"]:
        if not have_kernels(architectures, gpu["capability"]):
            name = "%s (sm_%s)" % (gpu["name"], gpu["capability"].replace(".", ""))
            remedy = "use an image that is built for this GPU"
            kernels = ", ".join(architectures)
            raise Incompatible("the image has kernels for %s, none for the %s: %s" % (kernels, name, remedy))


def group_nodes(facts: Mapping[int, Facts]) -> list[Facts]:
    """The facts by node index, those of like machines once, with the ``nodes`` that have them."""
    groups: dict[str, Facts] = {}
    for node in sorted(facts):
        groups.setdefault(json.dumps(facts[node], sort_keys=True), {**facts[node], "nodes": []})["nodes"].append(node)
    return list(groups.values())


def work_machine(facts: Mapping[int, Facts]) -> Facts | None:
    """The machine of node 0 in the shape in which runs are compared, or None where it is not known."""
    if 0 not in facts:
        return None
    return {key: facts[0].get(key) for key in ("cpu", "cores", "memory_gib", "gpus", "system")}


def oom_kills(folder: str) -> int:
    """How many processes of a cgroup the kernel has killed for lack of memory; 0 where its *folder* does not tell.

    ``/proc`` in its place tells it of the whole machine.
    """
    for name in _OOM_FILES:
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                counts = dict(line.split() for line in file)
            return int(counts.get("oom_kill", 0))
        except (OSError, ValueError):
            continue
    return 0


def own_cgroup() -> str:
    """The folder of this process's cgroup on a machine where it is not that of a pod; ``/proc`` without version 2."""
    path = next((line[3:].strip() for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    folder = os.path.join(CGROUP, path.lstrip("/"))
    return folder if _read(os.path.join(folder, _OOM_FILES[0])) else "/proc"


def available_memory(cgroup: str) -> int | None:
    """Bytes that the pod with this *cgroup* may still use; None where it has no limit, or none that can be read.

    Files that the kernel can drop from its cache at once leave their memory to it (``inactive_file``, as in a kubelet's
    working set).
    """
    cached = re.search(r"^inactive_file (\d+)$", _read(os.path.join(cgroup, "memory.stat")), re.MULTILINE)
    try:
        with open(os.path.join(cgroup, "memory.max"), encoding="utf-8") as limit:
            maximum = int(limit.read())
        with open(os.path.join(cgroup, "memory.current"), encoding="utf-8") as used:
            return maximum - int(used.read()) + (int(cached.group(1)) if cached else 0)
    except (OSError, ValueError):
        return None


def free_bytes(folder: str, cgroup: str | None) -> int:
    """Bytes that fit into *folder*, and where it is in memory, within the limit of *cgroup* too."""
    import shutil  # delays no start

    free = shutil.disk_usage(folder).free
    available = None if cgroup is None else available_memory(cgroup)
    return free if available is None else min(free, available)


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name in the text of ``/proc/cpuinfo``, or None where it has none (as on most ARM machines)."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(match.group(1).split()) if match else None


def _architecture() -> str:
    import platform

    return platform.processor() or platform.machine()


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _label(pod_info: str, name: str) -> str | None:
    for line in _read(os.path.join(pod_info, LABELS)).splitlines():
        key, _, value = line.partition("=")
        if key == name:
            return str(json.loads(value))
    return None


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _dmi(root: str, name: str, pattern: re.Pattern[str]) -> str | None:
    """A field of the machine's DMI tables where it matches *pattern* in full, or None."""
    try:
        with open(os.path.join(root, _DMI, name), encoding="utf-8") as file:
            text = file.read().strip()
    except (OSError, UnicodeError):
        return None
    return text if pattern.fullmatch(text) else None


def _read(path: str) -> str:
    try:
        return read_text(path)
    except OSError:  # the kernel has other errors for files of groups that are gone
        return ""
