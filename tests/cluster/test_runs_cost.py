"""A run ends before it costs more than its limit, even without a follower."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from spotmpi.core import names
from spotmpi.plan.volume_pod import LABEL_PURPOSE
from tests.cluster.runs import LIMIT, Runs
from tests.command_line import SPOTMPI
from tests.contract import processes
from tests.contract.fake_program import fake_job
from tests.testbed.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.nightly("waits for half a minute's money; the contract holds limits.cost on both backends"),
]

# Two dollars a second for two nodes: 30 seconds, the last five of them for the checkpoint.
MONEY: dict[str, Any] = {"nodes": 2, "price": 3600.0, "limits": {"cost": 60.0}, "checkpoint": {"grace": "5s"}}


def submit_and_kill_terminal(runs: Runs, folder: Path) -> str:
    """The id of a run whose terminal died of SIGKILL as it had shown that the program runs."""
    kubernetes = {"image": runs.testbed.images["base"], "volume": "shared"}
    spec = folder / "job.toml"
    spec.write_text(tomli_w.dumps({**fake_job(10**6, every=10**6, **MONEY), "kubernetes": kubernetes}))
    place = ["--on", f"kubernetes/{runs.namespace}", "--runs", str(folder / "terminal")]
    terminal = subprocess.Popen(
        [SPOTMPI, "run", str(spec), *place], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert terminal.stdout is not None
    first_line = terminal.stdout.readline()
    terminal.send_signal(signal.SIGKILL)
    _, output = terminal.communicate(timeout=LIMIT)
    assert (first_line, terminal.returncode) == ("hello from attempt 1\n", -signal.SIGKILL), output
    (run,) = (folder / "terminal").iterdir()
    return run.name


def status(runs: Runs, run: str, folder: Path) -> dict[str, Any]:
    """What `spotmpi status` says of a run at another terminal."""
    place = ["--on", f"kubernetes/{runs.namespace}", "--runs", str(folder / "another terminal")]
    result = subprocess.run([SPOTMPI, "status", run, *place, "--json"], capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stderr
    output: dict[str, Any] = json.loads(result.stdout)
    return output


def test_a_run_whose_terminal_was_killed_ends_with_a_checkpoint_before_it_costs_more_than_its_limit(
    runs: Runs, tmp_path: Path
) -> None:
    run = submit_and_kill_terminal(runs, tmp_path)
    paths = names.RunPaths(runs.volume / "runs" / run) if runs.volume else None
    assert paths and processes.of_run(run) and not paths.summary.exists()

    wait_for("the run is over and its record whole", paths.summary.exists, LIMIT)
    wait_for("no process of it lives", lambda: not processes.of_run(run), LIMIT)

    (attempt,) = json.loads(paths.summary.read_text())["attempts"]
    assert 10.0 < attempt["ended"] - attempt["allocated"] < 30.0
    assert attempt["checkpoint_iteration"] == attempt["last_iteration"] > 1
    wait_for("the cluster has its end", lambda: _has_ended(runs, run), LIMIT)
    output = status(runs, run, tmp_path)
    assert (output["state"], output["attempt"], output["iteration"]) == ("failed", 1, attempt["last_iteration"])
    assert "limits.cost ($60) is nearly spent at $7200 an hour; raise it and resume the run" in output["reason"]
    pods = runs.testbed.get("pods", "-n", runs.namespace)["items"]
    assert {pod["status"]["phase"] for pod in pods} <= {"Failed", "Succeeded"}
    assert not [pod for pod in pods if LABEL_PURPOSE in pod["metadata"]["labels"]]


def _has_ended(runs: Runs, run: str) -> bool:
    """Whether the JobSet has failed, and will be deleted with all that is its own a day later."""
    jobset = runs.testbed.get("jobset", run, "-n", runs.namespace)
    assert jobset["spec"]["ttlSecondsAfterFinished"] == 24 * 3600
    return bool(jobset.get("status", {}).get("terminalState") == "Failed")
