"""`spotmpi cost`: what a run or an environment has cost, and where the money went."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json, TargetOptions

if TYPE_CHECKING:
    from spotmpi.aws.billing import MachineBill, RunShare
    from spotmpi.backends.targets import Target
    from spotmpi.environments.cost import Cost

_KINDS = {"used": "used by runs", "boot": "booting", "idle": "idle"}
_EC2 = "Amazon Elastic Compute Cloud - Compute"
_RETENTION = 42 * 86400.0  # seconds for which AWS keeps scaling activities


def command(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A run's id or its beginning, or a stack (default: the environment of --on).", metavar="ID|STACK"
        ),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", help="For an environment: how far back, at most 42d.", metavar="AGE")
    ] = "7d",
    price: Annotated[
        float | None,
        typer.Option("--price", help="For a run: US dollars per node and hour, where AWS does not know the price."),
    ] = None,
    where: TargetOptions = TargetOptions(),
    as_json: Json = False,
) -> None:
    """Show what a run's nodes cost while it held them, or an environment's nodes by run, user and team."""
    from spotmpi.spec.job import read_duration

    cost = _cost(what, read_duration("--since", since), price, where.target)
    if as_json:
        _show_json(cost)
    else:
        _show(cost)


def _cost(what: str | None, back: float, price: float | None, target: Target) -> Cost:
    """The cost of the run that *what* names, else of that stack or the environment of --on, for *back* seconds."""
    import math
    import time

    from spotmpi.backends import targets
    from spotmpi.core.errors import InputError, SpotmpiError, UnknownRun, input_error
    from spotmpi.core.wording import duration
    from spotmpi.environments.cost import environment_cost, run_cost
    from spotmpi.runs import reader

    if price is not None and not 0 < price < math.inf:
        raise input_error("--price", price, "give US dollars per node and hour, more than 0")
    if what is not None:
        try:
            return run_cost(what, target, price)
        except UnknownRun:
            if any(paths.id.startswith(what) for paths in reader.every(target.folder)):
                raise  # the beginning of several ids
    if back > _RETENTION:
        raise input_error("--since", duration(back), "give at most 42d: AWS keeps scaling activities no longer")
    target = target._replace(on=what or target.on)
    try:
        environment = targets.environment_of(target)
    except InputError:  # there is such an environment
        raise
    except SpotmpiError as error:
        if what is None:
            raise
        runs = f"no run has the id {what} (`spotmpi list` lists the runs)"
        raise SpotmpiError(f"{runs}, and no environment of this name is found: {error}") from error
    if environment is None:
        raise input_error("ID|STACK", what, "give a run of `spotmpi list`, a stack, or an environment by --on")
    return environment_cost(environment, time.time() - back, target)


def _show_json(cost: Cost) -> None:
    """Print the cost as one JSON object, with sums by use, owner and team."""
    from dataclasses import asdict

    sums = {what: cost.bill.total(what) for what in ("boot", "used", "idle")}
    people = {what: cost.bill.by(what) for what in ("owner", "team")}
    print(json.dumps(asdict(cost) | {"dollars": cost.dollars, "by": {**sums, **people}}))


def _show(cost: Cost) -> None:
    """Print the sum, and tables of runs, users, teams and machines."""
    from spotmpi.cli.tables import moment, show_table
    from spotmpi.core.wording import dollars, echo

    bill = cost.bill
    print(f"{cost.title}: {dollars(cost.dollars)} from {moment(cost.since)} to {moment(cost.until)}")
    if cost.run is None:
        sums = [f"{word} {dollars(bill.total(what))}" for what, word in _KINDS.items()]
        print(f"nodes: {', '.join(sums)}")
    show_table(("RUN", "USER", "TEAM", "NODE-HOURS", "WAITING $", "TRAINING $"), [_run(each) for each in cost.shares])
    for what in ("owner", "team") if cost.run is None else ():
        show_table((what.upper(), "$"), [(name, dollars(each, sign="")) for name, each in bill.by(what).items()])
    show_table(
        ("MACHINE", "TYPE", "ZONE", "HOURS", "BOOT $", "USED $", "IDLE $", ""), [_machine(m) for m in bill.machines]
    )
    if cost.billed is not None:
        _compare(cost, cost.billed)
    for note in cost.notes:
        echo(note)


def _run(share: RunShare) -> tuple[str, ...]:
    from spotmpi.core.wording import dollars

    sums = (dollars(each, sign="") for each in (share.waiting, share.training))
    return (share.run, share.owner, share.team, f"{share.hours:.2f}", *sums)


def _machine(each: MachineBill) -> tuple[str, ...]:
    from spotmpi.core.wording import dollars

    kind = each.lifetime.kind
    return (
        each.lifetime.machine,
        kind[0],
        kind[1],
        f"{each.hours:.2f}",
        *(dollars(value, sign="") for value in (each.boot, each.used, each.idle)),
        "reclaimed" * each.lifetime.reclaimed,
    )


def _compare(cost: Cost, billed: dict[str, float]) -> None:
    """Print what AWS bills for the environment's tag, and how much its EC2 part differs from the machines above."""
    from spotmpi.cli.tables import show_table
    from spotmpi.core.wording import dollars

    show_table(("AWS BILLS FOR THE TAG", "$"), [(name, dollars(each, sign="")) for name, each in billed.items()])
    machines = sum(each for name, each in billed.items() if name.startswith(_EC2))
    if billed:
        difference = machines - cost.dollars
        print(f"EC2 on AWS's bill minus the nodes above: ${difference:+.2f} (system nodes, whole days)")
    else:
        print("AWS bills nothing for the tag: is the cost allocation tag spotmpi:environment active?")
