"""The storage of a store on S3 by s3fs, with moto's server in place of AWS, in an environment of their own."""

from __future__ import annotations

import pytest

from tests.testbed.environments import answer_of


@pytest.mark.nightly("installs s3fs and moto's server; by day fsspec's storage in memory has the same interface")
@pytest.mark.timeout(600)
def test_entries_are_created_once_complete_or_absent_and_removed() -> None:
    seen = answer_of("tests.unit.entries.s3_journey", "s3")
    assert seen["created"] == [False, False, False, True] and seen["again"] is False
    assert seen["names"] == ["key"]
    assert seen["files"] == ["files/a", "files/more/b", "manifest.json"]
    assert seen["content"] == "second"
    assert seen["digest"][0] == 5
    assert seen["absent"] == [None, None, [], []]
    assert seen["claimed"] is False and seen["free"]
    assert seen["collected"] == [False, True, []]
    assert seen["left"] == []
    assert seen["no bucket"].startswith("s3://absent/x cannot be written: ")
