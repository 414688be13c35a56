"""Study files: TOML with a base spec, the parameters to vary, and the configurations to measure of their values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem, input_error, written
from spotmpi.core.price import Price
from spotmpi.forecast.published import published_tables
from spotmpi.spec import source
from spotmpi.spec.job import Duration, JobSpec
from spotmpi.spec.kubernetes import SpecModel
from spotmpi.spec.source import Convert, base_of, load_spec, problem, read_toml, resolve_paths, with_entries
from spotmpi.study import parameters as known_parameters
from spotmpi.study.parameters import BASE, NODES, Value, Values, Variant, settings_with_places, vary
from spotmpi.study.study import (
    MOST_REPEATS,
    REPEATS,
    RETRIES,
    SEED,
    Budget,
    Faults,
    Study,
    StudyOptions,
    read_base,
    standby_problems,
)

NO_OPTIONS = StudyOptions()
_VALUE_TYPES = (bool, int, float, str)
_FORMS = 'give a list of values, or a table of values with settings, such as { wide = ["slots=2"] }'

_Choices = dict[str, list[Value]]
_Table = Mapping[str, list[str]]  # value -> settings, for parameters of the user's own
_Tables = Mapping[str, _Table]


class Limits(SpecModel):
    """When a study stops, and the expected time of a trial until one was measured."""

    time: Duration | None = None
    money: float | None = Field(None, gt=0, allow_inf_nan=False)
    trial: Duration | None = None


class NodePrice(SpecModel):
    """Dollars per node and hour, and where and when that price was valid."""

    node_hour: float = Field(gt=0, allow_inf_nan=False)
    source: str = Field(min_length=1)


class StudyFile(SpecModel):
    """The contents of a study file; ``parameters`` and ``configurations`` have checks of their own."""

    spec: dict[str, Any]
    parameters: dict[str, Any] = Field(min_length=1)
    configurations: list[dict[str, Any]] = []
    repeats: int = Field(REPEATS, ge=1, le=MOST_REPEATS)
    seed: int = SEED
    retries: int = Field(RETRIES, ge=0)
    without_allreduce: bool = False
    baseline: bool = False
    micro_benchmarks: bool = False
    compare: str | None = None
    limits: Limits = Limits()
    price: NodePrice | None = None


def load(
    path: Path,
    overrides: Iterable[str] = (),
    options: StudyOptions = NO_OPTIONS,
    convert: Convert = str,
    values: Mapping[str, Any] | None = None,
) -> Study:
    """The study in *path*; *overrides* change its base spec, *options* its repeats, seed and retries.

    *values* are those of the file, where it has been read: a pipe can be read once.

    The base spec and the settings of parameters get the places of the entries that they name; *convert* gives those of
    what is read as a folder, where these are others.

    Raises:
        WrongStudy: with all problems of the file, its parameters, the spec and the options.
        InputError: the file cannot be read.
    """
    values = {**(read_toml(path) if values is None else values), **options.overrides}
    spec, folder = values.get("spec"), base_of(path)
    base, faults = read_base(lambda: with_entries(_base(spec, folder, overrides), convert))
    if "parameters" in values:
        values["parameters"], problems = _with_places(values["parameters"], "parameters", convert)
        faults = faults.with_problems(problems, JobSpec.model_fields if problems else ())
    remedy = f"not allowed with a study: {path.name} defines its own parameters"
    unused = [
        Problem(wording.option(name), value, remedy)
        for name, value in (("nodes", options.nodes), ("variant", options.variants))
        if value
    ]
    return _study(values, base, faults.with_problems(unused))


def _with_places(value: Any, field: str, convert: Convert) -> tuple[Any, list[Problem]]:
    """The parameters with the places of the entries that their settings name, and the problems of settings left out."""
    if isinstance(value, dict):
        found = {key: _with_places(each, f"{field}.{key}", convert) for key, each in value.items()}
        problems = [problem for _, some in found.values() for problem in some]
        return {key: each for key, (each, _) in found.items()}, problems
    return settings_with_places(field, value, convert) if _is_list_of(value, str) else (value, [])


def from_values(values: Mapping[str, Any]) -> Study:
    """The study with these *values*; WrongStudy lists every problem."""
    return _study(values, *read_base(lambda: _base(values.get("spec"), Path())))


def _base(spec: object, folder: Path, overrides: Iterable[str] = ()) -> JobSpec:
    if isinstance(spec, str):
        return load_spec(folder / spec, overrides)
    if isinstance(spec, dict):
        return source.from_values(resolve_paths(spec, folder), overrides)
    raise input_error("spec", spec, "give the path of the job spec to vary, or the spec as a table [spec]")


def _study(values: Mapping[str, Any], base: JobSpec, faults: Faults) -> Study:
    """The study that *values* describe, with the problems found so far raised together."""
    file, faults = _read_file({**values, "spec": base.canonical()}, faults)
    file = file.model_copy(update={"parameters": {NODES: [base.nodes], **file.parameters}})
    base = base.model_copy(update={"nodes": 1})
    measured, faults = _read_configurations(file.parameters, file.configurations, base, faults)
    faults = faults.with_problems(_limit_problems(file, base, faults.wrong))
    price = Price(file.price.node_hour, file.price.source) if file.price else None
    study = Study(
        spec=base,
        variants=tuple({variant.name: variant for variant, _ in measured}.values()),
        configurations=tuple((variant.name, nodes) for variant, nodes in measured),
        repeats=file.repeats,
        seed=file.seed,
        retries=file.retries,
        source={"study": file.model_dump(mode="json", exclude_defaults=True)},
        without_allreduce=file.without_allreduce,
        baseline=file.baseline,
        micro_benchmarks=file.micro_benchmarks,
        budget=Budget(file.limits.time, file.limits.money, file.limits.trial, price),
        compare=file.compare,
    )
    faults.with_problems(standby_problems(study.variants)).refuse(study)
    return study


def _read_file(values: dict[str, Any], faults: Faults) -> tuple[StudyFile, Faults]:
    """The file without its wrong top-level keys; without its parameters, anything in the spec may be different."""
    try:
        return StudyFile.model_validate(values), faults
    except ValidationError as error:
        problems = [problem(dict(detail), StudyFile) for detail in error.errors()]
        wrong = {str(detail["loc"][0]) for detail in error.errors()}
    rest = {key: value for key, value in values.items() if key not in wrong}
    if "parameters" not in rest:
        rest = {**rest, "parameters": {NODES: [1]}, "configurations": []}
    unknown = wrong.intersection(("parameters", "configurations"))
    return StudyFile.model_validate(rest), faults.with_problems(problems, JobSpec.model_fields if unknown else ())


def to_toml(study: Study, spec: str) -> str:
    """The study file of *study*, with its spec in the file *spec* of the same folder."""
    return tomli_w.dumps({**study.source["study"], "spec": spec})


def _limit_problems(file: StudyFile, base: JobSpec, wrong: frozenset[str]) -> list[Problem]:
    """What the settings of the study and *base* do not allow together; keys that are *wrong* count as not set."""
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
    if file.compare is not None and file.compare not in published_tables():
        problems.append(Problem("compare", file.compare, f"published tables: {', '.join(published_tables())}"))
    return problems


def _read_configurations(
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
    flat = wording.dotted(nested)
    if not flat.keys() <= known_parameters.KNOWN.keys():  # a parameter of the user's own
        return dict(values)
    return {**{name: value for name, value in values.items() if name not in nested}, **flat}


def _values(name: str, values: Any) -> tuple[list[Value], list[Problem]]:
    """The valid values of a parameter, none if it cannot be used, and what is wrong with it."""
    field = f"parameters.{name}"
    if isinstance(values, dict) and all(_is_list_of(settings, str) for settings in values.values()):
        if name in known_parameters.BUILT_IN:
            return [], [Problem(field, name, "built-in parameter: give a list of values, not a table")]
    elif not _is_list_of(values, *_VALUE_TYPES):
        return [], [Problem(field, values, _FORMS)]
    elif values and name not in known_parameters.BUILT_IN:
        return [], [Problem(field, values, _unknown())]
    distinct = list({str(value): value for value in values}.values())
    valid, problems = (distinct, []) if isinstance(values, dict) else _valid(field, name, distinct)
    if not distinct or len(distinct) < len(values):
        problems = [Problem(field, values, "needs at least one value, each only once"), *problems]
    return valid, problems


def _changed_keys(name: str, values: object) -> Iterable[str]:
    """The top-level keys of a spec that a parameter without valid values may change."""
    own = isinstance(values, dict) and name not in known_parameters.BUILT_IN
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
        elif name in known_parameters.BUILT_IN:
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
    known = ", ".join(known_parameters.BUILT_IN)
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
    """The variant and number of nodes of each of *combined*, each once, and the faults with those found here."""
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
    """The variant of *base* with *values*, named after those that are *varied*, and its number of nodes."""
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
    return Variant(title, tuple(settings), source.from_values(spec.canonical()), named_values), nodes


def _set(spec: JobSpec, setting: str, field: str) -> JobSpec:
    try:
        return vary(spec, setting, setting)
    except InputError as error:
        raise InputError([Problem(field, setting, problem.remedy) for problem in error.problems]) from None


def _difference(before: JobSpec, after: JobSpec) -> list[str]:
    """The changes as settings of a variant."""
    old, new = wording.dotted(before.canonical()), wording.dotted(after.canonical())
    return [
        f"{key}={' '.join(value) if isinstance(value, list) else value if isinstance(value, str) else written(value)}"
        for key, value in new.items()
        if value != old.get(key)
    ]
