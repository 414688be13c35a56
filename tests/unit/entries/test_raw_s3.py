"""Data sets of objects of S3: by day a double of s3fs, at night s3fs with moto's server in place of AWS."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from spotmpi.streams import storage
from spotmpi.streams.errors import SourceError
from tests.testbed.environments import answer_of
from tests.unit.entries.conftest import Modules
from tests.unit.entries.fake_s3 import FakeS3
from tests.unit.entries.raw_s3_journey import journey


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """An S3 with an empty bucket *raw*."""
    monkeypatch.setattr(FakeS3, "buckets", {"raw": {}})
    monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, "s3", FakeS3)
    monkeypatch.setattr(storage, "PAUSES", ())
    storage.file_system.cache_clear()
    yield FakeS3()
    storage.file_system.cache_clear()
    FakeS3.listings.clear()


def check(seen: dict[str, Any]) -> None:
    """What happens with any S3."""
    assert seen["no match"].startswith("the source s3://raw/in/*.csv is empty: no file has this name or pattern; check")
    every = ["0", "1", "2"]
    assert seen["built"][:5] == [every, [], ["1"], [], ["3"]], "of equal content nothing is built, whatever its version"
    assert seen["rows"] == [[1, 2], [10, 2], [1, 2, 3]]
    assert seen["keys"] == [True, False, True, False]
    assert seen["raw"] == [f"s3://raw/in/{number}.csv" for number in range(3)]
    assert seen["same versions"] == {name: name != "s3://raw/in/1.csv" for name in seen["raw"]}
    assert seen["of one file"] == ["s3://raw/in/1.csv"]
    assert seen["reproduced"] == []
    assert seen["gone"] == (
        "the raw files s3://raw/in/*.csv are not what they were (s3://raw/in/1.csv version OLD): restore them"
    )
    for name in ("0", "3"):
        assert f"raw/in/{name}.csv was changed while the data set reads it: " in seen[f"meanwhile {name}"]
        assert "call it again once the source does not change any more" in seen[f"meanwhile {name}"]
    assert seen["kept"] == 0
    assert seen["no bucket"] == (
        "the source s3://absent/in/*.csv is in the bucket absent: no such bucket for this login; "
        "check its name, and the account and region of the login"
    )
    assert seen["no login"].startswith(
        "the source s3://raw/in/*.csv cannot be read: Unable to locate credentials; log in, as with `aws sso login`, or"
    )
    assert not any("\n" in text for text in seen.values() if isinstance(text, str))


def test_a_data_set_of_objects_is_built_once_part_by_part_and_names_their_versions(
    s3: FakeS3, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPOTMPI_STORE", "SPOTMPI_CACHE"):
        monkeypatch.setenv(name, "")  # which the journey sets
    check(journey(modules.folder, s3.put, lambda: monkeypatch.setattr(FakeS3, "refusal", NoCredentialsError())))


def test_refused_credentials_are_one_line_without_another_try(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PAUSES", (100.0,))
    monkeypatch.setattr(FakeS3, "refusal", PermissionError(13, "Access Denied"))
    with pytest.raises(SourceError, match=r"a cannot be read: .*Access Denied; check the login and its rights to list"):
        storage.with_retries(lambda: s3.info("raw/a"), "a")


@pytest.mark.nightly("installs s3fs and moto's server; by day a double of s3fs has the same journey")
@pytest.mark.timeout(600)
def test_the_same_holds_for_s3fs() -> None:
    check(answer_of("tests.unit.entries.raw_s3_journey", "s3", with_project=True))
