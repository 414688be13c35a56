"""Study files: TOML with a base spec and the parameters to vary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from spotmpi.core import hints
from spotmpi.core.errors import Problem, input_error
from spotmpi.core.price import Price
from spotmpi.forecast.series import published_tables
from spotmpi.spec import job
from spotmpi.spec.job import Duration, JobSpec
from spotmpi.spec.kubernetes import SpecModel
from spotmpi.spec.values import resolve_paths
from spotmpi.spec.workers import Count
from spotmpi.study import configurations
from spotmpi.study.parameters import NODES
from spotmpi.study.study import REPEATS, RETRIES, SEED, Budget, Faults, Study, StudyOptions, read_base

_NO_OPTIONS = StudyOptions()


class Limits(SpecModel):
    """When a study stops, and the expected time of a trial until one was measured."""

    time: Duration | None = None
    money: float | None = Field(None, gt=0)
    trial: Duration | None = None


class NodePrice(SpecModel):
    """Dollars per node and hour, and where and when that price was valid."""

    node_hour: float = Field(gt=0)
    source: str = Field(min_length=1)


class StudyFile(SpecModel):
    """The contents of a study file; `spotmpi.study.configurations` reads ``parameters`` and ``configurations``."""

    spec: dict[str, Any]
    parameters: dict[str, Any] = Field(min_length=1)
    configurations: list[dict[str, Any]] = []
    repeats: Count = REPEATS
    seed: int = SEED
    retries: int = Field(RETRIES, ge=0)
    without_allreduce: bool = False
    baseline: bool = False
    micro_benchmarks: bool = False
    compare: str | None = None
    limits: Limits = Limits()
    price: NodePrice | None = None


def is_study(values: Mapping[str, Any]) -> bool:
    """Whether the values of a TOML file are those of a study rather than of a job spec."""
    return "parameters" in values or "configurations" in values


def load(path: Path, overrides: Iterable[str] = (), options: StudyOptions = _NO_OPTIONS) -> Study:
    """The study in *path*; *overrides* change its base spec, *options* its repeats, seed and retries.

    Raises:
        WrongStudy: with all problems of the file, its parameters, the spec and the options.
        InputError: the file cannot be read.
    """
    values = {**job.read_toml(path), **options.overrides}
    base, faults = read_base(lambda: _base(values.get("spec"), path.parent, overrides))
    remedy = f"not allowed with a study: {path.name} defines its own parameters"
    unused = [
        Problem(hints.option(name), value, remedy)
        for name, value in (("nodes", options.nodes), ("variant", options.variants))
        if value
    ]
    return _study(values, base, faults.with_problems(unused))


def from_values(values: Mapping[str, Any]) -> Study:
    """The study with these *values*; WrongStudy lists every problem."""
    return _study(values, *read_base(lambda: _base(values.get("spec"), Path())))


def _base(spec: object, folder: Path, overrides: Iterable[str] = ()) -> JobSpec:
    if isinstance(spec, str):
        return job.load(folder / spec, overrides)
    if isinstance(spec, dict):
        return job.from_values(resolve_paths(spec, folder), overrides)
    raise input_error("spec", spec, "give the path of the job spec to vary, or the spec as a table [spec]")


def _study(values: Mapping[str, Any], base: JobSpec, faults: Faults) -> Study:
    file, faults = _read_file({**values, "spec": base.canonical()}, faults)
    file = file.model_copy(update={"parameters": {NODES: [base.nodes], **file.parameters}})
    base = base.model_copy(update={"nodes": 1})
    measured, faults = configurations.read(file.parameters, file.configurations, base, faults)
    faults = faults.with_problems(_limit_problems(file, base, faults.wrong))
    study = Study(
        base,
        tuple({variant.name: variant for variant, _ in measured}.values()),
        tuple((variant.name, nodes) for variant, nodes in measured),
        file.repeats,
        file.seed,
        file.retries,
        {"study": file.model_dump(mode="json", exclude_defaults=True)},
        file.without_allreduce,
        file.baseline,
        file.micro_benchmarks,
        _budget(file),
        file.compare,
    )
    faults.refuse(study)
    return study


def _read_file(values: dict[str, Any], faults: Faults) -> tuple[StudyFile, Faults]:
    """The file without its wrong top-level keys; without its parameters, anything in the spec may be different."""
    try:
        return StudyFile.model_validate(values), faults
    except ValidationError as error:
        problems = [job.problem(dict(detail), StudyFile) for detail in error.errors()]
        wrong = {str(detail["loc"][0]) for detail in error.errors()}
    rest = {key: value for key, value in values.items() if key not in wrong}
    if "parameters" not in rest:
        rest = {**rest, "parameters": {NODES: [1]}, "configurations": []}
    unknown = wrong.intersection(("parameters", "configurations"))
    return StudyFile.model_validate(rest), faults.with_problems(problems, JobSpec.model_fields if unknown else ())


def to_toml(study: Study, spec: str) -> str:
    """The study file of *study*, with its spec in the file *spec* of the same folder."""
    return tomli_w.dumps({**study.source["study"], "spec": spec})


def _budget(file: StudyFile) -> Budget:
    price = Price(file.price.node_hour, file.price.source) if file.price else None
    return Budget(file.limits.time, file.limits.money, file.limits.trial, price)


def _limit_problems(file: StudyFile, base: JobSpec, wrong: frozenset[str]) -> list[Problem]:
    problems = []
    limited = file.limits.time is not None or file.limits.money is not None
    if limited and file.limits.trial is None:
        problems.append(Problem("limits.trial", None, 'limits need the expected time of a trial, such as "2m"'))
    if file.without_allreduce and base.program is None and "program" not in wrong:
        problems.append(Problem("without_allreduce", True, "only the built-in programs support it"))
    if file.micro_benchmarks and base.image is None and "image" not in wrong:
        problems.append(
            Problem("micro_benchmarks", True, "the micro-benchmarks need an image: set `image` in the spec")
        )
    if base.standby and "standby" not in wrong:
        problems.append(Problem("standby", base.standby, "the costs of trials are those of their nodes: remove it"))
    if file.compare is not None and file.compare not in published_tables():
        problems.append(Problem("compare", file.compare, f"published tables: {', '.join(published_tables())}"))
    return problems
