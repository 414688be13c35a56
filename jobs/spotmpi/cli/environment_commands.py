"""What `spotmpi up`, `upgrade` and `down` share: their dependencies, with a confirmation prompt on the terminal."""

from __future__ import annotations

import sys
from functools import partial

import typer

from spotmpi.aws.account import open_account
from spotmpi.core import names
from spotmpi.core.errors import input_error
from spotmpi.core.wording import echo
from spotmpi.environments.dependencies import Dependencies
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.stack_file import read_stack


def open_dependencies(stack: str, yes: bool) -> Dependencies:
    """AWS, Pulumi and the prompt for a stack; *yes* confirms everything, else InputError without a terminal."""
    # The stack's file and Pulumi's project must be in the same folder.
    pulumi = Pulumi(partial(print, file=sys.stderr, flush=True), names.pulumi_project())
    aws = open_account(read_stack(stack).region, echo=echo)
    return Dependencies(aws, pulumi, echo, partial(confirm, yes=yes))


def confirm(question: str, yes: bool) -> bool:
    """Whether the user confirms, which *yes* does; InputError without a terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise input_error("--yes", None, f"pass --yes to confirm without a terminal: {question}")
    return typer.confirm(question, err=True)
