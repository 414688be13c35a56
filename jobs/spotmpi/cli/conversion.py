"""The values of options without pydantic: its import takes longer than most commands.

Apart from the table of commands, since this replaces parts of typer and pydantic that they do not document.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.core

_TYPER: Any = typer.core  # it exports neither of the names below
_typer_conversion: Any = getattr(_TYPER, "build_runtime_param", None)
_PATTERNS = {int: r"-?[0-9]{1,18}", float: r"-?[0-9]{1,18}(\.[0-9]{1,18})?"}


def convert_plain_values() -> None:
    """Let typer convert values by `PlainConversion` in this process; a typer without this function stays as it is."""
    if _typer_conversion is not None:
        _TYPER.build_runtime_param = PlainConversion


def skip_plugin_search() -> None:
    """Keep pydantic from reading the metadata of every installed package to find plugins, which takes 12 ms.

    A pydantic that has no such module searches as before.
    """
    loader = ModuleType("pydantic.plugin._loader")
    loader.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules.setdefault(loader.__name__, loader)


class PlainConversion:
    """Converts the values of a parameter that need no check, and leaves the others and all messages to typer."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value that the command's function gets."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        plain = _plain_value(value, self._descriptor.annotation, self._descriptor.parameter_info)
        return plain if plain is not None else _typer_conversion(self._descriptor).coerce(value, param, ctx)


def _plain_value(value: Any, kind: Any, info: Any) -> Any:
    """*value* as a *kind*, or None where that takes a check or a message."""
    if any(getattr(info, name) is not None for name in ("parser", "path_type", "min", "max")):
        return None
    if kind is Path and info.file_okay and info.dir_okay and not (info.exists or info.writable or info.resolve_path):
        return Path(value) if os.access(value, os.R_OK) or not os.access(value, os.F_OK) else None
    if kind == list[str] and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return list(value)
    if kind in (str, int, float) and type(value) is kind:
        return value
    if kind in _PATTERNS and isinstance(value, str) and re.fullmatch(_PATTERNS[kind], value):
        return kind(value)
    return None
