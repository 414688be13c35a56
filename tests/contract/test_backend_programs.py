"""What every backend promises to programs: their variables, arguments, nodes and words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from spotmpi.agent import record
from spotmpi.agent.plan import COORDINATOR, NODE, Member
from tests.contract.conftest import BackendHarness
from tests.contract.event_values import command, iterations, kinds, texts


def test_lines_are_numbered_without_gap_or_repeat_and_know_attempt_node_and_stream(harness: BackendHarness) -> None:
    code = "import sys; [print(i) for i in range(2500)]; print('oh', file=sys.stderr)"
    events = harness.all_events(command("python3", "-c", code))

    lines = [event for event in events if event.kind == record.LINE]
    assert [line.number for line in lines] == list(range(1, 2502))
    assert {(line.attempt, line.member) for line in lines} == {(1, COORDINATOR)}
    assert [line.values["text"] for line in lines if line.values["stream"] == "o"] == [str(i) for i in range(2500)]
    assert [line.values["text"] for line in lines if line.values["stream"] == "e"] == ["oh"]


@pytest.mark.parametrize("ballast", [0, 1 << 20], ids=["small", "large"])
def test_a_command_starts_in_its_folder_of_code_which_is_what_git_would_keep(
    harness: BackendHarness, tmp_path: Path, ballast: int
) -> None:
    code = tmp_path / "my code"
    (code / "lib").mkdir(parents=True)
    (code / "train.sh").write_text("#!/bin/sh\necho training with $(ls); python3 -m lib.step\n")
    (code / "train.sh").chmod(0o755)
    (code / "lib" / "step.py").write_text("print('a step')\n")
    (code / ".gitignore").write_text("*.log\n")
    (code / "weights").write_bytes(os.urandom(ballast))

    events = harness.all_events(command("./train.sh", code=str(code)))

    assert events[-1].kind == "succeeded", events[-1]
    assert texts(events) == ["training with lib train.sh weights", "a step"]


@pytest.mark.parametrize("with_code", [False, True])
def test_files_can_be_imported_and_are_in_the_working_folder(
    harness: BackendHarness, tmp_path: Path, with_code: bool
) -> None:
    (tmp_path / "parts" / "package").mkdir(parents=True)
    (tmp_path / "parts" / "package" / "inner.py").write_text("VALUE = 'a folder'\n")
    (tmp_path / "parts" / "helper.py").write_text("VALUE = 'a file'\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "helper.py").write_text("VALUE = 'replaced by the file'\n")
    script = "import helper, package.inner; print(helper.VALUE, package.inner.VALUE)"
    files = [str(tmp_path / "parts" / name) for name in ("helper.py", "package")]
    more = {"files": files, **({"code": str(tmp_path / "src")} if with_code else {})}

    # The interpreter starts in another folder: only PYTHONPATH leads to the modules.
    events = harness.all_events(command("sh", "-c", 'ls; cd / && exec python3 -c "$0"', script, **more))

    assert events[-1].kind == "succeeded", events[-1]
    assert texts(events) == ["helper.py", "package", "a file a folder"]


def test_every_node_gets_the_same_variables_except_its_own_index(harness: BackendHarness) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    requested = {"MINE": "with spaces, 'quotes', $HOME and ünïcode", "OMP_NUM_THREADS": "3"}
    events = harness.all_events(command("python3", "-c", code, nodes=3, env=requested))

    lines = {event.member: json.loads(event.values["text"]) for event in events if event.kind == record.LINE}
    assert set(lines) == {Member(NODE, number) for number in range(3)}
    environments = {member.number: variables for member, variables in lines.items() if member}
    for name, value in {**requested, "WORLD_SIZE": "3", "SPOTMPI_WORLD_SIZE": "3", "SPOTMPI_ATTEMPT": "1"}.items():
        assert {variables[name] for variables in environments.values()} == {value}, name
    assert [environments[node]["RANK"] for node in range(3)] == ["0", "1", "2"]
    apart = {name for name in environments[0] if len({environments[node].get(name) for node in range(3)}) > 1}
    own = {"RANK", "HOSTNAME", "JOB_COMPLETION_INDEX", "POD_NAME", "POD_IP", "SPOTMPI_MACHINE", "SPOTMPI_JOB_INDEX"}
    assert apart <= own


def test_a_plain_command_on_the_first_node_runs_once(harness: BackendHarness) -> None:
    events = harness.all_events(command("sh", "-c", "echo $RANK of $WORLD_SIZE", nodes=2, run_on="first"))

    assert texts(events) == ["0 of 1"]


def test_all_nodes_have_to_succeed_and_the_one_that_fails_ends_the_others(harness: BackendHarness) -> None:
    code = "import os, time; os.environ['RANK'] == '1' and exit(4); time.sleep(60)"
    events = harness.all_events(command("python3", "-c", code, nodes=3, limits={"failures": 0}))

    assert kinds(events) == ["submitted", "started", "failed"]
    assert "node 1" in (events[-1].reason or "") and "exit code 4" in (events[-1].reason or "")


def test_arguments_reach_the_program_as_they_are(harness: BackendHarness) -> None:
    hostile = ["two words", "", "'single'", '"double"', "$HOME", "*", "a\nb", "ünïcode", "{port}", "-x"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    events = harness.all_events(command("python3", "-c", code, args=hostile))

    assert json.loads(texts(events)[0]) == hostile


def test_metrics_of_a_foreign_program_are_read_by_a_pattern(harness: BackendHarness) -> None:
    code = "[print(f'step {i} loss {1 / i:.3f} (eta 3 s)', flush=True) for i in range(1, 4)]"
    pattern = r"step (?P<iteration>\d+) loss (?P<loss>\S+)"
    events = harness.all_events(command("python3", "-c", code, metrics={"pattern": pattern}))

    assert iterations(events) == [1, 2, 3]
    assert [event.values["loss"] for event in events if event.kind == record.METRIC] == [1.0, 0.5, 0.333]
    assert len(texts(events)) == 3
