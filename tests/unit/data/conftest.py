"""The volume and the web site that tests of fetching share."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.agent import fetch, web_file
from tests.unit.data.fetched_volume import PIECE, WEIGHTS, Volume
from tests.unit.data.web_site import Site, serving


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
