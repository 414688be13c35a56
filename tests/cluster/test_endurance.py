"""A run survives many random faults: by day some, at night 2,000: alone, with a stream, with a standby, under torchrun.

Afterwards its parameters are those of an undisturbed run, with each sample once, and its record has one attempt for
each fault that costs one, with the right cause. In a long run nothing may have grown: memory and open files of agents,
files of the run folder (but those of attempts, of which each has a record and logs), seconds of a recovery.

`--faults N --seed N` choose another number of faults and other faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.endurance import MEGABYTES, Endurance, report, undisturbed
from tests.cluster.faults import ALONE, FAULTS_AT_NIGHT, FAULTS_BY_DAY, PARTS, SEED, TORCHRUN, schedule
from tests.cluster.runs import Runs, runs_in
from tests.testbed.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn")]

HOURS = 4
SLOW = 15.0  # seconds of a recovery, of which the output says what the cluster did meanwhile


@pytest.fixture
def volume_runs(testbed: Cluster, runs_namespace: str, tmp_path: Path) -> Iterator[Runs]:
    """Runs in a fresh namespace whose volume can be filled."""
    with runs_in(testbed, runs_namespace, tmp_path / "copies", megabytes=MEGABYTES) as runs:
        yield runs


@pytest.mark.timeout(400)
def test_a_run_survives_some_faults_of_all_sorts(
    volume_runs: Runs, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    survive(volume_runs, tmp_path, request.config, FAULTS_BY_DAY, ALONE)


@pytest.mark.nightly("hours; by day some of the faults")
@pytest.mark.timeout(HOURS * 3600)
@pytest.mark.parametrize(
    "part",
    [pytest.param(each, marks=pytest.mark.pod_images("pytorch") if each == TORCHRUN else ()) for each in PARTS],
)
def test_a_run_survives_500_faults(
    volume_runs: Runs, tmp_path: Path, request: pytest.FixtureRequest, part: str
) -> None:
    survive(volume_runs, tmp_path, request.config, FAULTS_AT_NIGHT, part)


def survive(runs: Runs, folder: Path, config: pytest.Config, count: int, part: str) -> None:
    """Let a run go through so many faults, and compare it with an undisturbed one."""
    chosen = config.getoption("--faults"), config.getoption("--seed")
    count, seed = (default if each is None else each for each, default in zip(chosen, (count, SEED), strict=True))
    faults = schedule(seed, count, part)
    print(f"--seed {seed} --faults {count}, {part}", *faults, sep="\n", flush=True)
    endurance = Endurance(runs, folder, part)
    endurance.start()
    for number, fault in enumerate(faults, 1):
        passed = endurance.go_through(fault)
        cost = "no attempt" if passed.seconds is None else f"{passed.seconds:.1f} s"
        print(f"{number}: {fault.kind} {fault.node} cost {cost}", flush=True)
        if (passed.seconds or 0.0) > SLOW:
            print(endurance.diagnosis(), flush=True)
    result = endurance.finish()
    endurance.check(result, undisturbed(result["iteration"], folder / "undisturbed", part))
    print(report(endurance, result), flush=True)
