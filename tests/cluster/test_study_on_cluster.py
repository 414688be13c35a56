"""A study on real pods loses a node in the middle of a trial: it goes on, and its report tells what was left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from jobs import runs as recorded
from jobs import sweep
from jobs.trial import MEASURED, RUNNING, SUCCEEDED, Trial
from tests.cluster.followed import Runs
from tests.cluster.testbed.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(400)]

SPOTMPI = Path(sys.executable).parent / "spotmpi"
ITERATIONS = 120
STRUCK_AT = 30


def study(runs: Runs) -> dict[str, Any]:
    spec = {
        "name": "digits",
        "image": "chainermn",
        "program": "digits",
        "args": ["--global-batch", "64", "--iterations", str(ITERATIONS)],
        "kubernetes": {"image": runs.testbed.images["chainermn"], "namespace": runs.namespace, "volume": "shared"},
    }
    return {"spec": spec, "factors": {"nodes": [1, 2]}, "repeats": 2, "probe": True}


def evict_in_the_middle(runs: Runs, folder: Path, struck: list[Trial]) -> None:
    """Wait until a trial on two nodes is well under way, and take a node from it."""

    def found() -> bool:
        trials = [trial for path in sweep.every(folder) for trial in sweep.load(path).trials]
        struck[:] = [t for t in trials if t.state == RUNNING and t.role == MEASURED and t.nodes == 2 and t.runs]
        lines = recorded.lines(folder / struck[0].runs[-1] / "metrics.jsonl") if struck else iter(())
        return any((line.get("iteration") or 0) >= STRUCK_AT for line in lines)

    wait_for("a trial on two nodes in its middle", found, 200.0)
    runs.testbed.evict(runs.pod(struck[0].runs[-1], 1)["metadata"]["name"], runs.namespace)


def test_a_reclaim_in_the_middle_of_a_study_is_left_out_counted_and_named(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(tomli_w.dumps(study(runs)))
    folder, struck = tmp_path / "runs", list[Trial]()
    reclaim = threading.Thread(target=evict_in_the_middle, args=(runs, folder, struck), daemon=True)
    reclaim.start()
    command = [str(SPOTMPI), "bench", "study.toml", "--on", "kubernetes", "--runs", str(folder), "--json"]
    environment = {**os.environ, "KUBECONFIG": str(runs.testbed.kubeconfig)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert struck, "nothing was struck"

    # The study went on to its end.
    it = sweep.load(sweep.every(folder)[0])
    assert [trial.state for trial in it.trials] == [SUCCEEDED] * 5, done.stderr
    assert len(it.trials[struck[0].number - 1].runs) == 1  # the same run, in another attempt

    report = json.loads(done.stdout)
    rows = {row["nodes"]: row for row in report["rows"]}
    assert (rows[1]["interruptions"], rows[2]["interruptions"], rows[2]["failures"]) == (0, 1, 0)

    # What was going on when the node went is left out, and each iteration is accounted for.
    run = next(run for run in rows[2]["runs"] if run["id"] == struck[0].runs[0])
    undisturbed = next(run for run in rows[2]["runs"] if run["id"] != struck[0].runs[0])
    assert run["left_out"]["warm-up"] > undisturbed["left_out"]["warm-up"]
    again = run["left_out"]["repeated after a restart"]
    assert run["iterations"] + sum(run["left_out"].values()) == ITERATIONS + again, run

    # And the report says which trial it was, and what the nodes could do before.
    (cut,) = section(report, "Attempts and reclaims")["rows"]
    assert (cut["Trial"], cut["Attempt"], cut["How"]) == (str(struck[0].number), "1", "interrupted")
    assert section(report, "The nodes beforehand")["rows"][0]["What"] == "allreduce, bus bandwidth"


def section(report: dict[str, Any], title: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in report["sections"] if each["title"] == title)
    return found
