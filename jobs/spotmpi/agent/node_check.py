"""Whether a node is fit for an attempt: its GPUs are there and without errors, and its disks take files.

A clock is not checked: nothing in a run compares those of two nodes. Neither is a collective, which would need the
framework of the program and seconds of every start; the connection to node 0 is one already.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from typing import List

from .context import AgentContext

ROOM = 64 * 1024 * 1024  # bytes on the node's own disk, without which no rank writes its output
_GPU_TIMEOUT = 60.0  # seconds: a driver that hangs answers never, one without persistence after some
_DISK_TIMEOUT = 30.0  # seconds for a small file on a file system of the network, which may hang for ever
_BROKEN = (errno.EIO, errno.ESTALE, errno.EROFS)
# Uncorrected errors since the driver was loaded, or the GPU reset: https://docs.nvidia.com/deploy/nvidia-smi
_QUERY = ["--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]


class Unfit(Exception):
    """The node cannot do its part of an attempt; the message says what is wrong with it."""


def check(context: AgentContext) -> None:
    """Raise `Unfit` for a fault of this node, or OSError where the run volume does not answer, which others share."""
    problem = gpu_problem(context.role["gpus"]) or disk_problem(context.mounts.work)
    if problem:
        raise Unfit(problem)
    _write(context.mounts.runs, "check-%s" % context.member.file)


def gpu_problem(requested: int) -> str | None:
    """What is wrong with the *requested* GPUs of this node; None where nobody can tell, as without nvidia-smi."""
    if not requested or not shutil.which("nvidia-smi"):
        return None
    try:
        answer = subprocess.run(
            ["nvidia-smi", *_QUERY], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_GPU_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "nvidia-smi has not answered for %gs" % _GPU_TIMEOUT
    return gpu_fault(answer.stdout.decode("utf-8", "replace"), requested)


def gpu_fault(answer: str, requested: int) -> str | None:
    """What an *answer* of nvidia-smi says of the *requested* GPUs that is a fault, or None."""
    rows = [line.split(",") for line in answer.splitlines()]
    counts = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2 and row[0].strip().isdigit()}
    others = " ".join(line.strip() for line in answer.splitlines() if line.split(",")[0].strip() not in counts)
    # Of more GPUs than that, as without control groups on Slurm, some are those of other jobs.
    if len(counts) > requested or "is not a valid field" in answer:
        return None
    # Fewer alone are none: parts of a GPU (MIG), and turns on one, count as GPUs of a pod, and as one here.
    if not counts or (len(counts) < requested and others):
        return "%d of %d GPUs visible%s" % (len(counts), requested, ": " + others[:200] if others else "")
    errors = [
        "GPU %s: %s uncorrected ECC errors" % item for item in counts.items() if item[1].isdigit() and int(item[1])
    ]
    return "; ".join(errors) or None


def disk_problem(folder: str) -> str | None:
    """What is wrong with the disk of *folder*, this node's own, or None."""
    try:
        free = shutil.disk_usage(folder).free
        if free < ROOM:
            return "%d MiB free on its disk (%s), %d are needed" % (free >> 20, folder, ROOM >> 20)
        _write(folder, "check")
    except OSError as error:
        return "its disk does not take a file (%s): %s" % (folder, error.strerror or error)
    return None


def _write(folder: str, name: str) -> None:
    """Write and remove a file; OSError where *folder* is broken, or does not answer in time."""
    failures: List[OSError] = []

    def write() -> None:
        path = os.path.join(folder, "." + name)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(descriptor, b"x")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
                os.unlink(path)
        except OSError as error:  # who needs a file that is denied says so
            if error.errno in _BROKEN:
                failures.append(error)

    thread = threading.Thread(target=write, name="check", daemon=True)
    thread.start()
    thread.join(_DISK_TIMEOUT)
    if thread.is_alive():
        raise OSError(errno.ETIMEDOUT, "no answer for %gs" % _DISK_TIMEOUT, folder)
    if failures:
        raise failures[0]
