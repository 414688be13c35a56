"""`spotmpi run`: run a job spec or a command, and follow it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand

from spotmpi.agent.launchers import LAUNCHERS
from spotmpi.cli import completion
from spotmpi.cli.options import Env, Json, Nodes, Set, Slots, TargetOptions, numbers, overrides

if TYPE_CHECKING:
    from spotmpi.backends.targets import Target
    from spotmpi.core.errors import Problem
    from spotmpi.runs.reader import RunState
    from spotmpi.spec.source import Source

_COMMAND = "spotmpi.command"  # the key of the context's values that has the command after --, if there is one


class CommandAfterDashes(TyperCommand):
    """A command whose arguments after the first ``--`` are another command, to be run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``; those after it go into the context's values as they are."""
        if "--" in args:
            position = args.index("--")
            ctx.meta[_COMMAND] = args[position + 1 :]
            args = args[:position]
        ctx.allow_extra_args = True  # `_conflicts` has a remedy for them
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND [ARG]...]"]


COMMAND_CLASS = CommandAfterDashes


class Key(str):
    """The key of a spec that an option overrides."""


@dataclass(frozen=True)
class SpecOptions:
    """Options that override keys of the spec."""

    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            help="The name of a folder under images/, or on a cluster a reference to pull, which has a / or a : "
            "(default: the spec's, else this machine's own software).",
            metavar="NAME|REFERENCE",
        ),
        Key("image"),
    ] = None
    nodes: Annotated[Nodes, Key("nodes")] = None
    slots: Annotated[Slots, Key("slots")] = None
    standby: Annotated[
        int | None,
        typer.Option("--standby", help="Additional pods that replace lost nodes at once; on a cluster only."),
        Key("standby"),
    ] = None
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher",
            help="What starts the ranks (default: the spec's, else mpirun; none for a command after --).",
            metavar="|".join(LAUNCHERS),
            autocompletion=completion.launchers,
        ),
        Key("launcher"),
    ] = None
    cpu: Annotated[
        str | None,
        typer.Option("--cpu", help="CPUs per slot, such as 2, 0.5 or 500m.", metavar="CPUS"),
        Key("resources.cpu"),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="Memory per slot, such as 4Gi.", metavar="SIZE"),
        Key("resources.memory"),
    ] = None
    gpu: Annotated[int | None, typer.Option("--gpu", help="GPUs per slot."), Key("resources.gpu")] = None
    code: Annotated[
        str | None,
        typer.Option("--code", help="Folder of your code: the command starts in it.", metavar="FOLDER"),
        Key("code"),
    ] = None
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            help="A file or folder to copy to where the command starts, on this machine RUNS/ID/code; a Python file "
            "or package in it can be imported. Repeatable.",
            metavar="PATH",
        ),
        Key("files+"),
    ] = None
    assignments: Set = None
    env: Env = None
    template: Annotated[
        list[str] | None,
        typer.Option(
            "--template",
            help="A pod template, a YAML file or configmap:NAME, merged over spotmpi's on a cluster. Repeatable.",
            metavar="FILE",
        ),
        Key("kubernetes.templates+"),
    ] = None
    limit_start: Annotated[
        str | None,
        typer.Option(
            "--limit-start",
            help="Time for nodes to get ready, and for the first output (default: the spec's, else 10m).",
            metavar="TIME",
        ),
        Key("limits.start"),
    ] = None
    limit_run: Annotated[
        str | None,
        typer.Option("--limit-run", help="Time until the end, such as 1h.", metavar="TIME"),
        Key("limits.run"),
    ] = None

    def overrides(self) -> list[str]:
        """Those that are given, as overrides; --set and --env come last."""
        kinds = get_type_hints(type(self), include_extras=True)
        keys = {name: key for name, kind in kinds.items() for key in kind.__metadata__ if isinstance(key, Key)}
        values = {key: getattr(self, name) for name, key in keys.items()}
        return overrides(values | {"nodes": numbers(self.nodes)}, self.assignments, self.env)


@dataclass(frozen=True)
class ModeOptions:
    """Options that say what becomes of the spec, or that another run is continued."""

    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            help="Write the spec, with all options applied, to this new file, and run it; with --dry-run, "
            "start nothing.",
            metavar="FILE",
        ),
    ] = None
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            help="Continue this stopped or failed run instead.",
            metavar="ID",
            autocompletion=completion.runs,
        ),
    ] = None
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the run's id and return at once.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")] = False


def command(
    context: typer.Context,
    spec: Annotated[Path | None, typer.Argument(help="The job spec, a TOML file.", metavar="SPEC")] = None,
    options: SpecOptions = SpecOptions(),
    mode: ModeOptions = ModeOptions(),
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Run a job spec or a command, follow it and record it.

    A command after -- needs no spec: without --image it runs with the programs on PATH, in the current folder unless
    --code or --file is given. With a spec, options override its keys, and --file and --template add to its lists.

    The exit code is 0 if it succeeds, 1 if it fails, 2 if the input is wrong and 130 if it is stopped.
    """
    from spotmpi.api import runs as api
    from spotmpi.api.view import make_view
    from spotmpi.core.wording import echo

    target, changes = where.target, options.overrides()
    work = _Work(spec, context.meta.get(_COMMAND), context.args, mode)
    source = _checked_source(work, options.image, changes, target)
    if mode.save is not None:
        source, changes = api.save_spec(mode.save, source, changes, target), []
    if mode.dry_run:
        if mode.resume is not None:
            plan = api.plan_resume(mode.resume, changes, target, echo)
        else:
            plan = api.plan_run(source, changes, target, echo)
        print(json.dumps(plan, indent=1))
        return
    with make_view(quiet=as_json or mode.detach) as view:
        if mode.resume is not None:
            state = api.resume(mode.resume, changes, target, mode.detach, view.show, view.echo)
        else:
            state = api.run(source, changes, target, mode.detach, view.show, view.echo)
    _show_result(state, mode.detach, as_json)
    if not mode.detach and (target.has_pods or mode.resume is not None):  # only runs of an environment have a cost
        report_cost(state, target)
    raise typer.Exit(0 if mode.detach else _exit_code(state))


class _Work(NamedTuple):
    """What the command line names to run."""

    spec: Path | None
    command: list[str] | None  # after --; None without --
    extra: list[str]  # further arguments before --
    mode: ModeOptions


def _checked_source(work: _Work, image: str | None, changes: Sequence[str], target: Target) -> Source:
    """The spec or command to run; InputError with all problems of the arguments and of the spec."""
    from spotmpi.api import runs as api
    from spotmpi.core.errors import InputError, Problem
    from spotmpi.core.names import is_image_reference

    problems = list(_conflicts(work))
    if is_image_reference(image) and not target.has_pods:
        remedy = "only pods pull an image: add --on with a cluster, or omit --image to use this machine's software"
        problems.append(Problem("--image", image, remedy))
    source: Source = work.spec or work.command or []
    if problems:
        is_named = (work.spec is not None or work.command is not None) and work.mode.resume is None and not work.extra
        raise InputError([*problems, *(api.problems(source, changes, target) if is_named else [])])
    return source


def _conflicts(work: _Work) -> Iterator[Problem]:
    """The problems of arguments that do not go together."""
    from spotmpi.core.errors import Problem

    mode = work.mode
    if work.extra:
        words = [str(work.spec), *work.extra]
        yield Problem("spec", " ".join(words), f"name one file; a command goes after --: {_example(words)}")
    if mode.resume is not None:
        for name, value in (("the spec file", work.spec), ("the command", work.command)):
            if value is not None:
                yield Problem("--resume", mode.resume, f"takes the run's own spec: omit {name}")
        if mode.save is not None:
            yield Problem("--save", str(mode.save), f"the spec of {mode.resume} is spec.toml in its run folder")
    elif work.spec is not None and work.command is not None:
        remedy = f"{work.spec} names what to run: omit the spec or the command; arguments go to --set"
        yield Problem("command", work.command, f"{remedy} {_arguments(work.command)}")
    elif work.spec is None and work.command is None:
        yield Problem("spec", None, "name a spec file (`spotmpi init` writes one), or a command after --")
    if mode.save is not None and mode.resume is None:
        from spotmpi.spec.source import FILE_EXISTS, NO_FOLDER

        if mode.save.exists():
            yield Problem("--save", str(mode.save), FILE_EXISTS)
        elif not mode.save.absolute().parent.is_dir():
            yield Problem("--save", str(mode.save), NO_FOLDER)


def _arguments(words: Sequence[str]) -> str:
    """The value of `--set` that appends *words* to the arguments, or an example of it."""
    import json
    import shlex

    return shlex.quote(f"args+={json.dumps(words, ensure_ascii=False) if words else '--lr=0.1'}")


def _example(words: Sequence[str]) -> str:
    import shlex

    return f"spotmpi run -- {shlex.join(words)}"


def _show_result(state: RunState, detach: bool, as_json: bool) -> None:
    """Print the id of a detached run, else how it ended; on stderr how to go on where that helps."""
    from spotmpi.agent import record
    from spotmpi.api.view import result_text, stream_texts
    from spotmpi.cli.tables import continue_command
    from spotmpi.core.wording import echo

    if as_json:
        print(json.dumps(vars(state)))
    elif detach:
        print(state.id)
    else:
        print(result_text(state))
        for text in stream_texts(state):
            echo(f"stream: {text}")
        if state.state in (record.STOPPED, record.FAILED, record.LOST):
            echo(f"continue with: {continue_command(state)}")
        sys.stdout.flush()


def _exit_code(state: RunState) -> int:
    from spotmpi.agent import record
    from spotmpi.core.errors import EXIT_FAILURE, EXIT_INTERRUPTED

    if state.state == record.SUCCEEDED:
        return 0
    return EXIT_INTERRUPTED if state.state == record.STOPPED else EXIT_FAILURE


def report_cost(state: RunState, target: Target) -> None:
    """Print what a run of an environment has cost, and record it in its folder; nothing for any other run.

    That is done as it ends: later its environment or AWS's prices may be gone.
    """
    from spotmpi.agent.files import is_file
    from spotmpi.core.errors import SpotmpiError
    from spotmpi.core.names import RunPaths
    from spotmpi.core.wording import dollars, echo
    from spotmpi.runs import recorded_plan

    paths = RunPaths(Path(state.folder))
    if not state.over or not (is_file(paths.plan) and recorded_plan.read(paths).environment):
        return
    from spotmpi.environments.cost import run_cost

    try:
        cost = run_cost(state.id, target._replace(on=None))
    except SpotmpiError as error:
        echo(f"the cost of this run is not known yet, try `spotmpi cost {state.id}` later: {error}")
    else:
        echo(f"cost of its nodes: {dollars(cost.dollars)}")
