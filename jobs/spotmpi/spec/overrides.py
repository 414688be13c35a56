"""Overrides of a spec's values, ``key.path=value`` and ``key+=value``, as --set and --variant take them. Pure."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from typing import Any

from spotmpi.core import hints
from spotmpi.core.errors import input_error


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
