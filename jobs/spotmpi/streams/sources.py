"""The sources of a stream: their parts, and the rows of a batch. Executed by workers.

Files are read by fsspec, so a source may be on any storage that it knows.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from spotmpi.streams import columns, kafka, tables, tar, topics
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import FUNCTION, Part, Settings, Slice, describe
from spotmpi.streams.storage import check_unchanged, file_system, read_whole, version, with_retries
from spotmpi.streams.tables import CSV, JSON, PARQUET
from spotmpi.streams.text_files import COMPRESSIONS

_TAR, _BYTES = "tar", "bytes"
_SUFFIXES = (
    (".parquet", PARQUET),
    (".pq", PARQUET),
    (".csv", CSV),
    (".jsonl", JSON),
    (".ndjson", JSON),
    (".tar", _TAR),
)
# What follows a split in the name of a part: its number and that of all, with a digest in older sets; or its number.
_NUMBER = re.compile(r"-\d+-of-\d+(-\w+)?$|(^|[-_.])\d+$")
_MAX_SPLITS = 10  # that a message names
_REQUESTS = 16  # of a storage at a time
# Names of splits that Hugging Face knows by themselves, each with the split that it means.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}

T = TypeVar("T")
R = TypeVar("R")


def parts_of(settings: Settings, record: Sequence[Part] = ()) -> list[Part]:
    """The parts of a source in the order of their names: calls of a function, partitions of a topic, or files.

    *record* has the parts that the run had before; of a topic they stay the same.

    Raises:
        StreamError: it does not exist, it mixes formats, or messages of the record are gone.
        SourceError: the storage does not answer.
    """
    source = settings.source
    if FUNCTION.fullmatch(source):
        function(source)
        return [Part(source, settings.length, 0, "")]
    if topics.is_topic(source):
        return kafka.partitions(source, record)
    return with_rows(settings, files_of(source, settings.split))


def files_of(source: str, split: str | None = None) -> list[Part]:
    """The files of a source, or of its *split*, in the order of their names; their rows are not counted yet.

    Raises:
        StreamError: it does not exist, or it mixes formats.
        SourceError: the storage does not answer.
    """
    return files_named(source, with_retries(lambda: _names(source, split), f"the source {source}"))


def files_named(source: str, names: Sequence[str]) -> list[Part]:
    """Files with their sizes and versions, by their *names* in the storage of a source."""

    def describe(name: str) -> Part:
        return Part(name, 0, *with_retries(lambda: version(file_system(source)[0], name), name))

    return _for_each(names, describe)


def with_rows(settings: Settings, files: Sequence[Part]) -> list[Part]:
    """Files with the numbers of their rows, and with columns of the same types."""
    listed = _for_each(files, lambda part: with_retries(lambda: _counted(settings, part), part.name))
    form = columns.unify({part.name: schema for part, schema in listed if schema is not None and part.rows})
    return [part._replace(columns=form) for part, _ in listed]


def require_one_table(source: str, files: Mapping[str, str]) -> None:
    """Raise StreamError for Parquet *files* of which a column has types without a common one.

    They are in the storage of *source*; their places there are by the names that the message gives them.
    """
    places = {name: place for name, place in files.items() if _format(place) == PARQUET}
    parts = files_named(source, list(places.values()))
    try:
        listed = _for_each(parts, lambda part: with_retries(lambda: _counted(Settings(source), part), part.name))
    finally:
        tables.close_files()  # which are parts that are removed next
    columns.unify({name: schema for name, (part, schema) in zip(places, listed, strict=True) if part.rows})


def _for_each(items: Collection[T], call: Callable[[T], R]) -> list[R]:
    """The results of *call* for each item, several of which wait for the storage at a time."""
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(_REQUESTS) as threads:
        return list(threads.map(call, items))


def _names(source: str, split: str | None) -> list[str]:
    """The files of a source or of its *split*, all of one format."""
    system, path = file_system(source)
    system.invalidate_cache()
    # A web server is not asked what a folder is: its answer for a file would be the file.
    if path.endswith("/") if "http" in system.protocol else bool(system.isdir(path)):
        entries = {name: info for name, info in system.find(path, detail=True).items() if not _hidden(name, path)}
        entries = {name: entries[name] for name in _split_names(source, list(entries), path, split)}
    elif split is not None:
        raise StreamError(f"the source {source} is not a folder, so it has no split {split}: name the folder")
    else:
        entries = system.glob(path, detail=True)
        if not entries and "[" in path and system.exists(path):  # a file with brackets in its name
            entries = {path: system.info(path)}
    names = sorted(name for name, info in entries.items() if info["type"] != "directory")
    if not names:
        bucket = path.partition("/")[0]
        if "s3" in system.protocol and not system.exists(bucket):
            remedy = "no such bucket for this login; check its name, and the account and region of the login"
            raise StreamError(f"the source {source} is in the bucket {bucket}: {remedy}")
        remedy = "no file has this name or pattern; check it, or add the files"
        raise StreamError(f"the source {source} is empty: {remedy}")
    endless = next((name for name in names if entries[name]["type"] == "other"), None)
    if endless:
        remedy = "a source is read more than once: copy it to a file, or leave it out"
        raise StreamError(f"{endless} is a pipe, a socket or a device, not a file; {remedy}")
    if len({_format(name) for name in names}) > 1:
        raise StreamError(f"the source {source} mixes formats: name the files of one, such as *.parquet")
    compressed = next((name for name in names if _is_compressed(name)), None)
    if compressed:
        remedy = "use plain .tar files, or Parquet's own compression"
        raise StreamError(f"{compressed} is compressed, so that its samples cannot be sought: {remedy}")
    return names


def _split_names(source: str, names: list[str], folder: str, split: str | None) -> list[str]:
    """The files in *folder* that are of *split*: by the beginning of their name, or by a folder of this name."""
    splits = {name: _splits(name.removeprefix(folder).strip("/")) for name in names}
    if split is None:
        mixed = {each: name for name in names for each in splits[name] if each.lower() in _SPLITS}
        if len({_SPLITS[each.lower()] for each in mixed}) > 1:
            every = f"{source.rstrip('/')}/**/*{Path(next(iter(mixed.values()))).suffix}"
            remedy = f'choose one with split = "{min(mixed)}", or name the files of all, such as {every}'
            raise StreamError(f"the source {source} has the splits {', '.join(sorted(mixed))}: {remedy}")
        return names
    chosen = [name for name in names if split in splits[name]]
    if not chosen:
        known = sorted({splits[name][-1] for name in names if _format(name) != _BYTES and splits[name]})
        has = (
            f"it has: {', '.join(known[:_MAX_SPLITS])}"
            if known
            else "no name of its files or folders is that of a split"
        )
        raise StreamError(f"the source {source} has no split {split}; {has}")
    return chosen


def _splits(name: str) -> list[str]:
    """The splits of which a file in a folder may be, by its path in there, the likeliest last."""
    *folders, file = _uncompressed(name).split("/")
    stem = file.rpartition(".")[0]
    folders = [folder.removeprefix("split=") for folder in folders]
    split = _NUMBER.sub("", stem)
    return [*folders, stem, split] if split else folders


def read(settings: Settings, slices: Sequence[Slice]) -> Any:
    """The rows of *slices*, in the form that docs/streams.md has for each kind of source.

    Raises:
        StreamError: a file is not what it was when the stream began.
        SourceError: the storage does not answer.
    """
    source = settings.source
    if FUNCTION.fullmatch(source):
        return function(source)(slices[0].start, **json.loads(settings.arguments or "{}"))
    if topics.is_topic(source):
        return kafka.read_messages(source, slices)
    return with_retries(lambda: _read_files(settings, slices), describe(slices))


def _read_files(settings: Settings, slices: Sequence[Slice]) -> Any:
    system, _ = file_system(settings.source)
    try:
        return _rows(settings, system, slices)
    finally:  # checked afterwards, parts have not changed while they were read
        _for_each({each.part for each in slices}, lambda part: check_unchanged(system, part))


def read_table(settings: Settings, parts: Sequence[Part]) -> Any:
    """All rows of *parts* as a table of pyarrow; StreamError for files that are not tables."""
    if not parts:
        raise StreamError(f"the data set {settings.source} has no files, and so no table")
    kind = _format(parts[0].name)
    if kind in (_TAR, _BYTES):
        raise StreamError(f"{parts[0].name} is not a table: use Parquet, CSV or JSON Lines, or read its content")
    where = parts[0].name if len(parts) == 1 else settings.source
    return with_retries(lambda: tables.read_all(settings, parts, kind), where)


def _rows(settings: Settings, system: Any, slices: Sequence[Slice]) -> Any:
    kind = _format(slices[0].part.name)
    if kind == _BYTES:
        return _for_each(slices, lambda each: (each.part.name, read_whole(system, each.part.name)))
    if kind == _TAR:
        samples = _for_each(slices, lambda each: tar.read_samples(settings.source, each))
        return [sample for each in samples for sample in each]
    return tables.read_columns(settings, slices, kind)


def function(name: str) -> Callable[..., Any]:
    """The function ``module:function``; StreamError where there is none of this name."""
    module, _, attribute = name.partition(":")
    try:
        found = imported(module)
    except ModuleNotFoundError as error:
        where = f"{sys.executable} has no module {error.name}"
        remedy = f"{where}: ship it with `code` or `files`, or install it there or in the image"
        raise StreamError(f"{name} cannot be imported: {remedy}") from error
    if not hasattr(found, attribute):
        raise StreamError(f"{name} cannot be imported: the module {module} has no {attribute}")
    result: Callable[..., Any] = getattr(found, attribute)
    return result


def imported(module: str) -> types.ModuleType:
    """A module of the user.

    Raises:
        ModuleNotFoundError: there is none, or not one that it imports.
        StreamError: it raises something else, with the place.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((each for each in reversed(frames) if not _is_installed(each.filename)), frames[-1])
        place = "" if isinstance(error, SyntaxError) else f" ({Path(last.filename).name}, line {last.lineno})"
        reason = str(error).partition("\n")[0]
        is_relative = isinstance(error, FileNotFoundError) and not Path(error.filename or "/").is_absolute()
        remedy = f"correct it: this process runs in {Path.cwd()}" if is_relative else "correct it"
        raise StreamError(f"the module {module} raises {type(error).__name__}: {reason}{place}; {remedy}") from error


def _is_installed(file: str) -> bool:
    """Whether a *file* of a traceback is of Python or of a package, not of the user."""
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in folders)


def _counted(settings: Settings, part: Part) -> tuple[Part, Any]:
    """A file with the number of its rows, and the schema of its columns if it has some."""
    kind = _format(part.name)
    if kind == _BYTES:
        return part._replace(rows=1), None
    if kind == _TAR:
        return part._replace(rows=tar.count_samples(settings.source, part.name, part.version)), None
    groups, schema = tables.describe(settings, part, kind)
    return part._replace(rows=sum(groups), unit=max(groups, default=0)), schema


def _format(name: str) -> str:
    """How a file is read."""
    plain = _uncompressed(name).lower()
    return next((kind for suffix, kind in _SUFFIXES if plain.endswith(suffix)), _BYTES)


def _uncompressed(name: str) -> str:
    """The name of a file without the suffix of its compression."""
    suffix = next((suffix for suffix in COMPRESSIONS if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def _is_compressed(name: str) -> bool:
    """Whether a file is compressed whose rows have places that would be sought."""
    compressed = _uncompressed(name) != name and _format(name) in (_TAR, PARQUET)
    return compressed or name.lower().endswith(".tgz")


def stem(name: str) -> str:
    """The name of a file without the suffixes of its format and its compression."""
    plain = _uncompressed(name)
    suffix = next((each for each, _ in _SUFFIXES if plain.lower().endswith(each)), "")
    return plain[: len(plain) - len(suffix)]


def _hidden(name: str, folder: str) -> bool:
    relative = name.removeprefix(folder)
    return any(part.startswith((".", "_")) for part in relative.split("/") if part)
