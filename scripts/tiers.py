"""Runs the tiers of tests that this machine can run, and says which were left out and why.

With ``CI=true`` a tier that is left out although the machine could run it is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
BIN = Path(PYTHON).parent

Command = list[str]


def nothing_missing() -> str | None:
    """For tiers that need no more than the set-up brings."""
    return None


def root_and_packages() -> str | None:
    """Why the cluster tier cannot run here, or None; installs its Debian packages where it may."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root"
    if not shutil.which("apt-get"):
        return "needs Debian packages and there is no apt-get"
    done = subprocess.run([str(PROJECT / "scripts" / "cluster-packages")], stdout=sys.stderr)
    return None if done.returncode == 0 else "its Debian packages could not be installed"


def open_mpi_4() -> str | None:
    """Nothing: the tier runs without Debian's Open MPI too, less the tests that need it; installs it where it may."""
    subprocess.run([str(PROJECT / "scripts" / "images-packages")], stdout=sys.stderr)
    return None


def a_browser() -> str | None:
    """Why the report page cannot be looked at here, or None; installs Chromium where it may."""
    if subprocess.run([str(PROJECT / "scripts" / "browser-packages")], stdout=sys.stderr).returncode == 0:
        return None
    return "needs Chromium, which could not be installed"


@dataclass(frozen=True)
class Tier:
    """One group of tests: what it covers, its commands, and what stands in its way (None: nothing)."""

    name: str
    about: str
    commands: list[Command]
    missing: Callable[[], str | None] = nothing_missing


def marked(marker: str, *options: str) -> Command:
    """The pytest command for the tests of one marker."""
    return [PYTHON, "-m", "pytest", "-m", marker, "--durations=5", *options]


# Two engines at once, but one file's tests after each other: they share the life of a stack.
IN_TWO = ("--numprocesses=2", "--dist=loadscope")


TIERS = [
    Tier(
        "static",
        "lint, format, types, and Python 3.8 for the pod side",
        [
            [str(BIN / "ruff"), "check"],
            [str(BIN / "ruff"), "format", "--check"],
            [str(BIN / "mypy")],
            [str(BIN / "vermin"), "--target=3.8-", "--no-eval-annotations", "--no-tips", "--violations", "jobs/pod"],
        ],
    ),
    Tier("unit", "no cloud, no root, no cluster", [[PYTHON, "-m", "pytest"]]),
    Tier("images", "real mpirun and both frameworks", [marked("images")], open_mpi_4),
    Tier("engine", "the real Pulumi CLI over stand-in providers", [marked("engine", *IN_TWO)]),
    Tier("browser", "the report page in a real Chromium", [marked("browser")], a_browser),
    Tier("cluster", "a real Kubernetes on this machine", [marked("cluster")], root_and_packages),
]


def run_tier(tier: Tier) -> tuple[str, str]:
    """How the tier ended (passed, FAILED or left out) and what is to say about it."""
    reason = tier.missing()
    if reason is not None:
        return "left out", reason
    print(f"\n== {tier.name}: {tier.about}", flush=True)
    began = time.monotonic()
    failed = [command for command in tier.commands if subprocess.run(command, cwd=PROJECT).returncode]
    spent = f"{time.monotonic() - began:.0f} s"
    return ("FAILED", f"{spent}: {' '.join(failed[0])}") if failed else ("passed", spent)


def main(names: list[str]) -> int:
    """Run the named tiers, or all; 0 when all that ran have passed and none was left out without need."""
    unknown = set(names) - {tier.name for tier in TIERS}
    if unknown:
        print(f"no such tier: {', '.join(sorted(unknown))}; there are {', '.join(t.name for t in TIERS)}")
        return 2
    results = [(tier, *run_tier(tier)) for tier in TIERS if not names or tier.name in names]
    print("\n== tiers")
    for tier, ended, said in results:
        print(f"{tier.name:<8} {ended:<9} {said}")
    passed = sum(ended == "passed" for _, ended, _ in results)
    failed = sum(ended == "FAILED" for _, ended, _ in results)
    left_out = len(results) - passed - failed
    if left_out and os.environ.get("CI") == "true" and os.geteuid() == 0:
        failed += left_out
        print("CI=true: this machine could run what was left out")
    print(f"tiers: {passed} passed, {failed} failed, {left_out} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
