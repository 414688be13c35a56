"""What `spotmpi up`, `upgrade` and `down` do once their options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

import typer

from spotmpi.aws.account import open_account
from spotmpi.cli import version_table
from spotmpi.cli.view import say
from spotmpi.core import names
from spotmpi.core.errors import EXIT_FAILURE, input_error
from spotmpi.data.datasets import folder_name
from spotmpi.environments import down, up
from spotmpi.environments import upgrade as upgrading
from spotmpi.environments.dependencies import Agree, Dependencies
from spotmpi.environments.pulumi_cli import Pulumi
from spotmpi.environments.stack_file import StackFile, read_stack
from spotmpi.environments.up import NotAgreed, UpOptions
from spotmpi.environments.upgrade import Request
from spotmpi.spec.job import read_duration

_SHORTEST = 300.0  # seconds; a shorter life is a mistake


def wishes(images: bool, smoke: bool, expires: str | None, data: Sequence[str]) -> UpOptions:
    """The options of `up` as wishes; InputError for a time that is none, and for data without a folder."""
    staged = []
    for text in data:
        source, equals, folder = text.rpartition("=")
        if not (source and equals):
            raise input_error("--data", text, "write it as SRC=FOLDER, such as my-set=voc")
        staged.append((source, folder_name(folder)))
    if expires is None:
        return UpOptions(images, smoke, None, tuple(staged))
    seconds = read_duration("--expires", expires)
    if seconds < _SHORTEST:
        raise input_error("--expires", expires, "give at least 5m")
    return UpOptions(images, smoke, timedelta(seconds=seconds), tuple(staged))


def bring_up(stack: str, yes: bool, wished: UpOptions, as_json: bool) -> None:
    """Choose a zone where the stack has none, bring its environment up and print the command that comes next."""
    hands = _hands(stack, yes)
    if read_stack(stack).zone is None:
        _choose_zone(read_stack(stack), hands.agree)
    there = up.up(stack, hands, wished)
    following = f"spotmpi run jobs/examples/digits.toml --on {stack}"
    if as_json:
        print(json.dumps({"environment": there.model_dump(mode="json"), "next": following}))
        return
    print(f"{there.name} is up in {there.zone}. Next: {following}")
    print(f"It bills while it is there, runs or not: spotmpi down {stack}")


def upgrade(stack: str, yes: bool, request: Request, as_json: bool) -> None:
    """Upgrade a stack: a table of versions before anything is asked, or one JSON object when all is done."""
    plan = upgrading.upgrade(stack, _hands(stack, yes), request, (lambda plan: None) if as_json else version_table.show)
    changed = plan.moves_cluster or bool(plan.replaced)
    if as_json:
        print(json.dumps(version_table.to_json(plan) | {"changed": changed and not request.dry_run}))
    elif not changed:
        print(f"{plan.environment.name}: nothing to upgrade")
    elif not request.dry_run:
        print(f"{plan.environment.name} is upgraded; commit {read_stack(stack).path}, which has the new versions")


def take_down(stack: str, yes: bool, delete_data: str | None, as_json: bool) -> None:
    """Take an environment down, print what still bills, and exit with 1 where that is anything."""
    left = down.down(stack, _hands(stack, yes), delete_data)
    if as_json:
        print(json.dumps([asdict(each) for each in left]))
    for each in left if not as_json else ():
        print(f"{each.what}: {each.id}\n  -> {each.command}")
    if left:
        say(f"{len(left)} things of {stack} are left and may bill; the same command looks again")
        raise typer.Exit(EXIT_FAILURE)
    say(f"nothing of {stack} is left that bills")


def _choose_zone(stack: StackFile, agree: Agree) -> None:
    """Show zones and types by price, score and quota, and put the first into the stack's file after a yes."""
    from spotmpi.cli import zones
    from spotmpi.environments.zones.comparison import compare_zones

    types = sorted({group.type for group in stack.groups if group.type})
    if not types:
        raise input_error(
            "spotmpi:groups", None, f"{stack.path} names no group with a type: start from one of the ready stacks"
        )
    nodes = max(group.max or 1 for group in stack.groups)
    comparison = compare_zones(types, nodes, [stack.region] if stack.region else [])
    zones.show(comparison)
    row = comparison.rows[0]
    if not agree(f"{stack.stack} has no zone yet. Take row 1, {row.type} in {row.zone}?"):
        command = f"spotmpi zones --types {','.join(types)} --nodes {nodes} --write {stack.stack} --row N"
        raise NotAgreed(f"no zone was chosen: `{command}` takes another row")
    zones.write_row(comparison, 1, stack.stack, None)


def _hands(stack: str, yes: bool) -> Dependencies:
    def agree(question: str) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise input_error("--yes", None, f"say --yes where nobody can be asked: {question}")
        return typer.confirm(question, err=True)

    # The stack's file and Pulumi's project have to be of the same folder.
    project = names.pulumi_project()
    return Dependencies(open_account(read_stack(stack).region), Pulumi(_print, project), say, agree)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
