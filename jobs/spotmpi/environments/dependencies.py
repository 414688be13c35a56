"""What `up` and `down` reach for outside: AWS, Pulumi, the cluster, and somebody who says yes. A test hands its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spotmpi.api import runs
from spotmpi.api.images import push_image
from spotmpi.aws.account import Aws
from spotmpi.backends.kubernetes.client.kubeconfig import context_of
from spotmpi.backends.kubernetes.client.view import ClusterReader, view_of
from spotmpi.backends.targets import Target
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.progress import Say
from spotmpi.data import datasets
from spotmpi.environments.checks.finding import Finding
from spotmpi.environments.doctor import doctor
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.runs.reader import RunState

Agree = Callable[[str], bool]


def _knows(environment: Environment) -> bool:
    return context_of(environment.cluster) is not None


def _cluster(environment: Environment) -> ClusterReader:
    return view_of(environment.cluster, environment.region)


def _push(image: str, there: Environment, say: Say) -> str:
    return push_image(image, there.repositories[image], say=say, cpu=not there.has_gpus)


def _stage(source: str, folder: str, target: Target, say: Say) -> None:
    datasets.push([source], folder, datasets.Storage(target), say)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SpotmpiError(f"{command[0]} is not on PATH: install it, then repeat the command") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise SpotmpiError(f"`{' '.join(command)}` failed: {said}")


@dataclass(frozen=True)
class Dependencies:
    """AWS and Pulumi as they are; the rest by default is what the commands of those names do."""

    aws: Aws
    pulumi: Pulumi
    say: Say
    agree: Agree
    examine: Callable[[str, Aws], Sequence[Finding]] = lambda stack, aws: doctor(stack, aws, look_at=None)
    cluster: Callable[[Environment], ClusterReader] = _cluster
    knows: Callable[[Environment], bool] = _knows  # whether this machine's kubeconfig has the cluster
    command: Callable[[Sequence[str]], None] = _run
    push: Callable[[str, Environment, Say], str] = _push
    stage: Callable[[str, str, Target, Say], None] = _stage
    run: Callable[..., RunState] = runs.run
    list_runs: Callable[[Target], list[RunState]] = runs.list_runs
    stop_run: Callable[..., RunState] = runs.stop
    sleep: Callable[[float], None] = field(default=time.sleep)
