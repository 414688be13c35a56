"""Specs of worker pools: what is refused, with remedies, and what a limit of drivers may be."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.core.errors import InputError
from spotmpi.spec import validate_cluster
from spotmpi.spec.job import from_values
from spotmpi.spec.validate import TargetCapabilities, validate


def messages(values: dict[str, Any], **capabilities: Any) -> list[str]:
    return [str(problem) for problem in validate(from_values(values), TargetCapabilities(**capabilities))]


POOL = {"launcher": "pool", "pool": {"workers": 2}}


@pytest.mark.parametrize("values", [POOL, {**POOL, "command": ["python", "drive.py"]}])
def test_a_pool_needs_workers_and_no_more(values: dict[str, Any]) -> None:
    assert messages(values) == []


def test_all_that_a_pool_cannot_have_is_refused_at_once() -> None:
    values = {**POOL, "nodes": 2, "slots": 3, "program": "digits", "image": "pytorch", "mpi": {"args": ["-v"]}}
    assert messages(values, programs={"pytorch": ("digits",)}) == [
        "nodes = 2: a pool has one driver: give its number of workers as pool.workers",
        "slots = 3: a pool has one driver: give its number of workers as pool.workers",
        "program = 'digits': a pool executes functions: leave it out, or give a driver as command",
        "mpi.args = ['-v']: a pool starts no mpirun; remove it",
    ]


def test_a_launcher_without_its_table_and_a_table_without_its_launcher_are_refused() -> None:
    assert messages({"launcher": "pool"}) == ["pool: a pool needs workers: add the table [pool] with workers = N"]
    without = {"launcher": "none", "command": ["true"], "pool": {"workers": 1}}
    assert messages(without, tools=frozenset({"none"})) == ['pool: needs launcher = "pool", not "none"']


def test_a_driver_of_another_python_than_our_image_has_is_refused_before_pods_are_asked_for() -> None:
    other = "has Python 3.11 and this driver has 3.12, and functions are pickled for one minor version"
    pool = {**POOL, "image": "pytorch"}
    in_pool = {**pool, "command": ["python", "drive.py"]}
    later = {**pool, "limits": {"driver": "none"}}
    foreign = {**POOL, "kubernetes": {"image": "registry.example/own:1"}}

    assert [str(each) for each in validate_cluster.driver_python(from_values(pool), "3.11")] == []
    (problem,) = validate_cluster.driver_python(from_values(pool), "3.12")
    assert str(problem).startswith(f"image = 'pytorch': {other}: use spotmpi with Python 3.11, a command as the driver")
    for values in (in_pool, later, foreign, {"command": ["true"], "image": "pytorch"}):
        assert list(validate_cluster.driver_python(from_values(values), "3.12")) == []


def test_more_workers_or_gpus_than_there_are_are_refused() -> None:
    values = {"launcher": "pool", "pool": {"workers": 20, "gpu": 1}}
    assert messages(values, processes=16, gpus=4) == [
        "pool.workers = 20: exceeds the 16 processes possible here",
        "pool.gpu = 1: requested 20 GPUs, 4 available",
    ]


@pytest.mark.parametrize(("written", "seconds"), [("10m", 600.0), ("0s", 0.0), ("none", "none")])
def test_the_limit_of_drivers_is_a_duration_or_none(written: str, seconds: float | str) -> None:
    spec = from_values({**POOL, "limits": {"driver": written}})
    assert spec.limits.driver == seconds
    assert from_values(spec.canonical()).limits.driver == seconds


@pytest.mark.parametrize("written", ["soon", -1, True, float("inf")])
def test_another_limit_of_drivers_is_refused(written: object) -> None:
    with pytest.raises(InputError, match=r"^limits\.driver = .*: write a duration such as"):
        from_values({**POOL, "limits": {"driver": written}})


def test_agents_do_not_end_a_quiet_pool() -> None:
    limits = from_values(POOL).agent_limits()
    assert limits["no_progress"] == 0.0 and "driver" not in limits
