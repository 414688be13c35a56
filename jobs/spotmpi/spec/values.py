"""The values of a spec between its file and its model: overrides, paths, and numbers of CPUs.

An override is ``key.path=value`` or ``key+=value``, as --set and --variant take it. Paths are absolute while a spec is
used, and relative to its file in TOML. Pure but for looking for data.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spotmpi.agent.files import exists
from spotmpi.core import hints
from spotmpi.core.errors import input_error
from spotmpi.spec.kubernetes import CONFIG_MAP
from spotmpi.streams.order import FUNCTION

Convert = Callable[[str], str]
_CPUS = 'write a number of CPUs such as 2 or 0.5, or in thousandths, such as "500m"; at least "1m"'


def override(values: Mapping[str, Any], text: str) -> dict[str, Any]:
    """*values* with one override applied: TOML, or else a plain string; what is appended to args is split by words.

    Raises:
        InputError: *text* is no override, or does not fit the values.
    """
    path, equals, raw = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise input_error(
            hints.option("set"), text, 'write it as key=value, such as limits.failures=3 or image="pytorch"'
        )
    value = _value(keys, raw, text)
    if keys == ["image"] and is_reference(value):
        keys = ["kubernetes", "image"]  # and `image` still says what is in it
    return _replace(values, keys, value, text)


def is_reference(image: object) -> bool:
    """Whether an image is a reference that pods pull, not the name of a folder under images/."""
    return isinstance(image, str) and ("/" in image or ":" in image)


def reference_moved(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with a reference in ``image`` as ``kubernetes.image``, unless there is another one."""
    cluster = values.get("kubernetes", {})
    if not is_reference(values.get("image")) or not isinstance(cluster, Mapping) or cluster.get("image"):
        return dict(values)
    rest = {key: value for key, value in values.items() if key != "image"}
    return {**rest, "kubernetes": {**cluster, "image": values["image"]}}


def data_table(value: object) -> object:
    """The table that the value of ``data`` stands for: a path alone is data that is read where it is."""
    return {"path": value} if isinstance(value, str) else value


def _value(keys: list[str], raw: str, text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, or lists in lists
        parsed = {}
    value = parsed["value"] if parsed.keys() == {"value"} else raw  # a text may have lines like further keys
    if keys == ["args+"] and not isinstance(value, list):
        try:
            return shlex.split(raw)
        except ValueError as error:
            raise input_error(hints.option("set"), text, f"cannot be split into arguments: {error}") from None
    if keys[0] == "env" and not isinstance(value, str):
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
        raise input_error(hints.option("set"), text, f"{first} is a single value and has no {'.'.join(rest)}")
    return {**values, first: _replace(table, rest, value, text)}


def _append(values: Mapping[str, Any], key: str, value: object, text: str) -> dict[str, Any]:
    before = values.get(key, [])
    if not isinstance(before, list):
        raise input_error(hints.option("set"), text, f"{key} is not a list: += appends to lists only")
    return {**values, key: [*before, *(value if isinstance(value, list) else [value])]}


def resolve_paths(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """*values* with absolute paths; relative ones are relative to *base*.

    A relative path of data or init without a folder on this machine stays as it is: on a cluster it is relative to the
    run volume.
    So does the source of a stream without a file on this machine, and a relative checkpoint path, which is always
    relative to the run folder.
    """
    data = data_table(values.get("data"))
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        path = _resolve(base, data["path"])
        values = {**values, "data": {**data, "path": path if _exists(path) else data["path"]}}
    if isinstance(values.get("init"), str) and _exists(path := _resolve(base, values["init"])):
        values = {**values, "init": path}
    checkpoint = values.get("checkpoint")
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("path"), str):
        values = {**values, "checkpoint": {**checkpoint, "path": str(_expand(checkpoint["path"]))}}

    def resolve(path: str) -> str:
        return _resolve(base, path)

    def absolute(path: str) -> str:  # a link is shipped under its own name
        return os.path.normpath(base.absolute() / _expand(path))

    def source(path: str) -> str:
        pattern = absolute(path)
        return pattern if path.startswith("~") or _has_files(pattern) else path

    return _convert(values, resolve, absolute, source)


def _expand(path: str) -> Path:
    """The path below the home folder that it names; as it is where no user has that name."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _resolve(base: Path, path: str) -> str:
    """The absolute path; as it is where no file can have it, which validation reports."""
    try:
        return str((base / _expand(path)).resolve())
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL character
        return path


def _exists(path: str) -> bool:
    try:
        return exists(Path(path))
    except (OSError, ValueError):  # too long, not permitted, or with a NUL character: validation says so
        return False


def _has_files(pattern: str) -> bool:
    try:
        return os.path.lexists(pattern) or any(Path("/").glob(pattern[1:]))
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


def number_of_cpus(value: object) -> int | float:
    """The number of CPUs that *value* says, an integer where it is whole; ValueError for anything else."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", value)):
        value = float(match[1]) / (1000 if match[2] else 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(_CPUS)
    if millicores(value) < 1 or abs(value * 1000 - millicores(value)) > 1e-6:  # no finer than Kubernetes has them
        raise ValueError(_CPUS)
    return int(value) if value == int(value) else float(value)


def millicores(cpus: float, count: int = 1) -> int:
    """*count* times so many CPUs, in thousandths of one."""
    return round(cpus * 1000) * count


def quantity(cpus: float, count: int = 1) -> str:
    """*count* times so many CPUs, as Kubernetes writes them: ``"2"`` or ``"500m"``."""
    whole, rest = divmod(millicores(cpus, count), 1000)
    return f"{millicores(cpus, count)}m" if rest else str(whole)


def threads(cpus: float) -> int:
    """The threads of a process that has so many CPUs: at least one, and one more for a part of a CPU."""
    return math.ceil(cpus)
