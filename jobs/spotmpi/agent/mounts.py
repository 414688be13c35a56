"""Where an agent finds its plan, keys and folders. Pure; each place that agents run in has a function that makes it."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from . import hardware

FOLDER_PLAN = "plan.yaml"  # in a run folder
REQUESTS = "control"  # folder in it


class Mounts(NamedTuple):
    """The paths that one agent reads and writes; None where its place has no such thing."""

    plan: str  # file of the plan
    work: str  # folder of this agent alone
    runs: str  # folder with the run folder, which all agents of a run share
    image_record: str  # file in which the build of an image recorded its versions
    cgroup: str  # folder of the control group that counts kills for lack of memory
    secret: Optional[str] = None  # folder of the run's keys
    requests: Optional[str] = None  # folder of users' requests to end the run
    pod_info: Optional[str] = None  # folder with the annotations and labels of a pod
    shared_memory: Optional[str] = None  # folder of shared memory that nothing but the run uses


def in_pod() -> Mounts:
    """The mounts of a pod."""
    from . import pod_context  # delays no start of a local run

    return Mounts(
        plan=os.path.join(pod_context.CONFIG, "plan.json"),
        work=pod_context.WORK,
        runs=pod_context.RUNS,
        image_record=hardware.IMAGE_RECORD,
        secret=pod_context.SECRET,
        pod_info=pod_context.POD_INFO,
        shared_memory=pod_context.SHARED_MEMORY,
        cgroup=hardware.CGROUP,
    )


def in_run_folder(folder: str, work: str, cgroup: str) -> Mounts:
    """The mounts of an agent whose run, all of it on this machine and in its *cgroup*, is in *folder*."""
    return Mounts(
        plan=os.path.join(folder, FOLDER_PLAN),
        work=work,
        runs=os.path.dirname(folder),
        image_record=hardware.IMAGE_RECORD,
        cgroup=cgroup,
        requests=os.path.join(folder, REQUESTS),
    )
