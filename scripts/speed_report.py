"""Builds a report over a generated study and prints its time and memory, and the size of the page."""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy

from spotmpi.runs import fingerprint
from spotmpi.spec.job import JobSpec
from spotmpi.study.study import SUCCEEDED, Trial
from spotmpi.study.study_file import from_values
from spotmpi.study.sweep import Sweep, sweep_folder

_LINE = 10  # iterations
_BUILD = """
import json, resource, sys, time
from datetime import datetime
from pathlib import Path
from spotmpi.report import files
from spotmpi.report.gather import gather
began, worked = time.perf_counter(), time.process_time()
written = files.write(gather([], Path(sys.argv[1]), datetime.now(), force=True), Path(sys.argv[1]) / "report")
seconds, processor = time.perf_counter() - began, time.process_time() - worked
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
page = written.page.stat().st_size / 1e6
print(json.dumps({"seconds": seconds, "processor": processor, "memory_mb": memory, "page_mb": page}))
"""


def main() -> None:
    """Generate, build, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), options.trials, options.iterations, options.ranks)
        done = subprocess.run([sys.executable, "-c", _BUILD, folder], capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"report over {options.trials} trials of {options.iterations} iterations on {options.ranks} ranks:")
    print(f"{figures['seconds']:.1f} s, {figures['processor']:.1f} s of it processor time")
    print(f"{figures['memory_mb']:.0f} MB of memory, a page of {figures['page_mb']:.2f} MB")


def generate(folder: Path, trials: int, iterations: int, ranks: int) -> None:
    """A study on record in *folder*, of as many trials as asked for or a few more."""
    spec = {"program": "digits", "image": "chainermn", "args": ["--global-batch", str(ranks * 8)], "slots": 8}
    nodes = [max(ranks // 8 // 2**at, 1) for at in range(3)]
    parameters = {"nodes": sorted(set(nodes)), "loader_processes": [0, 1]}
    configurations = 2 * len(set(nodes))
    study = from_values({"spec": spec, "parameters": parameters, "repeats": -(-trials // configurations)})
    identity = fingerprint.identify(study.spec)
    sweep = Sweep(sweep_folder("study", folder), study, identity, time.time())
    sweep.create()
    chance = numpy.random.default_rng(1)
    for at, trial in enumerate(list(sweep.trials)):
        run = f"run-{trial.number}"
        _run(folder / run, study.spec_of(trial), identity, iterations, chance)
        sweep.trials[at] = Trial(**{**vars(trial), "state": SUCCEEDED, "runs": (run,)})
    sweep.save()


def _run(
    folder: Path, spec: JobSpec, identity: dict[str, Any], iterations: int, chance: numpy.random.Generator
) -> None:
    folder.mkdir()
    (folder / "spec.toml").write_text(spec.to_toml())
    (folder / "plan.yaml").write_text(json.dumps({"work": {**identity, "args": spec.args}}))
    mean, now = 1 / spec.nodes * (1 + 0.01 * chance.standard_normal()), time.time()
    times = mean * (1 + 0.05 * chance.random((iterations // _LINE, spec.world_size, _LINE), dtype="f4"))
    shared = {"attempt": 1, "node": 0}
    context = {"samples_per_iteration": 512, "scaling": "strong", "versions": {"framework": "1"}}
    with (folder / "metrics.jsonl").open("w") as file:
        file.write(json.dumps({"t": now, **shared, "kind": "context", **context}) + "\n")
        for at, rows in enumerate(times, 1):
            values = {
                "iteration": at * _LINE,
                "seconds": [round(float(second), 6) for second in rows[0]],
                "loss": 1 / at,
            }
            packed = base64.b64encode(rows.astype("<f4").tobytes()).decode()
            file.write(json.dumps({"t": now + at, **shared, "kind": "metric", **values, "ranks": packed}) + "\n")
    events = [{"t": now, "event": "submitted"}, {"t": now, "event": "started"}, {"t": now + 9, "event": "succeeded"}]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


if __name__ == "__main__":
    main()
