"""The same data set with Dask by hand: `python -m scripts.datasets.by_hand RAW MOVIES LEAST STORE`.

It is built once for the same code, arguments and inputs, by workers with TLS. Parts that an earlier version has, or
that a build has left that broke off, are not built again. A part is built twice to find hidden state. A set is complete
or absent.
"""

import contextlib
import fcntl
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet
from distributed import Client, LocalCluster
from distributed.security import Security

from scripts.datasets import work

WORKERS = 4
ROW_GROUP = 65536


def sha256(path: Path) -> str:
    """The digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def key_of(*values: Any) -> str:
    """A digest of what JSON can write."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def code() -> dict[str, str]:
    """The code that takes part, and the versions of what it uses."""
    return {
        "clean": inspect.getsource(work.clean),
        "build_part": inspect.getsource(build_part),
        "python": sys.version.split()[0],
        "numpy": __import__("numpy").__version__,
        "pyarrow": pyarrow.__version__,
    }


def commit() -> str | None:
    """The commit of the checkout, if this is one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or None


def build_part(source: str, movies: str, least: float, target: str) -> dict[str, Any]:
    """Build a part, complete or not at all; its record."""
    before = Path(source).stat()
    table = work.clean(pyarrow.csv.read_csv(source), pyarrow.csv.read_csv(movies), least)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=Path(target).parent)
    os.close(handle)
    try:
        pyarrow.parquet.write_table(table, partial, row_group_size=ROW_GROUP, compression="zstd")
        after = Path(source).stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise SystemExit(f"{source} was changed while it was read")
        Path(partial).chmod(0o444)
        Path(partial).replace(target)
    finally:
        Path(partial).unlink(missing_ok=True)
    record = {"rows": len(table), "bytes": Path(target).stat().st_size, "sha256": sha256(Path(target))}
    Path(f"{target}.json").write_text(json.dumps(record))
    return record


def complete_parts(store: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The parts of earlier versions and of builds that broke off, by their keys."""
    found = {}
    for manifest in store.glob("*/manifest.json"):
        for name, record in json.loads(manifest.read_text())["files"].items():
            found[record["part"]] = (manifest.parent / "files" / name, record)
    for note in (store / "parts").glob("*.parquet.json"):
        with contextlib.suppress(ValueError):  # its worker was lost meanwhile
            found[note.name.partition(".")[0]] = (note.with_suffix(""), json.loads(note.read_text()))
    return found


@contextlib.contextmanager
def only_builder(store: Path) -> Iterator[None]:
    """Wait until no other process builds."""
    store.mkdir(parents=True, exist_ok=True)
    with (store / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(client: Client, raw: Path, movies: Path, least: float, store: Path) -> Path:
    """The folder of the data set, which is built unless it is there."""
    files = sorted(raw.glob("*.csv"))
    inputs = {path.name: sha256(path) for path in files}
    own, others = code(), sha256(movies)
    key = key_of(own, least, inputs, others)
    final = store / key
    with only_builder(store):
        if (final / "manifest.json").exists():
            return final
        parts = {path.stem: key_of(own, least, inputs[path.name], others) for path in files}
        known = complete_parts(store)
        futures = {}
        for path in files:
            part = parts[path.stem]
            if part not in known:
                target = str(store / "parts" / f"{part}.parquet")
                arguments = (str(path), str(movies), least, target)
                futures[part] = client.submit(build_part, *arguments, pure=False, retries=3)
        for part, future in futures.items():
            known[part] = (store / "parts" / f"{part}.parquet", future.result())
        for path in files[: -(-len(futures) // 100)]:
            with tempfile.TemporaryDirectory() as folder:
                target = f"{folder}/again.parquet"
                again = client.submit(build_part, str(path), str(movies), least, target, pure=False).result()
            if again["sha256"] != known[parts[path.stem]][1]["sha256"]:
                raise SystemExit(f"{path} gives another part when it is built again")
        writing = Path(tempfile.mkdtemp(dir=store))
        records = {}
        (writing / "files").mkdir()
        for stem, part in parts.items():
            place, record = known[part]
            os.link(place, writing / "files" / f"{stem}.parquet")
            records[f"{stem}.parquet"] = {**record, "part": part}
        manifest = {
            "key": key,
            "created": time.time(),
            "files": records,
            "inputs": inputs,
            "movies": others,
            "code": own,
            "commit": commit(),
            "arguments": {"least": least},
        }
        (writing / "manifest.json").write_text(json.dumps(manifest))
        writing.rename(final)
        shutil.rmtree(store / "parts", ignore_errors=True)
        return final


def main(raw: str, movies: str, least: str, store: str) -> None:
    """Build it with workers of this machine."""
    with (
        LocalCluster(WORKERS, threads_per_worker=1, security=Security.temporary(), protocol="tls://") as cluster,
        Client(cluster) as client,
    ):
        print(build(client, Path(raw), Path(movies), float(least), Path(store)))


if __name__ == "__main__":
    main(*sys.argv[1:])
