"""Where an agent finds its plan, keys and folders. Pure; each place that agents run in has a function that makes it."""

from __future__ import annotations

import os
from typing import NamedTuple

from . import hardware, pod_context


class Mounts(NamedTuple):
    """The paths that one agent reads and writes."""

    plan: str  # file of the plan
    secret: str  # folder of the run's keys
    work: str  # folder of this agent alone
    runs: str  # folder with the run folder, which all agents of a run share
    pod_info: str  # folder with the annotations and labels of a pod
    cgroup: str  # folder of the control group that counts kills for lack of memory
    image_record: str  # file in which the build of an image recorded its versions


def in_pod() -> Mounts:
    """The mounts of a pod."""
    return Mounts(
        plan=os.path.join(pod_context.CONFIG, "plan.json"),
        secret=pod_context.SECRET,
        work=pod_context.WORK,
        runs=pod_context.RUNS,
        pod_info=pod_context.POD_INFO,
        cgroup=hardware.CGROUP,
        image_record=hardware.IMAGE_RECORD,
    )
