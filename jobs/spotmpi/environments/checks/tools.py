"""The command-line tools that spotmpi needs, and their versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spotmpi.environments.checks.check import Check, Finding, Level, Subject


@dataclass(frozen=True)
class _Tool:
    name: str
    version_command: Sequence[str]
    minimum: tuple[int, int]
    level: Level
    purpose: str
    link: str


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
        output = subject.tool_output(tool.version_command)
        version = _VERSION.search(output or "")
        minimum = ".".join(map(str, tool.minimum))
        remedy = f"install {tool.name} {minimum} or newer; it {tool.purpose}"
        if output is None:
            yield Finding(tool.name, tool.level, "command not found", remedy, tool.link)
        elif version is None:
            yield Finding(tool.name, "warning", f"unknown version: {output.strip()[:80]!r}", remedy, tool.link)
        elif (int(version[1]), int(version[2])) < tool.minimum:
            yield Finding(tool.name, tool.level, f"{version[0]} is too old", remedy, tool.link)
        else:
            yield Finding(tool.name, "ok", version[0])

    return find


CHECKS = tuple(Check(tool.name, _check(tool), account=False) for tool in _TOOLS)
