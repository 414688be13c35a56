"""How a spec is read: from a file, from values or a command, with overrides and entries of the store; and written.

An override is ``key.path=value`` or ``key+=value``, as --set and --variant take it. Paths are absolute while a spec is
used, and relative to its file in TOML.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import ValidationError

from spotmpi.agent.files import exists
from spotmpi.core import wording
from spotmpi.core.errors import InputError, Problem, SpotmpiError, input_error
from spotmpi.core.names import expand, is_image_reference
from spotmpi.core.reminders import reminders
from spotmpi.spec.job import JobSpec, data_table
from spotmpi.spec.kubernetes import CONFIG_MAP, SpecModel
from spotmpi.streams.order import FUNCTION

_DATASETS, _MODELS = "datasets:", "models:"  # before the name or key of an entry of the store
_LONGEST = 2**22  # characters of a spec
Source = JobSpec | Path | str | dict[str, Any] | list[str]  # a str is a path, a list is a command
Convert = Callable[[str], str]
FILE_EXISTS, NO_FOLDER = "exists already; remove it or name another file", "its folder does not exist; create it first"
# A setting whose value is an entry, alone, in quotes, or in a table: such as `data=datasets:ratings`.
_ENTRY_SETTING = re.compile(
    r"""((?:^|[:,{]|stream\.|data\.)\s*(data|path|init|source)\s*=\s*)(["']?)((?:datasets|models):[^"',}\s]+)\3"""
)


def read_spec(source: Source, overrides: Iterable[str] = ()) -> JobSpec:
    """The spec in *source* with ``key.path=value`` *overrides* applied; WrongKeys with every problem.

    A command has the launcher ``none`` and is not retried after a failure, unless the overrides set it.
    """
    if isinstance(source, JobSpec):
        source = source.canonical()
    if isinstance(source, list):
        source = {"command": source, "launcher": "none", "limits": {"failures": 0}}
    if isinstance(source, dict):
        return with_entries(from_values(source, overrides))
    return with_entries(load_spec(Path(source), overrides))


def with_entries(spec: JobSpec, convert: Convert = str) -> JobSpec:
    """*spec* with the places of the entries that `data`, `init` and `stream.source` name; these have their keys.

    *convert* gives the place of what is read as a folder, where that is another one.

    Raises:
        InputError: there is no such entry.
    """
    found = {}
    for key, path in spec.inputs.items():
        is_source = key == "stream.source"
        place = _place(path, _MODELS if key == "init" else _DATASETS, is_source)
        found[key] = place if is_source else convert(place)
    return spec.with_inputs({key: place for key, place in found.items() if place != spec.inputs[key]})


def setting_with_places(text: str, convert: Convert) -> str:
    """A setting of a spec, or several with commas between them, with the places of the entries that it names.

    *convert* gives the place of what is read as a folder, where that is another one.

    Raises:
        InputError: there is no such entry.
    """

    def with_place(found: re.Match[str]) -> str:
        is_source = found[2] == "source"
        place = _place(found[4], (_DATASETS, _MODELS), is_source)
        return f'{found[1]}"{place if is_source else convert(place)}"'

    return _ENTRY_SETTING.sub(with_place, text)


def _place(text: str, kinds: str | tuple[str, ...], is_source: bool = False) -> str:
    """The place of the entry that *text* names, if it is of one of these *kinds*; other texts as they are.

    Raises:
        InputError: there is no such entry, or nothing in it to read: for a stream, whose source it is, no row.
    """
    if not text.startswith(kinds):
        return text
    from spotmpi.entries.store import Store  # few specs name an entry

    store = Store()
    found = store.find(text)
    lacking = "files" if not found.files else "rows" if is_source and found.rows == 0 else None
    if lacking:
        command = f"`spotmpi why datasets:{found.name}@{found.key[:12]}`"
        raise input_error("data set", text, f"{found.title} has no {lacking}: {command} shows what it was made from")
    place: str = store.place(found.reference)
    return place


def load_spec(path: Path, overrides: Iterable[str] = ()) -> JobSpec:
    """The spec in the TOML file *path* with *overrides* applied; relative paths are relative to the file.

    Raises:
        WrongKeys: with every unknown key and every value of a wrong type.
        InputError: no such file, malformed TOML, or an override that cannot be applied.
    """
    values = read_toml(path)
    if is_study(values):
        command = f"`spotmpi bench {shlex.quote(str(path))}`"
        raise input_error("spec", str(path), f"is a study, not a job spec: {command} measures it")
    return from_values(resolve_paths(values, base_of(path)), overrides)


def is_study(values: Mapping[str, Any]) -> bool:
    """Whether the values of a TOML file are those of a study rather than of a job spec."""
    return not values.keys().isdisjoint(("spec", "parameters", "configurations"))


def base_of(path: Path) -> Path:
    """The folder to which paths in a spec or study are relative: its own; of a pipe or stdin the current one."""
    return path.parent if path.is_file() and not path.absolute().is_relative_to("/dev") else Path()


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file; InputError with the position if it is malformed. A pipe can be read once."""

    def awaited(seconds: float) -> str:
        return f"{path} is a pipe that nobody has written a whole spec to, for {seconds:.0f} s"

    try:
        is_pipe = path.is_fifo()
        with (
            reminders(awaited, wording.print_message) if is_pipe else contextlib.nullcontext(),
            path.open(encoding="utf-8-sig") as file,  # some editors write a byte order mark
        ):
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:  # such as a data set, a disk, or /dev/zero
            raise input_error("spec", str(path), f"is longer than {_LONGEST:,} characters; name a spec file")
        return tomllib.loads(text)
    except FileNotFoundError:
        command = wording.either("`spotmpi run` takes a command after --", "a command is a list")
        raise input_error("spec", str(path), f"no such file; `spotmpi init` writes one, and {command}") from None
    except IsADirectoryError:
        raise input_error("spec", str(path), "is a folder; name a spec file in it") from None
    except OSError as error:
        remedy = f"cannot be read as a text file: {error.strerror}; check the path and its permissions"
        raise input_error("spec", str(path), remedy) from error
    except UnicodeDecodeError as error:
        raise input_error(
            "spec", str(path), f"cannot be read as a text file: {wording.reason_of(error)}; save it as UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and lists in lists
        wrong = f"is not TOML: {error}"
        if path.suffix == ".py":
            quoted = shlex.quote(str(path))
            run = wording.either(
                f"`spotmpi run -- python3 {quoted}` runs it without", f'["python3", "{path}"] is a command'
            )
            wrong = f"is a script, not a spec: `spotmpi init --script {quoted}` writes one for it, and {run}"
        raise input_error("spec", str(path), wrong) from error


def from_values(values: Mapping[str, Any], overrides: Iterable[str] = ()) -> JobSpec:
    """The spec that *values* and ``key.path=value`` *overrides* describe.

    Raises:
        WrongKeys: with every unknown key and every value of a wrong type.
        InputError: an override that cannot be applied.
    """
    if isinstance(overrides, str):
        raise input_error("overrides", overrides, f"give a list, such as {json.dumps([overrides], ensure_ascii=False)}")
    merged = _order_in_table(values)
    for text in overrides:
        merged = _order_in_table(override(merged, text))
    merged = resolve_paths(reference_moved(merged), Path.cwd())
    try:
        return JobSpec.model_validate(merged)
    except ValidationError as error:
        problems = [problem(dict(detail), JobSpec) for detail in error.errors()]
        wrong = {str(detail["loc"][0]) for detail in error.errors()}
    rest = JobSpec.model_validate({key: value for key, value in merged.items() if key not in wrong})
    try:
        rest = with_entries(rest)
    except InputError as error:
        problems += error.problems
        wrong |= {"data", "init", "stream"}  # which may name an entry: what is said of it is said
    raise WrongKeys(problems, rest, frozenset(_likely_key(key) for key in wrong))


class WrongKeys(InputError):
    """A spec has unknown keys or values of wrong types; ``rest`` is the spec without the top-level keys ``wrong``."""

    def __init__(self, problems: Sequence[Problem], rest: JobSpec, wrong: frozenset[str]) -> None:
        super().__init__(problems)
        self.rest, self.wrong = rest, wrong


def problem(detail: dict[str, Any], model: type[SpecModel]) -> Problem:
    """An error of pydantic for values of *model* as a Problem."""
    field = ".".join(str(part) for part in detail["loc"]) or "spec"
    if detail["type"] == "missing":  # its input is the table that lacks it
        return Problem(field, None, "is required; add it")
    if detail["type"] == "extra_forbidden":
        return Problem(field, detail["input"], f"unknown key; {_near(detail['loc'], model)}")
    is_size = detail["type"] == "string_type" and detail["loc"][-1] in ("memory", "shm")
    if is_size or detail["type"] == "string_pattern_mismatch":  # every pattern of a spec is that of a size
        return Problem(field, detail["input"], 'write a size such as "512Mi" or "4Gi"')
    if detail["type"] == "too_short":
        return Problem(field, detail["input"], "is empty; add at least one")
    if form := _form(detail, model):
        return Problem(field, detail["input"], f"input should be {form}")
    message = detail["msg"].removeprefix("Value error, ")
    return Problem(field, detail["input"], message[0].lower() + message[1:])


def _form(detail: Mapping[str, Any], model: Any) -> str | None:
    """What a value of a wrong type should be, as it would be written for what was meant."""
    kind, value = detail["type"], detail["input"]
    if kind == "model_type":
        return f"a table, with keys such as {', '.join(list(_table_at(detail['loc'], model).model_fields)[:3])}"
    if kind == "dict_type":
        field = getattr(_table_at(detail["loc"][:-1], model), "model_fields", {}).get(detail["loc"][-1])
        return "a table" + (', such as { NAME = "value" }' if field and field.annotation == dict[str, str] else "")
    if kind == "list_type":
        if not isinstance(value, str):
            return "a list"
        words = value.split() if detail["loc"][-1] in ("command", "args") else [value]
        return f"a list, such as {json.dumps(words, ensure_ascii=False)}"
    if kind == "bool_type":
        return "true or false"
    if kind == "string_type" and isinstance(value, int | float | date | time):
        return f"a string: write {json.dumps(json.dumps(value) if isinstance(value, int | float) else str(value))}"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value):
        return f"a number: write {value}, without quotes"
    return None


def _table_at(loc: Iterable[Any], model: Any) -> Any:
    """The model of the table at a place in *model*."""
    for part in loc:
        model = model if isinstance(part, int) else model.model_fields[part].annotation
        model = next(iter(get_args(model)), model)  # of a list or an Optional
    return model


def _near(loc: tuple[Any, ...], model: Any) -> str:
    """The known keys of the table that holds an unknown one, or the likeliest of them."""
    table, key = _table_at(loc[:-1], model).model_fields, str(loc[-1])
    known = list(table)
    tables = {name: getattr(each.annotation, "model_fields", {}) for name, each in table.items()}
    if inside := [f"{name}.{key}" for name, keys in tables.items() if key in keys]:
        return f"did you mean {' or '.join(inside)}?"
    close = _close(key, known)
    return f"did you mean {close}?" if close else f"known keys: {', '.join(known)}"


def _likely_key(key: str) -> str:
    """The key of a spec that *key* stands for: itself, or the one that an unknown key is likely to mean."""
    known = list(JobSpec.model_fields)
    return key if key in known else _close(key, known) or key


def _close(key: str, known: list[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(key, known, n=1)), None)


def override(values: Mapping[str, Any], text: str) -> dict[str, Any]:
    """*values* with one override applied: TOML, or else a plain string; what is appended to args is split by words.

    Raises:
        InputError: *text* is not an override, or does not fit the values.
    """
    path, equals, raw = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise input_error(
            wording.option("set"), text, 'write it as key=value, such as limits.failures=3 or image="pytorch"'
        )
    value = _value(keys, raw, text)
    if keys == ["image"] and is_image_reference(value):
        keys = ["kubernetes", "image"]  # and `image` still says what is in it
    try:
        return _replace(values, keys, value, text)
    except RecursionError:
        remedy = f"no key has {len(keys)} parts; write it as key=value or table.key=value"
        raise input_error(wording.option("set"), text, remedy) from None


def reference_moved(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with a reference in ``image`` as ``kubernetes.image``, unless there is another one."""
    cluster = values.get("kubernetes", {})
    if not is_image_reference(values.get("image")) or not isinstance(cluster, Mapping) or cluster.get("image"):
        return dict(values)
    rest = {key: value for key, value in values.items() if key != "image"}
    return {**rest, "kubernetes": {**cluster, "image": values["image"]}}


def _order_in_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with a list of node groups for ``capacity`` as its ``order``, beside a ``patience`` of its own level."""
    groups = values.get("capacity")
    if not isinstance(groups, list):
        return dict(values)
    patience = {"patience": values["patience"]} if "patience" in values else {}
    return {**{key: values[key] for key in values if key not in patience}, "capacity": {"order": groups, **patience}}


def _value(keys: list[str], raw: str, text: str) -> object:
    """The value of an override, as TOML or as text; ``args+`` is split as in a shell, and variables are text."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, or lists in lists
        parsed = {}
    value = parsed["value"] if parsed.keys() == {"value"} else raw  # a text may have lines like further keys
    if keys == ["args+"] and not isinstance(value, list):
        try:
            return shlex.split(raw)
        except ValueError as error:
            raise input_error(wording.option("set"), text, f"cannot be split into arguments: {error}") from None
    if keys[0] == "env" and len(keys) > 1 and not isinstance(value, str):
        return raw.strip()  # a variable is text, even if it is written like a number
    return value


def _replace(values: Mapping[str, Any], keys: list[str], value: object, text: str) -> dict[str, Any]:
    first, rest = keys[0], keys[1:]
    if not rest:
        return _append(values, first[:-1], value, text) if first.endswith("+") else {**values, first: value}
    table = values.get(first, {})
    if first == "data":
        table = data_table(table)
    if not isinstance(table, Mapping):
        raise input_error(wording.option("set"), text, f"{first} is a single value and has no {'.'.join(rest)}")
    return {**values, first: _replace(table, rest, value, text)}


def _append(values: Mapping[str, Any], key: str, value: object, text: str) -> dict[str, Any]:
    before = values.get(key, [])
    if not isinstance(before, list):
        raise input_error(wording.option("set"), text, f"{key} is not a list: += appends to lists only")
    return {**values, key: [*before, *(value if isinstance(value, list) else [value])]}


def resolve_paths(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """*values* with absolute paths; relative ones are relative to *base*.

    A relative path of data or init without a folder on this machine stays as it is: on a cluster it is relative to the
    run volume. So does the source of a stream without a file on this machine, and a relative checkpoint path, which is
    always relative to the run folder.
    """
    data = data_table(values.get("data"))
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        path = _resolve(base, data["path"])
        values = {**values, "data": {**data, "path": path if _exists(path) else data["path"]}}
    if isinstance(values.get("init"), str) and _exists(path := _resolve(base, values["init"])):
        values = {**values, "init": path}
    checkpoint = values.get("checkpoint")
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("path"), str):
        values = {**values, "checkpoint": {**checkpoint, "path": str(expand(checkpoint["path"]))}}

    def resolve(path: str) -> str:
        return _resolve(base, path)

    def absolute(path: str) -> str:  # a link is shipped under its own name
        return os.path.normpath(base.absolute() / expand(path))

    def source(path: str) -> str:
        pattern = absolute(path)
        return pattern if path.startswith("~") or _has_files(pattern) else path

    return _convert(values, resolve, absolute, source)


def _resolve(base: Path, path: str) -> str:
    """The absolute path; as it is where no file can have it, which validation reports."""
    try:
        return str((base / expand(path)).resolve())
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL character
        return path


def _exists(path: str) -> bool:
    try:
        return exists(Path(path))
    except (OSError, ValueError):  # too long, not permitted, or with a NUL character: validation says so
        return False


def matching(pattern: str) -> Iterator[Path]:
    """The files that an absolute pattern names, also one with two slashes at its beginning."""
    return Path("/").glob(pattern.lstrip("/"))


def _has_files(pattern: str) -> bool:
    try:
        return os.path.lexists(pattern) or any(matching(pattern))
    except (OSError, ValueError):  # too long, a NUL character, or no pattern
        return False


def relative_paths(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """*values* in which the paths of code, files and templates below *base* are relative to it."""

    def relative(path: str) -> str:
        return str(Path(path).relative_to(base)) if Path(path).is_relative_to(base) else path

    return _convert(values, relative, relative, relative)


def _convert(values: dict[str, Any], resolve: Convert, absolute: Convert, source: Convert) -> dict[str, Any]:
    """*values* with `code` and templates converted by *resolve*, `files` by *absolute*, sources by *source*."""
    if isinstance(values.get("code"), str):
        values = {**values, "code": resolve(values["code"])}
    if isinstance(values.get("files"), list):
        values = {**values, "files": [absolute(path) if isinstance(path, str) else path for path in values["files"]]}
    stream = values.get("stream")
    if isinstance(stream, dict) and isinstance(stream.get("source"), str) and is_path(stream["source"]):
        values = {**values, "stream": {**stream, "source": source(stream["source"])}}
    dataset = values.get("dataset")
    if isinstance(dataset, dict) and isinstance(dataset.get("arguments"), dict):
        arguments = {
            name: source(value) if isinstance(value, str) and is_path(value) else value
            for name, value in dataset["arguments"].items()
        }
        values = {**values, "dataset": {**dataset, "arguments": arguments}}
    kubernetes = values.get("kubernetes")
    if isinstance(kubernetes, dict) and isinstance(kubernetes.get("templates"), list):
        templates = [resolve(name) if _is_file(name) else name for name in kubernetes["templates"]]
        values = {**values, "kubernetes": {**kubernetes, "templates": templates}}
    return values


def is_path(source: str) -> bool:
    """Whether the source of a stream is a path, neither a URL nor a function."""
    return "://" not in source and not FUNCTION.fullmatch(source)


def _is_file(template: object) -> bool:
    return isinstance(template, str) and not template.startswith(CONFIG_MAP)


def write_spec(spec: JobSpec, path: Path) -> None:
    """Write *spec* to a new file; paths below the file's folder are relative to it. InputError if *path* exists."""
    values = relative_paths(tomllib.loads(spec.to_toml()), path.parent.absolute())
    write_new_file(path, tomli_w.dumps(values))


def write_new_file(path: Path, text: str) -> None:
    """Write *text* to a new file, whole or not at all; InputError if *path* exists, or its folder does not."""
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                path.unlink()  # else the next try would be refused, since it exists
                raise
    except FileExistsError:
        raise input_error("path", str(path), FILE_EXISTS) from None
    except FileNotFoundError:
        raise input_error("path", str(path), NO_FOLDER) from None
    except OSError as error:
        raise SpotmpiError(f"cannot write {path}: {error.strerror}; name a file in another folder") from error
