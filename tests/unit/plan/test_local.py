"""The plan of a run on one machine, whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.core import names
from spotmpi.plan.local import Machine, local_plan
from spotmpi.spec.job import from_values

MACHINE = Machine(
    folder="/home/ann/work it's",
    path="/usr/local/bin:/usr/bin",
    python="/venv/bin/python",
    source="/checkout/jobs",
    mpirun="/image/bin/mpirun",
    mpirun_family=5,
    image_bin="/image/bin",
    cores=4,
    root=False,
)
BARE = Machine("/home/ann", "/usr/bin", "/venv/bin/python", "/checkout/jobs", "/usr/bin/mpirun", 4, None, 2, True)
PATHS = names.RunPaths(Path("/runs/digits-261121083059-bcdf"))

DIGITS: dict[str, Any] = {"program": "digits", "args": ["--global-batch", "64", "--epochs", "2"]}
PLANS: dict[str, tuple[dict[str, Any], Machine]] = {
    "mpirun-program": ({**DIGITS, "image": "chainermn", "nodes": 3, "slots": 2, "resources": {"cpu": 2}}, MACHINE),
    "mpirun-command-on-open-mpi-4": (
        {"command": ["python3", "train it.py"], "args": ["--x=$HOME", ""], "slots": 2, "env": {"A": "b c"}},
        BARE,
    ),
    "torchrun-program": ({**DIGITS, "image": "pytorch", "launcher": "torchrun", "nodes": 2, "slots": 2}, MACHINE),
    "torchrun-command": (
        {"command": ["python3", "train.py"], "launcher": "torchrun", "image": "pytorch", "data": "/data/voc"},
        MACHINE,
    ),
    "none-on-every-node": (
        {
            "command": ["./mine", "{spotmpi-port}"],
            "launcher": "none",
            "nodes": 3,
            "checkpoint": {"every": "5m", "keep": 9, "path": "/kept", "grace": "2m"},
            "limits": {"start": "1m", "run": "8h", "no_progress": "5m", "failures": 0, "interruptions": 3},
            "resources": {"memory": "2Gi"},
        },
        BARE,
    ),
    "pool": (
        {"launcher": "pool", "pool": {"workers": 4, "cpu": 2, "memory": "2Gi"}, "limits": {"driver": "1h"}},
        MACHINE,
    ),
    "pool-with-command": (
        {"launcher": "pool", "pool": {"workers": 1}, "command": ["python3", "drive it.py"], "code": "/home/ann/src"},
        BARE,
    ),
    "pool-without-limit": ({"launcher": "pool", "pool": {"workers": 1}, "limits": {"driver": "none"}}, BARE),
    "none-with-code-and-files": (
        {"command": ["./mine"], "launcher": "none", "code": "/home/ann/src", "files": ["/home/ann/helper.py"]},
        replace(BARE, folder="/runs/digits-261121083059-bcdf/code", python_path="/home/ann/lib"),
    ),
    "mpirun-with-a-stream": (
        {
            "command": ["python", "train.py"],
            "image": "chainermn",
            "slots": 2,
            "files": ["/home/ann/train.py"],
            "stream": {
                "source": "s3://set/*.parquet",
                "batch": 4096,
                "prepare": "flow:prepare",
                "workers": {"nodes": 3, "cpu": 2},
            },
        },
        replace(MACHINE, folder="/runs/digits-261121083059-bcdf/code"),
    ),
    "none-on-the-first-node": (
        {
            "command": ["./mine"],
            "launcher": "none",
            "nodes": 3,
            "where": "first",
            "metrics": {"pattern": "(?P<iteration>.)"},
        },
        BARE,
    ),
}


def plan_of(values: dict[str, Any], machine: Machine) -> str:
    plan = local_plan(from_values(values), PATHS, machine, {"code": "abc"})
    return json.dumps({key: value for key, value in plan.items() if key != "spec"}, indent=1) + "\n"


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_equals_its_golden_file(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"plan-{name}.json", plan_of(*PLANS[name]))


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_plain_json_and_deterministic(name: str) -> None:
    values, machine = PLANS[name]
    plan = local_plan(from_values(values), PATHS, machine, {})

    assert json.loads(json.dumps(plan)) == plan
    assert plan_of(values, machine) == plan_of(values, machine)


def test_more_ranks_than_cores_are_noted_and_recorded() -> None:
    plan = local_plan(from_values({"command": ["x"], "slots": 5}), PATHS, MACHINE, {})

    assert plan["oversubscribed"] and plan["notes"] == ["oversubscribed: 5 threads of 5 ranks share 4 cores"]
    assert not local_plan(from_values({"command": ["x"], "slots": 4}), PATHS, MACHINE, {})["oversubscribed"]


def test_what_a_pool_does_not_heed_on_this_machine_is_noted() -> None:
    def notes(**pool: Any) -> list[str]:
        values = {"command": ["x"], "launcher": "pool", "pool": {"workers": 2, **pool}}
        return local_plan(from_values(values), PATHS, MACHINE, {})["notes"]

    assert notes(cpu=2) == []
    assert notes(cpu=3, memory="2Gi") == [
        "oversubscribed: 6 threads of 2 workers share 4 cores",
        "pool.memory is not enforced on this machine",
    ]


def test_what_has_no_effect_on_this_machine_is_noted() -> None:
    values = {"command": ["x"], "data": {"path": "/data", "stage": "memory"}, "resources": {"memory": "2Gi"}}
    assert local_plan(from_values(values), PATHS, MACHINE, {})["notes"] == [
        "data.stage has no effect on this machine: the data is read from its folder",
        "resources.memory is not enforced on this machine",
    ]


def test_python_is_that_of_the_image_or_the_one_on_path() -> None:
    torchrun = {"command": ["x"], "launcher": "torchrun"}
    assert local_plan(from_values(torchrun), PATHS, BARE, {})["commands"][0]["arguments"][0] == "python3"
    program = {"program": "digits", "image": "chainermn", "launcher": "none"}
    arguments = local_plan(from_values(program), PATHS, MACHINE, {})["commands"][0]["arguments"]
    assert arguments[-3:] == ["/image/bin/python", "-m", names.program_module("chainermn", "digits")]
