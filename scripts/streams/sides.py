"""The sides that are measured: each predicts the data set into a folder, with the preparation of a name."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet

from scripts.streams import by_hand, by_hand_stages, work
from spotmpi.streams.order import Order, Part, Settings
from spotmpi.streams.rank import predict
from spotmpi.streams.sources import parts_of
from spotmpi.streams.stream import Stream

if TYPE_CHECKING:
    from distributed import Client

    from spotmpi.streams.engine import Engine

Side = Callable[[str, Path], None]  # predicts into a folder, with the preparation of that name
STAGED = "staged"  # light preparation, and a postprocess of the scores by workers


def stream_side(engine: Engine, source: Path, workers: int) -> Side:
    """A stream, as a rank has it in a run."""

    def run(preparation: str, results: Path) -> None:
        name, staged = "scripts.streams.work:", preparation == STAGED
        settings = Settings(
            str(source),
            work.BATCH,
            prepare=name + ("light" if staged else preparation),
            postprocess=name + "ranked" if staged else None,
            write="parquet",
            last_batch="keep",
            workers=workers,
        )
        parts = [Part(*part) for part in engine.submit("source", parts_of, settings).result()]
        stream = Stream(Order(parts, settings), engine.submit, 0, 0, 1)
        with contextlib.redirect_stderr(io.StringIO()):
            predict("scripts.streams.flow:predict", stream, results)

    return run


def dask_side(client: Client, source: Path) -> Side:
    """Dask by hand, with the workers of *client*'s scheduler."""

    def run(preparation: str, results: Path) -> None:
        if preparation == STAGED:
            by_hand_stages.predict(client, work.light, work.ranked, str(source), results)
        else:
            by_hand.predict(client, getattr(work, preparation), str(source), results)

    return run


def rate(side: Side, preparation: str, folder: Path) -> float:
    """Rows a second of one prediction of the data set of *folder*."""
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    begin = time.perf_counter()
    side(preparation, results)
    seconds = time.perf_counter() - begin
    count = len(list(results.glob("*.parquet")))
    assert count == len(by_hand.batches_of(str(folder / "set"))), count
    return count * work.BATCH / seconds


def require_equal_results(sides: Iterable[Side], folder: Path) -> None:
    """Check that all sides come to the same results with light preparation.

    The other has noise, by seeds that each side draws itself.
    """
    checksums = {_checksum(side, folder) for side in sides}
    assert len(checksums) == 1, checksums


def _checksum(side: Side, folder: Path) -> str:
    """The digest of all results of a side."""
    rate(side, "light", folder)
    whole = hashlib.sha256()
    for path in sorted((folder / "results").glob("*.parquet")):
        whole.update(pyarrow.parquet.read_table(path)["score"].to_numpy().tobytes())
    return whole.hexdigest()
