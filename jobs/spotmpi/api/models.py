"""Models: what a run has trained, kept in the store with what it was made from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotmpi.agent import checkpoint_files, record
from spotmpi.agent import store as files_of_folder
from spotmpi.api import entries, runs
from spotmpi.api.entries import Entry
from spotmpi.api.run_manifest import run_manifest
from spotmpi.backends.targets import TargetLike
from spotmpi.core import names, wording
from spotmpi.core.errors import InputError, SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo, silent
from spotmpi.entries.manifest import MODEL, File, Manifest, check_name, describe
from spotmpi.entries.store import Store, is_reference
from spotmpi.entries.versions import Promotion
from spotmpi.runs.reader import RunState
from spotmpi.spec.source import read_toml

if TYPE_CHECKING:
    from spotmpi.api.datasets import DataSet
    from spotmpi.api.pipelines import Function
    from spotmpi.spec.source import Source


class Model(Entry):
    """A version of a model in a store."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The result that its run has reported, such as ``loss``."""
        return dict(self.manifest.details.get("metrics", {}))


def keep(
    run: RunState | str,
    name: str,
    files: Sequence[str | Path] = (),
    parents: Sequence[str] = (),
    store: str | None = None,
    on: TargetLike = None,
    echo: Echo = silent,
) -> Model:
    """Keep what a run has trained as the next version of the model *name*.

    The same again gives the version that there is. Without *files* it is the newest complete checkpoint; these are
    files and folders, relative to the run folder. The folder of a cluster's run is copied to this machine first.
    *parents* are models that it was fine-tuned from.

    Raises:
        InputError: the run has not ended, has no complete checkpoint, or no such file.
        SpotmpiError: the checkpoint is damaged, a data set of the run is not in the store, or that cannot be written.
    """
    opened = Store(store)
    check_name(name)
    state = run if isinstance(run, RunState) else runs.status(run, on)
    if not state.has_end:
        resume = f"; `spotmpi run --resume {state.id}` continues it" if state.state == record.LOST else ""
        raise input_error("run", state.id, f"is {state.state}: a model is kept once its run has ended{resume}")
    paths = RunPaths(runs.pull(state.id, on, echo))
    checkpoint, sources = ("", _named(paths, files)) if files else _newest_checkpoint(paths)
    described = tuple(describe(source, path) for path, source in sorted(sources.items()))
    if checkpoint:
        _require_intact(paths, checkpoint, described, sources)
    found = [opened.find(each, MODEL).reference for each in parents]
    manifest = run_manifest(MODEL, replace(state, folder=str(paths.folder)), name, described, found, opened)
    manifest.details.update({"checkpoint": checkpoint} if checkpoint else {})
    places = {path: str(source.absolute()) for path, source in sources.items()}
    return Model(opened.add(manifest, places), opened)


def _named(paths: RunPaths, files: Sequence[str | Path]) -> dict[str, Path]:
    """The files that a user has named by their paths in the model; of a folder all files below it."""
    sources: dict[str, Path] = {}
    for each in files:
        place = paths.folder / each
        below = [place / path for path in files_of_folder.files(str(place))] if place.is_dir() else [place]
        for source in (place, *below):
            if not Path(os.path.realpath(source)).is_relative_to(os.path.realpath(paths.folder)):
                remedy = "let the run write it there, or copy it there first"
                where = f"is outside of the folder of run {paths.id}, {names.display_path(paths.folder)}"
                raise input_error("file", str(each) if source == place else str(source), f"{where}: {remedy}")
        for source in below:
            path = source.relative_to(place).as_posix() if place.is_dir() else source.name
            if sources.setdefault(path, source) != source:
                raise input_error(
                    "file", str(source), f"has the name of another one, {sources[path]}: rename one of them"
                )
        if not below or not below[0].is_file():
            folder = names.display_path(paths.folder)
            raise input_error("file", str(each), f"is not a file or folder with files in {folder}")
    return sources


def _newest_checkpoint(paths: RunPaths) -> tuple[str, dict[str, Path]]:
    """The name of the newest complete checkpoint of a run, and its files."""
    spec = read_toml(paths.spec)
    place = Path(names.checkpoints(str(paths.folder), spec.get("checkpoint", {}).get("path")))
    known = checkpoint_files.names(str(place)) if place.is_dir() else []
    complete = [each for each in known if (place / each / checkpoint_files.MANIFEST).is_file()]
    if not complete:
        save = "spotmpi.checkpoint.save(iteration, state, now=True) after the last iteration writes one"
        remedy = f"{save}, or name the files of the model with --file"
        raise input_error("run", paths.id, f"has no complete checkpoint in {names.display_path(place)}: {remedy}")
    newest = place / complete[-1]
    return newest.name, {path: newest / path for path in files_of_folder.files(str(newest))}


def _require_intact(paths: RunPaths, checkpoint: str, described: Sequence[File], sources: Mapping[str, Path]) -> None:
    """Compare the files of a checkpoint with what its own manifest says."""
    own = checkpoint_files.MANIFEST
    actual = {file.path: {"bytes": file.bytes, "sha256": file.sha256} for file in described if file.path != own}
    try:
        expected = checkpoint_files.read_manifest(str(sources[own].parent)).get("files")
    except checkpoint_files.Damaged:
        expected = None
    if expected != actual:
        remedy = "`spotmpi run --resume` trains it again, or name the files of an earlier one with --file"
        raise SpotmpiError(f"the newest checkpoint of run {paths.id} is damaged, {checkpoint}: {remedy}")


class NotPredicted(SpotmpiError):
    """A prediction did not succeed, or its results are not kept: the messages of its run have said why."""

    def __init__(self, text: str, state: RunState) -> None:
        super().__init__(text)
        self.state = state


def is_image(name: str) -> bool:
    """Whether a text names a model in a registry, as ``ghcr.io/team/digits:3``, and not one of the store."""
    return "/" in name


def find(name: str, store: str | None = None) -> Model:
    """The model that *name* stands for: ``digits``, ``digits:3``, ``digits:prod``, ``digits@KEY`` or ``KEY``."""
    opened = Store(store)
    return Model(opened.find(name, MODEL), opened)


def promote(name: str, alias: str, remove: bool = False, store: str | None = None) -> Promotion:
    """Let an alias such as ``prod`` name a version of a model; with *remove* no version any more.

    Raises:
        SpotmpiError: another process has promoted a version at the same time, which holds.
    """
    found = find(name, store)
    return entries.promote(found.manifest, alias, found.store, remove)


def remove(name: str, store: str | None = None) -> Model:
    """Remove a version of a model from the store; what was removed. Its number is not given again.

    Raises:
        SpotmpiError: an alias, another entry or the spec of a run on this machine names it.
    """
    found = find(name, store)
    entries.remove(found.manifest, found.store)
    return found


def predict(
    model: str,
    data: str | Path | DataSet,
    function: str | Function,
    *,
    keep: str | None = None,
    source: Source | None = None,
    on: TargetLike = None,
    **options: Any,
) -> DataSet:
    """Predict with a kept model: the results are a data set, *keep*, by default named after model and data.

    *function* is that of a `spotmpi.pipeline`: it gets the batches, loads the model once by `spotmpi.checkpoint.read`,
    and yields a result for each batch. Functions may be named, as ``flow:predict``. *source* is a spec for resources
    and limits; *options* are those of the pipeline, such as ``prepare=flow.prepare, batch=4096, write="jsonl"``.

    Raises:
        InputError: there is no such model or data set, or all problems of the spec.
        NotPredicted: the run did not succeed, or its results could not be kept.
    """
    from spotmpi.api import keep_requests  # what only starts runs
    from spotmpi.api.pipelines import pipeline

    chosen = find(model)
    name = check_name(keep) if keep else _name_of_results(chosen, data)
    reference = f"models:{chosen.name}@{chosen.key}"
    started = pipeline(data, predict=function, **options)
    state = started.run(source, [f'init="{reference}"', f'keep="{name}"'], on)
    if state.state != record.SUCCEEDED:
        reason = state.reason or "no reason is recorded"
        raise NotPredicted(f"the prediction {state.id} {state.state}: {reason}", state)
    found = keep_requests.results_of(RunPaths(Path(state.folder)))
    if found is None:
        raise NotPredicted(f"the results of {state.id} are not kept: `spotmpi status {state.id}` tells why", state)
    return found


def _name_of_results(model: Model, data: str | Path | DataSet) -> str:
    """The name of the data set of a prediction that was given none."""
    name = f"{model.name}-{_name_of(data)}"
    try:
        return check_name(name)
    except InputError as error:
        remedy = f"can be no name of the results: give them one, {wording.option('keep', 'NAME')}"
        raise input_error("data", str(data), remedy) from error


def _name_of(data: str | Path | DataSet) -> str:
    """The name of a data set, or of a file or folder: of a pattern that where it begins."""
    if not isinstance(data, str | Path):
        return data.name
    text = str(data)
    if not is_reference(text):
        text = re.split(r"[*?\[]", text)[0]
    return re.split("[@:]", text.partition(":")[2])[0] if is_reference(text) else Path(text.rstrip("/")).stem


def push(
    name: str,
    image: str,
    store: str | None = None,
    sign_key: str | Path | None = None,
    echo: Echo = silent,
) -> str:
    """Push a model to a registry of images, ``REGISTRY/NAME:TAG``; its reference there by digest.

    With *sign_key*, a PEM file with a private key, the digest is signed as `cosign sign --key` does.

    Raises:
        InputError: there is no such model or key, or *image* is not a reference.
        SpotmpiError: a file is damaged, or the registry cannot be reached or refuses.
    """
    from spotmpi.api import model_registry  # few models are pushed or pulled

    return model_registry.push(find(name, store), image, sign_key, echo)


def pull_to_store(
    image: str,
    store: str | None = None,
    key: str | Path | None = None,
    echo: Echo = silent,
    keep: str | None = None,
) -> Model:
    """Keep a model of a registry in the store, as the next version of its name, or as that which it is there already.

    With *key*, a PEM file such as ``cosign.pub``, its digest has to be signed by that key. *keep* is another name than
    the one under which it was pushed.

    Raises:
        InputError: *image* is not ``REGISTRY/NAME:TAG``, or there is no such key.
        SpotmpiError: there is none, it was not pushed by `push`, is not signed by the key or damaged, the store has
            other files under its key, or the registry cannot be reached.
    """
    from spotmpi.api import model_registry

    opened = Store(store)
    return Model(model_registry.pull(image, opened, key, echo, keep), opened)


def pull(
    name: str,
    into: str | Path | None = None,
    store: str | None = None,
    key: str | Path | None = None,
    echo: Echo = silent,
) -> Path:
    """Copy the files of a model to a new folder, complete or not at all; its path. No effect where they are there.

    One of a registry, such as ``ghcr.io/team/digits:3``, becomes a version in the store first, as by `pull_to_store`.

    Raises:
        InputError: the folder has other files.
        SpotmpiError: a file is damaged in the store, or cannot be written.
    """
    if key and not is_image(name):
        remedy = "is for models of a registry, REGISTRY/NAME:TAG: those of a store are not signed; leave it out"
        raise input_error(wording.option("key"), str(key), remedy)
    model = pull_to_store(name, store, key, echo) if is_image(name) else find(name, store)
    target = names.absolute(into or f"{model.name}-{model.version}")
    if target.exists():
        if _has(target, model.manifest):
            return target
        raise input_error(
            "folder", names.display_path(target), f"exists and is not {model}: remove it, or name another folder"
        )
    model.store.copy(model.manifest, target)
    return target


def _has(place: Path, manifest: Manifest) -> bool:
    """Whether a folder has the files of a model, and no others."""
    if not place.is_dir() or sorted(files_of_folder.files(str(place))) != sorted(file.path for file in manifest.files):
        return False
    return all(describe(place / file.path, file.path) == file for file in manifest.files)
