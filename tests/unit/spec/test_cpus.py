"""Numbers of CPUs in a spec, whole or not."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.core.errors import InputError
from spotmpi.plan.run_plan import threads
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import from_values
from spotmpi.spec.workers import quantity

TABLES = ("resources", "pool", "stream.workers")


def spec_with(table: str, cpu: object) -> JobSpec:
    values: dict[str, dict[str, Any]] = {"resources": {}, "pool": {"count": 1}, "stream": {"workers": {}}}
    outer, _, inner = table.partition(".")
    (values[outer][inner] if inner else values[outer])["cpu"] = cpu
    return from_values(values)


def cpu_of(spec: JobSpec, table: str) -> float:
    assert spec.pool and spec.stream
    tables = {"resources": spec.resources.cpu, "pool": spec.pool.cpu, "stream.workers": spec.stream.workers.cpu}
    return tables[table]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("written", "cpu"),
    [(2, 2), (0.5, 0.5), ("500m", 0.5), ("0.5", 0.5), ("2", 2), ("2000m", 2), (1.25, 1.25), (0.1, 0.1), ("1m", 0.001)],
)
def test_cpus_are_a_number_or_a_quantity_of_kubernetes(table: str, written: object, cpu: float) -> None:
    spec = spec_with(table, written)
    assert cpu_of(spec, table) == cpu
    assert isinstance(cpu_of(spec, table), int) == isinstance(cpu, int)
    assert from_values(spec.canonical()) == spec


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("value", [0, -1, "0m", "-500m", "half", "", "2 x", True, "1.5Gi", 0.0001, "0.5m", [1], 1e308])
def test_what_is_no_number_of_cpus_is_refused_with_the_remedy(table: str, value: object) -> None:
    remedy = 'write a number of CPUs such as 2 or 0.5, or in thousandths, such as "500m"; at least "1m"'
    with pytest.raises(InputError) as caught:
        spec_with(table, value)
    (problem,) = caught.value.problems
    assert (problem.field, problem.remedy) == (f"{table}.cpu", remedy)


@pytest.mark.parametrize(
    ("cpu", "slots", "expected"), [(0.5, 1, "500m"), (0.5, 2, "1"), (0.1, 3, "300m"), (4, 2, "8"), (1.5, 1, "1500m")]
)
def test_the_cpus_of_a_pod_are_those_of_its_slots(cpu: float, slots: int, expected: str) -> None:
    assert quantity(cpu, slots) == expected


@pytest.mark.parametrize(("cpu", "expected"), [(0.001, 1), (0.5, 1), (1, 1), (1.5, 2), (4, 4)])
def test_a_process_has_at_least_one_thread(cpu: float, expected: int) -> None:
    assert threads(cpu) == expected
