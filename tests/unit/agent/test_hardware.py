"""What machine a run or an agent is on, and whether it can run what an image holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import hardware
from spotmpi.backends.local.machine import inspect
from spotmpi.core.errors import SpotmpiError
from spotmpi.runs import fingerprint
from spotmpi.spec.source import from_values

V100 = {"name": "Tesla V100-SXM2-16GB", "memory": "16384 MiB", "driver": "550.54.15", "capability": "7.0"}
T4 = {"name": "Tesla T4", "memory": "15360 MiB", "driver": "550.54.15", "capability": "7.5"}
WITHOUT_CUDA: dict[str, Any] = {"cuda_of_framework": None, "architectures": []}
IMAGE = {"cuda_of_framework": "12.6", "architectures": ["sm_75", "sm_80", "sm_86", "sm_90"]}


def facts(*machine: dict[str, str], cuda: str | None = "12.4") -> dict[str, Any]:
    return {"gpus": list(machine), "driver_cuda": cuda}


def test_a_machine_is_described_with_its_gpus_by_nvidia_smi_which_runs_once_per_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fake = tmp_path / "calls", tmp_path / "nvidia-smi"
    line = ", ".join(V100.values())
    fake.write_text(f'#!/bin/sh\necho x >> "{calls}"\necho "{line}"\necho "{line}"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for _ in range(2):
        fingerprint.installed_gpus.cache_clear()
        machine = fingerprint.describe_machine()
        assert machine["gpus"] == [V100, V100]
    assert machine["cores"] >= 1 and machine["memory_gib"] >= 1 and machine["cpu"]
    fingerprint.installed_gpus.cache_clear()
    assert calls.read_text() == "x\n"


def test_gpus_whose_driver_hangs_let_no_run_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(hardware, "GPU_TIMEOUT", 0.5)
    with pytest.raises(
        SpotmpiError, match=r"not answered for 0\.5 s: the driver of the GPUs hangs; restart this machine"
    ):
        inspect(from_values({"command": ["true"], "resources": {"gpu": 1}}))
    fingerprint.installed_gpus.cache_clear()
    assert fingerprint.describe_machine()["gpus"] == [], "a run that needs none goes on"
    fingerprint.installed_gpus.cache_clear()


@pytest.mark.parametrize("answer", ["", "No devices were found\n", "Tesla T4, 15360 MiB\n"])
def test_an_answer_that_names_no_gpu_names_none(answer: str) -> None:
    assert hardware.parse_gpus(answer) == []


def test_the_cpu_model_is_read_with_single_spaces() -> None:
    assert hardware.cpu_model("processor\t: 0\nmodel name\t: Some  CPU @ 2.30GHz\n") == "Some CPU @ 2.30GHz"
    assert hardware.cpu_model("processor\t: 0\n") is None


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("7.5", True), ("8.0", True), ("8.6", True), ("8.9", True), ("9.0", True), ("7.0", False), ("10.0", False)],
)
def test_compiled_code_runs_on_its_own_generation_from_its_own_number_on(capability: str, runs: bool) -> None:
    assert hardware.have_kernels(IMAGE["architectures"], capability) is runs
    assert not hardware.have_kernels(["compute_90", "sm_", ""], capability)
    assert hardware.have_kernels(["sm_100"], "10.3") and not hardware.have_kernels(["sm_100"], "1.0")


@pytest.mark.parametrize(
    ("machine", "image", "count"),
    [
        (facts(T4), IMAGE, 1),
        (facts(T4, cuda="13.0"), IMAGE, 1),
        (facts(T4, cuda=None), IMAGE, 1),
        (facts(cuda=None), IMAGE, 1),
        (facts(V100), {}, 1),
        (facts(V100, cuda="11.0"), IMAGE, 0),
        (facts(), WITHOUT_CUDA, 0),
    ],
)
def test_a_compatible_or_unknown_machine_passes(machine: dict[str, Any], image: dict[str, Any], count: int) -> None:
    hardware.require_compatible(machine, image, count)


@pytest.mark.parametrize(
    ("machine", "image", "message"),
    [
        (
            facts(T4, cuda="12.4"),
            {**IMAGE, "cuda_of_framework": "13.2"},
            "driver 550.54.15 supports CUDA up to 12.4, the image has CUDA 13.2: update the nodes' driver, or use an "
            "image for CUDA 12",
        ),
        (
            facts(T4, V100),
            IMAGE,
            "the image has kernels for sm_75, sm_80, sm_86, sm_90, none for the Tesla V100-SXM2-16GB (sm_70): use an "
            "image that is built for this GPU",
        ),
        (
            facts(T4),
            WITHOUT_CUDA,
            "the run requests GPUs but its image has no CUDA: build the image on a CUDA base image",
        ),
    ],
)
def test_an_incompatible_machine_is_refused_in_one_line_that_names_both_versions(
    machine: dict[str, Any], image: dict[str, Any], message: str
) -> None:
    with pytest.raises(hardware.Incompatible) as refused:
        hardware.require_compatible(machine, image, 1)
    assert str(refused.value) == message


def test_a_pod_reports_its_zone_and_the_rest_as_planned(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text('a="b"\ntopology.kubernetes.io/zone="zone-b"\n')
    machine = hardware.describe_pod(str(tmp_path), {"zone": "zone-a", "market": "spot"})
    assert (machine["zone"], machine["market"]) == ("zone-b", "spot")
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert hardware.describe_pod(str(tmp_path / "none"), {"zone": "zone-a"})["zone"] == "zone-a"


def test_equal_machines_are_described_once() -> None:
    small, big = {"cores": 4, "gpus": [T4]}, {"cores": 8, "gpus": [T4]}
    assert hardware.group_nodes({0: small, 2: dict(small), 1: big}) == [
        {**small, "nodes": [0, 2]},
        {**big, "nodes": [1]},
    ]
    assert hardware.group_nodes({}) == []


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n"),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("vmstat", "nr_free_pages 5\noom_kill 2\n"),
    ],
    ids=["cgroup version 2", "cgroup version 1", "machine"],
)
def test_processes_that_lack_of_memory_killed_are_counted_by_cgroup(tmp_path: Path, counts: str, text: str) -> None:
    assert hardware.oom_kills(str(tmp_path)) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / counts).write_text(text)
    assert hardware.oom_kills(str(tmp_path)) == 2


@pytest.mark.parametrize(("cgroup", "place"), [("0::/user.slice/me", "user.slice/me"), ("4:memory:/me\n0::/", "/proc")])
def test_a_machine_without_control_groups_of_version_2_tells_its_kills_of_all_processes(
    cgroup: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = {"/proc/self/cgroup": cgroup, str(tmp_path / "user.slice/me/memory.events"): "oom_kill 0"}
    monkeypatch.setattr(hardware, "_read", lambda path: read.get(path, ""))
    monkeypatch.setattr(hardware, "CGROUP", str(tmp_path))
    assert hardware.own_cgroup() == str(tmp_path / place)


def test_memory_of_a_cgroup_that_only_caches_files_is_available(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    assert hardware.available_memory(str(tmp_path)) == 100
    (tmp_path / "memory.stat").write_text("anon 100\nfile 800\nactive_file 200\ninactive_file 600\n")
    assert hardware.available_memory(str(tmp_path)) == 700
    (tmp_path / "memory.max").write_text("max\n")
    assert hardware.available_memory(str(tmp_path)) is None
