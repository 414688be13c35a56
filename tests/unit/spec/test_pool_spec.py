"""Specs of worker pools: what is refused, with remedies, and what a limit of drivers may be."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.core.errors import InputError
from spotmpi.plan.run_plan import limits
from spotmpi.spec import validate_cluster
from spotmpi.spec.source import from_values
from tests.unit.spec.test_validate import COMMAND, GOOD, TARGET, problems

POOL: dict[str, Any] = {"launcher": "pool", "pool": {"count": 2, "gpu": 1}}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (POOL, []),
        ({**POOL, "command": ["python3", "driver.py"]}, []),
        ({"launcher": "pool"}, ["pool: a pool needs workers: add the table [pool] with count = N"]),
        ({**POOL, "preload": ["torch"]}, ["preload = ['torch']: is for ranks, and a pool has none; remove it"]),
        ({**COMMAND, "pool": {"count": 2}}, ['pool: needs launcher = "pool", not "mpirun"']),
        (
            {**POOL, "nodes": 2, "slots": 3, "mpi": {"args": ["-x"]}, "checkpoint": {"path": "/mine", "memory": 1}},
            [
                "nodes = 2: a pool has one driver: give its number of workers as pool.count",
                "slots = 3: a pool has one driver: give its number of workers as pool.count",
                "mpi.args = ['-x']: a pool starts no mpirun; remove it",
                "checkpoint.path = '/mine': a pool writes no checkpoints; remove it",
                "checkpoint.memory = '1': a pool writes no checkpoints; remove it",
            ],
        ),
        (
            {**POOL, **GOOD},
            ["program = 'digits': a pool executes functions: leave it out, or give a driver as command"],
        ),
        ({**POOL, "pool": {"count": 64, "gpu": 0}}, []),
        ({**POOL, "pool": {"count": 65}}, ["pool.count = 65: exceeds the 64 processes possible here"]),
        ({**POOL, "pool": {"count": 3, "gpu": 1}}, ["pool.gpu = 1: requested 3 GPUs, 2 available"]),
    ],
)
def test_a_pool_has_workers_and_one_driver(values: dict[str, Any], expected: list[str]) -> None:
    assert problems(values, TARGET._replace(tools=TARGET.tools | {"pool"})) == expected


def test_a_driver_of_another_python_than_our_image_has_is_refused_before_pods_are_asked_for() -> None:
    other = "has Python 3.11 and this driver has 3.12, but pickled functions need the same minor version"
    pool = {**POOL, "image": "pytorch"}
    in_pool = {**pool, "command": ["python", "drive.py"]}
    later = {**pool, "limits": {"driver": "none"}}
    foreign = {**POOL, "kubernetes": {"image": "registry.example/own:1"}}

    assert [str(each) for each in validate_cluster.driver_python(from_values(pool), "3.11")] == []
    assert list(validate_cluster.driver_python(from_values({**pool, "image": "nowhere"}), "3.12")) == []
    (problem,) = validate_cluster.driver_python(from_values(pool), "3.12")
    assert str(problem).startswith(f"image = 'pytorch': {other}: use spotmpi with Python 3.11, a command as the driver")
    for values in (in_pool, later, foreign, {"command": ["true"], "image": "pytorch"}):
        assert list(validate_cluster.driver_python(from_values(values), "3.12")) == []


@pytest.mark.parametrize(("written", "seconds"), [("10m", 600.0), ("0s", 0.0), ("none", "none")])
def test_the_limit_of_drivers_is_a_duration_or_none(written: str, seconds: float | str) -> None:
    spec = from_values({**POOL, "limits": {"driver": written}})
    assert spec.limits.driver == seconds
    assert from_values(spec.canonical()).limits.driver == seconds


@pytest.mark.parametrize("written", ["soon", -1, True, float("inf"), 10**400])
def test_another_limit_of_drivers_is_refused(written: object) -> None:
    with pytest.raises(InputError, match=r'^limits\.driver = .*: write a duration .*or "none"$'):
        from_values({**POOL, "limits": {"driver": written}})


def test_agents_do_not_end_a_quiet_pool() -> None:
    values = limits(from_values({**POOL, "limits": {"driver": "10m"}}))
    assert (values["no_progress"], values["driver"]) == (0.0, 600.0)
    assert limits(from_values({**POOL, "limits": {"driver": "none"}}))["driver"] is None
