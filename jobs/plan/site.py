"""What a cluster offers a run."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.plan.templates import Template


@dataclass(frozen=True)
class Site:
    """What a cluster offers a run: where its objects go and what its pods need to land."""

    namespace: str
    image: str
    volume: str | None
    node_selector: dict[str, str]
    tolerations: tuple[dict[str, str], ...]
    spread: str  # "node" or "any"
    templates: tuple[Template, ...] = ()
