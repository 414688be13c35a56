"""The CI commands: preview, build and destroy a stack; each checks the account before anything else."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from infra.ci import aws, losses, preview_copy, pulumi_cli, stack_file
from infra.ci.errors import CiError, Locked, NotBuilt
from infra.ci.pulumi_cli import Pulumi
from infra.ci.redaction import redact
from infra.ci.stack_file import StackFile
from infra.settings import PROJECT

REPOSITORY = Path(__file__).resolve().parents[2]
ACCESS_VARIABLE = "SPOTMPI_ACCESS"
_GUARDRAILS = ("--policy-pack", "infra/guardrails")
# The cluster alone: everything else may need the address that is being removed.
_CLUSTER_ONLY = ("--target", "**aws:eks/cluster:Cluster::**")

Command = Callable[[StackFile, Pulumi, argparse.Namespace], int]


def main(name: str, arguments: Sequence[str], project: Path = REPOSITORY) -> int:
    """Exit status of the command of that name: 2 for wrong usage, 1 for an error, else Pulumi's own."""
    command, parser = _COMMANDS[name]()
    parser.add_argument("stack", help="the stack, for example lab")
    options = parser.parse_args(arguments)
    censor = redact if name == "preview" else str
    try:
        file = stack_file.read(options.stack, project / "stacks")
        pulumi = replace(pulumi_cli.for_stack(file, project, secrets=name != "preview"), censor=censor)
        print(censor(f"account {file.account}, as {aws.check_account(file)}"), file=sys.stderr)
        return command(file, pulumi, options)
    except CiError as error:
        print(censor(f"error: {error}"), file=sys.stderr)
        return 1


def _preview(file: StackFile, pulumi: Pulumi, options: argparse.Namespace) -> int:
    """Preview on a copy of the state without its secrets; the stack is neither locked nor changed."""
    access = _allow(file, _permanent_access(file))
    with tempfile.TemporaryDirectory(prefix="spotmpi-preview-") as folder:
        copy = preview_copy.make_copy(file, pulumi, Path(folder))
        kinds = ", ".join(copy.kinds) or "none"
        print(f"not compared, because they hold secrets (providers are shown as updated): {kinds}", file=sys.stderr)
        return _run_all(copy.pulumi, [*access, ("preview", "--diff", *_GUARDRAILS, *copy.exclude)])


def _up(file: StackFile, pulumi: Pulumi, options: argparse.Namespace) -> int:
    """Create the stack's state if needed, and build; the addresses of `--access` have access until the end."""
    permanent = _permanent_access(file)
    temporary = [cidr for cidr in dict.fromkeys(options.access) if cidr not in permanent]
    allow = _allow(file, [*permanent, *temporary])
    provider = ("--secrets-provider", file.secrets_provider) if file.secrets_provider else ()
    if status := _run_all(pulumi, [("stack", "select", "--create", *provider), *allow]):
        return status
    try:
        status = _build(file, pulumi)
    finally:
        closed = _close(file, pulumi, temporary, len(permanent))
    return status or closed


def _build(file: StackFile, pulumi: Pulumi) -> int:
    """Status of `spotmpi up`, or of Pulumi alone: for what is no environment, and without spotmpi as in `_destroy`."""
    lacking = "what was deleted by hand, or was being created when an update was killed, is not looked for"
    if file.kind == "compute" and (spotmpi := _find_spotmpi(lacking)):
        return pulumi.run_spotmpi(spotmpi, "up", pulumi.stack, "--yes", "--no-images", *_GUARDRAILS)
    return _update(file, pulumi, *_GUARDRAILS)


def _find_spotmpi(lacking: str) -> str | None:
    """The command of spotmpi next to this Python; None, and what is lacking then is printed, where there is none."""
    spotmpi = Path(sys.executable).with_name("spotmpi")
    if spotmpi.exists():
        return str(spotmpi)
    print(f"{spotmpi} is not installed: {lacking}", file=sys.stderr)
    return None


def _update(file: StackFile, pulumi: Pulumi, *options: str) -> int:
    """Preview the update with Pulumi's *options*, and apply it unless it loses data or running nodes."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        if status := pulumi.run("preview", *options, "--event-log", str(events)):
            return status
        losses.require_none(events, file.stack, lambda: aws.running_nodes(file))
    return pulumi.run("up", "--yes", "--skip-preview", *options)


def _permanent_access(file: StackFile) -> list[str]:
    """The addresses that always may reach the Kubernetes API: those of the file, then those of the variable."""
    configured = os.environ.get(ACCESS_VARIABLE, "").replace(",", " ").split()
    access = list(dict.fromkeys([*file.access, *configured]))
    if not access and file.kind == "compute":
        remedy = f"set {PROJECT}:access in its file, or {ACCESS_VARIABLE} (in CI: a variable of the repository)"
        raise CiError(f"stack {file.stack} has no addresses that may reach its Kubernetes API: {remedy}")
    return access


def _allow(file: StackFile, access: Sequence[str]) -> list[tuple[str, ...]]:
    """The steps that append the addresses to those of the stack's file."""
    new = list(enumerate(access))[len(file.access) :]
    return [("config", "set", "--path", f"{PROJECT}:access[{index}]", cidr) for index, cidr in new]


def _close(file: StackFile, pulumi: Pulumi, temporary: Sequence[str], start: int) -> int:
    """Remove the temporary addresses, from index *start* of the list, from the file and the cluster."""
    status = _run_all(pulumi, [("config", "rm", "--path", f"{PROJECT}:access[{start}]") for _ in temporary])
    try:
        if not status and (allowed := aws.allowed_cidrs(file, temporary)):
            print(f"removing access to the Kubernetes API for {', '.join(allowed)}", file=sys.stderr)
            # A setting that was refused just now could replace the cluster here.
            status = _update(file, pulumi, *_CLUSTER_ONLY)
    except CiError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    if status:
        cidrs = ", ".join(temporary)
        print(f"the Kubernetes API may still be open to {cidrs}: repeat the command to close it", file=sys.stderr)
    return status


def _run_all(pulumi: Pulumi, steps: Sequence[tuple[str, ...]]) -> int:
    """Status of the first step that fails, 0 if none does."""
    for step in steps:
        if status := pulumi.run(*step):
            return status
    return 0


def _destroy(file: StackFile, pulumi: Pulumi, options: argparse.Namespace) -> int:
    """Take a stack down by `spotmpi down`, which lists leftover resources, and removes the stack if there are none.

    The virtual environment of a project that `spotmpi init --environment` wrote has no spotmpi: there Pulumi alone
    destroys the stack.
    """
    if file.kind != "compute":
        what = "persistent storage: unprotect and destroy it" if file.kind == "data" else "the roles of CI: destroy it"
        raise CiError(f"stack {file.stack} holds {what} by hand")
    try:
        if status := pulumi.run("stack", "--show-name"):
            return status
    except NotBuilt as error:
        if not options.if_built:
            raise
        print(f"nothing to destroy: {error}", file=sys.stderr)
        return 0
    try:
        return _take_down(pulumi)
    except Locked as error:
        if options.cancel_locks_after is None or error.since is None:
            raise
        # Two machines' clocks, both kept by NTP; what the limit has to exceed is a job's longest time.
        age = datetime.now(UTC) - error.since
        if age < timedelta(minutes=options.cancel_locks_after):
            raise
        taken, minutes = error.since.isoformat(), int(age / timedelta(minutes=1))
    print(f"cancelling the lock of {taken}: no job runs for {minutes} minutes", file=sys.stderr)
    return pulumi.run("cancel", "--yes") or _take_down(pulumi)


def _take_down(pulumi: Pulumi) -> int:
    """Status of `spotmpi down`, or of Pulumi alone."""
    if spotmpi := _find_spotmpi("leftover resources are not listed"):
        return pulumi.run_spotmpi(spotmpi, "down", pulumi.stack, "--yes")
    return _run_all(pulumi, [("destroy", "--yes", "--skip-preview"), ("stack", "rm", "--yes", "--preserve-config")])


def _preview_parser() -> tuple[Command, argparse.ArgumentParser]:
    about = "Show what `up` would change, and check it against the guardrails; nothing is built."
    return _preview, argparse.ArgumentParser("ci-preview", description=about)


def _up_parser() -> tuple[Command, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser("ci-up", description="Build a stack, or update it to its file.")
    parser.add_argument(
        "--access",
        action="append",
        default=[],
        metavar="CIDR",
        help=f"addresses that may reach the Kubernetes API while the command runs (permanently: ${ACCESS_VARIABLE})",
    )
    return _up, parser


def _destroy_parser() -> tuple[Command, argparse.ArgumentParser]:
    about = "Take a stack down, list leftover resources, and remove the stack if there are none: spotmpi down STACK."
    parser = argparse.ArgumentParser("ci-destroy", description=about)
    parser.add_argument("--if-built", action="store_true", help="succeed if the stack was never built")
    parser.add_argument(
        "--cancel-locks-after",
        type=int,
        metavar="MINUTES",
        help="cancel locks that are older: use more than the longest time of any job on the stack",
    )
    return _destroy, parser


_COMMANDS = {"preview": _preview_parser, "up": _up_parser, "destroy": _destroy_parser}
