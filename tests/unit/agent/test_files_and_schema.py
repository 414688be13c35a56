"""Files are replaced whole or not at all, and plans and records of older versions are read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import plan
from spotmpi.agent.files import write_atomically
from spotmpi.agent.schema import read_attempt, read_object

LIMITS = {"start": 60.0, "run": None, "no_progress": None, "failures": 1, "interruptions": 2}
OLD = {"started": 1.0, "cause": "failure", "last_iteration": None}


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, "\u00e9\n", keep_mode=True)
    assert path.read_text(encoding="utf-8") == "\u00e9\n" and path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    monkeypatch.setattr(os, "urandom", bytes)  # zeros
    (tmp_path / ".state.json.00000000.part").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")

    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (json.dumps(OLD), True),
        (json.dumps({**OLD, "version": 1, "ended": 2.0}), True),
        (json.dumps({**OLD, "version": 2, "colour": "blue"}), True),
        (json.dumps({"started": 1.0}), False),
        (json.dumps(OLD)[:-5], False),
        ("[]", False),
        ("", False),
    ],
)
def test_attempt_records_with_and_without_a_version_are_read(text: str, valid: bool) -> None:
    assert (read_attempt(text) is not None) == valid


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"kind": "metric", "seconds": [0.5]}', {"kind": "metric", "seconds": [0.5]}),
        ('{"kind": "metric", "seconds": 0.5}', {}),
        ('{"kind": "checkpoint", "seconds": 0.5}', {"kind": "checkpoint", "seconds": 0.5}),
        ('{"iteration": "20"}', {}),
    ],
)
def test_objects_whose_values_readers_cannot_use_are_empty(text: str, values: dict[str, object]) -> None:
    assert read_object(text) == values


@pytest.mark.parametrize(
    ("read", "more"), [(plan.read_local_plan, {}), (plan.read_agent_plan, {"pool": None, "wheels": None})]
)
def test_a_plan_of_an_older_version_gets_the_keys_that_it_lacks(
    tmp_path: Path, read: Callable[[str], Any], more: dict[str, Any]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"run": "digits-1", "limits": LIMITS}))
    expected = {"version": 0, "run": "digits-1", "rate": None, "oversubscribed": False, **more}
    assert read(str(path)) == {**expected, "limits": {**LIMITS, "cost": None}}

    newer = {"version": 1, "rate": 0.5, "oversubscribed": True, "limits": {**LIMITS, "cost": 2.0}}
    newer.update({key: {"versions": {}} for key in more})
    path.write_text(json.dumps(newer))
    assert read(str(path)) == newer


def test_the_plan_of_an_attempt_has_everything_of_its_runs_plan() -> None:
    values: Any = {key: f"the run's {key}" for key in plan.RunPlan.__annotations__}
    command: plan.Command = {"node": 1, "arguments": ["true"], "environment": {}}
    attempt = plan.with_commands(values, [command], {"A": "b"}, "/work/pid")
    assert attempt == {**values, "commands": [command], "environment": {"A": "b"}, "pid_file": "/work/pid"}
