"""Which GPUs are here, what their driver can do, and whether an image has kernels for them. Standard library only."""

from __future__ import annotations

import csv
import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence

_FIELDS = ("name", "memory", "driver", "capability")
_QUERY = "--query-gpu=name,memory.total,driver_version,compute_cap"


def found() -> list[dict[str, str]]:
    """``name``, ``memory``, ``driver`` and compute ``capability`` ("8.6") of each GPU; empty where none is told."""
    if not shutil.which("nvidia-smi"):
        return []
    asked = subprocess.run(["nvidia-smi", _QUERY, "--format=csv,noheader"], stdout=subprocess.PIPE)
    return parse(asked.stdout.decode("utf-8", "replace")) if asked.returncode == 0 else []


def parse(answer: str) -> list[dict[str, str]]:
    """The GPUs in an answer of nvidia-smi."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines())]
    whole = [row for row in rows if len(row) == len(_FIELDS)]
    return [{field: row[number] for number, field in enumerate(_FIELDS)} for row in whole]


def driver_cuda() -> str | None:
    """The newest CUDA that the driver, or a compatibility library before it, can run, such as "12.4"; None without."""
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
