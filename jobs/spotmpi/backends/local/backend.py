"""Runs on this machine: one detached agent per run, in its own session, which needs no terminal and which none ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from spotmpi.agent import record, stop_requests
from spotmpi.agent.files import CLOSE_DELAY, exists, is_file, is_folder, lock_file, remove_folder
from spotmpi.agent.plan import COORDINATOR, NODE, WORKER, Member, RunPlan, read_plan
from spotmpi.backends.base import Plan, PoolAddress, unrecorded
from spotmpi.core import names, wording
from spotmpi.core.errors import RunInUse, SpotmpiError, input_error
from spotmpi.core.events import Event
from spotmpi.core.wording import Echo
from spotmpi.runs import reader, recorded_plan
from spotmpi.runs.folder import create, folder_events

if TYPE_CHECKING:
    import subprocess

    from spotmpi.spec.job import JobSpec
    from spotmpi.spec.validate import TargetCapabilities

_RELEASE_TIMEOUT = 10.0  # seconds

# Variables that a launcher sets for its ranks: where spotmpi is itself a rank, its own launchers must not see them. Nor
# those of a job of Slurm, PBS, Grid Engine or LSF, on all nodes of which mpirun would start ranks; what only names the
# job is no instruction.
_RANK_VARIABLES = (
    r"(OMPI_COMM_WORLD|OMPI_UNIVERSE|PMIX|PRTE|TORCHELASTIC)_.*"
    r"|OMPI_MCA_(ess(_base_.*)?|pmix|initial_wdir|orte_(app_num|ess_.*|hnp_uri|launch|local_daemon_uri|.*_session_dir))"
    r"|PBS_(ENVIRONMENT|NODEFILE)|PE_HOSTFILE|LSB_(JOBID|HOSTS|MCPU_HOSTS|DJOB_.*)"
    r"|PMI_.*|SLURM(?!_(JOB_(ID|NAME|ACCOUNT|PARTITION|USER)|SUBMIT_\w+|TMPDIR|CONF|CLUSTER_NAME)$).*"
    r"|RANK|LOCAL_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
)


_agents: list[subprocess.Popen[bytes]] = []  # that this process has started and not waited for yet


class LocalBackend:
    """Runs recorded under *runs_folder*; what only a start or a pool needs is imported for it, not to list runs."""

    def __init__(self, runs_folder: Path) -> None:
        self.runs_folder = runs_folder
        self._waiting: WaitingAgent | None = None

    @contextmanager
    def agent_ahead(self) -> Iterator[None]:
        """Let the agent of a run that is submitted in this context start at once, while its spec is still read."""
        with WaitingAgent() as self._waiting:
            yield
        self._waiting = None

    def inspect(self, spec: JobSpec) -> TargetCapabilities:
        """The capabilities of this machine."""
        from spotmpi.backends.local import machine as local_machine

        return local_machine.inspect(spec)

    def plan(self, spec: JobSpec, run: str, echo: Echo) -> RunPlan:
        """The plan of a valid spec."""
        from spotmpi.backends.local import machine as local_machine
        from spotmpi.plan.local import local_plan
        from spotmpi.runs import fingerprint

        paths = self._paths(run)
        machine = local_machine.describe(spec)
        if spec.files:
            machine = machine._replace(folder=str(paths.code))
        elif is_file(paths.plan) and spec.code is None:  # a resumed run starts in its first folder
            machine = machine._replace(folder=recorded_plan.read(paths).folder or machine.folder)
        plan = local_plan(spec, paths, machine, fingerprint.identify(spec))
        needs_dask = (spec.pool is not None or spec.stream is not None) and spec.image is None
        return _with_dask(plan, spec, echo) if needs_dask else plan

    def submit(self, spec: JobSpec, plan: Plan, echo: Echo) -> None:
        """Create the run folder, or reuse an old one, and start the run's agent."""
        import fcntl  # delays no other command

        from spotmpi.core import code_folder
        from spotmpi.images import environment as image_environment

        assert plan["backend"] == names.LOCAL
        if spec.image is not None:
            image_environment.prepare(spec.image, echo, spec.uses_gpus)
        pooled = spec.pool is not None or spec.stream is not None
        packed = code_folder.pack(*spec.code_paths) if spec.files or (pooled and spec.code) else None
        paths = self._paths(plan["run"])
        is_new = not exists(paths.folder)
        try:
            paths.folder.mkdir(parents=True, exist_ok=True)
            file = os.open(paths.folder / record.LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            lock = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)  # not the number of a stream that the caller has closed
            os.close(file)
        except OSError as error:
            raise unrecorded(paths.folder, error) from error
        try:
            _acquire(paths, lock)
            stop_requests.clear(str(paths.folder))
            if packed:
                packed.unpack(paths.code)
            if pooled:
                from spotmpi.backends.local.pool import prepare_pool

                prepare_pool(paths)
            create(paths, spec.to_toml(), plan, time.time(), names.user())
            self._give_to_agent(paths, lock)
            is_new = False
        except OSError as error:
            raise unrecorded(paths.folder, error) from error
        finally:
            os.close(lock)
            if is_new:  # nothing runs, and what is left would be listed as a lost run
                with contextlib.suppress(OSError):
                    remove_folder(paths.folder, CLOSE_DELAY)

    def _give_to_agent(self, paths: names.RunPaths, lock: int) -> None:
        """Let an agent carry out the run; it gets the open *lock*, so that the run is locked throughout."""
        with paths.agent_log.open("a", encoding="utf-8") as log:
            if self._waiting is None or not self._waiting.hand_over(paths, lock, log):
                start_agent(paths, lock, log)

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        """All events of the run, read from its folder."""
        paths = self._own(run)
        return folder_events(paths, follow, alive=lambda: reader.alive(paths))

    def state(self, run: str) -> reader.RunState:
        """The current state of the run."""
        return _state(reader.find(run, self.runs_folder))

    def list(self) -> list[reader.RunState]:
        """All runs of the runs folder."""
        return [_state(paths) for paths in reader.every(self.runs_folder)]

    def stop(self, run: str, reason: str, now: bool) -> None:
        """Write the request into the run folder for its agent; does nothing for a run that has ended."""
        paths = self._own(run)
        if reader.alive(paths):
            folder, request = str(paths.folder), stop_requests.KILL if now else stop_requests.STOP
            try:
                try:
                    stop_requests.submit(folder, request, reason)
                except OSError as error:
                    if error.errno not in record.DISK_FULL:
                        raise
                    record.release_reserve(folder)
                    stop_requests.submit(folder, request, reason)
            except OSError as error:
                remedy = "check its permissions, and the disk"
                text = f"cannot write the stop request to {paths.folder}: {error.strerror}; {remedy}"
                raise SpotmpiError(text) from error
            _continue_agent(paths)

    def require_fault(self, run: str, member: Member, fault: str) -> None:
        """Refuse what is neither of rank 0, of a process of a pool, nor of a node of a run that may have fewer."""
        paths = self._own(run)
        kills = f"a run on this machine supports only {wording.option('fault', 'kill')}"
        if is_folder(paths.pool):
            if fault != "kill":
                raise input_error(wording.option("fault"), fault, kills)
        elif _takes_away(paths, fault):
            count = len(read_plan(str(paths.plan))["hosts"])
            if member.role != NODE or not 0 < member.number < count:
                others = "1" if count == 2 else f"one of 1 to {count - 1}"
                remedy = f"use {others}: node 0 is never taken away on this machine"
                raise input_error(wording.option("node"), member.number if member.role == NODE else member.text, remedy)
        elif fault != "kill":
            raise input_error(wording.option("fault"), fault, f"{kills}, which kills rank 0")
        elif member != COORDINATOR:
            remedy = f"a run on this machine supports only {wording.option('node', 0)}, where rank 0 is killed"
            raise input_error(wording.option("node"), member.text, remedy)

    def inject_fault(self, run: str, member: Member, fault: str) -> None:
        """Kill rank 0, or take away a node of a run that may have fewer: the only faults of this backend."""
        self.require_fault(run, member, fault)
        paths = self._own(run)
        if is_folder(paths.pool):
            from spotmpi.backends.local.pool import kill_pool_process

            kill_pool_process(paths, member)
            return
        if _takes_away(paths, fault):
            from spotmpi.agent import local_nodes

            local_nodes.take_away(str(paths.folder), member.number, fault)
            return
        from spotmpi.agent.context import PID_FILE

        pid_file = paths.folder / PID_FILE
        try:
            os.kill(int(pid_file.read_text(encoding="utf-8")), signal.SIGKILL)
        except (OSError, ValueError) as error:
            raise SpotmpiError(
                f"the process id of rank 0 of run {run} is unknown: its program has to write it to the file in "
                "SPOTMPI_PID_FILE (docs/programs.md); spotmpi's own programs do when training starts"
            ) from error

    def pool_address(self, run: str) -> AbstractContextManager[PoolAddress]:
        """The address that the scheduler wrote into the run's folder."""
        from spotmpi.backends.local.pool import pool_address

        return pool_address(self._own(run))

    def forward_port(self, run: str, port: int) -> AbstractContextManager[int]:
        """The same port: node 0 is this machine."""
        return nullcontext(port)

    def resize(self, run: str, workers: int, role: str = WORKER) -> None:
        """Write the number of workers into the run's folder for its agent."""
        from spotmpi.backends.local.pool import request_workers

        request_workers(self._own(run), workers, role)

    def pull(self, run: str, echo: Echo, part: str | None = None) -> Path:
        """The run's folder, which is on this machine."""
        return reader.find(run, self.runs_folder).folder

    def shell(self, run: str, member: Member) -> Sequence[str]:
        """A shell in the run's folder."""
        folder = reader.find(run, self.runs_folder).folder
        return ["/bin/sh", "-c", 'cd "$0" && exec "$1"', str(folder), os.environ.get("SHELL", "/bin/sh")]

    def _own(self, run: str) -> names.RunPaths:
        """The paths of a run of this machine; InputError for the copy of a run that has not ended on its cluster."""
        paths = reader.find(run, self.runs_folder)
        if (target := recorded_plan.cluster_of(paths)) and not reader.state(paths).has_end:
            raise input_error(
                wording.option("on"), "local", f"run {paths.id} is in {target}: omit {wording.option('on')}"
            )
        return paths

    def _paths(self, run: str) -> names.RunPaths:
        return names.RunPaths(self.runs_folder / run)


def _state(paths: names.RunPaths) -> reader.RunState:
    """The state of a run, with the workers of a pool of this machine, whose joining no event records."""
    state = reader.state(paths)
    if state.over or not is_folder(paths.pool):
        return state
    from spotmpi.backends.local.pool import worker_numbers

    return worker_numbers(state, paths)


def _takes_away(paths: names.RunPaths, fault: str) -> bool:
    """Whether a fault takes a node away, as it can of a run that goes on with fewer."""
    return fault != "kill" and "elastic" in read_plan(str(paths.plan))


def start_agent(paths: names.RunPaths, lock: int, log: IO[str]) -> None:
    """Start the agent of a run, which inherits the open *lock*."""
    _start_process([str(paths.folder)], None, log, [lock])


class WaitingAgent:
    """An agent without a run yet, which ends with the context where it gets none.

    Its start takes as long as the models of a spec, and has another core.
    """

    def __enter__(self) -> Self:
        from spotmpi.agent import handover

        self._connection, theirs = handover.pair()
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError, SpotmpiError):  # a start at the submission has the same error
            self._process = _start_process([handover.WAIT], theirs.fileno(), None)
        theirs.close()
        return self

    def hand_over(self, paths: names.RunPaths, lock: int, log: IO[str]) -> bool:
        """Give it a run; False where it cannot take one."""
        if self._process is None:
            return False
        from spotmpi.agent import handover

        return handover.hand_over(self._connection, str(paths.folder), lock, log.fileno())

    def __exit__(self, *error: object) -> None:
        self._connection.close()


def _continue_agent(paths: names.RunPaths) -> None:
    """Let the agent of a run go on that is stopped (SIGSTOP), so that it ends the ranks and records the end (Linux).

    Its processes are those that have the run's lock open, whatever their ids; to others SIGCONT would do no harm.
    """
    lock = os.path.realpath(paths.folder / record.LOCK)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(each.readlink()) == lock for each in (process / "fd").iterdir()):
                os.kill(int(process.name), signal.SIGCONT)


def _acquire(paths: names.RunPaths, lock: int) -> None:
    """Take the run's lock; an agent releases it shortly after it has recorded the end."""
    deadline = time.monotonic() + _RELEASE_TIMEOUT
    while True:
        try:
            if not lock_file(lock):
                remedy = "needed to see whether a run is alive; use --runs FOLDER on a local disk"
                raise SpotmpiError(f"the file system of {paths.folder} has no locks, {remedy}")
            return
        except BlockingIOError:
            if time.monotonic() > deadline or not reader.state(paths).has_end:
                raise RunInUse(f"run {paths.id} is still running; stop it with `spotmpi stop {paths.id}`") from None
        time.sleep(0.01)


def _with_dask(plan: RunPlan, spec: JobSpec, echo: Echo) -> RunPlan:
    """The plan of a pool or stream, whose command finds Dask where its interpreter has none."""
    command = spec.command or []
    if spec.pool and not command:
        return plan  # scheduler and workers use this interpreter
    named = command[0] if command and Path(command[0]).name.startswith("python") else None
    python = shutil.which(named or "python3", path=plan["environment"].get("PATH"))
    if python is None or Path(python).parent == Path(sys.executable).parent:
        return plan
    from spotmpi.images.wheels import unpack_for

    folder = unpack_for(python, echo, named)
    if folder is None:
        return plan
    entry = names.path_entry(str(folder), "spotmpi", "set SPOTMPI_CACHE to another folder")
    paths = [plan["environment"].get("PYTHONPATH", ""), entry]
    return {**plan, "environment": {**plan["environment"], "PYTHONPATH": ":".join(filter(None, paths))}}


def _start_process(
    arguments: list[str], stdin: int | None, log: IO[str] | None, files: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A process of the agent, in a session of its own and without the variables of a rank; None is the null device."""
    import atexit
    import pwd
    import re
    import subprocess

    environment = {key: value for key, value in os.environ.items() if not re.fullmatch(_RANK_VARIABLES, key)}
    with contextlib.suppress(KeyError):  # mpirun needs a home folder; services of systemd may have none
        environment.setdefault("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    environment.setdefault("HOME", "/")  # of a user whom this machine does not know, as container engines set it
    process = subprocess.Popen(
        # Importable from its working directory: PYTHONPATH stays as the user set it for the program.
        [sys.executable, "-S", "-E", "-m", "spotmpi.agent", *arguments],
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=log or subprocess.DEVNULL,
        stderr=log or subprocess.DEVNULL,
        cwd=names.rank_source(),
        env=environment,
        pass_fds=files,
        start_new_session=True,
    )
    if not _agents:
        atexit.register(_leave_agents)
    _agents[:] = [each for each in (*_agents, process) if each.poll() is None]
    return process


def _leave_agents() -> None:
    """Wait for no agent, which may outlive this process: of a process that is not waited for Python would warn."""
    for each in _agents:
        if each.poll() is None:
            each.returncode = 0
