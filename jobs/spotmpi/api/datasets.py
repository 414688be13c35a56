"""Data sets: built by a function from parts of sources, once for the same code, arguments and inputs."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi import __version__
from spotmpi.api import pools
from spotmpi.api.entries import Entry
from spotmpi.backends import targets
from spotmpi.core import names
from spotmpi.core.errors import InputError, Problem, SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import counted, print_message
from spotmpi.entries import code as code_identity
from spotmpi.entries import inputs
from spotmpi.entries.arguments import values_of
from spotmpi.entries.build_lock import collect, only_builder
from spotmpi.entries.inputs import Resolved
from spotmpi.entries.manifest import (
    DATASET,
    FILES,
    FORMAT,
    MANIFEST,
    Code,
    File,
    Manifest,
    Reference,
    check_name,
    digest_of,
)
from spotmpi.entries.store import Files, Store, folder
from spotmpi.entries.values import token
from spotmpi.images.environment import known_images, lock_hash
from spotmpi.pools.errors import PoolLost
from spotmpi.programs.pool.call import CallAborted
from spotmpi.runs import fingerprint, recorded_plan
from spotmpi.spec.job import POOL
from spotmpi.streams import part_files, sources
from spotmpi.streams.dataset import Dataset
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.part_files import Task
from spotmpi.streams.storage import file_system

_NOT_SHIPPED = "; workers have its modules and sources, and no files beside these: make it a source"
_MAX_LOSSES = 3  # how often a call is given up by its pool, of which each is several lost workers
_MAX_IN_A_ROW = 5  # calls that are given up while no part is completed: then it is the function that ends its workers
PARTS = ".parts"  # the folder of parts that are being built, below that of their data set's name
_POOL = ".pool"  # there, in the folder of a key: the id of the pool that builds it


@dataclass(frozen=True, repr=False)
class DataSet(Entry):
    """A data set in a store."""

    @property
    def rows(self) -> int | None:
        """Rows of all files; None for files that are not tables."""
        return self.manifest.rows

    @property
    def table(self) -> Any:
        """All rows as a table of pyarrow."""
        from spotmpi.streams.dataset import Source

        return Source(*inputs.resolve("data set", self, self.store).files).table


class _Request(NamedTuple):
    """What a call of a function of a data set asks for."""

    dataset: Dataset
    reference: Reference
    code: Code
    image: dict[str, str] | None
    arguments: dict[str, Any]
    inputs: dict[str, Resolved]
    parts: str  # the folder in the store of those that are being built
    tasks: list[Task]


def build_dataset(dataset: Dataset, /, *args: Any, **kwargs: Any) -> DataSet:
    """The data set that *dataset* makes of these arguments; it is built on a pool unless the store has it.

    Raises:
        InputError: an argument cannot be hashed, or is not a source.
        SpotmpiError: the function fails, or gives other files for the same input, or a file was changed meanwhile.
    """
    store, echo = Store(dataset.settings.store), print_message
    request = _request(dataset, store, args, kwargs)
    found = store.get(request.reference)
    if found is None:
        with only_builder(store.storage, folder(request.reference), echo):
            found = store.get(request.reference) or _build(request, store)
    return DataSet(found, store)


def find_dataset(dataset: Dataset, /, *args: Any, **kwargs: Any) -> DataSet | None:
    """The data set that `build_dataset` would give, if the store has it."""
    store = Store(dataset.settings.store)
    found = store.get(_request(dataset, store, args, kwargs).reference)
    return DataSet(found, store) if found else None


def planned_key(dataset: Dataset, /, *args: Any, **kwargs: Any) -> tuple[str, Code]:
    """The key that `build_dataset` would give to a data set, and the code that takes part."""
    request = _request(dataset, Store(dataset.settings.store), args, kwargs)
    return request.reference.key, request.code


def _bound(dataset: Dataset, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, with those that have defaults; InputError where the function takes others."""
    signature = inspect.signature(dataset.function)
    further = [
        name for name, each in signature.parameters.items() if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if further:
        raise input_error(dataset.name, further[0], "takes any arguments: list those that it has by their names")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise input_error(dataset.name, None, f"{error}; give the arguments of the function") from error
    bound.apply_defaults()
    return dict(bound.arguments)


def _request(dataset: Dataset, store: Store, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Request:
    _require_importable(dataset)
    if not 0 <= dataset.settings.check <= 1:
        raise input_error("check", dataset.settings.check, "is the share of parts that are built twice: from 0 to 1")
    if dataset.settings.row_group < 1:
        raise input_error("row_group", dataset.settings.row_group, "is a number of rows: 1 or more")
    values = _bound(dataset, args, kwargs)
    marked = [name for name in dataset.source_arguments() if name in values]
    marked += [name for name, value in values.items() if isinstance(value, DataSet) and name not in marked]
    if not marked:
        raise input_error(dataset.name, None, "has no source: give the function an argument with the files to read")
    resolved = {name: inputs.resolve(name, values.pop(name), store) for name in marked}
    code = code_identity.identify(dataset.function, values, _image(dataset) is None, dataset.imported)
    tokens = {name: _token(dataset, name, value) for name, value in values.items()}
    image, group = _image(dataset), dataset.settings.row_group
    work = [FORMAT, code.digest, image, group, tokens]
    key = digest_of([*work, {name: each.input.digest for name, each in resolved.items()}])
    reference = Reference(DATASET, check_name(dataset.name), key)
    parts = f"{DATASET}/{dataset.name}/{PARTS}/{key}"
    tasks = _tasks(dataset, resolved, values, work, store.storage.place(parts))
    return _Request(dataset, reference, code, image, values, resolved, parts, tasks)


def _require_importable(dataset: Dataset) -> None:
    """Raise InputError for a function that workers would not find by its name."""
    name = dataset.function.__qualname__
    if dataset.function.__module__ != "__main__" and not name.isidentifier():
        remedy = (
            "workers import it by name: define it at the top level of its module, and give decorators functools.wraps"
        )
        raise input_error("dataset", f"{dataset.function.__module__}:{name}", remedy)


def _tasks(
    dataset: Dataset, resolved: dict[str, Resolved], arguments: dict[str, Any], work: list[Any], place: str
) -> list[Task]:
    """A task for each file of the first input; its key is over that file and the other inputs as a whole."""
    (first, divided), *others = resolved.items()
    whole = {name: each.files for name, each in others}
    rest = [[name, each.input.digest] for name, each in others]
    tasks, stems = [], set()
    for part, name, digest in zip(divided.files.parts, divided.files.names, divided.digests, strict=True):
        stem = "/".join(each.lstrip("._") or "part" for each in _printable(sources.stem(name)).split("/"))
        stem = stem if stem not in stems else _printable(name)
        stems.add(stem)
        files = {first: part_files.Files(divided.files.source, (part,), (name,)), **whole}
        tasks.append(Task(digest_of([*work, digest, rest]), dataset, files, arguments, place, stem))
    return tasks


def _printable(name: str) -> str:
    """A name that files of an entry can have."""
    return "".join(each if each.isprintable() else "_" for each in name)


def _image(dataset: Dataset) -> dict[str, str] | None:
    """What identifies the packages of workers: the lock of an image, or a reference; None for this interpreter."""
    image = dataset.settings.image
    if image is None:
        return None
    return {"name": image, "lock": lock_hash(image)} if image in known_images() else {"reference": image}


def _build(request: _Request, store: Store) -> Manifest:
    """Build the parts that the store does not have, and create the entry.

    What an interrupted build has left is not built again, but compared like the others: nobody knows whether it was.
    """
    kept = _kept_parts(request, store)
    tasks = [task for task in request.tasks if task.key not in kept]
    built = {task.key: records for task in tasks if (records := part_files.complete(task)) is not None}
    missing = len(tasks) - len(built)
    run, cost = None, None
    if missing:
        _require_reachable(request, store)
    print_message(f"building {request.reference}: {missing} of {counted(len(request.tasks), 'part')}")
    if missing or (tasks and request.dataset.settings.check > 0):
        run, cost = _build_parts(request, store, tasks, built)
    for task in tasks:
        kept[task.key] = [
            (_file(record, task.key), f"{request.parts}/{task.key}/{record[0]}") for record in built[task.key]
        ]
    code_identity.identify(request.dataset.function, request.arguments, imported=request.dataset.imported)  # unchanged
    files = sorted((each for task in request.tasks for each in kept[task.key]), key=lambda each: each[0].path)
    _require_one_table(request, store, files)
    manifest = _manifest(request, tuple(file for file, _ in files), run, cost)
    _require_parents(request)
    found = store.add(manifest, {file.path: place for file, place in files})
    store.storage.remove(request.parts)
    # Parts of other versions of this name that nobody builds: their builders were killed.
    top = f"{DATASET}/{found.name}"
    for key in store.storage.names(f"{top}/{PARTS}"):
        collect(store.storage, f"{top}/{key}", f"{top}/{PARTS}/{key}", f"{folder(found.reference)}/{MANIFEST}")
    return found


def _require_one_table(request: _Request, store: Store, files: Sequence[tuple[File, str]]) -> None:
    """Raise SpotmpiError where the tables of parts have no common types; other files are as a function wants them."""
    top = file_system(store.storage.url)[1]
    try:
        sources.require_one_table(
            store.storage.url, {file.path: f"{top}/{place}" for file, place in files if file.rows is not None}
        )
    except (StreamError, SourceError) as error:
        raise SpotmpiError(f"{request.reference} is not built: {error}") from error


def _require_parents(request: _Request) -> None:
    """Raise SpotmpiError for a data set that was removed while parts were made of it."""
    for each in request.inputs.values():
        parent = each.input.parent
        if parent and Store(each.files.source.removesuffix(f"/{folder(parent)}/{FILES}")).get(parent) is None:
            raise SpotmpiError(
                f"{request.reference} is not built: {parent} was removed meanwhile; build that again first"
            )


def _build_parts(
    request: _Request, store: Store, tasks: Sequence[Task], built: dict[str, list[part_files.Record]]
) -> tuple[str | None, float | None]:
    """Add the files of *tasks* by their keys to *built*; the pool of the last of them, and what all pools have cost.

    A pool that loses its scheduler is replaced by another one, unless it is that of the user.
    """
    cost: float | None = None
    missing = len(tasks) - len(built)
    for lost in itertools.count(1):
        try:
            with _pool(request, store, max(1, missing)) as pool:
                try:
                    _map(pool, part_files.build, tasks, built, len(request.tasks))
                    _require_same(request, store, built, pool)
                finally:
                    spent = pool.summary().cost
                    cost = cost if spent is None else (cost or 0.0) + spent
            return pool.id or None, cost
        except PoolLost as error:
            cause = f"{str(error).partition(';')[0]} ({_complete(tasks, len(request.tasks))})"
            if request.dataset.settings.pool is not None or lost == _MAX_LOSSES:
                raise SpotmpiError(f"{request.reference} is not built: {cause}; call it again") from error
            print_message(f"{cause}: another one builds the others")
    raise AssertionError


def _file(record: Sequence[Any], part: str) -> File:
    path, size, sha256, rows = record
    return File(path, size, sha256, rows, part)


_Kept = dict[str, Files]  # the files of parts by their keys


def _kept_parts(request: _Request, store: Store) -> _Kept:
    """The parts that an earlier version has, as they were."""
    wanted = {task.key for task in request.tasks}
    kept: _Kept = {}
    for manifest in store.list(DATASET, request.reference.name, on_damage=print_message):
        place = f"{folder(manifest.reference)}/files"
        found: _Kept = {part: [] for part in (wanted & manifest.details.get("parts", {}).keys()) - kept.keys()}
        for file in manifest.files:
            if file.part in found:
                found[file.part].append((file, f"{place}/{file.path}"))
        intact = store.intact(found)
        if damaged := len(found) - len(intact):
            print_message(f"{manifest.title} has {counted(damaged, 'damaged part')}: `spotmpi data verify` names all")
        kept.update(intact)
    return kept


def _require_reachable(request: _Request, store: Store) -> None:
    """Raise InputError if workers are pods, and inputs or the store are in folders of this machine."""
    settings = request.dataset.settings
    if settings.pool is not None:
        run = RunPaths(names.default_runs_folder() / (settings.pool.id or settings.pool.open().id))
        in_pods = isinstance(recorded_plan.cluster_of(run), recorded_plan.ClusterNamespace)
    else:
        in_pods = targets.target_of(settings.on).has_pods
    here = "or build it on this machine first (`spotmpi data build SPEC`): runs on a cluster read a copy"
    places = {name: (each.files.source, "s3://bucket/raw") for name, each in request.inputs.items()}
    places["store"] = store.storage.url, f"s3://bucket/store in SPOTMPI_STORE; {here}"
    problems = [
        Problem(name, place, f"is on this machine, where pods cannot reach it: use a URL, such as {remedy}")
        for name, (place, remedy) in places.items()
        if in_pods and "://" not in place
    ]
    if problems:
        raise InputError(problems)


@contextlib.contextmanager
def _pool(request: _Request, store: Store, count: int) -> Iterator[Any]:
    settings = request.dataset.settings
    if settings.pool is not None:
        yield settings.pool
        return
    note = f"{request.parts}/{_POOL}"
    _name_orphan(store.storage.read(note), settings.on)
    overrides = [f"pool.cpu={json.dumps(settings.cpu)}"] if settings.cpu is not None else []
    overrides += [f'pool.memory="{settings.memory}"'] if settings.memory is not None else []
    with pools.pool(
        {"launcher": POOL, **(settings.spec or {})},
        workers=min(settings.workers, count),
        image=settings.image,
        on=settings.on,
        files=code_identity.files_of(request.dataset.function, request.arguments),
        overrides=overrides,
    ) as pool:
        store.storage.write(note, pool.id.encode())
        yield pool


def _name_orphan(note: bytes | None, on: Any) -> None:
    """Name the pool of an earlier builder that was killed, which waits for a driver for ``limits.driver`` still."""
    if note is None:
        return
    run = note.decode("utf-8", "replace")
    with contextlib.suppress(SpotmpiError):  # that of another machine, or its target does not answer
        if not targets.backend_of(run, on).state(run).over:
            print_message(f"pool {run} of an earlier build, which was killed, still runs: `spotmpi stop {run}` ends it")


def _map(
    pool: Any, function: Any, tasks: Sequence[Task], results: dict[str, list[part_files.Record]], total: int
) -> None:
    """Add to *results* the files of each part by its key that it does not have, of *total* parts of the data set.

    A call that a pool gives up, since it lost its worker again and again, is sent again after the others.

    Raises:
        SpotmpiError: a call failed, with the name of its part.
        PoolLost: the pool is gone.
    """
    left, losses, in_a_row = [task for task in tasks if task.key not in results], Counter[str](), 0
    while left:
        try:
            for task, records in zip(left, pool.map(function, left), strict=True):
                results[task.key] = [tuple(record) for record in records]
                in_a_row = 0
            left = []
        except (SpotmpiError, PoolLost):
            raise
        except Exception as error:
            failed, *others = [task for task in left if task.key not in results] or left[-1:]
            losses[failed.key] += 1
            in_a_row += 1
            is_lost = isinstance(error, CallAborted)
            if is_lost and losses[failed.key] < _MAX_LOSSES and in_a_row < _MAX_IN_A_ROW:
                left = [*others, failed]
                continue
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and lines[1:] else lines[0]
            kind = "" if type(error).__module__.startswith("spotmpi.") else f"{type(error).__name__}: "
            reason += _NOT_SHIPPED if isinstance(error, FileNotFoundError) else ""
            reason += (
                f"; see `spotmpi logs {pool.id}`, and give workers more memory if it was too little" if is_lost else ""
            )
            raise SpotmpiError(
                f"{failed.dataset.name} failed for {failed.stem}: {kind}{reason} ({_complete(tasks, total)})"
            ) from error


def _complete(tasks: Sequence[Task], total: int) -> str:
    """How many of *total* parts are complete: those that had not to be built, and those of *tasks* that are now."""
    kept = total - len(tasks) + sum(part_files.complete(task) is not None for task in tasks)
    return f"{kept} of {counted(total, 'part')} {'is' if 1 in (kept, total) else 'are'} kept"


def _require_same(request: _Request, store: Store, built: dict[str, list[part_files.Record]], pool: Any) -> None:
    """Build a few parts again: those of a function without hidden state are the same."""
    share = request.dataset.settings.check
    tasks = sorted((task for task in request.tasks if task.key in built), key=lambda task: task.key)
    chosen = tasks[: -int(-share * len(tasks) // 1)] if share > 0 else []
    again: dict[str, list[part_files.Record]] = {}
    _map(pool, part_files.rebuild, chosen, again, len(request.tasks))
    for task in chosen:
        if again[task.key] != built[task.key]:
            store.storage.remove(request.parts)
            remedy = "seed random numbers by `raw.name`, sort sets, and give clock and network as arguments or sources"
            raise SpotmpiError(
                f"{request.dataset.name} gives other files when it builds {task.stem} again, so it has hidden state, "
                f"such as the clock, the network or an unseeded random number: {remedy}"
            )


def _manifest(request: _Request, files: tuple[File, ...], run: str | None, cost: float | None) -> Manifest:
    function, code = request.dataset.function, request.code
    file = inspect.getsourcefile(function)
    state = fingerprint.checkout(Path(file).parent) if file and Path(file).is_file() else {}
    tokens = {name: _token(request.dataset, name, each) for name, each in request.arguments.items() if not _plain(each)}
    parents = sorted({each.input.parent for each in request.inputs.values() if each.input.parent})
    first = next(iter(request.inputs.values()))
    parts = dict(zip((task.key for task in request.tasks), first.files.names, strict=True))
    module = code_identity.function_name(function).removesuffix(f".{function.__qualname__}")
    details = {"function": f"{module}:{function.__qualname__}", "parts": parts, "tokens": tokens}
    details["objects"] = values_of({name: request.arguments[name] for name in tokens})
    return Manifest(
        kind=DATASET,
        name=request.reference.name,
        key=request.reference.key,
        created=time.time(),
        files=files,
        parents=tuple(parents),
        inputs=tuple(map(inputs.with_versions, request.inputs.values())),
        code=Code(code.digest, code.sources, code.values, code.packages, state.get("commit"), state.get("diff")),
        arguments={name: value if _plain(value) else repr(value)[:200] for name, value in request.arguments.items()},
        image=request.image,
        run=run,
        cost=cost,
        details={**details, "row_group": request.dataset.settings.row_group},
        spotmpi=__version__,
    )


def _token(dataset: Dataset, name: str, value: Any) -> str:
    """What identifies an argument; one with code in it is part of the code."""
    return "code" if code_identity.has_code(value, dataset.function) else token(value, name)


def _plain(value: Any) -> bool:
    """Whether JSON gives a value back as it is: not a number of numpy, which has another key than one of Python."""
    try:
        again = json.loads(json.dumps(value, allow_nan=False))
        return bool(again == value) and token(again, "") == token(value, "")
    except (TypeError, ValueError, InputError):
        return False
