"""docs/reference.md: its tables of keys are those of the models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from spotmpi.agent import record
from spotmpi.aws.billing import Bill, Lifetime, MachineBill, RunShare
from spotmpi.aws.instances import Instance
from spotmpi.core import names
from spotmpi.environments.cost import Cost
from spotmpi.runs import reader
from spotmpi.spec.job import JobSpec

PAGE = names.PROJECT / "docs" / "reference.md"
TYPES = {Any: "value", str: "string", int: "integer", float: "number", bool: "boolean"}


def _type(annotation: Any, text: str) -> str:
    if "<function duration" in text:
        return "duration"
    if "<function number_of_cpus" in text:
        return "number of CPUs"
    if "<function memory_interval" in text:
        return "iterations or duration"
    if "_deadline" in text:
        return "duration or time"
    if "_driver_limit" in text:
        return 'duration or `"none"`'
    (kind, *_) = [each for each in get_args(annotation) if each is not NoneType] or [annotation]
    if get_origin(annotation) is Literal:
        return ", ".join(f'`"{value}"`' for value in get_args(annotation))
    if get_origin(annotation) in (list, dict):
        inner = getattr(get_args(annotation)[-1], "__origin__", get_args(annotation)[-1])  # of an Annotated
        name = "list" if get_origin(annotation) is list else "table"
        return f"{name} of {TYPES.get(inner, 'table')}s"
    if kind is not annotation:
        return _type(kind, "")
    return TYPES.get(annotation, "string or table")


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = next((each for each in kinds if _is_table(each)), None)
        if inner and get_origin(field.annotation) is not list:
            yield from _rows(inner, f"{prefix}{name}.")
        else:
            yield f"| `{prefix}{name}` | {_type_of(field)} | {_default(model, name)} | {field.description} |"


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ != "Data"


def _type_of(field: FieldInfo) -> str:
    return _type(field.annotation, repr((field.annotation, field.metadata)))


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.default is PydanticUndefined:
        return "(set it)"
    value = model.model_construct(**{name: field.default}).model_dump(mode="json", include={name})[name]
    return f"`{json.dumps(value)}`" if value not in (None, "", [], {}) else ""


def test_the_table_of_spec_keys_is_up_to_date(request: pytest.FixtureRequest) -> None:
    table = "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *_rows(JobSpec, "")])
    assert "None |" not in table  # every key has a description
    page = PAGE.read_text()
    written = re.sub(r"(?s)(?<=<!-- keys -->\n).*?(?=<!-- end keys -->)", lambda _: f"{table}\n", page)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(written)

    assert page == written or request.config.getoption("--update-golden"), "run pytest with --update-golden"


def test_every_public_name_is_in_the_table_of_python() -> None:
    import spotmpi

    table = PAGE.read_text().partition("## Python\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:spotmpi\.)?(\w+)", table))
    assert {*spotmpi.__all__, "checkpoint"} - named == set()
    assert named - {*spotmpi.__all__, "checkpoint"} == {"import", "on", "overrides"}


def test_every_event_state_and_value_of_a_run_is_on_the_page() -> None:
    text = PAGE.read_text().partition("## States and events\n")[2].partition("\n## ")[0]
    states, _, events = text.partition("| --- |")
    constants = {value for name, value in vars(record).items() if name.isupper() and isinstance(value, str)}
    kinds = {value for value in constants if value.isalpha()} - {record.MISSING, record.SUBMISSION}

    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]*) \|", events, re.MULTILINE)))) == kinds
    others = {record.LOST, *record.TERMINAL, reader.RUNNING, reader.ELSEWHERE, reader.UNKNOWN}
    assert others | {each.name for each in fields(reader.RunState)} <= set(re.findall(r"`(\w+)`", states))


def test_every_key_of_costs_and_of_nodes_is_on_the_page() -> None:
    text = PAGE.read_text().partition("## JSON of costs and nodes\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", text, re.MULTILINE))
    kinds = {"the cost": Cost, "`bill`": Bill, "each of `machines`": MachineBill, "`lifetime`": Lifetime}
    for what, kind in {**kinds, "each of `runs`": RunShare}.items():
        keys = re.findall(r"`(\w+)`", re.sub(r" \([^)]*\)", "", rows[what]))
        added = ["dollars", "by"] if kind is Cost else []
        assert keys == [*(each.name for each in fields(kind)), *added], what
    nodes = text.partition("`nodes`, which")[2]
    assert set(re.findall(r"`(\w+)`", nodes)) - {"none"} == {each.name for each in fields(Instance)}
