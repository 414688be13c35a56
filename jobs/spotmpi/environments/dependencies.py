"""What `up`, `upgrade` and `down` depend on: AWS, Pulumi, the cluster, runs and a prompt; tests pass their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from spotmpi.api import runs, stopping
from spotmpi.api.images import push_image
from spotmpi.aws.account import Aws
from spotmpi.aws.errors import CallError
from spotmpi.aws.zones import region_problem
from spotmpi.backends.kubernetes.client.view import ClusterReader, ClusterView
from spotmpi.backends.targets import Target
from spotmpi.core.environment import Environment
from spotmpi.core.errors import input_error
from spotmpi.core.wording import Echo
from spotmpi.data import datasets
from spotmpi.environments.checks.check import Finding
from spotmpi.environments.doctor import doctor
from spotmpi.environments.pulumi_cli import KeysRejected, Pulumi
from spotmpi.environments.stack_file import StackFile
from spotmpi.runs.reader import RunState

Confirm = Callable[[str], bool]


def _cluster(environment: Environment) -> ClusterReader:
    return ClusterView(environment.context)


def _push_image(image: str, environment: Environment, echo: Echo) -> str:
    return push_image(image, environment.repositories[image], echo=echo, cpu=not environment.has_gpus)


def _push_data(source: str, folder: str, target: Target, echo: Echo) -> None:
    datasets.push([source], folder, datasets.Storage(target), echo)


@dataclass(frozen=True)
class Dependencies:
    """AWS, Pulumi and the prompt; by default the rest calls the functions behind the commands of those names."""

    aws: Aws
    pulumi: Pulumi
    echo: Echo
    confirm: Confirm
    run_doctor: Callable[[str, Aws], Sequence[Finding]] = lambda stack, aws: doctor(stack, aws, open_live=None)
    cluster: Callable[[Environment], ClusterReader] = _cluster
    push_image: Callable[[str, Environment, Echo], str] = _push_image
    push_data: Callable[[str, str, Target, Echo], None] = _push_data
    run_job: Callable[..., RunState] = runs.run
    list_runs: Callable[[Target], list[RunState]] = runs.list_runs
    stop_run: Callable[..., RunState] = stopping.stop
    sleep: Callable[[float], None] = field(default=time.sleep)

    def region_of(self, stack: StackFile) -> str:
        """The region of a stack: that of its file, else that of the AWS login; InputError where it is none."""
        region = stack.region or self.aws.region or ""
        if region and (problem := region_problem(region)):
            raise input_error("aws:region", region, problem)
        return region

    def carry_out(self, steps: Sequence[tuple[str, Callable[[], None]]], region: str) -> None:
        """Execute *steps*, a title and a function each, in order; RegionNotEnabled where *region* is not any more."""
        for number, (title, step) in enumerate(steps, 1):
            self.echo(f"{number}/{len(steps)} {title}")
            try:
                step()
            except KeysRejected:
                with suppress(CallError):
                    self.aws.account_id(region)  # says so if it is the region, or why else
                raise
