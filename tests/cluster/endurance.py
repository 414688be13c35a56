"""A run that gets many faults, one after the other: what it occupies meanwhile, and whether any of it grows."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import secrets
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from scripts.faults.records import Injected, Record, effective, recovered, recoveries
from scripts.faults.watch import Watch
from spotmpi.agent import record
from spotmpi.agent.outcomes import FAILURE, INTERRUPTION, NOT_RETRYABLE
from spotmpi.agent.plan import NODE
from spotmpi.core import names
from tests.cluster import endurance_program
from tests.cluster.faults import COMMANDS, NODES, PARTS, STANDS_BY, STREAM, TORCHRUN, WITH_STANDBY, Injector
from tests.cluster.pools import small_pods
from tests.cluster.runs import FollowedRun, Runs, local_events
from tests.testbed.faults import Fault, ShiftedClocks
from tests.testbed.kubernetes import Object

MEGABYTES = 512  # of the run volume, which is full at times
MANY = 100_000  # failures and interruptions: the run should not give up
PACE = 0.05  # seconds of an iteration
_CLAIM, _INSIDE = "training", "/training"  # a volume that is never full, for the records of iterations
# Seconds, on a busy machine. After outages of the API server the watches of JobSet, CoreDNS and kubelets pause for up
# to a minute each, one after the other (client-go's reflector). Where a run is resumed meanwhile, the Job controller
# may wait 5 minutes for pods of an earlier Job of the same name before it creates one (ExpectationsTimeout, 1.35).
_START, _RECOVERY, _ENDING = 120.0, 420.0, 120.0
_BEFORE = 20  # records before a fault that are looked at with those after it
_ENDS_WITHIN = 60  # iterations from an end of the run to that of its ranks
_BEYOND = 10  # iterations from the decision to end
_ENOUGH = 40  # faults, of which a quarter has a median that says something
_WORKERS = 2
_PROGRAM = Path(endurance_program.__file__)
_STREAM = {
    "source": f"{_PROGRAM.stem}:rows",
    "length": endurance_program.LENGTH,
    "epochs": 1_000_000,  # without end
    "prefetch": 2,
    "workers": {"count": _WORKERS},
}


@dataclass(frozen=True)
class Look:
    """What a run occupied once it had recovered from a fault.

    Of the agent of each node the memory in MiB and the number of open files; of the run folder the number of files of
    attempts and of all others. Each attempt has a fixed number of files: its record, world and output by design.
    """

    attempt: int
    memory: dict[int, float]
    open_files: dict[int, int]
    of_attempts: int
    others: int


@dataclass
class Passed:
    """A fault that a run has got over, or felt nothing of: then without *seconds* of recovery.

    *start* is what the start of a process took then, in seconds, which rises with other work on the machine.
    """

    fault: Fault
    look: Look
    seconds: float | None = None
    repeated: int = 0
    start: float = 1.0


class Endurance:
    """A run on four pods of the test cluster in one of `PARTS`, and its faults so far."""

    def __init__(self, runs: Runs, folder: Path, part: str) -> None:
        self.runs, self.kinds = runs, PARTS[part]
        self.shared = runs.testbed.shared_volume(runs.namespace, _CLAIM)
        (self.shared / "records").mkdir(mode=0o777)
        (self.shared / "records").chmod(0o777)
        self.clocks = ShiftedClocks(self.shared / "clocks", f"{_INSIDE}/clocks")
        self.watch = Watch(self.shared / "records", self.diagnosis)
        self.passed: list[Passed] = []
        self.causes: list[str] = []  # of the attempts that the faults should have ended
        self._attempt, self._spare = 1, 0  # the newest after a fault, and how many more that may still end
        self.open_files: dict[int, list[str]] = {}  # of the agents, by pod, after the newest fault
        self._folder, self._began = folder, time.monotonic()
        self._values = self._spec(part)
        run = f"endurance-{secrets.token_hex(3)}"
        hosts = [names.pod_host(run, node, job_per_node=True) for node in range(NODES)]
        for host in [*hosts, names.standby_host(run, STANDS_BY.number)]:
            self.clocks.set(host, 0)
        self.run = FollowedRun(runs, runs.submit(self._values, self._values["image"], run))

    def _spec(self, part: str) -> dict[str, Any]:
        template = self._folder / "clocks.json"
        container = {"name": "node", "env": self.clocks.variables}
        template.write_text(json.dumps({"spec": {"containers": [container]}}))
        kubernetes = {
            "templates": [small_pods(self._folder), str(template)],
            "mounts": [{"claim": _CLAIM, "path": _INSIDE}],
        }
        return {
            **_training(_INSIDE, PACE, part),
            "nodes": NODES,
            "checkpoint": {"every": "3s", "memory": "1"},
            "limits": {"failures": MANY, "interruptions": MANY},
            "kubernetes": kubernetes,
            **({"stream": _STREAM} if part == STREAM else {}),
            **({"standby": 1} if part == WITH_STANDBY else {}),
        }

    def start(self) -> None:
        """Wait for the first iteration."""
        self._until(lambda: self.watch.furthest > 0, _START, "no iteration")

    def go_through(self, fault: Fault) -> Passed:
        """Inject a fault after its gap, and wait for the recovery from it; what does not come is a failure."""
        start, counts = self.watch.furthest, self.kinds[fault.kind].counts
        due = start + fault.gap
        self._until(lambda: self.watch.furthest >= due, _RECOVERY, f"no {fault.gap} iterations before {fault}")
        mark = max(0, len(self.watch.records) - _BEFORE)
        attempt = self._count_late_ends()
        before = start_of_a_process()
        injected = Injected(fault, time.monotonic())
        Injector(self.run, self.clocks).inject(fault)
        over = time.monotonic()
        if fault.kind == "full volume" and self._has_ended_for_want_of_space():
            counts = self._resume()
        seconds, repeated = None, 0
        if counts is None:
            beyond = self.watch.furthest + 1
            self._until(lambda: self.watch.furthest > beyond, _RECOVERY, f"no iterations after {fault}")
        else:
            self._until(lambda: recovered(self.watch.records[mark:], injected), _RECOVERY, f"no recovery from {fault}")
            (recovery,) = recoveries(self.watch.records[mark:], [injected])
            seconds, repeated = recovery.seconds, recovery.repeated
        most = self.kinds[fault.kind].most
        if most > 1:  # the first of these attempts may have lost a node since
            self._until(lambda: self.watch.records[-1].time > over, _RECOVERY, f"no iterations since {fault}")
        newest = int(self.watch.records[-1].attempt)
        wanted = range(attempt + 1, attempt + 1 + most) if counts is not None else range(attempt, attempt + 1)
        assert newest in wanted, f"attempt {newest}, not {[*wanted]}, after {fault}: {self.diagnosis()}"
        self.causes += [] if counts is None else [counts] * (newest - attempt)
        self._attempt, self._spare = newest, wanted[-1] - newest
        process_start = (before + start_of_a_process()) / 2
        self.passed.append(Passed(fault, self.look(newest), seconds, repeated, process_start))
        return self.passed[-1]

    def _count_late_ends(self) -> int:
        """The newest attempt; one more than after the last fault has lost the second node that this took.

        A node that has its notice, as the second one may, trains until a pod stands by for it.
        """
        newest = int(self.watch.records[-1].attempt)
        late = newest - self._attempt
        last = self.passed[-1].fault if self.passed else None
        assert late <= self._spare, f"attempt {newest}, not {self._attempt}, some time after {last}: {self.diagnosis()}"
        self.causes += self.causes[-1:] * late
        self._attempt, self._spare = newest, self._spare - late
        return newest

    def _until(self, condition: Callable[[], bool], limit: float, what: str) -> None:
        """Wait for a condition, but not beyond the end of the run."""

        def look() -> bool:
            assert not self.run.has_ended, f"{what}, since the run has ended: {self.diagnosis()}"
            return condition()

        self.watch.until(look, limit, what)

    def _has_ended_for_want_of_space(self) -> bool:
        """Whether the run has ended since its volume was full, or else goes on: ranks live for some iterations.

        A busy follower hears of the end later than iterations are on record, but then node 0 has no agent any more.
        """
        beyond = self.watch.furthest + _ENDS_WITHIN

        def is_known() -> bool:
            return self.run.has_ended or (
                self.watch.furthest > beyond and self._agent(self.run.pod(self.run.at_work(0))) is not None
            )

        self.watch.until(is_known, _RECOVERY, "neither iterations nor an end")
        return self.run.has_ended

    def _resume(self) -> str:
        """Resume the run as its reason says; as what the attempt counts that had no space."""
        end = self.run.end()
        assert end.kind == record.FAILED and "free some space, then resume" in str(end.reason), end
        self.runs.submit(self._values, self._values["image"], self.run.id)
        self.run = FollowedRun(self.runs, self.run.id)
        return NOT_RETRYABLE

    def look(self, attempt: int) -> Look:
        """What the run occupies now."""
        memory, open_files = {}, {}
        for pod in self.runs.testbed.pods(self.runs.namespace):
            agent = self._agent(pod)
            if agent is not None:
                node = int(pod["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"])  # by the pod: it may stand by
                self.open_files[node] = descriptors(agent)
                memory[node], open_files[node] = resident(agent), len(self.open_files[node])
        files = Counter[str]()  # by the first folder of their paths
        for folder, _, found in os.walk(self.run.folder):  # which passes over a checkpoint that is removed meanwhile
            files["".join(Path(folder).relative_to(self.run.folder).parts[:1])] += len(found)
        of_attempts = files["attempts"] + files["logs"]
        return Look(attempt, memory, open_files, of_attempts, files.total() - of_attempts)

    def _agent(self, pod: Object) -> int | None:
        """The agent of a node's pod that runs."""
        labels = pod["metadata"]["labels"]
        if labels.get(names.LABEL_ROLE) != NODE or pod["status"].get("phase") != "Running":
            return None
        processes = self.runs.testbed.node(pod["spec"]["nodeName"]).pod_processes(pod["metadata"]["uid"])
        return next((pid for pid, command in processes.items() if COMMANDS["agent"](command)), None)

    def finish(self) -> dict[str, Any]:
        """Let training end; the iteration at which it did, and the digest of its parameters."""
        stop = self.shared / ".stop"
        stop.write_text(str(self.watch.furthest + _BEYOND))
        stop.rename(self.shared / "stop")
        end = self.run.end(_ENDING)
        assert end.kind == record.SUCCEEDED, self.run.recent_events()
        self.watch.update()
        self._count_late_ends()
        values: dict[str, Any] = json.loads((self.shared / "result.json").read_text())
        return values

    def check(self, result: dict[str, Any], undisturbed: dict[int, Record]) -> None:
        """Compare the run with an undisturbed one, and its record with its faults."""
        own = effective(self.watch.records)
        last = result["iteration"]
        assert sorted(own) == sorted(undisturbed) == list(range(1, last + 1)), "iterations are missing"
        different = [at for at in own if own[at].samples != undisturbed[at].samples]
        assert not different, f"samples of iterations {different[:20]} were lost or doubled"
        assert result["parameters"] == own[last].parameters == undisturbed[last].parameters
        summary = self.run.summary()
        causes = [_cause(*each) for each in zip(summary["attempts"], [*self.causes, record.SUCCEEDED], strict=False)]
        assert causes == [*self.causes, record.SUCCEEDED] and len(causes) == len(summary["attempts"]), _differences(
            self.passed, summary
        )
        since = [i for i, cause in enumerate(causes) if cause == NOT_RETRYABLE]  # a resumed run counts anew
        counted = causes[since[-1] + 1 if since else 0 :]
        assert summary["failures"] == counted.count(FAILURE)
        assert summary["interruptions"] == counted.count(INTERRUPTION)
        held = sum(each.get("elapsed") or 0.0 for each in summary["attempts"])
        assert 0 < held <= time.monotonic() - self._began, "durations follow clocks that jump"
        numbers = [(e.attempt, e.member, e.number) for e in self.run.events if e.kind == record.LINE]
        assert len(numbers) == len(set(numbers)), "the follower gave lines twice"
        problems = growth(self.passed)
        assert not problems, "\n".join([*problems, f"open files at last: {self.open_files}"])

    def recorded_events(self) -> list[str]:
        """The lines of the record's events."""
        return (self.run.folder / record.EVENTS).read_text().splitlines()

    def diagnosis(self) -> str:
        """The newest events of the run, the state of its Jobs and pods, and what the cluster did, for failures."""
        look = partial(self.runs.testbed.try_kubectl, "get", "-n", self.runs.namespace)
        pods = look("jobs,pods", "-o", "wide").stdout
        pods += "\n".join(look("events", "--sort-by=.lastTimestamp").stdout.splitlines()[-60:])
        return f"{self.run.recent_events()}\n{pods}" if hasattr(self, "run") else pods


def undisturbed(iteration: int, folder: Path, part: str) -> dict[int, Record]:
    """The records of the same training up to an iteration, by one rank on this machine, without a fault or a stream."""
    (folder / "records").mkdir(parents=True)
    (folder / "stop").write_text(str(iteration))
    local_events({**_training(str(folder), 0.0, part), "nodes": 1}, folder / "runs")
    watch = Watch(folder / "records", str)
    watch.update()
    return effective(watch.records)


def _training(folder: str, pace: float, part: str) -> dict[str, Any]:
    by_torchrun = {"image": "pytorch", "launcher": "torchrun", "preload": ["numpy", "torch.distributed"]}
    return {
        "name": "endurance",
        "command": ["python3", _PROGRAM.name, folder, str(pace)],
        "files": [str(_PROGRAM)],
        **(by_torchrun if part == TORCHRUN else {"image": "chainermn", "preload": ["numpy", "mpi4py.MPI"]}),
    }


def resident(process: int) -> float:
    """The memory of a process in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def start_of_a_process() -> float:
    """Seconds that the start of an interpreter takes now, as the median of three."""
    taken = []
    for _ in range(3):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        taken.append(time.monotonic() - begin)
    return statistics.median(taken)


def descriptors(process: int) -> list[str]:
    """What a process has open, as /proc shows it."""
    found = []
    for path in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(path.readlink()))
    return sorted(found)


def growth(passed: Sequence[Passed]) -> list[str]:
    """What grows over the run more than chance explains, by its slope and from the first quarter to the last one. Pure.

    A slope finds what grows a little with each fault, the quarters what has grown late. Few faults show nothing: their
    agents have only begun, and the kinds of the quarters differ.
    """
    if len(passed) < _ENOUGH:
        return []
    problems = []
    for series in observed(passed):
        problem = _growth_of(series, series.values)
        if problem and (series.corrected is None or _growth_of(series, series.corrected)):
            problems.append(problem)
    return problems


class Series(NamedTuple):
    """What was observed after each fault, and how much it may grow: by a *factor*, and *more* of its unit.

    With *corrected* values, without what other work on the machine may explain, both have to grow.
    """

    what: str
    values: list[float]
    factor: float
    more: float
    corrected: list[float] | None = None


def _growth_of(series: Series, values: list[float]) -> str | None:
    """How values grew beyond what the series allows; None if they did not."""
    quarter = len(values) // 4
    if not quarter:
        return None
    old, new = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
    rise = rise_of(values)
    if new > series.factor * old + series.more:
        return f"{series.what} grew from {old:.1f} to {new:.1f} (medians of the first and the last quarter)"
    if rise > (series.factor - 1) / 2 * old + series.more / 2:
        return f"{series.what} grew by {rise:.1f} from {old:.1f}, a little with each fault"
    return None


def observed(passed: Sequence[Passed]) -> list[Series]:
    """What must not grow. The seconds of a recovery are those of its kind of fault, as if all kinds took as long.

    Corrected, they are also as if a process had always started as fast. That alone would not do: a part of a recovery
    is fixed times, so it takes no longer where the machine is slow at first.
    """
    found = []
    for node in range(NODES):
        looks = [each.look for each in passed if node in each.look.memory]
        found.append(Series(f"MiB of the agent of node {node}", [each.memory[node] for each in looks], 1.2, 6))
        opened = [float(each.open_files[node]) for each in looks]
        found.append(Series(f"open files of the agent of node {node}", opened, 1.0, 6))
    others = [float(each.look.others) for each in passed]
    found.append(Series("files of the run folder besides those of attempts", others, 1.0, 3))
    found.append(
        Series("files of each attempt", [each.look.of_attempts / each.look.attempt for each in passed], 1.0, 1)
    )
    timed = [each for each in passed if each.seconds and not each.fault.seconds]
    kinds = [each.fault.kind for each in timed]
    usual = statistics.median([each.start for each in timed] or [1.0])
    seconds = _as_of_one_kind(kinds, [each.seconds or 0.0 for each in timed])
    corrected = _as_of_one_kind(kinds, [(each.seconds or 0.0) * usual / each.start for each in timed])
    return [*found, Series("seconds of a recovery", seconds, 2.0, 2, corrected)]


def _as_of_one_kind(kinds: list[str], seconds: list[float]) -> list[float]:
    """The seconds of recoveries from faults of these kinds, as if all kinds had the same median."""
    of_kind = {
        kind: statistics.median(value for other, value in zip(kinds, seconds, strict=True) if other == kind)
        for kind in kinds
    }
    usual = statistics.median(seconds or [0.0])
    return [value - of_kind[kind] + usual for kind, value in zip(kinds, seconds, strict=True)]


def rise_of(values: Sequence[float]) -> float:
    """How much values rise from the first to the last by the median slope of all pairs; 0 without a trend.

    A few outliers change neither (Theil and Sen; a trend is one by Mann's and Kendall's test, beyond 3 sigma).
    """
    pairs = [(b - a, j - i) for (i, a), (j, b) in itertools.combinations(enumerate(values), 2)]
    count = len(values)
    sign = sum((change > 0) - (change < 0) for change, _ in pairs)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    if not pairs or sign <= 3 * deviation:
        return 0.0
    return statistics.median(change / distance for change, distance in pairs) * (count - 1)


def _cause(attempt: dict[str, Any], expected: str) -> str:
    """The cause of an attempt; a disk that is full again at once does not take even the record of the one it ended."""
    unrecorded = expected == NOT_RETRYABLE and "before it could record" in str(attempt["reason"])
    return expected if unrecorded else str(attempt["cause"])


def _differences(passed: Sequence[Passed], summary: dict[str, Any]) -> str:
    """The attempts of a run beside the faults that should have ended them, for failures."""
    costly = [str(each.fault) for each in passed if each.seconds is not None]
    attempts = [f"{each['cause']}: {each['reason']}" for each in summary["attempts"]]
    return "\n".join(f"{fault} -> {attempt}" for fault, attempt in itertools.zip_longest(costly, attempts))


def report(endurance: Endurance, result: dict[str, Any]) -> str:
    """What a run went through, in some lines."""
    passed = endurance.passed
    lines = []
    for kind in endurance.kinds:
        own = [each for each in passed if each.fault.kind == kind]
        seconds = [each.seconds for each in own if each.seconds is not None]
        repeated = max((each.repeated for each in own), default=0)
        if seconds:
            median, longest = statistics.median(seconds), max(seconds)
            lines.append(f"{kind}: {len(own)}, {median:.1f} s, at most {longest:.1f} s, {repeated} iterations repeated")
        elif own:
            lines.append(f"{kind}: {len(own)}, no attempt lost")
    first, last = passed[0].look, passed[-1].look
    rises = [f"{each.what} {rise:.1f}" for each in observed(passed) if (rise := rise_of(each.values))]
    files = f"files of attempts {first.of_attempts} to {last.of_attempts}, others {first.others} to {last.others}"
    memory = f"MiB of agents {first.memory} to {last.memory}, open files {first.open_files} to {last.open_files}"
    promoted = sum(each["event"] == record.PROMOTED for each in map(json.loads, endurance.recorded_events()))
    lines.append(f"{promoted} promotions; rises over the run: {', '.join(rises) or 'none'}")
    return "\n".join([f"{result['iteration']} iterations, {last.attempt} attempts", *lines, memory, files])
