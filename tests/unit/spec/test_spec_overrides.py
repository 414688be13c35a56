"""`--set` over a spec file: what it replaces, appends, and refuses."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from spotmpi.core.errors import InputError
from spotmpi.spec.job import Data
from spotmpi.spec.source import from_values, load_spec, override
from tests.unit.spec.test_spec import problems
from tests.unit.spec.values import TEXTS


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("limits.failures=0", "limits", {"failures": 0}),
        ("limits.run=8h", "limits", {"run": 28800.0}),
        ("name=two words", "name", "two words"),
        ("env.COUNT=3", "env", {"COUNT": "3"}),
        ('env.TEXT="3"', "env", {"TEXT": "3"}),
        ("env.FLAG=true", "env", {"FLAG": "true"}),
        (" nodes = 2", "nodes", 2),
    ],
)
def test_an_override_replaces_one_key(override: str, field: str, value: object) -> None:
    spec = from_values({"nodes": 1, "name": "before"}, [override])

    result = getattr(spec, field)
    if isinstance(result, BaseModel):
        result = result.model_dump(exclude_defaults=True)
        value = from_values({field: value}).model_dump(exclude_defaults=True)[field]
    assert result == value


KEYS = st.lists(st.text("abc-_1", min_size=1, max_size=3), min_size=1, max_size=3)
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS


@given(KEYS, SCALARS | st.lists(SCALARS | st.lists(SCALARS, max_size=2), max_size=3))
def test_any_value_of_toml_replaces_that_of_one_key_and_no_other(keys: list[str], value: object) -> None:
    before: dict[str, Any] = {"other": 1, keys[0]: {"other": 2}}
    written = tomli_w.dumps({"value": value}).removeprefix("value =")
    result = override(before, f"{'.'.join(keys)}={written}")
    expected = functools.reduce(lambda inner, key: {key: inner}, reversed(keys[1:]), value)
    kept = {"other": 2} if len(keys) > 1 else {}
    assert result == {"other": 1, keys[0]: {**kept, **expected} if isinstance(expected, dict) else expected}
    assert before == {"other": 1, keys[0]: {"other": 2}}


@given(TEXTS | st.text("'\"#=[]{}\n 1a", max_size=12))
@example('"a"\nnodes = 5')
@example("9" * 5000)
@example("[" * 5000)
def test_what_is_no_value_of_toml_is_a_text_as_it_stands(text: str) -> None:
    value = override({}, f"name={text}")["name"]
    assert value == text or tomllib.loads(f"name = {text}") == {"name": value}


@given(TEXTS, st.sampled_from(["", "args+=", "env.A=", "limits.run=", "image=", "data.", "kubernetes.secrets+="]))
def test_any_text_is_an_override_or_refused_as_one(text: str, start: str) -> None:
    before = {"nodes": 1, "args": ["x"], "limits": {"failures": 1}, "data": "set"}
    try:
        result = override(before, start + text)
    except InputError as error:
        assert str(error).startswith("overrides = ")
    else:
        assert sum(before[key] != result[key] for key in before) <= 1
        assert len(result) <= len(before) + 1


def test_the_last_override_of_a_key_wins_and_the_others_stay() -> None:
    spec = from_values({"limits": {"failures": 5, "run": "1h"}}, ["limits.failures=1", "limits.failures=2"])

    assert (spec.limits.failures, spec.limits.run) == (2, 3600)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        *((text, "write it as key=value") for text in ("nodes", "", "=3", ".a=3", "limits.=3", "a..b=1")),
        ("nodes.a.b=3", "nodes is a single value and has no a.b"),
        ("nodes+=1", "nodes is not a list: += appends to lists only"),
    ],
)
def test_what_cannot_override_a_spec_is_refused_with_a_remedy(override: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"overrides = {override!r}: {message}")):
        from_values({"nodes": 1}, [override])


def test_an_override_may_add_to_a_list() -> None:
    values = {"args": ["--a"], "kubernetes": {"secrets": ["one"]}}

    spec = from_values(values, ["args+=--b", 'args+=["c d", "e"]', "kubernetes.secrets+=two", "env_passthrough+=TOKEN"])

    assert (spec.args, spec.kubernetes.secrets) == (["--a", "--b", "c d", "e"], ["one", "two"])
    assert spec.env_passthrough == ["TOKEN"]


def test_an_override_that_is_no_list_is_not_taken_by_letters() -> None:
    with pytest.raises(InputError, match=r"""^overrides = 'nodes=2': give a list, such as \["nodes=2"\]$"""):
        from_values({"command": ["x"]}, "nodes=2")


def test_an_override_may_set_all_variables_at_once() -> None:
    assert from_values({"command": ["x"], "env": {"A": "1"}}, ['env={B = "2"}']).env == {"B": "2"}


def test_an_unknown_key_in_an_override_is_refused_like_any_other() -> None:
    assert problems({}, "limit.failures=3") == {"limit": "limit = { failures = 3 }: unknown key; did you mean limits?"}


def test_paths_in_a_file_are_meant_from_the_file_and_overrides_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_folder, working_folder = tmp_path / "there", tmp_path / "here"
    (file_folder / "voc").mkdir(parents=True)
    (working_folder / "voc").mkdir(parents=True)
    monkeypatch.chdir(working_folder)
    (file_folder / "job.toml").write_text('data = "voc"\n[kubernetes]\ntemplates = ["pod.yaml", "configmap:gpus"]\n')

    assert load_spec(file_folder / "job.toml").data == Data(path=str(file_folder / "voc"))
    assert load_spec(file_folder / "job.toml").kubernetes.templates == [str(file_folder / "pod.yaml"), "configmap:gpus"]
    assert load_spec(file_folder / "job.toml", ["data=sets/voc"]).data == Data(path="sets/voc"), (
        "left for the run volume"
    )
    assert load_spec(file_folder / "job.toml", ["data=voc"]).data == Data(path=str(working_folder / "voc"))
    monkeypatch.setenv("HOME", str(file_folder))
    assert from_values({"data": "~/voc"}).data == Data(path=str(file_folder / "voc"))
