"""Slurm's queue: the jobs of runs, and in words why one waits."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from spotmpi.agent import record
from spotmpi.backends.slurm.login import UNSENT, Login, NoAnswer, NoController
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader

_FORMAT = "%i|%T|%r|%N|%j"  # of squeue(1): id, state, reason, nodes, name
# States of squeue(1). A job whose run has not ended completes because it was requeued, or killed.
_OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
_WAITING = {
    "COMPLETING",
    "CONFIGURING",
    "PENDING",
    "PREEMPTED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "SUSPENDED",
}
CANCELLED, COMPLETING, SUSPENDED = "CANCELLED", "COMPLETING", "SUSPENDED"
# Reasons of squeue(1), JOB REASON CODES, and two that slurmctld puts in their place. JOB stands for the id.
_REASONS = {
    "AccountNotAllowed": "its account may not use its partition",
    "BadConstraints": "no nodes have what it asks for",
    "BeginTime": "Slurm lets a job that was requeued wait for about two minutes",
    "Dependency": "it depends on a job that has not ended",
    "DependencyNeverSatisfied": "the job on which it depends has failed, so it never starts",
    "InvalidAccount": "Slurm does not know its account",
    "InvalidQOS": "Slurm does not know its QOS, or its account may not use it",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; `scontrol release JOB` releases it",
    "job requeued in held state": "it was requeued and is held; `scontrol release JOB` releases it",
    "launch failed requeued held": "Slurm could not start it, and holds it; `scontrol release JOB` lets it try again",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "None": "Slurm has not looked at it yet",
    "PartitionConfig": "its partition has no such nodes, or too few",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "it needs more nodes than its partition allows",
    "PartitionTimeLimit": "its time limit exceeds that of its partition",
    "Priority": "jobs with a higher priority come first",
    "QOSNotAllowed": "its QOS may not be used in its partition",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "Reservation": "it waits for its reservation",
    "Resources": "no nodes that fit are free",
}
_LIMITS = ("Assoc", "QOS", "MaxJobsPer", "MaxSubmit")  # how the reasons begin that are limits of an account


class QueuedJob(NamedTuple):
    """One job as squeue shows it."""

    id: int
    state: str
    reason: str
    nodes: str  # names in Slurm's short form, such as n[0-3]; empty while it has none
    name: str

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in _OVER

    @property
    def waits(self) -> bool:
        """Whether it has no nodes, and may get some, or may not use those that it has."""
        return self.state in _WAITING

    @property
    def queued(self) -> str:
        """How `why` begins while it is in the queue."""
        return f"job {self.id} waits in the queue of Slurm: "

    @property
    def suspension(self) -> str:
        """Why it waits while it is suspended, and keeps its nodes."""
        return f"job {self.id} is suspended; `scontrol resume {self.id}` lets it go on"

    def why(self) -> str:
        """Why it waits."""
        if self.state == SUSPENDED:
            return self.suspension
        if self.state == COMPLETING:
            return f"job {self.id} leaves its nodes; one that is down delays that until Slurm notices"
        reason = self.reason.partition(",")[0].strip("()")
        if text := _REASONS.get(reason):
            return f"{self.queued}{text.replace('JOB', str(self.id))} ({reason})"
        if reason.startswith(_LIMITS):
            return f"{self.queued}a limit of its account, user or QOS is reached ({reason})"
        return f"{self.queued}{self.reason}"


def parse(listing: str) -> list[QueuedJob]:
    """The jobs in what squeue printed."""
    rows = [line.split("|", 4) for line in listing.splitlines() if line.count("|") >= 4]
    return [QueuedJob(int(row[0]), *row[1:]) for row in rows if row[0].isdecimal()]


def submit(login: Login, options: Sequence[str], script: bytes) -> None:
    """Give slurmctld the job of *script*.

    Raises:
        NoController: slurmctld was not reached, so the job can be given to it again.
        NoAnswer: it may have taken the job.
        SpotmpiError: it has refused the job.
    """
    try:
        login.run("submit the job", ["sbatch", "--parsable", *options], script)
    except NoController as error:
        if any(words in str(error) for words in UNSENT):
            raise
        raise NoAnswer(str(error)) from error


def find(login: Login, runs: Collection[str]) -> dict[str, QueuedJob]:
    """This user's newest job of each of *runs*, for some minutes after its end too."""
    if not runs:
        return {}
    command = [
        "squeue",
        "--noheader",
        "--me",
        "--states=all",
        f"--format={_FORMAT}",
        f"--name={','.join(sorted(runs))}",
    ]
    jobs = parse(login.run("read the queue of Slurm", command).decode("utf-8", "replace"))
    return {job.name: job for job in sorted(jobs)}


def hosts(login: Login, job: QueuedJob) -> list[str]:
    """The names of a job's nodes, in Slurm's order."""
    return login.run("list the nodes of a job", ["scontrol", "show", "hostnames", job.nodes]).decode().split()


def waits_since(paths: RunPaths, job: QueuedJob) -> float:
    """Since when the run is in the queue: its submission or the end of an attempt, as far as an agent recorded that.

    Otherwise a follower found its *job* there, now or before.
    """
    since: float | None = None
    for event in reader.lines(paths.events):
        kind = event.get("event")
        is_queued = kind == record.WAITING and since is None and str(event.get("reason")).startswith(job.queued)
        if is_queued or kind in (record.SUBMITTED, record.INTERRUPTED, record.RESTARTED):
            since = float(event["t"])
        elif kind == record.STARTED:
            since = None
    return time.time() if since is None else since
