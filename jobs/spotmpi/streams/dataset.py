"""Functions whose results are data sets, and the parts of sources that they get."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from spotmpi.agent.protocol import counted
from spotmpi.streams import columns, sources
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Part, Settings, Slice
from spotmpi.streams.storage import file_system

ROW_GROUP = 1 << 16  # rows


class Source(Mapping[str, Any]):
    """One file of an input, or all of them: a mapping of columns as arrays, in the form that docs/streams.md has.

    A function of a data set is called once for each file of its first source, and gets the others whole.
    """

    def __init__(self, source: str, files: Sequence[Part], names: Sequence[str]) -> None:
        self._source, self._files, self._names = source, files, names

    @property
    def name(self) -> str:
        """The path of the file below the folder of its source, with slashes.

        Raises:
            StreamError: there are several files.
        """
        return self._names[self._files.index(self._only())]

    @property
    def is_empty(self) -> bool:
        """Whether the files were read, and have no rows."""
        return "_parts" in vars(self) and not any(part.rows for part in self._parts)

    @functools.cached_property
    def table(self) -> Any:
        """All rows as a table of pyarrow, with the types that the files have."""
        return sources.read_table(Settings(self._source), self._parts)

    def read(self) -> Any:
        """All rows, in the form that docs/streams.md has for the format: columns, samples, or names and contents."""
        return sources.read(Settings(self._source), [Slice(part, 0, part.rows) for part in self._parts if part.rows])

    def open(self) -> Any:
        """The file, open for reading its bytes."""
        return file_system(self._source)[0].open(self._only().name, "rb")

    @functools.cached_property
    def _parts(self) -> list[Part]:
        return sources.with_rows(Settings(self._source), self._files)

    @functools.cached_property
    def _columns(self) -> dict[str, Any]:
        return columns.arrays(self.table, self._parts[0].columns)

    def _only(self) -> Part:
        if len(self._files) != 1:
            raise StreamError(
                f"the source {self._source} has {counted(len(self._files), 'file')} here: read its rows instead"
            )
        return self._files[0]

    def __getitem__(self, column: str) -> Any:
        if column not in self._columns:
            raise KeyError(f"no column {column}: the columns are {', '.join(self._columns)}")
        return self._columns[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"<{counted(len(self._files), 'file')} of the source {self._source}>"


@dataclass(frozen=True)
class Options:
    """How a data set is built, and what it is called; only *row_group* makes a difference to its files."""

    name: str | None = None
    workers: int = 1
    cpu: float | str | None = None
    memory: str | None = None
    image: str | None = None
    on: Any = None
    pool: Any = None  # an open pool, in place of one of its own
    spec: Mapping[str, Any] | None = None  # further values of the spec of its own pool: env, [kubernetes]
    store: str | None = None
    check: float = 0.01  # the share of parts that are built twice, to find hidden state
    row_group: int = ROW_GROUP


class Dataset:
    """A function whose call builds a data set, or finds the one that was built from the same code and inputs."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self.function, self.settings = function, options
        self.imported = dict(_imported(function))

    @property
    def name(self) -> str:
        """The name of its data sets: by default that of the function."""
        return self.settings.name or self.function.__name__

    def options(self, **changes: Any) -> Dataset:
        """The same function with other options, such as ``workers=8, on="lab"``, or an open ``pool``."""
        _require_options(changes)
        return Dataset(self.function, replace(self.settings, **changes))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The data set; it is built unless the store has it."""
        import spotmpi  # the package's own names: this module is part of what workers get, and that one is not

        return spotmpi.build_dataset(self, *args, **kwargs)

    def source_arguments(self) -> list[str]:
        """The names of the arguments that are sources: those with the annotation `Source`, else the first one."""
        parameters = inspect.signature(self.function).parameters
        marked = [name for name, each in parameters.items() if _is_source(each.annotation)]
        return marked or list(parameters)[:1]

    def __reduce__(self) -> tuple[Any, ...]:
        settings = replace(self.settings, pool=None, on=None, spec=None)  # workers build parts alone
        if self.__module__ == "__main__":
            return Dataset, (self.function, settings)
        return _restore, (self.__module__, self.function.__qualname__, settings)


def lookup(module: str, name: str) -> Dataset:
    """The data set *name* of a module; StreamError where it has none, or cannot be imported though it is there."""
    content = sources.imported(module)
    if not hasattr(content, name):
        raise StreamError(f"the module {module} has no {name}; correct the name")
    found = getattr(content, name)
    if not isinstance(found, Dataset):
        raise StreamError(f"{module}:{name} is not a data set: mark the function with @spotmpi.dataset")
    return found


def _restore(module: str, name: str, settings: Options) -> Dataset:
    return Dataset(lookup(module, name).function, settings)


@overload
def dataset(function: Callable[..., Any], /) -> Dataset: ...
@overload
def dataset(**options: Any) -> Callable[[Callable[..., Any]], Dataset]: ...
def dataset(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function one that builds a data set: parts in, parts out. ``@spotmpi.dataset(workers=4)``; see `Options`.

    It is called for each file of a source, on the workers of a pool, and returns or yields columns by name, rows as
    dictionaries, tables, or contents of files by name.
    """
    _require_options(options)
    if function is None:
        return lambda function: Dataset(function, Options(**options))
    if not callable(function):
        raise TypeError(
            f"{function!r} is no function: write options by their names, such as @spotmpi.dataset(name=...)"
        )
    return Dataset(function, Options(**options))


def _require_options(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(Options.__dataclass_fields__))
    if unknown:
        known = ", ".join(Options.__dataclass_fields__)
        raise TypeError(f"unknown options of a data set: {', '.join(unknown)}; it has {known}")


def is_installed(file: str | None) -> bool:
    """Whether a file belongs to an installed package, also to one of Debian, or to one by ``pip install --target``."""
    path = Path(file or "")
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return True
    folders = [entry for entry in sys.path if entry and path.parts and path.is_relative_to(entry)]
    return any(path.relative_to(entry).parts[:1] in _installed_into(entry) for entry in folders)


@functools.lru_cache(maxsize=256)
def _installed_into(folder: str) -> frozenset[tuple[str, ...]]:
    """The first parts of the paths of files that packages have installed into a folder, by their records.

    Packages that are installed as editable have their files elsewhere.
    """
    from importlib import metadata

    records = [found for found in metadata.distributions(path=[folder]) if found.read_text("RECORD")]
    return frozenset(file.parts[:1] for found in records for file in found.files or ())


def _is_source(annotation: Any) -> bool:
    return annotation is Source or (isinstance(annotation, str) and annotation.rpartition(".")[2] == "Source")


def _imported(function: Callable[..., Any]) -> Iterator[tuple[str, tuple[Any, int, int]]]:
    """The spec, and size and time of the file, of a function's module and of those that it has imported, as of now."""
    scope = getattr(function, "__globals__", {})
    names = {function.__module__, *(getattr(value, "__module__", None) for value in scope.values())}
    names |= {getattr(value, "__name__", None) for value in scope.values() if inspect.ismodule(value)}
    for name in names:
        module = sys.modules.get(name) if isinstance(name, str) else None
        file = getattr(module, "__file__", None)
        if isinstance(name, str) and file and not is_installed(file) and Path(file).is_file():
            status = Path(file).stat()
            yield name, (getattr(module, "__spec__", None), status.st_size, status.st_mtime_ns)
