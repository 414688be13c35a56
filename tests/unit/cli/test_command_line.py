"""The commands on runs, as a user meets them."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.cli import prefer_own_packages
from spotmpi.cli.tables import show_table
from spotmpi.core import names
from spotmpi.core.errors import Problem
from spotmpi.runs import reader
from tests.command_line import SPOTMPI, invoke, spotmpi_process
from tests.contract.fake_program import fake_job
from tests.contract.processes import wait_until
from tests.unit.cli.terminal import job, only_run, write_spec

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_run_prints_its_lines_on_stdout_and_its_talk_on_stderr() -> None:
    result = spotmpi_process("run", job("echo one; echo two >&2; echo ünïcode"))

    run = only_run().id
    lines = result.stdout.splitlines()
    # Between a job's two streams there is no order; within one there is.
    assert sorted(lines[:3]) == ["one", "two", "ünïcode"] and lines.index("one") < lines.index("ünïcode")
    assert lines[3:] == [f"{run} succeeded"]
    assert result.stderr.splitlines() == ["spotmpi: attempt 1 started"]
    assert result.returncode == 0


def test_a_failed_run_exits_with_1_and_says_how_to_go_on() -> None:
    result = spotmpi_process("run", job("echo broken >&2; exit 9", limits={"failures": 0}))

    run = only_run().id
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith(f"{run} failed: ") and "exit code 9: broken" in result.stdout
    assert result.stderr.splitlines()[-1] == f"spotmpi: continue with: spotmpi run --resume {run}"


def test_how_to_go_on_names_a_runs_folder_that_is_not_the_default_one() -> None:
    result = invoke("run", job("exit 9", limits={"failures": 0}), "--runs", "my runs")

    (folder,) = (paths.folder for paths in reader.every(Path("my runs")))
    command = f"spotmpi run --resume {folder.name} --runs 'my runs'"
    assert result.stderr.splitlines()[-1] == f"spotmpi: continue with: {command}"
    assert f"continue   {command}" in invoke("status", folder.name, "--runs", "my runs").stdout


def test_resume_with_changed_limits_shows_only_what_is_new_and_a_dry_run_of_it_changes_nothing() -> None:
    job("echo attempt $SPOTMPI_ATTEMPT; test $SPOTMPI_ATTEMPT = 3", limits={"failures": 0})
    invoke("run", "job.toml")
    run = only_run().id
    plan = json.loads(invoke("run", "--resume", run, "--dry-run", "--set", "limits.failures=7").stdout)
    assert plan["run"] == run and plan["limits"]["failures"] == 7
    assert "failures = 7" not in only_run().spec.read_text()

    result = invoke("run", "--resume", run, "--set", "limits.failures=1")

    assert result.stdout.splitlines() == ["attempt 2", "attempt 3", f"{run} succeeded"]
    assert result.returncode == 0
    again = invoke("run", "--resume", run)
    assert again.returncode == 2 and "has succeeded; there is nothing to continue" in again.stderr


def test_a_resume_with_another_minor_version_of_python_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.environ["PATH"]

    def choose(version: str) -> None:
        Path(version).mkdir(exist_ok=True)
        program = Path(version, f"python{version}")
        program.write_text("#!/bin/sh\nexit 3\n")
        program.chmod(0o755)
        Path(version, "python3").unlink(missing_ok=True)
        Path(version, "python3").symlink_to(program.name)
        monkeypatch.setenv("PATH", f"{Path(version).absolute()}:{path}")

    choose("3.98")
    invoke("run", "--", "python3", "train.py")
    note = "spotmpi: the run has used Python 3.98 and continues with 3.99, which may change its result\n"
    for version, is_said in [("3.98", False), ("3.99", True), ("3.99", False)]:
        choose(version)
        assert (note in invoke("run", "--resume", only_run().id).stderr) == is_said


def test_every_json_output_parses() -> None:
    submitted = invoke("run", job("echo hi"), "--json")
    run = json.loads(submitted.stdout)["id"]

    assert json.loads(invoke("status", run, "--json").stdout)["state"] == "succeeded"
    assert [each["id"] for each in json.loads(invoke("list", "--json").stdout)] == [run]
    events = [json.loads(line) for line in invoke("logs", run, "--json").stdout.splitlines()]
    assert [event["event"] for event in events] == ["submitted", "started", "line", "succeeded"]
    assert json.loads(invoke("stop", run, "--json").stdout)["state"] == "succeeded"
    assert [each["id"] for each in json.loads(invoke("clean", "--older", "0s", "--json").stdout)] == [run]


def test_json_has_no_number_that_json_lacks() -> None:
    pattern = r"step (?P<iteration>\d+) loss (?P<loss>\S+)"
    invoke("run", job("echo step 1 loss nan; echo step 2 loss -inf", metrics={"pattern": pattern}))

    output = invoke("logs", only_run().id, "--json").stdout + invoke("status", only_run().id, "--json").stdout

    assert "NaN" not in output and "Infinity" not in output


def test_where_there_is_nothing_a_line_says_where_and_what_to_do() -> None:
    """A table of its titles alone was all that was said."""
    for words, line in {
        "list": "no runs in runs: `spotmpi run` starts one; --runs or SPOTMPI_RUNS name another folder",
        "list --mine --runs x": "no runs of yours in x: `spotmpi run` starts one; --runs or SPOTMPI_RUNS name another",
        "data list": f"no data sets in {Path('store').absolute()}: `spotmpi data build SPEC` makes one; --store or",
        "models list --store s": f"no models in {Path('s').absolute()}: `spotmpi models keep RUN NAME` makes one; ",
    }.items():
        code, out, err = invoke(*words.split())
        assert (code, out, err.count("\n")) == (0, "", 1) and err.startswith(f"spotmpi: {line}"), err
        assert invoke(*words.split(), "--json") == (0, "[]\n", "")


@pytest.mark.parametrize("record", ["uv-receipt.toml", "pipx_metadata.json", None])
def test_packages_of_pythonpath_hide_none_of_a_spotmpi_that_has_an_environment_of_its_own(
    record: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an old typing_extensions of the site's Python 3.9; in a user's own environment they come first."""
    (tmp_path / (record or "pyvenv.cfg")).touch()
    here, site = str(Path.cwd()), "/apps/python3.9"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", ["/tool/bin", here, site, "/tool/lib", "/tool/site-packages"])
    monkeypatch.setenv("PYTHONPATH", f":{site}/")
    prefer_own_packages()
    own = ["/tool/bin", "/tool/lib", "/tool/site-packages"]
    assert sys.path == ([*own, here, site] if record else [own[0], here, site, *own[1:]])


def test_status_and_list_are_read_by_people() -> None:
    run = invoke("run", write_spec(fake_job(iterations=4)), "--detach").stdout.strip()
    wait_until(lambda: reader.state(only_run()).over)

    status, listed = invoke("status", run[:-2]), invoke("list")

    assert re.search(r"^iteration +4/4$", status.stdout, re.MULTILINE) and "state      succeeded" in status.stdout
    assert listed.stdout.splitlines()[0].split()[:2] == ["ID", "STATE"] and run in listed.stdout


def test_clean_lists_runs_and_deletes_those_that_are_over_with_yes() -> None:
    invoke("run", job("true"))
    run = only_run().id
    running = invoke("run", job("sleep 60"), "--detach").stdout.strip()

    ambiguous = invoke("status", "job-")
    assert ambiguous.returncode == 2 and run in ambiguous.stderr and running in ambiguous.stderr
    preview = invoke("clean", "--older", "0s")
    assert run in preview.stdout and "--yes deletes them" in preview.stderr and len(reader.every(Path("runs"))) == 2
    assert run not in invoke("clean", "--older", "1d").stdout
    assert invoke("clean", "--older", "1d").stderr == "spotmpi: no run of this folder ended longer ago than 1d\n"

    invoke("clean", "--older", "0s", "--yes")
    assert only_run().id == running
    assert invoke("stop", running, "--now").returncode == 0


def test_clean_keeps_what_is_not_this_user_s_to_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    run = invoke("run", "--detach", "--", "true").stdout.strip()
    wait_until(lambda: reader.state(only_run()).over)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/x")

    monkeypatch.setattr(reader, "lock", refuse)
    code, _, errors = invoke("clean", "--older", "0s", "--yes")
    kept = f"spotmpi: {run} is kept: {Path('runs', run).absolute()} is not this user's to delete: Permission denied\n"
    assert (code, errors) == (0, kept + "spotmpi: runs deleted: 0\n")


def test_a_path_that_no_file_can_have_is_named() -> None:
    loop, long = Path("loop").absolute(), "x" * 300
    loop.symlink_to("loop")
    for words, path in ((["list", "--runs", "loop"], loop), (["why", "loop"], loop), (["list", "--runs", long], long)):
        result = invoke(*words)
        assert result.returncode == 1 and result.stderr.startswith("spotmpi: cannot access "), result.stderr
        assert str(path) in result.stderr and result.stderr.count("\n") == 1


def test_a_folder_in_place_of_a_file_of_a_run_is_named_with_the_remedy() -> None:
    invoke("run", job("true"))
    paths = only_run()
    paths.metrics.unlink(missing_ok=True)
    paths.metrics.mkdir()
    result = invoke("status", paths.id)
    remedy = "Is a directory; move away what is there, or name another path"
    assert (result.returncode, result.stderr) == (1, f"spotmpi: cannot access {paths.metrics.absolute()}: {remedy}\n")


def without_rights(*words: str) -> subprocess.CompletedProcess[str]:
    """What a command prints for a user who may not read everything."""
    as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return subprocess.run([*as_user, SPOTMPI, *words], capture_output=True, text=True)


@pytest.mark.parametrize("below", ["", "runs"])
def test_a_runs_folder_that_this_user_may_not_read_is_named_with_the_remedy(tmp_path: Path, below: str) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0)
    folder = closed / below
    result = without_rights("run", "--runs", str(folder), "--", "true")
    remedy = f"{names.user()} may not read it: name another folder, here or in SPOTMPI_RUNS"
    problem = Problem("--runs", str(folder), remedy)  # which shortens a long path
    assert (result.returncode, result.stderr) == (2, f"spotmpi: {problem}\n")


def test_a_run_that_this_user_may_not_read_hides_no_other_and_its_path_is_in_the_error() -> None:
    invoke("run", job("true"))
    invoke("run", write_spec({"command": ["true"], "launcher": "none"}, "other.toml"))
    folder, other = (paths.folder for paths in reader.every(Path("runs")))
    folder.chmod(0)

    results = [
        without_rights(*words) for words in (["list"], ["status", folder.name], ["clean", "--older", "0s", "--yes"])
    ]

    folder.chmod(0o700)
    assert [result.returncode for result in results] == [0, 1, 0], results
    assert other.name in results[0].stdout and folder.name not in results[0].stdout
    remedy = "ask its owner for the right to it, or name another place"
    assert (
        results[1].stderr == f"spotmpi: cannot access {folder.absolute()}/events.jsonl: Permission denied; {remedy}\n"
    )
    assert only_run().folder == folder


def test_logs_can_be_narrowed_to_a_node_or_to_what_matches() -> None:
    invoke("run", job("echo node $RANK; echo other", nodes=2))
    run = only_run().id

    assert invoke("logs", run, "--node", "1").stdout.splitlines() == ["node 1", "other"]
    assert sorted(invoke("logs", run, "--grep", r"node \d").stdout.splitlines()) == ["node 0", "node 1"]
    for pattern in ("(", "a{9999999999}"):
        assert "is not a regular expression" in invoke("logs", run, "--grep", pattern).stderr


def test_iterations_that_are_recognized_in_lines_are_not_repeated_and_those_of_a_bar_seldom() -> None:
    lines = invoke("run", job("for i in 1 2 3 4 5; do echo step $i loss 1; done"))
    for shown in (lines, invoke("logs", only_run().id)):
        assert "iterations are read from numbers of steps: step 3 loss 1 " in shown.stderr
        assert "iteration 5" not in shown.stderr and "step 5 loss 1" in shown.stdout

    pattern = r"metrics.pattern='at (?P<iteration>\d+)'"
    by_pattern = invoke("run", "--set", pattern, job("for i in 1 2 3; do echo at $i; done"))
    assert "iteration" not in by_pattern.stderr
    assert by_pattern.stdout.splitlines()[:-1] == ["at 1", "at 2", "at 3"]

    bar = 'for i in 1 2 3 4 5; do echo "$i%|#| $i/9 [00:01<00:02, 3it/s]"; done'
    for shown in (invoke("run", job(bar)), invoke("logs", reader.every(Path("runs"))[-1].id)):
        assert "iteration 1" in shown.stderr and "iteration 5" not in shown.stderr, "once every ten seconds"


def test_the_status_of_a_run_with_an_order_of_capacity_says_where_it_is_and_what_that_costs(tmp_path: Path) -> None:
    placed = {"event": "placed", "group": "g5", "type": "g5.xlarge", "market": "spot", "rate": 4.0, "reason": "first"}
    moved = {**placed, "group": "g6", "type": "g6.xlarge", "rate": None, "reason": "g5 gave 3 of 4 nodes within 10m"}
    events: list[dict[str, object]] = [{"event": "submitted", "name": "x"}, placed, moved, {"event": "succeeded"}]
    (tmp_path / "x-1").mkdir()
    lines = [json.dumps({"t": 1_795_000_000.0 + number, **event}) for number, event in enumerate(events)]
    (tmp_path / "x-1" / "events.jsonl").write_text("\n".join(lines) + "\n")

    shown = invoke("status", "x-1", "--runs", str(tmp_path))
    assert "capacity   g6 (g6.xlarge, spot, price unknown)" in shown.stdout.splitlines()
    assert json.loads(invoke("status", "x-1", "--runs", str(tmp_path), "--json").stdout)["placement"]["group"] == "g6"
    logged = invoke("logs", "x-1", "--runs", str(tmp_path)).stderr
    assert "capacity: g5 (g5.xlarge, spot, $4 an hour): first" in logged
    assert "capacity: g6 (g6.xlarge, spot, price unknown): g5 gave 3 of 4 nodes within 10m" in logged


def test_status_and_logs_say_who_stands_by_and_who_was_promoted(tmp_path: Path) -> None:
    promoted = {"event": "promoted", "attempt": 2, "node": 1, "standby": "x-1-standby-0-0"}
    events: list[dict[str, object]] = [
        {"event": "submitted", "name": "x"},
        {"event": "joined", "attempt": 1, "standby": "x-1-standby-0-0", "machine": {}},
        {"event": "joined", "attempt": 1, "standby": "x-1-standby-1-0", "machine": {}},
        {"event": "left", "attempt": 1, "standby": "x-1-standby-1-0", "reason": "node 0 lost the connection to it"},
        {**promoted, "replaces": "x-1-node-1-0", "seconds": 1.24},
        {"event": "joined", "attempt": 2, "standby": "x-1-node-1-0", "machine": {}},
    ]
    (tmp_path / "x-1").mkdir()
    lines = [json.dumps({"t": 1_795_000_000.0 + number, **event}) for number, event in enumerate(events)]
    (tmp_path / "x-1" / "events.jsonl").write_text("\n".join(lines) + "\n")

    shown = invoke("status", "x-1", "--runs", str(tmp_path)).stdout.splitlines()
    taken_over = "x-1-standby-0-0 took over node 1 from x-1-node-1-0, 1.2 s after its last sign of life"
    assert {"standby    x-1-node-1-0", f"promoted   {taken_over}"} <= set(shown)
    values = json.loads(invoke("status", "x-1", "--runs", str(tmp_path), "--json").stdout)
    assert values["standby"] == ["x-1-node-1-0"] and values["promotions"][0]["seconds"] == 1.24
    logged = invoke("logs", "x-1", "--runs", str(tmp_path)).stderr
    assert "x-1-standby-0-0 stands by\n" in logged and taken_over in logged
    assert "x-1-standby-1-0 stands by no longer: node 0 lost the connection to it" in logged


def test_columns_align_with_wide_and_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("A", "NUMBER", "B"), [("日本", "1", "b"), ("x\x1b", "22", "")], right=[1])
    assert capsys.readouterr().out.splitlines() == ["A      NUMBER  B", "日本        1  b", "x\\x1b      22"]


def test_a_node_that_names_no_member_is_refused_with_what_does() -> None:
    invoke("run", job("echo a line"))
    remedy = "give the number of a node, such as 1, or a role with a number, such as worker/0 or standby/0"
    for command in (("logs",), ("shell",), ("drill", "--fault", "kill")):
        for node in ("wrker/0", "worker", "-1", "worker/01", "x-1-worker-0-abcde"):
            result = invoke(*command, only_run().id, f"--node={node}")
            assert (result.returncode, result.stdout) == (2, ""), (command, node)
            assert result.stderr.splitlines()[-1] == f"spotmpi: --node = {node!r}: {remedy}", command


def test_a_member_that_a_run_does_not_have_is_refused_with_those_that_it_has() -> None:
    """A shell of any node opened on this machine, and logs printed nothing, or waited."""
    invoke("run", job("true", nodes=2))
    run = only_run()
    for command in (("logs", "--follow"), ("shell",), ("drill", "--fault", "kill")):
        for node, member in (("2", "node/2"), ("worker/0", "worker/0")):
            result = invoke(*command, run.id, f"--node={node}")
            assert (result.returncode, result.stdout) == (2, ""), (command, node)
            message = f"spotmpi: --node = {member!r}: run {run.id} has node/0 to node/1"
            assert result.stderr.splitlines()[-1] == message, command

    assert "no output of node 1, nor of any other node\n" in invoke("logs", run.id, "--node=1").stderr
    run.spec.write_text('command = ["true"]\nnodes = 2\n[stream]\nsource = "x"\nworkers.count = 3\n')
    has = "node/0 to node/1, worker/0 to worker/2"
    assert has in invoke("shell", run.id, "--node=worker/3").stderr
    (run.logs / "1").mkdir(parents=True, exist_ok=True)
    (run.logs / "1" / "worker-3.log").touch()  # of before a resize
    assert "no output of worker 3" in invoke("logs", run.id, "--node=worker/3").stderr


EMPTY = "is empty, as an unset variable of a shell is: give a value, or omit it"


def test_paths_of_options_are_those_that_a_shell_would_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--out=~/x` made a folder called "~", `--file "$UNSET"` shipped the current one, and `init x/` wrote a file."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert invoke("init", "~/job.toml").returncode == 0 and (tmp_path / "home" / "job.toml").is_file()
    for words, message in (
        (("init", ""), "FILE = '': is empty: give a path"),
        (("run", "--runs=", "--", "true"), f"--runs = '': {EMPTY}"),
        (("run", "--on", "", "--", "true"), f"--on = '': {EMPTY}"),
        (("run", "--file=", "--", "true"), f"--file = '': {EMPTY}"),
        (("run", "--save=specs/", "--", "true"), "--save = 'specs/': is a folder: name a file"),
    ):
        result = invoke(*words)
        assert (result.returncode, result.stderr) == (2, f"spotmpi: {message}\n"), words
    assert not Path("specs").exists() and not Path("~").exists()


def test_a_file_where_the_folder_of_a_report_should_be_is_named() -> None:
    """It said: File exists."""
    invoke("run", job("for i in 1 2 3 4 5 6 7 8; do echo step $i loss 1; done"))
    Path("file").touch()
    result = invoke("report", "--out", "file")
    assert (result.returncode, result.stderr) == (2, "spotmpi: --out = 'file': is a file: name a folder\n")


def test_values_that_cannot_be_are_refused_with_those_that_can() -> None:
    """An empty image had no others to name, and a port was left to TensorBoard."""
    for words, message in (
        (("run", "--set", 'image=""', "--", "true"), "image = '': use one of: chainermn, pytorch"),
        (("tensorboard", "x", "--port", "0"), "--port = 0: give 1 to 65535"),
    ):
        result = invoke(*words)
        assert (result.returncode, result.stderr) == (2, f"spotmpi: {message}\n"), words
