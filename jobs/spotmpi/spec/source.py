"""The forms in which functions take a spec: a JobSpec, the path of a TOML file, or its values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spotmpi.spec import job
from spotmpi.spec.job import JobSpec

Source = JobSpec | Path | str | dict[str, Any]  # a spec, a TOML file's path, or the values of one


def read_spec(source: Source, overrides: Iterable[str] = ()) -> JobSpec:
    """The spec in *source* with ``key.path=value`` *overrides* applied; WrongKeys with every problem."""
    if isinstance(source, JobSpec):
        source = source.canonical()
    if isinstance(source, dict):
        return job.from_values(source, overrides)
    return job.load(Path(source), overrides)
