"""Runs on a Slurm cluster: one job per run, whose agents record it in the run folder."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from spotmpi.agent import record, stop_requests
from spotmpi.agent import slurm as agent
from spotmpi.agent.context import REQUESTS
from spotmpi.agent.files import exists
from spotmpi.agent.plan import NODE, WORKER, Member
from spotmpi.agent.pod_context import AGENT_PLAN, CODE_ARCHIVE
from spotmpi.backends.base import Plan, PoolAddress, no_member, unrecorded
from spotmpi.backends.downloads import report_skipped
from spotmpi.backends.kill_ranks import PROGRAM, require_killed
from spotmpi.backends.slurm import queue
from spotmpi.backends.slurm.files import RunFiles, archive
from spotmpi.backends.slurm.follow import Watch
from spotmpi.backends.slurm.login import Controller, Login, NoAnswer, NoCluster, NoController
from spotmpi.backends.slurm.queue import QueuedJob
from spotmpi.core import archives, names, wording
from spotmpi.core.errors import RunInUse, SpotmpiError, input_error
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.core.reminders import Wait, reminders
from spotmpi.core.wording import Echo
from spotmpi.runs import ownership, reader, recorded_plan
from spotmpi.runs.folder import folder_events
from spotmpi.runs.reader import RunState

if TYPE_CHECKING:
    from spotmpi.plan.slurm import SlurmPlan, SlurmTarget
    from spotmpi.spec.job import JobSpec
    from spotmpi.spec.validate import TargetCapabilities

LOOK_INTERVAL = 5.0  # seconds between looks at the queue of one follower: slurmctld serves all users
SILENCE_LIMIT = 600.0  # seconds for which a follower waits for its answer
KILL_LIMIT = 5.0  # seconds in which agents end a run that is to end now; then Slurm does
_STEP = ("--overlap", "--cpu-bind=none", "--mpi=none", "--nodes=1", "--ntasks=1")  # of one node of a job
END_LIMIT = 60.0  # seconds in which the job of a run that has ended ends as well
_REMOTE_RUNS = "spotmpi/runs"  # in the home of the login node


class SlurmBackend:
    """Runs of one cluster, by its commands on this machine or on the login node *host*; new ones in *partition*."""

    def __init__(
        self, runs_folder: Path, host: str | None = None, partition: str | None = None, look: float = LOOK_INTERVAL
    ) -> None:
        self.runs_folder = runs_folder
        self.look_interval = look
        self.end_limit = END_LIMIT
        self.silence_limit = SILENCE_LIMIT
        self.controller = Controller()
        self._login = Login(host)
        self._partition = partition
        self._python = "python3" if host else sys.executable

    def inspect(self, spec: JobSpec) -> TargetCapabilities:
        """What is known of the cluster without a job; GPUs and programs that `slurm.setup` brings are left to it."""
        from spotmpi.backends.local import machine
        from spotmpi.images.environment import launchers_of

        is_here = self._login.host is None
        capabilities = machine.inspect(spec) if is_here else machine.inspect_client(spec)
        loads = bool(spec.slurm.setup) or not is_here
        return capabilities._replace(
            tools=frozenset(launchers_of(spec.image or "")) if loads else capabilities.tools,
            command_found=loads or capabilities.command_found,
            gpus=spec.resources.gpu * spec.world_size,
            processes=None,
            rate=spec.price and spec.price * spec.nodes,
            workers=False,
            several_sizes=False,
            images=is_here,
        )

    def plan(self, spec: JobSpec, run: str, echo: Echo) -> SlurmPlan:
        """The batch script and what agents do."""
        from spotmpi.core import code_folder
        from spotmpi.plan.agent_plan import AgentInputs
        from spotmpi.plan.slurm import own_folder, slurm_plan
        from spotmpi.runs import fingerprint

        target = self._target(spec, run)
        packed = code_folder.pack(*spec.code_paths) if spec.code or spec.files else None
        path = f"{own_folder(target)}/{CODE_ARCHIVE}"
        inputs = AgentInputs(
            work=fingerprint.identify(spec, local=False),
            files={},
            code={"archive": path, "bytes": len(packed.archive), "sha256": packed.sha256} if packed else None,
            rate=spec.price and spec.price * spec.nodes,
        )
        return slurm_plan(spec, run, target, inputs, names.user())

    def submit(self, spec: JobSpec, plan: Plan, echo: Echo) -> None:
        """Write the run folder, or continue in the old one, and submit the job."""
        from spotmpi.plan.slurm import options_in

        assert plan["backend"] == names.SLURM
        if spec.image is not None:
            from spotmpi.images import environment

            environment.prepare(spec.image, echo, spec.uses_gpus)
        paths = RunPaths(self.runs_folder / plan["run"])
        is_new = not exists(paths.events)
        if not is_new:
            self._require_over(paths, echo)
        try:
            paths.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unrecorded(paths.folder, error) from error
        with reader.lock(paths):
            self._write(spec, plan, paths, is_new)
        self._files(paths, plan["folder"]).refresh()
        try:
            script = _with_exports(plan["script"], spec.env_passthrough)
            self.controller.answer(lambda: queue.submit(self._login, options_in(plan["script"]), script))
        except (NoController, NoCluster) as error:
            self._record(paths, record.FAILED, str(error))
            raise
        except SpotmpiError as error:
            is_submitted = self._is_submitted(paths.id)
            if is_submitted:
                return
            if is_submitted is None or isinstance(error, NoAnswer):
                remedy = f"`spotmpi status {paths.id}` tells later whether Slurm has taken the job"
                raise SpotmpiError(f"{str(error).removesuffix('; try again')}; {remedy}") from error
            self._record(paths, record.FAILED, str(error))
            raise

    def _is_submitted(self, run: str) -> bool | None:
        """Whether Slurm has a job of a run, though sbatch did not say so; None where slurmctld does not tell."""
        with contextlib.suppress(SpotmpiError):
            job = self._awaited_job(run)
            return job is not None and not job.over
        return None

    def _require_over(self, paths: RunPaths, echo: Echo) -> None:
        """Wait for the end of the job of a run that has ended, whose agents use the same files; RunInUse otherwise."""
        if not (state := self.state(paths.id)).over:
            raise RunInUse(f"run {paths.id} is {state.state}; stop it with `spotmpi stop {paths.id}`")
        wait = Wait(self.end_limit, echo)
        while (job := self._awaited_job(paths.id)) and not job.over:
            if wait.is_over(f"job {job.id} of run {paths.id} has ended"):
                raise RunInUse(f"run {paths.id} has ended, and its job {job.id} is still {job.state}; try again later")
            time.sleep(0.2)

    def _write(self, spec: JobSpec, plan: SlurmPlan, paths: RunPaths, is_new: bool) -> None:
        """Write what the job and later commands need of the run."""
        from spotmpi.core.certificates import run_certificates
        from spotmpi.core.code_folder import pack_planned

        planned = plan["agents"].get("code")
        packed = pack_planned(*spec.code_paths, planned["sha256"]) if planned else None
        files = self._files(paths, plan["folder"])
        spec_text, plan_text = spec.to_toml(), json.dumps(plan, indent=1) + "\n"
        stale = [*(f"{agent.FOLDER}/{name}" for name in (agent.EXIT_CODE, agent.NOTICE, agent.PACKAGE))]
        stale += [record.SUMMARY, REQUESTS]
        for name, text in run_certificates(plan["run"]).items():
            files.write(f"{agent.FOLDER}/{name}", text.encode())
        files.remove(*stale)
        submitted = time.time()
        agents = {**plan["agents"], "submitted": submitted}
        content = {f"{agent.FOLDER}/{AGENT_PLAN}": json.dumps(agents).encode(), f"{agent.FOLDER}/{agent.STARTS}": b""}
        if packed:
            content[f"{agent.FOLDER}/{CODE_ARCHIVE}"] = packed.archive
        files.put(archive({**content, names.SPEC: spec_text.encode(), record.PLAN: plan_text.encode()}))
        files.put(archives.agent_archive(), f"{agent.FOLDER}/{agent.PACKAGE}")
        paths.spec.write_text(spec_text, encoding="utf-8")
        paths.plan.write_text(plan_text, encoding="utf-8")
        paths.summary.unlink(missing_ok=True)
        event = {"t": submitted, "event": record.SUBMITTED, "name": plan["name"], "continued": not is_new}
        files.append(paths.events.name, {**event, "owner": plan["owner"]})
        ownership.mark(paths)

    def events(self, run: str, follow: bool) -> Iterator[Event]:
        """The events in the run folder; a follower adds why the job waits, and its end where no agent could."""
        paths, _ = self._find(run)
        watch = Watch(self, paths, self.silence_limit if follow else 0.0)
        watch.alive()  # which may add to the record, before it is read
        return folder_events(paths, follow, watch.alive, own=watch.collect)

    def state(self, run: str) -> RunState:
        """The state that the record and the queue give; the record alone once it has the end, or nobody answers."""
        paths, files = self._find(run)
        files.refresh()
        state = reader.state(paths, writer_alive=True)
        if state.has_end or (jobs := self._jobs([paths])) is None:
            return state
        return self.reconcile(paths, jobs.get(paths.id))

    def list(self) -> list[RunState]:
        """The runs of this login node that the runs folder has, oldest first."""
        mine = [
            paths
            for paths in reader.every(self.runs_folder)
            if recorded_plan.slurm_of(paths) == recorded_plan.SlurmLogin(self._login.host)
        ]
        active = {paths.id for paths in mine if not reader.state(paths).has_end}
        for paths in (paths for paths in mine if paths.id in active):
            self.refresh(paths.id)
        jobs = self._jobs([paths for paths in mine if paths.id in active])
        return [
            reader.state(paths, writer_alive=True)
            if jobs is None or paths.id not in active
            else self.reconcile(paths, jobs.get(paths.id))
            for paths in mine
        ]

    def reconcile(self, paths: RunPaths, job: QueuedJob | None) -> RunState:
        """The state of a run with this *job*; the end of a job whose agents recorded none is recorded here."""
        if job is None or job.over:
            self.refresh(paths.id)  # with all that agents wrote until then
        state = reader.state(paths, writer_alive=True)
        if state.has_end:
            return state
        if job is None:
            return replace(state, state=record.LOST, reason=reader.lost_reason(paths))
        if job.over:
            self._record(paths, *self._end_of(paths, job))
            return reader.state(paths, writer_alive=True)
        if job.waits:
            return replace(state, state=record.WAITING, reason=job.why())
        was_suspended = (state.state, state.reason) == (record.WAITING, job.suspension)
        return replace(state, state=reader.RUNNING, reason=None) if was_suspended else state

    def refresh(self, run: str) -> None:
        """Copy to this machine what agents have written since the last copy."""
        self._find(run)[1].refresh()

    def silence(self, paths: RunPaths, attempt: int) -> str | None:
        """That node 0 of an *attempt* answers the other nodes nothing, as they print; None where it does."""
        line = self._find(paths.id)[1].newest_wait()
        return line.removeprefix("waiting for ") if f" attempt {attempt} " in line else None

    def job(self, run: str) -> QueuedJob | None:
        """The newest job of a run, None where Slurm knows none."""
        return queue.find(self._login, [run]).get(run)

    def _awaited_job(self, run: str) -> QueuedJob | None:
        return self.controller.answer(lambda: self.job(run))

    def _jobs(self, runs: Collection[RunPaths]) -> dict[str, QueuedJob] | None:
        """The newest job of each of *runs*; None where slurmctld does not answer, and agents of all run or have ended.

        They may have ended while squeue tried.
        """
        recorded = (reader.RUNNING, *record.TERMINAL)

        def is_needed() -> bool:
            return any(reader.state(paths, writer_alive=True).state not in recorded for paths in runs)

        return self.controller.answer(lambda: queue.find(self._login, [paths.id for paths in runs]), is_needed)

    def record_waiting(self, paths: RunPaths, job: QueuedJob) -> None:
        """Record why the run waits, once for each reason, and end it after ``limits.start`` where its spec has that.

        Queues are hours long at many sites, so the default of that limit counts only from the start of the job.
        """
        if reader.state(paths, writer_alive=True).has_end:
            return
        limit = _recorded(paths)["queue_limit"] if job.state != queue.SUSPENDED else None
        if limit is not None and time.time() > queue.waits_since(paths, job) + limit:
            self._cancel(job)
            self._record(paths, record.FAILED, f"limits.start ({wording.duration(limit)}) is over: {job.why()}")
        else:
            self._record(paths, record.WAITING, job.why())

    def stop(self, run: str, reason: str, now: bool) -> None:
        """Ask node 0's agent by a file in the run folder; without one, or where it does not answer, cancel the job."""
        paths, files = self._find(run)
        if self.state(paths.id).over:
            return
        request = stop_requests.KILL if now else stop_requests.STOP
        files.write(f"{REQUESTS}/{request}", json.dumps({"reason": reason}).encode())
        jobs = self._jobs([paths])
        job = (jobs or {}).get(paths.id)
        runs = jobs is None or (job is not None and not job.over and not job.waits)
        deadline = time.monotonic() + KILL_LIMIT
        while now and runs and time.monotonic() < deadline:
            time.sleep(0.2)
            files.refresh()
            if reader.state(paths, writer_alive=True).has_end:
                return
        job = self._awaited_job(paths.id) if now and jobs is None else job
        if job and not job.over and (now or job.waits):
            self.controller.answer(lambda: self._cancel(job))

    def require_fault(self, run: str, member: Member, fault: str) -> None:
        """Refuse the deletion of a node, which Slurm does not have, and a node that the job does not have."""
        _require_supported(fault)
        self._running(run, member)

    def inject_fault(self, run: str, member: Member, fault: str) -> None:
        """Put the job back into the queue, as when nodes are taken away (evict), or kill the ranks of a node (kill)."""
        _require_supported(fault)
        job, host = self._running(run, member)
        if fault == "evict":
            self._login.run("requeue the job", ["scontrol", "requeue", str(job.id)])
        else:
            printed = self._login.run("kill the ranks", [*_srun(job, host), self._python, "-c", PROGRAM, job.name])
            require_killed(printed.decode(), job.name, member)

    def shell(self, run: str, member: Member) -> Sequence[str]:
        """A step of the job on one of its nodes."""
        job, host = self._running(run, member)
        return self._login.command([*_srun(job, host), "--pty", "/bin/sh"], "-t")

    def pull(self, run: str, echo: Echo, part: str | None = None) -> Path:
        """The run folder; of a login node, its copy on this machine."""
        paths, files = self._find(run)
        files.refresh()
        with reminders(lambda seconds: f"still copying run {paths.id}, for {seconds:.0f} s", echo):
            skipped = files.pull(part)
        report_skipped(skipped, paths.id, echo)
        return paths.folder

    def pool_address(self, run: str) -> AbstractContextManager[PoolAddress]:
        """Never: runs on Slurm are not pools."""
        self._refuse_pool(run)

    def forward_port(self, run: str, port: int) -> AbstractContextManager[int]:
        """Never: only pools have ports to forward."""
        self._refuse_pool(run)

    def resize(self, run: str, workers: int, role: str = WORKER) -> None:
        """Never: runs on Slurm are not pools."""
        self._refuse_pool(run)

    def _refuse_pool(self, run: str) -> NoReturn:
        self._find(run)
        place = wording.option("on", "kubernetes")
        raise input_error("run", run, f"is not a pool: Slurm has none; use {place} for one")

    def _find(self, run: str) -> tuple[RunPaths, RunFiles]:
        paths = reader.find(run, self.runs_folder)
        if recorded_plan.slurm_of(paths) is None:
            raise input_error(
                wording.option("on"), "slurm", f"run {paths.id} is not on Slurm: omit {wording.option('on')}"
            )
        return paths, self._files(paths, str(_recorded(paths)["folder"]))

    def _files(self, paths: RunPaths, folder: str) -> RunFiles:
        return RunFiles(self._login, paths, folder, self._python)

    def _running(self, run: str, member: Member) -> tuple[QueuedJob, str]:
        """The job of a run and the name of a node; SpotmpiError where it does not run."""
        paths, _ = self._find(run)
        job = self._awaited_job(paths.id)
        if job is None or job.over or job.waits:
            raise SpotmpiError(f"run {paths.id} has no nodes at the moment; see `spotmpi status {paths.id}`")
        hosts = queue.hosts(self._login, job)
        if member.role != NODE or member.number >= len(hosts):
            raise no_member(paths.id, member, {NODE: len(hosts)})
        return job, hosts[member.number]

    def _cancel(self, job: QueuedJob) -> None:
        self._login.run("cancel the job", ["scancel", str(job.id)])

    def _end_of(self, paths: RunPaths, job: QueuedJob) -> tuple[str, str]:
        """How a run ended whose *job* is over and whose agents recorded no end."""
        if job.state == queue.CANCELLED:
            requested = stop_requests.reason(str(paths.folder))
            return record.STOPPED, requested or f"its job {job.id} was cancelled"
        last = self._find(paths.id)[1].last_output()
        reason = f"its job {job.id} ended as {job.state} ({job.reason}), and no agent recorded why"
        return record.FAILED, f"{reason}; last output: {last}" if last else reason

    def _record(self, paths: RunPaths, kind: str, reason: str) -> None:
        """Record what no agent does, unless the run has ended or the record says so: others may follow it as well."""

        def is_recorded() -> bool:
            state = reader.state(paths, writer_alive=True)
            return state.has_end or (state.state, state.reason) == (kind, reason)

        if is_recorded():
            return
        _, files = self._find(paths.id)
        files.refresh()
        with reader.lock(paths):
            if not is_recorded():
                files.append(paths.events.name, {"t": time.time(), "event": kind, "reason": reason})
        files.refresh()

    def _target(self, spec: JobSpec, run: str) -> SlurmTarget:
        """Where the job of a run works: over ssh in the user's home folder there, else in the runs folder."""
        from spotmpi.images import environment
        from spotmpi.plan.slurm import SlurmTarget

        if self._login.host is not None:
            home = self._login.run("reach the login node", ["pwd"]).decode().strip()
            folder = f"{home}/{_REMOTE_RUNS}/{run}"
            return SlurmTarget(folder, home, self._python, self._login.host, self._partition)
        return SlurmTarget(
            folder=str(self.runs_folder / run),
            start=self._start(spec, run),
            python=self._python,
            partition=self._partition,
            image_bin=str(environment.location(spec.image, spec.uses_gpus) / "bin") if spec.image else None,
            path=os.environ.get("PATH", os.defpath) if spec.image else None,
        )

    def _start(self, spec: JobSpec, run: str) -> str:
        """Where a command starts that comes without code: of a resumed run, in its first folder."""
        paths = RunPaths(self.runs_folder / run)
        is_resumed = exists(paths.events) and not (spec.code or spec.files)
        return _recorded(paths)["agents"]["folder"] if is_resumed else str(Path.cwd())


def _with_exports(script: str, variables: Sequence[str]) -> bytes:
    """A batch script that passes on *variables* of this terminal, which no plan records."""
    first, *rest = script.splitlines(keepends=True)
    exports = [f"export {name}={shlex.quote(os.environ[name])}\n" for name in variables]
    directives = [line for line in rest if line.startswith("#SBATCH")]
    return "".join([first, *directives, *exports, *rest[len(directives) :]]).encode()


def _require_supported(fault: str) -> None:
    if fault not in ("evict", "kill"):
        choices = f"{wording.option('fault', 'evict')} and {wording.option('fault', 'kill')}"
        raise input_error(wording.option("fault"), fault, f"a run on Slurm supports {choices}")


def _srun(job: QueuedJob, host: str) -> list[str]:
    """A step on one node of a job, which shares what the job has there."""
    return ["srun", f"--jobid={job.id}", *_STEP, f"--nodelist={host}"]


def _recorded(paths: RunPaths) -> SlurmPlan:
    """The plan in the run folder; InputError where it cannot be read."""
    plan = recorded_plan.json_object(paths.plan)
    if "agents" not in plan:
        raise input_error("run", paths.id, f"its {paths.plan.name} cannot be read")
    return cast("SlurmPlan", plan)
