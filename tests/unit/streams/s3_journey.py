"""Reads a stream's source from moto's S3 server and prints as JSON what happened; runs in an environment with s3fs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3

from spotmpi.streams import sources, storage
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Order, Settings
from tests.testbed import s3_server
from tests.unit.streams.data import read, read_all, table


def error(call: Callable[[], Any]) -> str:
    try:
        call()
    except (StreamError, SourceError) as problem:
        return f"{type(problem).__name__}: {problem}"
    return "none"


def journey(s3: Any, stop_server: Callable[[], None]) -> dict[str, Any]:
    s3.create_bucket(Bucket="set")
    keys = ("rows/1.parquet", "rows/2.parquet")
    etags = [
        s3.put_object(Bucket="set", Key=key, Body=table(start, start + 10))["ETag"]
        for key, start in zip(keys, (0, 10), strict=True)
    ]
    settings = Settings("s3://set/rows/*.parquet", 5)
    parts = sources.parts_of(settings)
    order = Order(parts, settings)

    result: dict[str, Any] = {
        "names": [part.name for part in parts],
        "versions are ETags": [part.version for part in parts] == etags,
        "rows": [batch["x"].tolist() for batch in read_all(order)],
        "again": sources.parts_of(settings) == parts,
    }
    s3.put_object(Bucket="set", Key=keys[0], Body=table(20, 30))
    result["replaced"] = error(lambda: read(order, 0))
    s3.put_object(Bucket="set", Key=keys[0], Body=table(0, 10)[:100])
    result["truncated"] = error(lambda: read(order, 0))
    s3.delete_object(Bucket="set", Key=keys[1])
    result["removed"] = error(lambda: read(order, 3))
    result["empty"] = error(lambda: sources.parts_of(Settings("s3://set/absent/*.csv", 1)))
    result["no bucket"] = error(lambda: sources.parts_of(Settings("s3://absent/*.csv", 1)))
    stop_server()
    result["away"] = error(lambda: read(order, 1))
    result["unreachable"] = error(lambda: sources.parts_of(settings))
    return result


def main() -> None:
    storage.PAUSES = (0.0,)
    server = s3_server.started()
    s3_server.end_with(journey(boto3.client("s3"), server.stop))


if __name__ == "__main__":
    main()
