"""What `list --mine` and `logs --since` leave out, over recorded runs of several people and ages, and many runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import record
from spotmpi.agent.launcher_output import Line
from spotmpi.agent.plan import COORDINATOR
from spotmpi.core import names
from spotmpi.core.errors import UnknownRun
from spotmpi.runs import folder, reader
from tests.command_line import CommandLine, invoke


@pytest.fixture
def spotmpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandLine:
    """The command line over the runs folder of the test, for a user called ann."""
    monkeypatch.setattr(names, "user", lambda: "ann")
    return lambda *arguments: invoke(*arguments, "--runs", str(tmp_path))


def record_run(folder: Path, run: str, lines: dict[str, float], owner: str | None = None) -> None:
    """A run that succeeded, with each line as old as said, in seconds."""
    moment = [time.time() - 9000.0]
    (folder / run).mkdir()
    run_record = record.Record(str(folder / run), clock=lambda: moment[0])
    run_record.event(record.SUBMITTED, name=run, owner=owner)
    run_record.event(record.STARTED, attempt=1)
    for text, age in lines.items():
        moment[0] = time.time() - age
        run_record.line(1, COORDINATOR, Line(0, "o", text))
    run_record.event(record.SUCCEEDED)
    run_record.close()


def test_mine_are_the_runs_that_i_submitted_and_those_without_owner(tmp_path: Path, spotmpi: CommandLine) -> None:
    for run, owner in (("hers", "ann"), ("his", "bob"), ("old", None)):
        record_run(tmp_path, run, {}, owner)
    assert [row.split()[0] for row in spotmpi("list")[1].splitlines()[1:]] == ["hers", "his", "old"]
    assert "bob" in spotmpi("list")[1]
    assert [each["id"] for each in json.loads(spotmpi("list", "--mine", "--json")[1])] == ["hers", "old"]


def test_the_owner_of_a_copied_run_is_the_one_that_the_cluster_names(tmp_path: Path, spotmpi: CommandLine) -> None:
    plan: dict[str, Any] = {"run": "x-1", "name": "x", "owner": "bob"}
    folder.create(names.RunPaths(tmp_path / "x-1"), "", plan, 1.0, plan["owner"])
    assert reader.state(names.RunPaths(tmp_path / "x-1")).owner == "bob"
    assert json.loads(spotmpi("list", "--mine", "--json")[1]) == []


def test_logs_since_an_age_show_what_is_newer(tmp_path: Path, spotmpi: CommandLine) -> None:
    record_run(tmp_path, "run-1", {"early": 7500, "late": 300, "last": 5})
    assert spotmpi("logs", "run-1")[1].splitlines() == ["early", "late", "last"]
    assert spotmpi("logs", "run-1", "--since", "10m")[1].splitlines() == ["late", "last"]
    assert spotmpi("logs", "run-1", "--since", "1m", "--grep", "la")[1].splitlines() == ["last"]
    kinds = [json.loads(line)["event"] for line in spotmpi("logs", "run-1", "--since", "10m", "--json")[1].splitlines()]
    assert kinds == ["line", "line", "succeeded"]


def test_an_age_that_is_none_is_refused(tmp_path: Path, spotmpi: CommandLine) -> None:
    record_run(tmp_path, "run-1", {})
    code, output, errors = spotmpi("logs", "run-1", "--since", "yesterday")
    assert (code, output) == (2, "")
    assert "--since = 'yesterday': write a duration such as" in errors


def test_an_id_that_fits_hundreds_of_runs_is_refused_with_the_newest_of_them(tmp_path: Path) -> None:
    for number in range(300):
        folder = tmp_path / f"job-{number:03}"
        folder.mkdir()
        (folder / "events.jsonl").write_text(json.dumps({"t": float(number), "event": "submitted"}) + "\n")

    with pytest.raises(UnknownRun) as refused:
        reader.find("job", tmp_path)

    shown = "job-295, job-296, job-297, job-298, job-299 and 295 more"
    assert str(refused.value) == f"run = 'job': is ambiguous: {shown}; write more of the id"
