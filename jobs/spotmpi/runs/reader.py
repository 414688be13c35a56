"""Reads runs back from their folders; only `remove` changes one."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent import protocol, record
from spotmpi.agent.files import exists, is_file, is_folder, lock_file, remove_folder
from spotmpi.agent.outcomes import run_outcome
from spotmpi.agent.plan import Member, read_member
from spotmpi.agent.schema import AttemptRecord, Summary, attempt_in, summary_in
from spotmpi.core import names
from spotmpi.core.errors import Problem, RunInUse, SpotmpiError, UnknownRun, input_error
from spotmpi.core.events import read_entry
from spotmpi.core.names import RunPaths
from spotmpi.runs import recorded_plan
from spotmpi.runs.recorded_plan import cluster_of, json_object
from spotmpi.streams.figures import Reports

RUNNING = "running"
ELSEWHERE = "elsewhere"
UNKNOWN = "unknown"
CLOSED = "closed by its driver"  # the reason of a pool's end after which nobody has calls for it
_MAX_MATCHES = 5  # ids that a message names
_TAIL = 1 << 17  # bytes
_MAX_TAIL = 2 * protocol.MAX_REPORT
_MAX_EVALUATION_TAIL = 1 << 20  # bytes: evaluations may be rare, and states of many runs are read again and again


class RecordedSource(NamedTuple):
    """The source of a stream, as rank 0 has listed it: ``stream/source.json``."""

    source: str
    digest: str
    files: tuple[tuple[str, int, str], ...]  # name, bytes and version of each part


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    ``state`` is submitted, waiting, running, succeeded, failed or stopped; lost: its agent or JobSet is gone
    without a recorded end; elsewhere: this folder is a copy without an end, and only the run's cluster knows the state;
    or unknown: the cluster has the run, and this version cannot read its JobSet.
    """

    id: str
    folder: str
    name: str
    state: str
    reason: str | None = None
    submitted: float | None = None
    ended: float | None = None
    attempt: int = 0
    failures: int = 0
    interruptions: int = 0
    iteration: int | None = None
    total_iterations: int | None = None
    reported: float | None = None  # when, in Unix seconds
    scalars: dict[str, Any] = field(default_factory=dict)
    owner: str | None = None
    container: str | None = None  # the image that pods run, by digest: from the plan, or as observed when pulled
    placement: dict[str, Any] | None = None  # the node group of its gang, where capacity has an order, and its price
    standby: list[str] = field(default_factory=list)  # pods that are ready to take the place of a lost one
    promotions: list[dict[str, Any]] = field(default_factory=list)  # node, standby, replaces and seconds of each
    avoided: dict[str, str] = field(default_factory=dict)  # machines at fault, and why
    workers: dict[str, dict[str, int]] = field(default_factory=dict)  # "wanted" and "ready" by role, until the end
    stream: dict[str, Any] | None = None  # the figures of its stream, with the digest of the source and advice

    @property
    def has_end(self) -> bool:
        """Whether the end of the run is recorded: it has succeeded or failed, or was stopped."""
        return self.state in record.TERMINAL

    @property
    def over(self) -> bool:
        """Whether the run has ended, or will never continue without help."""
        return self.has_end or self.state == record.LOST

    @property
    def end(self) -> str:
        """How the run ended, for messages."""
        return f"run {self.id} {self.state}: {self.reason or 'no reason recorded'}"


def find(run: str, runs_folder: Path) -> RunPaths:
    """The paths of the run of that id, or of the only one whose id starts with it.

    Raises:
        UnknownRun: the id fits no run, or several.
        InputError: it is no id, such as the state of a run.
    """
    if not isinstance(run, str) or "\0" in run:
        raise input_error("run", run, "give the id of a run, which its state has as `id`")
    if is_file(RunPaths(runs_folder / run).events):
        return RunPaths(runs_folder / run)
    known = [paths.id for paths in every(runs_folder)]
    return RunPaths(
        runs_folder / match("run", run, known, f"no such run in {runs_folder}; `spotmpi list` lists the runs")
    )


def match(field: str, given: str, ids: Sequence[str], unknown: str) -> str:
    """The one of *ids*, oldest first, that is *given*, or the only one that starts with it.

    Raises:
        UnknownRun: none does, with the remedy *unknown*, or several do.
    """
    matches = [given] if given in ids else [each for each in ids if given and each.startswith(given)]
    if not matches:
        raise UnknownRun([Problem(field, given, unknown)])
    if len(matches) > 1:
        more = f" and {len(matches) - _MAX_MATCHES} more" if len(matches) > _MAX_MATCHES else ""
        newest = ", ".join(matches[-_MAX_MATCHES:])
        raise UnknownRun([Problem(field, given, f"is ambiguous: {newest}{more}; write more of the id")])
    return matches[0]


def every(runs_folder: Path) -> list[RunPaths]:
    """All runs recorded in a folder, oldest first, without those that this user may not read."""
    if not is_folder(runs_folder):
        return []
    found = ((_first_time(paths), paths) for paths in map(RunPaths, runs_folder.iterdir()))
    times = {paths: time for time, paths in found if time is not None}
    return sorted(times, key=lambda paths: (times[paths], paths.id))


def _first_time(paths: RunPaths) -> float | None:
    """The time of the first submission in Unix seconds; infinity without a line, None without a record to read."""
    try:
        if is_file(paths.events):
            with paths.events.open("rb") as file:
                return next((float(event["t"]) for event in _entries(file)), float("inf"))
    except (FileNotFoundError, PermissionError):
        pass
    return None


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects with a time in a file, one per line; none for a missing file.

    An unfinished last line is left out, and so are partial lines, which a crash or a full disk leaves.
    """
    try:
        with path.open("rb") as file:
            yield from _entries(file)
    except FileNotFoundError:
        return


def submissions(paths: RunPaths) -> list[float]:
    """When a run was submitted, each time, in Unix seconds."""
    return [event["t"] for event in lines(paths.events) if event.get("event") == record.SUBMITTED]


def _entries(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in file:
        if line.endswith(b"\n"):
            values = read_entry(line.decode("utf-8", "replace"))
            if values is not None:
                yield values


def _ends(path: Path) -> Iterator[dict[str, Any]]:
    """The first and the last entries of a file that may be long, with a metric among the last where there is one.

    A state needs no more of the metrics. What is left out between them may have later scalars than the first entries.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            head = list(_entries(file.readlines(_TAIL)))
            evaluates = any(each.get("kind") == protocol.EVALUATION for each in head)
            first, tail = file.tell(), _TAIL
            while True:
                file.seek(max(first, size - tail))
                if file.tell() > first:
                    file.readline()  # the rest of one
                last = list(_entries(file))
                kinds = [each.get("kind") for each in last]
                if size - tail <= first or tail > _MAX_TAIL:
                    break
                if protocol.METRIC in kinds and (
                    not evaluates or protocol.EVALUATION in kinds or tail > _MAX_EVALUATION_TAIL
                ):
                    break
                tail *= 4  # one line has the times of all ranks
    except FileNotFoundError:
        return
    if size - tail > first:
        stale = (protocol.EVALUATION, protocol.METRIC) if protocol.METRIC in kinds else (protocol.EVALUATION,)
        head = [each for each in head if each.get("kind") not in stale]
    yield from head
    yield from last


def summary(paths: RunPaths) -> Summary | None:
    """The summary of the run, None while it has not ended."""
    values = json_object(paths.summary)
    return summary_in(values) if values else None


def work(paths: RunPaths) -> dict[str, Any]:
    """What identifies the work of the run, as it ended or was planned; InputError where its plan cannot be read."""
    return (summary(paths) or {}).get("work") or recorded_plan.work(paths)


def source(paths: RunPaths) -> RecordedSource | None:
    """The source of the run's stream; None without one, or where another program has written what is none."""
    values = json_object(paths.stream / protocol.STREAM_SOURCE)
    name, digest, parts = values.get("source"), values.get("digest"), values.get("parts")
    if not (isinstance(name, str) and isinstance(digest, str) and isinstance(parts, list)):
        return None
    fit = all(map(_is_part, parts))
    return RecordedSource(name, digest, tuple((each[0], each[2], str(each[3])) for each in parts)) if fit else None


def _is_part(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 3 and protocol.is_text(value[0]) and protocol.is_whole(value[2])


def attempts(paths: RunPaths) -> list[AttemptRecord]:
    """The records of all attempts on node 0, in order, without partial ones, which a crash leaves, and unfit ones."""
    numbered = ((each, paths.attempts / str(each) / "node-0.json") for each in record.numbers(str(paths.attempts)))
    found = ((number, attempt_in(json_object(path))) for number, path in numbered)
    return [{**values, "attempt": number} for number, values in found if values]


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run by its events: *start* and *end* (Unix seconds), outcome and reason.

    While it runs, it has no end and no outcome.
    """

    number: int
    start: float
    machines: list[dict[str, Any]] = field(default_factory=list)
    end: float | None = None
    outcome: str = ""
    reason: str = ""

    @property
    def seconds(self) -> float:
        """How long it lasted; 0 while it runs."""
        return (self.end or self.start) - self.start


def timeline(paths: RunPaths) -> Iterator[Attempt]:
    """The attempts of a run; one that was lost with its agents ended with its last report, as far as is known."""
    running: Attempt | None = None
    for event in lines(paths.events):
        kind, moment = event.get("event"), float(event["t"])
        if running and kind in (record.INTERRUPTED, record.RESTARTED, *record.TERMINAL):
            outcome = record.FAILED if kind == record.RESTARTED else kind
            yield replace(running, end=moment, outcome=outcome, reason=str(event.get("reason") or ""))
            running = None
        elif kind == record.STARTED:
            if running:
                yield _lost_attempt(paths, running)
            running = Attempt(int(event.get("attempt", 0)), moment, event.get("machines") or [])
    if running:
        yield _lost_attempt(paths, running) if state(paths).state == record.LOST else running


def _lost_attempt(paths: RunPaths, attempt: Attempt) -> Attempt:
    end = max(attempt.start, last_report(paths, attempt.number) or 0.0)
    return replace(attempt, end=end, outcome=record.INTERRUPTED, reason="its agents were lost")


def last_report(paths: RunPaths, attempt: int) -> float | None:
    """When an attempt reported last, in Unix seconds; None where it never did."""
    return max((line["t"] for line in lines(paths.metrics) if line.get("attempt") == attempt), default=None)


def alive(paths: RunPaths) -> bool:
    """Whether an agent holds the run's lock."""
    try:
        with (paths.folder / record.LOCK).open("r", encoding="utf-8") as lock:
            lock_file(lock, shared=True)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def state(paths: RunPaths, writer_alive: bool | None = None) -> RunState:
    """The state of the run, from its events and metrics; by default its lock tells whether a writer is alive."""
    values: dict[str, Any] = {"id": paths.id, "folder": str(paths.folder), "name": paths.id, "state": record.SUBMITTED}
    joined: dict[Member, int] = {}  # workers that are ready, with the attempt in which they were that
    for event in lines(paths.events):
        _apply_event(values, event)
        _apply_worker(joined, event)
    if values["state"] not in record.TERMINAL:
        ready = Counter(member.role for member, each in joined.items() if each == values.get("attempt", 0))
        values["workers"] = {role: {"ready": count} for role, count in ready.items()}
    reports: Reports | None = None  # of its stream
    for metric in _ends(paths.metrics):
        if metric.get("kind") == protocol.STREAM:
            reports = reports or Reports()
            reports.add(metric, metric.get("attempt"))
        elif protocol.valid(metric.get("kind", ""), metric):
            _apply_metric(values, metric)
    if reports and (figures := reports.recent()):
        values["stream"] = figures.to_json(recorded_plan.worker_price(paths))
    current = RunState(**values)
    is_alive = alive(paths) if writer_alive is None else writer_alive
    if run_outcome(recorded=current.state, writer_alive=is_alive) == record.LOST:
        # The agent releases the lock just after its last event: look again before calling the run lost.
        return current if _last_event(paths) in record.TERMINAL else RunState(**values | _without_end(paths))
    return current


def _without_end(paths: RunPaths) -> dict[str, Any]:
    """State and reason of a run that has no recorded end and no agent on this machine."""
    if (target := cluster_of(paths)) is None:
        return {"state": record.LOST, "reason": lost_reason(paths), "workers": {}}
    return {"state": ELSEWHERE, "reason": f"it is in {target}; `spotmpi status {paths.id}` asks the cluster"}


def lost_reason(paths: RunPaths) -> str:
    """Why a run is lost that is recorded in its folder alone."""
    if not exists(paths.events):
        return f"its folder {paths.folder} was deleted"
    if recorded_plan.slurm_of(paths):
        return "Slurm has no job of it any more, and no end is recorded"
    return "its agent died without recording an end"


def earlier_attempts(paths: RunPaths) -> int:
    """The number of attempts before the last submission, as far as this folder records them."""
    return _attempts(paths)[0]


def newest_attempt(paths: RunPaths) -> int:
    """The number of the last attempt that this folder records; 0 without any."""
    return _attempts(paths)[1]


def _attempts(paths: RunPaths) -> tuple[int, int]:
    newest = earlier = 0
    for event in lines(paths.events):
        earlier = newest if event.get("event") == record.SUBMITTED else earlier
        newest = max(newest, _count(event.get("attempt")))
    return earlier, newest


def _apply_event(values: dict[str, Any], event: dict[str, Any]) -> None:
    """Change *values*, the fields of a `RunState`, by an event."""
    kind = event.get("event")
    # An agent that has lost its record counts from zero again: keep the larger number.
    keys = ("failures", "interruptions")
    counts = {key: max(event[key], values.get(key, 0)) for key in keys if isinstance(event.get(key), int)}
    reason = recorded_plan.text_of(event.get("reason"))
    if kind == record.SUBMITTED:
        values.update(
            name=recorded_plan.text_of(event.get("name")) or values["name"],
            owner=recorded_plan.text_of(event.get("owner")) or values.get("owner"),
            submitted=values.get("submitted", event["t"]),
            ended=None,
            reason=None,
            failures=0,
            interruptions=0,
            placement=None,
            standby=[],
            promotions=[],
            state=record.SUBMITTED,
        )
    elif kind == record.STARTED:
        attempt = max(_count(event.get("attempt")), values.get("attempt", 0))
        values.update(**counts, state=RUNNING, attempt=attempt, reason=None)
        values["container"] = recorded_plan.text_of(event.get("container")) or values.get("container")
    elif kind == record.PLACED:
        values["placement"] = {key: event.get(key) for key in ("group", "type", "market", "rate")}
    elif kind in (record.JOINED, record.LEFT, record.PROMOTED) and "standby" in event:
        _apply_standby(values, event)
    elif kind == record.AVOIDED:
        values["avoided"] = {**values.get("avoided", {}), str(event.get("machine")): str(event.get("reason"))}
    elif kind == record.WAITING:
        values.update(state=record.WAITING, reason=reason)
    elif kind in (record.INTERRUPTED, record.RESTARTED):
        values.update(**counts, reason=reason or values.get("reason"))
    elif kind in record.TERMINAL:
        values.update(**counts, state=kind, reason=reason, ended=event["t"], standby=[])


def _apply_metric(values: dict[str, Any], metric: dict[str, Any]) -> None:
    """Change *values* by a line of metrics: the numbers of iterations, and the last value of each scalar."""
    if metric.get("kind") == protocol.CONTEXT and "total_iterations" in metric:
        values["total_iterations"] = metric["total_iterations"]
    if metric.get("iteration") is None:
        return
    values.update(iteration=metric["iteration"], reported=metric["t"])
    # Of a checkpoint path and seconds say nothing of the model.
    if metric.get("kind") in (protocol.CHECKPOINT, protocol.RESUMED):
        return
    scalars = {
        key: value
        for key, value in metric.items()
        if isinstance(value, float | int | str) and key not in protocol.RESERVED_KEYS
    }
    earlier = values.get("scalars", {}).items()
    # A value that is no longer a number, such as the loss of a model that diverged, has no last value.
    values["scalars"] = {key: value for key, value in earlier if metric.get(key, value) is not None} | scalars


def _apply_standby(values: dict[str, Any], event: dict[str, Any]) -> None:
    """Change *values* by an event of a pod that stands by: it is ready, has left or is promoted."""
    pod = str(event["standby"])
    others = [each for each in values.get("standby", []) if each != pod]
    values["standby"] = [*others, pod] if event["event"] == record.JOINED else others
    if event["event"] == record.PROMOTED:
        promotion = {key: event.get(key) for key in ("node", "standby", "replaces", "seconds")}
        values["promotions"] = [*values.get("promotions", []), promotion]


def _apply_worker(joined: dict[Member, int], event: dict[str, Any]) -> None:
    """Change *joined* by an event of a worker that is ready or has left."""
    if event.get("event") not in (record.JOINED, record.LEFT) or not isinstance(event.get("member"), str):
        return
    with suppress(ValueError):  # an event that others have written
        member = read_member(event["member"])
        joined.pop(member, None)
        if event["event"] == record.JOINED:
            joined[member] = _count(event.get("attempt"))


def with_workers(state: RunState, wanted: Mapping[str, int]) -> RunState:
    """*state* with the numbers of workers that are *wanted* now, by role; none once it has ended."""
    ready = {role: counts.get("ready", 0) for role, counts in state.workers.items()}
    counts = {role: {"wanted": count, "ready": ready.get(role, 0)} for role, count in wanted.items()}
    return replace(state, workers={} if state.over else counts)


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _last_event(paths: RunPaths) -> str | None:
    last = None
    for event in lines(paths.events):
        last = event.get("event")
    return last


def lock(paths: RunPaths, timeout: float = 10.0) -> AbstractContextManager[None]:
    """Hold the run's lock, as its agent or the writer of a copy does; RunInUse after *timeout* seconds."""
    refusal = f"another process is writing the record of run {paths.id}; try again later"
    return locked(paths.folder / record.LOCK, refusal, timeout)


@contextmanager
def locked(path: Path, refusal: str, timeout: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file; RunInUse, which says the *refusal*, where another process has it after *timeout* s."""
    deadline = time.monotonic() + timeout
    with path.open("a", encoding="utf-8") as file:
        while True:
            try:
                lock_file(file)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise RunInUse(refusal) from None
            time.sleep(0.01)
        yield


def remove(paths: RunPaths) -> None:
    """Delete the run's folder; the run must have ended, and the caller holds its lock."""
    try:
        remove_folder(paths.folder)
        shutil.rmtree(names.memory_folder(paths.folder), ignore_errors=True)  # of an agent that was killed
    except OSError as error:
        raise SpotmpiError(f"cannot delete {paths.folder}: {error.strerror} ({error.filename})") from error
