"""`spotmpi up` and `down` in a process of their own, which dies of SIGKILL as it says a step, if it is told so.

    python -m tests.cluster.own_process ADDRESS OUTPUTS STEP up lab --yes

ADDRESS answers for AWS and the registry, OUTPUTS is a file of the environment's outputs that stands for the place where
it runs, STEP the number of the step to die at (0: none). All else is what the commands always do.
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
from spotmpi.core.progress import Say
from spotmpi.data import datasets
from spotmpi.environments.dependencies import Dependencies
from tests.cloud.http_account import account_at, fetch


def handed(made: Dependencies, address: str, place: Target, step: str) -> Dependencies:
    """The hands of the commands, without doctor and registry, and with the place for runs."""

    def say(line: str) -> None:
        made.say(line)
        if line.startswith(f"{step}/"):
            os.kill(os.getpid(), signal.SIGKILL)

    def push(image: str, there: Environment, _: Any) -> str:
        return str(fetch(address, "push", image=image))

    def stage(source: str, folder: str, where: Target, say: Say) -> None:
        datasets.push([source], folder, datasets.Storage(place), say)

    return replace(
        made,
        say=say,
        run_doctor=lambda stack, aws: [],
        push_image=push,
        push_data=stage,
        run_job=lambda values, on, say: spotmpi.run(without_cuda(values), on=place, say=say),
        list_runs=lambda on: spotmpi.list_runs(place),
        stop_run=lambda run, on: spotmpi.stop(run, on=place),
    )


def without_cuda(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* for the test's image, which is built without CUDA: a mount hides its record, which would say so."""
    return {**values, "kubernetes": {"mounts": [{"path": "/opt/spotmpi", "empty": "1Mi"}]}}


if __name__ == "__main__":
    address, outputs, step, *words = sys.argv[1:]
    usual, place = environment_commands.open_dependencies, Target(outputs, Path(outputs).parent / "runs")
    patch = pytest.MonkeyPatch()
    patch.setattr("spotmpi.cli.environment_commands.open_account", lambda region: account_at(address).aws)
    patch.setattr(
        environment_commands, "open_dependencies", lambda stack, yes: handed(usual(stack, yes), address, place, step)
    )
    sys.argv[1:] = words
    main()
