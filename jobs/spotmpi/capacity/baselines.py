"""Simple policies to compare with: Uniform Progress, and on-demand nodes whenever no spot nodes are there. Pure."""

from __future__ import annotations

import numpy as np

from spotmpi.capacity.chains import Indices
from spotmpi.capacity.choice import Moment, Policy, mode_speeds, safe, step
from spotmpi.capacity.job import Job
from spotmpi.capacity.values import NONE, ON_DEMAND, SPOT


def on_demand(_job: Job) -> Policy:
    """On-demand nodes from the start to the end."""
    return lambda moment: np.full(len(moment.mode), ON_DEMAND)


def fallback(job: Job) -> Policy:
    """Spot nodes where there are any, else on-demand nodes at once, and back at once, as node autoscalers do."""
    return lambda moment: _safely(job, moment, np.where(_spot(job, moment) == NONE, ON_DEMAND, _spot(job, moment)))


def greedy(job: Job) -> Policy:
    """Spot nodes where there are any, else it waits, up to the last safe moment."""
    return lambda moment: _safely(job, moment, _spot(job, moment))


def uniform_progress(job: Job) -> Policy:
    """Uniform Progress (Wu et al., NSDI 2024), with spot nodes in whichever zone is cheapest when it needs some.

    It goes to on-demand nodes when it is behind a uniform pace, and back once it is two starts ahead of it.
    """

    def choose(moment: Moment) -> Indices:
        spot, pace = _spot(job, moment), job.work / job.deadline
        done = job.work - moment.work
        behind = done < moment.elapsed * pace - 1e-6
        ahead = done >= (moment.elapsed + 2 * job.overhead) * pace
        mode = np.where((spot == NONE) & behind, ON_DEMAND, spot)
        on_demand = moment.mode == ON_DEMAND
        return _safely(job, moment, np.where(on_demand & ((spot == NONE) | ~ahead), ON_DEMAND, mode))

    return choose


def _spot(job: Job, moment: Moment) -> Indices:
    """The present spot nodes, else the cheapest usable ones by their work, the most nodes first; else none."""
    speeds = mode_speeds(job, (moment.price.shape[1] - SPOT) // len(job.sizes))[SPOT:]
    cost = np.where(moment.usable[:, SPOT:], moment.price[:, SPOT:] / speeds - 1e-6 * speeds, np.inf)
    cheapest = np.where(np.isfinite(cost.min(axis=1)), cost.argmin(axis=1) + SPOT, NONE)
    return np.asarray(np.where(moment.mode >= SPOT, moment.mode, cheapest))


def _safely(job: Job, moment: Moment, mode: Indices) -> Indices:
    """*mode* where it is safe, else on-demand nodes; a start needs time for a second one, as in Uniform Progress.

    Of a job of spot nodes alone only the budget counts.
    """
    allowed = safe(job, moment, step(job, moment))[np.arange(len(mode)), mode]
    if not job.on_demand_allowed:
        return np.where(allowed, mode, NONE)
    late = job.deadline - moment.elapsed <= moment.work / job.on_demand_speed + 2 * job.overhead
    return np.asarray(np.where(allowed & ~(late & (moment.mode < SPOT)), mode, ON_DEMAND))
