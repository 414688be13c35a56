"""One part of a data set, as a worker builds it: the same bytes on every worker, complete or absent."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent.files import write_atomically
from spotmpi.agent.store import safe_path, size_and_digest
from spotmpi.streams.columns import plain_type
from spotmpi.streams.dataset import Dataset, Source
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Part
from spotmpi.streams.results import table_of
from spotmpi.streams.storage import check_unchanged, file_system, local_path, with_retries

_SPACE = "free space there, then call it again: complete parts are kept"
CHANGED = "call it again once the source does not change any more"
Record = tuple[str, int, str, "int | None"]  # the path of a file in the data set, its bytes, SHA-256 and rows


class Files(NamedTuple):
    """The files of an input, with their names below the folder of its source."""

    source: str
    parts: tuple[Part, ...]
    names: tuple[str, ...]


class Task(NamedTuple):
    """What a worker needs for one part, whose files go below *folder*, a path or a URL; *stem* is their name."""

    key: str
    dataset: Dataset
    inputs: dict[str, Files]
    arguments: dict[str, Any]
    folder: str
    stem: str


def build(task: Task) -> list[Record]:
    """The files of a part, which are written below its folder, with a list of them last.

    Raises:
        StreamError: an input was changed meanwhile, or what the function gives cannot be written.
    """
    return complete(task) or _build(task, keep=True)


def complete(task: Task) -> list[Record] | None:
    """The files of a part that a call has built whose worker was lost afterwards, or the whole build.

    A list that is empty counts as missing: that is what a machine that lost its power has of those that it wrote last.
    """
    system, folder = file_system(task.folder)
    try:
        return [tuple(record) for record in json.loads(system.cat_file(f"{folder}/{task.key}.json"))]
    except (OSError, ValueError):
        return None


def rebuild(task: Task) -> list[Record]:
    """What `build` would write now in another process, at another time, without writing it."""
    from spotmpi.streams import second_build  # few parts are built again

    records: list[Record] = second_build.call(rebuild_here, task)
    return records


def rebuild_here(task: Task) -> list[Record]:
    """What `build` would write now in this process, without writing it; of two calls that differ what both write."""
    first, second = _build(task, keep=False), _build(task, keep=False)
    return first if first == second else first + second


def _build(task: Task, keep: bool) -> list[Record]:
    local = local_path(task.folder)
    inputs = {name: Source(*files) for name, files in task.inputs.items()}
    with _remedy_of_disk(task):
        if local:
            Path(local).mkdir(parents=True, exist_ok=True)
        own = tempfile.TemporaryDirectory(prefix=".part-", dir=local, ignore_cleanup_errors=True)  # others matter more
    with own as temporary:
        with _remedy_without_rows(inputs):
            result = task.dataset.function(**inputs, **task.arguments)
            written = _write(result, temporary, task)
        _require_unchanged(task)
        with _remedy_of_disk(task):
            records = [_record(temporary, path, rows) for path, rows in sorted(written.items())]
            if keep:
                _publish(task, temporary, records)
        return records


@contextlib.contextmanager
def _remedy_of_disk(task: Task) -> Iterator[None]:
    """Say where a part cannot be written; what the function raises, such as an error of the network, is its own."""
    try:
        yield
    except OSError as error:
        remedies = {errno.ENOSPC: _SPACE, errno.EDQUOT: _SPACE, errno.ENAMETOOLONG: "give the file a shorter name"}
        remedy = remedies.get(error.errno or 0, "check that folder, then call it again: complete parts are kept")
        reason = os.strerror(error.errno) if error.errno else error  # pyarrow has a text of its own there
        raise StreamError(f"{task.stem} cannot be written to {task.folder}: {reason}; {remedy}") from error


@contextlib.contextmanager
def _remedy_without_rows(inputs: Mapping[str, Source]) -> Iterator[None]:
    """Say where a function fails for a file without rows, such as CSV with names alone: its columns have no types."""
    try:
        yield
    except (TypeError, ValueError, IndexError, KeyError) as error:
        first = next(iter(inputs.values()))
        if not first.is_empty:
            raise
        remedy = "it has no rows, and columns without types: return None for it, which makes no part"
        raise StreamError(f"{type(error).__name__}: {error}; {remedy}") from error


def _require_unchanged(task: Task) -> None:
    for files in task.inputs.values():
        system, _ = file_system(files.source)
        for part in files.parts:
            check = functools.partial(check_unchanged, system, part, "the data set", CHANGED)
            with_retries(check, part.name)


def _write(result: Any, folder: str, task: Task) -> dict[str, int | None]:
    """Write what the function of a data set gives; the files with their numbers of rows."""
    written: dict[str, int | None] = {}
    with _Table(Path(folder, f"{task.stem}.parquet"), task.dataset.settings.row_group) as table:
        for chunk in _chunks(result):
            if isinstance(chunk, Mapping) and chunk and all(isinstance(each, (bytes, str)) for each in chunk.values()):
                for name, content in chunk.items():
                    with _remedy_of_disk(task):
                        _write_file(folder, name, content)
                    written[name] = None
            else:
                rows = table_of(dict(chunk) if isinstance(chunk, Mapping) else chunk)  # of a source, which is read
                with _remedy_of_disk(task):
                    table.add(rows)
        with _remedy_of_disk(task):
            if table.complete():
                written[f"{task.stem}.parquet"] = table.rows
    return written


def _write_file(folder: str, name: str, content: bytes | str) -> None:
    path = Path(_inside(folder, name))
    if path.exists():
        raise StreamError(f"a data set has two files named {name}: give each its own name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StreamError(f"{name} is below another file of the data set: give each its own name") from None
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _inside(folder: str, name: str) -> str:
    try:
        if any(part.startswith((".", "_")) for part in name.split("/")):
            raise ValueError("names that begin with . or _ are those of hidden files")
        if not name.isprintable():
            raise ValueError("it has characters that cannot be printed")
        return safe_path(folder, name)
    except ValueError as error:
        raise StreamError(f"a data set has no place for a file named {name!r}: {error}") from error


def _chunks(result: Any) -> Iterator[Any]:
    if isinstance(result, Iterator):
        for each in result:
            yield from _chunks(each)
    elif result is not None and not (isinstance(result, list) and not result):
        yield result


class _Table:
    """A Parquet file with row groups of *group* rows, however the rows arrive."""

    def __init__(self, path: Path, group: int) -> None:
        self._path, self._group = path, group
        self._writer: Any = None
        self._pending: list[Any] = []
        self.rows = 0

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file, also where it is not complete: on NFS the folder of an open file cannot be removed."""
        if self._writer is not None:
            with contextlib.suppress(Exception):  # such as a full disk, which is reported already
                self._writer.close()

    def add(self, table: Any) -> None:
        """Add the rows of a table; its columns have to be those of the first one."""
        import pyarrow
        import pyarrow.parquet

        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pyarrow.parquet.ParquetWriter(
                self._path, table.schema, compression="zstd", write_page_checksum=True
            )
        names = self._writer.schema.names
        try:
            if sorted(table.column_names) != sorted(names):
                raise ValueError(f"columns {', '.join(names)}, then {', '.join(table.column_names)}")
            table = table.select(names)
            forms = [_plain(each) for each in (self._writer.schema, table.schema)]
            pyarrow.unify_schemas(forms, promote_options="permissive")  # a cast makes numbers of text
            self._pending.append(table.cast(self._writer.schema))
        except (ValueError, TypeError, NotImplementedError) as error:  # as pyarrow's errors are
            remedy = "yield tables with the same columns, of the same types"
            raise StreamError(f"the tables of {self._path.stem} do not fit together: {error}; {remedy}") from error
        self.rows += len(table)
        if sum(map(len, self._pending)) >= self._group:
            self._flush(whole=True)

    def complete(self) -> bool:
        """Complete the file; False where there is none."""
        if self._writer is None:
            return False
        self._flush(whole=False)
        self._writer.close()
        return True

    def _flush(self, whole: bool) -> None:
        import pyarrow

        table = pyarrow.concat_tables(self._pending).combine_chunks() if self._pending else None
        if table is None:
            return
        count = len(table) - len(table) % self._group if whole else len(table)
        if count:
            self._writer.write_table(table.slice(0, count), row_group_size=self._group)
        self._pending = [table.slice(count)] if count < len(table) else []


def _plain(schema: Any) -> Any:
    """A schema in which the types are those of values."""
    import pyarrow

    return pyarrow.schema([field.with_type(plain_type(field.type)) for field in schema])


def _record(folder: str, path: str, rows: int | None) -> Record:
    size, digest = size_and_digest(str(Path(folder, path)))
    return path, size, digest, rows


def _publish(task: Task, temporary: str, records: list[Record]) -> None:
    """Move the files of a part to its folder, then write a list of them; another worker may do so at the same time."""
    text = json.dumps(records)
    local = local_path(task.folder)
    if local:
        for path, *_ in records:
            source, target = Path(temporary, path), Path(local, task.key, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as file:
                os.fsync(file.fileno())  # before the list, and the manifest of the whole
            source.chmod(0o444)
            source.replace(target)
        write_atomically(Path(local, f"{task.key}.json"), text)
        return
    system, folder = file_system(task.folder)
    for path, *_ in records:
        name = f"{folder}/{task.key}/{path}"
        with_retries(functools.partial(system.put_file, str(Path(temporary, path)), name), name)
    name = f"{folder}/{task.key}.json"
    with_retries(lambda: system.pipe_file(name, text.encode()), name)
