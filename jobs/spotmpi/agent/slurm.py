"""The first process of every node of a Slurm job (``python -m spotmpi.agent.slurm FOLDER``): one attempt.

FOLDER is the folder of a run on a file system that all nodes share. The batch script (`spotmpi.plan.slurm`) starts one
such process per node for each attempt, until node 0 has written the exit code of the run. Where a node was lost or the
job is about to end, node 0 puts the job back into the queue instead: it continues there from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from typing import Mapping, NamedTuple

from . import __main__, hardware, launchers, protocol, record
from .attempt_history import avoided_machines
from .clock import CLOCK, Clock
from .connection import Identity
from .context import REQUESTS, AgentContext, Mounts
from .files import write_atomically
from .plan import NODE, Member, RunPlan, read_plan
from .pod_context import AGENT_PLAN, ENV_RESTART_COUNT
from .schema import read_attempt
from .stop_requests import PreemptionNotice
from .tcp import Tcp

FOLDER = "slurm"  # in the run folder: what batch script, agents and terminals tell each other
NOTICE = "notice"  # exists once Slurm has announced the end of the job
UNSTARTED = "unstarted"  # exists until node 0 has started an attempt
EXIT_CODE = "exit-code"  # exists once the run is over
STARTS = "starts"  # has a byte for each start of the agents since the run was submitted
OUTPUT = "job.log"
PING = ["scontrol", "ping"]  # succeeds where slurmctld answers
PACKAGE = "package"  # the folder with the agent's code
NOTICE_INTERVAL = 1.0  # seconds between looks for the notice, on a file system that is shared
ANSWER_LIMIT = 2.0  # seconds in which slurmctld answers
# Seconds between questions to one that does not. One that has just started answers, and refuses steps for some more.
ASK_INTERVAL = 5.0
EARLIER_LIMIT = 90.0  # seconds in which an earlier agent ends by itself, and after which it is killed
# Ports below those that Linux gives to clients, as many for each job: several jobs may share a node.
_FIRST_PORT, _PORTS, _JOBS = 20000, 4, 3000
# What describes the task of an agent would mislead the ranks that it starts, which are not tasks of Slurm's.
_OF_JOB = ("SLURM_JOB_", "SLURM_JOBID", "SLURM_SUBMIT_", "SLURM_TMPDIR", "SLURM_CONF", "SLURM_CLUSTER_NAME")


class JobNotice(PreemptionNotice):
    """A `PreemptionNotice` that the batch script gives by a file, too, when Slurm is about to end the job."""

    def __init__(self, path: str, clock: Clock) -> None:
        super().__init__("the job on this node")
        self._clock = clock
        self._path = path
        self._announced = False
        self._next_look = clock.uptime()

    @property
    def reason(self) -> str | None:
        """What ends this node, or None."""
        if not self._announced and self._clock.uptime() >= self._next_look:
            self._next_look = self._clock.uptime() + NOTICE_INTERVAL
            self._announced = os.path.exists(self._path)
        if self._announced:
            return "Slurm is about to end the job, at its time limit or for another one"
        return super().reason


class Controller:
    """slurmctld, without which srun starts no daemon of mpirun: an attempt then would fail for that alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_question = clock.uptime()
        self._was_away = False

    def missing(self) -> str | None:
        """What to wait for, or None; it is asked before each attempt, and again while it does not answer."""
        if self._clock.uptime() >= self._next_question:
            was_away, self._was_away = self._was_away, not _answers()
            if not (was_away or self._was_away):
                return None
            self._next_question = self._clock.uptime() + ASK_INTERVAL
        return "slurmctld does not answer or has just come back, and srun starts no ranks without it"


def mounts(folder: str, environ: Mapping[str, str]) -> Mounts:
    """Those of an agent of the run in *folder*."""
    own = os.path.join(folder, FOLDER)
    runs, run = os.path.split(folder)
    return Mounts(
        plan=os.path.join(own, AGENT_PLAN),
        secret=own,
        work=work_folder(run),
        runs=runs,
        requests=os.path.join(folder, REQUESTS),
        cgroup=_cgroup("job_" + environ["SLURM_JOB_ID"]),
        image_record=hardware.IMAGE_RECORD,
        shared_memory=os.path.join(memory_folder(run), "mpi"),
    )


def work_folder(run: str) -> str:
    """The folder of each node's agent alone, on the node's own disk."""
    return "/tmp/spotmpi-" + run


def memory_folder(run: str) -> str:
    """The folder of a run in each node's memory, for staged data and checkpoints."""
    return "/dev/shm/spotmpi-" + run


class Ports(NamedTuple):
    """The ports of a job, for agents, ranks, and checkpoints in memory, of which the next one is used too."""

    agents: int
    ranks: int
    copies: int


def ports(job: int) -> Ports:
    """Those of *job*: neighbours in the queue, which may share a node, have other ones."""
    first = _FIRST_PORT + job % _JOBS * _PORTS
    return Ports(first, first + 1, first + 2)


def read_context(folder: str, environ: Mapping[str, str], hosts: list[str], clock: Clock) -> AgentContext:
    """That of this task's agent, from its environment; *hosts* are the names of the job's nodes in Slurm's order."""
    own = mounts(folder, environ)
    plan: RunPlan = {**read_plan(own.plan), "hosts": hosts}
    return AgentContext(
        plan,
        Member(NODE, int(environ["SLURM_PROCID"])),
        int(environ[ENV_RESTART_COUNT]),
        Identity(plan["run"], os.path.join(folder, FOLDER)),
        own,
        clock,
        ports(int(environ["SLURM_JOB_ID"])).ranks,
        slurm=True,
    )


def main(folder: str) -> int:
    """Run this node's part of one attempt; the exit code is for people, the batch script reads `EXIT_CODE`."""
    job = os.environ["SLURM_JOB_ID"]
    hosts = _output(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]).split()
    os.environ[hardware.ENV_NODE_NAME] = os.environ["SLURMD_NODENAME"]
    context = read_context(folder, os.environ, hosts, CLOCK)
    for name in [name for name in os.environ if name.startswith("SLURM") and not name.startswith(_OF_JOB)]:
        del os.environ[name]
    own, used = os.path.join(folder, FOLDER), ports(int(job))
    presence = announce_presence(context.plan["run"], CLOCK)
    notice = JobNotice(os.path.join(own, NOTICE), CLOCK)
    if context.is_coordinator:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(own, UNSTARTED))
    # Written by an earlier agent, which lived until srun could start this one.
    if os.path.exists(os.path.join(own, EXIT_CODE)):
        return 0
    _make_private(context.mounts.work)
    starts_by_srun = launchers.is_mpi(context.plan["launcher"]) and len(hosts) > 1
    transport = Tcp(used.agents, Controller(CLOCK).missing if starts_by_srun else None)
    try:
        code = __main__.run_member(context, transport, notice, used.copies)
    finally:
        shutil.rmtree(context.mounts.work, ignore_errors=True)
        shutil.rmtree(memory_folder(context.plan["run"]), ignore_errors=True)
        presence.close()
    if not context.is_coordinator:
        return code
    if code not in (protocol.FAILED, protocol.INTERRUPTED):
        write_atomically(os.path.join(own, EXIT_CODE), "%d\n" % min(code, 1))
    else:
        _requeue_from(job, folder, {*hosts, os.environ[hardware.ENV_NODE_NAME]})
    return code


def _requeue_from(job: str, folder: str, machines: set[str]) -> None:
    """Put a *job* back into the queue where its *machines* go, are lost or at fault; else its script starts anew."""
    avoided = avoided_machines(folder)
    at_fault = not machines.isdisjoint(avoided)
    if os.path.exists(os.path.join(folder, FOLDER, NOTICE)) or _lost_nodes(folder) or at_fault:
        # To requeue the job ends this step, by a SIGTERM that commands of this process get as well.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.run(["scontrol", "requeue", job], stdin=subprocess.DEVNULL)
        _exclude(job, sorted(avoided))


def announce_presence(run: str, clock: Clock) -> socket.socket:
    """What this node's agent of *run* holds open while it uses the run's ports and folders here.

    An earlier agent is asked to end, which writes a checkpoint, and killed if it does not. There is one where srun was
    killed: the batch script starts agents anew, and Slurm does not end those before.

    Raises:
        TimeoutError: an earlier agent does not end.
    """
    name = "\0spotmpi-agent-" + run  # no file, and free once its process has ended: unix(7)
    presence, begin, sent = socket.socket(socket.AF_UNIX), clock.uptime(), 0
    while True:
        try:
            presence.bind(name)
            presence.listen(1)
            return presence
        except OSError as error:
            waited = clock.uptime() - begin
            if waited > 2 * EARLIER_LIMIT:
                raise TimeoutError("an earlier agent of run %s on this node does not end" % run) from error
        number = signal.SIGKILL if waited > EARLIER_LIMIT else signal.SIGTERM
        if number != sent:
            sent = number
            text = "waiting until an earlier agent of this run on this node has ended, after %s; gives up after %g s\n"
            sys.stderr.write(text % (signal.Signals(number).name, 2 * EARLIER_LIMIT))
            # The process that listens there, if there still is one.
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                client.connect(name)
                peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                os.kill(struct.unpack("3i", peer)[0], number)
        clock.sleep(0.1)


def _exclude(job: str, nodes: list[str]) -> None:
    """Let Slurm start a *job* on other nodes than these, besides those that it excludes already.

    That can be changed only while the job is pending, which it is once it was requeued: it starts again when the
    processes of this start have ended.
    """
    if not nodes:
        return
    text = _output(["scontrol", "-o", "show", "job", job])
    found = re.search(r"\bExcNodeList=(\S+)", text)
    before = [found.group(1)] if found and found.group(1) != "(null)" else []
    missing = [node for node in nodes if node not in before]
    arguments = ["JobId=" + job, "ExcNodeList=" + ",".join([*before, *missing])]
    if subprocess.run(["scontrol", "update", *arguments], stdin=subprocess.DEVNULL).returncode:
        sys.stderr.write("Slurm does not exclude %s; the run may get it again\n" % ", ".join(nodes))


def _make_private(folder: str) -> None:
    """Make the folder anew, for this user only; PermissionError where it is another user's."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        raise PermissionError("%s belongs to another user, or cannot be deleted: delete it" % folder) from None


def _lost_nodes(folder: str) -> list[int]:
    """The nodes that the newest attempt has lost."""
    attempts = os.path.join(folder, "attempts")
    newest = max(record.numbers(attempts), default=0)
    with contextlib.suppress(OSError):
        with open(os.path.join(attempts, str(newest), "node-0.json"), encoding="utf-8") as file:
            attempt = read_attempt(file.read())
            return list(attempt.get("lost_nodes") or ()) if attempt else []
    return []


def _cgroup(job: str) -> str:
    """The control group of a *job*; an empty path where this node keeps jobs in none."""
    folders = hardware.own_cgroup().split("/")
    return "/".join(folders[: folders.index(job) + 1]) if job in folders else ""


def _answers() -> bool:
    """Whether slurmctld answers in time."""
    nowhere = subprocess.DEVNULL
    try:
        done = subprocess.run(PING, stdin=nowhere, stdout=nowhere, stderr=nowhere, timeout=ANSWER_LIMIT)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _output(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
    return done.stdout.decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
