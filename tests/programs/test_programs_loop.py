"""The loop with a model in numpy: the same rules for every framework, without one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.agent import protocol
from spotmpi.checkpoint.store import Background, Store
from spotmpi.programs.checkpoint import State, initial_state, parameters_checksum
from spotmpi.programs.digits import Digits
from spotmpi.programs.exits import Failed, Fatal
from spotmpi.programs.loop import Job, train
from spotmpi.programs.options import TrainingOptions, training_parser
from spotmpi.programs.reporting import IterationClock, WallClock
from spotmpi.programs.sampling import iteration_seed
from spotmpi.programs.world import alone
from tests.programs.test_programs_batches import drawings

SAMPLES = 64


class Line:
    """Learns labels as a linear function of the pixels, with momentum and noise of its own."""

    def __init__(self, evaluations: list[int] | None = None, pixels: int = 64) -> None:
        self.clock: IterationClock = WallClock()
        self.weights = np.zeros(pixels)
        self.momentum = np.zeros(pixels)
        self.steps: list[int] = []
        self.evaluations = [] if evaluations is None else evaluations

    def step(self, parts: Sequence[Any], iteration: int, seeds: Sequence[int]) -> Mapping[str, Any]:
        gradients, losses = [], []
        for (images, labels), seed in zip(parts, seeds, strict=True):
            noise = np.random.default_rng(seed)
            pixels = images.reshape(len(images), -1) + 0.01 * noise.random((len(images), 64))
            error = pixels @ self.weights - labels
            gradients.append(pixels.T @ error / len(labels))
            losses.append(np.mean(error**2))
        self.momentum = 0.9 * self.momentum - 0.001 * sum(gradients) / len(gradients)
        self.weights = self.weights + self.momentum
        self.steps.append(iteration)
        return {"loss": np.float32(np.mean(losses))}

    def state(self) -> State:
        return {"parameters/weights": self.weights.copy(), "optimizer/momentum": self.momentum.copy()}

    def load_state(self, state: State) -> None:
        self.weights, self.momentum = state["parameters/weights"], state["optimizer/momentum"]

    def evaluate(self) -> Mapping[str, float]:
        self.evaluations.append(len(self.steps))
        return {"size": float(np.abs(self.weights).sum())}


def job(line: Line, *arguments: str) -> Job:
    options = training_parser("", {}).parse_args(["--global-batch", "8", *arguments])
    return Job("numpy/line", TrainingOptions.of(options), alone(), drawings(SAMPLES), line)


Lines = list[tuple[str, dict[str, Any]]]
Run = Callable[..., Lines]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Trains a line, with *changes* of the job; gives the protocol lines that were printed on stdout."""

    def trained(line: Line, *arguments: str, **changes: Any) -> Lines:
        train(replace(job(line, *arguments), **changes))
        lines = [protocol.decode(text) for text in capsys.readouterr().out.splitlines()]
        assert None not in lines, "only protocol lines go to stdout"
        return [decoded for decoded in lines if decoded]

    return trained


def test_a_run_says_context_metrics_evaluations_and_result_in_order(run: Run) -> None:
    line = Line()
    lines = run(line, "--iterations", "25", "--report-every", "10", "--evaluate-every", "20")

    assert [(kind, values.get("iteration")) for kind, values in lines] == [
        ("context", None),
        ("metric", 10),
        ("metric", 20),
        ("evaluation", 20),
        ("metric", 25),
        ("evaluation", 25),
        ("result", 25),
    ]
    assert [len(values["seconds"]) for kind, values in lines if kind == "metric"] == [10, 10, 5]
    assert line.steps == list(range(25))
    assert line.evaluations == [20, 25]
    assert lines[1][1]["epoch"] == 10 * 8 / SAMPLES
    assert lines[-1][1]["size"] == pytest.approx(np.abs(line.weights).sum())


def test_a_rank_of_a_run_that_may_have_four_does_the_work_of_all_of_them_one_after_the_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Line):
        calls: list[tuple[list[int], list[int]]] = []

        def step(self, parts: Sequence[Any], iteration: int, seeds: Sequence[int]) -> Mapping[str, Any]:
            self.calls.append(([len(labels) for _, labels in parts], list(seeds)))
            return super().step(parts, iteration, seeds)

    monkeypatch.setenv(protocol.ENV_MOST_RANKS, "4")
    line = Seen()
    lines = run(line, "--iterations", "3")

    assert [sizes for sizes, _ in line.calls] == [[2, 2, 2, 2]] * 3
    assert line.calls[1][1] == [iteration_seed(0, rank, 1) for rank in range(4)], "as the four would draw"
    assert (lines[0][1]["samples_per_iteration"], lines[0][1]["accumulated_parts"]) == (8, 4)
    assert len(lines[1][1]["seconds"]) == 3, "an iteration is a whole batch"


def test_the_finished_model_is_evaluated_once(run: Run) -> None:
    line = Line()
    run(line, "--iterations", "20", "--evaluate-every", "10")

    assert line.evaluations == [10, 20]


def test_an_evaluation_is_in_no_iterations_time(run: Run) -> None:
    class Slow(Line):
        def evaluate(self) -> Mapping[str, float]:
            time.sleep(0.2)
            return {}

    lines = run(Slow(), "--iterations", "6", "--evaluate-every", "2")

    seconds = [second for kind, values in lines if kind == "metric" for second in values["seconds"]]
    assert len(seconds) == 6
    assert max(seconds) < 0.2


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_in_two_parts_ends_bit_for_bit_like_one_in_one(run: Run, tmp_path: Path, processes: str) -> None:
    loading = ("--loader-processes", processes, "--checkpoint-path", str(tmp_path))
    first = run(Line(), "--iterations", "13", *loading)
    second = run(Line(), "--iterations", "30", *loading)
    whole = run(Line(), "--iterations", "30")

    assert ("resumed", 13) in [(kind, values.get("iteration")) for kind, values in second]
    assert second[-1][1]["parameters"] == whole[-1][1]["parameters"] != first[-1][1]["parameters"]


def test_training_starts_from_the_parameters_of_a_kept_model_and_not_from_its_optimizer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Line()
    run(trained, "--iterations", "5", "--checkpoint-path", str(tmp_path / "first"))
    monkeypatch.setenv(protocol.ENV_INIT, str(tmp_path / "first/iteration-000000005"))
    line = Line()
    state = initial_state(line.state())
    assert state is not None and parameters_checksum(state) == parameters_checksum(trained.state())
    assert not state["optimizer/momentum"].any() and trained.momentum.any()
    lines = run(line, "--iterations", "3", "--checkpoint-path", str(tmp_path / "second"))
    assert line.steps == [0, 1, 2] and "resumed" not in [kind for kind, _ in lines]
    again = Line()
    run(again, "--iterations", "4", "--checkpoint-path", str(tmp_path / "second"))
    assert again.steps == [3], "its own checkpoint is newer than the model"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda state: {}, "the model has no such array for parameters/"),
        (lambda state: {name: value[..., None] for name, value in state.items()}, "the model has shape "),
        (lambda state: [1], "the model has no such array for parameters/"),
        (None, "cannot be loaded: it has no manifest.json; `spotmpi models verify`"),
    ],
)
def test_a_model_that_does_not_fit_ends_training_with_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, text: str
) -> None:
    monkeypatch.setenv(protocol.ENV_INIT, str(tmp_path / "iteration-000000005"))
    if change:
        store = Store(str(tmp_path), 3, {}, "other")
        store.prepare()
        store.write(5, {}, change(Line().state()), "end")
    with pytest.raises(Fatal) as caught:
        run(Line(), "--iterations", "3")
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_a_finished_run_started_again_only_evaluates(run: Run, tmp_path: Path) -> None:
    first = run(Line(), "--iterations", "5", "--checkpoint-path", str(tmp_path))
    again = Line()
    second = run(again, "--iterations", "5", "--checkpoint-path", str(tmp_path))

    assert again.steps == []
    assert second[-1] == first[-1], "the last loss included"


@pytest.fixture
def quick_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume on which a checkpoint is written before the next iteration ends."""
    start = Background.start

    def start_and_wait(background: Background, *arguments: Any) -> None:
        start(background, *arguments)
        assert background._thread
        background._thread.join()

    monkeypatch.setattr(Background, "start", start_and_wait)


@pytest.mark.usefixtures("quick_volume")
def test_checkpoints_come_on_the_timer_and_at_the_end(run: Run, tmp_path: Path) -> None:
    lines = run(Line(), "--iterations", "10", "--checkpoint-path", str(tmp_path), "--checkpoint-every", "1e-9")

    checkpoints = [(values["iteration"], values["reason"]) for kind, values in lines if kind == "checkpoint"]
    assert checkpoints == [*((iteration, "timer") for iteration in range(1, 10)), (10, "end")]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.usefixtures("quick_volume")
def test_a_failed_checkpoint_is_reported_and_one_at_the_end_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*ignored: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    line = Line()
    with pytest.raises(Failed, match="could not be saved"):
        train(job(line, "--iterations", "4", "--checkpoint-path", str(tmp_path), "--checkpoint-every", "1e-9"))

    assert line.steps == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == []
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split(" not written")[0] for line in warnings] == [
        *(f"checkpoint of iteration {number}" for number in (1, 2, 3, 4)),
    ]
    assert all("No space left on device" in line for line in warnings)


def test_other_data_under_an_old_checkpoint_is_refused(run: Run, tmp_path: Path) -> None:
    options = ("--iterations", "3", "--checkpoint-path", str(tmp_path))
    run(Line(), *options)
    other = Digits(np.zeros((SAMPLES, 1, 8, 8), np.float32), np.zeros(SAMPLES, np.int32))

    with pytest.raises(Fatal, match="belongs to data"):
        run(Line(), *options, dataset=other)


def test_a_resumed_weak_run_with_another_batch_sees_each_sample_as_often(run: Run, tmp_path: Path) -> None:
    run(Line(), "--iterations", "4", "--checkpoint-path", str(tmp_path))  # 32 of 64 samples
    options = training_parser("", {}).parse_args(
        ["--batch-per-worker", "4", "--epochs", "2", "--checkpoint-path", str(tmp_path)]
    )
    line = Line()
    lines = run(line, "--iterations", "1", options=TrainingOptions.of(options))

    assert len(line.steps) == (2 * SAMPLES - 32) // 4
    assert lines[-1][1]["iteration"] == 4 + len(line.steps)


def test_waiting_for_batches_is_reported_as_a_part_of_the_time(run: Run) -> None:
    class Waiting(Digits):
        def sample(self, index: int, random: np.random.Generator) -> Any:
            time.sleep(0.002)
            return super().sample(index, random)

    whole = drawings(SAMPLES)
    dataset = Waiting(whole.images, whole.labels)
    lines = run(Line(), "--iterations", "5", "--report-every", "5", dataset=dataset)

    (metric,) = [values for kind, values in lines if kind == "metric"]
    assert 5 * 8 * 0.002 <= metric["waited"] <= sum(metric["seconds"])
    assert "ranks" not in metric  # there is only one


def test_without_allreduce_there_are_no_checkpoints_and_the_context_says_so(run: Run, tmp_path: Path) -> None:
    lines = dict(run(Line(), "--iterations", "3", "--no-allreduce", "--checkpoint-path", str(tmp_path / "kept")))

    assert lines["context"]["allreduce"] is False
    assert "checkpoint" not in lines and not (tmp_path / "kept").exists()
