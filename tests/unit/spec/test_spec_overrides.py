"""`--set` over a spec file: what it replaces, appends, and refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from spotmpi.core.errors import InputError
from spotmpi.spec.job import Data, from_values, load
from tests.unit.spec.test_spec import problems


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("nodes=4", "nodes", 4),
        ("limits.failures=0", "limits", {"failures": 0}),
        ("limits.run=8h", "limits", {"run": 28800.0}),
        ("name=two words", "name", "two words"),
        ('name="quoted"', "name", "quoted"),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ('args=["--epochs", "3"]', "args", ["--epochs", "3"]),
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

    spec = from_values(values, ["args+=--b", 'args+=["c d", "e"]', "kubernetes.secrets+=two", "forward+=TOKEN"])

    assert (spec.args, spec.kubernetes.secrets) == (["--a", "--b", "c d", "e"], ["one", "two"])
    assert spec.forward == ["TOKEN"]


def test_an_unknown_key_in_an_override_is_refused_like_any_other() -> None:
    assert problems({}, "limit.failures=3") == {"limit": "limit = {'failures': 3}: unknown key; did you mean limits?"}


def test_paths_in_a_file_are_meant_from_the_file_and_overrides_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_folder, working_folder = tmp_path / "there", tmp_path / "here"
    (file_folder / "voc").mkdir(parents=True)
    (working_folder / "voc").mkdir(parents=True)
    monkeypatch.chdir(working_folder)
    (file_folder / "job.toml").write_text('data = "voc"\n[kubernetes]\ntemplates = ["pod.yaml", "configmap:gpus"]\n')

    assert load(file_folder / "job.toml").data == Data(path=str(file_folder / "voc"))
    assert load(file_folder / "job.toml").kubernetes.templates == [str(file_folder / "pod.yaml"), "configmap:gpus"]
    assert load(file_folder / "job.toml", ["data=sets/voc"]).data == Data(path="sets/voc"), "left for the run volume"
    assert load(file_folder / "job.toml", ["data=voc"]).data == Data(path=str(working_folder / "voc"))
    monkeypatch.setenv("HOME", str(file_folder))
    assert from_values({"data": "~/voc"}).data == Data(path=str(file_folder / "voc"))
