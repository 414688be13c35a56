"""What all sides share: the data set, how a batch is prepared, and what is computed from it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

BATCH, COLUMNS = 4096, 25  # rows, and float32 values of each: 410 kB
HEAVY = 8  # draws of noise for each batch
RESAMPLES = 50  # of the scores of a batch


def write_files(folder: Path, files: int, batches: int) -> None:
    """Write the data set: Parquet files with a row group for each batch."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(files):
        rows = generator.standard_normal((COLUMNS, batches * BATCH), dtype=np.float32)
        table = pyarrow.table({f"x{column}": values for column, values in enumerate(rows)})
        pyarrow.parquet.write_table(table, folder / f"{number:03}.parquet", row_group_size=BATCH)


def light(rows: dict[str, Any], seed: int) -> Any:
    """A matrix of the columns, normalised."""
    table = np.stack([rows[f"x{column}"] for column in range(COLUMNS)], axis=1)
    return (table - table.mean(axis=0)) / table.std(axis=0)


def heavy(rows: dict[str, Any], seed: int) -> Any:
    """As `light`, with noise of several draws."""
    table, generator = light(rows, seed), np.random.default_rng(seed)
    for _ in range(HEAVY):
        table += np.float32(0.01) * generator.standard_normal(table.shape, dtype=np.float32)
    return table


@functools.cache
def weights() -> Any:
    """The weights of the model."""
    return np.random.default_rng(1).standard_normal(COLUMNS, dtype=np.float32)


def score(batch: Any) -> dict[str, Any]:
    """The score of each row."""
    return {"score": batch @ weights()}


def ranked(result: dict[str, Any], seed: int) -> dict[str, Any]:
    """The rows of a batch by falling score, each with the deviation of 50 resampled scores."""
    scores, generator = result["score"], np.random.default_rng(seed)
    order = np.argsort(-scores, kind="stable")
    draws = generator.integers(0, len(scores), (RESAMPLES, len(scores)))
    return {"row": order, "score": scores[order], "deviation": scores[draws].std(axis=0)}
