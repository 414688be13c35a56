"""Unix time may be set at any moment: it is for people, and nothing is decided by it apart from the places named here.

NTP sets it, so does a machine that wakes up, and the clocks of two machines differ. Durations, limits and pauses take
`time.monotonic` or a clock of `agent.clock` that nobody sets, and the order of attempts is that of their numbers. Every
read of such a time, and every comparison or difference of one, has its reason in a table below.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent

_READS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
_READS |= {("datetime", "today"), ("path", "getmtime"), ("path", "getctime"), ("path", "getatime")}
_STATUS = {f"st_{which}time{unit}" for which in "mca" for unit in ("", "_ns")}
# As variables, attributes and keys of JSON objects are called that hold a recorded time.
_RECORDED = {"t", "started", "ended", "allocated", "submitted", "creationTimestamp", "began", "created"}
_RECORDED |= {"allocated_since"}
_RECORDED |= {"since", "first_iteration_time", "time", "newest_time", "lastTimestamp", "eventTime", "finishedAt"}
# What gives such a time.
_CLOCKS = {"now", "unix_time", "creation_time", "submission_time", "clock", "_clock", "CLOCK", "_event_time"}


_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)

SHOWN = "recorded or shown"
NAMED = "part of a name, which is made unique otherwise"
AGE = "the age of something that people ask for, in hours or days"
OF_AWS = "AWS's times against now, for bills, prices and changes of hours and days, which people read"
ONE_CLOCK = "both are by the API server's clock"
MONOTONIC = "both are of a clock that nobody sets"
OF_SLURM = "limits of minutes, by clocks of machines that munge requires to agree within some"
DEADLINE = "a deadline that is given as a date"
OF_BLOCK = "the end of a Capacity Block, by AWS's clock and that of its instance, with a minute to spare"
NO_TIME = "no time: a count or a set"

READS = {
    "infra/__main__.py": (1, "dates of support, in months"),
    "infra/ci/commands.py": (1, "a lock that is hours old, by the clocks of two machines with NTP"),
    "infra/ci/locks.py": (1, "the age of a damaged lock, in hours; see commands.py"),
    "infra/eks_token.py": (1, "tells kubectl until when a login is used; EKS checks it by its own clock"),
    "jobs/spotmpi/agent/attempt_history.py": (2, "when an attempt without a record began: shown; its cost, see limits"),
    "jobs/spotmpi/agent/clock.py": (1, "the clock for people"),
    "jobs/spotmpi/agent/pack.py": (1, "a file keeps its time in an archive"),
    "jobs/spotmpi/agent/store.py": (3, AGE),
    "jobs/spotmpi/agent/replay.py": (
        1,
        "saves reading logs that ended a day before, by a server's clock",
    ),
    "jobs/spotmpi/api/cleanup.py": (1, AGE),
    "jobs/spotmpi/api/datasets.py": (1, SHOWN),
    "jobs/spotmpi/api/entries.py": (1, SHOWN),
    "jobs/spotmpi/api/run_manifest.py": (1, SHOWN),
    "jobs/spotmpi/api/prices.py": (1, SHOWN),
    "jobs/spotmpi/api/runs.py": (1, AGE),
    "jobs/spotmpi/api/studies.py": (1, SHOWN),
    "jobs/spotmpi/aws/errors.py": (1, "the difference of clocks is what the message is about"),
    "jobs/spotmpi/aws/prices.py": (2, OF_AWS),
    "jobs/spotmpi/backends/kubernetes/client/api.py": (1, "every response corrects it by the API server's clock"),
    "jobs/spotmpi/backends/kubernetes/backend.py": (2, DEADLINE),
    "jobs/spotmpi/backends/local/backend.py": (1, SHOWN),
    "jobs/spotmpi/backends/local/machine.py": (1, DEADLINE),
    "jobs/spotmpi/backends/slurm/backend.py": (3, f"{SHOWN}; {OF_SLURM}"),
    "jobs/spotmpi/backends/slurm/follow.py": (1, SHOWN),
    "jobs/spotmpi/backends/slurm/queue.py": (1, OF_SLURM),
    "jobs/spotmpi/backends/targets.py": (1, NAMED),
    "jobs/spotmpi/checkpoint/store.py": (2, f"{NAMED}; {SHOWN}"),
    "jobs/spotmpi/cli/cost.py": (1, OF_AWS),
    "jobs/spotmpi/cli/entries.py": (1, SHOWN),
    "jobs/spotmpi/cli/kubeconfig.py": (1, "tells kubectl until when a login is used; EKS checks it by its own clock"),
    "jobs/spotmpi/cli/logs.py": (1, AGE),
    "jobs/spotmpi/entries/code.py": (1, "with its size, tells whether a file has changed: no order"),
    "jobs/spotmpi/entries/inputs.py": (2, "with its size, tells whether a file has changed: no order"),
    "jobs/spotmpi/cli/simulate.py": (1, DEADLINE),
    "jobs/spotmpi/environments/checks/account.py": (1, "dates of support, in months"),
    "jobs/spotmpi/environments/checks/capacity.py": (1, OF_AWS),
    "jobs/spotmpi/environments/cost.py": (2, OF_AWS),
    "jobs/spotmpi/environments/nodes.py": (1, SHOWN),
    "jobs/spotmpi/environments/up.py": (1, "AWS scales groups to 0 at a date of its clock"),
    "jobs/spotmpi/environments/node_group_sizes.py": (
        1,
        "AWS scales groups to 0 at a date of its clock",
    ),
    "jobs/spotmpi/environments/zones/comparison.py": (1, OF_AWS),
    "jobs/spotmpi/programs/pool/scheduler.py": (1, NAMED),
    "jobs/spotmpi/programs/pool/settings.py": (1, "the start of Dask's clocks, which nobody sets from then on"),
    "jobs/spotmpi/programs/reporting.py": (3, SHOWN),
    "jobs/spotmpi/runs/data_fingerprint.py": (1, "with size and name, tells whether a file has changed: no order"),
    "jobs/spotmpi/runs/fingerprint.py": (1, "with its size, tells whether a file has changed: no order"),
    "jobs/spotmpi/runs/folder.py": (2, SHOWN),
    "jobs/spotmpi/streams/dataset.py": (1, "with its size, tells whether a file has changed: no order"),
    "jobs/spotmpi/streams/second_build.py": (6, "a later time for a user's function, to see whether it depends on it"),
    "jobs/spotmpi/study/execution.py": (2, SHOWN),
    "jobs/spotmpi/study/sweep.py": (1, "the order of sweeps in a list; of several that fit, the newest is continued"),
}
COMPARISONS = {
    "infra/ci/commands.py": (1, "a lock that is hours old, by the clocks of two machines with NTP"),
    "jobs/spotmpi/agent/attempt.py": (1, SHOWN),
    "jobs/spotmpi/agent/coordinator.py": (
        4,
        f"{NO_TIME}; limits.run counts from the submission",
    ),
    "jobs/spotmpi/agent/outcomes.py": (
        5,
        f"pauses between agents on two machines, from 0 to 10 min; what records of old agents lack; {OF_BLOCK}",
    ),
    "jobs/spotmpi/agent/placement.py": (6, f"{ONE_CLOCK}; {DEADLINE}"),
    "jobs/spotmpi/agent/placement_controller.py": (2, ONE_CLOCK),
    "jobs/spotmpi/agent/failback.py": (1, ONE_CLOCK),
    "jobs/spotmpi/agent/pod_record.py": (1, SHOWN),
    "jobs/spotmpi/agent/pool_wheels.py": (1, MONOTONIC),
    "jobs/spotmpi/agent/progress.py": (2, MONOTONIC),
    "jobs/spotmpi/agent/record.py": (1, SHOWN),
    "jobs/spotmpi/agent/replay.py": (5, "a span of an agent's own times; numbers show what is missing"),
    "jobs/spotmpi/agent/store.py": (2, AGE),
    "jobs/spotmpi/agent/surplus.py": (4, ONE_CLOCK),
    "jobs/spotmpi/api/drill.py": (5, MONOTONIC),
    "jobs/spotmpi/api/prices.py": (2, f"{NO_TIME}; {SHOWN}"),
    "jobs/spotmpi/api/runs.py": (1, AGE),
    "jobs/spotmpi/aws/billing.py": (17, OF_AWS),
    "jobs/spotmpi/aws/launch_failures.py": (1, "both are by AWS's clock"),
    "jobs/spotmpi/aws/quotas.py": (1, "both are by AWS's clock"),
    "jobs/spotmpi/aws/scaling.py": (1, "both are by AWS's clock"),
    "jobs/spotmpi/backends/kubernetes/backend.py": (1, "the order of runs in a list"),
    "jobs/spotmpi/backends/kubernetes/client/api.py": (3, MONOTONIC),
    "jobs/spotmpi/backends/kubernetes/client/kubeconfig.py": (2, MONOTONIC),
    "jobs/spotmpi/backends/kubernetes/follow/jobset.py": (
        4,
        f"chooses which of two reasons is shown; the end comes last, whatever clocks say; {DEADLINE}",
    ),
    "jobs/spotmpi/backends/kubernetes/follow/pod_log.py": (
        7,
        f"{ONE_CLOCK}, or a span of an agent's own times; numbers, or `pull`, show what is missing",
    ),
    "jobs/spotmpi/backends/kubernetes/follow/run.py": (1, ONE_CLOCK),
    "jobs/spotmpi/backends/kubernetes/follow/waiting.py": (7, ONE_CLOCK),
    "jobs/spotmpi/backends/kubernetes/pool_access.py": (2, f"{NO_TIME}; {ONE_CLOCK}"),
    "jobs/spotmpi/backends/kubernetes/stop.py": (2, ONE_CLOCK),
    "jobs/spotmpi/backends/slurm/backend.py": (1, OF_SLURM),
    "jobs/spotmpi/capacity/chains.py": (2, "ticks of recorded capacity"),
    "jobs/spotmpi/capacity/controller.py": (3, ONE_CLOCK),
    "jobs/spotmpi/cli/cost.py": (1, OF_AWS),
    "jobs/spotmpi/cli/logs.py": (3, AGE),
    "jobs/spotmpi/cli/zones.py": (1, OF_AWS),
    "jobs/spotmpi/data/fetch.py": (3, ONE_CLOCK),
    "jobs/spotmpi/entries/build_lock.py": (2, MONOTONIC),
    "jobs/spotmpi/entries/manifest.py": (1, "whether a date can show it: no order"),
    "jobs/spotmpi/environments/cost.py": (5, OF_AWS),
    "jobs/spotmpi/environments/nodes.py": (1, SHOWN),
    "jobs/spotmpi/environments/zones/comparison.py": (1, OF_AWS),
    "jobs/spotmpi/metrics/rates.py": (2, "pauses between attempts, and lines of old agents, on the axis of charts"),
    "jobs/spotmpi/pools/connection.py": (2, MONOTONIC),
    "jobs/spotmpi/programs/pool/output.py": (2, MONOTONIC),
    "jobs/spotmpi/programs/pool/scheduler.py": (3, MONOTONIC),
    "jobs/spotmpi/programs/pool/settings.py": (1, "the start of Dask's clocks, which nobody sets from then on"),
    "jobs/spotmpi/report/charts.py": (1, "the axis of charts"),
    "jobs/spotmpi/report/spending.py": (5, SHOWN),
    "jobs/spotmpi/runs/pod_output.py": (2, "whether a wait that is over is shown"),
    "jobs/spotmpi/runs/folder.py": (3, "the order in which output is shown; each file is read to its end"),
    "jobs/spotmpi/runs/node_usage.py": (2, "what a run, or one that was lost, has cost: shown"),
    "jobs/spotmpi/runs/reader.py": (1, "when an attempt that was lost had reported last: shown"),
    "jobs/spotmpi/study/execution.py": (2, MONOTONIC),
}


def _reads(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute):
        return False
    owner = ast.unparse(node.value).rpartition(".")[2]
    return node.attr in _STATUS or (owner, node.attr) in _READS


def _is_recorded(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in _RECORDED
    if isinstance(node, ast.Call) and not node.args:
        return _name(node.func) in _CLOCKS
    if isinstance(node, ast.Call):
        return _name(node.func) in _CLOCKS - {"now"}
    return _name(node) in _RECORDED - {"time"} or (isinstance(node, ast.Attribute) and _is_moment(node))


def _name(node: ast.AST) -> str | None:
    return getattr(node, "attr", getattr(node, "id", None))


def _is_moment(node: ast.Attribute) -> bool:
    """Whether it is the time of an event or entry, and not a function of the module."""
    return node.attr in ("time", "_time") and ast.unparse(node.value) != "time"


def _compares(node: ast.AST) -> bool:
    """Whether it compares or subtracts times, or orders by them."""
    operands: list[ast.expr] = []
    if isinstance(node, ast.Call) and _name(node.func) in ("max", "min", "sorted", "sort", "bisect_right"):
        keys = [each.value for each in node.keywords if each.arg == "key"]
        if any(_name(key) in _CLOCKS for key in keys):
            return True
        operands = [*node.args, *keys]
    elif isinstance(node, ast.Compare) and any(isinstance(each, _ORDERS) for each in node.ops):
        operands = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        operands = [node.left, node.right]
    return any(_reads(each) or _is_recorded(each) for operand in operands for each in ast.walk(operand))


def _sources() -> Iterator[tuple[str, str]]:
    for folder in ("jobs/spotmpi", "infra"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            yield str(path.relative_to(PROJECT)), path.read_text()


def _places(chosen: Callable[[ast.AST], bool]) -> dict[str, int]:
    found = Counter(name for name, text in _sources() for node in ast.walk(ast.parse(text)) if chosen(node))
    return dict(found)


@pytest.mark.extensive("looks through all sources, for those who change them")
def test_unix_time_is_read_only_where_it_is_recorded_or_shown_or_for_the_reason_given() -> None:
    assert _places(_reads) == {name: count for name, (count, _) in READS.items()}


@pytest.mark.extensive("looks through all sources, for those who change them")
def test_no_limit_age_or_order_follows_from_unix_times_but_for_the_reason_given() -> None:
    assert _places(_compares) == {name: count for name, (count, _) in COMPARISONS.items()}


def test_what_reads_and_compares_unix_time_is_found_however_it_is_written() -> None:
    found = ["time.time()", "datetime.datetime.now(UTC)", "os.path.getmtime(a)", "a.stat().st_mtime", "clock=time.time"]
    for text in found:
        assert any(map(_reads, ast.walk(ast.parse(f"f({text})")))), text
    for text in ("time.time() < a", "a['t'] - b", "min(x.started, y) >= z", "a - path.stat().st_mtime", "created > b"):
        assert any(map(_compares, ast.walk(ast.parse(text)))), text
    ordered = (
        "max(pods, key=lambda pod: pod['creationTimestamp'])",
        "event.time < newest",
        "sorted(a, key=_event_time)",
    )
    for text in (*ordered, "api.now() - a", "unix_time(a) > b", "max(self._time, a)", "a.sort(key=lambda b: b.ended)"):
        assert any(map(_compares, ast.walk(ast.parse(text)))), text
    for text in (
        "time.monotonic() - a",
        "a < b",
        "a['started'] == b",
        "self.started",
        "max(a, b)",
        "time.sleep(a - b)",
    ):
        assert not any(map(_compares, ast.walk(ast.parse(text)))), text


def test_agents_get_their_clock_as_an_argument() -> None:
    """Fetching and the commands for a folder of the volume run alone in their pods, and agents remove no open file."""
    folder = PROJECT / "jobs" / "spotmpi" / "agent"
    texts = {path.name: path.read_text() for path in folder.glob("*.py")}
    alone = {"fetch.py", "files.py", "store.py", "web_file.py"}
    assert {name for name, text in texts.items() if "import time\n" in text} == {"clock.py", *alone}
