"""Which machines the recorded runs held, and when: from their run folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spotmpi.agent import record
from spotmpi.aws.billing import Use
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from spotmpi.spec import job

HERE = "this machine"
_ENDS = (record.INTERRUPTED, record.RESTARTED, *record.TERMINAL)


def uses_of(paths: RunPaths) -> list[Use]:
    """Every machine that a run held, an attempt each; nothing for an attempt that never had all its machines."""
    owner, team = _who(paths)
    ended = {int(each["attempt"]): float(each["ended"]) for each in reader.attempts(paths)}
    found = []
    for start, end in _attempts(paths):
        until = ended.get(int(start.get("attempt", 0)), end)
        for machine in start.get("machines") or [{"name": HERE, "since": start["t"]}]:
            name = machine.get("instance") or machine.get("name") or f"node {machine['node']}"
            since = float(machine.get("since") or start["t"])
            found.append(Use(paths.id, owner, team, name, since, float(start["t"]), until))
    return found


def machine_types(paths: RunPaths) -> dict[str, str]:
    """The EC2 type of each machine of a run that told its type."""
    machines = [machine for start, _ in _attempts(paths) for machine in start.get("machines") or []]
    return {each.get("instance") or each["name"]: each["type"] for each in machines if each.get("type")}


def every_use(folder: Path) -> list[Use]:
    """The uses of all runs in a runs folder; a run whose record can't be read has none."""
    found = []
    for paths in reader.every(folder):
        try:
            found += uses_of(paths)
        except (SpotmpiError, OSError, ValueError):
            continue
    return found


def _attempts(paths: RunPaths) -> Iterator[tuple[dict[str, Any], float | None]]:
    """Each start of an attempt, and when it was over by the events (None: it goes on)."""
    start: dict[str, Any] | None = None
    for event in reader.lines(paths.events):
        if start is not None and event.get("event") in _ENDS:
            yield start, float(event["t"])
            start = None
        elif event.get("event") == record.STARTED:
            start = event
    if start is not None:
        yield start, None


def _who(paths: RunPaths) -> tuple[str, str]:
    """Owner and team; the team is the queue that admits the run."""
    owners = (event["owner"] for event in reader.lines(paths.events) if event.get("owner"))
    queue = job.load(paths.spec).kubernetes.queue if paths.spec.is_file() else None
    return next(owners, "unknown"), queue or "none"
