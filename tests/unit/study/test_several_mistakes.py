"""`spotmpi bench` on a spec or a study with several mistakes shows them all in one round, each with its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

import spotmpi
from spotmpi.agent.launchers import LAUNCHERS
from spotmpi.core.errors import written
from spotmpi.spec.job import JobSpec
from spotmpi.study.parameters import KNOWN
from spotmpi.study.study import StudyOptions
from tests.command_line import invoke

pytestmark = pytest.mark.usefixtures("own_folder")

COMMAND = {"command": ["true"], "launcher": "none"}


def problems(values: dict[str, Any], *overrides: str, on: str | None = None, **options: Any) -> list[str]:
    """The problems of the study or spec in a file with these values."""
    Path("study.toml").write_text(tomli_w.dumps(values))
    with pytest.raises(spotmpi.InputError) as refused:
        spotmpi.plan_bench("study.toml", StudyOptions(**options), overrides, on)
    return [str(problem) for problem in refused.value.problems]


def fields(*arguments: Any, **options: Any) -> list[str]:
    return [problem.partition(":")[0] for problem in problems(*arguments, **options)]


def test_a_study_with_mistakes_in_file_spec_parameters_and_for_its_target() -> None:
    Path("study.toml").write_text(
        'repeat = 3\nretries = "many"\n[limits]\nmoney = -1\n'
        '[parameters]\nnodes = [0, 1000000]\nframework = ["pytorch"]\nbuket_mb = [10]\ndouble_buffering = [true]\n'
        '[spec]\nprogram = "digits"\ncolour = "red"\ndata = "nowhere"\nmpi = 3\n'
    )

    code, output, errors = invoke("bench", "study.toml", "--nodes", "1,2", "--repeats", "0")

    assert (code, output) == (2, "")
    assert sorted(line.partition(": ")[2] for line in errors.splitlines()) == [
        "--nodes = '1,2': not allowed with a study: study.toml defines its own parameters",
        "colour = 'red': unknown key; known keys: " + ", ".join(JobSpec.model_fields),
        "data = 'nowhere': not a readable folder; check the path",
        "limits.money = -1: input should be greater than 0",
        "mpi = 3: input should be a table, with keys such as args",
        "nodes = 1000000: 1,000,000 nodes x 1 slot exceed the 1024 processes possible here",
        "parameters.buket_mb = [10]: unknown parameter; known: "
        + ", ".join(("nodes", *KNOWN))
        + "; for another one give a table of values with settings",
        "parameters.double_buffering = true: supported only by ChainerMN",
        "parameters.nodes = 0: must be a whole number of at least 1",
        "repeat = 3: unknown key; did you mean repeats?",
        "repeats = 0: input should be greater than or equal to 1",
        "retries = 'many': input should be a valid integer",
    ]


def test_a_spec_with_mistakes_in_its_keys_options_and_variants() -> None:
    Path("job.toml").write_text('command = ["true"]\nlauncher = "none"\ndata = "nowhere"\nprice = -1\ncolour = "red"\n')
    options = ["--nodes", "1,x", "--retries", "-1", "--variant", "a:slot=2", "--variant", "b:slots=2"]

    code, output, errors = invoke("bench", "job.toml", *options)

    assert (code, output) == (2, "") and not Path("runs").exists()
    assert sorted(line.partition(": ")[2] for line in errors.splitlines()) == [
        "--nodes = '1,x': node counts must be distinct and at least 1, such as 1,2,4",
        "--retries = -1: must be at least 0",
        "--variant a:slot=2: slot = 2: unknown key; did you mean slots?",
        "colour = 'red': unknown key; known keys: " + ", ".join(JobSpec.model_fields),
        "data = 'nowhere': not a readable folder; check the path",
        "price = -1: input should be greater than 0",
        'slots = 2: "none" starts one process per node: use slots = 1, or another launcher '
        f"({', '.join(name for name in LAUNCHERS if name != 'none')})",
    ]


def test_what_may_follow_from_a_wrong_key_of_the_spec_is_not_reported() -> None:
    wrong = {"progam": "digits", "image": 3, "slots": 0}
    parameters = {"global_batch": [7], "double_buffering": [True], "nodes": [2]}
    study = {"spec": wrong, "parameters": parameters, "without_allreduce": True, "micro_benchmarks": True}

    assert fields(study) == ["image = 3", "slots = 0", "progam = 'digits'"]
    assert fields({**COMMAND, "slots": "two"}, variants=["one:slots=1", "bad:slot=1"]) == [
        "slots = 'two'",
        "variants bad",
    ]


def test_no_pods_stand_by_in_trials_whose_costs_are_those_of_their_nodes() -> None:
    study = {"spec": {**COMMAND, "standby": 1}, "parameters": {"nodes": [2]}}
    refused = "standby = 1: the costs of trials are those of their nodes: remove it"
    assert refused in problems(study)
    of_value = {"spec": COMMAND, "parameters": {"nodes": [2], "own": {"a": [], "b": ["standby=1"]}}}
    assert refused in problems(of_value)
    for spec, variants in (({**COMMAND, "standby": 1}, []), (COMMAND, ["safe:standby=1"])):
        assert refused in problems(spec, nodes="2", variants=variants), "without a study file their costs were left out"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"framwork": ["chainermn"]}, ["parameters.framwork = ['chainermn']"]),  # the spec has no image without it
        ({"framework": [3], "double_buffering": [True]}, ["parameters.framework = 3"]),
        ({"framework": 3}, ["parameters.framework = 3"]),
        ({"own": {"a": "image='chainermn'"}}, ["parameters.own = { a = \"image='chainermn'\" }"]),
        ({"framework": {"a": ["slots=1"]}}, ["parameters.framework = 'framework'"]),
    ],
)
def test_what_may_follow_from_a_wrong_parameter_is_not_reported(
    parameters: dict[str, Any], expected: list[str]
) -> None:
    assert fields({"spec": {"program": "digits"}, "parameters": parameters}) == expected


def test_a_parameter_of_a_wrong_type_is_one_problem_with_the_two_forms_of_a_parameter() -> None:
    remedy = 'give a list of values, or a table of values with settings, such as { wide = ["slots=2"] }'
    for values in ("x", 3, [[1]], {"a": "slots=1"}, {"a": [1]}):
        own = f"parameters.own = {written(values)}: {remedy}"
        assert problems({"spec": COMMAND, "parameters": {"own": values}}) == [own]
    configurations = [{"slots": {"a": 1}}, {"slots": 0}, {"slots": 1}]
    assert problems({"spec": COMMAND, "parameters": {"nodes": [1]}, "configurations": configurations}) == [
        "configurations.0.slots = { a = 1 }: give a value, or a list of values",
        "configurations.1.slots = 0: must be above 0",
    ]


def test_valid_values_and_configurations_are_checked_beside_wrong_ones() -> None:
    listed = [{"slots": [0, 2]}, {"own": "b"}, {"own": "a", "nodes": 10**6}]
    study = {"spec": COMMAND, "parameters": {"own": {"a": ["env.A=1"]}, "nodes": [1]}, "configurations": listed}
    assert fields(study) == ["configurations.0.slots = 0", "configurations.1.own = 'b'", "slots = 2", "nodes = 1000000"]


def test_values_that_are_repeated_are_checked_as_well() -> None:
    assert fields({"spec": COMMAND, "parameters": {"nodes": ["x", "x"], "slots": [2, 2]}}) == [
        "parameters.nodes = ['x', 'x']",
        "parameters.nodes = 'x'",
        "parameters.slots = [2, 2]",
        "slots = 2",
    ]


def test_a_spec_that_cannot_be_read_does_not_hide_the_mistakes_of_its_study() -> None:
    study = {"spec": "missing.toml", "parameters": {"slots": [0], "double_buffering": [True]}, "repeat": 1}

    assert fields(study) == ["spec = 'missing.toml'", "repeat = 1", "parameters.slots = 0"]
    assert fields({**COMMAND}, "slots", repeats=0) == ["overrides = 'slots'", "repeats = 0"]
    assert fields({"parameters": "nodes", "spec": {**COMMAND, "slots": 0}}) == ["slots = 0", "parameters = 'nodes'"]
    problems_of_form = ["spec", "configurations = 'all'", "parameters.nodes = 0"]
    assert fields({"configurations": "all", "parameters": {"nodes": [0]}}) == problems_of_form


def test_a_target_that_cannot_be_inspected_does_not_hide_the_mistakes() -> None:
    assert "parameters.slots = 0: must be above 0" in problems(
        {"spec": COMMAND, "parameters": {"slots": [0]}}, on="no-such-file.json"
    )
