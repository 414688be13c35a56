"""Uses a store's storage on moto's S3 server and prints as JSON what happened; runs in an environment with s3fs."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import boto3

from spotmpi.core.errors import SpotmpiError
from spotmpi.entries import build_lock
from spotmpi.entries.storage import Storage
from tests.testbed import s3_server


def journey(folder: Path) -> dict[str, Any]:
    (folder / "a").write_bytes(b"first")
    storage, created = Storage("s3://sets/store"), list[bool]()
    storage.write("parts/b", b"second")
    files = {"files/a": str(folder / "a"), "files/more/b": "parts/b"}

    def create(number: int) -> None:
        created.append(storage.create("datasets/x/key", files, f"manifest {number}".encode()))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result: dict[str, Any] = {
        "created": sorted(created),
        "again": storage.create("datasets/x/key", files, b"other"),
        "names": storage.names("datasets/x"),
        "files": storage.files("datasets/x/key"),
        "content": (storage.read("datasets/x/key/files/more/b") or b"").decode(),
        "digest": storage.digest("datasets/x/key/files/a"),
        "absent": [storage.read("absent"), storage.digest("absent"), storage.names("absent"), storage.files("absent")],
    }
    with build_lock.only_builder(storage, "datasets/x/other", lambda text: None):
        storage.write("datasets/x/.parts/other/p", b"")
        own = ("datasets/x/other", "datasets/x/.parts/other", "datasets/x/key/manifest.json")
        result["collected"] = [build_lock.collect(storage, *own)]
        result["claimed"] = storage.write("datasets/x/.claim-other.json", b"", exclusive=True)
    result["collected"] += [build_lock.collect(storage, *own), storage.names("datasets/x/.parts/other")]
    result["free"] = storage.read("datasets/x/.claim-other.json") is None
    storage.remove("datasets/x/key")
    result["left"] = storage.files("datasets")
    try:
        Storage("s3://absent").write("x", b"")
    except SpotmpiError as error:
        result["no bucket"] = str(error)
    return result


def main() -> None:
    s3_server.started()
    boto3.client("s3").create_bucket(Bucket="sets")
    with TemporaryDirectory() as folder:
        seen = journey(Path(folder))
    s3_server.end_with(seen)


if __name__ == "__main__":
    main()
