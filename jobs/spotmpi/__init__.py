"""Cheap distributed training, from a laptop to hundreds of spot GPUs: what the commands do, as functions.

    import spotmpi

    state = spotmpi.run("job.toml", on="lab")

A name is imported when it is first used. This file is also part of what pods get: Python 3.8, standard library.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's own costs an import; type checkers know the name
if TYPE_CHECKING:
    from typing import Any

    from spotmpi.api.images import build_image, push_image
    from spotmpi.api.pipelines import Pipeline, pipeline
    from spotmpi.api.pools import pool, resize
    from spotmpi.api.runs import (
        clean,
        drill,
        init,
        list_runs,
        logs,
        plan_resume,
        plan_run,
        pull,
        resume,
        run,
        shell_command,
        status,
        stop,
    )
    from spotmpi.api.studies import bench, compare, make_report, plan_bench, predict
    from spotmpi.backends.targets import Target
    from spotmpi.core.errors import InputError, SpotmpiError
    from spotmpi.core.events import Event
    from spotmpi.environments.cost import run_cost
    from spotmpi.pools.errors import PoolError, PoolLost
    from spotmpi.pools.pool import Pool
    from spotmpi.programs.pool.call import CallAborted
    from spotmpi.runs.reader import RunState
    from spotmpi.spec.job import JobSpec
    from spotmpi.spec.source import read_spec
    from spotmpi.streams.errors import SourceError, StreamError, StreamLost
    from spotmpi.streams.order import FunctionSource
    from spotmpi.streams.stream import Stream, stream
    from spotmpi.study.study import StudyOptions

__all__ = [
    "CallAborted",
    "Event",
    "FunctionSource",
    "InputError",
    "JobSpec",
    "Pipeline",
    "Pool",
    "PoolError",
    "PoolLost",
    "RunState",
    "SourceError",
    "SpotmpiError",
    "Stream",
    "StreamError",
    "StreamLost",
    "StudyOptions",
    "Target",
    "bench",
    "build_image",
    "clean",
    "compare",
    "drill",
    "init",
    "list_runs",
    "logs",
    "make_report",
    "pipeline",
    "plan_bench",
    "plan_resume",
    "plan_run",
    "pool",
    "predict",
    "pull",
    "push_image",
    "read_spec",
    "resize",
    "resume",
    "run",
    "run_cost",
    "shell_command",
    "status",
    "stop",
    "stream",
]

_MODULES = (
    ("api.images", "build_image push_image"),
    ("api.pipelines", "Pipeline pipeline"),
    ("api.pools", "pool resize"),
    ("api.runs", "clean drill init list_runs logs plan_resume plan_run pull resume run shell_command status stop"),
    ("api.studies", "bench compare make_report plan_bench predict"),
    ("backends.targets", "Target"),
    ("core.errors", "InputError SpotmpiError"),
    ("core.events", "Event"),
    ("environments.cost", "run_cost"),
    ("pools.errors", "PoolError PoolLost"),
    ("pools.pool", "Pool"),
    ("programs.pool.call", "CallAborted"),
    ("runs.reader", "RunState"),
    ("spec.job", "JobSpec"),
    ("spec.source", "read_spec"),
    ("streams.errors", "SourceError StreamError StreamLost"),
    ("streams.order", "FunctionSource"),
    ("streams.stream", "Stream stream"),
    ("study.study", "StudyOptions"),
)


def __getattr__(name: str) -> "Any":
    for module, names in _MODULES:
        if name in names.split():
            import os
            from importlib import import_module

            if name == "pool" and "SPOTMPI_POOL" in os.environ:
                module = "pools.joined"  # inside of a pool, that one

            return globals().setdefault(name, getattr(import_module(f"spotmpi.{module}"), name))
    raise AttributeError(f"module 'spotmpi' has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted([*globals(), *__all__])
