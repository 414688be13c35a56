"""The agent of a node of a Slurm job: what it reads from its environment, and what becomes of the job in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import launchers, pod_context, slurm, stop_requests
from spotmpi.agent.launchers import LAUNCHERS, OpenMpi, Remote, Start
from spotmpi.agent.outcomes import INTERRUPTION, SUCCEEDED
from spotmpi.agent.plan import NODE, Member
from spotmpi.agent.readiness import Readiness, Staging
from spotmpi.core.certificates import run_certificates, write_certificates
from spotmpi.core.names import SOURCE
from spotmpi.plan.agent_plan import AgentInputs
from spotmpi.plan.slurm import SlurmTarget, slurm_plan
from spotmpi.spec.source import from_values
from tests.clocks import SetClock

TASK = {"SLURM_JOB_ID": "6007", "SLURM_PROCID": "1", "SPOTMPI_RESTART_COUNT": "3"}


def run_folder(tmp_path: Path, **values: Any) -> Path:
    """The folder of a run of *values*, ready for its agents."""
    folder = tmp_path / f"run-{os.getpid()}"
    own = folder / slurm.FOLDER
    own.mkdir(parents=True)
    spec = from_values({"command": ["true"], "launcher": "none", **values})
    plan = slurm_plan(
        spec, folder.name, SlurmTarget(str(folder), str(tmp_path), sys.executable), AgentInputs({}, {}), ""
    )
    (own / pod_context.AGENT_PLAN).write_text(json.dumps({**plan["agents"], "submitted": 1e9}))
    write_certificates(own, run_certificates(folder.name))
    (own / slurm.UNSTARTED).touch()
    (folder / "events.jsonl").touch()
    return folder


def test_an_agent_knows_its_node_hosts_and_restarts_from_slurm(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, nodes=2)
    context = slurm.read_context(str(folder), TASK, ["n3", "n7"], SetClock())

    assert (context.member, context.restart_count, context.hosts) == (Member(NODE, 1), 3, ["n3", "n7"])
    assert context.folder == str(folder) and context.slurm
    assert context.mounts.work == f"/tmp/spotmpi-{folder.name}"
    assert stop_requests.pending(context.mounts) is None
    stop_requests.submit(str(folder), stop_requests.KILL, "enough")
    assert stop_requests.pending(context.mounts) == (stop_requests.KILL, "enough")
    assert stop_requests.reason(str(folder)) == "enough"


def test_jobs_after_each_other_have_different_ports_below_those_of_clients() -> None:
    used = [slurm.ports(job) for job in range(3000)]
    ports = [port for each in used for port in (*each, each.copies + 1)]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= 20000 and max(ports) < 32768


def test_a_notice_is_a_file_that_is_looked_for_once_a_second(tmp_path: Path) -> None:
    clock = SetClock()
    notice = slurm.JobNotice(str(tmp_path / "notice"), clock)
    assert notice.reason is None
    (tmp_path / "notice").touch()
    assert notice.reason is None
    clock.sleep(1.0)
    assert "about to end the job" in str(notice.reason)
    (tmp_path / "notice").unlink()
    assert notice.reason is not None


@pytest.mark.parametrize("family", [4, 5])
def test_mpirun_tells_srun_the_other_hosts(family: int) -> None:
    remote = Remote("/work/hosts", launchers.by_slurm(["n0", "n1", "n2"]), "eth0")
    command = " ".join(LAUNCHERS["mpirun"].arguments(Start(3, 1, mpi=OpenMpi("mpirun", family, True, remote))))
    option = "--prtemca" if family == 5 else "--mca"
    assert f"{option} plm slurm {option} plm_slurm_args --nodes=2 --nodelist=n1,n2" in command
    assert f"{option} ras ^slurm" in command and "--allow-run-as-root" in command
    assert "ssh_args" not in command and "rsh_args" not in command


def test_names_that_no_program_needs_are_not_waited_for() -> None:
    coordinator: Any = type("Double", (), {"missing": lambda self: [], "workers": {}, "hint": ""})()
    hosts = ["no-such-host.invalid"]
    missing = [
        Readiness(lambda: hosts, coordinator, Staging(None, ""), SetClock(), names).missing() for names in (False, True)
    ]
    assert missing[0] is None and "not in DNS" in str(missing[1])


class Node:
    """An agent as a process of its own, with a double of scontrol that notes its arguments.

    Once it has requeued the job, a SIGTERM ends the double: slurmctld sends that to each process of the job's steps
    (tests/slurm/test_slurm_runs.py, a node whose GPU has errors).
    """

    def __init__(self, tmp_path: Path, **values: Any) -> None:
        self.folder = run_folder(tmp_path, **values)
        self.own = self.folder / slurm.FOLDER
        self._bin = tmp_path / "bin"
        self._bin.mkdir()
        text = f"#!/bin/sh\ngrep -qs ^requeue {tmp_path}/calls && kill -TERM $$\n"
        text += f'echo "$@" >> {tmp_path}/calls\n[ "$1" = show ] && echo localhost\n'
        text += '[ "$1 $2" = "-o show" ] && echo "JobId=$4 ReqNodeList=(null) ExcNodeList=n7 CPUs=1"\nexit 0\n'
        (self._bin / "scontrol").write_text(text)
        (self._bin / "scontrol").chmod(0o755)
        self._calls = tmp_path / "calls"

    def run(self, job: int) -> int:
        own = {"SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n0", "SLURMD_NODENAME": "n0", "SLURM_STEP_ID": "0"}
        own["SLURM_TMPDIR"] = "/scratch/7"  # of sites whose prolog makes a folder of the job on each node
        environment = {**TASK, **own, "SLURM_JOB_ID": str(job), "SPOTMPI_RESTART_COUNT": "0"}
        environment |= {"PATH": f"{self._bin}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE)}
        command = [sys.executable, "-S", "-m", slurm.__name__, str(self.folder)]
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=60).returncode

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()

    @property
    def requeued(self) -> bool:
        return "requeue" in self._calls.read_text()

    @property
    def outcome(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.folder / "attempts" / "1" / "node-0.json").read_text())
        return values


# Each test has a job of its own, since ports follow from it, and tests run at once.
def test_the_end_of_a_run_is_the_exit_code_of_the_job(tmp_path: Path) -> None:
    node = Node(tmp_path, command=["sh", "-c", "env | grep ^SLURM > $0", str(tmp_path / "variables")])
    assert node.run(101) == 0
    assert (node.own / slurm.EXIT_CODE).read_text() == "0\n" and not node.requeued
    assert node.outcome["cause"] == SUCCEEDED and not (node.own / slurm.UNSTARTED).exists()
    names = {line.split("=")[0] for line in (tmp_path / "variables").read_text().splitlines()}
    assert names == {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TMPDIR"}
    assert not Path(slurm.work_folder(node.folder.name)).exists()


def test_a_run_that_failed_for_good_fails_its_job(tmp_path: Path) -> None:
    node = Node(tmp_path, command=["sh", "-c", "exit 78"])
    node.run(102)
    assert (node.own / slurm.EXIT_CODE).read_text() == "1\n"


def test_an_agent_that_starts_once_the_run_is_over_leaves_the_exit_code(tmp_path: Path) -> None:
    """A killed srun leaves its agents; once slurmctld was restarted, Slurm 22.05 starts no others until they end."""
    node = Node(tmp_path, command=["true"])
    assert (node.run(105), node.run(105)) == (0, 0)
    assert (node.own / slurm.EXIT_CODE).read_text() == "0\n"
    assert [path.name for path in (node.folder / "attempts").iterdir()] == ["1"]


def test_the_same_agents_start_another_attempt_after_one_that_failed(tmp_path: Path) -> None:
    node = Node(tmp_path, command=["false"], limits={"failures": 1})
    assert node.run(103) == 78
    assert (node.own / slurm.EXIT_CODE).read_text() == "1\n" and not node.requeued
    assert sorted(path.name for path in (node.folder / "attempts").iterdir()) == ["1", "2"]


def test_a_job_with_a_node_at_fault_is_requeued_without_it_and_keeps_what_it_excluded(tmp_path: Path) -> None:
    """ExcNodeList can be changed while a job is pending alone (scontrol(1)), so after it was requeued."""
    node = Node(tmp_path, command=["true"], resources={"gpu": 1})
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 0, 3\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    assert node.run(107) == 75
    assert (node.outcome["cause"], node.outcome["reason"]) == (INTERRUPTION, "node 0: GPU 0: 3 uncorrected ECC errors")
    requeued = node.calls.index("requeue 107")
    assert node.calls[requeued + 1 :] == ["-o show job 107", "update JobId=107 ExcNodeList=n7,n0"]


def test_a_job_that_is_about_to_end_is_requeued(tmp_path: Path) -> None:
    node = Node(tmp_path, command=["sleep", "60"])
    (node.own / slurm.NOTICE).touch()
    assert node.run(104) == 75
    assert node.requeued and node.outcome["cause"] == INTERRUPTION


def test_an_attempt_whose_ranks_srun_starts_waits_for_slurmctld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scontrol(1): `ping` fails where no slurmctld answers, and srun gives up without it."""
    clock, scontrol = SetClock(), tmp_path / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    controller = slurm.Controller(clock)
    for answer, pause, missing in (
        ("exit 0", 0.0, False),
        ("exit 1", 0.0, True),
        ("exit 0", 4.9, True),
        ("exit 0", 0.1, True),  # refuses steps for some seconds after its start
        ("exit 0", 5.0, False),
        ("sleep 9", 0.0, True),
    ):
        scontrol.write_text(f'#!/bin/sh\n[ "$1" = ping ] && {answer}\n')
        scontrol.chmod(0o755)
        monkeypatch.setattr(slurm, "ANSWER_LIMIT", 0.2 if "sleep" in answer else 20.0)
        clock.sleep(pause)
        assert ("slurmctld does not answer" in str(controller.missing())) == missing, (answer, pause)


def test_an_agent_ends_an_earlier_one_whose_ports_and_folders_it_uses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm leaves the agents of a srun that was killed."""
    run, sent = f"run-{os.getpid()}", list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    earlier, clock = slurm.announce_presence(run, SetClock()), SetClock()
    with pytest.raises(TimeoutError, match=f"an earlier agent of run {run} on this node does not end"):
        slurm.announce_presence(run, clock)
    assert sent == [(os.getpid(), signal.SIGTERM), (os.getpid(), signal.SIGKILL)]
    text = "waiting until an earlier agent of this run on this node has ended, after %s; gives up after 180 s\n"
    assert capsys.readouterr().err == text % "SIGTERM" + text % "SIGKILL"
    slurm.announce_presence(f"{run}-of-another", SetClock()).close()
    earlier.close()
    slurm.announce_presence(run, SetClock()).close()


def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "work").symlink_to("/")
    with pytest.raises(PermissionError, match="belongs to another user"):
        slurm._make_private(str(tmp_path / "work"))
