"""Study files: TOML with a base spec and the factors to vary."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.core.price import Price
from spotmpi.forecast.series import published_tables
from spotmpi.spec import job, variants
from spotmpi.spec.job import Count, Duration, JobSpec
from spotmpi.spec.kubernetes import Part
from spotmpi.spec.variants import BASE, Variant
from spotmpi.study import factors
from spotmpi.study.factors import NODES, Level, Levels
from spotmpi.study.study import REPEATS, RETRIES, SEED, Study, StudyOptions
from spotmpi.study.trial import Budget

_NO_OPTIONS = StudyOptions()

_Table = dict[str, list[str]]  # level -> settings, for factors of the user's own


class Limits(Part):
    """When a study stops, and the expected time of a trial until one was measured."""

    time: Duration | None = None
    money: float | None = Field(None, gt=0)
    trial: Duration | None = None


class NodePrice(Part):
    """Dollars per node and hour, and where and when that price was valid."""

    node_hour: float = Field(gt=0)
    source: str = Field(min_length=1)


class StudyFile(Part):
    """The contents of a study file; ``spec`` is a path relative to the file, or the spec itself."""

    spec: str | dict[str, Any]
    factors: dict[str, list[Level] | _Table] = Field(min_length=1)
    combinations: list[dict[str, Level | list[Level]]] = []
    repeats: Count = REPEATS
    seed: int = SEED
    retries: int = Field(RETRIES, ge=0)
    without_allreduce: bool = False
    drift: bool = False
    probe: bool = False
    compare: str | None = None
    limits: Limits = Limits()
    price: NodePrice | None = None


def is_study(values: Mapping[str, Any]) -> bool:
    """Whether the values of a TOML file are those of a study rather than of a job spec."""
    return "factors" in values or "combinations" in values


def load(path: Path, overrides: Iterable[str] = (), options: StudyOptions = _NO_OPTIONS) -> Study:
    """The study in *path*; *overrides* change its base spec, *options* its repeats, seed and retries.

    Raises:
        InputError: all problems of the file, its factors and the spec.
    """
    for option, value in (("--nodes", options.nodes), ("--variant", options.variants)):
        if value:
            raise input_error(option, value, f"not allowed with a study: {path.name} defines its own factors")
    values = {**job.read_toml(path), **options.overrides}
    spec = values.get("spec")
    if isinstance(spec, str):
        base = job.load(path.parent / spec, overrides)
    elif isinstance(spec, dict):
        base = job.from_values(job.resolve_paths(spec, path.parent), overrides)
    else:
        raise input_error("spec", spec, "give the path of the job spec to vary, or the spec as a table [spec]")
    return from_values({**values, "spec": base.canonical()})


def from_values(values: Mapping[str, Any]) -> Study:
    """The study with these *values*, of which ``spec`` is a table; InputError lists every problem."""
    try:
        file = StudyFile.model_validate(dict(values))
    except ValidationError as error:
        raise InputError([job.problem(dict(detail), StudyFile) for detail in error.errors()]) from None
    assert isinstance(file.spec, dict)
    base = job.from_values(file.spec).model_copy(update={"nodes": 1})
    cells, problems = _cells(file, base)
    problems += _limit_problems(file, base)
    if problems:
        raise InputError(list({str(problem): problem for problem in problems}.values()))
    return Study(
        base,
        tuple({variant.name: variant for variant, _ in cells}.values()),
        tuple((variant.name, nodes) for variant, nodes in cells),
        file.repeats,
        file.seed,
        file.retries,
        {"study": file.model_dump(mode="json", exclude_defaults=True)},
        file.without_allreduce,
        file.drift,
        file.probe,
        _budget(file),
        file.compare,
    )


def to_toml(study: Study, spec: str) -> str:
    """The study file of *study*, with its spec in the file *spec* of the same folder."""
    return tomli_w.dumps({**study.source["study"], "spec": spec})


def _budget(file: StudyFile) -> Budget:
    price = Price(file.price.node_hour, file.price.source) if file.price else None
    return Budget(file.limits.time, file.limits.money, file.limits.trial, price)


def _limit_problems(file: StudyFile, base: JobSpec) -> list[Problem]:
    problems = []
    limited = file.limits.time is not None or file.limits.money is not None
    if limited and file.limits.trial is None:
        problems.append(Problem("limits.trial", None, 'limits need the expected time of a trial, such as "2m"'))
    if file.without_allreduce and base.program is None:
        problems.append(Problem("without_allreduce", True, "only the built-in programs support it"))
    if file.probe and base.image is None:
        problems.append(Problem("probe", True, "the micro-benchmarks need an image: set `image` in the spec"))
    if file.compare is not None and file.compare not in published_tables():
        problems.append(Problem("compare", file.compare, f"published tables: {', '.join(published_tables())}"))
    return problems


def _cells(file: StudyFile, base: JobSpec) -> tuple[list[tuple[Variant, int]], list[Problem]]:
    problems = _factor_problems(file)
    if problems:
        return [], problems
    combined = [levels for combination in file.combinations or [{}] for levels in _product(file, combination)]
    varied = [name for name in combined[0] if name != NODES and len({str(levels.get(name)) for levels in combined}) > 1]
    cells: dict[tuple[str, int], tuple[Variant, int]] = {}
    for levels in combined:
        try:
            variant, nodes = _variant(file, base, levels, varied)
        except InputError as error:
            problems += error.problems
            continue
        problems += factors.level_problems(levels, base, variant.spec, nodes)
        cells[variant.name, nodes] = (variant, nodes)
    return list(cells.values()), problems


def _product(file: StudyFile, combination: Mapping[str, Level | list[Level]]) -> list[dict[str, Level]]:
    """All levels that a listed combination stands for; factors that it omits have all their levels."""
    choices: dict[str, list[Level]] = {NODES: [1]}
    for name, levels in file.factors.items():
        choices[name] = list(levels)
    for name, level in combination.items():
        choices[name] = level if isinstance(level, list) else [level]
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def _factor_problems(file: StudyFile) -> list[Problem]:
    problems: list[Problem] = []
    for name, levels in file.factors.items():
        field = f"factors.{name}"
        if not levels or len(set(map(str, levels))) < len(levels):
            problems.append(Problem(field, levels, "needs at least one level, each only once"))
        elif isinstance(levels, dict):
            problems += (
                [Problem(field, name, "built-in factor: give a list of levels, not a table")]
                if name in (NODES, *factors.KNOWN)
                else []
            )
        else:
            problems += _level_problems(field, name, levels)
    for at, combination in enumerate(file.combinations):
        for name, level in combination.items():
            problems += _combination_problems(
                file, f"combinations.{at}.{name}", name, level if isinstance(level, list) else [level]
            )
    return problems


def _combination_problems(file: StudyFile, field: str, name: str, levels: list[Level]) -> list[Problem]:
    table = file.factors.get(name)
    if not isinstance(table, dict):
        return _level_problems(field, name, levels)
    return [Problem(field, level, f"known levels: {', '.join(table)}") for level in levels if level not in table]


def _level_problems(field: str, name: str, levels: list[Level]) -> list[Problem]:
    if name == NODES:
        invalid = [level for level in levels if type(level) is not int or level < 1]
        return [Problem(field, level, "must be an integer of at least 1") for level in invalid]
    if name not in factors.KNOWN:
        known = ", ".join((NODES, *factors.KNOWN))
        remedy = f"unknown factor; known: {known}; for another one give a table of levels with settings"
        return [Problem(field, levels, remedy)]
    factor = factors.KNOWN[name]
    types = " or ".join(kind.__name__ for kind in factor.types)
    problems = [Problem(field, level, f"must be {types}") for level in levels if type(level) not in factor.types]
    if not problems:
        too_low = [
            level
            for level in levels
            if isinstance(level, int | float) and not isinstance(level, bool) and level <= factor.lower_bound
        ]
        problems = [Problem(field, level, f"must be above {factor.lower_bound}") for level in too_low]
    unknown = [level for level in levels if not problems and factor.level_names and level not in factor.level_names]
    return problems + [
        Problem(field, level, f"known levels: {', '.join(map(str, factor.level_names))}") for level in unknown
    ]


def _variant(file: StudyFile, base: JobSpec, levels: Levels, varied: list[str]) -> tuple[Variant, int]:
    spec, settings = base, []
    for name in (*factors.KNOWN, *(other for other in levels if other not in factors.KNOWN)):
        table = file.factors.get(name)
        if name in factors.KNOWN and name in levels:
            before, spec = spec, factors.KNOWN[name].apply(spec, levels[name])
            settings += _difference(before, spec)
        elif isinstance(table, dict):
            for setting in table[str(levels[name])]:
                spec = _set(spec, setting, f"factors.{name}.{levels[name]}")
                settings.append(setting)
    named_levels = tuple((name, factors.level_name(name, levels[name])) for name in varied)
    title = ", ".join(word for _, word in named_levels) or BASE
    nodes = levels[NODES]
    assert isinstance(nodes, int)
    return Variant(title, tuple(settings), job.from_values(spec.canonical()), named_levels), nodes


def _set(spec: JobSpec, setting: str, field: str) -> JobSpec:
    try:
        return variants.vary(spec, setting, setting)
    except InputError as error:
        raise InputError([Problem(field, setting, problem.remedy) for problem in error.problems]) from None


def _difference(before: JobSpec, after: JobSpec) -> list[str]:
    """The changes as settings of a variant."""
    old, new = _flat(before.canonical()), _flat(after.canonical())
    return [
        f"{key}={' '.join(value) if isinstance(value, list) else value}"
        for key, value in new.items()
        if value != old.get(key)
    ]


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with dotted keys in place of tables, as in settings: ``kubernetes.instance_type``."""
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    inner = {f"{key}.{name}": value for key, table in tables.items() for name, value in table.items()}
    return {**{key: value for key, value in values.items() if key not in tables}, **inner}
