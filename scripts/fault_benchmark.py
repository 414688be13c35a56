"""Measures recovery from faults beside others: the same seeded faults, training program and pods for all sides.

    scripts/fault-benchmark [--sides spotmpi-mpirun,jobset-torchrun,...] [--faults 6] [--seed 1] [--json] [--update]

spotmpi-mpirun, spotmpi-torchrun  runs of two nodes, without standby pods and without checkpoints in memory
spotmpi-standby                   the first with a standby pod, which is one pod more; only if --sides names it
jobset-mpirun, jobset-torchrun    a JobSet of two pods, all of which it replaces when one fails; mpirun by ssh
elastic                           torchrun with a c10d rendezvous, in an Indexed Job that replaces failed pods
mpi-operator                      an MPIJob with a launcher and two workers
torchft                           two replica groups over gloo, in an Indexed Job: one goes on without the other

Each side trains a small network of PyTorch (scripts/faults/train.py) on the CPU, which writes a checkpoint to a shared
volume every so many iterations. It gets its faults in turns of three, each after the recovery from the one before;
the sides take turns. Recovery is read from outside: from the last iteration to the first new one after the
fault. Samples and parameters are compared with those of an undisturbed run. A side that does not recover in time, or
does not start, is reported with its reason, and the others go on. Needs Linux and root, as the cluster tier does.

Left out: Kubeflow Trainer, which makes of a TrainJob a JobSet with torchrun such as the one that is measured here, by a
controller that the test cluster does not have.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from scripts.faults import records, report  # noqa: E402
from scripts.faults.records import Record, Turn  # noqa: E402
from scripts.faults.schedule import schedule, turns  # noqa: E402
from scripts.faults.sides import DEFAULT, IMAGE, SIDES, Training  # noqa: E402
from scripts.faults.turn import Limits, take_turn, undisturbed  # noqa: E402
from spotmpi.report.chart import picture  # noqa: E402
from tests.testbed.cluster import Cluster, running_cluster  # noqa: E402

DOCUMENT, PICTURE = PROJECT / "docs" / "speed.md", PROJECT / "docs" / "pictures" / "faults.png"
_VERSIONS = {
    "Kubernetes": ("scripts/tools.d/kubernetes/go.mod", r"k8s\.io/kubernetes v(\S+)"),
    "JobSet": ("scripts/tools.d/jobset/go.mod", r"sigs\.k8s\.io/jobset v(\S+)"),
    "MPI Operator": ("scripts/tools.d/mpi-operator/go.mod", r"kubeflow/mpi-operator v(\S+)"),
    "PyTorch": ("images/pytorch/requirements.lock", r"(?m)^torch==([^\s;]+)"),
    "Open MPI": ("images/pytorch/requirements.lock", r"(?m)^openmpi==([^\s;]+)"),
    "torchft": ("tests/testbed/torchft/requirements.lock", r"(?m)^torchft==([^\s;]+)"),
}


def main() -> None:
    """Measure and print."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: what was measured is printed
    training = Training(options.seed, options.every, options.pace)
    measured: list[tuple[Turn, list[Record]]] = []
    failure = ""
    began = time.monotonic()
    try:
        with running_cluster({IMAGE}) as cluster:
            os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
            _measure(cluster, options, training, measured, began)
            _compare(cluster, training, measured, options.limit)
    except (KeyboardInterrupt, Exception, SystemExit) as error:  # what was measured is worth more than a traceback
        failure = f"{type(error).__name__}: {error}"
        print(f"ended early: {failure}", file=sys.stderr, flush=True)
    _publish([turn for turn, _ in measured], options, failure)
    if failure:
        raise SystemExit(1)


def _measure(
    cluster: Cluster, options: argparse.Namespace, training: Training, measured: list[Any], began: float
) -> None:
    """All turns of all sides, in one order and then in the other; none begins after the time is over.

    A side that did not get as far as its first fault has no further turn.
    """
    limits = Limits(options.start_limit, options.limit)
    for number, faults in enumerate(turns(schedule(options.seed, options.faults))):
        for name in options.sides[:: 1 if number % 2 == 0 else -1]:
            if time.monotonic() - began > options.minutes * 60:
                print(f"  {name}: no turn {number + 1}, --minutes are over", file=sys.stderr, flush=True)
                continue
            if any(turn.side == name and not turn.recoveries for turn, _ in measured):
                continue  # it did not get as far as its first fault, and would not now
            turn, found = take_turn(name, SIDES[name], cluster, faults, training, limits)
            measured.append((turn, found))
            print(f"  {_line(turn)}", file=sys.stderr, flush=True)


def _line(turn: Turn) -> str:
    """A turn in a line."""
    each = [
        f"{each.kind} {each.seconds:.2f}" if each.seconds is not None else f"{each.kind} no" for each in turn.recoveries
    ]
    reasons = [each.reason for each in turn.recoveries if each.reason] + [turn.failure] * bool(turn.failure)
    text = f"{turn.side}: {', '.join(each)} s; {turn.seconds:.0f} s in all, load {turn.load:.1f}"
    return "; ".join([text, *reasons])


def _compare(cluster: Cluster, training: Training, measured: Sequence[tuple[Turn, list[Record]]], limit: float) -> None:
    """Compare what every turn trained with a run without faults, which does not wait between iterations."""
    until = max((turn.iteration for turn, _ in measured), default=0)
    if not until:
        return
    print(f"  undisturbed: {until} iterations", file=sys.stderr, flush=True)
    fast = dataclasses.replace(training, pace=0.0, until=until)
    reference = records.effective(undisturbed(SIDES["jobset-torchrun"], cluster, fast, 2 * limit))
    for turn, found in measured:
        records.check(turn, found, reference)


def _publish(measured: Sequence[Turn], options: argparse.Namespace, failure: str) -> None:
    """Print the tables or JSON, and write both into the documentation if that was asked for."""
    of_sides = {name: [turn for turn in measured if turn.side == name] for name in options.sides}
    summaries = [records.summary(name, found) for name, found in of_sides.items() if found]
    loads = [turn.load for turn in measured] or [os.getloadavg()[0]]
    values = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cores": os.cpu_count(),
        "load": (min(loads), max(loads)),
        "seed": options.seed,
        "faults": options.faults,
        "every": options.every,
        "pace": options.pace,
        "versions": _versions(),
    }
    titles = {name: side.title for name, side in SIDES.items()}
    text = report.tables(summaries, titles, report.context(values))
    if options.json:
        result = {**values, "failure": failure, "turns": [dataclasses.asdict(turn) for turn in measured]}
        print(json.dumps({**result, "summaries": [dataclasses.asdict(each) for each in summaries]}, indent=1))
    else:
        print(text)
    if options.update and failure:
        print("docs/ are unchanged, since it ended early", file=sys.stderr)
    elif options.update and any(each.median is not None for each in summaries):
        report.update(DOCUMENT, text)
        PICTURE.write_bytes(picture(report.charts(summaries, titles, f"load {min(loads):.1f} to {max(loads):.1f}")))


def _versions() -> dict[str, str]:
    """What was measured, by the files that lock it."""
    found = {}
    for name, (path, pattern) in _VERSIONS.items():
        match = re.search(pattern, (PROJECT / path).read_text())
        assert match, f"{path} does not lock {name}"
        found[name] = match[1]
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default=",".join(DEFAULT), help="some of: " + ", ".join(SIDES))
    parser.add_argument("--faults", type=int, default=6, help="faults for each side (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and of the training (default: %(default)s)")
    parser.add_argument("--every", type=int, default=10, help="iterations between checkpoints (default: %(default)s)")
    parser.add_argument(
        "--pace", type=float, default=0.1, help="seconds of an iteration at least (default: %(default)s)"
    )
    parser.add_argument("--limit", type=float, default=60, help="seconds for a recovery (default: %(default)s)")
    parser.add_argument("--start-limit", type=float, default=90, help="seconds for a start (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15, help="no turn begins later (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    parser.add_argument("--update", action="store_true", help="write the tables and the picture into docs/")
    options = parser.parse_args()
    options.sides = [name for name in options.sides.split(",") if name]
    if not options.sides or set(options.sides) - set(SIDES) or len(options.sides) > len(set(options.sides)):
        parser.error(f"--sides takes some of {', '.join(SIDES)}, each once")
    if options.faults < 1 or options.every < 1 or options.pace <= 0 or min(options.limit, options.start_limit) <= 0:
        parser.error("--faults and --every take at least 1, --pace and the limits more than 0 seconds")
    return options


if __name__ == "__main__":
    main()
