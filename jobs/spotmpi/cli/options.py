"""Options that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from spotmpi.backends.targets import Target

RunId = Annotated[str, typer.Argument(help="The run's id, or its first letters.", metavar="ID")]
RunsFolder = Annotated[
    Path | None,
    typer.Option("--runs", help="Folder of the run records (default: $SPOTMPI_RUNS, else ./runs).", metavar="FOLDER"),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="local, kubernetes, kubernetes/NAMESPACE, the name of a stack, or a file of its outputs "
        "(default: $SPOTMPI_ON, else local).",
        metavar="TARGET",
    ),
]
Stack = Annotated[str, typer.Argument(help="A stack: the NAME of stacks/Pulumi.NAME.yaml.", metavar="STACK")]
Yes = Annotated[bool, typer.Option("--yes", help="Answer every question with yes.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for scripts.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a key of the spec, such as limits.failures=3; A.B+=V appends to a list. Repeatable.",
        metavar="A.B=V",
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help="A variable for every rank; without a value that of this terminal, on a cluster by Secret. Repeatable.",
        metavar="NAME[=VALUE]",
    ),
]
Nodes = Annotated[int | None, typer.Option("--nodes", "-n", help="Override the spec's nodes.")]
Slots = Annotated[int | None, typer.Option("--slots", help="Override the spec's processes per node.")]


def target(on: str | None, runs: Path | None) -> Target:
    """The target that --on and --runs name."""
    from spotmpi.backends.targets import Target

    return Target(on, runs)


def overrides(
    nodes: int | None, slots: int | None, assignments: list[str] | None, variables: list[str] | None
) -> list[str]:
    """The ``key=value`` overrides that the options stand for; --env comes after --set, which comes after the counts."""
    counts = [f"{key}={value}" for key, value in (("nodes", nodes), ("slots", slots)) if value is not None]
    return counts + (assignments or []) + [_variable(text) for text in variables or []]


def _variable(text: str) -> str:
    """The override that one --env stands for; a value is taken literally, whatever it looks like."""
    import tomli_w

    from spotmpi.core.errors import input_error

    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise input_error("--env", name, "write it as NAME or NAME=VALUE; a name has letters, digits and _ only")
    if not equals:
        return f'forward+=["{name}"]'
    return f"env.{name}=" + tomli_w.dumps({"v": value}).strip().removeprefix("v = ")
