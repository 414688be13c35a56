"""Which machines runs held, and when: from the records in their run folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spotmpi.agent import record
from spotmpi.agent.files import is_file
from spotmpi.aws.billing import Usage
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from spotmpi.spec.source import load_spec

HERE = "this machine"
_ENDS = (record.INTERRUPTED, record.RESTARTED, *record.TERMINAL)


def machine_uses(paths: RunPaths) -> list[Usage]:
    """One use per machine and attempt of a run; none for an attempt that never had all its machines.

    A pool's workers, and pods that stand by for lost nodes, have one for each time that they joined.
    """
    # The team is the queue that admits the run.
    owners = (event["owner"] for event in reader.lines(paths.events) if event.get("owner"))
    queue = load_spec(paths.spec).kubernetes.queue if is_file(paths.spec) else None
    owner, team = next(owners, "unknown"), queue or "none"
    ended = {each["attempt"]: float(each["ended"]) for each in reader.attempts(paths) if "ended" in each}
    uses = []
    for attempt in reader.timeline(paths):
        until = ended.get(attempt.number, attempt.end)
        for machine in attempt.machines or [{"name": HERE}]:
            name = machine.get("instance") or machine.get("name") or machine.get("member") or HERE
            since = float(machine.get("since") or attempt.start)
            uses.append(Usage(paths.id, owner, team, name, since, attempt.start, until))
    uses += [Usage(paths.id, owner, team, *each) for each in _worker_uses(paths)]
    return uses


def _worker_uses(paths: RunPaths) -> Iterator[tuple[str, float, float, float | None]]:
    """The machine of each worker that joined a pool, from when it was held, since when it worked, and until when.

    The same of each pod that stood by for lost nodes, until it was promoted: then it is one of the attempt's.
    """
    joined: dict[object, dict[str, Any]] = {}
    ends: dict[object, float] = {}  # of the uses so far, by worker

    def use(worker: object, until: float | None) -> tuple[str, float, float, float | None]:
        start = joined.pop(worker)
        machine, time = _machine_of(start), float(start["t"])
        name = machine.get("instance") or machine.get("name") or str(worker)
        # A worker that node 0 lost joins the next one: what it was held for before counts already.
        since = max(float(machine.get("since") or time), ends.get(worker, 0.0))
        ends[worker] = until or time
        return name, since, time, until

    latest, submitted = 0.0, False  # when anything was recorded
    for event in reader.lines(paths.events):
        kind, worker = event.get("event"), event.get("member", event.get("standby"))
        if kind == record.SUBMITTED and submitted:  # again, without an end: agents and workers were lost
            yield from [use(each, latest) for each in list(joined)]
        submitted = submitted or kind == record.SUBMITTED
        latest = float(event["t"])
        if kind == record.JOINED:
            joined[worker] = event
        elif kind in (record.LEFT, record.PROMOTED) and worker in joined:
            yield use(worker, float(event["t"]))
        elif kind in _ENDS:
            yield from [use(each, float(event["t"])) for each in list(joined)]
    end = latest if joined and _is_lost(paths) else None
    yield from [use(each, end) for each in list(joined)]


def span(uses: Sequence[Usage], machine: str, now: float) -> tuple[float, float, float]:
    """When a machine began, was ready and ended, which is *now* while it is in use, according to a run's record."""
    held = [use for use in uses if use.machine == machine]
    began = min(use.began for use in held)
    return began, began, max(use.ended or now for use in held)


def worker_machines(paths: RunPaths) -> dict[str, str]:
    """The machines that only workers of a run held, with the role of the last one that did."""
    machines = (machine for attempt in reader.timeline(paths) for machine in attempt.machines)
    gang = {each.get("instance") or each.get("name") for each in machines}
    roles = {}
    for event in reader.lines(paths.events):
        if event.get("event") == record.JOINED and (member := event.get("member")):
            machine = _machine_of(event)
            roles[machine.get("instance") or machine.get("name") or member] = member.partition("/")[0]
    return {machine: role for machine, role in roles.items() if machine not in gang}


def machine_kinds(paths: RunPaths) -> dict[str, tuple[str | None, str | None, str | None]]:
    """The EC2 type, the market and the zone of a run's machines by name, as far as recorded."""
    machines = [machine for attempt in reader.timeline(paths) for machine in attempt.machines]
    events = reader.lines(paths.events)
    machines += [_machine_of(event) for event in events if event.get("event") == record.JOINED]
    named = {each.get("instance") or each.get("name"): each for each in machines}
    return {name: (each.get("type"), each.get("market"), each.get("zone")) for name, each in named.items() if name}


def _machine_of(event: dict[str, Any]) -> dict[str, Any]:
    machine = event.get("machine")
    return machine if isinstance(machine, dict) else {}


def all_uses(folder: Path) -> list[Usage]:
    """The uses of all runs in a runs folder; a run whose record can't be read has none."""
    uses = []
    for paths in reader.every(folder):
        try:
            uses += machine_uses(paths)
        except (SpotmpiError, OSError, ValueError):
            continue
    return uses


def _is_lost(paths: RunPaths) -> bool:
    """Whether nobody is left to record the end of a run."""
    return reader.state(paths).state == record.LOST
