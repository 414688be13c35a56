"""The job that the table `capacity` of a spec describes, and why it cannot be done within its limits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from spotmpi.capacity.job import Job, days, hours
from spotmpi.core.errors import Problem
from spotmpi.core.wording import counted

if TYPE_CHECKING:
    from spotmpi.spec.job import JobSpec


def job_of(spec: JobSpec, now: datetime) -> tuple[Job, list[Problem]]:
    """The job that the table `capacity` of *spec* describes, if it starts *now*, and what is missing in it."""
    table = spec.capacity
    problems = []
    if table.work is None:
        problems.append(Problem("capacity.work", None, 'give the time that it takes on the most nodes, such as "20h"'))
    if table.deadline is None:
        problems.append(Problem("capacity.deadline", None, 'give the time by which it has to be done, such as "30h"'))
    deadline, sizes = table.deadline, spec.sizes
    job = Job(
        work=table.work or 0.0,
        deadline=(deadline - now).total_seconds() if isinstance(deadline, datetime) else deadline or math.inf,
        sizes=sizes,
        speeds=tuple(table.speeds or [size / sizes[-1] for size in sizes]),
        overhead=table.overhead,
        lost_work=table.lost_work or 0.0,
        market=table.market,
        budget=table.budget,
        zones=tuple(table.zones),
        instance_types=tuple(table.instance_types),
    )
    return job, problems


def without_choice(spec: JobSpec, now: datetime) -> list[Problem]:
    """Why the deadline of *spec* cannot be kept where all nodes are there already."""
    if spec.capacity.deadline is None:
        return []
    job, missing = job_of(spec, now)
    return [] if missing else _too_much_work(job)


def _too_much_work(job: Job) -> list[Problem]:
    """Why the deadline of *job* cannot be kept even on nodes that are there at once and never lost."""
    if job.work <= job.deadline:
        return []
    remedy = f'the work alone takes {hours(job.work)}: set at least "{_enough(job.work)}", or use more nodes'
    return [Problem("capacity.deadline", _from_now(job.deadline), remedy)]


def problems(job: Job, on_demand_price: float | None) -> Iterator[Problem]:
    """Why *job* cannot be done within its limits, each reason with its remedy; the price is per node and hour."""
    ascending = all(low <= high for low, high in zip(job.speeds, job.speeds[1:]))  # noqa: B905 (Python 3.8)
    if len(job.speeds) != len(job.sizes) or job.speeds[-1] != 1 or not job.speeds[0] > 0 or not ascending:
        remedy = (
            f"give {counted(len(job.sizes), 'number')} above 0, one for each of `nodes` from the fewest on, none below "
            "the one before it, the last one 1"
        )
        yield Problem("capacity.speeds", list(job.speeds), remedy)
        return
    if not job.on_demand_allowed:
        yield from _too_much_work(job)
        return
    shortest = job.on_demand_time(len(job.sizes) - 1)
    if job.deadline < shortest:
        remedy = (
            f"on-demand nodes need {hours(shortest)} ({hours(job.work)} of work and {hours(job.overhead)} for a "
            f'start): set at least "{_enough(shortest)}", or allow more nodes'
        )
        yield Problem("capacity.deadline", _from_now(job.deadline), remedy)
    if job.budget is not None and on_demand_price is not None and job.budget < job.on_demand_cost(on_demand_price):
        cost = math.ceil(100 * job.on_demand_cost(on_demand_price)) / 100
        remedy = (
            f"on-demand nodes for all of the work cost ${cost:.2f}, so the "
            f'deadline cannot be kept for certain: raise it to that, or set market = "spot", which may be late'
        )
        yield Problem("capacity.budget", job.budget, remedy)


def _from_now(seconds: float) -> str:
    """How long it is to a deadline, or since it."""
    return hours(seconds) if seconds > 0 else f"{days(-seconds)} ago"


def _enough(seconds: float) -> str:
    """A time as specs write it that suffices: in whole hours from 100 of them on, else in whole minutes."""
    minutes = -int(-seconds // 60)
    return f"{minutes}m" if minutes % 60 and minutes < 6000 else f"{-(-minutes // 60)}h"
