"""The digits programs under real launchers: what is learnt, and that it is the same however it is run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spotmpi.agent import protocol
from spotmpi.programs.digits import initial_layers
from tests.programs.by_day import in_chainermn
from tests.programs.conftest import newest_state

if TYPE_CHECKING:
    from tests.programs.conftest import Image, RunningProgram

pytestmark = [pytest.mark.images, pytest.mark.timeout(900)]

LONG = ("--global-batch", "32", "--iterations", "200", "--dropout", "0.2")


def digits(image: Image, ranks: int, *options: str, **environment: str) -> RunningProgram:
    return image.mpirun(ranks, *image.program("digits"), *options, **environment)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    """The parameters' checksum of the LONG run that nothing disturbs, by image; filled by the first test to ask."""
    return {}


_EVENTS = """
import multiprocessing, sys
from multiprocessing import resource_tracker
from pathlib import Path
from spotmpi.programs.reporting import Reporter
multiprocessing.set_start_method("forkserver")
reporter = Reporter(0, Path(sys.argv[1]))
reporter.metric(1, 1.0, [0.1], {"loss": 0.5})
reporter.close()
print("process for semaphores:", resource_tracker._resource_tracker._pid)
"""


def test_an_event_file_leaves_no_semaphore_on_the_machine_when_its_rank_is_killed(image: Image, tmp_path: Path) -> None:
    """Those of queues have names where processes start by forkserver, as by default since Python 3.14."""
    run = image.alone("-c", _EVENTS, str(tmp_path)).succeed()
    assert "process for semaphores: None" in run.plain, run.text()
    assert list(tmp_path.glob("events.out.*"))


def test_two_ranks_learn_the_digits_and_report_their_work(image: Image) -> None:
    run = digits(image, 2, "--global-batch", "64", "--epochs", "15", "--evaluate-every", "100").succeed()

    result = run.one(protocol.RESULT)
    assert result["accuracy"] >= 0.95
    assert len(result["parameters"]) == 64
    context = run.one(protocol.CONTEXT)
    assert (context["world_size"], len(context["hosts"]), context["scaling"]) == (2, 1, "strong")
    assert (context["samples_per_iteration"], context["batch_per_worker"]) == (64, 32)
    assert context["total_iterations"] == result["iteration"] == -(-15 * context["samples"] // 64)
    assert context["options"]["learning_rate"] == 0.05
    assert {"chainermn": "chainer", "pytorch": "torch"}[image.name] in context["versions"]
    metrics = run.all(protocol.METRIC)
    assert sum(len(line["seconds"]) for line in metrics) == result["iteration"]
    assert [line["iteration"] for line in run.all(protocol.EVALUATION)] == [100, 200, 300, result["iteration"]]


def test_training_from_a_model_begins_where_that_ended(image: Image, tmp_path: Path) -> None:
    first = ("--global-batch", "64", "--epochs", "4", "--checkpoint-path", str(tmp_path))
    trained = digits(image, 2, *first).succeed().one(protocol.RESULT)
    newest = max(tmp_path.iterdir())
    once = ("--global-batch", "64", "--iterations", "1", "--learning-rate", "1e-9")
    result = digits(image, 2, *once, **{protocol.ENV_INIT: str(newest)}).succeed().one(protocol.RESULT)
    assert result["accuracy"] == trained["accuracy"] > 0.8
    assert result["test_loss"] == pytest.approx(trained["test_loss"], rel=1e-4)


def test_one_update_is_the_same_on_one_and_two_ranks_and_in_both_frameworks(
    chainermn: Image, pytorch: Image, tmp_path: Path
) -> None:
    updated = {}
    for image in (chainermn, pytorch):
        for ranks in (1, 2):
            folder = tmp_path / f"{image.name}{ranks}"
            options = ("--global-batch", "32", "--iterations", "1", "--checkpoint-path", str(folder))
            digits(image, ranks, *options).succeed()
            updated[image.name, ranks] = in_one_naming(newest_state(folder))

    reference = updated["chainermn", 1]
    layers = initial_layers(0)
    for (layer, part), value in reference.items():
        assert np.abs(value - layers[layer][part]).max() > 1e-4, "the update was to change every parameter"
    for values in updated.values():
        assert values.keys() == reference.keys()
        for name, value in values.items():
            np.testing.assert_allclose(value, reference[name], rtol=0, atol=1e-5)


def in_one_naming(values: dict[str, Any]) -> dict[tuple[str, int], Any]:
    """*values* by layer and part (weights 0, biases 1): Chainer says conv1/W where PyTorch says conv1.weight."""
    named = {}
    for name, value in values.items():
        layer, part = name.removeprefix("parameters/").replace(".", "/").split("/")
        named[layer, int(part in ("b", "bias"))] = value
    return named


@pytest.mark.nightly("two whole trainings; by day ranks of ChainerMN are killed and resumed under our own launcher")
@pytest.mark.parametrize(
    ("image", "launcher"), [("chainermn", "mpirun"), ("pytorch", "mpirun"), ("pytorch", "torchrun")], indirect=["image"]
)
def test_a_killed_rank_ends_the_job_and_the_next_attempt_ends_bit_for_bit_where_an_undisturbed_run_does(
    image: Image, launcher: str, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    start = getattr(image, launcher)
    saving = ("--loader-processes", "2", "--checkpoint-path", str(tmp_path), "--checkpoint-every", "0.2")
    command = (*image.program("digits"), *LONG, *saving)
    killed: RunningProgram = start(2, *command)
    checkpoint = killed.until(protocol.CHECKPOINT)
    killed.until(protocol.METRIC)
    killed.kill_rank(1)

    assert killed.end() != 0
    last = max(line["iteration"] for line in killed.all(protocol.CHECKPOINT))
    assert 0 < checkpoint["iteration"] <= last < 200, "the kill was to fall in mid-run"

    again: RunningProgram = start(2, *command).succeed()
    assert again.one(protocol.RESUMED)["iteration"] == last
    assert again.all(protocol.METRIC)[0]["iteration"] > last
    if image.name not in undisturbed:
        undisturbed[image.name] = digits(image, 2, *LONG).succeed().one(protocol.RESULT)["parameters"]
    assert again.one(protocol.RESULT)["parameters"] == undisturbed[image.name]


@pytest.mark.nightly("three trainings; by day runs are resumed with as many ranks as before")
def test_a_checkpoint_of_two_ranks_is_continued_without_a_launcher(image: Image, tmp_path: Path) -> None:
    def options(folder: str, iterations: int) -> tuple[str, ...]:
        return "--global-batch", "32", "--checkpoint-path", str(tmp_path / folder), "--iterations", str(iterations)

    digits(image, 2, *options("split", 20)).succeed()
    alone = image.alone(*image.program("digits"), *options("split", 30)).succeed()
    image.alone(*image.program("digits"), *options("whole", 30)).succeed()

    assert alone.one(protocol.RESUMED)["iteration"] == 20
    continued = newest_state(tmp_path / "split")
    for name, value in newest_state(tmp_path / "whole").items():
        np.testing.assert_allclose(continued[name], value, rtol=0, atol=1e-5)


@in_chainermn("PyTorch's start costs seconds; what is tested is code of both")
def test_a_notice_becomes_a_checkpoint_and_sigterm_also_ends_rank_zero(image: Image, tmp_path: Path) -> None:
    pid_file = tmp_path / "rank-0.pid"
    folder = tmp_path / "checkpoints"
    options = ("--global-batch", "32", "--iterations", "100000", "--checkpoint-path", str(folder))
    run = digits(image, 2, *options, SPOTMPI_PID_FILE=str(pid_file))
    run.until(protocol.METRIC)
    rank_zero = int(pid_file.read_text())
    assert rank_zero == run.ranks()[0]

    os.kill(rank_zero, signal.SIGUSR1)
    noticed = run.until(protocol.CHECKPOINT)
    assert noticed["reason"] == "notice"
    assert run.until(protocol.METRIC)["iteration"] >= noticed["iteration"], "after a notice training goes on"

    os.kill(rank_zero, signal.SIGTERM)
    assert run.end() == 143, run.text()
    last = run.all(protocol.CHECKPOINT)[-1]
    assert last["reason"] == "notice"
    assert run.all(protocol.METRIC)[-1]["iteration"] == last["iteration"], "no iteration's time is lost"
    assert sorted(path.name for path in folder.iterdir())[-1] == f"iteration-{last['iteration']:09d}"
    assert not pid_file.exists()


def test_options_that_do_not_fit_the_world_end_the_run_for_good_with_one_line(chainermn: Image) -> None:
    run = digits(chainermn, 2, "--global-batch", "33", "--iterations", "1")

    assert "--global-batch 33 is not divisible by 2 ranks: use 32" in run.refusal()


@in_chainermn("PyTorch's start costs seconds; what is tested is code of both")
def test_a_wrong_world_is_refused_before_training(image: Image) -> None:
    options = ("--global-batch", "32", "--iterations", "1")
    run = image.alone(*image.program("digits"), *options, SPOTMPI_WORLD_SIZE="2", SPOTMPI_HOSTS="1")

    assert "wrong number of ranks: 1, expected 2" in run.refusal()
    assert not run.all(protocol.METRIC)


def test_a_checkpoint_of_the_other_framework_is_refused(chainermn: Image, pytorch: Image, tmp_path: Path) -> None:
    options = ("--global-batch", "32", "--iterations", "2", "--checkpoint-path", str(tmp_path))
    digits(chainermn, 1, *options).succeed()
    before = newest_state(tmp_path)

    assert "belongs to program chainermn/digits (not pytorch/digits)" in digits(pytorch, 1, *options).refusal()

    assert all(np.array_equal(value, before[name]) for name, value in newest_state(tmp_path).items())


RAISES_IN_RANK_ONE = """
from spotmpi.programs.exits import exit_together, launcher_rank
{join}
def main():
    if launcher_rank() == 1:
        raise ValueError("rank 1 is broken")
    {wait}
exit_together(main)()
"""
JOIN = {
    "chainermn": ("import chainermn; comm = chainermn.create_communicator('naive')", "comm.mpi_comm.Barrier()"),
    "pytorch": (
        "import argparse, torch.distributed as dist; from spotmpi.programs.pytorch.processes import join;"
        "join(argparse.Namespace(backend='gloo'))",
        "dist.barrier()",
    ),
}


@in_chainermn("PyTorch's start costs seconds; what is tested is code of both")
def test_an_uncaught_exception_in_one_rank_ends_the_whole_job(image: Image) -> None:
    join, wait = JOIN[image.name]

    run = image.mpirun(2, "-c", RAISES_IN_RANK_ONE.format(join=join, wait=wait))

    assert run.end() == protocol.FAILED
    assert any("rank 1 is broken" in line for line in run.plain)


def test_rank_zero_alone_writes_tensorboard_events_that_hold_the_scalars(chainermn: Image, tmp_path: Path) -> None:
    options = ("--global-batch", "32", "--iterations", "20")
    run = digits(chainermn, 2, *options, SPOTMPI_TENSORBOARD=str(tmp_path)).succeed()
    (events,) = tmp_path.iterdir()
    code = f"""
import json
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
data, found, at = open({str(events)!r}, "rb").read(), [], 0
while at < len(data):
    length = int.from_bytes(data[at:at + 8], "little")
    event = Event.FromString(data[at + 12:at + 12 + length])
    found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    at += 16 + length
print(json.dumps(found))
"""
    reading = chainermn.alone("-c", code).succeed()
    drawn = {(tag, step): value for tag, step, value in json.loads(reading.plain[-1])}

    losses = {line["iteration"]: line["loss"] for line in run.all(protocol.METRIC)}
    assert {step: value for (tag, step), value in drawn.items() if tag == "training/loss"} == pytest.approx(losses)
    assert drawn["evaluation/accuracy", 20] == pytest.approx(run.one(protocol.RESULT)["accuracy"])
