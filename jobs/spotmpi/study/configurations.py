"""The configurations that a study measures, from its parameters and the configurations that it lists. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spotmpi.core.errors import InputError, Problem
from spotmpi.spec import job, variants
from spotmpi.spec.job import JobSpec
from spotmpi.spec.variants import BASE, Variant
from spotmpi.study import parameters as known_parameters
from spotmpi.study.parameters import NODES, Value, Values
from spotmpi.study.study import Faults

_VALUE_TYPES = (bool, int, float, str)
_FORMS = 'give a list of values, or a table of values with settings, such as { wide = ["slots=2"] }'

_Choices = dict[str, list[Value]]
_Table = Mapping[str, list[str]]  # value -> settings, for parameters of the user's own
_Tables = Mapping[str, _Table]


def read(
    parameters: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], base: JobSpec, faults: Faults
) -> tuple[list[tuple[Variant, int]], Faults]:
    """The variants of *base* with their node counts, of valid values only, and *faults* with those of the values.

    *parameters* are those of the study file, and *listed* its configurations; without any, all values are combined.
    """
    choices: _Choices = {}
    tables: dict[str, _Table] = {}
    for name, values in _with_dotted_names(parameters).items():
        choices[name], problems = _values(name, values)
        faults = faults.with_problems(problems, () if choices[name] else _changed_keys(name, values))
        if choices[name] and isinstance(values, dict):
            tables[name] = values
    combined: list[dict[str, Value]] = []
    for at, configuration in enumerate(listed or [{}]):
        named, problems = _configuration(f"configurations.{at}", _with_dotted_names(configuration), choices)
        faults = faults.with_problems(problems)
        if all(named.values()):
            combined += _product({**{name: values for name, values in choices.items() if values}, **named})
    if faults.wrong.issuperset(JobSpec.model_fields):
        return [], faults
    return _configurations(combined, tables, base, faults)


def _with_dotted_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with the names of built-in parameters that are keys of tables, which TOML reads as tables."""
    tables = {name.partition(".")[0] for name in known_parameters.KNOWN if "." in name}
    nested = {name: value for name, value in values.items() if name in tables and isinstance(value, dict)}
    flat = _flat(nested)
    if not flat.keys() <= known_parameters.KNOWN.keys():  # a parameter of the user's own
        return dict(values)
    return {**{name: value for name, value in values.items() if name not in nested}, **flat}


def _values(name: str, values: Any) -> tuple[list[Value], list[Problem]]:
    """The valid values of a parameter, none if it cannot be used, and what is wrong with it."""
    field = f"parameters.{name}"
    if isinstance(values, dict) and all(_is_list_of(settings, str) for settings in values.values()):
        if name in (NODES, *known_parameters.KNOWN):
            return [], [Problem(field, name, "built-in parameter: give a list of values, not a table")]
    elif not _is_list_of(values, *_VALUE_TYPES):
        return [], [Problem(field, values, _FORMS)]
    elif values and name not in (NODES, *known_parameters.KNOWN):
        return [], [Problem(field, values, _unknown())]
    distinct = list({str(value): value for value in values}.values())
    valid, problems = (distinct, []) if isinstance(values, dict) else _valid(field, name, distinct)
    if not distinct or len(distinct) < len(values):
        problems = [Problem(field, values, "needs at least one value, each only once"), *problems]
    return valid, problems


def _changed_keys(name: str, values: object) -> Iterable[str]:
    """The top-level keys of a spec that a parameter without valid values may change."""
    own = isinstance(values, dict) and name not in (NODES, *known_parameters.KNOWN)
    return JobSpec.model_fields if own else known_parameters.changed_keys(name)


def _configuration(field: str, configuration: Mapping[str, Any], choices: _Choices) -> tuple[_Choices, list[Problem]]:
    """The valid values that a listed configuration names, by parameter, and what is wrong with the others."""
    named: _Choices = {}
    problems: list[Problem] = []
    for name, choice in configuration.items():
        values = choice if isinstance(choice, list) else [choice]
        if not choices.get(name, True):
            continue  # the problem of this parameter is reported already
        if not values or not _is_list_of(values, *_VALUE_TYPES):
            named[name], invalid = [], [Problem(f"{field}.{name}", choice, "give a value, or a list of values")]
        elif name in (NODES, *known_parameters.KNOWN):
            named[name], invalid = _valid(f"{field}.{name}", name, values)
        elif name in choices:
            known = choices[name]
            named[name] = [value for value in values if value in known]
            remedy = f"known values: {', '.join(map(str, known))}"
            invalid = [Problem(f"{field}.{name}", value, remedy) for value in values if value not in known]
        else:
            named[name], invalid = [], [Problem(f"{field}.{name}", values, _unknown())]
        problems += invalid
    return named, problems


def _is_list_of(value: object, *types: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, types) for each in value)


def _unknown() -> str:
    known = ", ".join((NODES, *known_parameters.KNOWN))
    return f"unknown parameter; known: {known}; for another one give a table of values with settings"


def _valid(field: str, name: str, values: list[Value]) -> tuple[list[Value], list[Problem]]:
    remedies = [(value, known_parameters.value_remedy(name, value)) for value in values]
    problems = [Problem(field, value, remedy) for value, remedy in remedies if remedy]
    return [value for value, remedy in remedies if remedy is None], problems


def _product(choices: _Choices) -> list[dict[str, Value]]:
    choices = {NODES: [1], **choices}
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def _configurations(
    combined: Sequence[Values], tables: _Tables, base: JobSpec, faults: Faults
) -> tuple[list[tuple[Variant, int]], Faults]:
    names = dict.fromkeys(name for values in combined for name in values if name != NODES)
    varied = [name for name in names if len({str(values.get(name)) for values in combined}) > 1]
    configurations: dict[tuple[str, int], tuple[Variant, int]] = {}
    known: dict[str, tuple[tuple[str, str], ...]] = {}  # values by the name of their variant
    wrong = faults.wrong
    for values in combined:
        try:
            variant, nodes = _variant(tables, base, values, varied)
        except InputError as error:
            faults = faults.with_problems(error.problems)
            continue
        faults = faults.with_problems(known_parameters.value_problems(values, base, variant.spec, nodes, wrong))
        if known.setdefault(variant.name, variant.values) != variant.values:
            remedy = "two configurations have this name: rename a value"
            faults = faults.with_problems([Problem("parameters", variant.name, remedy)])
        configurations[variant.name, nodes] = (variant, nodes)
    return list(configurations.values()), faults


def _variant(tables: _Tables, base: JobSpec, values: Values, varied: Sequence[str]) -> tuple[Variant, int]:
    spec, settings = base, list[str]()
    for name, parameter in known_parameters.KNOWN.items():
        if name in values:
            before, spec = spec, parameter.apply(spec, values[name])
            settings += _difference(before, spec)
    for name, table in tables.items():
        for setting in table[str(values[name])]:
            spec = _set(spec, setting, f"parameters.{name}.{values[name]}")
            settings.append(setting)
    named_values = tuple((name, known_parameters.value_name(name, values[name])) for name in varied if name in values)
    title = ", ".join(word for _, word in named_values) or BASE
    nodes = values[NODES]
    assert isinstance(nodes, int)
    return Variant(title, tuple(settings), job.from_values(spec.canonical()), named_values), nodes


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
