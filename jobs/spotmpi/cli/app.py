"""The command line: one small file per command, found by its name."""

from __future__ import annotations

import typer

from spotmpi import __version__
from spotmpi.cli import (
    bench,
    clean,
    cost,
    data,
    doctor,
    down,
    drill,
    image,
    init,
    list_runs,
    logs,
    nodes,
    predict,
    pull,
    report,
    run,
    scale,
    shell,
    status,
    stop,
    tensorboard,
    up,
    upgrade,
    zones,
)

app = typer.Typer(
    name="spotmpi",
    help="Cheap distributed training, from a laptop to hundreds of spot GPUs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("init")(init.command)
app.command("run", context_settings={"allow_interspersed_args": True})(run.command)
app.command("bench")(bench.command)
app.command("report")(report.command)
app.command("predict")(predict.command)
app.command("list")(list_runs.command)
app.command("status")(status.command)
app.command("logs")(logs.command)
app.command("stop")(stop.command)
app.command("drill")(drill.command)
app.command("pull")(pull.command)
app.command("tensorboard")(tensorboard.command)
app.command("shell")(shell.command)
app.add_typer(image.app, name="image")
app.command("up")(up.command)
app.command("upgrade")(upgrade.command)
app.command("down")(down.command)
app.command("zones")(zones.command)
app.command("doctor")(doctor.command)
app.command("cost")(cost.command)
app.command("nodes")(nodes.command)
app.command("scale")(scale.command)
app.add_typer(data.app, name="data")
app.command("clean")(clean.command)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"spotmpi {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback where something fails."),
) -> None:
    """Options before the command hold for every command; --debug is read in `spotmpi.cli.main`."""
