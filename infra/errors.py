"""Errors of settings: the setting, its value and the remedy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_origin

import pulumi
from pydantic import BaseModel, ValidationError

_KEYS = "write its keys below it, each with a value"
# What to write where a value has another type.
_REMEDIES = {
    **{"dict_type": _KEYS, "model_type": _KEYS, "tuple_type": "write a list, such as [a, b]"},
    **{"string_type": "write text, in quotes", "bool_type": "write true or false, without quotes"},
    "int_type": "write a whole number, without quotes",
}
# What to write where text has another form, by the name of the setting.
_FORMS = {
    **dict.fromkeys(("access", "cidr"), "write a range such as 198.51.100.0/24"),
    "access_point_id": "write an id such as fsap-0123456789abcdef0",
    "account": "write the 12 digits of an account, in quotes",
    "addon_versions": "write a version such as v1.20.1-eksbuild.1",
    **dict.fromkeys(("admins", "users"), "write the ARN of a role or user, as arn:aws:iam::123456789012:role/NAME"),
    "ami_release": "write a release such as 1.35.2-20260901",
    **dict.fromkeys(("images", "name", "namespace"), "use up to 16 lower-case letters, digits and -, a letter first"),
    "branch": "write the name of a branch, such as main",
    "email": "write an address such as me@example.com",
    "file_system_id": "write an id such as fs-0123456789abcdef0",
    "boundary": "write the ARN of a policy, such as arn:aws:iam::123456789012:policy/NAME",
    "provider_arn": "write arn:aws:iam::ACCOUNT:oidc-provider/token.actions.githubusercontent.com",
    "region": "write a region such as us-east-1",
    "repository": "write OWNER/NAME, or OWNER@ID/NAME@ID",
    "reservation": "write an id such as cr-0123456789abcdef0",
    "secrets_key_arn": "write the ARN of a key, such as arn:aws:kms:us-east-1:123456789012:key/ID",
    "state_bucket": "write the name of a bucket, such as my-state, without s3://",
    "version": "write a minor version such as 1.35, in quotes",
}


@dataclass(frozen=True)
class Problem:
    """One setting to change: `key` as written in the stack file, `remedy` as an instruction."""

    key: str
    value: Any
    remedy: str

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.key}: {self.remedy}"
        value = str(self.value).lower() if isinstance(self.value, bool) else repr(self.value)
        return f"{self.key} = {value}: {self.remedy}"


class SettingsError(pulumi.RunError):
    """Invalid settings; `problems` holds all problems. Pulumi prints a RunError without a traceback."""

    def __init__(self, stack: str, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"stack {stack} can't be built, settings to change: {len(self.problems)}\n{lines}")


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The errors of a pydantic model as problems."""
    return [_problem(detail, model) for detail in error.errors(include_url=False)]


def _problem(detail: Any, model: type[BaseModel]) -> Problem:
    path = [str(part) for part in detail["loc"]]
    key = "aws:region" if path == ["region"] else "spotmpi:" + ".".join(path)
    if detail["type"] == "missing":
        return Problem(key, None, f"set it: pulumi config set {_option(model, path)} VALUE")
    if detail["type"] == "extra_forbidden":
        return Problem(key, detail["input"], f"unknown setting; use one of: {', '.join(_siblings(model, path))}")
    if detail["type"] == "string_pattern_mismatch":
        return Problem(key, detail["input"], next(_FORMS[part] for part in reversed(path) if part in _FORMS))
    if remedy := _REMEDIES.get(detail["type"]):
        return Problem(key, detail["input"], remedy if detail["input"] is not None else f"{remedy}, or remove it")
    message = detail["msg"]
    return Problem(key, detail["input"], message[0].lower() + message[1:])


def _option(model: type[BaseModel], path: Sequence[str]) -> str:
    """What `pulumi config set` calls a missing setting; of a list, its first item."""
    if list(path) == ["region"]:
        return "aws:region"
    field = model.model_fields[path[0]] if len(path) == 1 else None
    first = "[0]" if field is not None and get_origin(field.annotation) is tuple else ""
    steps = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path)
    return f"--path '{steps.removeprefix('.')}{first}'"


def _siblings(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The valid field names beside an unknown key, by its path in the model."""
    current: type[BaseModel] = model
    for part in path[:-1]:
        field = current.model_fields.get(part)
        if field is not None:
            current = _model_in(field.annotation) or current
    return sorted(set(current.model_fields) - {"project", "stack", "region"})


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(inner) for inner in getattr(annotation, "__args__", ()))
    return next((model for model in models if model is not None), None)
