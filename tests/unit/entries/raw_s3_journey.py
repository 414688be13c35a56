"""Builds data sets of objects of S3 and tells what happened: of moto's server by s3fs, or of `FakeS3`."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from spotmpi.api.datasets import DataSet
from spotmpi.api.lineage import Node, trace
from spotmpi.api.reproduce import reproduce
from spotmpi.core.errors import SpotmpiError
from spotmpi.entries.store import Store
from spotmpi.streams import storage
from tests.unit.entries.in_process import InProcess

SETS = """
import spotmpi

@spotmpi.dataset
def ratings(raw: spotmpi.Source, cut: float):
    return {"x": raw["x"][raw["x"] > cut]}
"""
SOURCE = "s3://raw/in/*.csv"
Put = Callable[[str, bytes], object]


class _Meanwhile(InProcess):
    """Another program is at work once the parts were sent."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work

    def map(self, function: Callable[..., Any], tasks: Iterable[Any]) -> Iterator[Any]:
        self._work()
        return super().map(function, tasks)


def _error(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except SpotmpiError as error:
        return str(error)


def journey(folder: Path, put: Put, log_out: Callable[[], object]) -> dict[str, Any]:
    """What happened in a bucket *raw* that keeps versions; modules and store go to *folder*."""
    (folder / "raw_s3_sets.py").write_text(SETS)
    os.environ |= {"SPOTMPI_STORE": str(folder / "store"), "SPOTMPI_CACHE": str(folder / "cache")}
    importlib.invalidate_caches()
    function, built = importlib.import_module("raw_s3_sets").ratings, list[list[str]]()

    def ratings(pool: InProcess | None = None, source: str = SOURCE) -> DataSet:
        pool = pool or InProcess()
        try:
            found: DataSet = function.options(pool=pool, check=0)(source, cut=0.5)
            return found
        finally:
            built.append(pool.built)

    def raw(tree: Node) -> dict[str, Any]:
        return {node.name: node.facts.get("version") for node in tree.walk() if node.what == "raw file"}

    seen: dict[str, Any] = {"no match": _error(ratings)}
    for number in range(3):
        put(f"in/{number}.csv", f"x\n{number}\n".encode())
    put("in/notes.txt", b"not of the pattern")
    first = ratings()
    again = ratings()
    put("in/1.csv", b"x\n10\n")
    second = ratings()
    put("in/1.csv", b"x\n1\n")
    third = ratings()
    put("in/3.csv", b"x\n3\n")
    fourth = ratings()
    seen["built"] = built[1:]
    seen["rows"] = [each.table["x"].to_pylist() for each in (first, second, fourth)]
    seen["keys"] = [each.key == first.key for each in (again, second, third, fourth)]
    one, two = raw(trace(first.path)), raw(trace(second.path))
    seen["raw"] = [*one]
    seen["same versions"] = {name: one[name] == two[name] for name in one if one[name] and two[name]}
    seen["of one file"] = [*raw(trace(f"{first.path}/1.parquet"))]
    seen["reproduced"] = list(reproduce(fourth.path, folder, pool=InProcess()).different)
    put("in/1.csv", b"x\n11\n")
    old = raw(trace(fourth.path))["s3://raw/in/1.csv"]
    seen["gone"] = _error(lambda: reproduce(fourth.path, folder, pool=InProcess())).replace(old, "OLD")
    before = len(Store().list())
    for name in ("0", "3"):  # of which an earlier version has the part
        pool = _Meanwhile(lambda name=name: put(f"in/{name}.csv", b"x\n7\n"))  # type: ignore[misc]
        seen[f"meanwhile {name}"] = _error(lambda pool=pool: ratings(pool))  # type: ignore[misc]
    seen["kept"] = len(Store().list()) - before
    seen["no bucket"] = _error(lambda: ratings(source="s3://absent/in/*.csv"))
    log_out()
    seen["no login"] = _error(ratings)
    return seen


def main() -> None:
    import boto3

    from tests.testbed import s3_server

    s3_server.started()
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="raw")
    s3.put_bucket_versioning(Bucket="raw", VersioningConfiguration={"Status": "Enabled"})

    def log_out() -> None:
        for name in s3_server.KEYS:
            del os.environ[name]
        storage.file_system(SOURCE)[0].clear_instance_cache()
        storage.file_system.cache_clear()

    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        os.environ["SPOTMPI_RUNS"] = f"{folder}/runs"
        seen = journey(Path(folder), lambda key, body: s3.put_object(Bucket="raw", Key=key, Body=body), log_out)
    s3_server.end_with(seen)


if __name__ == "__main__":
    main()
