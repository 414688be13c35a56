"""Make a file again from the raw data, in a store of its own, and compare it bit for bit."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from spotmpi.agent import checkpoint_files, record
from spotmpi.agent.files import exists, is_file, is_folder
from spotmpi.agent.store import files, size_and_digest
from spotmpi.api import lineage, run_entries, runs
from spotmpi.api.dataset_specs import pool_values
from spotmpi.api.datasets import DataSet, build_dataset, planned_key
from spotmpi.backends import targets
from spotmpi.backends.targets import TargetLike
from spotmpi.core import code_folder, names, wording
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo, print_message
from spotmpi.entries import inputs
from spotmpi.entries.arguments import decoded
from spotmpi.entries.definitions import without_comments
from spotmpi.entries.manifest import DATASET, Code, Input, Manifest, RawFile, digest_of
from spotmpi.entries.store import Store, is_reference, read_reference, reference_in
from spotmpi.images.environment import known_images
from spotmpi.runs import fingerprint, ownership, reader, recorded_plan
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import from_values, load_spec
from spotmpi.streams.dataset import Dataset, lookup
from spotmpi.streams.errors import StreamError

_RESULTS = "stream/results"  # of a prediction, in the run folder


@dataclass(frozen=True)
class Reproduction:
    """What was made again: how many files, and those that are not the same."""

    reproduced: tuple[str, ...]  # the data sets and the run
    files: int
    different: tuple[str, ...]


def reproduce(
    place: str,
    code: Path | str | None = None,
    on: TargetLike = None,
    store: str | None = None,
    pool: Any = None,
    echo: Echo = print_message,
) -> Reproduction:
    """Make a file, a data set or the results of a run again, from the raw data, and compare them.

    *code* is the folder of the modules, by default the current one, and of the run's code that is gone from its place.
    Data sets are built in a temporary store.

    Raises:
        InputError: no record tells where *place* comes from.
        SpotmpiError: code or raw files are not what they were, or something fails.
    """
    modules = Path(code or "").absolute()
    sys.path.insert(0, str(modules))
    importlib.invalidate_caches()
    found, changed = _entry(place, store)
    opened = found[1] if found else Store(store)
    with temporary_store(opened, on) as (empty, workers):
        rebuild = _Rebuild(empty, workers, pool, echo)
        if found is not None and "function" in found[0].details:
            rebuild.build(*found)
            return Reproduction(tuple(rebuild.rebuilt), rebuild.files, (*changed, *rebuild.different))
        target = _target_of_run(found[0]) if found else _files_of(place, store)
        spec = _with_code(target.spec, modules)
        start: Callable[..., reader.RunState] = runs.run
        if targets.target_of(on).is_local:  # nothing is sent
            spec = _with_interpreter(spec, target.interpreter, echo)
        else:
            ownership.require_own_choice(target.record, spec)
            if target.record is not None and not ownership.is_own(target.record):
                start = runs.run_recorded
        spec = rebuild.spec = run_entries.in_store(spec, opened)
        _require_same_code(target, spec)
        for manifest, where in list(_data_of(target, opened, echo)):  # all are found before the first is built
            rebuild.build(manifest, where)
        spec = spec.with_inputs(_rebuilt_places(spec, rebuild.datasets, on))
        again, files, different = _compared(target, start(spec.model_copy(update={"keep": None}), on=on), on, echo)
    return Reproduction((*rebuild.rebuilt, again), rebuild.files + files, (*changed, *rebuild.different, *different))


def _entry(place: str, store: str | None) -> tuple[tuple[Manifest, Store] | None, Sequence[str]]:
    """The entry that is or has *place*, and its files there that are not any more what the manifest says."""
    if is_reference(place):
        opened = Store(store)
        return (opened.find(place), opened), ()
    found = lineage.locate(place if "://" in place else str(Path(place).absolute()))
    if found is None:
        opened = Store(store)
        is_of_run = "://" in place or lineage.run_of(Path(place).absolute()) is not None
        copied = () if is_of_run else lineage.entries_with_content(place, opened)
        return ((copied[0][0], opened) if copied else None), ()
    changed = lineage.changed_files(*found)
    return found[:2], [f"{found[0]}: {path} was changed after it was kept" for path in changed]


@contextlib.contextmanager
def temporary_store(store: Store, on: TargetLike) -> Iterator[tuple[Store, TargetLike]]:
    """An empty store for the data sets that are built again, and where their workers are, which have to reach it.

    Pods cannot reach folders of this machine: data sets that lie in one are built here, as they were.
    """
    target = targets.target_of(on)
    if target.is_local or not (target.is_slurm or "://" in store.storage.url):
        with tempfile.TemporaryDirectory(prefix="spotmpi-") as folder:
            yield Store(folder), on if target.is_local else None
        return
    name = f".reproduced-{uuid.uuid4().hex}"
    try:
        yield Store(store.storage.place(name)), on
    finally:
        store.storage.remove(name)


class _Target(NamedTuple):
    """Files of a run to compare with, by their paths in the run folder: bytes and SHA-256; *spec* starts it again."""

    run: str
    spec: JobSpec
    work: Mapping[str, Any]  # what identifies the work of the run
    record: RunPaths | None  # None where it is not on this machine
    folder: str  # that has nothing but these files, in the run folder; empty where it has others
    files: Mapping[str, tuple[int, str]]

    @property
    def interpreter(self) -> str | None:
        """Where the Python of a run on this machine was; pods may name any file, one that they have left included."""
        is_here = self.record is None or recorded_plan.read(self.record).backend == names.LOCAL
        return self.work.get("interpreter") if is_here else None


def _target_of_run(manifest: Manifest) -> _Target:
    """What a run has made: the results of a prediction, or the state of a model without the run's id and times."""
    record = RunPaths(names.default_runs_folder() / str(manifest.run))
    if lineage.run_of(record.folder) is not None:
        target = _Target(record.id, load_spec(record.spec), reader.work(record), record, "", {})
    else:
        target = _Target(str(manifest.run), _recorded_spec(manifest), _recorded_work(manifest), None, "", {})
    if manifest.kind == DATASET:
        folder, paths = _RESULTS, [file.path for file in manifest.files]
    else:
        checkpoints = names.checkpoints("", target.spec.checkpoint.path)
        folder = f"{checkpoints}/{manifest.details.get('checkpoint')}"
        paths = [file.path for file in manifest.files if file.path != checkpoint_files.MANIFEST]
        if "checkpoint" not in manifest.details or checkpoints.startswith("/"):
            remedy = f"was not kept from a checkpoint in the folder of run {manifest.run}: name a file in that"
            raise input_error("FILE", str(manifest), remedy)
    files = {f"{folder}/{file.path}": (file.bytes, file.sha256) for file in manifest.files if file.path in paths}
    return target._replace(folder=folder if manifest.kind == DATASET else "", files=files)


def _recorded_spec(manifest: Manifest) -> JobSpec:
    """The spec that the manifest of what a run has made holds, without the values of variables."""
    spec = dict(manifest.details.get("spec") or {})
    variables = spec.pop("env", None)
    if variables or not spec:
        what = f"the values of its variables {', '.join(variables)}" if variables else "a spec"
        raise SpotmpiError(
            f"{manifest} cannot be made again without the record of run {manifest.run}, which alone has {what}: "
            f"restore the record in {names.display_path(names.default_runs_folder())}, or name a file in it"
        )
    return from_values(spec)


def _recorded_work(manifest: Manifest) -> dict[str, Any]:
    code = {"files": manifest.code.values, "commit": manifest.code.commit} if manifest.code else {}
    entries = [f"{each.kind}:{each.name}@{each.key}" for each in manifest.parents]
    python = manifest.details.get("interpreter")
    return {"code": code, "entries": entries, **({"interpreter": python} if python else {})}


def _files_of(text: str, store: str | None) -> _Target:
    """A file or folder in a run folder; of the whole run folder the results."""
    place = Path(text).absolute()
    paths = lineage.run_of(place)
    if paths is None:
        lineage.trace(text, store)  # which says what to name
        raise AssertionError(text)
    folder = place.relative_to(paths.folder).as_posix() if place != paths.folder else _RESULTS
    found = _contents(paths.folder, folder)
    if not found:
        remedy = f"`spotmpi pull {paths.id}` copies those of a cluster, or name a file that it has written"
        raise input_error("FILE", text, f"is in run {paths.id} and has no files to compare: {remedy}")
    folder = "" if is_file(paths.folder / folder) else folder
    return _Target(paths.id, load_spec(paths.spec), reader.work(paths), paths, folder, found)


def _contents(run: Path, name: str) -> dict[str, tuple[int, str]]:
    """Bytes and SHA-256 of a file of a run folder, or of each file below a folder there."""
    place = run / name
    below = files(str(place)) if is_folder(place) else ()
    paths = [place] if is_file(place) else [place / each for each in below if not Path(each).name.startswith(".")]
    return {path.relative_to(run).as_posix(): _content(path) for path in paths}


def _content(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file; of the manifest of a checkpoint of all but the time, which is another one."""
    with contextlib.suppress(checkpoint_files.Damaged, OSError):
        if path.name == checkpoint_files.MANIFEST:
            return 0, digest_of({**checkpoint_files.read_manifest(str(path.parent)), "time": None})
    size, digest = size_and_digest(str(path))
    return size, digest


class _Rebuild:
    """Builds data sets again in a store of its own, parents first, and notes files that are not the same."""

    def __init__(self, store: Store, on: TargetLike, pool: Any, echo: Echo) -> None:
        self._store, self._on, self._pool, self._echo = store, on, pool, echo
        self.spec: JobSpec | None = None  # that tells how pods reach what they need
        self.datasets: dict[str, DataSet] = {}
        self.rebuilt: list[str] = []
        self.different: list[str] = []
        self.files = 0

    def build(self, manifest: Manifest, store: Store) -> DataSet:
        """The data set of a manifest that lies in *store*, built again from its raw files."""
        if manifest.key in self.datasets:
            return self.datasets[manifest.key]
        if "function" not in manifest.details:
            self._echo(_reuse_note(manifest))
            return DataSet(manifest, store)
        sources = {each.argument: self._source(each, store) for each in manifest.inputs}
        dataset = self._dataset(manifest)
        arguments = {**sources, **_arguments(manifest, dataset)}
        key, code = planned_key(dataset, **arguments)
        if key != manifest.key:
            raise SpotmpiError(f"{manifest} cannot be made again: {_reason(manifest, code)}")
        found = self.datasets[key] = build_dataset(dataset, **arguments)
        self.rebuilt.append(str(manifest))
        old, new = ({file.path: file.sha256 for file in each.files} for each in (manifest, found.manifest))
        paths = sorted({*old, *new})
        self.files += len(paths)
        self.different += [f"{manifest}: {path}" for path in paths if old.get(path) != new.get(path)]
        return found

    def _source(self, value: Input, store: Store) -> DataSet | str:
        if value.parent is not None:
            return self.build(store.require(value.parent), store)
        now = inputs.resolve(value.argument, value.source, store).input
        if now.digest != value.digest:
            old, new = ({file.name: file for file in each.files} for each in (value, now))
            changed = [name for name in sorted({*old, *new}) if _digest(old.get(name)) != _digest(new.get(name))]
            texts = ", ".join(value.describe(old.get(name) or new[name]) for name in changed[:5])
            raise SpotmpiError(f"the raw files {value.source} are not what they were ({texts}): restore them")
        return value.source

    def _dataset(self, manifest: Manifest) -> Dataset:
        name = manifest.details["function"]
        module, _, attribute = name.partition(":")
        try:
            found = lookup(module, attribute)
        except (ImportError, StreamError) as error:
            remedy = f"name the folder of its modules: {wording.option('code', 'FOLDER')}"
            raise input_error("function", name, f"cannot be imported: {error}; {remedy}") from error
        image = (manifest.image or {}).get("name") or (manifest.image or {}).get("reference")
        if image and image not in known_images() and "/" not in image:
            raise SpotmpiError(
                f"{manifest} was made with the image {image}, which is not here: restore it under images/"
            )
        options = {"name": manifest.name, "row_group": manifest.details["row_group"], "image": image}
        options |= {"spec": pool_values(self.spec)} if self.spec else {}
        return found.options(**options, store=self._store.storage.url, on=self._on, pool=self._pool, check=0.0)


def _arguments(manifest: Manifest, dataset: Dataset) -> dict[str, Any]:
    """The arguments of a data set that are no sources; of defaults that its manifest does not hold those of the code.

    Raises:
        SpotmpiError: it does not hold others.
    """
    found, missing = dict(manifest.arguments), []
    objects, parameters = manifest.details.get("objects", {}), inspect.signature(dataset.function).parameters
    for name in manifest.details.get("tokens", {}):
        del found[name]  # which is for people
        try:
            found[name] = decoded(objects[name])
        except (LookupError, AttributeError, ImportError, TypeError, ValueError):
            if name not in parameters or parameters[name].default is inspect.Parameter.empty:
                missing.append(name)
    if missing:
        named = ", ".join(missing)
        raise SpotmpiError(f"{manifest} has arguments that its manifest does not hold ({named}): call its function")
    return found


def _digest(file: RawFile | None) -> str:
    return file.digest if file else ""


def _reason(manifest: Manifest, code: Code) -> str:
    old = manifest.code or Code("")
    names = {*old.sources, *code.sources}
    changed = sorted(name for name in names if old.sources.get(name) != code.sources.get(name))
    changed += sorted(name for name in {*old.values, *code.values} if old.values.get(name) != code.values.get(name))
    versions = {*old.packages.items()} ^ {*code.packages.items()}
    commit = f"check out commit {old.commit[:12]}" if old.commit else "restore the code that `spotmpi why --json` shows"
    if changed:
        return f"its code is not what it was ({', '.join(changed[:5])}): {commit}"
    if versions:
        return (
            f"packages have other versions ({', '.join(sorted({name for name, _ in versions}))}): install those it had"
        )
    return "the lock of its image, or the settings of its function, are not what they were: check them out as they were"


def _data_of(target: _Target, store: Store, echo: Echo) -> Iterator[tuple[Manifest, Store]]:
    """The data sets that a run has read; a model that it started from is taken as it is."""
    for text in target.work.get("entries") or ():
        opened = lineage.store_of(target.record, text, store) if target.record else store
        reference = read_reference(text)
        found = opened.require(reference) if reference else opened.find(text)
        if found.kind == DATASET:
            yield found, opened
        else:
            echo(_reuse_note(found))


def _reuse_note(manifest: Manifest) -> str:
    """What is said of what a run has made: to make one file again starts one run."""
    return f"{manifest} is taken as it was kept: `spotmpi reproduce {manifest}` makes it again"


def _rebuilt_places(spec: JobSpec, datasets: Mapping[str, DataSet], on: TargetLike) -> dict[str, str]:
    """Where the data sets of *spec* lie that were built again, by key; pods read copies of those in a folder."""
    target, found = targets.target_of(on), dict[str, str]()
    for key, place in run_entries.places(spec).items():
        reference = reference_in(place)
        again = datasets.get(reference.key) if reference else None
        reaches = not target.has_pods or (key == "stream.source" and again and "://" in again.path)
        if again is not None and reaches:
            found[key] = again.path
    return found


def _with_code(spec: JobSpec, folder: Path) -> JobSpec:
    """*spec* with the code in *folder* in place of what is not on this machine where it was."""
    here = [
        path if exists(path) or not exists(folder / path.name) else folder / path.name for path in map(Path, spec.files)
    ]
    code = str(folder) if spec.code and not exists(Path(spec.code)) else spec.code
    return spec.model_copy(update={"files": [*map(str, here)], "code": code})


def _with_interpreter(spec: JobSpec, recorded: str | None, echo: Echo) -> JobSpec:
    """*spec* with the Python that its run had on this machine; *recorded* is where that was if it was found on PATH.

    In place of one that is gone it is that of PATH, or of this process where the command names it by its path.
    """
    command = list(spec.command or [])
    if not command or not fingerprint.is_interpreter(command[0]):
        return spec
    now = fingerprint.interpreter(spec) if "/" not in command[0] else command[0]
    former = recorded or now
    if former is None or (former == now and exists(former)):
        return spec
    if not exists(former):
        other = now if now and now != former else sys.executable
        echo(f"{former}, with which the run was made, is not here any more: {other} is used in its place")
    else:
        other = former
    return spec.model_copy(update={"command": [other, *command[1:]]})


def _require_same_code(target: _Target, spec: JobSpec) -> None:
    """Raise SpotmpiError if the code that a run had is not that of now."""
    code = target.work.get("code") or {}
    recorded = code.get("files") or {}  # without any, none may be sent: the record may be another user's
    # A manifest does not say whether the run was on this machine, where scripts count that its command names.
    places = [target.work["machine"] is not None] if "machine" in target.work else [True, False]
    changed = min((_changed(recorded, fingerprint.code_of(spec, each)["files"]) for each in places), key=len)
    kept = recorded_plan.shipped_code(target.record) if changed and target.record else None
    if kept is not None:
        folder, further = spec.code_paths
        shipped = {path.name for path in further} | ({"code"} if folder else set())
        changed = [*(name for name in changed if name not in shipped), *_changes(kept, spec)]
    if changed:
        changed = [f"the folder {spec.code}" if name == "code" else name for name in changed]
        commit = code.get("commit")
        remedy = f"check out commit {commit[:12]}" if commit else "restore it"
        raise SpotmpiError(f"the code of run {target.run} is not what it was ({', '.join(changed[:5])}): {remedy}")


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    names = (name for name in {*new, *old} if not fingerprint.is_interpreter(name))
    return sorted(name for name in names if new.get(name) != old.get(name))


def _changes(kept: Mapping[str, bytes], spec: JobSpec) -> list[str]:
    """The files of a spec's code that are not those that were *kept*, apart from comments and blank lines of Python."""
    now = {name: path.read_bytes() for name, path in code_folder.sources(*spec.code_paths).items()}
    names = {*now, *(name for name in kept if name.endswith(".py"))}  # a command may have written others beside them

    def content(found: Mapping[str, bytes], name: str) -> object:
        is_python = name.endswith(".py") and name in found
        return without_comments(found[name]) if is_python else found.get(name)

    return sorted(name for name in names if content(now, name) != content(kept, name))


def _compared(target: _Target, state: reader.RunState, on: TargetLike, echo: Echo) -> tuple[str, int, Sequence[str]]:
    """What a run that was made again has written: its id, how many files, and those that are not the same."""
    if state.state != record.SUCCEEDED:
        raise SpotmpiError(state.end)
    folder = runs.pull(state.id, on, echo)
    again: dict[str, tuple[int, str]] = {}
    for name in [target.folder] if target.folder else target.files:
        again.update(_contents(folder, name))
    paths = sorted({*target.files, *again})
    return state.id, len(paths), [path for path in paths if target.files.get(path) != again.get(path)]
