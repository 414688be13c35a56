"""The table ``[dataset]`` of a job spec: the data set is built, and the run reads it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spotmpi.api.datasets import DataSet, build_dataset, find_dataset
from spotmpi.backends import targets
from spotmpi.backends.targets import TargetLike
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.entries.store import Store
from spotmpi.spec.job import Data, DatasetBuild, JobSpec
from spotmpi.spec.source import Source, read_spec
from spotmpi.streams.dataset import Dataset, lookup
from spotmpi.streams.errors import StreamError

_OF_GANG = {"exclusive", "node_groups", "instance_type", "placement_group"}  # keys that place ranks, not workers


def build(source: Source, overrides: Iterable[str] = (), on: TargetLike = None) -> DataSet:
    """The data set of a spec, which is built unless the store has it.

    Raises:
        InputError: the spec has none, or it cannot be imported.
    """
    spec = read_spec(source, overrides)
    if spec.dataset is None:
        raise input_error("dataset", None, 'name the function that builds it: [dataset] build = "sets:ratings"')
    return build_dataset(_dataset(spec, spec.dataset, on), **spec.dataset.arguments)


def to_check(spec: JobSpec) -> JobSpec:
    """*spec* as validation shall see it: as if it had the data set already.

    Raises:
        InputError: nothing is left that would read it.
    """
    if spec.dataset and _for_stream(spec):
        url = Store().storage.url
        return _with_source(spec, url if "://" in url else "datasets")  # a file on the run volume
    if spec.dataset and spec.data:
        raise input_error("dataset", spec.dataset.build, "would be the run's data, which is set: remove one of the two")
    return spec


def with_dataset(spec: JobSpec, on: TargetLike, build: bool) -> JobSpec:
    """*spec* whose run reads its data set: as the source of its stream where that has none, else as its data.

    Raises:
        SpotmpiError: it is not built yet, and *build* is false.
    """
    if spec.dataset is None:
        return spec
    dataset = _dataset(spec, spec.dataset, on)
    _require_readable(spec, dataset, on)
    found = (
        build_dataset(dataset, **spec.dataset.arguments) if build else find_dataset(dataset, **spec.dataset.arguments)
    )
    if found is None:
        remedy = "`spotmpi data build` and `spotmpi run` build it"
        raise SpotmpiError(f"the data set of {spec.dataset.build} is not built yet, which the plan needs: {remedy}")
    if _for_stream(spec):
        return _with_source(spec, found.path).model_copy(update={"dataset": None})
    return spec.model_copy(update={"data": Data(path=found.path), "dataset": None})


def _require_readable(spec: JobSpec, dataset: Dataset, on: TargetLike) -> None:
    """Raise InputError if the run could not read the data set from its store, before anything is built."""
    assert spec.dataset
    url, target = Store(dataset.settings.store).storage.url, targets.target_of(on)
    if "://" in url and _for_stream(spec):
        return
    if not target.has_pods:
        if "://" in url and not target.is_local:  # to which it is copied
            remedy = (
                f"would be behind a URL, which ranks cannot read as a folder, in {url}: add a [stream] without a source"
            )
            raise input_error("dataset", spec.dataset.build, remedy)
    elif url != Store().storage.url:
        remedy = f"would be in the store {url}, of which nothing is copied to the run volume: set SPOTMPI_STORE={url}"
        raise input_error("dataset", spec.dataset.build, remedy)


def _for_stream(spec: JobSpec) -> bool:
    return spec.stream is not None and spec.stream.source is None and spec.program is None


def _with_source(spec: JobSpec, source: str) -> JobSpec:
    assert spec.stream is not None
    return spec.model_copy(update={"stream": spec.stream.model_copy(update={"source": source})})


def _dataset(spec: JobSpec, table: DatasetBuild, on: TargetLike) -> Dataset:
    """The function of a spec, with the pool that the spec describes."""
    folders = [spec.code] if spec.code else [str(Path(path).parent) for path in spec.files]
    sys.path[:0] = [folder for folder in folders or [str(Path.cwd())] if folder not in sys.path]
    module, _, name = table.build.partition(":")
    importlib.invalidate_caches()
    try:
        found = lookup(module, name)
    except StreamError as error:
        raise input_error("dataset.build", table.build, str(error)) from error
    except ImportError as error:
        remedy = "add its folder as `code` or its file to `files`, and install here what it imports"
        raise input_error("dataset.build", table.build, f"cannot be imported: {error}; {remedy}") from error
    values: dict[str, Any] = {"workers": table.workers, "cpu": table.cpu, "memory": table.memory, "image": spec.image}
    return found.options(
        **{key: value for key, value in values.items() if value is not None}, spec=pool_values(spec), on=on
    )


def pool_values(spec: JobSpec) -> dict[str, Any]:
    """What the pool of a data set takes from a spec besides its image: variables, and how pods reach what they need."""
    kubernetes = spec.kubernetes.model_dump(exclude_unset=True, exclude=_OF_GANG)
    values = {"env": dict(spec.env), "env_passthrough": list(spec.env_passthrough), "kubernetes": kubernetes}
    return {key: value for key, value in values.items() if value}
