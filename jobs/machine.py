"""The machine that a run happens on, as far as it decides how fast the run is."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from jobs import names

_NVIDIA_SMI = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]


@functools.cache
def _found() -> dict[str, Any]:
    return {
        "cpu": cpu_model(_text("/proc/cpuinfo")) or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(_memory_bytes() / 2**30),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.release()}",
    }


def describe() -> dict[str, Any]:
    """``cpu`` model, usable ``cores``, ``memory_gib``, ``gpus`` (name, memory, driver of each) and ``system``."""
    found = _found()
    return {**found, "gpus": [dict(gpu) for gpu in found["gpus"]]}


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name in the text of ``/proc/cpuinfo``, or None where it has none (as on most ARM machines)."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(match[1].split()) if match else None


def gpus(csv_text: str) -> list[dict[str, str]]:
    """The GPUs in the answer of nvidia-smi: ``name``, ``memory`` and ``driver`` of each."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(csv_text.splitlines()) if row]
    return [dict(zip(("name", "memory", "driver"), row, strict=True)) for row in rows if len(row) == 3]


def _gpus() -> list[dict[str, str]]:
    """Asked once per boot: nvidia-smi takes up to seconds where the driver is not kept loaded."""
    if not shutil.which(_NVIDIA_SMI[0]):
        return []
    boot = _text("/proc/sys/kernel/random/boot_id").strip()
    aside = names.cache_folder() / "gpus" / f"{boot or 'unknown'}.csv"
    if boot and (known := _text(aside)):
        return gpus(known)
    done = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True)
    found = gpus(done.stdout) if done.returncode == 0 else []
    if boot and found:
        with contextlib.suppress(OSError):
            aside.parent.mkdir(parents=True, exist_ok=True)
            part = aside.with_name(f"{aside.name}.{os.getpid()}")
            part.write_text(done.stdout)
            part.replace(aside)
    return found


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
