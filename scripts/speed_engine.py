"""Time and memory of an environment's preview for 1, 10 and 100 GPU groups, in the real engine over stand-ins.

Prints medians of interleaved runs and how they grow. The stand-in providers run on the same machine and are part of
the time; EKS's quota of groups is ignored, as an account can have it raised.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from tests.engine.engine import Engine, small_project  # noqa: E402
from tests.engine.providers.cloud import Cloud  # noqa: E402
from tests.engine.providers.server import serve_cloud  # noqa: E402

_PROGRAM = """
import atexit, json, os, resource, sys
sys.path.insert(0, os.environ["SPEED_REPOSITORY"])
def tell():
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open(os.environ["SPEED_FILE"], "w") as told:
        json.dump({"cpu": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024}, told)
atexit.register(tell)
from infra.program import build
from infra.settings import Group, Settings
groups = [Group(name=f"g{n}", type="g4dn.xlarge", max=4) for n in range(int(os.environ["SPEED_GROUPS"]))]
build(Settings(stack="small", region="us-east-1", zones=["us-east-1a"], access=["198.51.100.0/24"], groups=groups))
"""


@dataclass(frozen=True)
class Measured:
    """One preview: seconds from start to end, the program's processor seconds and MiB, and how much was planned."""

    seconds: float
    cpu: float
    mib: float
    resources: int


def measure(folder: Path, groups: int) -> Measured:
    """Preview an environment with this many groups from nothing."""
    usage = folder / "usage.json"
    variables = {"SPEED_GROUPS": str(groups), "SPEED_FILE": str(usage), "SPEED_REPOSITORY": str(REPOSITORY)}
    with serve_cloud(Cloud()) as ports:
        engine = Engine(folder / "engine", ports, variables)
        small_project(engine, _PROGRAM)
        began = time.monotonic()
        outcome = engine.preview("small")
        seconds = time.monotonic() - began
    if outcome.status:
        raise SystemExit(f"the preview of {groups} groups failed:\n{outcome.text}")
    program = json.loads(usage.read_text())
    return Measured(seconds, program["cpu"], program["mib"], len(outcome.with_operation("create")))


def table(runs: dict[int, list[Measured]]) -> str:
    """The medians as a table, each with its growth for each group against the smallest count."""
    lines = [
        f"{'groups':>6} {'resources':>9} {'preview s':>10} {'program CPU s':>14} {'program MiB':>12} {'s/resource':>11}"
    ]
    for groups, measured in runs.items():
        seconds, cpu, mib = (
            statistics.median(getattr(one, what) for one in measured) for what in ("seconds", "cpu", "mib")
        )
        resources = measured[0].resources
        lines.append(
            f"{groups:>6} {resources:>9} {seconds:>10.1f} {cpu:>14.1f} {mib:>12.0f} {seconds / resources:>11.4f}"
        )
    return "\n".join(lines)


def growth(runs: dict[int, list[Measured]]) -> str:
    """How much time each further group takes, between one count and the next: equal numbers mean linear."""
    points = [(groups, statistics.median(one.seconds for one in measured)) for groups, measured in runs.items()]
    return "\n".join(
        f"{few} to {many} groups: {(late - early) / (many - few):.3f} s for each group more, {late / early:.2f} times"
        for (few, early), (many, late) in itertools.pairwise(points)
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="speed-engine", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="previews of each size (default 10)")
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 10, 100], help="group counts")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every run to this file")
    options = parser.parse_args()
    runs: dict[int, list[Measured]] = {groups: [] for groups in options.groups}
    for number in range(options.runs):
        for groups in options.groups:
            folder = Path(tempfile.mkdtemp(prefix="speed-engine-"))
            try:
                runs[groups].append(measure(folder, groups))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            print(f"run {number + 1}: {groups} groups {runs[groups][-1].seconds:.1f} s", file=sys.stderr, flush=True)
    print(f"{options.runs} runs of each, interleaved, {os.cpu_count()} cores; medians")
    print(table(runs))
    print(growth(runs))
    if options.json:
        options.json.write_text(
            json.dumps({groups: [vars(one) for one in measured] for groups, measured in runs.items()})
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
