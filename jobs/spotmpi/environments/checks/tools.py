"""The command-line tools that spotmpi needs: Pulumi and kubectl in which versions, and one that builds images."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spotmpi.environments.checks.check import Check, Finding, Level, Subject
from spotmpi.images.build import TOOLS as BUILDERS


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
_BUILDER = "image builder"
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


def _builder(subject: Subject) -> Iterator[Finding]:
    """Whether there is what builds images, which `spotmpi up` needs for those that the registry lacks."""
    found = next((name for name in BUILDERS if subject.tool_output((name, "--version")) is not None), None)
    if found is None:
        remedy = "install one: `spotmpi up` builds the images that the registry lacks, unless it gets --no-images"
        yield Finding(_BUILDER, "warning", f"none of {', '.join(BUILDERS)} found", remedy)
    else:
        yield Finding(_BUILDER, "ok", found)


CHECKS = (*(Check(tool.name, _check(tool), account=False) for tool in _TOOLS), Check(_BUILDER, _builder, account=False))
