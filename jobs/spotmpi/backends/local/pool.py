"""The pool of a run on this machine: its certificates, address, size and processes, all by files in the run folder."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from spotmpi.agent.files import is_folder, write_atomically
from spotmpi.agent.launch import ADDRESS, size_file
from spotmpi.agent.plan import Member, read_plan
from spotmpi.agent.plan import workers as known_workers
from spotmpi.agent.replicas import process_ids, worker_counts
from spotmpi.backends.base import PoolAddress, no_workers, require_role
from spotmpi.backends.local.machine import MAX_PROCESSES
from spotmpi.core import names, wording
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.runs import reader

_POLL = 0.02  # seconds between looks for the address


def prepare_pool(paths: names.RunPaths) -> None:
    """Write fresh certificates to the run folder, and make the working folder of the workers."""
    from spotmpi.core.certificates import run_certificates, write_certificates

    write_certificates(paths.pool, run_certificates(paths.id))
    paths.code.mkdir(exist_ok=True)
    (paths.pool / ADDRESS).unlink(missing_ok=True)


@contextmanager
def pool_address(paths: names.RunPaths) -> Iterator[PoolAddress]:
    """The address of the pool's scheduler, as soon as it listens; SpotmpiError if the run ends before."""
    while True:
        _require_pool(paths)
        try:
            url = json.loads((paths.pool / ADDRESS).read_text(encoding="utf-8"))["url"]
            break
        except (OSError, ValueError):
            time.sleep(_POLL)
    yield PoolAddress(url, paths.pool)


def request_workers(paths: names.RunPaths, workers: int, role: str) -> None:
    """Request that the pool or stream has *workers* workers of a role."""
    _require_pool(paths)
    require_role(paths.id, role, known_workers(read_plan(str(paths.plan))))
    if workers > MAX_PROCESSES:
        raise input_error("workers", workers, f"exceeds the {MAX_PROCESSES} processes possible here")
    write_atomically(paths.pool / size_file(role), str(workers))


def worker_numbers(state: reader.RunState, paths: names.RunPaths) -> reader.RunState:
    """*state* with the workers of a pool or stream that are requested, and those of them whose process runs."""
    try:
        wanted = worker_counts(read_plan(str(paths.plan)), str(paths.pool))
    except (OSError, ValueError, KeyError):  # a record that is damaged, of which the rest can be shown
        return state
    running = Counter(member.role for member, process in process_ids(str(paths.pool)) if _runs(process))
    ready = {role: {"ready": min(running[role], count)} for role, count in wanted.items()}
    return reader.with_workers(replace(state, workers=ready), wanted)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # of another user
        return True
    except OSError:
        return False
    return True


def kill_pool_process(paths: names.RunPaths, member: Member) -> None:
    """Kill the process of a member: the scheduler, which is node 0, or a worker."""
    processes = dict(process_ids(str(paths.pool)))
    if member not in processes:
        known = ", ".join(each.text for each in sorted(processes))
        raise input_error(wording.option("node"), member.text, f"run {paths.id} has now: {known or 'no process'}")
    try:
        os.kill(processes[member], signal.SIGKILL)
    except ProcessLookupError:
        raise SpotmpiError(f"{member} of run {paths.id} does not run at the moment; try again") from None


def _require_pool(paths: names.RunPaths) -> None:
    if not is_folder(paths.pool):
        raise no_workers(paths.id)
    state = reader.state(paths)
    if state.over:
        raise SpotmpiError(state.end)
