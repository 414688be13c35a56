"""Pipelines of up to three stages as one run: functions that prepare batches, train or predict, and postprocess."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotmpi.agent.files import exists
from spotmpi.api import runs
from spotmpi.api.datasets import DataSet
from spotmpi.backends.targets import TargetLike
from spotmpi.core.errors import input_error
from spotmpi.core.events import Event
from spotmpi.core.wording import Echo
from spotmpi.entries.shipped import shipped_file, with_imports
from spotmpi.runs.reader import RunState
from spotmpi.spec.job import JobSpec
from spotmpi.spec.source import Source, from_values, read_spec
from spotmpi.spec.stream import Stream
from spotmpi.streams.order import CONSUMER, FUNCTION, KEEP, PREDICT, TRAIN

Function = Callable[..., Any]


@dataclass(frozen=True)
class Pipeline:
    """A stream with the function that consumes it; *mode* is ``train`` or ``predict``."""

    values: dict[str, Any]  # of the table [stream]
    mode: str
    consumer: str  # module:function
    files: tuple[str, ...]  # the modules of its functions, and those that they import

    def spec(self, source: Source | None = None, overrides: Iterable[str] = ()) -> JobSpec:
        """The spec that `run` submits: that of *source* with the stream, and with the function as its command.

        Raises:
            InputError: all problems of the spec, or one that has a command or program already.
        """
        spec = JobSpec(launcher="none") if source is None else read_spec(source)
        if spec.command or spec.program:
            raise input_error("command", spec.command or spec.program, "a pipeline starts its own function; remove it")
        stream = spec.stream.model_dump(exclude_defaults=True) if spec.stream else {}
        files = [*spec.files, *(file for file in self.files if file not in spec.files)]
        python = "python" if spec.image or spec.kubernetes.image else sys.executable  # the versions of the workers
        changes = {
            "command": [python, *CONSUMER, self.mode, self.consumer],
            "files": spec.files if spec.code else files,
            "name": spec.name or self.consumer.partition(":")[2],
            "stream": {**stream, **self.values},
        }
        return from_values({**spec.model_dump(exclude_defaults=True), **changes}, overrides)

    def run(
        self,
        source: Source | None = None,
        overrides: Iterable[str] = (),
        on: TargetLike = None,
        detach: bool = False,
        on_event: Callable[[Event], None] | None = None,
        echo: Echo | None = None,
    ) -> RunState:
        """Run it to its end as `spotmpi.run` does, with the resources and limits of the spec *source*."""
        return runs.run(self.spec(source, overrides), (), on, detach, on_event, echo)


def pipeline(
    source: str | Path | DataSet | Function,
    prepare: Function | str | None = None,
    train: Function | str | None = None,
    *,
    predict: Function | str | None = None,
    postprocess: Function | str | None = None,
    write: str | Function | None = None,
    **options: Any,
) -> Pipeline:
    """A stream of *source* that workers prepare, and the function that consumes it: *train* or *predict*.

    ``train(batches)`` is an ordinary loop in each rank; ``predict(batches)`` yields one result per batch. Workers call
    ``postprocess(result, seed)`` for each, and what it returns is written as *write* says: ``"parquet"``, ``"jsonl"``,
    ``"files"``, ``kafka://BROKER:9092/TOPIC`` or a function of results and number. *options* are the other keys of the
    table ``[stream]``, such as ``batch=4096, workers={"count": 16}, postprocess_workers={"count": 4}``. Functions have
    to be in modules, or named, as ``"flow:prepare"``.

    Raises:
        InputError: neither or both of *train* and *predict*, a generator function as *train*, *prepare* or
            *postprocess*, one of the latter or *write* without *predict*, or a function that workers cannot import.
    """
    consumer = _consumer(train, predict)
    for field, value in (("postprocess", postprocess), ("write", write)):
        if value is not None and predict is None:
            remedy = "is for predictions: give the function that yields results as predict=, or remove it"
            raise input_error(field, _name(field, value), remedy)
    for field, stage in (("prepare", prepare), ("postprocess", postprocess)):
        if stage is not None and _yields(stage):
            raise input_error(field, _name(field, stage), "yields: workers need one value for each batch, so return it")
    functions = {"source": source, "prepare": prepare, "postprocess": postprocess, "write": write}
    values = {key: _name(key, value) for key, value in functions.items() if value is not None}
    unknown = sorted(set(options) - set(Stream.model_fields))
    if unknown:
        raise input_error("pipeline", ", ".join(unknown), f"unknown options; use {', '.join(Stream.model_fields)}")
    if predict:
        values = {"last_batch": KEEP, **values}  # every row once
    mode = TRAIN if train else PREDICT
    name = _name(mode, consumer)
    files = [_file(each) for each in (source, prepare, postprocess, write, consumer)]
    shipped = with_imports(path for path in files if path)
    return Pipeline({**values, **options}, mode, name, tuple(map(str, shipped)))


def _consumer(train: Function | str | None, predict: Function | str | None) -> Function | str:
    """The function that takes the batches: that of the two which is given."""
    consumer = train or predict
    if consumer is None or (train and predict):
        raise input_error("train", None, "give exactly one of train and predict")
    if train and _yields(train):
        name = _name("train", train)
        remedy = f"yields results, so training would compute nothing: give it as predict={name.partition(':')[2]}"
        raise input_error("train", name, remedy)
    if isinstance(consumer, str) and not FUNCTION.fullmatch(consumer):
        field = TRAIN if train else PREDICT
        raise input_error(field, consumer, f"write module:function, such as flow:{field}")
    return consumer


def _yields(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _name(field: str, value: str | Path | DataSet | Function) -> str:
    """A function as ``module:function``, which workers can import; texts and paths as they are."""
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, DataSet):
        return value.path
    name = getattr(value, "__qualname__", "")
    module = getattr(value, "__module__", "")
    if not name.isidentifier() or module == "__main__" or not module:
        remedy = "workers import functions by name: define it at the top level of a module, such as flow.py"
        raise input_error(field, f"{module}.{name}" if name else repr(value), remedy)
    return f"{module}:{name}"


def _file(function: Any) -> Path | None:
    """The file or package of a function's module, to ship; None where it is installed, as are those of an image.

    That of a name, module:function, is looked for in the current folder.
    """
    if isinstance(function, str) and FUNCTION.fullmatch(function):
        top = Path.cwd() / function.partition(":")[0].partition(".")[0]
        return next((each for each in (top.with_suffix(".py"), top) if exists(each)), None)
    return shipped_file(function.__module__) if callable(function) else None
