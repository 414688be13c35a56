"""Writes the generated parts of docs/environments.md: the settings table and the costs of the ready stacks."""

from __future__ import annotations

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

from infra import exports
from infra.instance_types import catalog
from infra.settings import Settings
from infra.stack_config import read
from spotmpi.aws.prices import idle_prices, node_extras
from spotmpi.core.environment import NodeGroup
from spotmpi.environments.stack_file import read_stack

ROOT = Path(__file__).resolve().parent.parent
_PAGE, _STACKS = ROOT / "docs" / "environments.md", ROOT / "stacks"
# AWS list prices for us-east-1, on demand, per hour, as published in 2025 and not confirmed since: the most that a GPU
# node of a ready stack can cost.
_MACHINES: Mapping[str, float] = {
    "c6i.xlarge": 0.17,
    "g4dn.xlarge": 0.526,
    "g5.xlarge": 1.006,
    "g6.xlarge": 0.8048,
    "p3.2xlarge": 3.06,
}
_HIDDEN = ("project", "stack")
_CHANGES = {"fixed": "; fixed once built", "one way": "; once built it can be turned on, not off"}


def settings_table() -> str:
    """A Markdown table of every setting: key, default, meaning."""
    rows = ["| key | default | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{key}` | {default} | {meaning} |" for key, default, meaning in _rows(Settings, "")]
    return "\n".join(rows)


def cost_table() -> str:
    """A Markdown table of the cost of each ready stack when idle, in standard support, and at most per GPU-hour."""
    rows = ["| stack | idle, $/h | of which | at most, $/GPU-hour, all nodes busy |", "| --- | --- | --- | --- |"]
    for path in sorted(_STACKS.glob("Pulumi.*.yaml")):
        stack = path.name.split(".")[1]
        settings = _settings(stack, path)
        if settings.kind == "compute":
            items = idle_prices(read_stack(stack, _STACKS).design)
            of_which = ", ".join(f"{item} {price:.3f}" for item, price in items.items())
            idle = sum(items.values())
            most = ", ".join(f"{group} {price:.2f}" for group, price in ceilings(settings, idle).items())
            rows.append(f"| `{stack}` | {idle:.3f} | {of_which} | {most} |")
    return "\n".join(rows)


def _settings(stack: str, path: Path) -> Settings:
    """The settings of a ready stack, with an example of an address that has access."""
    config = {"spotmpi:access": ["198.51.100.7/32"], **yaml.safe_load(path.read_text(encoding="utf-8"))["config"]}
    return read(stack, {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()})


def ceilings(settings: Settings, idle: float) -> dict[str, float]:
    """US dollars per GPU-hour (node-hour without GPUs) by group: all nodes busy, on demand, *idle* costs included."""
    most = {}
    for group in settings.groups:
        in_zone, *_ = settings.in_zones(group)
        extras = node_extras(NodeGroup.model_validate(exports.node_group(in_zone, settings.network.private)))
        units = group.max * max(1, catalog()[group.type].gpus)
        most[group.name] = (group.max * (_MACHINES[group.type] + extras) + idle) / units
    return most


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


def rewrite(page: str) -> str:
    """The page with its generated parts updated, from the settings model and the files of the ready stacks."""
    return insert(insert(page, "settings", settings_table()), "costs", cost_table())


if __name__ == "__main__":
    _PAGE.write_text(rewrite(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
