"""What a run or an environment has cost: `spotmpi cost` as functions."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from spotmpi.aws import scaling
from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.billing import Bill, Curve, Kind, Life, Share, Use, make_bill
from spotmpi.aws.errors import CallFailed
from spotmpi.aws.prices import on_demand_price, spot_curve
from spotmpi.backends import targets
from spotmpi.backends.targets import Target, TargetLike
from spotmpi.core.environment import Environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.environments import cost_explorer, node_usage
from spotmpi.environments.stack_file import stack_of
from spotmpi.runs import reader
from spotmpi.spec import job

_LISTED = 24 * 3600.0  # seconds for which a cluster keeps a run that has ended
FLAT = "given"  # the market of a machine whose price somebody said


@dataclass(frozen=True)
class Cost:
    """A bill, what it is of (a *run*, else an environment), its time in Unix seconds, and what to know about it.

    `billed` is what Cost Explorer has for the environment's tag by service, None where it wasn't or couldn't be asked.
    """

    title: str
    since: float
    until: float
    bill: Bill
    run: str | None = None
    billed: dict[str, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def shares(self) -> tuple[Share, ...]:
        """The runs' parts of it, or this run's."""
        return tuple(share for share in self.bill.runs if self.run in (None, share.run))

    @property
    def dollars(self) -> float:
        """What it cost: all machines of an environment, or a run's part of those that it held."""
        return self.bill.dollars if self.run is None else sum(share.dollars for share in self.shares)


def run_cost(
    run: str, on: TargetLike = None, price: float | None = None, aws: Aws | None = None, now: float | None = None
) -> Cost:
    """What a run's machines cost while they worked for it, by its own record.

    *price*, US dollars per node and hour, holds instead of what the spec or AWS says. What AWS's prices came to for a
    run that has ended is kept in its folder, and nobody is asked again. InputError where no price is known.
    """
    target, now = targets.target_of(on), now or time.time()
    paths = reader.find(run, target.folder)
    price = price or job.load(paths.spec).price
    kept = None if price else _kept(paths)
    if kept is not None:
        return kept
    made = _run_cost(paths, target, price, aws, now)
    if not price and reader.state(paths).over:
        _keep(paths, made)
    return made


def _run_cost(paths: RunPaths, target: Target, price: float | None, aws: Aws | None, now: float) -> Cost:
    own = node_usage.uses_of(paths)
    environment = None if price else _environment(target, paths)
    kinds = {use.machine: _kind(use.machine, paths, environment, price) for use in own}
    held = [
        Life(name, None, "", kinds[name], *_span(own, name, now)) for name in dict.fromkeys(use.machine for use in own)
    ]
    first = min((life.began for life in held), default=now)
    curves = {kind: Curve(((0.0, price),)) for kind in set(kinds.values())} if price else {}
    if environment:
        curves = _curves(aws or open_account(environment.region), environment, set(kinds.values()), first)
    bill = make_bill(held, node_usage.every_use(target.folder), curves, first, now)
    state = reader.state(paths)
    notes = () if own else ("no attempt has started yet",)
    return Cost(f"{paths.id} ({state.state})", first, state.ended or now, bill, paths.id, notes=notes)


def _keep(paths: RunPaths, made: Cost) -> None:
    aside = paths.bill.with_suffix(".new")
    # A record that can't be written to costs only that it is asked for again.
    with contextlib.suppress(OSError):
        aside.write_text(json.dumps({**asdict(made), "events": paths.events.stat().st_size}))
        aside.replace(paths.bill)


def _kept(paths: RunPaths) -> Cost | None:
    """What was kept of the run, unless it has been resumed since."""
    from pydantic import TypeAdapter, ValidationError

    try:
        values = json.loads(paths.bill.read_text())
        if values.pop("events") != paths.events.stat().st_size:
            return None
        return TypeAdapter(Cost).validate_python(values)
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None


def environment_cost(
    environment: Environment, since: float, target: Target, aws: Aws | None = None, now: float | None = None
) -> Cost:
    """What an environment's GPU or work nodes cost since *since* (Unix seconds), whoever used them.

    The cluster is asked for everybody's runs first, so that only nodes that no run held count as idle.
    """
    aws, now = aws or open_account(environment.region), now or time.time()
    found = scaling.lives(aws, environment, scaling.scaling_groups(aws, environment))
    there = [life for life in found if (life.ended or now) > since]
    curves = _curves(aws, environment, {life.kind for life in there}, since)
    unseen = _look_at_runs(target)
    bill = make_bill(there, node_usage.every_use(target.folder), curves, since, now)
    notes = ["nodes only: control plane, system nodes, disks, storage and traffic come on top", *unseen]
    if since < now - _LISTED:
        notes.append(
            "runs of others that ended more than a day ago, and were never listed here until then, count as idle"
        )
    billed: dict[str, float] | None = None
    try:
        billed = cost_explorer.billed(aws, environment.name, since, now)
    except CallFailed as error:
        notes.append(f"no bill to compare with: {error}")
    return Cost(environment.name, since, now, bill, None, billed, tuple(notes))


def _look_at_runs(target: Target) -> list[str]:
    """Bring the records of everybody's runs that the place has here, or say why not."""
    try:
        found = targets.backend(target).list()
    except SpotmpiError as error:
        return [f"runs that this machine has no record of count as idle, since the cluster can't be asked: {error}"]
    return [f"nodes of {state.id} count as idle: {state.reason}" for state in found if state.state == reader.UNKNOWN]


def _environment(target: Target, paths: RunPaths) -> Environment:
    plan = reader.plan(paths) if paths.plan.is_file() else {}
    if target.on is None and plan.get("there"):
        return Environment.model_validate(plan["there"])  # as it was then; it may be gone by now
    named = target.on or (plan.get("environment") if plan.get("backend") != targets.LOCAL else None)
    remedy = "what a node costs is not known: give --price, or name the run's environment by --on"
    if named is None:
        raise input_error("price", None, remedy)
    found = targets.environment_of(Target(stack_of(str(named)), target.runs_folder))
    if found is None:
        raise input_error("price", None, remedy)
    return found


def _kind(machine: str, paths: RunPaths, environment: Environment | None, price: float | None) -> Kind:
    if environment is None:
        return ("", "", FLAT)
    told = node_usage.machine_types(paths).get(machine)
    groups = [group for group in environment.node_groups if told in (None, group.type)]
    if len({(group.type, group.market) for group in groups}) != 1:
        has = ", ".join(group.type for group in environment.node_groups)
        raise input_error(
            "price", None, f"{machine} is of type {told or 'unknown'}, {environment.name} has {has}: give --price"
        )
    return (groups[0].type, environment.zone, groups[0].market)


def _span(own: Sequence[Use], machine: str, now: float) -> tuple[float, float, float]:
    """Began, ready and ended of a machine as far as the run's record goes."""
    held = [use for use in own if use.machine == machine]
    began = min(use.began for use in held)
    return began, began, max(use.ended or now for use in held)


def _curves(aws: Aws, environment: Environment, kinds: Iterable[Kind], since: float) -> dict[Kind, Curve]:
    return {kind: _curve(aws, environment.region, kind, since) for kind in sorted(kinds)}


def _curve(aws: Aws, region: str, kind: Kind, since: float) -> Curve:
    machine, zone, market = kind
    if market == "on-demand":
        price = on_demand_price(aws, region, machine)
        curve = None if price is None else Curve(((0.0, price),))
    else:
        curve = spot_curve(aws, region, machine, zone, datetime.fromtimestamp(since, UTC))
    if curve is None:
        raise SpotmpiError(f"AWS has no {market} price of {machine} in {zone}: give --price for a run")
    return curve
