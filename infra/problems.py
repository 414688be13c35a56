"""Problems of settings: what is wrong, which value, what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pydantic import BaseModel, ValidationError


@dataclass(frozen=True)
class Problem:
    """One thing to change; `key` as it stands in the stack file, `remedy` as an instruction."""

    key: str
    value: Any
    remedy: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}: {self.remedy}"


class SettingsError(pulumi.RunError):
    """Settings that can't be built; `problems` holds all of them. Pulumi shows a RunError without a traceback."""

    def __init__(self, stack: str, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"stack {stack!r} can't be built, {len(self.problems)} to change:\n{lines}")


def from_validation(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The same findings as problems, one each."""
    return [_problem(detail, model) for detail in error.errors(include_url=False)]


def _problem(detail: Any, model: type[BaseModel]) -> Problem:
    place = [str(part) for part in detail["loc"]]
    key = "aws:region" if place == ["region"] else "spotmpi:" + ".".join(place)
    if detail["type"] == "missing":
        return Problem(key, None, f"set it: pulumi config set --path '{'.'.join(place)}' VALUE" if place else "set it")
    if detail["type"] == "extra_forbidden":
        return Problem(key, detail["input"], f"no such setting; known here: {', '.join(_siblings(model, place))}")
    if detail["type"] == "string_pattern_mismatch":
        return Problem(key, detail["input"], f"write it so that it matches {detail['ctx']['pattern']}")
    message = detail["msg"]
    return Problem(key, detail["input"], message[0].lower() + message[1:])


def _siblings(model: type[BaseModel], place: Sequence[str]) -> list[str]:
    """The field names where an unknown key stands, found by walking the model along its path."""
    current: type[BaseModel] = model
    for part in place[:-1]:
        field = current.model_fields.get(part)
        if field is not None:
            current = _model_in(field.annotation) or current
    return sorted(set(current.model_fields) - {"project", "stack", "region"})


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(inner) for inner in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)
