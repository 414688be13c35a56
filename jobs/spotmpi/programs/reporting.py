"""What a program says while it runs: protocol lines on stdout and TensorBoard event files, both from rank 0."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotmpi.agent import protocol


class Reporter:
    """Says what happens; on ranks other than 0 it is silent, so that every rank can call it."""

    def __init__(self, rank: int, tensorboard: Path | None = None) -> None:
        self._speaks = rank == 0
        self._folder = tensorboard if self._speaks else None
        self._events: Any = None

    def context(self, **values: Any) -> None:
        """Once at the start: what is trained, with what, on what."""
        self._say(protocol.CONTEXT, **values)

    def resumed(self, iteration: int, path: Path) -> None:
        """Training goes on from a checkpoint."""
        self._say(protocol.RESUMED, iteration=iteration, path=str(path))

    def metric(
        self,
        iteration: int,
        epoch: float,
        seconds: list[float],
        scalars: Mapping[str, float],
        waited: float | None = None,
        ranks: Sequence[Sequence[float]] = (),
    ) -> None:
        """Training has come to *iteration*; *seconds* are those of each iteration since the last such line.

        *waited* is how much of them went by waiting for batches, *ranks* the same seconds of every rank.
        """
        timed: dict[str, Any] = {"seconds": [round(second, 6) for second in seconds]}
        timed |= {} if waited is None else {"waited": round(waited, 6)}
        timed |= {"ranks": protocol.pack(ranks)} if self._speaks and len(ranks) > 1 else {}
        self._say(protocol.METRIC, iteration=iteration, time=time.time(), epoch=epoch, **timed, **scalars)
        rate = {"iterations_per_second": len(seconds) / sum(seconds)} if sum(seconds) > 0 else {}
        self._draw("training", iteration, {**scalars, **rate})

    def cut_off(self, iteration: int, epoch: float, seconds: list[float]) -> None:
        """Training ends at *iteration*, in the middle of a window, since its machine goes away."""
        timed = [round(second, 6) for second in seconds]
        self._say(protocol.METRIC, iteration=iteration, time=time.time(), epoch=epoch, seconds=timed, cut=True)

    def evaluation(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """The model after *iteration* was tested."""
        self._say(protocol.EVALUATION, iteration=iteration, time=time.time(), **scalars)
        self._draw("evaluation", iteration, scalars)

    def checkpoint(self, iteration: int, path: Path, seconds: float, reason: str) -> None:
        """A checkpoint is whole."""
        self._say(protocol.CHECKPOINT, iteration=iteration, path=str(path), seconds=round(seconds, 6), reason=reason)

    def result(self, iteration: int, scalars: Mapping[str, Any]) -> None:
        """Once at the end."""
        self._say(protocol.RESULT, iteration=iteration, **scalars)

    def warn(self, text: str) -> None:
        """One line for people, on stderr."""
        if self._speaks:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Finish the event file."""
        if self._events:
            self._events.close()

    def _say(self, kind: str, **values: Any) -> None:
        if self._speaks:
            print(protocol.encode(kind, **values), flush=True)

    def _draw(self, group: str, iteration: int, scalars: Mapping[str, float]) -> None:
        if not self._folder:
            return
        try:
            if not self._events:
                self._events = _event_writer(self._folder, iteration)
            for name, value in scalars.items():
                self._events.add_scalar(f"{group}/{name}", value, iteration)
        except OSError as problem:
            self._folder = None
            self.warn(f"no TensorBoard events from here on: {problem}")


def _event_writer(folder: Path, iteration: int) -> Any:
    # Imported only here: programs of one's own may report without tensorboardX.
    from tensorboardX import SummaryWriter

    return SummaryWriter(str(folder), purge_step=iteration)
