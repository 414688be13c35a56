"""Streams from S3 by s3fs, with moto's server in place of AWS, in an environment of their own."""

from __future__ import annotations

import pytest

from tests.testbed.environments import answer_of


@pytest.mark.nightly("installs s3fs and moto's server; by day a web server stands for storage behind a network")
@pytest.mark.timeout(600)
def test_objects_are_listed_read_and_checked_by_their_etags() -> None:
    seen = answer_of("tests.unit.streams.s3_journey", "s3")
    changed = "while the stream reads it"
    assert seen["names"] == ["set/rows/1.parquet", "set/rows/2.parquet"]
    assert seen["rows"] == [[*range(start, start + 5)] for start in (0, 5, 10, 15)]
    assert seen["versions are ETags"] and seen["again"]
    assert seen["replaced"].startswith(f"StreamError: set/rows/1.parquet was changed {changed}")
    assert seen["truncated"].startswith(f"StreamError: set/rows/1.parquet was changed {changed}")
    assert seen["removed"].startswith(f"StreamError: set/rows/2.parquet was removed {changed}")
    assert seen["empty"].startswith("StreamError: the source s3://set/absent/*.csv is empty")
    assert seen["no bucket"].startswith(
        "StreamError: the source s3://absent/*.csv is in the bucket absent: no such bucket"
    )
    assert seen["away"].startswith("SourceError: set/rows/1.parquet rows 5 to 9 cannot be read")
    assert seen["unreachable"].startswith("SourceError: the source s3://set/rows/*.parquet cannot be read")
