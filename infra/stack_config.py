"""The stack configuration as settings, read and validated before any resource is declared."""

import json
import os
from collections.abc import Mapping
from typing import Any

import pulumi
from pydantic import ValidationError

from infra.checks import find_problems
from infra.errors import Problem, SettingsError, problems_of
from infra.settings import PROJECT, Settings

_CONFIG = "PULUMI_CONFIG"


def current() -> Settings:
    """The settings of the stack that Pulumi runs the program for."""
    # `Config` can't list its keys: those that no setting has are in the variable in which programs get all of them.
    config = dict(json.loads(os.environ.get(_CONFIG, "{}")))
    for namespace, keys in {PROJECT: Settings.model_fields, "aws": ("region",)}.items():
        values = pulumi.Config(namespace)
        config |= {f"{namespace}:{key}": value for key in keys if (value := values.get(key)) is not None}
    return read(pulumi.get_stack(), config)


def read(stack: str, config: Mapping[str, str]) -> Settings:
    """The settings in a stack's configuration (`namespace:key` to text); SettingsError has every problem."""
    values: dict[str, Any] = {"stack": stack}
    if region := config.get("aws:region"):
        values["region"] = region
    for key, text in config.items():
        namespace, _, field = key.partition(":")
        if namespace == PROJECT:
            values[field] = _decode(text)
    if values.get("kind") == "account":
        values.setdefault("zones", [f"{values.get('region', '')}a"])  # none of its resources is in a zone
    reserved = sorted(
        {"project", "stack", "region"} & {key.partition(":")[2] for key in config if key.startswith(PROJECT)}
    )
    problems = [
        Problem(f"{PROJECT}:{key}", values[key], "remove it; the region is set by `aws:region`") for key in reserved
    ]
    try:
        settings = Settings(**values | {"stack": stack})
    except ValidationError as error:
        raise SettingsError(stack, problems + problems_of(error, Settings)) from error
    if problems := problems + find_problems(settings):
        raise SettingsError(stack, problems)
    return settings


def _decode(text: str) -> Any:
    """A configuration value: JSON where Pulumi wrote JSON (objects, lists, numbers, booleans), else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # An account number such as 012345678901 or a version such as 1.35 is text, whatever JSON makes of it.
    return value if isinstance(value, dict | list | bool) else text
