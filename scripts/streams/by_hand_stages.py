"""Three stages with Dask by hand: workers also postprocess each result, and write it themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.client import Future

from scripts.streams import work
from scripts.streams.by_hand import WINDOW, Batch, Prepare, batches_of, check_source, in_order, write

Postprocess = Callable[[dict[str, Any], int], dict[str, Any]]


def postprocess_and_write(postprocess: Postprocess, folder: str, number: int, result: dict[str, Any]) -> None:
    """Postprocess the result of a batch, and write it from the worker."""
    write(Path(folder), number, postprocess(result, number))


def predict(client: Client, prepare: Prepare, postprocess: Postprocess, source: str, folder: Path) -> None:
    """Write the results that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    check_source(source, folder)
    existing = {path.name for path in folder.glob("results-*.parquet")}
    todo: list[tuple[int, Batch]] = [
        (number, batch)
        for number, batch in enumerate(batches_of(source))
        if f"results-{number:08}.parquet" not in existing
    ]
    under_way: deque[Future[Any]] = deque()
    for number, batch in in_order(client, prepare, todo):
        arguments = (postprocess, str(folder), number, work.score(batch))
        under_way.append(client.submit(postprocess_and_write, *arguments, priority=1, pure=False))
        if len(under_way) > WINDOW:
            under_way.popleft().result()
    while under_way:
        under_way.popleft().result()
