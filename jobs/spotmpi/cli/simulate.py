"""`spotmpi simulate`: what a job with a deadline costs on recorded spot capacity."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotmpi.cli.options import Json, Set
from spotmpi.core.wording import counted, dollars

if TYPE_CHECKING:
    from spotmpi.api.simulation import Simulation

_HEADER = ("POLICY", "$", "/ OPTIMUM", "LATE", "STARTS", "ON-DEMAND H", "IDLE H")


@dataclass(frozen=True)
class TraceOptions:
    """Options that say which windows of traces are simulated, and what nodes cost where traces have no prices."""

    windows: Annotated[int, typer.Option("--windows", help="Number of windows of the traces to simulate.")] = 400
    seed: Annotated[int, typer.Option("--seed", help="Determines the windows.")] = 0
    price: Annotated[
        float | None, typer.Option("--price", help="Dollars per spot node and hour, for traces without prices.")
    ] = None
    on_demand_price: Annotated[
        float | None, typer.Option("--on-demand-price", help="Dollars per on-demand node and hour, likewise.")
    ] = None


def command(
    spec: Annotated[Path, typer.Argument(help="Job spec with a table [capacity].", metavar="SPEC")],
    traces: Annotated[
        Path,
        typer.Option(
            "--traces", help="Folder of traces: NAME.json or NAME/full.json for each zone and type.", metavar="FOLDER"
        ),
    ],
    options: TraceOptions = TraceOptions(),
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Simulate a job with a deadline on recorded spot capacity: expected cost, and that of other policies."""
    from datetime import UTC, datetime

    from spotmpi.api.simulation import Prices, simulate_job
    from spotmpi.core.wording import echo
    from spotmpi.spec.source import load_spec

    prices = Prices(options.price, options.on_demand_price)
    job = load_spec(spec, settings or ())
    simulation = simulate_job(job, traces, options.windows, prices, datetime.now(UTC), options.seed, echo)
    if job.kubernetes.node_groups:
        no_groups = "is not simulated, and Capacity Blocks are not: capacity.zones and instance_types choose traces"
        typer.echo(f"kubernetes.node_groups {no_groups}", err=True)
    if as_json:
        print(json.dumps(asdict(simulation)))
    else:
        _print(simulation)


def _print(simulation: Simulation) -> None:
    """Print what to expect, and a table of the policies."""
    from spotmpi.capacity.job import chance, days, hours
    from spotmpi.cli.tables import show_table
    from spotmpi.report.figures import MISSING

    job, expected = simulation.job, simulation.expectation
    nodes = " or ".join(", ".join(map(str, each)) for each in (job.sizes[:-1], job.sizes[-1:]) if each)
    print(
        f"{hours(job.work)} of work on {nodes} node{'s' * (job.sizes != (1,))}, {hours(job.deadline)} to the deadline, "
        f"{hours(job.overhead)} for a start; {', '.join(simulation.pools)}"
    )
    print(
        f"expected: {dollars(expected.dollars)} (90 % of windows: {dollars(expected.low)} to "
        f"{dollars(expected.high)}), {chance(expected.in_time)}, on-demand {dollars(expected.on_demand)}\n"
    )
    rows = [
        (
            each.policy,
            dollars(each.dollars, sign=""),
            MISSING if each.ratio is None else f"{each.ratio:.3f}",
            str(each.late),
            f"{each.starts:.1f}",
            f"{each.on_demand_hours:.1f}",
            f"{each.idle_hours:.1f}",
        )
        for each in simulation.results
    ]
    show_table(_HEADER, rows, right=range(1, len(_HEADER)))
    print(f"means of {counted(simulation.windows, 'window')} in {days(86400 * simulation.days)}")
    if job.budget is not None and simulation.results[0].late:
        spent = f"no nodes are started that capacity.budget, {dollars(job.budget)}, does not pay for"
        print(f"{spent}; a higher budget shows whether windows are late because of that")
