"""`spotmpi up` and `down` in a separate process, which kills itself by SIGKILL at a given step.

    python -m tests.cluster.killable_command ADDRESS OUTPUTS STEP up lab --yes

ADDRESS serves AWS and the registry, OUTPUTS is a file of the environment's outputs, used as target of the run, STEP is
the number of the step to be killed at (0: none). All else is the real command.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.backends.targets import Target
from spotmpi.cli import environment_commands
from spotmpi.cli.main import main
from spotmpi.core.environment import Environment
from spotmpi.core.wording import Echo
from spotmpi.data import datasets
from spotmpi.environments.dependencies import Dependencies
from tests.cloud.account.remote import RemoteAccount, fetch


def with_doubles(dependencies: Dependencies, address: str, place: Target, step: str) -> Dependencies:
    """The commands' dependencies without doctor and registry, and with *place* as target of runs."""

    def echo(line: str) -> None:
        dependencies.echo(line)
        if line.startswith(f"{step}/"):
            os.kill(os.getpid(), signal.SIGKILL)

    def push(image: str, environment: Environment, _: Any) -> str:
        return str(fetch(address, "push", image=image))

    def stage(source: str, folder: str, where: Target, echo: Echo) -> None:
        datasets.push([source], folder, datasets.Storage(place), echo)

    return replace(
        dependencies,
        echo=echo,
        run_doctor=lambda stack, aws: [],
        push_image=push,
        push_data=stage,
        run_job=lambda values, on, echo: spotmpi.run(without_cuda(values), on=place, echo=echo),
        list_runs=lambda on: spotmpi.list_runs(place),
        stop_run=lambda run, on: spotmpi.stop(run, on=place),
    )


def log_in(address: str, patch: pytest.MonkeyPatch) -> None:
    """Let the account at *address* say where clusters are, with tokens of the test's cluster, which takes no others."""
    patch.setattr("spotmpi.backends.kubernetes.client.kubeconfig.open_account", lambda region: RemoteAccount(address))
    patch.setattr("spotmpi.aws.eks.token", lambda aws, cluster: str(fetch(address, "token", cluster=cluster.name)))


def without_cuda(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* for the test's image, which is built without CUDA: a mount hides the record that says so."""
    arguments = [*values["args"], "--communicator", "naive"]  # no program takes it by itself where GPUs are requested
    return {**values, "args": arguments, "kubernetes": {"mounts": [{"path": "/opt/spotmpi", "empty": "1Mi"}]}}


if __name__ == "__main__":
    address, outputs, step, *words = sys.argv[1:]
    usual, place = environment_commands.open_dependencies, Target(outputs, Path(outputs).parent / "runs")
    patch = pytest.MonkeyPatch()
    patch.setattr("spotmpi.cli.environment_commands.open_account", lambda region, echo: RemoteAccount(address))
    log_in(address, patch)
    patch.setattr(
        environment_commands,
        "open_dependencies",
        lambda stack, yes: with_doubles(usual(stack, yes), address, place, step),
    )
    sys.argv[1:] = words
    main()
