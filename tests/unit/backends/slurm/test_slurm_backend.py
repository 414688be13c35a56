"""The Slurm backend with scripted commands: what it records, and what it makes of the queue."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import pod_context, protocol, record, stop_requests
from spotmpi.agent import slurm as agent
from spotmpi.agent.context import REQUESTS
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from spotmpi.api.stopping import stop_run
from spotmpi.backends import targets
from spotmpi.backends.slurm import backend as slurm_backend
from spotmpi.backends.slurm import files, login
from spotmpi.backends.slurm.backend import SlurmBackend
from spotmpi.backends.slurm.follow import Watch
from spotmpi.backends.slurm.login import Controller, Login, NoAnswer
from spotmpi.backends.slurm.queue import QueuedJob, parse
from spotmpi.backends.targets import Target
from spotmpi.core import reminders
from spotmpi.core.errors import InputError, RunInUse, SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo
from spotmpi.runs import reader
from spotmpi.spec.source import from_values
from spotmpi.spec.validate import validate
from tests.contract.processes import wait_until
from tests.unit.backends.slurm.scripted_slurm import DOWN, FROZEN, NO_MUNGE, ScriptedSlurm

RUN = "train-1"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    double = ScriptedSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{double.folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return double


@pytest.fixture
def backend(slurm: ScriptedSlurm, tmp_path: Path) -> SlurmBackend:
    return SlurmBackend(tmp_path / "runs", look=0.0)


def submit(backend: SlurmBackend, echo: Echo = lambda text: None, **values: Any) -> None:
    spec = from_values({"command": ["true"], "launcher": "none", "nodes": 2, **values})
    backend.submit(spec, backend.plan(spec, RUN, print), echo)


def agents_record(backend: SlurmBackend, *events: dict[str, Any]) -> None:
    with (backend.runs_folder / RUN / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"t": 1e9, **event}) + "\n" for event in events)


def last_event(backend: SlurmBackend) -> tuple[str, str]:
    event = list(backend.events(RUN, False))[-1]
    return event.kind, str(event.reason)


def test_the_submitted_script_is_the_planned_one_with_the_variables_that_are_passed_on(
    backend: SlurmBackend, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "it's mine")
    spec = from_values({"command": ["true"], "launcher": "none", "env_passthrough": ["TOKEN"]})
    plan = backend.plan(spec, RUN, print)
    backend.submit(spec, plan, lambda text: None)

    passed_on = "export TOKEN='it'\"'\"'s mine'\n"
    assert slurm.script.replace(passed_on, "") == plan["script"] and passed_on in slurm.script
    assert "TOKEN='" not in (backend.runs_folder / RUN / "plan.yaml").read_text()
    assert slurm.script.index("#SBATCH --output") < slurm.script.index(passed_on)
    own = backend.runs_folder / RUN / "slurm"
    assert all((own / name).stat().st_mode & 0o777 == 0o600 for name in protocol.TLS_FILES)
    assert json.loads((own / "plan.json").read_text())["submitted"] > 0
    assert (own / "package" / "spotmpi" / "agent" / "slurm.py").is_file()


REASONS = [
    ("Priority", "jobs with a higher priority come first (Priority)"),
    ("Resources", "no nodes that fit are free (Resources)"),
    ("BeginTime", "was requeued wait for about two minutes (BeginTime)"),
    ("QOSMaxJobsPerUserLimit", "a limit of its account, user or QOS is reached (QOSMaxJobsPerUserLimit)"),
    ("QOSNotAllowed", "its QOS may not be used in its partition (QOSNotAllowed)"),
    ("PartitionConfig", "its partition has no such nodes, or too few (PartitionConfig)"),
    ("DependencyNeverSatisfied", "has failed, so it never starts (DependencyNeverSatisfied)"),
    ("AssocGrpGRES", "a limit of its account, user or QOS is reached (AssocGrpGRES)"),
    ("ReqNodeNotAvail, UnavailableNodes:n1", "nodes that it needs are down or reserved (ReqNodeNotAvail)"),
    ("JobHeldUser", "it is held; `scontrol release 7` releases it (JobHeldUser)"),
    ("job requeued in held state", "`scontrol release 7` releases it (job requeued in held state)"),
    ("launch failed requeued held", "`scontrol release 7` lets it try again (launch failed requeued held)"),
    ("FrontEndDown", "queue of Slurm: FrontEndDown"),
    ("Nodes required for job are DOWN, DRAINED", "queue of Slurm: Nodes required for job are DOWN, DRAINED"),
]


def test_a_run_waits_for_a_reason_in_words(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    submit(backend)
    for reason, words in REASONS:
        slurm.clear()
        slurm.show(RUN, "PENDING", reason)
        state = backend.state(RUN)
        assert state.state == "waiting" and str(state.reason).endswith(words), reason


def test_a_follower_records_each_reason_once(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    submit(backend)
    slurm.show(RUN, "PENDING", "Priority")
    assert [event.kind for event in backend.events(RUN, False)] == ["submitted", "waiting"]
    assert [event.kind for event in backend.events(RUN, False)] == ["submitted", "waiting"]
    slurm.show(RUN, "PENDING", "Resources", job=8)
    assert [event.kind for event in backend.events(RUN, False)] == ["submitted", "waiting", "waiting"]


def test_a_run_waits_for_ever_in_the_queue_unless_its_spec_sets_limits_start(
    backend: SlurmBackend, slurm: ScriptedSlurm
) -> None:
    submit(backend)
    agents_record(backend, {"event": record.RESTARTED})  # long ago
    slurm.show(RUN, "PENDING", "Priority")
    assert last_event(backend)[0] == "waiting"
    assert "scancel 7" not in slurm.calls


def test_limits_start_ends_a_run_that_waits(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    submit(backend, limits={"start": "10s"})
    agents_record(backend, {"event": record.RESTARTED})  # long ago
    slurm.show(RUN, "PENDING", "Priority")
    kind, reason = last_event(backend)
    assert kind == "failed" and reason.startswith("limits.start (10s) is over: job 7 waits")
    assert "scancel 7" in slurm.calls


def test_a_wait_counts_from_its_begin_where_no_agent_could_record_the_end_of_an_attempt(
    backend: SlurmBackend, slurm: ScriptedSlurm
) -> None:
    submit(backend, limits={"start": "10s"})
    agents_record(backend, {"event": record.STARTED, "attempt": 1})  # long ago
    slurm.show(RUN, "PENDING", "BeginTime")
    assert last_event(backend)[0] == "waiting" and "scancel 7" not in slurm.calls

    path = backend.runs_folder / RUN / "events.jsonl"
    *before, waiting = path.read_text().splitlines()
    path.write_text("\n".join([*before, json.dumps({**json.loads(waiting), "t": 1e9}), ""]))
    assert last_event(backend)[0] == "failed" and "scancel 7" in slurm.calls


def test_a_run_whose_job_is_suspended_keeps_its_nodes_and_runs_again_once_that_is_resumed(
    backend: SlurmBackend, slurm: ScriptedSlurm
) -> None:
    submit(backend, limits={"start": "10s"})
    agents_record(backend, {"event": record.INTERRUPTED}, {"event": record.STARTED, "attempt": 2})  # long ago
    slurm.show(RUN, "SUSPENDED", nodes="n[0-1]")
    assert last_event(backend) == ("waiting", "job 7 is suspended; `scontrol resume 7` lets it go on")
    assert backend.state(RUN).state == "waiting"
    slurm.clear()
    slurm.show(RUN, "RUNNING", nodes="n[0-1]")
    assert (backend.state(RUN).state, backend.state(RUN).reason) == ("running", None)
    assert "scancel 7" not in slurm.calls


@pytest.mark.parametrize(
    ("state", "reason", "kind", "words"),
    [
        (
            "TIMEOUT",
            "TimeLimit",
            "failed",
            "ended as TIMEOUT (TimeLimit), and no agent recorded why; last output: oops",
        ),
        ("OUT_OF_MEMORY", "OutOfMemory", "failed", "ended as OUT_OF_MEMORY"),
        ("CANCELLED", "None", "stopped", "its job 7 was cancelled"),
    ],
)
def test_the_end_of_a_job_that_no_agent_recorded_is_recorded_by_who_looks(
    backend: SlurmBackend, slurm: ScriptedSlurm, state: str, reason: str, kind: str, words: str
) -> None:
    submit(backend)
    (backend.runs_folder / RUN / "slurm" / "job.log").write_text("first\noops\nsrun: error: n0: task 0: Exited\n")
    slurm.show(RUN, state, reason)
    assert backend.state(RUN).state == kind and words in str(backend.state(RUN).reason)
    slurm.clear()
    assert [event.kind for event in backend.events(RUN, True)] == ["submitted", kind]


def test_of_two_followers_that_find_the_end_of_a_job_one_records_it(
    backend: SlurmBackend, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(backend)
    slurm.show(RUN, "CANCELLED")
    other, end_of = SlurmBackend(backend.runs_folder), backend._end_of

    def end_after_the_other(paths: RunPaths, job: QueuedJob) -> tuple[str, str]:
        assert other.state(RUN).over
        return end_of(paths, job)

    monkeypatch.setattr(backend, "_end_of", end_after_the_other)
    assert [event.kind for event in backend.events(RUN, True)] == ["submitted", "stopped"]


def test_a_run_whose_job_slurm_has_forgotten_is_lost(backend: SlurmBackend) -> None:
    submit(backend)
    assert backend.state(RUN).state == "lost"
    assert list(backend.events(RUN, True))[-1].kind == "lost"
    assert "Slurm has no job of it any more" in str(list(backend.events(RUN, True))[-1].reason)


def test_a_run_that_is_not_over_cannot_be_submitted_again(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    submit(backend)
    slurm.show(RUN, "RUNNING", nodes="n[0-1]")
    with pytest.raises(RunInUse, match="stop it with"):
        submit(backend)
    slurm.show(RUN, "CANCELLED", job=8)
    submit(backend)


def test_a_run_is_resumed_only_after_the_end_of_its_job_whose_agents_write_to_the_same_files(
    backend: SlurmBackend, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(backend)
    agents_record(backend, {"event": record.STOPPED})
    slurm.show(RUN, "COMPLETING")
    backend.end_limit = 0.3
    monkeypatch.setattr(reminders, "QUIET", -1.0)
    said: list[str] = []
    with pytest.raises(RunInUse, match="its job 7 is still COMPLETING"):
        submit(backend, said.append)
    assert said == [f"waiting until job 7 of run {RUN} has ended (gives up after 0.3 s)"]
    slurm.show(RUN, "COMPLETED", job=8)
    submit(backend)


def test_a_resumed_command_starts_in_its_first_folder(
    backend: SlurmBackend, slurm: ScriptedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(backend)
    slurm.show(RUN, "CANCELLED")
    monkeypatch.chdir("/")
    submit(backend)
    assert json.loads((backend.runs_folder / RUN / "slurm" / "plan.json").read_text())["folder"] == str(tmp_path)


def test_code_that_has_changed_since_the_plan_is_not_submitted(
    backend: SlurmBackend, slurm: ScriptedSlurm, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("first")
    spec = from_values({"command": ["true"], "launcher": "none", "files": [str(tmp_path / "a.py")]})
    plan = backend.plan(spec, RUN, print)
    (tmp_path / "a.py").write_text("second")
    with pytest.raises(SpotmpiError, match="has changed since the run was planned"):
        backend.submit(spec, plan, lambda text: None)
    assert not [call for call in slurm.calls if call.startswith("sbatch")] and backend.list() == []


def test_a_refused_job_is_recorded_as_failed(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    slurm.refuse()
    with pytest.raises(SpotmpiError, match="Invalid partition name"):
        submit(backend)
    assert [state.state for state in backend.list()] == ["failed"]


def test_without_slurms_commands_the_message_names_the_way_by_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "rm", "cat", "mv", "mkdir"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    backend = SlurmBackend(tmp_path / "runs")
    with pytest.raises(SpotmpiError, match=r"there is no sbatch on PATH; .*slurm@HOST\"$"):
        submit(backend)
    assert last_event(backend)[0] == "failed"


def test_without_the_configuration_of_a_cluster_nothing_is_sent_and_the_run_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue"):
        text = f"#!/bin/sh\necho '{name}: fatal: Could not establish a configuration source' >&2\nexit 1\n"
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    backend = SlurmBackend(tmp_path / "runs")
    with pytest.raises(SpotmpiError, match=r"a configuration source; set SLURM_CONF, or .* with on=\"slurm@HOST\"$"):
        submit(backend)
    assert last_event(backend)[0] == "failed"


@pytest.mark.parametrize(
    ("fault", "node", "problem"),
    [
        ("delete", 0, "supports .*evict.*kill"),
        ("evict", 2, "has node/0 to node/1"),
        ("kill", 9, "has node/0 to node/1"),
    ],
)
def test_a_fault_that_cannot_be_injected_is_refused(
    backend: SlurmBackend, slurm: ScriptedSlurm, fault: str, node: int, problem: str
) -> None:
    submit(backend)
    slurm.show(RUN, "RUNNING", nodes="n[0-1]")
    for refuse in (backend.require_fault, backend.inject_fault):
        with pytest.raises(InputError, match=problem):
            refuse(RUN, Member(NODE, node), fault)


def test_a_job_that_slurm_has_taken_is_followed_though_sbatch_failed(
    backend: SlurmBackend, slurm: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_JOB_NAME", "another")  # the job is found by its name
    slurm.lose_answers()
    submit(backend)
    assert backend.state(RUN).state == "waiting"
    backend.stop(RUN, "enough", now=False)
    assert "scancel 7" in slurm.calls


@pytest.mark.parametrize("words", [DOWN, NO_MUNGE], ids=["slurmctld", "munge"])
def test_a_job_that_never_reached_slurmctld_is_given_to_it_again(
    backend: SlurmBackend,
    slurm: ScriptedSlurm,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(login, "RETRY_INTERVAL", 0.0)
    slurm.lose_controller(2, words)
    submit(backend)
    assert [call.split()[0] for call in slurm.calls if call.startswith("sbatch")] == ["sbatch"] * 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spotmpi: cannot submit the job: sbatch: error: ")
    assert line.endswith("; this waits up to 120 s for it")


def test_a_job_that_slurmctld_is_not_back_for_has_failed(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    slurm.lose_controller()
    backend.controller.limit = 0.1
    with pytest.raises(SpotmpiError, match=r"connect failure\), for 0.1 s; `scontrol ping` shows"):
        submit(backend)
    slurm.find_controller()
    assert backend.state(RUN).state == "failed"


class ImpatientWithSbatch(Login):
    """Gives up on sbatch alone after half a second: on a busy machine other commands may need longer."""

    def run(self, purpose: str, command: Sequence[str], data: bytes = b"", allowed: Sequence[int] = (0,)) -> bytes:
        self._limit = 0.5 if "sbatch" in command else 60.0
        return super().run(purpose, command, data, allowed)


def test_of_a_job_that_slurm_may_have_taken_no_end_is_recorded(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    slurm.fall_silent()
    backend._login = ImpatientWithSbatch(None)
    with pytest.raises(SpotmpiError) as failed:
        submit(backend)
    assert str(failed.value) == (
        "cannot submit the job: sbatch did not answer within 0.5 s; "
        "`spotmpi status train-1` tells later whether Slurm has taken the job"
    )
    backend._login = Login(None)
    assert backend.state(RUN).state == "lost"
    slurm.show(RUN, "RUNNING", nodes="n0")
    assert not backend.state(RUN).over


def test_of_a_job_that_slurmctld_took_before_it_was_lost_no_end_is_recorded(
    backend: SlurmBackend, slurm: ScriptedSlurm
) -> None:
    slurm.lose_answers()
    slurm.lose_controller()
    backend.controller.limit = 0.1
    with pytest.raises(SpotmpiError, match=r"timed out.*; `spotmpi status train-1` tells later whether"):
        submit(backend)
    slurm.find_controller()
    assert (backend.state(RUN).state, last_event(backend)[0]) == ("waiting", "waiting")


@pytest.fixture
def messages(backend: SlurmBackend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What commands say while they wait for slurmctld, which they ask again at once."""
    monkeypatch.setattr(login, "RETRY_INTERVAL", 0.01)
    texts: list[str] = []
    backend.controller = Controller(texts.append, limit=30.0)
    return texts


STARTED = {"event": "started", "attempt": 1}


@pytest.mark.parametrize("words", [DOWN, NO_MUNGE, FROZEN])
@pytest.mark.parametrize(
    "command",
    ["status", *(pytest.param(each, marks=pytest.mark.extensive("waits as status does")) for each in ("list", "stop"))],
)
def test_commands_wait_for_slurmctld_or_munge_and_say_so_once(
    backend: SlurmBackend, slurm: ScriptedSlurm, messages: list[str], command: str, words: str
) -> None:
    submit(backend)
    slurm.show(RUN, "PENDING", "Priority")
    slurm.lose_controller(3, words)
    if command == "stop":
        backend.stop(RUN, "enough", now=False)
        assert "scancel 7" in slurm.calls
    else:
        (state,) = backend.list() if command == "list" else [backend.state(RUN)]
        assert state.state == "waiting"
    (message,) = messages
    assert message.startswith("cannot read the queue of Slurm: ")
    assert message.endswith(f"{words.splitlines()[-1]}; this waits up to 30 s for it")


def test_a_command_gives_slurmctld_up_with_one_line(
    backend: SlurmBackend, slurm: ScriptedSlurm, messages: list[str]
) -> None:
    submit(backend)
    slurm.lose_controller()
    backend.controller.limit = 0.1
    with pytest.raises(SpotmpiError) as caught:
        backend.state(RUN)
    assert str(caught.value) == (
        f"cannot read the queue of Slurm: {DOWN}, for 0.1 s; `scontrol ping` shows whether slurmctld answers; "
        "runs go on without it: repeat the command once it does"
    )
    assert len(messages) == 1


def test_a_run_with_agents_is_stopped_and_shown_without_slurmctld(
    backend: SlurmBackend, slurm: ScriptedSlurm, messages: list[str]
) -> None:
    submit(backend)
    agents_record(backend, STARTED)
    slurm.lose_controller()
    assert [backend.state(RUN).state, *(state.state for state in backend.list())] == ["running", "running"]
    backend.stop(RUN, "enough", now=False)
    assert (backend.runs_folder / RUN / REQUESTS / stop_requests.STOP).exists()
    agents_record(backend, {"event": "stopped", "reason": "enough", "attempt": 1})
    asked = len(slurm.calls)
    assert backend.state(RUN).over
    assert len(slurm.calls) == asked
    assert messages == [f"cannot read the queue of Slurm: {DOWN}; what agents record counts meanwhile"]


@pytest.mark.parametrize("now", [False, True])
def test_a_run_that_ends_while_squeue_finds_no_slurmctld_is_stopped(
    backend: SlurmBackend, slurm: ScriptedSlurm, messages: list[str], now: bool
) -> None:
    submit(backend)
    agents_record(backend, STARTED)
    slurm.lose_controller()
    paths = RunPaths(backend.runs_folder / RUN)
    request = paths.folder / REQUESTS / (stop_requests.KILL if now else stop_requests.STOP)
    end = json.dumps({"t": 1e9, "event": "stopped", "reason": "enough", "attempt": 1})
    slurm.pass_time(f"if [ -e '{request}' ]; then echo '{end}' >> '{paths.events}'; fi")
    assert stop_run(backend, RUN, "enough", now=now).state == "stopped"
    assert len(messages) == 1


def test_a_run_is_killed_without_slurmctld_by_its_agents_else_once_it_answers(
    backend: SlurmBackend, slurm: ScriptedSlurm, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_backend, "KILL_LIMIT", 0.3)
    submit(backend)
    slurm.show(RUN, "RUNNING", nodes="n0")
    agents_record(backend, STARTED)
    slurm.lose_controller(4)
    backend.stop(RUN, "enough", now=True)
    assert (backend.runs_folder / RUN / REQUESTS / stop_requests.KILL).exists()
    assert slurm.calls[-1] == "scancel 7"


def test_a_stop_that_agents_do_not_carry_out_gives_up_without_slurmctld(
    backend: SlurmBackend, slurm: ScriptedSlurm, messages: list[str]
) -> None:
    submit(backend)
    agents_record(backend, STARTED)
    slurm.lose_controller()
    backend.controller.limit = 0.5
    with pytest.raises(SpotmpiError, match=r"for 0.5 s; `scontrol ping`"):
        stop_run(backend, RUN, "enough")


def test_a_follower_says_once_that_slurmctld_does_not_answer(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    submit(backend)
    agents_record(backend, STARTED)
    slurm.lose_controller()
    watch = Watch(backend, RunPaths(backend.runs_folder / RUN), 600.0)
    assert [watch.alive() for _ in range(2)] == [True, True]
    (event,) = watch.collect()
    assert (event.kind, event.reason) == (
        "waiting",
        f"cannot read the queue of Slurm: {DOWN}; what agents record is shown meanwhile",
    )
    assert sum(call.startswith("squeue") for call in slurm.calls) == 1  # each question stops the output for ten seconds


def test_a_follower_says_once_what_other_nodes_print_of_a_node_0_that_answers_nothing(
    backend: SlurmBackend, slurm: ScriptedSlurm
) -> None:
    """The agent of node 0 records nothing while it hangs, and is lost after a minute and a half."""
    submit(backend)
    agents_record(backend, STARTED)
    slurm.show(RUN, "RUNNING", nodes="n[0-1]")
    watch = Watch(backend, RunPaths(backend.runs_folder / RUN), 600.0)
    said: list[str | None] = []

    def look(*lines: str) -> list[str | None]:
        with (backend.runs_folder / RUN / agent.FOLDER / agent.OUTPUT).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        watch.alive()
        said.extend(event.reason for event in watch.collect())
        return said

    silent = pod_context.WAITS_FOR_NODE_0 + pod_context.NODE_0_IS_SILENT % (20.0, 1, 60.0)
    assert look("waiting for node 0: its name is not in DNS") == []
    reason = silent.removeprefix("waiting for ")  # as each reason of a wait is shown after "waiting"
    assert look(silent, "srun: error") == look() == [reason]
    assert look("waiting for node 0: no longer, it answers again") == look() == [reason]
    assert look(silent) == [reason, reason]
    agents_record(backend, {"event": "interrupted", "attempt": 1}, {**STARTED, "attempt": 2})
    assert look(silent.replace("20 s", "21 s")) == [reason, reason], "of the attempt before"


def test_a_job_of_another_user_with_the_name_of_a_run_is_not_taken_for_it(
    backend: SlurmBackend, slurm: ScriptedSlurm
) -> None:
    submit(backend)
    slurm.show(RUN, "RUNNING", nodes="n0")
    slurm.show(RUN, "FAILED", job=9, mine=False)
    assert not backend.state(RUN).over
    backend.stop(RUN, "enough", now=True)
    assert "scancel 9" not in slurm.calls


def test_a_command_may_take_as_long_as_it_prints(tmp_path: Path) -> None:
    login = Login(None, limit=1.5)
    slow = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.3; done; cat"]
    assert login.run("count", slow, b"end") == b"1\n2\n3\n4\n5\n6\n7\n8\nend"
    with pytest.raises(NoAnswer, match=r"cannot wait: sleep did not answer within 0\.3 s"):
        Login(None, limit=0.3).run("wait", ["sleep", "60"])


def test_what_a_silent_command_lets_wait_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spotmpi.backends.slurm.login.QUIET", 0.0)
    silent = Login(None, limit=0.2)
    for _ in range(2):
        with pytest.raises(NoAnswer):
            silent.run("look", ["sleep", "60"])
    assert capsys.readouterr().err == "waiting until sleep answers (gives up after 0.2 s at the latest)\n"


def test_a_cache_folder_that_cannot_be_written_has_no_sockets_of_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SpotmpiError, match=f"cannot write {tmp_path}/file/cache: Not a directory; set SPOT"):
        Login("login").run("look", ["true"])


@pytest.fixture
def remote(slurm: ScriptedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SlurmBackend, Path]:
    """The backend by way of a login node, and the folder of the run there."""
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    backend = SlurmBackend(tmp_path / "copies", "login", look=0.0)
    submit(backend)
    return backend, slurm.folder / "home" / "spotmpi" / "runs" / RUN


def test_a_lost_connection_is_no_end_of_a_run(
    slurm: ScriptedSlurm, tmp_path: Path, remote: tuple[SlurmBackend, Path]
) -> None:
    (slurm.folder / "ssh").write_text("#!/bin/sh\necho 'Connection reset by peer' >&2\nexit 255\n")
    with pytest.raises(NoAnswer, match="Connection reset by peer"):
        remote[0].state(RUN)
    assert [event["event"] for event in reader.lines(tmp_path / "copies" / RUN / "events.jsonl")] == ["submitted"]


def test_a_follower_waits_for_a_login_node_that_does_not_answer_and_says_so_once(
    slurm: ScriptedSlurm, remote: tuple[SlurmBackend, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, there = remote
    monkeypatch.setattr("spotmpi.backends.slurm.follow.RETRY_INTERVAL", 0.0)
    with (there / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t": 1e10, "event": "succeeded"}) + "\n")
    slurm.refuse_connections(3)
    events = list(backend.events(RUN, True))
    assert [event.kind for event in events] == ["waiting", "submitted", "succeeded"]
    assert events[0].reason == (
        "cannot read the record of the run: Connection refused; the run goes on there, "
        "and this follows it again within 600 s"
    )


def test_a_follower_gives_a_login_node_up_with_the_command_that_follows_the_run_later(
    slurm: ScriptedSlurm, remote: tuple[SlurmBackend, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, _ = remote
    monkeypatch.setattr("spotmpi.backends.slurm.follow.RETRY_INTERVAL", 0.0)
    backend.silence_limit = 0.2
    slurm.refuse_connections(10_000)
    with pytest.raises(NoAnswer, match=r"refused; the run goes on there, and `spotmpi logs -f train-1` follows it$"):
        list(backend.events(RUN, True))
    slurm.refuse_connections(1)
    with pytest.raises(NoAnswer, match="Connection refused"):
        backend.events(RUN, False)


def test_a_pull_leaves_what_this_machine_knows_better_and_says_that_it_goes_on(
    remote: tuple[SlurmBackend, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, there = remote
    copy = backend.runs_folder / RUN
    own = {name: (copy / name).read_bytes() for name in ("spec.toml", "plan.yaml", ".own", ".lock")}
    others = ("keep.json", "bill.json", "nodes.json")
    for name in (*own, *others):
        (there / name).write_text("of the program")
    (there / "result.bin").write_bytes(bytes(100_000))
    said: list[str] = []
    pull = files.RunFiles.pull

    def pull_slowly(own: files.RunFiles, part: str | None) -> dict[str, str]:
        wait_until(lambda: said)
        return pull(own, part)

    monkeypatch.setattr(files.RunFiles, "pull", pull_slowly)
    monkeypatch.setattr(reminders, "INTERVAL", 0.01)
    backend.pull(RUN, said.append)
    assert re.fullmatch(rf"still copying run {RUN}, for \d+ s", said[0])
    assert (copy / "result.bin").stat().st_size == 100_000
    assert {name: (copy / name).read_bytes() for name in own} == own
    assert not any((copy / name).exists() for name in others)


def test_a_link_among_the_records_leads_no_copy_to_what_this_machine_knows_better(
    remote: tuple[SlurmBackend, Path],
) -> None:
    """As a program may leave one there: what it wrote in its place later was appended to the spec, for `--resume`."""
    backend, there = remote
    copy = backend.runs_folder / RUN
    spec = (copy / "spec.toml").read_text()
    log = there / "logs" / "1" / "node-1.log"
    log.parent.mkdir(parents=True)
    log.symlink_to("../../spec.toml")
    (there / "attempts").symlink_to("logs")
    (there / "metrics.jsonl").mkdir()
    messages: list[str] = []
    backend.pull(RUN, messages.append)
    log.unlink()
    log.write_text(spec + 'code = "/home/me"\n')
    backend.refresh(RUN)
    assert (copy / "spec.toml").read_text() == spec
    assert (copy / "logs" / "1" / "node-1.log").read_text() == log.read_text()
    assert messages == [
        "skipped in the download of train-1: attempts (is a link in the record), logs/1/node-1.log (is a link in the "
        "record), metrics.jsonl (is not a file)"
    ]


def test_what_a_program_leaves_among_the_records_does_not_stop_their_copies(
    remote: tuple[SlurmBackend, Path],
) -> None:
    backend, there = remote
    (there / "gone.json").symlink_to("nowhere")
    os.mkfifo(there / "pipe.log")
    (there / "secret.json").symlink_to("slurm/key.pem")
    with (there / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t": 1e9, "event": "started", "attempt": 1}) + "\n")
    backend._find(RUN)[1].refresh()
    assert reader.state(reader.find(RUN, backend.runs_folder), writer_alive=True).attempt == 1
    assert not (backend.runs_folder / RUN / "secret.json").exists()


def test_whoever_reads_the_end_of_a_run_has_all_that_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends when the size of one file was read and that of the others was not."""
    metrics, events = tmp_path / "metrics.jsonl", tmp_path / "events.jsonl"
    metrics.touch()
    events.write_text("started\n")
    lstat = os.lstat

    def end_meanwhile(path: str) -> os.stat_result:
        status = lstat(path)
        if not metrics.read_text():
            metrics.write_text("the last one\n")
            events.write_text("started\nsucceeded\n")
        return status

    printed = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(os, "walk", lambda folder: [(folder, [], ["metrics.jsonl", "events.jsonl"])])
        patch.setattr(os, "lstat", end_meanwhile)
        patch.setattr(sys, "stdin", io.StringIO(json.dumps([str(tmp_path), {}])))
        patch.setattr(sys, "stdout", SimpleNamespace(buffer=printed))
        exec(files._NEWS, {})
    printed.seek(0)
    with tarfile.open(fileobj=printed) as tar:
        assert {member.name: member.size for member in tar} == {"events.jsonl": 8, "metrics.jsonl": 13}


def test_faults_are_steps_and_commands_of_slurm(backend: SlurmBackend, slurm: ScriptedSlurm) -> None:
    submit(backend)
    with pytest.raises(SpotmpiError, match="has no nodes at the moment"):
        backend.inject_fault(RUN, COORDINATOR, "evict")
    slurm.show(RUN, "RUNNING", nodes="n[0-1]")
    backend.inject_fault(RUN, Member(NODE, 1), "evict")
    with pytest.raises(SpotmpiError, match="node 1 of run train-1 has no running ranks"):
        backend.inject_fault(RUN, Member(NODE, 1), "kill")
    (slurm.folder / "step").write_text("killed\n")
    backend.inject_fault(RUN, Member(NODE, 1), "kill")
    assert "scontrol requeue 7" in slurm.calls
    assert any("srun --jobid=7 --overlap" in call and "--nodelist=n1" in call for call in slurm.calls)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"launcher": "pool", "pool": {"count": 2}}, "pools need workers besides the nodes"),
        ({"stream": {"source": "/data", "workers": {"count": 1}}, "launcher": "none"}, "streams need workers besides"),
    ],
)
def test_what_slurm_runs_have_not_is_refused_with_a_remedy(
    backend: SlurmBackend, values: dict[str, Any], problem: str
) -> None:
    spec = from_values({"command": ["true"], **values})
    problems = [str(each) for each in validate(spec, backend.inspect(spec))]
    assert any(problem in each and "kubernetes" in each for each in problems), problems


def test_keys_for_a_cluster_of_kubernetes_do_no_harm(backend: SlurmBackend) -> None:
    spec = from_values({"command": ["true"], "launcher": "none", "kubernetes": {"namespace": "x", "volume": "y"}})
    assert validate(spec, backend.inspect(spec)) == []


@pytest.mark.parametrize(
    ("on", "host", "partition"),
    [
        ("slurm", None, None),
        ("slurm/gpu", None, "gpu"),
        ("slurm@login", "login", None),
        ("slurm@me@login.org/gpu", "me@login.org", "gpu"),
    ],
)
def test_a_target_names_login_node_and_partition(on: str, host: str | None, partition: str | None) -> None:
    chosen = targets.backend(Target(on, Path("/runs")))
    assert isinstance(chosen, SlurmBackend)
    assert (chosen._login.host, chosen._partition) == (host, partition)
    assert targets.environment_of(on) is None


@pytest.mark.parametrize(
    ("on", "remedy"),
    [
        ("slurm@", "name the login node after @, or omit @"),
        ("slurm@/gpu", "name the login node after @, or omit @"),
        ("slurm/", "name the partition after /, or omit /"),
        ("slurm@me@", "name the login node after @, or omit @"),
        ("kubernetes/", "name the namespace after /, or omit /"),
    ],
)
def test_a_target_with_an_empty_part_is_refused(on: str, remedy: str) -> None:
    """A run for `slurm@$HOST` was submitted to the Slurm of this machine where the variable was not set."""
    with pytest.raises(InputError, match=f"{on}.*{remedy}"):
        targets.backend(Target(on, Path("/runs")))


def test_a_run_is_found_on_slurm_by_its_record(backend: SlurmBackend) -> None:
    submit(backend)
    chosen = targets.backend_of(RUN, Target(None, backend.runs_folder))
    assert isinstance(chosen, SlurmBackend)
    assert reader.state(reader.find(RUN, backend.runs_folder)).state == reader.ELSEWHERE


@pytest.mark.parametrize("call", ["pool_address", "forward_port", "resize"])
def test_what_only_pools_have_is_refused(backend: SlurmBackend, call: str) -> None:
    submit(backend)
    with pytest.raises(InputError, match="is not a pool"):
        getattr(backend, call)(RUN, *([1] if call != "pool_address" else []))


def test_jobs_of_others_and_arrays_in_the_queue_are_read_over() -> None:
    listing = "7|RUNNING|None|n[0-1]|a\n8_[1-4]|PENDING|Priority||array\nnoise\n9|PENDING|Priority||with|bar\n"
    assert parse(listing) == [
        QueuedJob(7, "RUNNING", "None", "n[0-1]", "a"),
        QueuedJob(9, "PENDING", "Priority", "", "with|bar"),
    ]
