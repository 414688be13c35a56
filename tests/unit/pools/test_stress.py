"""All that drivers of a pool can do and suffer, at once; see `stress.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.pools import stress

PROJECT = Path(stress.__file__).parents[3]


def run_stress(seed: int, seconds: float) -> None:
    """In a process of its own, since it sets the clock and makes warnings errors."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(PROJECT), str(PROJECT / "jobs")))}
    command = [sys.executable, "-m", "tests.unit.pools.stress", str(seed), str(seconds)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, errors = process.communicate(timeout=seconds + 6 * stress.LIMIT)
        finally:
            process.kill()
    assert process.returncode == 0, errors[-20_000:]


@pytest.mark.timeout(8 * stress.LIMIT)
@pytest.mark.extensive("a long search: test_drivers and test_local_pool_faults have its parts")
def test_each_result_of_drivers_under_stress_arrives_once_and_right_at_the_right_driver() -> None:
    run_stress(1, 20.0)


@pytest.mark.timeout(600 + 8 * stress.LIMIT)
@pytest.mark.nightly("10 minutes; the test above has 20 s of it")
def test_drivers_under_stress_for_ten_minutes() -> None:
    run_stress(2, 600.0)
