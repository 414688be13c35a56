"""A spec with several mistakes shows them all in one round."""

from __future__ import annotations

from pathlib import Path

import pytest

import spotmpi
from tests.unit.conftest import InProcess

pytestmark = pytest.mark.usefixtures("own_folder")


def problems(source: object, *overrides: str) -> list[str]:
    with pytest.raises(spotmpi.InputError) as refused:
        spotmpi.plan_run(source, overrides)  # type: ignore[arg-type]
    return [str(problem) for problem in refused.value.problems]


def test_unknown_key_wrong_type_impossible_value_and_missing_program_come_together(in_process: InProcess) -> None:
    Path("job.toml").write_text('colour = "red"\nslots = "two"\ndata = "nowhere"\n[limits]\nfailures = -1\n')

    code, output, errors = in_process("run", "job.toml")

    assert (code, output) == (2, "")
    assert sorted(line.partition(": ")[2] for line in errors.splitlines()) == [
        "colour = 'red': unknown key; known keys: " + ", ".join(spotmpi.JobSpec.model_fields),
        "data = 'nowhere': not a readable folder; check the path",
        "limits.failures = -1: input should be greater than or equal to 0",
        "program: give exactly one of program and command, not neither",
        "slots = 'two': input should be a valid integer",
    ]


def test_consequences_of_a_wrong_key_are_not_reported() -> None:
    wrong = {"progam": "digits", "nodes": 10**6, "slots": 0, "image": 3}

    assert [problem.partition(":")[0] for problem in problems(wrong)] == ["image = 3", "slots = 0", "progam = 'digits'"]
    assert [problem.partition(":")[0] for problem in problems({"command": [1], "launcher": "none"})] == [
        "command.0 = 1"
    ]


def test_a_target_that_cannot_be_inspected_does_not_hide_the_wrong_keys() -> None:
    with pytest.raises(spotmpi.InputError, match="slots = 'two'"):
        spotmpi.plan_run({"command": ["x"], "slots": "two"}, on="no-such-file.json")


def test_overrides_take_part() -> None:
    assert [problem.partition(":")[0] for problem in problems({"slots": 1}, "slots=two", "data=nowhere")] == [
        "slots = 'two'",
        "program",
        "data = 'nowhere'",
    ]
