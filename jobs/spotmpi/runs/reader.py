"""Reading runs back from their folders; nothing here writes to one but `remove`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.core.errors import Problem, RunInUse, SpotmpiError, UnknownRun, input_error
from spotmpi.core.names import KUBERNETES, RunPaths
from spotmpi.agent import protocol
from spotmpi.agent import record
from spotmpi.agent.run_outcome import run_outcome
from spotmpi.agent.supervisor import LOCK

LATEST = 1e11  # Unix seconds that a time may have; dates end before 1e12
RUNNING = "running"
ELSEWHERE = "elsewhere"
UNKNOWN = "unknown"
_END = 1 << 17  # bytes


@dataclass(frozen=True)
class RunState:
    """What a run has come to so far.

    ``state`` is submitted, waiting, running, succeeded, failed, stopped; lost, when nobody is left to end it;
    elsewhere: this folder is a copy without an end, and only the run's cluster can say how the run is; or unknown: the
    cluster has it, and this version cannot read what it says.
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
    scalars: dict[str, Any] = field(default_factory=dict)
    owner: str | None = None
    container: str | None = None  # the image that pods run, by digest: the plan's, or as a terminal saw it pulled

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state in record.TERMINAL or self.state == record.LOST


def find(run: str, runs_folder: Path) -> RunPaths:
    """The paths of the run of that id, or of the only one whose id starts with it.

    Raises:
        UnknownRun: no run, or several, go by that id.
    """
    if (runs_folder / run / "events.jsonl").is_file():
        return RunPaths(runs_folder / run)
    close = [paths.id for paths in every(runs_folder) if run and paths.id.startswith(run)]
    if len(close) == 1:
        return RunPaths(runs_folder / close[0])
    if close:
        raise UnknownRun([Problem("run", run, f"fits several runs: {', '.join(close)}; write more of the id")])
    raise UnknownRun([Problem("run", run, f"no such run in {runs_folder}; `spotmpi list` shows those there are")])


def every(runs_folder: Path) -> list[RunPaths]:
    """All runs recorded in a folder, oldest first."""
    if not runs_folder.is_dir():
        return []
    found = [RunPaths(path) for path in runs_folder.iterdir() if (path / "events.jsonl").is_file()]
    return sorted(found, key=lambda paths: (_first_time(paths), paths.id))


def _first_time(paths: RunPaths) -> float:
    """When the run was submitted first, in Unix seconds; infinity where its record does not tell."""
    return next((float(event["t"]) for event in lines(paths.events)), float("inf"))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects with a time in a file, a line each, in order; a missing file has none.

    Left out are an unfinished last line, and what a crash or a full disk left that is no entry of ours.
    """
    try:
        with path.open("rb") as file:
            yield from _entries(file)
    except FileNotFoundError:
        return


def _entries(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in file:
        if line.endswith(b"\n"):
            values = entry(line.decode("utf-8", "replace"))
            if values is not None:
                yield values


def entry(line: str) -> dict[str, Any] | None:
    """The JSON object with a time in a line of events or metrics; None where a crash has left something else."""
    try:
        values = protocol.read_json(line)
    except ValueError:
        return None
    fits = isinstance(values, dict) and isinstance(values.get("t"), int | float) and 0 <= values["t"] < LATEST
    return values if fits else None


def _ends(path: Path) -> Iterator[dict[str, Any]]:
    """The first and the last entries of a file that may be long: all that a state needs of metrics."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size <= 2 * _END:
                yield from _entries(file)
                return
            yield from _entries(file.readlines(_END))
            file.seek(size - _END)
            file.readline()
            yield from _entries(file)
    except FileNotFoundError:
        return


def plan(paths: RunPaths) -> dict[str, Any]:
    """The plan that the run was started with."""
    try:
        values: dict[str, Any] = json.loads(paths.plan.read_text())
    except (OSError, ValueError) as error:
        raise input_error("run", paths.id, f"its {paths.plan.name} cannot be read: {error}") from error
    return values


class ClusterName(NamedTuple):
    """The cluster and namespace that a run is in; without a *context*, whichever cluster is the current one."""

    context: str | None
    namespace: str

    def __str__(self) -> str:
        return f"namespace {self.namespace} of " + (f"context {self.context}" if self.context else "the cluster")


def cluster_of(paths: RunPaths) -> ClusterName | None:
    """Where the run is whose copy the folder holds; None where the folder is no copy."""
    values = (_record(paths.plan) or {}) if paths.plan.is_file() else {}
    here = values.get("backend") != KUBERNETES
    return None if here else ClusterName(values.get("context"), str(values.get("namespace")))


def summary(paths: RunPaths) -> dict[str, Any] | None:
    """What the run came to, or None while it has not ended."""
    return _record(paths.summary)


def attempts(paths: RunPaths) -> list[dict[str, Any]]:
    """The records of all attempts on node 0, in order; what a crash left that is no record of ours is left out."""
    files = sorted(paths.attempts.glob("*/node-0.json"), key=lambda path: int(path.parent.name))
    return [values for path in files if (values := _record(path))]


def _record(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None where there is none."""
    try:
        values = protocol.read_json(path.read_text(errors="replace"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def alive(paths: RunPaths) -> bool:
    """Whether a supervisor holds the run."""
    try:
        with (paths.folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def state(paths: RunPaths) -> RunState:
    """What the run has come to so far, from its events and metrics."""
    values: dict[str, Any] = {"id": paths.id, "folder": str(paths.folder), "name": paths.id, "state": "submitted"}
    for event in lines(paths.events):
        _apply(values, event)
    for metric in _ends(paths.metrics):
        if not protocol.sound(metric.get("kind", ""), metric):
            continue
        if metric.get("kind") == protocol.CONTEXT and "total_iterations" in metric:
            values["total_iterations"] = metric["total_iterations"]
        if metric.get("iteration") is not None:
            values["iteration"] = metric["iteration"]
            scalars = {
                key: value for key, value in metric.items() if isinstance(value, float | int | str) and key != "ranks"
            }
            values["scalars"] = {**values.get("scalars", {}), **scalars}
    found = RunState(**values)
    if run_outcome(recorded=found.state, writer_alive=alive(paths)) == record.LOST:
        # The supervisor releases the run just after its last event: look again before calling it lost.
        return found if _last_event(paths) in record.TERMINAL else RunState(**values | _without_end(paths))
    return found


def _without_end(paths: RunPaths) -> dict[str, Any]:
    """State and reason of a run that has no end and no writer on this machine."""
    if (target := cluster_of(paths)) is None:
        return {"state": record.LOST, "reason": lost_reason(paths)}
    return {"state": ELSEWHERE, "reason": f"it is in {target}; `spotmpi status {paths.id}` asks there"}


def lost_reason(paths: RunPaths) -> str:
    """Why a local run is lost, and the remedy."""
    if not paths.events.exists():
        return f"its folder {paths.folder} was deleted"
    return f"its supervisor died without recording an end; continue with `spotmpi run --resume {paths.id}`"


def earlier_attempts(paths: RunPaths) -> int:
    """How many attempts the run had had when it was submitted last, as far as is recorded here."""
    newest = earlier = 0
    for event in lines(paths.events):
        earlier = newest if event.get("event") == record.SUBMITTED else earlier
        newest = max(newest, _count(event.get("attempt")))
    return earlier


def _apply(values: dict[str, Any], event: dict[str, Any]) -> None:
    kind = event.get("event")
    # An agent that has lost its record counts from the beginning, and what was counted before it is true all the same.
    keys = ("failures", "interruptions")
    counted = {key: max(event[key], values.get(key, 0)) for key in keys if isinstance(event.get(key), int)}
    reason = _text(event.get("reason"))
    if kind == record.SUBMITTED:
        values.update(
            name=_text(event.get("name")) or values["name"],
            owner=_text(event.get("owner")) or values.get("owner"),
            submitted=values.get("submitted", event["t"]),
            ended=None,
            reason=None,
            failures=0,
            interruptions=0,
        )
        values["state"] = "submitted"
    elif kind == record.STARTED:
        attempt = max(_count(event.get("attempt")), values.get("attempt", 0))
        values.update(**counted, state=RUNNING, attempt=attempt, reason=None)
        values["container"] = _text(event.get("container")) or values.get("container")
    elif kind == record.WAITING:
        values.update(state=record.WAITING, reason=reason)
    elif kind in (record.INTERRUPTED, record.RESTARTED):
        values.update(**counted, reason=reason or values.get("reason"))
    elif kind in record.TERMINAL:
        values.update(**counted, state=kind, reason=reason, ended=event["t"])


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _last_event(paths: RunPaths) -> str | None:
    last = None
    for event in lines(paths.events):
        last = event.get("event")
    return last


@contextmanager
def lock(paths: RunPaths, patience: float = 10.0) -> Iterator[None]:
    """Hold the run's folder, as its supervisor or whoever writes a copy does; RunInUse after *patience* seconds."""
    deadline = time.monotonic() + patience
    with (paths.folder / LOCK).open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RunInUse(f"another process writes the record of run {paths.id}; try again later") from None
            time.sleep(0.01)
        yield


def remove(paths: RunPaths) -> None:
    """Delete the run's folder with all that is in it; the run must be over, and the caller holds its lock."""
    try:
        shutil.rmtree(paths.folder)
    except OSError as error:
        raise SpotmpiError(f"cannot delete {error.filename or paths.folder}: {error.strerror}") from error
