"""Runs on this machine: a detached supervisor per run, which needs no terminal."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from spotmpi.agent import record, stop_requests
from spotmpi.agent.supervisor import LOCK
from spotmpi.backends.local import machine as local_machine
from spotmpi.core import names
from spotmpi.core.errors import RunInUse, SpotmpiError, input_error
from spotmpi.core.events import Event
from spotmpi.core.progress import Say
from spotmpi.core.rank_source import rank_source
from spotmpi.images import environment as image_environment
from spotmpi.plan.local import Plan, launch_plan
from spotmpi.runs import fingerprint, reader
from spotmpi.runs.folder import folder_events
from spotmpi.spec.job import JobSpec
from spotmpi.spec.validate import TargetCapabilities

# What a launcher around us tells its ranks; ours would take it for their own.
_OF_A_LAUNCHER = re.compile(
    r"(OMPI_COMM_WORLD|OMPI_UNIVERSE|PMIX|PRTE|TORCHELASTIC)_.*"
    r"|RANK|LOCAL_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
)


class LocalBackend:
    """Runs recorded under *runs_folder*."""

    def __init__(self, runs_folder: Path) -> None:
        self.runs_folder = runs_folder

    def survey(self, spec: JobSpec) -> TargetCapabilities:
        """What `spotmpi.spec.validate` has to know of this machine."""
        return local_machine.survey(spec)

    def plan(self, spec: JobSpec, run: str) -> Plan:
        """The plan of a valid spec as JSON values."""
        paths = self._paths(run)
        machine = local_machine.describe(spec)
        if paths.plan.is_file() and spec.code is None:  # a run that is continued starts where it started at first
            machine = replace(machine, folder=reader.plan(paths)["folder"])
        return launch_plan(spec, paths, machine, fingerprint.identify(spec))

    def submit(self, spec: JobSpec, plan: Plan, say: Say) -> None:
        """Make the run folder, or take up an old one, and start the run's supervisor."""
        if spec.image is not None:
            image_environment.prepare(spec.image, say)
        paths = self._paths(plan["run"])
        try:
            paths.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(paths.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SpotmpiError(
                f"cannot record the run in {paths.folder}: {error.strerror}; use --runs FOLDER"
            ) from error
        try:
            _hold(paths, lock)
            stop_requests.clear(str(paths.folder))
            _write_plan(paths, spec, plan)
            _start_supervisor(paths, lock)
        except OSError as error:
            raise SpotmpiError(f"cannot record the run in {paths.folder}: {error.strerror}") from error
        finally:
            os.close(lock)

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        """All events of the run, read from its folder."""
        paths = self._own(run)
        return folder_events(paths, follow, alive=lambda: reader.alive(paths))

    def state(self, run: str) -> reader.RunState:
        """What the run has come to so far."""
        return reader.state(reader.find(run, self.runs_folder))

    def list(self) -> list[reader.RunState]:
        """All runs of the runs folder."""
        return [reader.state(paths) for paths in reader.every(self.runs_folder)]

    def stop(self, run: str, reason: str, now: bool) -> None:
        """Leave the request where the supervisor looks for it; a run that is over stays as it is."""
        paths = self._own(run)
        if reader.alive(paths):
            try:
                stop_requests.make(str(paths.folder), stop_requests.KILL if now else stop_requests.STOP, reason)
            except OSError as error:
                raise SpotmpiError(f"cannot leave the request to stop in {paths.folder}: {error.strerror}") from error

    def inject_fault(self, run: str, node: int, how: str) -> None:
        """Kill rank 0; machines of which nodes could be taken away are not here."""
        if how != "kill" or node != 0:
            raise input_error("--fault", how, "a run on this machine has rank 0 to kill: use --node 0 --fault kill")
        pid_file = self._own(run).folder / "rank-0.pid"
        try:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        except (OSError, ValueError) as error:
            raise SpotmpiError(
                f"rank 0 of run {run} has not said which process it is: its program writes that to the file in "
                "SPOTMPI_PID_FILE (docs/programs.md), ours do once they train"
            ) from error

    def pull(self, run: str, say: Say, part: str | None = None) -> Path:
        """A local run's folder is here already."""
        return reader.find(run, self.runs_folder).folder

    def shell(self, run: str, node: int) -> Sequence[str]:
        """A shell in the run's folder."""
        folder = reader.find(run, self.runs_folder).folder
        return ["env", "--chdir", str(folder), os.environ.get("SHELL", "/bin/sh")]

    def _own(self, run: str) -> names.RunPaths:
        """The paths of a run of this machine; InputError for one that goes on elsewhere, as far as is known here."""
        paths = reader.find(run, self.runs_folder)
        if (target := reader.cluster_of(paths)) and reader.state(paths).state not in record.TERMINAL:
            raise input_error("--on", "local", f"run {paths.id} is in {target}: leave --on out")
        return paths

    def _paths(self, run: str) -> names.RunPaths:
        return names.RunPaths(self.runs_folder / run)


def _hold(paths: names.RunPaths, lock: int, patience: float = 10.0) -> None:
    """Take the run's lock; a supervisor that has told the end lets go of it as soon as it has cleaned up."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline or reader.state(paths).state not in record.TERMINAL:
                remedy = f"`spotmpi stop {paths.id}` ends it"
                raise RunInUse(f"run {paths.id} is still going on; {remedy}") from None
        time.sleep(0.01)


def _write_plan(paths: names.RunPaths, spec: JobSpec, plan: Plan) -> None:
    continued = paths.events.exists()
    _replace(paths.spec, spec.to_toml())
    _replace(paths.plan, json.dumps(plan, indent=1) + "\n")
    paths.summary.unlink(missing_ok=True)
    with paths.events.open("a") as file:
        submitted = {"t": time.time(), "event": record.SUBMITTED, "name": plan["name"], "continued": continued}
        submitted["owner"] = names.user()
        file.write(json.dumps(submitted) + "\n")


def _replace(path: Path, text: str) -> None:
    """Write *path* whole; what was there stays when that fails."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(text)
    aside.replace(path)


def _start_supervisor(paths: names.RunPaths, lock: int) -> None:
    """Start the supervisor in a session of its own; it inherits the lock, so the run is never without a holder."""
    environment = {key: value for key, value in os.environ.items() if not _OF_A_LAUNCHER.fullmatch(key)}
    with paths.supervisor_log.open("a") as log:
        subprocess.Popen(
            # Found by the folder it starts in: the program's own PYTHONPATH stays as its user set it.
            [sys.executable, "-S", "-E", "-m", "spotmpi.agent.supervisor", str(paths.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=rank_source(),
            env=environment,
            pass_fds=[lock],
            start_new_session=True,
        )
