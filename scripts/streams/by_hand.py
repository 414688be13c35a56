"""The same prediction with Dask by hand: `python by_hand.py SET FOLDER`, which the job of pods.yaml starts."""

import functools
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from distributed import Client
from distributed.client import Future
from distributed.security import Security

from scripts.streams import work

WINDOW = 32  # batches under way
Batch = tuple[str, int]  # a file and one of its row groups
Prepare = Callable[[dict[str, Any], int], Any]


def batches_of(source: str) -> list[Batch]:
    """The row groups of all files of a folder."""
    result = []
    for path in sorted(Path(source).glob("*.parquet")):
        groups = pyarrow.parquet.ParquetFile(path).metadata.num_row_groups
        result += [(str(path), group) for group in range(groups)]
    return result


def check_source(source: str, folder: Path) -> None:
    """Refuse to continue with other files than those of the beginning."""
    files = {path.name: [path.stat().st_size, path.stat().st_mtime] for path in Path(source).glob("*.parquet")}
    record = folder / "source.json"
    if record.exists() and json.loads(record.read_text()) != files:
        raise SystemExit(f"the source {source} has changed")
    record.write_text(json.dumps(files))


@functools.lru_cache(maxsize=4)
def open_file(path: str) -> Any:
    """An open Parquet file: its footer is read once for all row groups."""
    return pyarrow.parquet.ParquetFile(path)


def read_and_prepare(prepare: Prepare, batch: Batch, seed: int) -> Any:
    """One batch, prepared by a worker."""
    path, group = batch
    table = open_file(path).read_row_group(group)
    rows = {name: column.to_numpy() for name, column in zip(table.column_names, table.columns, strict=True)}
    return prepare(rows, seed)


def in_order(client: Client, prepare: Prepare, todo: list[tuple[int, Batch]]) -> Iterator[tuple[int, Any]]:
    """The batches in order, with so many under way that workers stay busy."""
    under_way: deque[tuple[int, Future[Any]]] = deque()
    left = iter(todo)
    try:
        while True:
            while len(under_way) < WINDOW and (entry := next(left, None)):
                number, batch = entry
                future = client.submit(read_and_prepare, prepare, batch, number, priority=-number, pure=False)
                under_way.append((number, future))
            if not under_way:
                return
            number, future = under_way.popleft()
            yield number, future.result()
            future.release()
    finally:
        for _, future in under_way:
            future.cancel()


def write(folder: Path, number: int, result: dict[str, Any]) -> None:
    """Write the result of a batch: complete or absent."""
    path = folder / f"results-{number:08}.parquet"
    partial = path.with_suffix(".partial")
    pyarrow.parquet.write_table(pyarrow.table(result), partial)
    partial.replace(path)


def predict(client: Client, prepare: Prepare, source: str, folder: Path) -> None:
    """Write the results that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    check_source(source, folder)
    existing = {path.name for path in folder.glob("results-*.parquet")}
    todo = [
        (number, batch)
        for number, batch in enumerate(batches_of(source))
        if f"results-{number:08}.parquet" not in existing
    ]
    for number, batch in in_order(client, prepare, todo):
        write(folder, number, work.score(batch))


def main(source: str, folder: str) -> None:
    """Predict the data set with the workers of the pods."""
    tls = os.environ["TLS"]
    security = Security(
        require_encryption=True,
        tls_ca_file=f"{tls}/ca.pem",
        tls_client_cert=f"{tls}/cert.pem",
        tls_client_key=f"{tls}/key.pem",
    )
    with Client("tls://scheduler:8786", security=security) as client:
        client.wait_for_workers(1)
        predict(client, work.light, source, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
