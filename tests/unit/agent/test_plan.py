"""Plans as agents and supervisors read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import plan

LIMITS = {"start": 60.0, "run": None, "no_progress": None, "failures": 1, "interruptions": 2}


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
