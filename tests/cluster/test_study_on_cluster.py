"""A study on real pods: nodes and storage are measured first, a trial loses a node, and the report tells all of it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from spotmpi.entries.manifest import DATASET, Manifest, describe
from spotmpi.entries.store import Store
from spotmpi.runs import reader
from spotmpi.study.study import ALLREDUCE, MEASURED, READ, RUNNING, SUCCEEDED, Trial
from spotmpi.study.sweep import load_sweep, sweep_folders
from tests.cluster.runs import Runs
from tests.command_line import SPOTMPI
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("chainermn"),
    pytest.mark.timeout(1700),
    pytest.mark.nightly("a whole study; studies run on this machine in the unit and images tiers"),
]

ITERATIONS = 300  # long enough that the trial is still in its middle when the node goes
STRUCK_AT = 30
FILES, SIZE = 300, 50_000  # what the read benchmark finds on the run volume, to which the data set is copied


def study(runs: Runs) -> dict[str, Any]:
    image = runs.testbed.images["chainermn"]
    spec = {
        "name": "digits",
        "image": "chainermn",
        "program": "digits",
        "args": ["--global-batch", "64", "--iterations", str(ITERATIONS)],
        "data": "datasets:set",
        "kubernetes": {"image": image, "namespace": runs.namespace, "volume": "shared", "exclusive": True},
    }
    return {"spec": spec, "parameters": {"nodes": [1, 2]}, "repeats": 2, "micro_benchmarks": True}


def put_data(folder: Path) -> str:
    """A store with a data set, which digits do not read, but the benchmark does; the store's place."""
    store, sources = Store(str(folder / "store")), dict[str, str]()
    for number in range(FILES):
        path = folder / f"{number}.bin"
        path.write_bytes(os.urandom(SIZE))
        sources[path.name] = str(path)
    files = tuple(describe(Path(source), name) for name, source in sources.items())
    store.add(Manifest(kind=DATASET, name="set", key="0" * 64, created=1.0, files=files), sources)
    return str(folder / "store")


def evict_in_the_middle(runs: Runs, folder: Path, interrupted_trials: list[Trial]) -> None:
    """Wait until a trial on two nodes is well under way, and take a node from it."""

    def is_running() -> bool:
        trials = [trial for path in sweep_folders(folder) for trial in load_sweep(path).trials]
        interrupted_trials[:] = [
            t for t in trials if t.state == RUNNING and t.role == MEASURED and t.nodes == 2 and t.runs
        ]
        lines = recorded_in(folder, interrupted_trials[0]) if interrupted_trials else []
        return any((line.get("iteration") or 0) >= STRUCK_AT for line in lines)

    wait_for("a trial on two nodes in its middle", is_running, 900.0)
    runs.testbed.evict(runs.pod(interrupted_trials[0].runs[-1], 1)["metadata"]["name"], runs.namespace)


def bench(runs: Runs, folder: Path, store: str) -> subprocess.CompletedProcess[str]:
    """Carry out the study in the folder *here*; its report is printed as JSON."""
    (folder / "study.toml").write_text(tomli_w.dumps(study(runs)))
    command = [str(SPOTMPI), "bench", "study.toml", "--on", "kubernetes", "--runs", str(folder / "runs"), "--json"]
    environment = {**os.environ, "KUBECONFIG": str(runs.testbed.kubeconfig), "SPOTMPI_STORE": store}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500)


def test_a_reclaim_during_a_study_is_excluded_from_rates_and_reported(runs: Runs, tmp_path: Path) -> None:
    store = put_data(tmp_path)
    folder, interrupted_trials = tmp_path / "runs", list[Trial]()
    reclaim = threading.Thread(target=evict_in_the_middle, args=(runs, folder, interrupted_trials), daemon=True)
    reclaim.start()
    result = bench(runs, tmp_path, store)
    assert result.returncode == 0, result.stderr
    assert interrupted_trials, "nothing was struck"

    # The study went on to its end.
    sweep = load_sweep(sweep_folders(folder)[0])
    assert [trial.state for trial in sweep.trials] == [SUCCEEDED] * 6, result.stderr
    assert len(sweep.trials[interrupted_trials[0].number - 1].runs) == 1  # the same run, in another attempt

    report = json.loads(result.stdout)
    rows = {row["nodes"]: row for row in report["rows"]}
    restarts = section(report, "Attempts and interruptions")["rows"]
    assert (rows[1]["interruptions"], rows[2]["interruptions"], rows[2]["failures"]) == (0, 1, 0), restarts

    # What was going on when the node went is left out, and each iteration is accounted for.
    run = next(run for run in rows[2]["runs"] if run["id"] == interrupted_trials[0].runs[0])
    undisturbed = next(run for run in rows[2]["runs"] if run["id"] != interrupted_trials[0].runs[0])
    assert run["excluded"]["warm-up"] > undisturbed["excluded"]["warm-up"]
    again = run["excluded"]["repeated after a restart"]
    assert run["iterations"] + sum(run["excluded"].values()) == ITERATIONS + again, run

    # The report says which trial it was.
    (cut,) = restarts
    assert (cut["Trial"], cut["Attempt"], cut["Outcome"]) == (str(interrupted_trials[0].number), "1", "interrupted")

    # And what nodes and storage could do before, measured by both ranks on the nodes that the trials then had.
    assert_micro_benchmarks(report)
    micro_benchmarks = {
        trial.role: recorded_in(folder, trial) for trial in sweep.trials if trial.role in (ALLREDUCE, READ)
    }
    (read,) = [line for line in micro_benchmarks[READ] if line.get("kind") == "result"]
    assert (read["files"], read["bytes"]) == (FILES, FILES * SIZE)
    measured_on = machines(folder, interrupted_trials[0])
    assert len(measured_on) == 2
    assert all(machines(folder, trial) == measured_on for trial in sweep.trials if trial.role in (ALLREDUCE, READ))


def assert_micro_benchmarks(report: dict[str, Any]) -> None:
    """Every figure of the micro-benchmarks is present, of two nodes and above zero."""
    rows = {(row["What"], row["Unit"]): row for row in section(report, "Micro-benchmarks")["rows"]}
    assert set(rows) == {
        ("allreduce, bus bandwidth", "GB/s"),
        *((f"reading, {how}", unit) for how in ("cold", "warm") for unit in ("MB/s", "files/s")),
    }
    assert all(row["Nodes"] == "2" and float(row["Value"].replace(",", "")) > 0 for row in rows.values()), rows


def recorded_in(folder: Path, trial: Trial) -> list[dict[str, Any]]:
    return list(reader.lines(folder / trial.runs[-1] / "metrics.jsonl"))


def machines(folder: Path, trial: Trial) -> set[str]:
    """The Kubernetes nodes that its attempts were on."""
    events = reader.lines(folder / trial.runs[-1] / "events.jsonl")
    return {each["name"] for event in events for each in event.get("machines") or []}


def section(report: dict[str, Any], title: str) -> dict[str, Any]:
    match: dict[str, Any] = next(each for each in report["sections"] if each["title"] == title)
    return match
