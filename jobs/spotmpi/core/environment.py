"""What an environment exports for runs: the only contract with the programs that build environments."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotmpi.core import names
from spotmpi.core.errors import InputError, Problem, SpotmpiError, input_error
from spotmpi.core.pulumi import refusal
from spotmpi.core.reminders import LONG_QUIET, reminders
from spotmpi.core.wording import Echo, print_message, reason_of

CONTRACT = 1


class _Part(BaseModel):
    # Environments may export more than this version reads; what it requires gets a new contract number.
    model_config = ConfigDict(extra="ignore", frozen=True)


class Taint(_Part):
    """A taint that a pod must tolerate to run on a node."""

    key: str
    value: str
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule"]


class NodeGroup(_Part):
    """Like machines in one zone; `gpus`, `vcpus` and `memory_mib` are what one node has in all.

    `group` is its name in the settings where that is another, as the group is in several zones: `g5` of `g5-b`.
    `allocatable_mib` is the memory for its pods; the root disk of a node, with its MiB/s, and a public address are
    billed besides the machine.
    """

    group: str | None = None
    name: str
    zone: str
    type: str
    market: Literal["spot", "on-demand", "capacity-block"]
    reservation: str | None = None  # of a Capacity Block
    gpus: int = Field(ge=0)
    vcpus: int = Field(ge=1)
    memory_mib: int = Field(ge=1)
    allocatable_mib: int = Field(ge=1)
    min: int = Field(ge=0)
    max: int = Field(ge=1)
    disk_gib: int = Field(ge=0)
    disk_throughput: int = Field(ge=0)
    public_address: bool
    placement_group: bool
    efa_interfaces: int = Field(ge=0)
    labels: dict[str, str]
    taint: Taint

    @property
    def shared_name(self) -> str:
        """The name that it shares with the groups of other zones."""
        return self.group or self.name


class Environment(_Part):
    """An environment as its stack exports it; holds no secrets. `zone` has its system nodes and One Zone storage."""

    contract: Literal[1]
    name: str
    region: str
    zone: str
    cluster: str
    cluster_arn: str
    namespace: str
    volume_claim: str
    ssh_secret: str
    placement_account: str | None = None  # by which runs are moved to another node group; older programs have none
    repositories: dict[str, str]
    node_groups: tuple[NodeGroup, ...]
    file_system_id: str
    access_point_id: str

    @property
    def context(self) -> str:
        """The name of its cluster where contexts of a kubeconfig are named; it needs no kubeconfig."""
        return names.EKS + self.cluster_arn

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that have node groups."""
        return tuple(dict.fromkeys(group.zone for group in self.node_groups))

    @property
    def has_gpus(self) -> bool:
        """Whether any of its node groups has GPUs."""
        return any(group.gpus for group in self.node_groups)

    def group(self, name: str) -> NodeGroup:
        """The node group of that name; InputError with the known names."""
        for group in self.node_groups:
            if group.name == name:
                return group
        known = ", ".join(group.name for group in self.node_groups)
        raise input_error("node_group", name, f"environment {self.name} has: {known}")


class Runner(Protocol):
    """Runs a program to its end, as `subprocess.run` does."""

    def __call__(
        self, args: list[str], *, capture_output: bool, encoding: str, errors: str, check: bool
    ) -> subprocess.CompletedProcess[str]:
        """Gives exit status, stdout and stderr."""


def parse(outputs: Mapping[str, Any]) -> Environment:
    """The environment in a stack's outputs; InputError with everything that does not fit the contract."""
    contract = outputs.get("contract")
    if contract is None:
        remedy = "the stack is not built, or has storage only: `spotmpi up STACK` builds an environment"
        raise input_error("environment", None, remedy)
    if contract != CONTRACT:
        remedy = f"this version of spotmpi reads contract {CONTRACT}: use the matching version of spotmpi"
        raise input_error("contract", contract, remedy)
    return _validated(outputs, "write the file again with `pulumi stack output --json`")


def recorded(outputs: Mapping[str, Any]) -> Environment:
    """The environment in the plan of a run, which may no longer exist; InputError where another program wrote it."""
    return _validated(outputs, "restore the run's plan.yaml from a copy")


def _validated(outputs: Mapping[str, Any], remedy: str) -> Environment:
    try:
        return Environment.model_validate(dict(outputs))
    except ValidationError as error:
        raise InputError([_problem(detail, remedy) for detail in error.errors(include_url=False)]) from error


def _problem(detail: Any, remedy: str) -> Problem:
    field = ".".join(str(part) for part in detail["loc"])
    return Problem(field, detail["input"], f"{detail['msg']}; {remedy}")


def load(path: Path) -> Environment:
    """The environment in a file that `pulumi stack output --json` wrote."""
    try:
        outputs = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = f"cannot be read ({error.strerror}): check its path and permissions"
        raise input_error("environment", str(path), remedy) from error
    except (ValueError, RecursionError) as error:
        raise input_error(
            "environment", str(path), f"is not JSON ({reason_of(error)}): write it with `pulumi stack output --json`"
        ) from error
    if not isinstance(outputs, dict):
        raise input_error("environment", str(path), "is not a JSON object: write it with `pulumi stack output --json`")
    return parse(outputs)


def of_stack(stack: str | None = None, project: Path | None = None, run: Runner = subprocess.run) -> Environment:
    """The environment that a stack (default: the selected one) of the Pulumi project exports now."""
    command = ["pulumi", "stack", "output", "--json", "--non-interactive"]
    command += ["--stack", stack] if stack else []
    command += ["--cwd", str(project)] if project else []
    try:
        with reading_reminders(stack or "(selected)", print_message):
            process = run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except FileNotFoundError as error:
        remedy = "install it, or name a file with the stack's outputs"
        raise SpotmpiError(
            f"command not found: pulumi, which reads the outputs of stack {stack or '(selected)'}; {remedy}"
        ) from error
    if process.returncode:
        if stack and (known := refusal(stack, process.stderr)):
            raise SpotmpiError(known)
        reason = " ".join(process.stderr.split()) or f"exit status {process.returncode}"
        raise SpotmpiError(f"pulumi could not read the outputs of stack {stack or '(selected)'}: {reason}")
    return parse(json.loads(process.stdout))


def reading_reminders(stack: str, echo: Echo) -> AbstractContextManager[None]:
    """Says, while in the context, that Pulumi still reads the state of a stack: it has no limit where S3 is silent."""
    what = f"waiting for pulumi, which reads the state of stack {stack}"
    return reminders(lambda seconds: f"{what}, for {seconds:.0f} s (Ctrl-C ends it)", echo, LONG_QUIET)
