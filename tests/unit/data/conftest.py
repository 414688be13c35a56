"""The run volume and the web site that tests of fetching share."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import fetch, store, web_file
from spotmpi.agent.fetch import DownloadValues
from tests.unit.data.web_site import Site, serving

PIECE = 10_000
WEIGHTS = b"w" * 50_000


class Volume:
    """A folder in place of the volume, and the program of the pod on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder.parent / "authority.pem"
        self.authority.touch()

    def fetch(self, *sources: list[DownloadValues]) -> tuple[int, dict[str, Any]]:
        """Exit code and termination message of the program for these sources."""
        code = fetch.main(str(self.write(*sources)), str(self.authority))
        word: dict[str, Any] = json.loads(Path(fetch.TERMINATION_LOG).read_text())
        return code, word

    def fetch_weights(self, site: Site, sha256: str | None = None) -> tuple[int, dict[str, Any]]:
        """The same for the plain file of the site."""
        return self.fetch([site.download("weights.npz", str(self.folder), sha256)])

    def write(self, *sources: list[DownloadValues]) -> Path:
        """The file of downloads for these sources."""
        downloads = self.folder.parent / "downloads.json.gz"
        downloads.write_bytes(gzip.compress(json.dumps(sources).encode()))
        return downloads

    def tree(self) -> dict[str, bytes]:
        """The complete files on the volume."""
        return {name: (self.folder / name).read_bytes() for name in store.files(str(self.folder))}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Volume:
    """An empty volume, and a program that fetches small pieces without pauses."""
    monkeypatch.setattr(fetch, "PIECE", PIECE)
    monkeypatch.setattr(web_file, "PAUSE", 0.01)
    monkeypatch.setattr(fetch, "TERMINATION_LOG", str(tmp_path / "last word"))
    return Volume(tmp_path / "volume")


@pytest.fixture
def site() -> Iterator[Site]:
    """A site with a tar of several pieces and a plain file of five."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        facts = tarfile.TarInfo("VOCdevkit/big")
        facts.size = 100_000
        tar.addfile(facts, io.BytesIO(bytes(100_000)))
    with serving() as served:
        served.files = {"set.tar": packed.getvalue(), "weights.npz": WEIGHTS}
        yield served
