"""The programs that a person needs besides spotmpi, and their versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spotmpi.environments.checks.finding import Check, Finding, Level, Subject


@dataclass(frozen=True)
class _Tool:
    name: str
    ask: Sequence[str]
    least: tuple[int, int]
    lacking: Level
    used_for: str
    get: str


_TOOLS = (
    _Tool(
        "pulumi",
        ("pulumi", "version"),
        (3, 200),
        "error",
        "builds and destroys environments",
        "https://www.pulumi.com/docs/install/",
    ),
    _Tool(
        "aws",
        ("aws", "--version"),
        (2, 0),
        "error",
        "signs the calls to an environment's Kubernetes API",
        "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    ),
    _Tool(
        "kubectl",
        ("kubectl", "version", "--client"),
        (1, 31),
        "warning",
        "opens a shell in a pod",
        "https://kubernetes.io/docs/tasks/tools/",
    ),
)
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)?")


def _check(tool: _Tool) -> Callable[[Subject], Iterator[Finding]]:
    def find(subject: Subject) -> Iterator[Finding]:
        said = subject.tell(tool.ask)
        found = _VERSION.search(said or "")
        least = ".".join(map(str, tool.least))
        remedy = f"install {tool.name} {least} or newer; it {tool.used_for}"
        if said is None:
            yield Finding(tool.name, tool.lacking, "is not on PATH", remedy, tool.get)
        elif found is None:
            yield Finding(tool.name, "warning", f"does not tell its version: {said.strip()[:80]!r}", remedy, tool.get)
        elif (int(found[1]), int(found[2])) < tool.least:
            yield Finding(tool.name, tool.lacking, f"{found[0]} is too old", remedy, tool.get)
        else:
            yield Finding(tool.name, "ok", found[0])

    return find


CHECKS = tuple(Check(tool.name, _check(tool), account=False) for tool in _TOOLS)
