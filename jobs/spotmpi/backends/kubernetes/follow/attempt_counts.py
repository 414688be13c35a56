"""How many attempts a run has had, by its JobSet's own counters, where no pod can tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotmpi.runs.reader import RunState


def with_counters(state: RunState, jobset: Mapping[str, Any], earlier: int, waiting: bool) -> RunState:
    """*state* with the attempts that it lacks, none of which the agents' own counts contradict.

    *earlier* attempts belong to submissions before this JobSet, whose status counts how often it has restarted the gang
    (``restarts``) and how many of these count as failures (``restartsCountTowardsMax``). While the gang is *waiting* no
    attempt goes on.
    """
    status = jobset.get("status") or {}
    restarts, failed = status.get("restarts") or 0, status.get("restartsCountTowardsMax") or 0
    missing = max(restarts - state.failures - state.interruptions, 0)
    failures = min(max(failed - state.failures, 0), missing)
    return replace(
        state,
        attempt=max(state.attempt, earlier + restarts + (0 if waiting or not restarts else 1)),
        failures=state.failures + failures,
        interruptions=state.interruptions + missing - failures,
    )
