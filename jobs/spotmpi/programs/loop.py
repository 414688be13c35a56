"""The training loop of every program and framework: resume, iterate, report, evaluate, write checkpoints."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotmpi.agent import protocol
from spotmpi.programs.batching import Batching, divide, iterations_left
from spotmpi.programs.checkpoint import Checkpoints, Identity, Standing, model_fingerprint, parameters_checksum
from spotmpi.programs.dataset import Dataset
from spotmpi.programs.ending import STOPPED, Failed, leave
from spotmpi.programs.loader import Loader
from spotmpi.programs.notice import Notices, let_rank_zero_finish
from spotmpi.programs.options import TrainingOptions
from spotmpi.programs.order import Order, iteration_seed
from spotmpi.programs.reporting import Reporter
from spotmpi.programs.timing import Stopwatch
from spotmpi.programs.trainee import Trainee
from spotmpi.programs.world import World


@dataclass(frozen=True)
class Job:
    """One program about to train; *details* go into the context line (versions, options)."""

    program: str
    options: TrainingOptions
    world: World
    dataset: Dataset
    trainee: Trainee
    details: Mapping[str, Any] = field(default_factory=dict)


def train(job: Job) -> None:
    """Train to the end, from the newest checkpoint where there is one, and say the result.

    Raises Fatal or Failed; ends the process with 143 after SIGTERM, once a checkpoint is whole.
    """
    options, world = job.options, job.world
    batching = divide(options.global_batch, options.batch_per_worker, world.size)
    checkpoints = _checkpoints(job)
    standing, path = _begin(job, batching, checkpoints)
    tensorboard = os.environ.get(protocol.ENV_TENSORBOARD)
    reporter = Reporter(world.rank, Path(tensorboard) if tensorboard else None)
    training = _Training(job, batching, reporter, checkpoints, standing)
    reporter.context(**_context(job, batching, training.total))
    if path:
        reporter.resumed(standing.iteration, path)
    training.run()
    reporter.close()


def _checkpoints(job: Job) -> Checkpoints | None:
    options = job.options
    # Without exchange the ranks' parameters drift apart: nobody should go on from them.
    if job.world.rank or not options.checkpoint_path or options.no_exchange:
        return None
    identity = Identity(job.program, model_fingerprint(job.trainee.state()), job.dataset.fingerprint(), options.seed)
    checkpoints = Checkpoints(options.checkpoint_path, options.checkpoint_keep, identity)
    checkpoints.prepare()
    return checkpoints


def _begin(job: Job, batching: Batching, checkpoints: Checkpoints | None) -> tuple[Standing, Path | None]:
    """Give all ranks rank 0's state, from a checkpoint or fresh; where training stands, and the checkpoint's path."""
    world = job.world
    found = checkpoints.newest() if checkpoints else None
    standing = found.standing if found else Standing(0, 0, world.size, batching.in_all)
    if found:
        job.trainee.load_state(found.state)
    standing = world.broadcast(standing)
    if world.size > 1:
        _share_state(world, job.trainee)
    return standing, found.path if found else None


def _share_state(world: World, trainee: Trainee) -> None:
    state = trainee.state() if world.rank == 0 else {}
    # One array at a time, so that no message is larger than the largest of them.
    shared = {name: world.broadcast(state.get(name)) for name in world.broadcast(sorted(state))}
    if world.rank:
        trainee.load_state(shared)


def _context(job: Job, batching: Batching, total: int) -> dict[str, Any]:
    return {
        "program": job.program,
        "world_size": job.world.size,
        "hosts": list(job.world.hosts),
        "scaling": batching.scaling,
        "samples_per_iteration": batching.in_all,
        "batch_per_worker": batching.per_rank,
        "total_iterations": total,
        "samples": len(job.dataset),
        "data_fingerprint": job.dataset.fingerprint(),
        "seed": job.options.seed,
        "exchange": not job.options.no_exchange,
        **job.details,
    }


class _Training:
    """The iterations from *standing* to the end."""

    def __init__(
        self, job: Job, batching: Batching, reporter: Reporter, checkpoints: Checkpoints | None, standing: Standing
    ) -> None:
        self._job = job
        self._options = job.options
        self._batching = batching
        self._reporter = reporter
        self._checkpoints = checkpoints
        self._iteration = standing.iteration
        self._position = standing.position
        self._watch = Stopwatch(job.trainee.clock)
        self._said = dict(standing.scalars)  # the last reported scalars
        pid_file = os.environ.get(protocol.ENV_PID_FILE) if checkpoints else None
        self._notices = Notices(self._noticed, Path(pid_file) if pid_file else None)
        self._due = 0.0
        self.total = self._last_iteration()

    def run(self) -> None:
        """Train, evaluate, save, and say the result."""
        self._listen()
        self._due = time.monotonic() + self._options.checkpoint_every
        order = Order(self._options.seed, len(self._job.dataset))
        evaluated: Mapping[str, float] | None = None
        with Loader(
            self._job.dataset, order, self._batching, self._job.world.rank, self._options.loader_processes
        ) as loader:
            batches = loader.batches(self._position)
            self._notices.between_iterations()
            self._watch.start()
            while self._iteration < self.total:
                scalars = self._iterate(self._watch.batch(batches))
                evaluated, paused = self._pause(scalars)
                if paused:
                    self._watch.start()
        self._finish(evaluated)

    def _iterate(self, batch: Any) -> Mapping[str, Any]:
        trainee = self._job.trainee
        trainee.seed(iteration_seed(self._options.seed, self._job.world.rank, self._iteration))
        scalars = trainee.step(batch, self._iteration)
        self._iteration += 1
        self._position += self._batching.in_all
        self._watch.lap()
        return scalars

    def _pause(self, scalars: Mapping[str, Any]) -> tuple[Mapping[str, float] | None, bool]:
        """Do what is due between two iterations: an evaluation's scalars if there was one, and whether it took time."""
        options = self._options
        last = self._iteration == self.total
        report = last or self._iteration % options.report_every == 0
        evaluate = options.evaluate_every > 0 and self._iteration % options.evaluate_every == 0
        if report:
            self._report(scalars)
        written = self._write_if_due()
        self._notices.between_iterations()
        return (self._evaluate() if evaluate else None), report or evaluate or written

    def _report(self, scalars: Mapping[str, Any]) -> None:
        told, times = {name: float(value) for name, value in scalars.items()}, self._watch.take()
        self._said, ranks = self._job.world.together(told, times.seconds)
        self._reporter.metric(self._iteration, self._epoch, times.seconds, self._said, times.waited, ranks)

    @property
    def _epoch(self) -> float:
        return self._position / len(self._job.dataset)

    def _evaluate(self) -> Mapping[str, float]:
        with self._notices.parameters_unchanging():
            scalars = self._job.trainee.evaluate()
        if scalars:
            self._reporter.evaluation(self._iteration, scalars)
        return scalars

    def _finish(self, evaluated: Mapping[str, float] | None) -> None:
        """*evaluated* is None unless the finished model has been evaluated already."""
        saved = self._write("end")
        scalars = self._evaluate() if evaluated is None else evaluated
        self._notices.close()
        checksum = parameters_checksum(self._job.trainee.state()) if self._job.world.rank == 0 else ""
        self._reporter.result(self._iteration, {**self._said, **scalars, "parameters": checksum})
        if not saved:
            raise Failed("the trained model could not be saved; make room or choose another --checkpoint-path")

    def _listen(self) -> None:
        if self._job.world.rank:
            let_rank_zero_finish()
        else:
            self._notices.listen()

    def _noticed(self, ending: bool) -> None:
        if self._checkpoints:
            self._write("notice")
        else:
            self._reporter.warn("notice taken, but nothing is written without --checkpoint-path")
        if ending:
            if not self._watch.empty:
                # What needs the other ranks is left out: they may be gone.
                self._reporter.cut_off(self._iteration, self._epoch, self._watch.take().seconds)
            self._notices.close()
            leave(STOPPED)

    def _write_if_due(self) -> bool:
        if not self._checkpoints or time.monotonic() < self._due:
            return False
        self._write("timer")
        return True

    def _write(self, reason: str) -> bool:
        """Write a checkpoint unless there is one of this iteration; whether training could go on from here."""
        if not self._checkpoints:
            return True
        self._due = time.monotonic() + self._options.checkpoint_every
        began = time.perf_counter()
        size = self._job.world.size
        standing = Standing(self._iteration, self._position, size, self._batching.in_all, self._said)
        try:
            path = self._checkpoints.write(standing, self._job.trainee.state(), reason)
        except OSError as problem:
            goes_on = f"; training goes on, the next try is in {self._options.checkpoint_every:g} s"
            self._reporter.warn(
                f"checkpoint of iteration {self._iteration} not written: {problem}; earlier ones are untouched"
                + (goes_on if self._iteration < self.total else "")
            )
            return False
        self._reporter.checkpoint(self._iteration, path, time.perf_counter() - began, reason)
        return True

    def _last_iteration(self) -> int:
        if self._options.iterations is not None:
            return self._options.iterations
        assert self._options.epochs is not None
        samples = len(self._job.dataset)
        return self._iteration + iterations_left(self._options.epochs, samples, self._position, self._batching.in_all)
