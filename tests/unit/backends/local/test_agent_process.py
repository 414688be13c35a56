"""The agent that starts ahead of its run, while the spec is still read."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.agent import record
from spotmpi.agent.files import lock_file
from spotmpi.backends.local import backend, machine
from spotmpi.backends.local.backend import WaitingAgent
from spotmpi.backends.targets import Target
from spotmpi.core import names
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.images import environment
from spotmpi.runs import fingerprint, reader
from spotmpi.spec.job import JobSpec, Resources
from tests.command_line import SPOTMPI, spotmpi_process
from tests.contract.processes import wait_until


@pytest.fixture
def paths(tmp_path: Path) -> names.RunPaths:
    paths = names.RunPaths(tmp_path / "one")
    paths.folder.mkdir()
    return paths


def ended(agent: WaitingAgent) -> int:
    assert agent._process is not None
    return agent._process.wait(60)


def test_a_run_gets_the_agent_that_was_started_before_its_spec_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_other(*ignored: Any) -> None:
        raise AssertionError("a second agent")

    monkeypatch.setattr(backend, "start_agent", no_other)

    state = spotmpi.run(["sh", "-c", "echo $PPID"], on=spotmpi.Target("local", tmp_path / "runs"))

    assert state.state == "succeeded"
    assert (Path(state.folder) / "agent.log").read_text() == ""


def test_the_agent_starts_before_the_models_of_a_spec_are_imported(tmp_path: Path) -> None:
    noting = """
import sys
from spotmpi.backends.local.backend import WaitingAgent
from spotmpi.backends.targets import Target
from spotmpi.cli.main import main

start = WaitingAgent.__enter__


def note_and_start(agent):
    print("imported before:", sorted({"pydantic", "spotmpi.spec.job"} & set(sys.modules)))
    return start(agent)


WaitingAgent.__enter__ = note_and_start
main()
"""
    arguments = ["run", "--runs", str(tmp_path / "runs"), "--", "true"]

    done = subprocess.run([sys.executable, "-c", noting, *arguments], stdout=subprocess.PIPE, text=True, check=True)

    assert "imported before: []\n" in done.stdout


def test_an_agent_without_a_run_ends_with_its_client(capfd: pytest.CaptureFixture[str]) -> None:
    with WaitingAgent() as agent:
        pass

    assert ended(agent) == 0 and capfd.readouterr() == ("", "")


def test_a_spec_with_a_problem_leaves_no_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agents: list[WaitingAgent] = []
    enter = WaitingAgent.__enter__

    def enter_and_note(agent: WaitingAgent) -> WaitingAgent:
        agents.append(agent)
        return enter(agent)

    monkeypatch.setattr(WaitingAgent, "__enter__", enter_and_note)

    with pytest.raises(InputError, match="no-such-command"):
        spotmpi.run(["no-such-command"], on=spotmpi.Target("local", tmp_path / "runs"))

    (agent,) = agents
    assert ended(agent) == 0 and not (tmp_path / "runs").exists()


def test_the_agent_holds_the_lock_and_writes_its_errors_into_the_log(paths: names.RunPaths) -> None:
    os.mkfifo(paths.plan)  # the agent waits in its first step
    lock = os.open(paths.folder / record.LOCK, os.O_RDWR | os.O_CREAT)
    assert lock_file(lock)
    with WaitingAgent() as agent, paths.agent_log.open("a") as log:
        assert agent.hand_over(paths, lock, log)
        os.close(lock)

        with paths.plan.open("w") as plan:
            assert reader.alive(paths)
            plan.write("no plan")

        assert ended(agent) == 1
    assert "JSONDecodeError" in paths.agent_log.read_text() and not reader.alive(paths)


@pytest.mark.parametrize("python", ["/nowhere/python", "false"])
def test_where_no_agent_can_wait_another_one_is_started_at_the_submission(
    python: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start, started = backend.start_agent, []

    def start_with_our_python(*arguments: Any) -> None:
        started.append(arguments)
        monkeypatch.setattr(sys, "executable", own)
        start(*arguments)

    own = sys.executable
    monkeypatch.setattr(backend, "start_agent", start_with_our_python)
    monkeypatch.setattr(sys, "executable", python)

    state = spotmpi.run(["true"], on=spotmpi.Target("local", tmp_path / "runs"))

    assert state.state == "succeeded" and len(started) == 1


def test_no_agent_waits_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingAgent, "__enter__", lambda self: pytest.fail("an agent was started"))
    with pytest.raises(SpotmpiError, match="no-such-stack"):
        spotmpi.run(["true"], on="no-such-stack.json")


def test_the_waiting_agent_has_no_variable_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("KEPT", "1")
    with WaitingAgent() as agent:
        assert agent._process is not None
        environment = Path(f"/proc/{agent._process.pid}/environ")
        variables = wait_until(lambda: environment.read_bytes()).split(b"\0")
        assert b"KEPT=1" in variables and not any(each.startswith(b"OMPI_COMM") for each in variables)


@pytest.mark.parametrize(("launcher", "asked"), [("none", 0), ("mpirun", 1)])
def test_only_a_run_under_mpirun_asks_mpirun_for_its_version(
    launcher: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def version(path: str) -> str:
        questions.append(path)
        return "mpirun (Open MPI) 4.1.4"

    monkeypatch.setattr(fingerprint, "mpirun_version", version)
    monkeypatch.setattr("shutil.which", lambda name, **more: f"/bin/{name}")

    facts = machine.describe(JobSpec(command=["true"], launcher=launcher))

    assert len(questions) == asked and facts.mpirun_family == (4 if asked else 5)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_run_has_the_environment_of_its_image_for_gpus_if_it_asks_for_any(asked: int) -> None:
    facts = machine.describe(JobSpec(program="digits", image="chainermn", resources=Resources(gpu=asked)))
    assert facts.image_bin == str(environment.location("chainermn", gpus=bool(asked)) / "bin")
    assert environment.location("chainermn") != environment.location("chainermn", gpus=True)


def test_python_does_not_warn_of_agents_that_outlive_a_command(tmp_path: Path) -> None:
    """With PYTHONWARNINGS=error or -W error each `spotmpi run` ended with a traceback of Popen.__del__."""
    variables = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}
    runs = ("--runs", str(tmp_path))
    for options in (("--detach",), ()):
        done = spotmpi_process("run", *options, *runs, "--", "sleep", "0.2", env=variables, cwd=tmp_path)
        assert done.returncode == 0 and "Popen" not in done.stderr, done.stderr
    wait_until(lambda: all(state.over for state in spotmpi.list_runs(on=Target(None, tmp_path))))


def test_a_look_at_one_file_of_a_source_leaves_no_folder_open(tmp_path: Path) -> None:
    """With PYTHONWARNINGS=error a run with a stream began with a traceback of ScandirIterator."""
    for name in ("1", "2"):
        (tmp_path / name).touch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert next(machine._files(str(tmp_path))).parent == tmp_path
        gc.collect()
    assert [each for each in map(str, caught) if "scandir" in each.lower()] == []


def test_a_script_without_stdin_starts_a_run(tmp_path: Path) -> None:
    """The lock of the run got the number of stdin, which the agent has otherwise: the run was lost at once."""
    script = "import spotmpi; spotmpi.run(['true'])"
    done = subprocess.run(
        f'exec "{sys.executable}" -c "{script}" <&-', shell=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0 and done.stderr.endswith(" succeeded\n"), done


def test_a_caller_that_ignores_ended_children_makes_no_failure_a_success(tmp_path: Path) -> None:
    """The kernel then forgets exit codes, and Python takes each for 0."""
    options = ("--runs", str(tmp_path), "--launcher", "none", "--set", "limits.failures=0")

    def run(command: str) -> subprocess.CompletedProcess[str]:
        ignoring = ("env", "--ignore-signal=CHLD", SPOTMPI, "run", *options, "--", "sh", "-c", command)
        return subprocess.run(ignoring, cwd=tmp_path, capture_output=True, text=True)

    assert (done := run("true")).returncode == 0, done
    assert (done := run("exit 3")).returncode == 1 and "exit code 3" in done.stdout + done.stderr, done
