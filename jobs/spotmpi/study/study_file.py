"""A study: a TOML file with a base spec and factors, read as the design of a sweep."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from spotmpi.core.errors import InputError, Problem, input_error
from spotmpi.core.price import Price
from spotmpi.forecast import published
from spotmpi.spec import job, variants
from spotmpi.spec.job import Count, Duration, JobSpec
from spotmpi.spec.kubernetes import Part
from spotmpi.spec.variants import BASE, Variant
from spotmpi.study import contradictions, factors
from spotmpi.study.budget import Budget
from spotmpi.study.design import REPEATS, RETRIES, SEED, Design, Factors
from spotmpi.study.factors import NODES, Level, Levels

_NOTHING = Factors()

_Table = dict[str, list[str]]  # level -> settings, for factors of the user's own


class Limits(Part):
    """When a study is cut off, and what a trial is expected to take before one was measured."""

    time: Duration | None = None
    money: float | None = Field(None, gt=0)
    trial: Duration | None = None


class Cost(Part):
    """Dollars per node and hour, and where and when that was so."""

    node_hour: float = Field(gt=0)
    told: str = Field(min_length=1)


class StudyFile(Part):
    """A study as its file says it; ``spec`` is a path from where the file is, or the spec itself."""

    spec: str | dict[str, Any]
    factors: dict[str, list[Level] | _Table] = Field(min_length=1)
    combinations: list[dict[str, Level | list[Level]]] = []
    repeats: Count = REPEATS
    seed: int = SEED
    retries: int = Field(RETRIES, ge=0)
    silent: bool = False
    drift: bool = False
    probe: bool = False
    compare: str | None = None
    limits: Limits = Limits()
    price: Cost | None = None


def is_study(values: Mapping[str, Any]) -> bool:
    """Whether the values of a TOML file are a study's and not a job spec's."""
    return "factors" in values or "combinations" in values


def load(path: Path, overrides: Iterable[str] = (), given: Factors = _NOTHING) -> Design:
    """The design of the study in *path*; *overrides* change its base spec, *given* its repeats, seed and retries.

    Raises:
        InputError: everything that is wrong with the file, its factors, or the spec.
    """
    for option, value in (("--nodes", given.nodes), ("--variant", given.variants)):
        if value:
            raise input_error(option, value, f"{path.name} is a study and says itself what it varies; leave it out")
    values = {**job.read_toml(path), **given.counts}
    told = values.get("spec")
    if isinstance(told, str):
        base = job.load(path.parent / told, overrides)
    elif isinstance(told, dict):
        base = job.from_values(job.resolved(told, path.parent), overrides)
    else:
        raise input_error("spec", told, "name the job spec that the study varies, or give it as a table")
    return design_of({**values, "spec": base.canonical()})


def design_of(values: Mapping[str, Any]) -> Design:
    """The design that a study's *values*, with its spec in them, describe; InputError with every problem."""
    try:
        file = StudyFile.model_validate(dict(values))
    except ValidationError as error:
        raise InputError([job.problem(dict(detail), StudyFile) for detail in error.errors()]) from None
    assert isinstance(file.spec, dict)
    base = job.from_values(file.spec).model_copy(update={"nodes": 1})
    found, problems = _cells(file, base)
    problems += _of_limits(file, base)
    if problems:
        raise InputError(list({str(problem): problem for problem in problems}.values()))
    return Design(
        base,
        tuple({variant.name: variant for variant, _ in found}.values()),
        tuple((variant.name, nodes) for variant, nodes in found),
        file.repeats,
        file.seed,
        file.retries,
        {"study": file.model_dump(mode="json", exclude_defaults=True)},
        file.silent,
        file.drift,
        file.probe,
        _budget(file),
        file.compare,
    )


def to_toml(design: Design, spec: str) -> str:
    """The study file of *design*, whose spec lies beside it under the name *spec*."""
    return tomli_w.dumps({**design.source["study"], "spec": spec})


def _budget(file: StudyFile) -> Budget:
    price = Price(file.price.node_hour, file.price.told) if file.price else None
    return Budget(file.limits.time, file.limits.money, file.limits.trial, price)


def _of_limits(file: StudyFile, base: JobSpec) -> list[Problem]:
    found = []
    limited = file.limits.time is not None or file.limits.money is not None
    if limited and file.limits.trial is None:
        found.append(Problem("limits.trial", None, 'say how long a trial should take, such as "2m": limits need it'))
    if file.silent and base.program is None:
        found.append(Problem("silent", True, "only our programs can leave out the exchange of gradients"))
    if file.probe and base.image is None:
        found.append(Problem("probe", True, "the micro-benchmarks need one of the images: name it in the spec"))
    if file.compare is not None and file.compare not in published.tables():
        found.append(Problem("compare", file.compare, f"published tables are: {', '.join(published.tables())}"))
    return found


def _cells(file: StudyFile, base: JobSpec) -> tuple[list[tuple[Variant, int]], list[Problem]]:
    problems = _of_factors(file)
    if problems:
        return [], problems
    every = [levels for listed in file.combinations or [{}] for levels in _product(file, listed)]
    varied = [name for name in every[0] if name != NODES and len({str(levels.get(name)) for levels in every}) > 1]
    found: dict[tuple[str, int], tuple[Variant, int]] = {}
    for levels in every:
        try:
            variant, nodes = _variant(file, base, levels, varied)
        except InputError as error:
            problems += error.problems
            continue
        problems += contradictions.problems(levels, base, variant.spec, nodes)
        found[variant.name, nodes] = (variant, nodes)
    return list(found.values()), problems


def _product(file: StudyFile, listed: Mapping[str, Level | list[Level]]) -> list[dict[str, Level]]:
    """The combinations of levels that a listed one stands for; what it does not name is taken from the factors."""
    choices: dict[str, list[Level]] = {NODES: [1]}
    for name, levels in file.factors.items():
        choices[name] = list(levels)
    for name, given in listed.items():
        choices[name] = given if isinstance(given, list) else [given]
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def _of_factors(file: StudyFile) -> list[Problem]:
    found: list[Problem] = []
    for name, levels in file.factors.items():
        field = f"factors.{name}"
        if not levels or len(set(map(str, levels))) < len(levels):
            found.append(Problem(field, levels, "give at least one level, and each once"))
        elif isinstance(levels, dict):
            found += (
                [Problem(field, name, "has levels of its own: give a list")] if name in (NODES, *factors.KNOWN) else []
            )
        else:
            found += _of_levels(field, name, levels)
    for at, listed in enumerate(file.combinations):
        for name, given in listed.items():
            found += _of_combination(
                file, f"combinations.{at}.{name}", name, given if isinstance(given, list) else [given]
            )
    return found


def _of_combination(file: StudyFile, field: str, name: str, given: list[Level]) -> list[Problem]:
    table = file.factors.get(name)
    if not isinstance(table, dict):
        return _of_levels(field, name, given)
    return [Problem(field, level, f"levels are: {', '.join(table)}") for level in given if level not in table]


def _of_levels(field: str, name: str, levels: list[Level]) -> list[Problem]:
    if name == NODES:
        wrong_ones = [level for level in levels if type(level) is not int or level < 1]
        return [Problem(field, level, "give counts from 1") for level in wrong_ones]
    if name not in factors.KNOWN:
        known = ", ".join((NODES, *factors.KNOWN))
        remedy = f"not known: {known}; for another give a table of levels, each with its settings"
        return [Problem(field, levels, remedy)]
    factor = factors.KNOWN[name]
    words = " or ".join(kind.__name__ for kind in factor.kinds)
    found = [Problem(field, level, f"give {words}") for level in levels if type(level) not in factor.kinds]
    if not found:
        low = [
            level
            for level in levels
            if isinstance(level, int | float) and not isinstance(level, bool) and level <= factor.above
        ]
        found = [Problem(field, level, f"give numbers above {factor.above}") for level in low]
    unknown = [level for level in levels if not found and factor.words and level not in factor.words]
    return found + [Problem(field, level, f"levels are: {', '.join(map(str, factor.words))}") for level in unknown]


def _variant(file: StudyFile, base: JobSpec, levels: Levels, varied: list[str]) -> tuple[Variant, int]:
    spec, settings = base, []
    for name in (*factors.KNOWN, *(other for other in levels if other not in factors.KNOWN)):
        table = file.factors.get(name)
        if name in factors.KNOWN and name in levels:
            before, spec = spec, factors.KNOWN[name].changed(spec, levels[name])
            settings += _difference(before, spec)
        elif isinstance(table, dict):
            for setting in table[str(levels[name])]:
                spec = _set(spec, setting, f"factors.{name}.{levels[name]}")
                settings.append(setting)
    shown = tuple((name, factors.named(name, levels[name])) for name in varied)
    title = ", ".join(word for _, word in shown) or BASE
    nodes = levels[NODES]
    assert isinstance(nodes, int)
    return Variant(title, tuple(settings), job.from_values(spec.canonical()), shown), nodes


def _set(spec: JobSpec, setting: str, field: str) -> JobSpec:
    try:
        return variants.changed(spec, setting, setting)
    except InputError as error:
        raise InputError([Problem(field, setting, problem.remedy) for problem in error.problems]) from None


def _difference(before: JobSpec, after: JobSpec) -> list[str]:
    """What changed, as the settings of a variant say it."""
    old, new = _flat(before.canonical()), _flat(after.canonical())
    return [
        f"{key}={' '.join(value) if isinstance(value, list) else value}"
        for key, value in new.items()
        if value != old.get(key)
    ]


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with the keys of tables in them as settings write them: ``kubernetes.instance_type``."""
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    inner = {f"{key}.{name}": value for key, table in tables.items() for name, value in table.items()}
    return {**{key: value for key, value in values.items() if key not in tables}, **inner}
