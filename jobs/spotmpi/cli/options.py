"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from spotmpi.cli import completion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spotmpi.backends.targets import Target

RunId = Annotated[
    str, typer.Argument(help="The run's id, or its first letters.", metavar="ID", autocompletion=completion.runs)
]
RunsFolder = Annotated[
    Path | None,
    typer.Option("--runs", help="Folder of the run records (default: $SPOTMPI_RUNS, else ./runs).", metavar="FOLDER"),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="local, kubernetes, kubernetes/NAMESPACE, slurm, slurm/PARTITION, slurm@HOST (by ssh), the name of a "
        "stack, or a file of its outputs "
        "(default: $SPOTMPI_ON, else local).",
        metavar="TARGET",
        autocompletion=completion.targets,
    ),
]
Stack = Annotated[
    str,
    typer.Argument(
        help="A stack: the NAME of stacks/Pulumi.NAME.yaml.", metavar="STACK", autocompletion=completion.stacks
    ),
]
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
        help="A variable for every rank; without a value, that of this terminal; on a cluster in a Secret. Repeatable.",
        metavar="NAME[=VALUE]",
    ),
]
Nodes = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        "-n",
        help="Nodes of the run, or the numbers of them that it may have, such as 2,4,8 (default: the spec's, else 1).",
        metavar="N[,N...]",
    ),
]
Node = Annotated[str, typer.Option("--node", help="A node, such as 1, or another member, such as worker/0.")]
Slots = Annotated[int | None, typer.Option("--slots", help="Processes per node (default: the spec's, else 1).")]


def command_group() -> typer.Typer:
    """Commands with a common first word; its help is that of `spotmpi.cli.main.COMMANDS`."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """*command* as typer takes it: instead of a parameter that is a dataclass it has each field of that."""
    signature = inspect.signature(command, eval_str=True)
    groups = {each.name: each.annotation for each in signature.parameters.values() if _is_group(each.annotation)}
    if not groups:
        return command
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += _fields(groups[parameter.name]) if parameter.name in groups else [parameter]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in dataclasses.fields(group)})
        command(**values)

    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    return call


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _fields(group: Any) -> list[inspect.Parameter]:
    kinds, kind = get_type_hints(group, include_extras=True), inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [
        inspect.Parameter(each.name, kind, default=each.default, annotation=kinds[each.name])
        for each in dataclasses.fields(group)
    ]


@dataclasses.dataclass(frozen=True)
class TargetOptions:
    """Options that name where a run executes and is recorded."""

    on: On = None
    runs: RunsFolder = None

    @property
    def target(self) -> Target:
        """The target that they name."""
        from spotmpi.backends.targets import Target

        return Target(self.on, self.runs)


def numbers(text: str | None) -> object:
    """The number in *text*, the value of --nodes, or those that commas separate."""
    if text is None:
        return None
    if not re.fullmatch(r"-?\d+(,-?\d+)*", text):
        from spotmpi.core.errors import input_error

        remedy = "write a number of nodes such as 2, or all that the run may have, such as 2,4"
        raise input_error("--nodes", text, remedy)
    values = [int(each) for each in text.split(",")]
    return values if len(values) > 1 else values[0]


def overrides(
    values: Mapping[str, object], assignments: Sequence[str] | None, variables: Sequence[str] | None
) -> list[str]:
    """The ``key=value`` overrides that options stand for: of *values* those that are set, then --set, then --env.

    A key that ends with + gets a list, which is appended to that of the spec.
    """
    return [
        *(f"{key}={_toml(value)}" for key, value in values.items() if value not in (None, [], ())),
        *(assignments or []),
        *map(_variable, variables or []),
    ]


def _toml(value: object) -> str:
    import tomli_w

    return tomli_w.dumps({"v": value}).strip().removeprefix("v = ")


def _variable(text: str) -> str:
    """The override that one --env stands for; a value is taken literally, whatever it looks like."""
    from spotmpi.core.errors import input_error

    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise input_error(
            "--env", name, "write it as NAME or NAME=VALUE; a name has letters, digits and _ only, and no digit first"
        )
    if not equals:
        return f'env_passthrough+=["{name}"]'
    return f"env.{name}={_toml(value)}"
