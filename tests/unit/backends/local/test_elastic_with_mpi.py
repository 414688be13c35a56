"""A run on this machine that may have fewer nodes, under a real mpirun: it loses one, goes on, and grows again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.local_nodes import _path
from spotmpi.agent.plan import NODE, Member
from spotmpi.core.errors import InputError
from spotmpi.runs import reader
from tests.contract.conftest import BackendHarness, local_harness
from tests.contract.processes import wait_until
from tests.unit.backends.local_runs import SLOW, attempts_of, paths_of, python

# Digits that takes its time for each sample, and notes those of each update: a rank may have loaded more at the end.
PROGRAM = """
import os, time
from spotmpi.programs.digits import Digits
from spotmpi.programs.pytorch import digits
from spotmpi.programs.pytorch.adapter import TorchAdapter
sample, step, loaded = Digits.sample, TorchAdapter.step, []
log = os.open(os.environ["SAMPLES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def slow(self, index, random):
    loaded.append(b"%d\\n" % index)
    time.sleep(0.001)
    return sample(self, index, random)
def noted(self, *arguments):
    scalars = step(self, *arguments)
    os.write(log, b"".join(loaded))
    loaded.clear()
    return scalars
Digits.sample, TorchAdapter.step = slow, noted
digits.main()
"""
SAMPLES, BATCH, EPOCHS = 1438, 64, 3
TOTAL = -(-EPOCHS * SAMPLES // BATCH)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[BackendHarness]:
    yield from local_harness(tmp_path / "runs", SLOW)


def spec(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    (folder / "train.py").write_text(PROGRAM)
    args = ["--global-batch", str(BATCH), "--epochs", str(EPOCHS), "--dropout", "0.2", "--report-every", "1"]
    command = ["python", str(folder / "train.py"), *args]
    return {"image": "pytorch", "command": command, "env": {"SAMPLES": str(folder / name)}, **more}


def parameters(local: BackendHarness, run: str) -> str:
    summary: Any = reader.summary(paths_of(local, run))
    return str(summary["result"]["parameters"])


@pytest.mark.images
@pytest.mark.timeout(600)
def test_each_sample_is_trained_on_once_an_epoch_across_changes_and_the_model_is_that_of_a_fixed_gang(
    local: BackendHarness, tmp_path: Path
) -> None:
    run = local.submit(spec(tmp_path, "elastic", nodes=[1, 2]))
    local.wait_for_iteration(run, 5)
    local.backend.inject_fault(run, Member(NODE, 1), "evict")
    wait_until(lambda: local.backend.state(run).attempt == 2, SLOW)
    local.wait_for_iteration(run, (attempts_of(local, run)[0]["last_iteration"] or 0) + 5)
    Path(_path(str(paths_of(local, run).folder), 1)).unlink(missing_ok=True)  # it is back
    local.wait_for_state(run, "succeeded")

    attempts = attempts_of(local, run)
    assert [each["world"]["size"] for each in attempts] == [2, 1, 2], attempts
    # The node is back after 15 s by itself, on a busy machine before the first iteration without it.
    reached = [each["last_iteration"] or each["resumed_iteration"] for each in attempts]
    assert [each["resumed_iteration"] for each in attempts] == [None, *reached[:2]]
    counts = Counter((tmp_path / "elastic").read_text().split())
    assert len(counts) == SAMPLES
    assert Counter(counts.values()) == {
        EPOCHS: SAMPLES * (EPOCHS + 1) - TOTAL * BATCH,
        EPOCHS + 1: TOTAL * BATCH - SAMPLES * EPOCHS,
    }

    fixed = local.submit(spec(tmp_path, "fixed", nodes=2))
    local.wait_for_state(fixed, "succeeded")
    # Halves are exact, so one rank adds up what two would, bit for bit; other sizes round in another order.
    assert parameters(local, run) == parameters(local, fixed)


def test_a_drill_takes_away_any_node_but_the_first(local: BackendHarness) -> None:
    run = local.submit(python("import time; print(1, flush=True); time.sleep(600)", nodes=[1, 2]))
    local.wait_for_state(run, "running")
    for node in (0, 2):
        with pytest.raises(InputError, match=f"{node}: use 1: node 0 is never taken away on this machine"):
            local.backend.inject_fault(run, Member(NODE, node), "delete")
    local.backend.inject_fault(run, Member(NODE, 1), "delete")
    wait_until(lambda: local.backend.state(run).attempt == 2)
    assert attempts_of(local, run)[0]["reason"] == "lost node 1"
