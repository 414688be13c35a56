"""Cheap distributed training, from a laptop to hundreds of spot GPUs: what the commands do, as functions.

    import spotmpi

    state = spotmpi.run("job.toml", on="lab")

A name is imported when it is first used. This file is also part of what pods get: Python 3.8, standard library.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's own costs an import; type checkers know the name
if TYPE_CHECKING:
    from typing import Any

    # The public names, and the only list of them: `_modules` reads it. `as` tells type checkers that a name is public.
    from spotmpi.api import models as models
    from spotmpi.api.datasets import DataSet as DataSet
    from spotmpi.api.datasets import build_dataset as build_dataset
    from spotmpi.api.images import build_image as build_image
    from spotmpi.api.images import push_image as push_image
    from spotmpi.api.lineage import trace as trace
    from spotmpi.api.pipelines import Pipeline as Pipeline
    from spotmpi.api.pipelines import pipeline as pipeline
    from spotmpi.api.pools import pool as pool
    from spotmpi.api.pools import resize as resize
    from spotmpi.api.reproduce import reproduce as reproduce
    from spotmpi.api.runs import clean as clean
    from spotmpi.api.runs import drill as drill
    from spotmpi.api.runs import init as init
    from spotmpi.api.runs import list_runs as list_runs
    from spotmpi.api.runs import logs as logs
    from spotmpi.api.runs import plan_resume as plan_resume
    from spotmpi.api.runs import plan_run as plan_run
    from spotmpi.api.runs import pull as pull
    from spotmpi.api.runs import resume as resume
    from spotmpi.api.runs import run as run
    from spotmpi.api.runs import shell_command as shell_command
    from spotmpi.api.runs import status as status
    from spotmpi.api.stopping import stop as stop
    from spotmpi.api.studies import bench as bench
    from spotmpi.api.studies import compare as compare
    from spotmpi.api.studies import make_report as make_report
    from spotmpi.api.studies import plan_bench as plan_bench
    from spotmpi.api.studies import predict as predict
    from spotmpi.backends.targets import Target as Target
    from spotmpi.core.errors import InputError as InputError
    from spotmpi.core.errors import SpotmpiError as SpotmpiError
    from spotmpi.core.events import Event as Event
    from spotmpi.environments.cost import run_cost as run_cost
    from spotmpi.pools.errors import PoolError as PoolError
    from spotmpi.pools.errors import PoolLost as PoolLost
    from spotmpi.pools.pool import Pool as Pool
    from spotmpi.programs.pool.call import CallAborted as CallAborted
    from spotmpi.runs.reader import RunState as RunState
    from spotmpi.spec.job import JobSpec as JobSpec
    from spotmpi.spec.source import read_spec as read_spec
    from spotmpi.streams.dataset import Source as Source
    from spotmpi.streams.dataset import dataset as dataset
    from spotmpi.streams.errors import SourceError as SourceError
    from spotmpi.streams.errors import StreamError as StreamError
    from spotmpi.streams.errors import StreamLost as StreamLost
    from spotmpi.streams.order import FunctionSource as FunctionSource
    from spotmpi.streams.splits import sample as sample
    from spotmpi.streams.splits import split as split
    from spotmpi.streams.stream import Stream as Stream
    from spotmpi.streams.stream import stream as stream
    from spotmpi.study.study import StudyOptions as StudyOptions


def _modules() -> "dict[str, str]":
    """The module of each public name."""
    if not _found:
        import ast
        import pkgutil

        tree = ast.parse(pkgutil.get_data(__name__, "__init__.py") or b"")
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        _found.update((name.name, str(node.module)) for node in imports for name in node.names if name.asname)
    return _found


_found: "dict[str, str]" = {}


def __getattr__(name: str) -> "Any":
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("__") or name not in ("checkpoint", *_modules()):
        raise AttributeError(f"module 'spotmpi' has no attribute {name!r}")
    import os
    from importlib import import_module

    if name == "checkpoint":  # a room, which programs need no import for
        return import_module("spotmpi.checkpoint")
    # Inside of a pool, that one.
    module = "spotmpi.pools.joined" if name == "pool" and "SPOTMPI_POOL" in os.environ else _modules()[name]
    found = import_module(module)
    value = getattr(found, name) if hasattr(found, name) else import_module(f"{module}.{name}")
    return globals().setdefault(name, value)


def __dir__() -> "list[str]":
    return sorted([*globals(), *_modules()])
