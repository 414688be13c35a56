"""The command line: a table of commands, each in a file that is imported when it is used, and the entry point.

That turns every error into one line on stderr and an exit code.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from spotmpi import __version__
from spotmpi.core import wording
from spotmpi.core.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_WRONG_INPUT, InputError, SpotmpiError, input_error
from spotmpi.core.wording import printable_lines

# What to do about a folder of another user's, a full disk, one that fails, a path that no file can have, and a stdout
# that is closed.
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "ask its owner for the right to it, or name another place"),
    errno.EROFS: "name a place that can be written",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EIO, errno.ESTALE), "check its disk or mount"),
    **dict.fromkeys((errno.ELOOP, errno.ENAMETOOLONG), "name another path"),
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.EEXIST), "move away what is there, or name another path"),
    errno.EBADF: "open stdout and stderr",
}
_LOADER = "pydantic.plugin._loader"


class Entry(NamedTuple):
    """A command in the list of ``spotmpi --help``: its module in this folder, and the first sentence of its help."""

    module: str
    help: str


COMMANDS = {
    "init": Entry("init", "Write a commented job spec to start from."),
    "run": Entry("run", "Run a job spec or a command, follow it and record it."),
    "bench": Entry(
        "bench",
        "Measure a job over node counts and variants, or a study, and report it; exit 1 if a trial is missing.",
    ),
    "report": Entry(
        "report",
        "Print a table of iterations/s and efficiency, and write an HTML page, a picture, Markdown, JSON and CSV.",
    ),
    "predict": Entry(
        "predict",
        "Predict iterations/s, time and money on other node counts from a sweep, with the error of the model.",
    ),
    "simulate": Entry(
        "simulate",
        "Simulate a job with a deadline on recorded spot capacity: expected cost, and that of other policies.",
    ),
    "list": Entry("list_runs", "List runs, oldest first."),
    "status": Entry("status", "Show a run's state, progress and attempts."),
    "logs": Entry("logs", "Print a run's output from its first line on."),
    "connect": Entry(
        "connect", "Print how Dask clients connect to a pool or stream, and keep the connection open until Ctrl-C."
    ),
    "resize": Entry("resize", "Change the number of workers of a pool, or of a run with a stream."),
    "stop": Entry("stop", "Stop a run after a checkpoint and wait until it has ended."),
    "drill": Entry("drill", "Inject a fault into a run and measure its recovery."),
    "pull": Entry("pull", "Copy a run's model, checkpoints and records to this machine."),
    "tensorboard": Entry("tensorboard", "Show a run's curves in TensorBoard, also while it runs."),
    "shell": Entry("shell", "Open a shell in the pod of a node or worker."),
    "up": Entry(
        "up", "Build an environment, push images and execute a small run; if interrupted, the same command continues."
    ),
    "upgrade": Entry(
        "upgrade",
        "Upgrade control plane, add-ons and idle nodes by one minor version, after a preview; repeat to continue.",
    ),
    "down": Entry("down", "Stop runs, destroy an environment, and list what still bills; exit 1 if anything does."),
    "zones": Entry(
        "zones",
        "Compare zones and types for spot nodes: price, placement score, quota, and why each ranks below the first.",
    ),
    "doctor": Entry(
        "doctor", "Check account, tools, quota, leftovers and a built environment; exit 1 if there is an error."
    ),
    "cost": Entry(
        "cost", "Show what a run's nodes cost while it held them, or an environment's nodes by run, user and team."
    ),
    "nodes": Entry(
        "nodes", "List a cluster's nodes: type, zone, placement group, CPU, memory, GPUs, driver, and the runs on them."
    ),
    "kubeconfig": Entry(
        "kubeconfig", "Add an environment's cluster to the kubeconfig, for kubectl and other programs."
    ),
    "scale": Entry(
        "scale",
        "Keep nodes of an environment ready between runs; AWS releases them automatically when the time is over.",
    ),
    "clean": Entry("clean", "List runs that ended long ago, and delete their records."),
    "image": Entry("image", "Build and push images."),
    "data": Entry(
        "data",
        "Push, list and pull data sets on the shared storage; list, show, compare and verify those in the store.",
    ),
    "why": Entry("why", "Show what a file was made from: run, data sets, raw files, code, image, price."),
    "reproduce": Entry(
        "reproduce", "Make a file again from the raw data and compare it bit for bit; exit 1 if it differs."
    ),
    "models": Entry("models", "Keep what runs have trained as versions of a model; list, compare, promote and pull."),
}


class CommandTable(TyperGroup):
    """The commands of `COMMANDS`; listing them imports none of their modules."""

    def get_params(self, ctx: Any) -> Any:
        """The options before the command."""
        return _plain_parameters(super().get_params, ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Every command's name, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            from spotmpi.cli.options import grouped

            leave_out_plugins()
            module = import_module(f"spotmpi.cli.{COMMANDS[cmd_name].module}")
            commands = getattr(module, "app", None) or _single(cmd_name, module)
            for each in commands.registered_commands:
                each.callback = each.callback and grouped(each.callback)
            command = _without_coercion(typer.main.get_command(commands))
            command.help = command.help or COMMANDS[cmd_name].help  # a group has none of its own
            self.add_command(command, cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names; an unknown one gets typer's error with the nearest names."""
        if args[0] not in COMMANDS:
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for ``--help``."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


class _NoPlugins(ModuleType):
    """In the place of pydantic's loader of plugins; nothing observes the models of this process."""

    @staticmethod
    def get_plugins() -> tuple[()]:
        """The plugins of pydantic."""
        return ()

    def __getattr__(self, name: str) -> Any:
        """What another version of pydantic imports besides, from its own loader."""
        if name.startswith("__"):  # the import system looks for a package's path
            raise AttributeError(name)
        sys.modules.pop(_LOADER, None)
        return getattr(import_module(_LOADER), name)


def leave_out_plugins() -> None:
    """Keep pydantic from searching all installed packages for plugins, which takes a tenth of the start of a run.

    Call it before anything imports pydantic; later it does nothing.
    """
    if "pydantic" not in sys.modules:
        sys.modules.setdefault(_LOADER, _NoPlugins(_LOADER))


def _without_coercion(command: Any) -> Any:
    """*command*, whose parameters skip typer's coercion where it changes nothing.

    Typer validates each parameter of a command with a type adapter of pydantic, whether it was given or not: importing
    and building those takes longer than most commands.
    """
    vars(command)["get_params"] = partial(_plain_parameters, command.get_params)
    for each in getattr(command, "commands", {}).values():
        _without_coercion(each)
    return command


def _plain_parameters(get_params: Any, ctx: Any) -> Any:
    """The parameters that typer's own *get_params* returns, among them its --help."""
    parameters = get_params(ctx)
    for parameter in parameters:
        if "process_value" not in vars(parameter):
            vars(parameter)["process_value"] = partial(_process_value, parameter, parameter.process_value)
    return parameters


def _process_value(parameter: Any, process: Any, ctx: Any, value: Any) -> Any:
    """The value of a parameter as *process*, typer's own method, returns it."""
    if value is None and (ctx.resilient_parsing or not parameter.required):  # the first is that of completion
        missing = () if parameter.multiple or parameter.nargs == -1 else None
        return missing if parameter.callback is None else parameter.callback(ctx, parameter, missing)
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    is_option = parameter.param_type_name == "option"
    if is_option and _name(parameter) != "--grep" and (value == "" or (parameter.multiple and "" in value)):
        raise input_error(
            _name(parameter), "", "is empty, as an unset variable of a shell is: give a value, or omit it"
        )
    if parameter.callback is None:
        if parameter.multiple and annotation == list[str] and value:
            return list(value)
        if annotation is str and isinstance(value, str):
            return value
        if annotation is Path and isinstance(value, str):
            return _path(parameter, value)
    try:
        return process(ctx, value)
    except typer.BadParameter as error:  # in words of pydantic, without the value
        if value is None:  # it is missing
            raise
        kinds = (annotation, *get_args(annotation))
        remedy = "write a whole number" if int in kinds else "write a number" if float in kinds else error.message
        raise input_error(_name(parameter), value, remedy) from error


def _path(parameter: Any, text: str) -> Path:
    """The path that *text* names."""
    from spotmpi.core.names import expand

    if not text:
        raise input_error(_name(parameter), text, "is empty: give a path")
    if parameter.metavar == "FILE" and text.endswith("/"):
        raise input_error(_name(parameter), text, "is a folder: name a file")
    return expand(text)


def _name(parameter: Any) -> str:
    """A parameter as its command's help has it."""
    return str(max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.metavar)


def _single(name: str, module: Any) -> typer.Typer:
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(name, cls=getattr(module, "COMMAND_CLASS", None))(module.command)
    return single


app = typer.Typer(
    name="spotmpi",
    cls=CommandTable,
    help="Cheap distributed training, from a laptop to hundreds of spot GPUs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"spotmpi {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback if something fails."),
) -> None:
    """Options before the command apply to every command; --debug is read in `main`."""
    context.with_resource(wording.of_commands())


def main() -> None:
    """Run the command line and exit with its code; ``--debug`` before the command shows tracebacks."""
    _open_standard_streams()
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # of the caller; else each exit code is 0 in Python
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal lacks are replaced, the rest is shown
            stream.reconfigure(errors="replace")
    try:
        code = app(prog_name="spotmpi", standalone_mode=False)
        sys.stdout.flush()  # else a full disk or a closed pipe would show only when the interpreter ends, with code 120
    except BaseException as error:
        before_command = takewhile(lambda word: word.startswith("-"), sys.argv[1:])
        if "--debug" in before_command and not isinstance(error, SystemExit):
            code = _report_traceback(error)
        else:
            code = _report(error)
    _discard_unwritten()
    sys.exit(code if isinstance(code, int) else 0)


def _discard_unwritten() -> None:
    """Write what stdout and stderr still hold, and discard what they cannot take, which is already reported."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _open_standard_streams() -> None:
    """Open what the caller has closed of stdin, stdout and stderr; stdout so that a write fails, as it does in GNU's.

    Else the next files get their numbers, such as the lock of a run, which its agent would not inherit then.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR if descriptor == 2 else os.O_RDONLY)  # which gets the first number
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _report(error: BaseException) -> int:
    """Print *error* on stderr, a line for each problem; its exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILURE
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader of our output is gone, as with `head`
        return EXIT_FAILURE
    is_help = type(error).__name__ == "NoArgsIsHelpError"  # a command group alone; typer does not export the class
    texts = [str(error)] if is_help else [f"spotmpi: {printable_lines(line)}" for line in _lines(error)]
    with contextlib.suppress(OSError):  # stderr takes nothing either
        print(*texts, sep="\n", file=sys.stderr)
    if is_help:
        return EXIT_WRONG_INPUT
    if isinstance(error, SpotmpiError):
        return error.exit_code
    return EXIT_WRONG_INPUT if isinstance(error, TyperException) else EXIT_FAILURE


def _report_traceback(error: BaseException) -> int:
    """Print *error* as the interpreter would, which exits with code 120 where stderr takes nothing."""
    import traceback  # a start without --debug needs none

    with contextlib.suppress(OSError):
        traceback.print_exception(error)
    return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_FAILURE


def _lines(error: BaseException) -> list[str]:
    """What is printed of *error*: what happened, the value and the remedy, a line for each problem."""
    from spotmpi.agent.files import key_log_text

    if isinstance(error, InputError | FileNotFoundError) and _current_folder_is_gone():
        return ["the current folder does not exist any more; change to another one"]
    if isinstance(error, InputError):
        return [str(problem) for problem in error.problems]
    if isinstance(error, TyperException):
        message, context = error.format_message(), getattr(error, "ctx", None)
        if context is None or "Did you mean" in message or "Possible options" in message:
            return [message]
        return [f"{message.rstrip('.')}; `{context.command_path} --help` shows what it takes"]
    if isinstance(error, SpotmpiError):
        return [str(error)]
    if isinstance(error, OSError) and (text := key_log_text(error)):
        return [text]
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        what = f"cannot access {error.filename}: {error.strerror}" if error.filename else error.strerror
        return [f"{what}; {_REMEDIES[error.errno]}"]
    return [f"{type(error).__name__}: {error} (unexpected; `spotmpi --debug COMMAND` shows a traceback)"]


def _current_folder_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
