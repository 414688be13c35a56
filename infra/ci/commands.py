"""The CI commands: preview, build and destroy a stack; each checks the account before anything else."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.ci import account, endpoint, preview_copy, pulumi_cli, stack_file
from infra.ci.errors import CiError, NotBuilt
from infra.ci.pulumi_cli import Pulumi
from infra.ci.stack_file import StackFile
from infra.settings import PROJECT

REPOSITORY = Path(__file__).resolve().parents[2]
ACCESS_VARIABLE = "SPOTMPI_ACCESS"
_GUARDRAILS = ("--policy-pack", "infra/guardrails")
# The cluster alone: everything else may need the address that is being taken away.
_CLUSTER_ONLY = ("--target", "**aws:eks/cluster:Cluster::**")

Command = Callable[[StackFile, Pulumi, argparse.Namespace], int]


def main(name: str, arguments: Sequence[str], project: Path = REPOSITORY) -> int:
    """Exit status of the command of that name: 2 for wrong usage, 1 for what went wrong, else Pulumi's own."""
    command, parser = _COMMANDS[name]()
    parser.add_argument("stack", help="the stack, for example lab")
    options = parser.parse_args(arguments)
    try:
        file = stack_file.read(options.stack, project / "stacks")
        pulumi = pulumi_cli.of(file, project, secrets=name != "preview")
        print(f"account {file.account}, as {account.check(file)}", file=sys.stderr)
        return command(file, pulumi, options)
    except CiError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _preview(file: StackFile, pulumi: Pulumi, options: argparse.Namespace) -> int:
    """Preview on a copy of the state without its secrets; nothing of the stack is locked or written."""
    access = _allow(file, _lasting_access(file))
    with tempfile.TemporaryDirectory(prefix="spotmpi-preview-") as folder:
        copy = preview_copy.make(file, pulumi, Path(folder))
        listed = ", ".join(copy.kinds) or "none"
        print(f"not compared, since they hold secrets (providers are shown as updated): {listed}", file=sys.stderr)
        return _run_all(copy.pulumi, [*access, ("preview", "--diff", *_GUARDRAILS, *copy.exclude)])


def _up(file: StackFile, pulumi: Pulumi, options: argparse.Namespace) -> int:
    """Make the stack's state where there is none, and build; the addresses of `--access` are let in until the end."""
    lasting = _lasting_access(file)
    temporary = [cidr for cidr in dict.fromkeys(options.access) if cidr not in lasting]
    allow = _allow(file, [*lasting, *temporary])
    opened_by = ("--secrets-provider", file.secrets_provider) if file.secrets_provider else ()
    if status := _run_all(pulumi, [("stack", "select", "--create", *opened_by), *allow]):
        return status
    try:
        status = pulumi.run("up", "--yes", *_GUARDRAILS)
    finally:
        closed = _close(file, pulumi, temporary, len(lasting))
    return status or closed


def _lasting_access(file: StackFile) -> list[str]:
    """Who may reach the Kubernetes API for good: those of the file, then those of the variable."""
    given = os.environ.get(ACCESS_VARIABLE, "").replace(",", " ").split()
    access = list(dict.fromkeys([*file.access, *given]))
    if not access and file.kind != "data":
        remedy = f"set {PROJECT}:access in its file, or {ACCESS_VARIABLE} (in CI: a variable of the repository)"
        raise CiError(f"stack {file.stack!r} names no addresses that may reach its Kubernetes API: {remedy}")
    return access


def _allow(file: StackFile, access: Sequence[str]) -> list[tuple[str, ...]]:
    """The steps that write the addresses into the stack's file, behind those that it has."""
    new = list(enumerate(access))[len(file.access) :]
    return [("config", "set", "--path", f"{PROJECT}:access[{place}]", cidr) for place, cidr in new]


def _close(file: StackFile, pulumi: Pulumi, temporary: Sequence[str], place: int) -> int:
    """Take the temporary addresses, which start at that place of the list, out of the file and the cluster again."""
    steps: list[tuple[str, ...]] = [("config", "rm", "--path", f"{PROJECT}:access[{place}]") for _ in temporary]
    if allowed := endpoint.allowed(file, temporary):
        print(f"closing the Kubernetes API to {', '.join(allowed)} again", file=sys.stderr)
        steps.append(("up", "--yes", "--skip-preview", *_CLUSTER_ONLY))
    if status := _run_all(pulumi, steps):
        listed = ", ".join(temporary)
        print(f"the Kubernetes API may still be open to {listed}: repeat the command to close it", file=sys.stderr)
        return status
    return 0


def _run_all(pulumi: Pulumi, steps: Sequence[tuple[str, ...]]) -> int:
    """Status of the first step that fails, 0 if none does."""
    for step in steps:
        if status := pulumi.run(*step):
            return status
    return 0


def _destroy(file: StackFile, pulumi: Pulumi, options: argparse.Namespace) -> int:
    """Take a stack down as `spotmpi down` does, which lists what is left, fails where that is anything, and forgets."""
    if file.kind == "data":
        raise CiError(f"stack {file.stack!r} holds kept storage: unprotect and destroy it by hand")
    try:
        if status := pulumi.run("stack", "--show-name"):
            return status
    except NotBuilt as error:
        if not options.if_built:
            raise
        print(f"nothing to destroy: {error}", file=sys.stderr)
        return 0
    spotmpi = Path(sys.executable).with_name("spotmpi")
    if not spotmpi.exists():
        raise CiError(f"no {spotmpi}: run ./scripts/setup, and start this by .venv/bin/python")
    command = [str(spotmpi), "down", file.stack, "--yes"]
    return subprocess.run(command, cwd=pulumi.project, env=dict(pulumi.variables), check=False).returncode


def _previewing() -> tuple[Command, argparse.ArgumentParser]:
    about = "Show what `up` would change, judged by the guardrails; nothing is built."
    return _preview, argparse.ArgumentParser("ci-preview", description=about)


def _building() -> tuple[Command, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser("ci-up", description="Build a stack, or change it to what its file says.")
    parser.add_argument(
        "--access",
        action="append",
        default=[],
        metavar="CIDR",
        help=f"let these addresses reach the Kubernetes API while the command runs (for good: ${ACCESS_VARIABLE})",
    )
    return _up, parser


def _destroying() -> tuple[Command, argparse.ArgumentParser]:
    about = "Take a stack down, list whatever is left of it, and forget it when nothing is: spotmpi down STACK."
    parser = argparse.ArgumentParser("ci-destroy", description=about)
    parser.add_argument("--if-built", action="store_true", help="a stack that was never built is no failure")
    return _destroy, parser


_COMMANDS = {"preview": _previewing, "up": _building, "destroy": _destroying}
