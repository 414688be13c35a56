"""Deletes the records of runs that ended long ago."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spotmpi.agent.files import CLOSE_DELAY, remove_folder
from spotmpi.backends import targets
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo
from spotmpi.runs import reader, recorded_plan
from spotmpi.runs.reader import RunState
from spotmpi.runs.recorded_plan import ClusterNamespace, SlurmLogin


@dataclass(frozen=True)
class OldRun:
    """A run that has ended, and how often it had been submitted at that time."""

    state: RunState
    submissions: int


def old_runs(runs_folder: Path, limit: float, echo: Echo) -> list[OldRun]:
    """The runs that ended before *limit*, Unix seconds, oldest first.

    For a copy without a recorded end its cluster is asked; if it does not answer, the run counts as not ended.
    """
    submissions = {paths.id: len(reader.submissions(paths)) for paths in reader.every(runs_folder)}
    states = [state for run in submissions if _last_change(state := reader.state(RunPaths(runs_folder / run))) < limit]
    current = _with_clusters(states, runs_folder, echo)
    return [OldRun(each, submissions[each.id]) for each in current if each.over and _last_change(each) < limit]


def delete_records(old: Sequence[OldRun], echo: Echo) -> list[RunState]:
    """Delete the folders of *old* runs, except of those resumed since; the states of the deleted runs."""
    deleted = []
    for each in old:
        paths = RunPaths(Path(each.state.folder))
        try:
            with reader.lock(paths, timeout=1.0):
                if len(reader.submissions(paths)) == each.submissions:
                    reader.remove(paths)
                    deleted.append(each.state)
                else:
                    echo(f"{paths.id} is kept: it has been resumed")
                    continue
            with suppress(FileNotFoundError):  # else NFS has kept the file of the lock
                remove_folder(paths.folder, CLOSE_DELAY)
        except SpotmpiError as error:  # in use
            echo(f"{paths.id} is kept: {error}")
        except PermissionError as error:
            echo(f"{paths.id} is kept: {paths.folder} is not this user's to delete: {error.strerror}")
        except FileNotFoundError:
            deleted.append(each.state)  # another process was faster
    return deleted


def _with_clusters(states: Iterable[RunState], runs_folder: Path, echo: Echo) -> Iterator[RunState]:
    """*states*, with that of a run on a cluster as the cluster reports it, if it answers."""
    unreachable: set[ClusterNamespace | SlurmLogin] = set()
    for state in states:
        target = recorded_plan.cluster_of(RunPaths(Path(state.folder))) if state.state == reader.ELSEWHERE else None
        if target is None or target in unreachable:
            yield state
            continue
        try:
            current = targets.backend_of(state.id, targets.Target(runs_folder=runs_folder)).state(state.id)
        except SpotmpiError as error:
            unreachable.add(target)
            echo(f"runs without a recorded end in {target} are kept, since it does not answer: {error}")
            yield state
            continue
        yield current


def _last_change(state: RunState) -> float:
    return state.ended or RunPaths(Path(state.folder)).events.stat().st_mtime
