"""The model on real ranks: fitted to 1 and 2, it predicts 3 and 4, with the bandwidth limited to two rates."""

from pathlib import Path

import pytest
import tomli_w

import spotmpi
from spotmpi.backends.targets import Target
from spotmpi.forecast import model
from spotmpi.study.study import SUCCEEDED, StudyOptions

pytestmark = [pytest.mark.images, pytest.mark.timeout(900)]

# Ranks that average gradients by a real allreduce and report what computation that is divided by the ranks, and a ring
# that sends and receives 2 (N - 1) / N of the bytes over a limited line, would take: a busy machine changes nothing.
RANK = """
import json, sys
import numpy
from mpi4py import MPI

comm, rate = MPI.COMM_WORLD, float(sys.argv[1])
ranks, gradients = comm.size, numpy.zeros(250_000, numpy.float32)

def say(kind, **values):
    if comm.rank == 0:
        print(json.dumps({"spotmpi": kind, **values}), flush=True)

say("context", world_size=ranks, samples_per_iteration=48, scaling="strong", total_iterations=60)
for last in range(10, 61, 10):
    for _ in range(10):
        comm.Allreduce(MPI.IN_PLACE, gradients)
    allreduce = 2 * (ranks - 1) / ranks * gradients.nbytes / rate
    seconds = [0.12 / ranks + allreduce + 1e-5 * step for step in range(10)]
    say("metric", iteration=last, seconds=seconds, loss=1 / last)
"""


@pytest.mark.nightly("sixteen runs of real ranks; test_model.py has the arithmetic")
def test_three_and_four_ranks_are_predicted_from_one_and_two_at_either_bandwidth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rank.py").write_text(RANK)
    values = {
        "spec": {"image": "chainermn", "command": ["python", str(tmp_path / "rank.py")]},
        "parameters": {"nodes": [1, 2, 3, 4], "bandwidth": {"20 MB/s": ["args+=2e7"], "60 MB/s": ["args+=6e7"]}},
        "repeats": 2,
    }
    Path("study.toml").write_text(tomli_w.dumps(values))
    sweep = spotmpi.bench("study.toml", StudyOptions(), on=Target(runs_folder=tmp_path / "runs"))
    assert {trial.state for trial in sweep.trials} == {SUCCEEDED}

    result = spotmpi.predict(sweep.id, [3, 4], [1, 2], on=Target(runs_folder=tmp_path / "runs"))
    assert [each.model.series.name for each in result] == ["20 MB/s", "60 MB/s"]
    for each in result:
        errors = []
        for prediction in (node_forecast.prediction for node_forecast in each.by_nodes):
            assert prediction.measured is not None
            error = prediction.rate / prediction.measured - 1
            errors.append(abs(error))
            assert prediction.error == pytest.approx(error)
            assert errors[-1] < 0.01
            assert (prediction.verdict == model.NOT_VALID) == (max(errors) > model.ERROR_LIMIT)
    volumes = [each.model.parameters["volume"] for each in result]
    # What an allreduce costs beside its bandwidth is the same at both rates.
    assert volumes[0] - volumes[1] == pytest.approx(1e6 / 20e6 - 1e6 / 60e6, rel=0.05)
