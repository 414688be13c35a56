"""`spotmpi bench`: measure a job over node counts and variants."""

from pathlib import Path
from typing import Annotated

import typer

from spotmpi.cli.options import Env, Json, On, RunsFolder, Set, Slots, overrides, target


def command(
    spec: Annotated[Path, typer.Argument(help="A job spec or a study, a TOML file.")],
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", "-n", help="Node counts of a job spec, such as 1,2,4 (default 1).", metavar="N,N,..."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Trials per combination (default: the study's, else 3).")
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            help="A changed spec to measure beside the given one; args+=TEXT adds arguments. Repeatable.",
            metavar="NAME:KEY=VALUE,...",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Decides the order of trials (default 1).")] = None,
    retries: Annotated[int | None, typer.Option("--retries", help="New tries of a failed trial (default 2).")] = None,
    new: Annotated[bool, typer.Option("--new", help="Start over instead of continuing a broken-off sweep.")] = False,
    slots: Slots = None,
    assignments: Set = None,
    env: Env = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trials in order and start nothing.")] = False,
    on: On = None,
    runs: RunsFolder = None,
    json: Json = False,
) -> None:
    """Measure a job over node counts and variants, or a study, report it, and exit 1 if any trial is missing.

    The same command goes on with a sweep that was broken off or reached a limit.
    """
    from spotmpi.cli import studies

    given = {"variants": variant, "repeats": repeats, "seed": seed, "retries": retries}
    wanted = studies.Wanted(spec, nodes, given, tuple(overrides(None, slots, assignments, env)), target(on, runs), new)
    if dry_run:
        studies.show_trials(wanted, json)
    else:
        studies.bench(wanted, json)
