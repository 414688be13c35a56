"""The command line as a user meets it: in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import typer.main

from jobs import names, runs
from jobs.cli.app import app
from tests.contract import living
from tests.contract.fake_program import fake_job
from tests.contract.living import wait_until
from tests.jobs.conftest import InProcess

SPOTMPI = str(Path(sys.executable).with_name("spotmpi"))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
README = (names.PROJECT / "README.md").read_text() if (names.PROJECT / "README.md").exists() else ""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPOTMPI_RUNS", raising=False)


def spotmpi(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SPOTMPI, *arguments], capture_output=True, text=True, timeout=60, **more)


def started(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([SPOTMPI, *arguments], stdout=pipe, stderr=pipe, text=True, **more)


def written(values: dict[str, Any], name: str = "job.toml") -> str:
    """The path of a spec file with *values*."""
    Path(name).write_text(tomli_w.dumps(values))
    return name


def job(text: str, **more: Any) -> str:
    return written({"name": "job", "command": ["sh", "-c", text], "launcher": "none", **more})


def only_run() -> names.RunPaths:
    return wait_until(lambda: runs.every(Path("runs")))[0]


def iteration_of(paths: names.RunPaths) -> int:
    return runs.state(paths).iteration or 0


def test_help_in_a_fresh_interpreter_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['spotmpi', '--help']\n"
        "from jobs.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(' '.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=names.PROJECT)

    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    heavy = {"pulumi", "boto3", "pydantic", "lightkube", "httpx", "rich", "torch", "chainer", "matplotlib", "numpy"}
    assert not heavy & loaded and not {"scipy", "jinja2", "asyncio", "tomlkit"} & loaded
    assert "Usage" in done.stdout


def test_help_lists_every_command_with_a_sentence() -> None:
    done = spotmpi("--help")

    assert done.returncode == 0
    for name, command in COMMANDS.items():
        assert command.help and command.help.endswith("."), name
        assert re.search(rf"^  {name}\s+\S", done.stdout, re.MULTILINE), name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_each_of_its_options_has_help(name: str, in_process: InProcess) -> None:
    code, said, complaint = in_process(name, "--help")

    assert (code, complaint) == (0, "") and name in said
    for parameter in COMMANDS[name].params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.skipif(not README, reason="there is no README yet")
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_in_the_documentation(name: str) -> None:
    pages = [README, *(path.read_text() for path in (names.PROJECT / "docs").glob("*.md"))]
    assert any(f"spotmpi {name}" in page for page in pages)


def test_without_arguments_it_shows_its_help() -> None:
    done = spotmpi()

    assert "Usage" in done.stdout + done.stderr and done.returncode in (0, 2)


def test_completion_works() -> None:
    done = spotmpi(
        env={**os.environ, "_SPOTMPI_COMPLETE": "complete_bash", "COMP_WORDS": "spotmpi st", "COMP_CWORD": "1"}
    )

    assert {"status", "stop"} <= set(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nonsense"], 2, "nonsense"),
        (["run"], 2, "name a spec file; `spotmpi init` writes one"),
        (["run", "missing.toml"], 2, "no such file; `spotmpi init` writes one"),
        (["run", "."], 2, "cannot be read as a text file"),
        (["run", "bad.toml"], 2, "is not TOML"),
        (["run", "job.toml", "--set", "nodes"], 2, "write it as key=value"),
        (["run", "job.toml", "--nodes", "0"], 2, "nodes = 0"),
        (["run", "job.toml", "--nodes", "-3"], 2, "nodes = -3"),
        (["run", "job.toml", "--nodes", "many"], 2, "'--nodes' / '-n'"),
        (["run", "job.toml", "--set", "image=caffe"], 2, "image = 'caffe': use one of: chainermn, pytorch"),
        (["run", "job.toml", "--set", 'command=["no-such-command"]'], 2, "is no command that can be started here"),
        (["run", "job.toml", "--set", "launcher=mpirun"], 2, "no mpirun on PATH"),
        (["run", "job.toml", "--set", "data=nowhere"], 2, "is not a folder that can be read"),
        (["run", "job.toml", "--runs", "job.toml"], 1, "cannot record the run"),
        (["run", "job.toml", "--resume", "x"], 2, "--resume"),
        (["run", "--resume", "x"], 2, "no such run"),
        (["run", "--what"], 2, "--what"),
        (["status", "x"], 2, "no such run"),
        (["status"], 2, "ID"),
        (["logs", "x", "-f"], 2, "no such run"),
        (["stop", ""], 2, "no such run"),
        (["clean", "--older", "soon"], 2, "write a duration"),
        (["clean"], 2, "--older"),
        (["init", "job.toml"], 2, "exists already; name another file"),
        (["init", "no/such/folder.toml"], 1, "cannot write"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_on_stderr_with_its_exit_code(
    arguments: list[str], code: int, told: str, in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    job("true")
    Path("bad.toml").write_text("nodes = [")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")

    ended, said, complaint = in_process(*arguments)

    assert (ended, said) == (code, "")
    (line,) = complaint.splitlines()
    assert line.startswith("spotmpi: ") and told in line
    assert not Path("runs").exists()


def test_several_problems_are_a_line_each() -> None:
    done = spotmpi("run", job("true"), "--nodes", "0", "--slots", "0", "--set", "x=1")

    assert done.returncode == 2
    assert [line.split(" = ")[0] for line in done.stderr.splitlines()] == [
        "spotmpi: nodes",
        "spotmpi: slots",
        "spotmpi: x",
    ]


def test_a_traceback_is_shown_only_when_it_is_asked_for() -> None:
    assert "Traceback" not in spotmpi("status", "x").stderr
    assert "Traceback" in spotmpi("--debug", "status", "x").stderr


def test_init_writes_a_spec_that_runs() -> None:
    done = spotmpi("init")

    assert done.stdout == "job.toml\n" and done.returncode == 0
    plan = json.loads(spotmpi("run", "job.toml", "--dry-run").stdout)
    assert plan["spec"]["program"] == "digits"


def test_a_run_prints_its_lines_on_stdout_and_its_talk_on_stderr() -> None:
    done = spotmpi("run", job("echo one; echo two >&2; echo ünïcode"))

    run = only_run().id
    lines = done.stdout.splitlines()
    # Between a job's two streams there is no order; within one there is.
    assert sorted(lines[:3]) == ["one", "two", "ünïcode"] and lines.index("one") < lines.index("ünïcode")
    assert lines[3:] == [f"{run} succeeded"]
    assert done.stderr.splitlines() == ["spotmpi: attempt 1 started"]
    assert done.returncode == 0


def test_a_failed_run_exits_with_1_and_says_how_to_go_on() -> None:
    done = spotmpi("run", job("echo broken >&2; exit 9", limits={"failures": 0}))

    run = only_run().id
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(f"{run} failed: ") and "exit code 9: broken" in done.stdout
    assert done.stderr.splitlines()[-1] == f"spotmpi: continue with: spotmpi run --resume {run}"


def test_resume_with_changed_limits_shows_only_what_is_new() -> None:
    job("echo attempt $SPOTMPI_ATTEMPT; test $SPOTMPI_ATTEMPT = 3", limits={"failures": 0})
    spotmpi("run", "job.toml")
    run = only_run().id

    done = spotmpi("run", "--resume", run, "--set", "limits.failures=1")

    assert done.stdout.splitlines() == ["attempt 2", "attempt 3", f"{run} succeeded"]
    assert done.returncode == 0
    again = spotmpi("run", "--resume", run)
    assert again.returncode == 2 and "has succeeded; there is nothing left to continue" in again.stderr


def test_dry_run_prints_the_plan_and_leaves_nothing_behind() -> None:
    done = spotmpi("run", job("true", nodes=2), "--dry-run")

    plan = json.loads(done.stdout)
    assert [command["arguments"][-3:] for command in plan["commands"]] == [["sh", "-c", "true"]] * 2
    assert not Path("runs").exists()


def test_dry_run_of_a_resume_keeps_the_runs_id() -> None:
    spotmpi("run", job("false", limits={"failures": 0}))
    run = only_run().id

    plan = json.loads(spotmpi("run", "--resume", run, "--dry-run", "--set", "limits.failures=7").stdout)

    assert plan["run"] == run and plan["limits"]["failures"] == 7
    assert "failures = 7" not in only_run().spec.read_text()


def test_every_json_output_parses() -> None:
    said = spotmpi("run", job("echo hi"), "--json")
    run = json.loads(said.stdout)["id"]

    assert json.loads(spotmpi("status", run, "--json").stdout)["state"] == "succeeded"
    assert [each["id"] for each in json.loads(spotmpi("list", "--json").stdout)] == [run]
    events = [json.loads(line) for line in spotmpi("logs", run, "--json").stdout.splitlines()]
    assert [event["event"] for event in events] == ["submitted", "started", "line", "succeeded"]
    assert json.loads(spotmpi("stop", run, "--json").stdout)["state"] == "succeeded"
    assert [each["id"] for each in json.loads(spotmpi("clean", "--older", "0s", "--json").stdout)] == [run]


def test_json_has_no_number_that_json_lacks() -> None:
    pattern = r"step (?P<iteration>\d+) loss (?P<loss>\S+)"
    spotmpi("run", job("echo step 1 loss nan; echo step 2 loss -inf", metrics={"pattern": pattern}))

    said = spotmpi("logs", only_run().id, "--json").stdout + spotmpi("status", only_run().id, "--json").stdout

    assert "NaN" not in said and "Infinity" not in said


def test_status_and_list_are_read_by_people() -> None:
    run = spotmpi("run", written(fake_job(iterations=4)), "--detach").stdout.strip()
    wait_until(lambda: runs.state(only_run()).over)

    status, listed = spotmpi("status", run[:-2]), spotmpi("list")

    assert re.search(r"^iteration +4/4$", status.stdout, re.MULTILINE) and "state      succeeded" in status.stdout
    assert listed.stdout.splitlines()[0].split()[:2] == ["ID", "STATE"] and run in listed.stdout


def test_list_without_runs_says_so_and_succeeds() -> None:
    assert spotmpi("list").returncode == 0
    assert json.loads(spotmpi("list", "--json").stdout) == []


def test_an_id_may_be_shortened_as_long_as_it_is_clear() -> None:
    for _ in range(2):
        spotmpi("run", job("true"))
    first, second = (paths.id for paths in runs.every(Path("runs")))

    both = spotmpi("status", "job-")

    assert both.returncode == 2 and first in both.stderr and second in both.stderr


def test_clean_shows_first_and_deletes_when_told() -> None:
    spotmpi("run", job("true"))
    run = only_run().id

    shown = spotmpi("clean", "--older", "0s")
    assert run in shown.stdout and "--yes deletes them" in shown.stderr and only_run().id == run
    assert run not in spotmpi("clean", "--older", "1d").stdout

    spotmpi("clean", "--older", "0s", "--yes")
    assert runs.every(Path("runs")) == []


def test_clean_leaves_a_run_that_goes_on() -> None:
    run = spotmpi("run", job("sleep 60"), "--detach").stdout.strip()

    spotmpi("clean", "--older", "0s", "--yes")

    assert only_run().id == run
    assert spotmpi("stop", run, "--now").returncode == 0


def test_logs_can_be_narrowed_to_a_node_or_to_what_matches() -> None:
    spotmpi("run", job("echo node $RANK; echo other", nodes=2))
    run = only_run().id

    assert spotmpi("logs", run, "--node", "1").stdout.splitlines() == ["node 1", "other"]
    assert sorted(spotmpi("logs", run, "--grep", r"node \d").stdout.splitlines()) == ["node 0", "node 1"]
    assert "is not a regular expression" in spotmpi("logs", run, "--grep", "(").stderr


def test_a_reader_that_goes_away_gets_no_complaint() -> None:
    spotmpi("run", job("seq 20000"))

    done = subprocess.run(
        f"{SPOTMPI} logs {only_run().id} | head -1", shell=True, capture_output=True, text=True, executable="/bin/bash"
    )

    assert done.stdout == "1\n" and "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_a_terminal_without_unicode_gets_the_rest_of_the_line() -> None:
    done = spotmpi("run", job("echo caf\u00e9"), env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"})

    assert done.stdout.splitlines()[0] == "caf?" and done.returncode == 0


def test_the_first_ctrl_c_stops_with_a_checkpoint() -> None:
    process = started("run", written(fake_job(iterations=5000, pause=0.02, every=100_000)))
    paths = only_run()
    wait_until(lambda: iteration_of(paths) >= 3)

    process.send_signal(signal.SIGINT)

    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopping after a checkpoint; Ctrl-C again kills" in err and "checkpoint at iteration" in err
    assert out.splitlines()[-1] == f"{paths.id} stopped: Ctrl-C" and "Traceback" not in err
    assert runs.state(paths).state == "stopped"
    wait_until(lambda: not living.of_run(paths.id))


def test_the_second_ctrl_c_kills() -> None:
    deaf = (
        "import os, signal, time; signal.signal(10, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)\n"
        "open(os.environ['SPOTMPI_PID_FILE'], 'w').write(str(os.getpid())); print('up', flush=True); time.sleep(300)"
    )
    process = started("run", written({"command": ["python3", "-c", deaf], "launcher": "none"}))
    paths = only_run()
    wait_until(lambda: (paths.folder / "rank-0.pid").exists())

    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and "killing the run" in err
    assert runs.state(paths).state == "stopped"
    wait_until(lambda: not living.of_run(paths.id))


def test_ctrl_c_while_following_logs_leaves_the_run_alone() -> None:
    run = spotmpi("run", written(fake_job(iterations=5000, pause=0.02)), "--detach").stdout.strip()
    process = started("logs", "-f", run)
    wait_until(lambda: iteration_of(only_run()) >= 2)
    assert process.stdout is not None
    assert process.stdout.readline() == "hello from attempt 1\n"

    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and "Traceback" not in err
    assert runs.state(only_run()).state == "running"
    assert json.loads(spotmpi("stop", run, "--json").stdout)["state"] == "stopped"


def test_a_detached_run_is_followed_from_another_terminal_and_again_after_that_has_died() -> None:
    began = time.monotonic()
    run = spotmpi("run", written(fake_job(iterations=120, pause=0.02)), "--detach").stdout.strip()
    assert time.monotonic() - began < 5 and runs.state(only_run()).id == run
    first = started("logs", "-f", run, "--json")
    assert first.stdout is not None
    wait_until(lambda: iteration_of(only_run()) >= 3)
    seen = [first.stdout.readline() for _ in range(4)]
    first.kill()
    first.communicate()

    second = spotmpi("logs", "-f", run, "--json")

    events = [json.loads(line) for line in second.stdout.splitlines()]
    assert [json.loads(line) for line in seen] == events[:4]
    assert [event["iteration"] for event in events if event.get("kind") == "metric"] == list(range(1, 121))
    assert events[-1]["event"] == "succeeded" and second.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_run_outlives_the_terminal_that_started_it(number: signal.Signals) -> None:
    process = started("run", written(fake_job(iterations=60, pause=0.02)), start_new_session=True)
    paths = only_run()
    wait_until(lambda: iteration_of(paths) >= 2)

    os.killpg(process.pid, number)
    process.communicate()

    wait_until(lambda: runs.state(paths).state == "succeeded")
    assert runs.state(paths).attempt == 1


def test_a_live_view_shows_iterations_rate_and_loss_on_a_terminal() -> None:
    shown = _on_a_terminal([SPOTMPI, "run", written(fake_job(iterations=40, pause=0.03))])

    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "training" in plain and re.search(r"\d+/40", plain) and "it/s" in plain and "ETA" in plain
    assert "loss" in plain and "hello from attempt 1" in plain and "succeeded" in plain


def test_ctrl_c_on_a_terminal_reaches_the_command_and_not_the_ranks() -> None:
    spec = written(fake_job(iterations=5000, pause=0.02, every=100_000))

    def press(write: Callable[[bytes], int]) -> bool:
        if runs.every(Path("runs")) and iteration_of(only_run()) >= 3:
            write(b"\x03")
            return True
        return False

    shown = _on_a_terminal([SPOTMPI, "run", spec], press)

    assert "stopping after a checkpoint" in shown
    state = runs.state(only_run())
    assert state.state == "stopped"
    kinds = [metric["kind"] for metric in runs.lines(only_run().metrics)]
    assert kinds[-1] == "checkpoint"


def _on_a_terminal(command: list[str], press: Callable[[Callable[[bytes], int]], bool] | None = None) -> str:
    """What a terminal shows of a command; *press* is asked until it has pressed its key."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
    shown, pressed, deadline = b"", press is None, time.monotonic() + 30
    while time.monotonic() < deadline:
        if not pressed and press:
            pressed = press(lambda data: os.write(terminal, data))
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:
                break
            if not data:
                break
            shown += data
    os.waitpid(child, 0)
    os.close(terminal)
    return shown.decode("utf-8", "replace")


def test_the_page_of_commands_is_what_they_say_of_themselves(
    in_process: InProcess, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    parts = ["# Commands\n\nWritten by `pytest tests/jobs/test_command_line.py --update-golden` from `--help`.\n"]
    for name in ("", *COMMANDS):
        shown = f"spotmpi {name}".strip()
        said = in_process(*([name] if name else []), "--help")[1]
        parts.append(f"\n## {shown}\n\n```\n{said.strip()}\n```\n")
    page = names.PROJECT / "docs" / "commands.md"
    if request.config.getoption("--update-golden"):
        page.write_text("".join(parts))

    assert page.read_text() == "".join(parts), "run pytest with --update-golden"
