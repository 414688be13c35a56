"""The prediction by a stream of spotmpi; run.py starts it."""

from collections.abc import Iterable, Iterator
from typing import Any

from scripts.streams import work


def predict(batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The scores of each batch."""
    for batch in batches:
        yield work.score(batch)
