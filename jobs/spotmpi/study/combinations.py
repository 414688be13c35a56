"""The combinations of levels that a study measures, from its factors and the combinations that it lists. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spotmpi.core.errors import InputError, Problem
from spotmpi.spec import job, variants
from spotmpi.spec.job import JobSpec
from spotmpi.spec.variants import BASE, Variant
from spotmpi.study import factors
from spotmpi.study.factors import NODES, Level, Levels
from spotmpi.study.study import Faults

_LEVEL_TYPES = (bool, int, float, str)
_FORMS = 'give a list of levels, or a table of levels with settings, such as { wide = ["slots=2"] }'

_Choices = dict[str, list[Level]]
_Table = Mapping[str, list[str]]  # level -> settings, for factors of the user's own
_Tables = Mapping[str, _Table]


def read(
    values: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], base: JobSpec, faults: Faults
) -> tuple[list[tuple[Variant, int]], Faults]:
    """The variants of *base* with their node counts, of valid levels only, and *faults* with those of the levels.

    *values* are the factors of the study file, and *listed* its combinations; without any, all levels are combined.
    """
    choices: _Choices = {}
    tables: dict[str, _Table] = {}
    for name, levels in _with_dotted_names(values).items():
        choices[name], problems = _levels(name, levels)
        faults = faults.with_problems(problems, () if choices[name] else _changed_keys(name, levels))
        if choices[name] and isinstance(levels, dict):
            tables[name] = levels
    combined: list[dict[str, Level]] = []
    for at, combination in enumerate(listed or [{}]):
        named, problems = _combination(f"combinations.{at}", _with_dotted_names(combination), choices)
        faults = faults.with_problems(problems)
        if all(named.values()):
            combined += _product({**{name: levels for name, levels in choices.items() if levels}, **named})
    if faults.wrong.issuperset(JobSpec.model_fields):
        return [], faults
    return _cells(combined, tables, base, faults)


def _with_dotted_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with the names of built-in factors that are keys of tables, which TOML reads as tables."""
    tables = {name.partition(".")[0] for name in factors.KNOWN if "." in name}
    nested = {name: value for name, value in values.items() if name in tables and isinstance(value, dict)}
    flat = _flat(nested)
    if not flat.keys() <= factors.KNOWN.keys():  # a factor of the user's own
        return dict(values)
    return {**{name: value for name, value in values.items() if name not in nested}, **flat}


def _levels(name: str, levels: Any) -> tuple[list[Level], list[Problem]]:
    """The valid levels of a factor, none if it cannot be used, and what is wrong with it."""
    field = f"factors.{name}"
    if isinstance(levels, dict) and all(_is_list_of(settings, str) for settings in levels.values()):
        if name in (NODES, *factors.KNOWN):
            return [], [Problem(field, name, "built-in factor: give a list of levels, not a table")]
    elif not _is_list_of(levels, *_LEVEL_TYPES):
        return [], [Problem(field, levels, _FORMS)]
    elif levels and name not in (NODES, *factors.KNOWN):
        return [], [Problem(field, levels, _unknown())]
    distinct = list({str(level): level for level in levels}.values())
    valid, problems = (distinct, []) if isinstance(levels, dict) else _valid(field, name, distinct)
    if not distinct or len(distinct) < len(levels):
        problems = [Problem(field, levels, "needs at least one level, each only once"), *problems]
    return valid, problems


def _changed_keys(name: str, levels: object) -> Iterable[str]:
    """The top-level keys of a spec that a factor without valid levels may change."""
    own = isinstance(levels, dict) and name not in (NODES, *factors.KNOWN)
    return JobSpec.model_fields if own else factors.changed_keys(name)


def _combination(field: str, combination: Mapping[str, Any], choices: _Choices) -> tuple[_Choices, list[Problem]]:
    """The valid levels that a listed combination names, by factor, and what is wrong with the others."""
    named: _Choices = {}
    problems: list[Problem] = []
    for name, value in combination.items():
        levels = value if isinstance(value, list) else [value]
        if not choices.get(name, True):
            continue  # the problem of this factor is reported already
        if not levels or not _is_list_of(levels, *_LEVEL_TYPES):
            named[name], invalid = [], [Problem(f"{field}.{name}", value, "give a level, or a list of levels")]
        elif name in (NODES, *factors.KNOWN):
            named[name], invalid = _valid(f"{field}.{name}", name, levels)
        elif name in choices:
            known = choices[name]
            named[name] = [level for level in levels if level in known]
            remedy = f"known levels: {', '.join(map(str, known))}"
            invalid = [Problem(f"{field}.{name}", level, remedy) for level in levels if level not in known]
        else:
            named[name], invalid = [], [Problem(f"{field}.{name}", levels, _unknown())]
        problems += invalid
    return named, problems


def _is_list_of(value: object, *types: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, types) for each in value)


def _unknown() -> str:
    known = ", ".join((NODES, *factors.KNOWN))
    return f"unknown factor; known: {known}; for another one give a table of levels with settings"


def _valid(field: str, name: str, levels: list[Level]) -> tuple[list[Level], list[Problem]]:
    remedies = [(level, factors.level_remedy(name, level)) for level in levels]
    problems = [Problem(field, level, remedy) for level, remedy in remedies if remedy]
    return [level for level, remedy in remedies if remedy is None], problems


def _product(choices: _Choices) -> list[dict[str, Level]]:
    choices = {NODES: [1], **choices}
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def _cells(
    combined: Sequence[Levels], tables: _Tables, base: JobSpec, faults: Faults
) -> tuple[list[tuple[Variant, int]], Faults]:
    names = dict.fromkeys(name for levels in combined for name in levels if name != NODES)
    varied = [name for name in names if len({str(levels.get(name)) for levels in combined}) > 1]
    cells: dict[tuple[str, int], tuple[Variant, int]] = {}
    known: dict[str, tuple[tuple[str, str], ...]] = {}  # levels by the name of their variant
    wrong = faults.wrong
    for levels in combined:
        try:
            variant, nodes = _variant(tables, base, levels, varied)
        except InputError as error:
            faults = faults.with_problems(error.problems)
            continue
        faults = faults.with_problems(factors.level_problems(levels, base, variant.spec, nodes, wrong))
        if known.setdefault(variant.name, variant.levels) != variant.levels:
            remedy = "two combinations of levels have this name: rename a level"
            faults = faults.with_problems([Problem("factors", variant.name, remedy)])
        cells[variant.name, nodes] = (variant, nodes)
    return list(cells.values()), faults


def _variant(tables: _Tables, base: JobSpec, levels: Levels, varied: Sequence[str]) -> tuple[Variant, int]:
    spec, settings = base, list[str]()
    for name, factor in factors.KNOWN.items():
        if name in levels:
            before, spec = spec, factor.apply(spec, levels[name])
            settings += _difference(before, spec)
    for name, table in tables.items():
        for setting in table[str(levels[name])]:
            spec = _set(spec, setting, f"factors.{name}.{levels[name]}")
            settings.append(setting)
    named_levels = tuple((name, factors.level_name(name, levels[name])) for name in varied if name in levels)
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
    inner = {f"{key}.{name}": value for key, table in tables.items() for name, value in _flat(table).items()}
    return {**{key: value for key, value in values.items() if key not in tables}, **inner}
