"""`spotmpi up`: build an environment from its stack's file, push images and execute a first run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json, Stack, Yes

if TYPE_CHECKING:
    from spotmpi.environments.dependencies import Confirm
    from spotmpi.environments.stack_file import StackFile
    from spotmpi.environments.up import UpOptions

_MIN_EXPIRATION = 300.0  # seconds; less is a mistake


@dataclass(frozen=True)
class StepOptions:
    """Options that say which steps are carried out, and what an update may end."""

    no_images: Annotated[bool, typer.Option("--no-images", help="Push no images, and skip the smoke run.")] = False
    no_smoke: Annotated[bool, typer.Option("--no-smoke", help="Skip the smoke run.")] = False
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="Push this to a folder of the storage; repeatable.", metavar="SRC=FOLDER"),
    ] = None
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="AWS scales the node groups to 0 after this time, such as 8h.", metavar="TIME"),
    ] = None
    replace_nodes: Annotated[
        bool, typer.Option("--replace-nodes", help="Interrupt live runs if the update replaces or ends their nodes.")
    ] = False
    delete_data: Annotated[
        str | None,
        typer.Option(
            "--delete-data",
            help="Delete data if the update replaces its storage; write the environment's name.",
            metavar="NAME",
        ),
    ] = None
    policy_pack: Annotated[
        str | None,
        typer.Option("--policy-pack", help="Build only what this Pulumi policy pack allows.", metavar="FOLDER"),
    ] = None

    @property
    def up(self) -> UpOptions:
        """As those of `up`; InputError for an invalid duration, data without a folder, a folder without policies."""
        from datetime import timedelta
        from pathlib import Path

        from spotmpi.core.errors import input_error
        from spotmpi.environments.up import UpOptions
        from spotmpi.spec.job import read_duration

        seconds = None if self.expires is None else read_duration("--expires", self.expires)
        if seconds is not None and seconds < _MIN_EXPIRATION:
            raise input_error("--expires", self.expires, "must be at least 5m")
        if self.policy_pack is not None and not (Path(self.policy_pack) / "PulumiPolicy.yaml").is_file():
            raise input_error("--policy-pack", self.policy_pack, "must be a folder with a PulumiPolicy.yaml")
        return UpOptions(
            images=not self.no_images,
            smoke_run=not self.no_smoke,
            expires=None if seconds is None else timedelta(seconds=seconds),
            data=_pushes(self.data or []),
            delete_data=self.delete_data,
            replace_nodes=self.replace_nodes,
            policy_pack=None if self.policy_pack is None else Path(self.policy_pack).resolve(),
        )


def command(
    stack: Stack,
    yes: Yes = False,
    steps: StepOptions = StepOptions(),
    as_json: Json = False,
) -> None:
    """Build an environment, push images and execute a small run; if interrupted, the same command continues."""
    from spotmpi.cli.environment_commands import open_dependencies
    from spotmpi.environments.stack_file import read_stack
    from spotmpi.environments.up import up

    options = steps.up
    dependencies = open_dependencies(stack, yes)
    if read_stack(stack).zone is None:
        _choose_zone(read_stack(stack), dependencies.confirm)
    environment = up(stack, dependencies, options)
    next_command = f"spotmpi init --example digits && spotmpi run digits.toml --on {stack}"
    if as_json:
        print(json.dumps({"environment": environment.model_dump(mode="json"), "next": next_command}))
        return
    print(f"{environment.name} is up in {environment.zone}. Next: {next_command}")
    print(f"It is billed until you destroy it: spotmpi down {stack}")


def _pushes(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(source, folder of the storage) of each; InputError where one has no folder."""
    from spotmpi.core.errors import input_error
    from spotmpi.data.datasets import folder_name

    pushes = []
    for text in texts:
        source, equals, folder = text.rpartition("=")
        if not (source and equals):
            raise input_error("--data", text, "write it as SRC=FOLDER, such as my-set=voc")
        pushes.append((source, folder_name(folder)))
    return tuple(pushes)


def _choose_zone(stack: StackFile, confirm: Confirm) -> None:
    """Show the table of zones and types, and write the first row into the stack's file after a confirmation."""
    from spotmpi.cli import zones
    from spotmpi.core.errors import input_error
    from spotmpi.environments.up import NotConfirmed
    from spotmpi.environments.zones.comparison import compare_zones

    types = sorted({group.type for group in stack.groups if group.type})
    if not types:
        raise input_error(
            "spotmpi:groups", None, f"{stack.path} has no group with a type: start from one of the example stacks"
        )
    nodes = max(group.max or 1 for group in stack.groups)
    comparison = compare_zones(types, nodes, [stack.region] if stack.region else [])
    zones.show(comparison)
    row = comparison.rows[0]
    if not confirm(f"{stack.stack} has no zone yet. Use row 1, {row.type} in {row.zone}?"):
        command = f"spotmpi zones --types {','.join(types)} --nodes {nodes} --write {stack.stack} --row N"
        raise NotConfirmed(f"no zone was chosen: `{command}` chooses another row")
    zones.write_row(comparison, 1, stack.stack, None)
