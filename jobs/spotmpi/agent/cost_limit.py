"""What a run's nodes have cost since its submission, and until when its limit pays for more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

IDLE = 600.0  # seconds between two attempts that are paid for: machines idle for longer are taken away


def held(attempts: Sequence[dict[str, Any]], since: float, now: float) -> float:
    """Seconds, up to *now*, for which attempts since *since* (Unix seconds) held the run's nodes."""
    own = [attempt for attempt in attempts if attempt["started"] >= since]
    total = 0.0
    for place, attempt in enumerate(own, 1):
        begins_again = _began(own[place]) if place < len(own) else now
        until = min(begins_again, attempt["ended"] + IDLE) if "ended" in attempt else begins_again
        total += max(0.0, until - _began(attempt))
    return total


def paid_until(plan: dict[str, Any], attempts: Sequence[dict[str, Any]], since: float, now: float) -> float | None:
    """When an attempt that begins *now* has to begin to end, so that ``limits.cost`` holds; None without one."""
    limit, rate = plan["limits"].get("cost"), plan.get("rate")
    if not limit or not rate:
        return None
    seconds = limit / rate * 3600.0
    return float(now + seconds - held(attempts, since, now) - plan["grace"])


def reason(plan: dict[str, Any]) -> str:
    """Why a run ended that has used up its money."""
    said = (plan["limits"]["cost"], plan["rate"])
    return "limits.cost ($%g) is nearly spent at $%g an hour; raise it and continue with --resume" % said


def _began(attempt: dict[str, Any]) -> float:
    began: float = attempt.get("present", attempt["started"])
    return began
