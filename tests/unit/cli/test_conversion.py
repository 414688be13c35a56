"""Values of options are converted as typer converts them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer._coercion import build_runtime_param, resolve_type_descriptor
from typer.exceptions import TyperException
from typer.models import OptionInfo

from spotmpi.cli import conversion

PARAM: Any = SimpleNamespace(multiple=False, nargs=1)
TEXTS = ["", "7", "-7", "007", " 7", "7.0", "1_0", "1e3", ".5", "-0.25", "nan", "9" * 30, "many", "\u0667", "."]


def converted(parameter: Any, value: Any) -> Any:
    """What a conversion returns, with its type, or its message."""
    try:
        result = parameter.coerce(value, PARAM, None)
    except TyperException as error:
        return error.message
    return type(result), repr(result)


@pytest.mark.parametrize("kind", [str, int, float, Path, bool])
@pytest.mark.parametrize("text", [*TEXTS, "a/b", "no such file", "x" * 300, None])
def test_a_text_is_converted_as_by_typer(kind: Any, text: str | None) -> None:
    descriptor = resolve_type_descriptor(kind, OptionInfo())

    plain, theirs = conversion.PlainConversion(descriptor), build_runtime_param(descriptor)

    assert converted(plain, text) == converted(theirs, text)


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("bound", [{"min": 0}, {"max": 0}])
@pytest.mark.parametrize("text", ["1", "-1"])
def test_bounds_are_checked_by_typer(kind: Any, bound: dict[str, int], text: str) -> None:
    descriptor = resolve_type_descriptor(kind, OptionInfo(**bound))  # type: ignore[arg-type]

    plain, theirs = conversion.PlainConversion(descriptor), build_runtime_param(descriptor)

    assert converted(plain, text) == converted(theirs, text)


@pytest.mark.parametrize("demand", ["exists", "writable", "resolve_path"])
@pytest.mark.parametrize("text", ["no such file", "."])
def test_demands_on_a_path_are_checked_by_typer(demand: str, text: str) -> None:
    descriptor = resolve_type_descriptor(Path, OptionInfo(**{demand: True}))  # type: ignore[arg-type]

    plain, theirs = conversion.PlainConversion(descriptor), build_runtime_param(descriptor)

    assert converted(plain, text) == converted(theirs, text)


@pytest.mark.parametrize("default", [3, 2.5, "x", Path("x")], ids=repr)
def test_a_default_stays_as_it_is(default: Any) -> None:
    descriptor = resolve_type_descriptor(type(default), OptionInfo())

    assert converted(conversion.PlainConversion(descriptor), default) == (type(default), repr(default))


def test_repeated_options_become_a_list() -> None:
    descriptor = resolve_type_descriptor(list[str], OptionInfo())
    repeated: Any = SimpleNamespace(multiple=True, nargs=1)

    assert conversion.PlainConversion(descriptor).coerce(("a=1", "b"), repeated, None) == ["a=1", "b"]
    assert conversion.PlainConversion(descriptor).coerce(None, repeated, None) == ()
