"""The pinned Go programs that tests run, built by scripts/tools once per version and machine."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.tiers import CLUSTER_TOOLS, ENGINE_TOOLS

REPOSITORY = Path(__file__).resolve().parent.parent

# What every test of a marker runs; a test names what it needs besides by the marker `tools`.
OF_MARKER = {"engine": ENGINE_TOOLS, "cluster": CLUSTER_TOOLS}

# Which Kubernetes clusters have: that of new environments, or the "oldest" or "newest" that docs/kubernetes.md names.
KUBERNETES = os.environ.get("SPOTMPI_TEST_KUBERNETES", "")
IS_OLDEST, IS_NEWEST = KUBERNETES == "oldest", KUBERNETES == "newest"

# The tools that these have a recipe of their own for.
_OTHER_VERSIONS = {"oldest": ("kubernetes", "jobset"), "newest": ("kubernetes",)}


class ToolError(Exception):
    """A program could not be built; the message says how to see why."""


@functools.cache
def bin_folder(tool: str) -> Path:
    """The folder that holds a tool's programs, built first where the cache lacks it; ToolError if that fails."""
    recipe = f"{tool}-{KUBERNETES}" if tool in _OTHER_VERSIONS.get(KUBERNETES, ()) else tool
    command = [sys.executable, str(REPOSITORY / "scripts" / "tools"), recipe]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        raise ToolError(f"scripts/tools {recipe} failed; run it by hand to see why")
    return Path(result.stdout.strip().splitlines()[-1])


def needed(items: list[pytest.Item]) -> list[str]:
    """The tools that the selected tests run, each once."""
    names: dict[str, None] = {}
    for item in items:
        for marker, tools in OF_MARKER.items():
            if item.get_closest_marker(marker):
                names.update(dict.fromkeys(tools))
                if IS_NEWEST and marker == "cluster":
                    names["containerd"] = None
        for mark in item.iter_markers("tools"):
            names.update(dict.fromkeys(mark.args))
    return list(names)
