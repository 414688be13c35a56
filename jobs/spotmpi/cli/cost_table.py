"""A cost on stdout: the total, and where it went."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from datetime import datetime

from spotmpi.aws.billing import MachineBill, Share
from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.cli.tables import show_table
from spotmpi.cli.view import say
from spotmpi.core.errors import UnknownRun, input_error
from spotmpi.environments import cost
from spotmpi.environments.cost import Cost
from spotmpi.runs import reader

_KINDS = {"used": "used by runs", "boot": "booting", "idle": "idle"}
_EC2 = "Amazon Elastic Compute Cloud - Compute"
_KEPT = 42 * 86400.0  # AWS keeps scaling activities for six weeks


def find(what: str | None, back: float, price: float | None, target: Target) -> Cost:
    """The cost of the run that *what* names, or else of that stack or the place of --on, for *back* seconds."""
    if price is not None and not 0 < price < math.inf:
        raise input_error("--price", price, "give US dollars per node and hour, more than 0")
    if what is not None:
        try:
            return cost.run_cost(what, target, price)
        except UnknownRun:
            if any(paths.id.startswith(what) for paths in reader.every(target.folder)):
                raise  # several begin so
    if back > _KEPT:
        raise input_error("--since", f"{back / 86400:g}d", "AWS tells of the last 42d at most")
    place = Target(what or target.on, target.runs_folder)
    environment = targets.environment_of(place)
    if environment is None:
        raise input_error("ID|STACK", what, "name a run of `spotmpi list`, a stack, or an environment by --on")
    return cost.environment_cost(environment, time.time() - back, place)


def show(found: Cost, as_json: bool) -> None:
    """Print the sum, what it bought, runs, people and machines, or one JSON object."""
    bill = found.bill
    if as_json:
        sums = {what: bill.total(what) for what in ("boot", "used", "idle")}
        people = {what: bill.by(what) for what in ("owner", "team")}
        print(json.dumps(asdict(found) | {"dollars": found.dollars, "by": {**sums, **people}}))
        return
    print(f"{found.title}: ${found.dollars:.2f} from {_moment(found.since)} to {_moment(found.until)}")
    if found.run is None:
        spent = [f"{word} ${bill.total(what):.2f}" for what, word in _KINDS.items()]
        print(f"nodes: {', '.join(spent)}")
    show_table(("RUN", "USER", "TEAM", "NODE-HOURS", "WAITING $", "TRAINING $"), [_run(each) for each in found.shares])
    for what in ("owner", "team") if found.run is None else ():
        show_table((what.upper(), "$"), [(name, f"{spent:.2f}") for name, spent in bill.by(what).items()])
    show_table(
        ("MACHINE", "TYPE", "ZONE", "HOURS", "BOOT $", "USED $", "IDLE $", ""), [_machine(m) for m in bill.machines]
    )
    if found.billed is not None:
        _compare(found, found.billed)
    for note in found.notes:
        say(note)


def _run(share: Share) -> tuple[str, ...]:
    spent = (share.hours, share.waiting, share.training)
    return (share.run, share.owner, share.team, *(f"{number:.2f}" for number in spent))


def _machine(each: MachineBill) -> tuple[str, ...]:
    kind = each.life.kind
    spent = (each.hours, each.boot, each.used, each.idle)
    return (
        each.life.machine,
        kind[0],
        kind[1],
        *(f"{number:.2f}" for number in spent),
        "reclaimed" * each.life.reclaimed,
    )


def _compare(found: Cost, billed: dict[str, float]) -> None:
    """What AWS bills for the environment's tag, and how far the machines above are from its EC2 part."""
    show_table(("AWS BILLS FOR THE TAG", "$"), [(name, f"{spent:.2f}") for name, spent in billed.items()])
    machines = sum(spent for name, spent in billed.items() if name.startswith(_EC2))
    if billed:
        print(f"EC2 by AWS's bill less the nodes above: ${machines - found.dollars:+.2f} (system nodes, whole days)")
    else:
        print("AWS's bill has nothing for the tag: is the cost allocation tag spotmpi:environment active?")


def _moment(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment):%Y-%m-%d %H:%M}"
