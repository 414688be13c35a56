"""A folder in place of the run volume, and the program on it that fetches data."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from spotmpi.agent import fetch, store

PIECE = 10_000
WEIGHTS = b"w" * 50_000


class Volume:
    """A folder in place of the volume, and the program of the pod on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder.parent / "authority.pem"
        self.authority.touch()

    def fetch(self, *sources: list[dict[str, object]]) -> tuple[int, dict[str, Any]]:
        """Exit code and termination message of the program for these sources."""
        code = fetch.main(str(self.write(*sources)), str(self.authority))
        word: dict[str, Any] = json.loads(Path(fetch.TERMINATION_LOG).read_text())
        return code, word

    def write(self, *sources: list[dict[str, object]]) -> Path:
        """The file of orders for these sources."""
        orders = self.folder.parent / "orders.json.gz"
        orders.write_bytes(gzip.compress(json.dumps(sources).encode()))
        return orders

    def tree(self) -> dict[str, bytes]:
        """The complete files on the volume."""
        return {name: (self.folder / name).read_bytes() for name in store.files(str(self.folder))}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
