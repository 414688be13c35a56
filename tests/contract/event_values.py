"""Values of events, and the spec of a plain command, for the contract."""

from __future__ import annotations

from typing import Any

from spotmpi.agent import record
from spotmpi.core.events import Event


def kinds(events: list[Event]) -> list[str]:
    """The kinds of all events that are not output."""
    return [event.kind for event in events if event.kind not in (record.LINE, record.METRIC)]


def texts(events: list[Event]) -> list[str]:
    """All lines of output."""
    return [event.values["text"] for event in events if event.kind == record.LINE]


def iterations(events: list[Event]) -> list[int]:
    """The iterations that were reported, in order."""
    return [event.values["iteration"] for event in events if event.values.get("kind") == "metric"]


def command(*parts: str, **more: Any) -> dict[str, Any]:
    """The values of a spec that runs a plain command."""
    return {"name": "plain", "command": list(parts), "launcher": "none", **more}
