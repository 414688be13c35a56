"""The generated parts of docs/environments.md: the settings table and the costs of the ready stacks."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from infra import costs
from infra.kubernetes_versions import DEFAULT, STANDARD_SUPPORT_ENDS
from infra.settings import Settings
from infra.stack_config import read

_HIDDEN = ("project", "stack")
_CHANGES = {"fixed": "; fixed once built", "one way": "; once built it can be turned on, not off"}


def settings_table() -> str:
    """A Markdown table of every setting: key, default, meaning."""
    rows = ["| key | default | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{key}` | {default} | {meaning} |" for key, default, meaning in _rows(Settings, "")]
    return "\n".join(rows)


def cost_table(stacks: Mapping[str, Settings]) -> str:
    """A Markdown table of the cost of each stack when idle, and at most per GPU-hour.

    On the last day on which the version of new environments is in standard support.
    """
    day = STANDARD_SUPPORT_ENDS[DEFAULT]
    rows = ["| stack | idle, $/h | of which | at most, $/GPU-hour, all nodes busy |", "| --- | --- | --- | --- |"]
    for name, settings in stacks.items():
        items = costs.idle(settings, day)
        of_which = ", ".join(f"{item} {price:.3f}" for item, price in items.items())
        ceiling = ", ".join(f"{group} {price:.2f}" for group, price in costs.gpu_hour_ceiling(settings, day).items())
        rows.append(f"| `{name}` | {sum(items.values()):.3f} | {of_which} | {ceiling} |")
    return "\n".join(rows)


def insert(text: str, part: str, generated: str) -> str:
    """The text with the generated part between its two marks; ValueError without marks."""
    pattern = re.compile(rf"(<!-- {part} -->\n).*?(<!-- end {part} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no <!-- {part} --> ... <!-- end {part} --> in the text")
    return pattern.sub(lambda match: f"{match[1]}{generated}\n{match[2]}", text)


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        if name in _HIDDEN and not prefix:
            continue
        key = f"{prefix}{name}" if prefix or name != "region" else "aws:region"
        inner, is_list = nested_model(field.annotation)
        if inner is None or is_list or NoneType in get_args(field.annotation):
            yield key, _default(field), _meaning(field)
        if inner is not None:
            yield from _rows(inner, f"{key}[]." if is_list else f"{key}.")


def nested_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model of a field, if it has one, and whether the field is a list of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inner in get_args(annotation):
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return inner, NoneType not in get_args(annotation)
    return None, False


def _meaning(field: FieldInfo) -> str:
    """The field's description, with the allowed values of a choice."""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    allowed = f" (one of {', '.join(f'`{choice}`' for choice in choices)})" if choices else ""
    extra = field.json_schema_extra
    change = _CHANGES.get(str(extra.get("change")), "") if isinstance(extra, dict) else ""
    return f"{field.description}{allowed}{change}"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "(set it)"
    if field.default is None:
        return "none"
    if isinstance(field.default, tuple | dict):
        return f"`{', '.join(field.default)}`" if field.default else "none"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def rewrite(page: str, stacks: Path) -> str:
    """The page with its generated parts updated, from the settings model and the stack files in a folder."""
    page = insert(page, "settings", settings_table())
    # The settings of every compute stack, with an example of an address that has access.
    stack_settings = {}
    for path in sorted(stacks.glob("Pulumi.*.yaml")):
        stack = path.name.split(".")[1]
        config = {"spotmpi:access": ["198.51.100.7/32"], **yaml.safe_load(path.read_text(encoding="utf-8"))["config"]}
        text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
        settings = read(stack, text)
        if settings.kind == "compute":
            stack_settings[stack] = settings
    return insert(page, "costs", cost_table(stack_settings))
