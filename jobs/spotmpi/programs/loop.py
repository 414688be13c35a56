"""The training loop of every program and framework: resume, iterate, report, evaluate, write checkpoints."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from spotmpi.agent import protocol
from spotmpi.checkpoint.device import on_host
from spotmpi.checkpoint.store import Written
from spotmpi.programs.checkpoint import (
    Checkpoints,
    State,
    TrainingIdentity,
    TrainingProgress,
    initial_state,
    model_fingerprint,
    parameters_checksum,
)
from spotmpi.programs.exits import STOPPED, Failed, Notices, leave, wait_for_rank_zero
from spotmpi.programs.loader import DataSource, Input, rank_batches
from spotmpi.programs.options import LOADER, TrainingOptions
from spotmpi.programs.reporting import IterationClock, Reporter, Stopwatch
from spotmpi.programs.sampling import Batching, Dataset, divide, iteration_seed, iterations_left
from spotmpi.programs.world import World


class TrainingAdapter(Protocol):
    """The model to train, in some framework. Every rank has one and calls the same methods."""

    clock: IterationClock

    def step(self, parts: Sequence[Any], iteration: int, seeds: Sequence[int]) -> Mapping[str, Any]:
        """One update, of *iteration* (from 0), by the mean of the gradients of all *parts* of this rank's batch.

        The model draws random numbers by the seed of each part. Gives scalars of this rank, which are converted by
        float() only when they are reported.
        """

    def state(self) -> State:
        """What resuming needs, valid until the next step; the model is in names that start with ``parameters/``.

        Of arrays on a GPU it has copies there (`spotmpi.checkpoint.device`).
        """

    def load_state(self, state: State) -> None:
        """Load a result of `state`, of this or another rank or attempt."""

    def evaluate(self) -> Mapping[str, float]:
        """Scalars of the model on test data, equal on all ranks; empty where only speed matters."""


@dataclass(frozen=True)
class Objective:
    """What a model is trained for, in any framework.

    *loss* takes (model, part of a batch on the model's device) and gives the loss of this part, averaged such that the
    mean over the parts of all ranks is the loss of the global batch, and scalars to report. *prepare* takes all parts
    of this rank before, as the data set makes them. *evaluate* takes the model, and gives scalars that are equal on
    all ranks. *rate*, where given, is the learning rate as a function of the iteration.
    """

    loss: Callable[[Any, Any], tuple[Any, Mapping[str, Any]]]
    evaluate: Callable[[Any], Mapping[str, float]] = lambda model: {}
    rate: Callable[[int], float] | None = None
    prepare: Callable[[Sequence[Any]], None] = lambda parts: None


@dataclass(frozen=True)
class Job:
    """What to train.

    *details* go into the context line (versions, options); *source* is how workers load the data set.
    """

    program: str
    options: TrainingOptions
    world: World
    dataset: Dataset
    adapter: TrainingAdapter
    details: Mapping[str, Any] = field(default_factory=dict)
    source: DataSource | None = None


def train(job: Job) -> None:
    """Train to the end, from the newest checkpoint if there is one, and report the result.

    Raises Fatal or Failed; ends the process with 143 after SIGTERM, once a checkpoint is whole.
    """
    options, world = job.options, job.world
    batching = divide(options.global_batch, options.batch_per_worker, world.size, _most_ranks(options))
    checkpoints = _checkpoints(job)
    progress, path = _restore(job, batching, checkpoints)
    tensorboard = os.environ.get(protocol.ENV_TENSORBOARD)
    reporter = Reporter(world.rank, Path(tensorboard) if tensorboard else None)
    training = _Training(job, batching, reporter, checkpoints, progress)
    reporter.context(**_context(job, batching, training.total))
    if path:
        reporter.resumed(progress.iteration, path)
    training.run()
    reporter.close()


def _most_ranks(options: TrainingOptions) -> int | None:
    """The most ranks that this run may have, where their number changes."""
    most = os.environ.get(protocol.ENV_MOST_RANKS)
    return int(most) if most and options.batches == LOADER else None


def _checkpoints(job: Job) -> Checkpoints | None:
    options = job.options
    # Without allreduce the ranks' parameters diverge: nobody should resume from them.
    if job.world.rank or not options.checkpoint_path or options.no_allreduce:
        return None
    identity = TrainingIdentity(
        job.program, model_fingerprint(job.adapter.state()), job.dataset.fingerprint(), options.seed
    )
    checkpoints = Checkpoints(options.checkpoint_path, options.checkpoint_keep, identity)
    checkpoints.prepare()
    return checkpoints


def _restore(job: Job, batching: Batching, checkpoints: Checkpoints | None) -> tuple[TrainingProgress, Path | None]:
    """Broadcast rank 0's state, from a checkpoint or not, to all ranks; the progress and the checkpoint's path."""
    world = job.world
    checkpoint = checkpoints.newest() if checkpoints else None
    progress = checkpoint.progress if checkpoint else TrainingProgress(0, 0, world.size, batching.global_batch)
    state = checkpoint.state if checkpoint else initial_state(job.adapter.state()) if world.rank == 0 else None
    if state is not None:
        job.adapter.load_state(state)
    progress = world.broadcast(progress)
    if world.size > 1:
        _broadcast_state(world, job.adapter)
    return progress, checkpoint.path if checkpoint else None


def _broadcast_state(world: World, adapter: TrainingAdapter) -> None:
    state = adapter.state() if world.rank == 0 else {}
    # One array at a time, so that no message is larger than the largest of them.
    shared = {name: world.broadcast(on_host(state.get(name))) for name in world.broadcast(sorted(state))}
    if world.rank:
        adapter.load_state(shared)


def _context(job: Job, batching: Batching, total: int) -> dict[str, Any]:
    """What the record says of this training: the batch, the data and the seed. *total* counts iterations."""
    return {
        "program": job.program,
        "world_size": job.world.size,
        "hosts": list(job.world.hosts),
        "scaling": batching.scaling,
        "samples_per_iteration": batching.global_batch,
        "batch_per_worker": batching.per_rank,
        **({"accumulated_parts": batching.parts} if batching.parts > 1 else {}),
        "total_iterations": total,
        "samples": len(job.dataset),
        "data_fingerprint": job.dataset.fingerprint(),
        "seed": job.options.seed,
        "allreduce": not job.options.no_allreduce,
        **job.details,
    }


class _Training:
    """The iterations from *progress* to the end."""

    def __init__(
        self,
        job: Job,
        batching: Batching,
        reporter: Reporter,
        checkpoints: Checkpoints | None,
        progress: TrainingProgress,
    ) -> None:
        self._job = job
        self._options = job.options
        self._batching = batching
        self._reporter = reporter
        self._checkpoints = checkpoints
        self._iteration = progress.iteration
        self._position = progress.position
        self._stopwatch = Stopwatch(job.adapter.clock)
        self._last_scalars = dict(progress.scalars)
        pid_file = os.environ.get(protocol.ENV_PID_FILE) if checkpoints else None
        self._notices = Notices(self._handle_notice, Path(pid_file) if pid_file else None)
        self._due = 0.0
        self._saved: int | None = None  # the iteration of the last checkpoint
        self.total = self._last_iteration()

    def run(self) -> None:
        """Train, evaluate, save, and report the result."""
        if self._job.world.rank:
            wait_for_rank_zero()
        else:
            self._notices.install_handlers()
        self._due = time.monotonic() + self._options.checkpoint_every
        data = Input(self._job.dataset, self._batching, self._job.source)
        left = self.total - self._iteration
        evaluated: Mapping[str, float] | None = None
        with rank_batches(data, self._options, self._job.world, self._position, left) as batches:
            self._notices.between_iterations()
            self._stopwatch.start()
            while self._iteration < self.total:
                scalars = self._iterate([self._stopwatch.next_batch(batches) for _ in range(self._batching.parts)])
                evaluated, paused = self._between_iterations(scalars)
                if paused:
                    self._stopwatch.start()
        self._finish(evaluated)

    def _iterate(self, parts: Sequence[Any]) -> Mapping[str, Any]:
        first = self._job.world.rank * len(parts)
        ranks = range(first, first + len(parts))
        seeds = [iteration_seed(self._options.seed, rank, self._iteration) for rank in ranks]
        scalars = self._job.adapter.step(parts, self._iteration, seeds)
        self._iteration += 1
        self._position += self._batching.global_batch
        self._stopwatch.split()
        return scalars

    def _between_iterations(self, scalars: Mapping[str, Any]) -> tuple[Mapping[str, float] | None, bool]:
        """Report, save and evaluate if due: the scalars of an evaluation, and whether any of this took time."""
        options = self._options
        last = self._iteration == self.total
        report = last or self._iteration % options.report_every == 0
        evaluate = options.evaluate_every > 0 and self._iteration % options.evaluate_every == 0
        # Before the report: each iteration that was reported costs at most itself.
        if self._checkpoints and not last:
            self._checkpoints.remember(self._progress(), self._job.adapter.state)
        if report:
            self._report(scalars)
        written = self._write_if_due()
        noticed = self._notices.between_iterations()
        return (self._evaluate() if evaluate else None), report or evaluate or written or noticed

    def _report(self, scalars: Mapping[str, Any]) -> None:
        own, times = {name: float(value) for name, value in scalars.items()}, self._stopwatch.collect()
        self._last_scalars, ranks = self._job.world.average_scalars(own, times.seconds)
        self._reporter.metric(self._iteration, self._epoch, times.seconds, self._last_scalars, times.waited, ranks)

    @property
    def _epoch(self) -> float:
        return self._position / len(self._job.dataset)

    def _evaluate(self) -> Mapping[str, float]:
        with self._notices.parameters_unchanged():
            scalars = self._job.adapter.evaluate()
        if scalars:
            self._reporter.evaluation(self._iteration, scalars)
        return scalars

    def _finish(self, evaluated: Mapping[str, float] | None) -> None:
        """*evaluated* is None unless the finished model has been evaluated already."""
        saved = self._write("end")
        scalars = self._evaluate() if evaluated is None else evaluated
        self._notices.close()
        checksum = parameters_checksum(self._job.adapter.state()) if self._job.world.rank == 0 else ""
        self._reporter.result(self._iteration, {**self._last_scalars, **scalars, "parameters": checksum})
        if not saved:
            raise Failed("the trained model could not be saved; free some space or choose another --checkpoint-path")

    def _handle_notice(self, exiting: bool) -> None:
        if not self._stopwatch.empty:  # before the checkpoint, after which the agent may kill all ranks
            # Values that need other ranks are left out: those may be gone.
            self._reporter.partial_metric(self._iteration, self._epoch, self._stopwatch.collect().seconds)
        if self._checkpoints:
            if not exiting or self._saved != self._iteration:  # the agent waits for the report of the first notice
                self._write("notice")
        else:
            self._reporter.warn("notice received, but no checkpoint is written without --checkpoint-path")
        if exiting:
            self._notices.close()
            leave(STOPPED)

    def _write_if_due(self) -> bool:
        """Let a checkpoint be written while training goes on, if one is due; whether that took time."""
        if not self._checkpoints or time.monotonic() < self._due or self._iteration == self.total:
            return False
        self._due = time.monotonic() + self._options.checkpoint_every
        self._checkpoints.write_later(self._progress(), self._job.adapter.state(), self._ended)
        return True

    def _write(self, reason: str) -> bool:
        """Write a checkpoint, if not done for this iteration; whether training can resume from this iteration."""
        if not self._checkpoints:
            return True
        self._due = time.monotonic() + self._options.checkpoint_every
        start = time.perf_counter()
        try:
            path = str(self._checkpoints.write(self._progress(), self._job.adapter.state(), reason))
        except OSError as problem:
            self._ended(Written(self._iteration, "", 0.0, problem), reason)
            return False
        self._ended(Written(self._iteration, path, time.perf_counter() - start), reason)
        self._saved = self._iteration
        return True

    def _ended(self, checkpoint: Written, reason: str = "timer") -> None:
        """Report a checkpoint, or say why there is none."""
        iteration, path, seconds, problem = checkpoint
        if problem is None:
            self._reporter.checkpoint(iteration, Path(path), seconds, reason)
            return
        retry = f"; training continues, the next try is in {protocol.duration(self._options.checkpoint_every)}"
        self._reporter.warn(checkpoint.failure + (retry if self._iteration < self.total else ""))

    def _progress(self) -> TrainingProgress:
        size = self._job.world.size
        return TrainingProgress(self._iteration, self._position, size, self._batching.global_batch, self._last_scalars)

    def _last_iteration(self) -> int:
        if self._options.iterations is not None:
            return self._options.iterations
        assert self._options.epochs is not None
        samples = len(self._job.dataset)
        return self._iteration + iterations_left(
            self._options.epochs, samples, self._position, self._batching.global_batch
        )
