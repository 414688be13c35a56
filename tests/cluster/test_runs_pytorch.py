"""PyTorch on real pods: by torchrun, mpirun and accelerate, and by the line that users wrote for PyTorchJob."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.runs import Runs, local_events, parameters, plain

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pod_images("pytorch"),
    pytest.mark.timeout(600),
    pytest.mark.nightly("an image of 5 GB, 5 minutes to build; the images tier runs the launchers on this machine"),
]

LINE = (
    "python -m torch.distributed.run --nnodes $WORLD_SIZE --node_rank $RANK --nproc_per_node 1 "
    "--master_addr $MASTER_ADDR --master_port $MASTER_PORT --no_python sh -c 'echo worker $RANK of $WORLD_SIZE'"
)


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "accelerate"])
def test_ddp_over_two_pods_ends_with_the_parameters_of_a_local_run_bit_for_bit(
    runs: Runs, tmp_path: Path, launcher: str
) -> None:
    values = {"name": "digits", "image": "pytorch", "program": "digits", "launcher": launcher, "nodes": 2}
    values["args"] = ["--global-batch", "64", "--epochs", "2"]
    local = local_events(values, tmp_path / "local")

    remote = runs.start(values, image="pytorch")

    assert remote.end(300).kind == "succeeded", remote.recent_events()
    assert parameters(remote.events) == parameters(local)


def test_a_command_written_for_pytorchjob_runs_unchanged_over_four_pods(runs: Runs) -> None:
    run = runs.start(plain("sh", "-c", LINE, nodes=4), image="pytorch")

    assert run.end(300).kind == "succeeded", run.recent_events()
    workers = [line for line in run.lines() if line.startswith("worker")]
    assert sorted(workers) == [f"worker {rank} of 4" for rank in range(4)]
