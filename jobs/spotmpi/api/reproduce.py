"""Make a file again from the raw data, in a store of its own, and compare it bit for bit."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotmpi.agent.files import is_file, is_folder
from spotmpi.agent.store import files, size_and_digest
from spotmpi.api import lineage, runs
from spotmpi.api.datasets import DataSet, build_dataset, planned_key
from spotmpi.backends.targets import TargetLike
from spotmpi.core import hints, names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.progress import Echo
from spotmpi.entries import inputs
from spotmpi.entries.manifest import DATASET, Code, Input, Manifest, RawFile
from spotmpi.entries.store import Store, is_reference
from spotmpi.images.environment import known_images
from spotmpi.pools.progress import print_message
from spotmpi.runs import fingerprint
from spotmpi.spec.source import load_spec
from spotmpi.streams.dataset import Dataset, lookup
from spotmpi.streams.errors import StreamError


@dataclass(frozen=True)
class Reproduction:
    """What was made again: how many files, and those that are not the same."""

    made: tuple[str, ...]  # the data sets and the run
    files: int
    different: tuple[str, ...]


def reproduce(
    place: str,
    code: Path | None = None,
    on: TargetLike = None,
    store: str | None = None,
    pool: Any = None,
    echo: Echo = print_message,
) -> Reproduction:
    """Make a file, a data set or the results of a run again, from the raw data, and compare them.

    *code* is the folder of the modules, by default the current one. Data sets are built in a temporary store.

    Raises:
        InputError: no record tells where *place* comes from.
        SpotmpiError: code or raw files are not what they were, or something fails.
    """
    sys.path.insert(0, str((code or Path.cwd()).absolute()))
    importlib.invalidate_caches()
    found = _entry(place, store)
    if found is not None and found[0].kind == DATASET and "function" not in found[0].details:
        place, found = _results(found[0]), None
    with tempfile.TemporaryDirectory(prefix="spotmpi-") as folder:
        maker = _Maker(Store(folder), on, pool, echo)
        if found is not None:
            maker.make(*found)
            return Reproduction(tuple(maker.made), maker.files, tuple(maker.different))
        paths = lineage.run_of(Path(place).absolute())
        if paths is None:
            lineage.trace(place, store)  # which says what to name
            raise AssertionError(place)
        for manifest, opened in _data_of(paths, store):
            maker.make(manifest, opened)
    return _run_again(paths, Path(place).absolute(), maker, on)


def _entry(place: str, store: str | None) -> tuple[Manifest, Store] | None:
    if is_reference(place):
        opened = Store(store)
        return opened.find(place), opened
    found = lineage.located(place if "://" in place else str(Path(place).absolute()))
    return found[:2] if found else None


def _results(manifest: Manifest) -> str:
    """The folder of the results of a prediction that a data set was made from."""
    paths = RunPaths(names.default_runs_folder() / str(manifest.run))
    if lineage.run_of(paths.folder) is None:
        raise SpotmpiError(f"the record of run {manifest.run}, which has made {manifest}, is not on this machine")
    return str(paths.stream / "results")


class _Maker:
    """Builds data sets again in a store of its own, parents first, and notes files that are not the same."""

    def __init__(self, store: Store, on: TargetLike, pool: Any, echo: Echo) -> None:
        self._store, self._on, self._pool, self._echo = store, on, pool, echo
        self._known: dict[str, DataSet] = {}
        self.made: list[str] = []
        self.different: list[str] = []
        self.files = 0

    def make(self, manifest: Manifest, store: Store) -> DataSet:
        """The data set of a manifest that lies in *store*, built again from its raw files."""
        if manifest.key in self._known:
            return self._known[manifest.key]
        if manifest.kind != DATASET or "function" not in manifest.details:
            raise input_error(
                "FILE", str(manifest), "is no data set of a function, and is made by its run: name a file of that"
            )
        if manifest.details.get("tokens"):
            named = ", ".join(manifest.details["tokens"])
            raise SpotmpiError(f"{manifest} has arguments that its manifest does not hold ({named}): call its function")
        sources = {each.argument: self._source(each, store) for each in manifest.inputs}
        dataset = self._dataset(manifest)
        arguments = {**sources, **manifest.arguments}
        key, code = planned_key(dataset, **arguments)
        if key != manifest.key:
            raise SpotmpiError(f"{manifest} cannot be made again: {_reason(manifest, code)}")
        found = self._known[key] = build_dataset(dataset, **arguments)
        self.made.append(str(manifest))
        self._compare(manifest, found.manifest)
        return found

    def _compare(self, manifest: Manifest, again: Manifest) -> None:
        old, new = ({file.path: file.sha256 for file in each.files} for each in (manifest, again))
        paths = sorted({*old, *new})
        self.files += len(paths)
        self.different += [f"{manifest}: {path}" for path in paths if old.get(path) != new.get(path)]

    def _source(self, value: Input, store: Store) -> DataSet | str:
        if value.parent is not None:
            parent = store.get(value.parent)
            if parent is None:
                raise SpotmpiError(f"the manifest of {value.parent} is missing: restore it from a copy of the store")
            return self.make(parent, store)
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
            remedy = f"name the folder of its modules: {hints.option('code', 'FOLDER')}"
            raise input_error("function", name, f"cannot be imported: {error}; {remedy}") from error
        image = (manifest.image or {}).get("name") or (manifest.image or {}).get("reference")
        if image and image not in known_images() and "/" not in image:
            raise SpotmpiError(
                f"{manifest} was made with the image {image}, which is not here: restore it under images/"
            )
        options = {"name": manifest.name, "row_group": manifest.details["row_group"], "image": image}
        return found.options(**options, store=self._store.storage.url, on=self._on, pool=self._pool, check=0.0)


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


def _data_of(paths: RunPaths, store: str | None) -> Iterator[tuple[Manifest, Store]]:
    """The data sets that a run has read; a model that it started from is taken as it is."""
    work = json.loads(paths.plan.read_text()).get("work") or {}
    for text in work.get("entries") or ():
        opened = lineage.store_of(paths, text, Store(store))
        if text.startswith(DATASET):
            yield opened.find(text), opened


def _run_again(paths: RunPaths, place: Path, maker: _Maker, on: TargetLike) -> Reproduction:
    """Start the run's spec again, and compare the files of *place* with those at the same place in its folder."""
    spec = load_spec(paths.spec)
    work = json.loads(paths.plan.read_text()).get("work") or {}
    code = (work.get("code") or {}).get("files")
    now = fingerprint.identify(spec)["code"]["files"] if code else {}
    changed = sorted(name for name in {*now, *(code or ())} if now.get(name) != (code or {}).get(name))
    if changed:
        commit = work["code"].get("commit")
        remedy = f"check out commit {commit[:12]}" if commit else "restore it"
        raise SpotmpiError(f"the code of run {paths.id} is not what it was ({', '.join(changed[:5])}): {remedy}")
    state = runs.run(spec, on=on)
    if state.state != "succeeded":
        raise SpotmpiError(f"run {state.id} {state.state}: {state.reason or 'no reason recorded'}")
    relative = place.relative_to(paths.folder)
    names = sorted(
        path.relative_to(paths.folder) for path in _files_in(place if relative != Path() else paths.stream / "results")
    )
    again = Path(state.folder)
    different = [str(name) for name in names if _content(paths.folder / name) != _content(again / name)]
    return Reproduction((*maker.made, state.id), maker.files + len(names), (*maker.different, *different))


def _files_in(place: Path) -> Iterator[Path]:
    if is_file(place):
        yield place
    elif is_folder(place):
        yield from (place / name for name in files(str(place)))


def _content(path: Path) -> list[Any] | None:
    return size_and_digest(str(path)) if is_file(path) else None
