"""The cost of a run or an environment: `spotmpi cost` as functions."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from spotmpi.agent import record
from spotmpi.agent.attempt_history import read_attempts
from spotmpi.agent.files import is_file, write_atomically
from spotmpi.agent.plan import POSTPROCESS, WORKER
from spotmpi.aws import scaling
from spotmpi.aws.account import Aws, open_account
from spotmpi.aws.billing import Bill, Kind, Lifetime, PriceCurve, RunShare, make_bill
from spotmpi.aws.eks import require_account
from spotmpi.aws.errors import CallError
from spotmpi.aws.prices import node_extras, on_demand_price, spot_curve
from spotmpi.aws.scaling import RemovedGroup, ScalingGroup
from spotmpi.backends import targets
from spotmpi.backends.targets import Target, TargetLike
from spotmpi.core import names, wording
from spotmpi.core.environment import Environment, NodeGroup
from spotmpi.core.environment import recorded as recorded_environment
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.price import paid_nodes
from spotmpi.environments.resource_kinds import TAG
from spotmpi.environments.stack_file import stack_of
from spotmpi.runs import node_usage, reader, recorded_plan
from spotmpi.spec.source import load_spec

_TTL = 24 * 3600.0  # seconds for which a cluster keeps a run that has ended
_NODE = ("", "", "given")  # the kind of machines with a price from the user
_WORKERS = {WORKER: ("", "", "given for workers"), POSTPROCESS: ("", "", "given for postprocess workers")}  # of workers
_COST_EXPLORER_REGION = "us-east-1"  # its endpoint for all regions


@dataclass(frozen=True)
class Cost:
    """The bill of a *run*, or of an environment where that is None, from *since* to *until* in Unix seconds.

    `billed` is what Cost Explorer reports for the environment's tag by service; None for a run, or where it refuses.
    """

    title: str
    since: float
    until: float
    bill: Bill
    run: str | None = None
    billed: dict[str, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def shares(self) -> tuple[RunShare, ...]:
        """The shares of all runs, or of this run only."""
        return tuple(share for share in self.bill.runs if self.run in (None, share.run))

    @property
    def dollars(self) -> float:
        """The total: all machines of an environment, or a run's share of the machines that it held."""
        return self.bill.dollars if self.run is None else sum(share.dollars for share in self.shares)


def run_cost(
    run: str, on: TargetLike = None, price: float | None = None, aws: Aws | None = None, now: float | None = None
) -> Cost:
    """What a run's machines cost while it held them, according to its record.

    *price*, in US dollars per node and hour, overrides the spec and AWS. The cost of a run that has ended is saved in
    its folder, and AWS is not queried again. InputError if no price is known.
    """
    target, now = targets.target_of(on), now or time.time()
    paths = reader.find(run, target.folder)
    given = {_NODE: _constant(price)} if price else _spec_prices(paths)
    saved = None if given else _load(paths)
    if saved is not None:
        return saved
    cost = _run_cost(paths, target, given, aws, now)
    if not given and not cost.notes and reader.state(paths).over:  # one with a note may be complete another time
        # Where the folder is read-only, the next call queries AWS again.
        with contextlib.suppress(OSError):
            write_atomically(paths.bill, json.dumps({**asdict(cost), "events": paths.events.stat().st_size}))
    return cost


def _constant(price: float) -> PriceCurve:
    return PriceCurve(((0.0, price),))


def _spec_prices(paths: RunPaths) -> dict[Kind, PriceCurve]:
    """The prices in the run's spec, by kind of machine; those of earlier attempts where a resume has changed it."""
    spec = load_spec(paths.spec)
    if spec.price is None:
        return {}
    workers = spec.stream.roles if spec.stream else ()
    of_workers = {_WORKERS[each.role]: _constant(each.price) for each in workers if each.price is not None}
    has_workers = spec.stream or spec.pool  # which are in the rates of attempts, too
    recorded = () if has_workers else tuple(sorted(_recorded_prices(paths)))
    return {_NODE: PriceCurve(recorded) if recorded else _constant(spec.price), **of_workers}


def _recorded_prices(paths: RunPaths) -> Iterator[tuple[float, float]]:
    """When each attempt got its nodes, and the price of one that is in its rate, where it has one."""
    is_machine = recorded_plan.read(paths).backend == names.LOCAL  # which all nodes are together
    for attempt in read_attempts(str(paths.folder), False):
        world = attempt.get("world")
        if world is not None and world["rate"] is not None:
            nodes = paid_nodes(len(world.get("pods") or world["members"]) + world.get("standby", 0), is_machine)
            yield attempt.get("allocated", attempt["started"]), world["rate"] / nodes


def _run_cost(paths: RunPaths, target: Target, given: dict[Kind, PriceCurve], aws: Aws | None, now: float) -> Cost:
    uses = node_usage.machine_uses(paths)
    environment = None if given else _environment(target, paths)
    kinds = {use.machine: _kind(use.machine, paths, environment) for use in uses}
    if len(given) > 1:
        workers = {machine: _WORKERS.get(role) for machine, role in node_usage.worker_machines(paths).items()}
        kinds |= {machine: kind for machine, kind in workers.items() if kind in given}
    free, notes = set[str](), list[str]()
    if environment:
        aws = aws or open_account(environment.region)
        free, notes = _free_machines(aws, environment, now)
    machines = [
        Lifetime(
            name,
            None,
            "",
            kinds[name],
            *node_usage.span(uses, name, now),
            reclaimed=name in free,
            extras=_extras(environment, kinds[name]),
        )
        for name in dict.fromkeys(use.machine for use in uses)
    ]
    first = min((lifetime.began for lifetime in machines), default=now)
    curves = _curves(aws, environment, set(kinds.values()), first) if environment and aws else given
    bill = make_bill(machines, node_usage.all_uses(target.folder), curves, first, now)
    state = reader.state(paths)
    notes += [] if uses else ["no attempt has started yet"]
    return Cost(f"{paths.id} ({state.state})", first, state.ended or now, bill, paths.id, notes=tuple(notes))


def _free_machines(aws: Aws, environment: Environment, now: float) -> tuple[set[str], list[str]]:
    """The machines that AWS charges nothing for, by instance and by node, and a note where they are unknown.

    The record of a run does not tell how its machines ended; the node groups' history does, as long as they exist.
    """
    try:
        require_account(aws, environment.cluster_arn)
        known = scaling.lifetimes(aws, environment, scaling.scaling_groups(aws, environment))
    except SpotmpiError as error:
        return set(), [f"machines that EC2 took back in their first hour have their full price: {error}"]
    free = [each for each in known if each.is_free(now)]
    return {name for each in free for name in (each.machine, each.name) if name}, []


def _extras(environment: Environment | None, kind: Kind) -> float:
    """What a node of that kind costs per hour besides its machine; nothing where the user gave the price."""
    groups = environment.node_groups if environment else ()
    return max((node_extras(each) for each in groups if (each.type, each.market) == (kind[0], kind[2])), default=0.0)


def _load(paths: RunPaths) -> Cost | None:
    """The saved cost of the run, unless it has been resumed since."""
    from pydantic import TypeAdapter, ValidationError

    try:
        values = recorded_plan.json_object(paths.bill)
        if values.pop("events") != paths.events.stat().st_size:
            return None
        return TypeAdapter(Cost).validate_python(values)
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None


def environment_cost(
    environment: Environment, since: float, target: Target, aws: Aws | None = None, now: float | None = None
) -> Cost:
    """What an environment's GPU or work nodes cost since *since* (Unix seconds), for all users.

    The runs of all users are fetched from the cluster first, so that only nodes that no run held count as idle.
    """
    aws, now = aws or open_account(environment.region), now or time.time()
    require_account(aws, environment.cluster_arn)
    missing = _fetch_runs(target)
    groups = scaling.scaling_groups(aws, environment)
    removed, uncounted = _removed_machines(aws, environment, groups, target, since)
    lifetimes = [*scaling.lifetimes(aws, environment, groups), *removed]
    machines = [lifetime for lifetime in lifetimes if (lifetime.ended or now) > since]
    machines.sort(key=lambda each: (each.began, each.machine))
    curves = _curves(aws, environment, {lifetime.kind for lifetime in machines}, since)
    bill = make_bill(machines, node_usage.all_uses(target.folder), curves, since, now)
    notes = [
        "nodes with their disks and addresses: control plane, system nodes, storage and traffic are not included",
        *missing,
        *uncounted,
    ]
    if newer := sorted({each.group for each in groups if each.group} - {each.name for each in environment.node_groups}):
        remedy = "write their file again with `pulumi stack output --json`"
        notes.append(f"not included: {', '.join(newer)}, which these outputs of the environment do not have; {remedy}")
    if since < now - _TTL:
        notes.append(
            "nodes of other users' runs that ended more than a day ago, and were not listed here by then, count as idle"
        )
    billed: dict[str, float] | None = None
    try:
        billed = _billed(aws, environment, since, now)
    except CallError as error:
        notes.append(f"no AWS bill to compare with: {error}")
    return Cost(environment.name, since, now, bill, None, billed, tuple(notes))


def _removed_machines(
    aws: Aws, environment: Environment, groups: Sequence[ScalingGroup], target: Target, since: float
) -> tuple[list[Lifetime], list[str]]:
    """The machines of node groups that were removed or replaced, and a note for those whose type is not known here.

    AWS tells no type of them. The records of runs do: each has the environment as it was then, and the type of each
    machine on which the run was. Where none was on a machine of the group, a run that was submitted before its end
    counts: the time is the cluster's, as EKS stamped it, so it compares with that of AWS's activities.
    """
    try:
        removed = scaling.removed_groups(aws, environment, groups)
    except CallError as error:
        return [], [f"machines of node groups that were removed are not included: {error}"]
    removed = tuple(each for each in removed if each.history[0]["StartTime"].timestamp() > since and each.machines)
    records = sorted(_recorded_groups(environment, target), key=lambda each: each[0]) if removed else []
    kinds = _recorded_kinds(target) if removed else {}
    machines, unknown = list[Lifetime](), dict[str, int]()
    for each in removed:
        group = _group_of(each, records, {kinds[id] for id in each.machines if id in kinds})
        if group is not None:
            machines += scaling.group_lifetimes(group, each.history)
        else:
            unknown[each.group] = unknown.get(each.group, 0) + len(each.machines)
    if not unknown:
        return machines, []
    counts = ", ".join(f"{group} ({number})" for group, number in unknown.items())
    unless = "where no run on this machine has recorded their type"
    return machines, [f"machines of node groups that were removed are not included {unless}: {counts}"]


def _group_of(
    removed: RemovedGroup, records: Sequence[tuple[float, NodeGroup]], kinds: set[tuple[str, str | None]]
) -> NodeGroup | None:
    """The newest of the recorded groups that *removed* may be, with machines of these *kinds*; None without any."""
    known = [(time, group) for time, group in records if removed.is_of(group.name)]
    if kinds:
        known = [each for each in known if kinds & {(each[1].type, each[1].market), (each[1].type, None)}]
    else:
        end = removed.history[0]["StartTime"].timestamp()  # what was recorded afterwards is another of that name
        known = [each for each in known if each[0] < end]
    known = [each for each in known if each[1].name == removed.group] or known  # a name may end with a number itself
    return known[-1][1] if known else None


def _recorded_groups(environment: Environment, target: Target) -> Iterator[tuple[float, NodeGroup]]:
    """The node groups that the environment had when each recorded run was submitted or resumed last, and when it was.

    The plan of a run is that of its last submission.
    """
    for paths in reader.every(target.folder):
        with contextlib.suppress(SpotmpiError, OSError, ValueError, KeyError):
            recorded = recorded_plan.read(paths).environment
            times = [each["t"] for each in reader.lines(paths.events) if each["event"] == record.SUBMITTED]
            if recorded and times and recorded.get("cluster_arn") == environment.cluster_arn:
                yield from ((times[-1], group) for group in recorded_environment(recorded).node_groups)


def _recorded_kinds(target: Target) -> dict[str, tuple[str, str | None]]:
    """Type and market of each machine on which a recorded run was, as its agents read them there."""
    kinds = dict[str, tuple[str, str | None]]()
    for paths in reader.every(target.folder):
        with contextlib.suppress(SpotmpiError, OSError, ValueError, KeyError):
            recorded = node_usage.machine_kinds(paths).items()
            kinds |= {machine: (type, market) for machine, (type, market, _) in recorded if type}
    return kinds


def _fetch_runs(target: Target) -> list[str]:
    """Copy the records of all users' runs to this machine; returns a note for each run or cluster that failed."""
    try:
        states = targets.backend(target).list()
    except SpotmpiError as error:
        return [f"nodes of runs without a record on this machine count as idle; reading the cluster failed: {error}"]
    return [f"nodes of {state.id} count as idle: {state.reason}" for state in states if state.state == reader.UNKNOWN]


def _environment(target: Target, paths: RunPaths) -> Environment:
    plan = recorded_plan.read(paths) if is_file(paths.plan) else None
    if target.on is None and plan and plan.environment:
        return recorded_environment(plan.environment)
    name = target.on or (plan.stack if plan and plan.backend != names.LOCAL else None)
    ways = f"{wording.option('price')}, or the run's environment by {wording.option('on')}"
    remedy = f"the price of a node is unknown: give {ways}"
    if name is None:
        raise input_error("price", None, remedy)
    found = targets.environment_of(Target(stack_of(str(name)), target.runs_folder))
    if found is None:
        raise input_error("price", None, remedy)
    return found


def _kind(machine: str, paths: RunPaths, environment: Environment | None) -> Kind:
    if environment is None:
        return _NODE
    recorded, market, zone = node_usage.machine_kinds(paths).get(machine, (None, None, None))
    groups = [group for group in environment.node_groups if recorded in (None, group.type)]
    # A run whose nodes may be of several groups records both of their markets.
    groups = [group for group in groups if market in (None, group.market)] or groups
    if len({(group.type, group.market) for group in groups}) != 1:
        has = ", ".join(group.type for group in environment.node_groups)
        raise input_error(
            "price",
            None,
            f"{machine} is of type {recorded or 'unknown'}, {environment.name} has {has}: "
            f"give {wording.option('price')}",
        )
    zones = {group.zone for group in groups}
    return (groups[0].type, zone if zone in zones else groups[0].zone, groups[0].market)


def _curves(aws: Aws, environment: Environment, kinds: Iterable[Kind], since: float) -> dict[Kind, PriceCurve]:
    return {kind: _curve(aws, environment.region, kind, since) for kind in sorted(kinds)}


def _curve(aws: Aws, region: str, kind: Kind, since: float) -> PriceCurve:
    machine, zone, market = kind
    if market == names.CAPACITY_BLOCK:
        curve: PriceCurve | None = _constant(0.0)  # paid in advance, whether nodes run in it or not
    elif market == "on-demand":
        price = on_demand_price(aws, region, machine)
        curve = None if price is None else _constant(price)
    else:
        curve = spot_curve(aws, region, machine, zone, datetime.fromtimestamp(since, UTC))
    if curve is None:
        raise SpotmpiError(
            f"AWS has no {market} price of {machine} in {zone}: give {wording.option('price')} for a run"
        )
    return curve


def _billed(aws: Aws, environment: Environment, since: float, until: float) -> dict[str, float]:
    """US dollars by service for whole days (UTC) by Cost Explorer, for the environment's tag; CallError if refused.

    The tag is its name alone, so region and account tell it from others of that name: the bill of a company's main
    account has those of all accounts. AWS is up to a day behind, estimates the last days, and charges a cent a call.
    """
    first = datetime.fromtimestamp(since, UTC).date()
    end = datetime.fromtimestamp(until, UTC).date() + timedelta(days=1)  # exclusive
    only = {"REGION": environment.region, "LINKED_ACCOUNT": aws.account_id(environment.region)}
    dimensions = [{"Dimensions": {"Key": key, "Values": [value]}} for key, value in only.items()]
    days = aws.pages(
        "ce",
        _COST_EXPLORER_REGION,
        "get_cost_and_usage",
        "ResultsByTime",
        TimePeriod={"Start": first.isoformat(), "End": end.isoformat()},
        Granularity="DAILY",
        Metrics=["UnblendedCost"],
        Filter={"And": [{"Tags": {"Key": TAG, "Values": [environment.name]}}, *dimensions]},
        GroupBy=[{"Type": "DIMENSION", "Key": "SERVICE"}],
    )
    dollars: dict[str, float] = defaultdict(float)
    for day in days:
        for group in day["Groups"]:
            dollars[group["Keys"][0]] += float(group["Metrics"]["UnblendedCost"]["Amount"])
    return dict(sorted(dollars.items(), key=lambda item: -item[1]))
