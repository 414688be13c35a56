"""Whether a module lacks a function, without importing it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.backends.kubernetes.backend import KubernetesBackend
from spotmpi.backends.local import machine
from spotmpi.core.errors import Problem
from spotmpi.spec.source import read_spec
from spotmpi.spec.validate import validate
from spotmpi.streams.checks import function_problem

FLOW = """
import numpy
from steps import scale as prepare

try:
    import jax
except ImportError:
    jax = None

class Model:
    def method(self):
        local = 1

async def serve(batches): ...

if numpy:
    def train(batches):
        global state
        state = 1

first, (second, *rest) = write, _ = lambda results, number: None, 1
for each in ():
    pass
with open("x") as (file, _hidden):
    pass
def _private(): ...
"""


@pytest.mark.parametrize(
    "name",
    [
        "numpy",
        "prepare",
        "jax",
        "Model",
        "serve",
        "train",
        "state",
        "first",
        "second",
        "rest",
        "write",
        "each",
        "file",
        "_private",
    ],
)
def test_a_name_that_a_module_binds_anywhere_at_its_top_level_is_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / "flow.py"
    path.write_text(FLOW)
    assert function_problem(f"flow:{name}", [path], None, False) is None


@pytest.mark.parametrize("name", ["absent", "method", "local", "results"])
def test_another_one_is_named_with_those_that_there_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / "flow.py"
    path.write_text(FLOW)
    text = f"the module flow has no {name}, but Model, serve, train; correct the name"
    assert function_problem(f"flow:{name}", [path], None, False) == text


@pytest.mark.parametrize(
    "text",
    [
        "from steps import *",
        "def __getattr__(name): ...",
        "__getattr__ = make()",
        "globals()['absent'] = 1",
        "vars().update(absent=1)",
        "import sys\nsys.modules[__name__].absent = 1",
        "exec('absent = 1')",
        "def ",
        "\0",
    ],
)
def test_nothing_is_said_of_a_module_that_gives_itself_names_or_cannot_be_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "flow.py"
    path.write_text(f"{text}\n")
    assert function_problem("flow:absent", [path], None, True) is None


def test_the_module_is_looked_for_where_the_run_has_it(tmp_path: Path) -> None:
    for folder in ("code/flow", "other/flow"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "code" / "flow" / "__init__.py").write_text("def train(batches): ...")
    (tmp_path / "code" / "flow" / "steps.py").write_text("def prepare(rows, seed): ...")
    code, package = str(tmp_path / "code"), tmp_path / "code" / "flow"
    cases: list[tuple[list[Path], str | None]] = [([], code), ([package], None), ([package], str(tmp_path))]
    for files, place in cases:
        assert function_problem("flow:train", files, place, False) is None
        assert function_problem("flow.steps:prepare", files, place, False) is None
        of_package = function_problem("flow:prepare", files, place, False)
        of_module = function_problem("flow.steps:train", files, place, False)
        assert of_package == "the module flow has no prepare, but train; correct the name"
        assert of_module == "the module flow.steps has no train, but prepare; correct the name"
    assert (
        function_problem("flow:absent", [tmp_path / "other.py"], str(tmp_path / "other"), False) is None
    )  # an image may have it


def test_a_module_of_this_interpreter_counts_where_the_run_has_that(tmp_path: Path) -> None:
    missing = f"{sys.executable} has no module absent_flow, nor have `code` and `files`: name its file in `files`"
    assert function_problem("absent_flow:train", [], str(tmp_path), True) == missing
    assert function_problem("absent_flow:train", [], str(tmp_path), False) is None
    assert function_problem("json:absent", [], None, True) is None
    assert "module tabnanny" not in (function_problem("tabnanny:absent", [], None, True) or "")


PREDICT = ["-m", "spotmpi.streams.rank", "predict", "flow:absent"]


@pytest.mark.parametrize("files", [["flow.py"], []])
def test_functions_that_a_spec_names_are_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    """The run started, and ended when a worker or rank imported the module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text("def predict(batches): ...")
    stream = {
        "source": "flow:rows",
        "length": 1,
        "prepare": "flow:ready",
        "postprocess": "flow:after",
        "write": "flow:put",
    }
    remedy = "the module flow has no {}, but predict; correct the name"
    keys = {"source": "rows", "prepare": "ready", "postprocess": "after", "write": "put"}
    expected = [Problem(f"stream.{key}", f"flow:{name}", remedy.format(name)) for key, name in keys.items()]
    expected.append(Problem("command", "flow:absent", remedy.format("absent")))
    spec = read_spec({"command": [sys.executable, *PREDICT], "launcher": "none", "files": files, "stream": stream})
    assert validate(spec, machine.inspect(spec)) == expected
    on_cluster = KubernetesBackend(tmp_path, None).inspect(spec)
    assert on_cluster.functions == (tuple(expected) if files else ())


def test_a_pipeline_does_not_start_with_functions_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "runs"))
    (tmp_path / "flow.py").write_text("def predict(batches): ...")
    (tmp_path / "a.csv").write_text("x\n1\n")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"predict": "flow:predict", "write": "flow:absent"}, "stream.write"),
        ({"predict": "flow:predict", "prepare": "flow:absent"}, "stream.prepare"),
        ({"predict": "flow:absent"}, "command"),
        ({"train": "flow:absent"}, "command"),
    ]
    for options, field in cases:
        with pytest.raises(
            spotmpi.InputError, match=rf"{field} = 'flow:absent': the module flow has no absent, but predict"
        ):
            spotmpi.pipeline("a.csv", batch=1, **options).run()
    assert not (tmp_path / "runs").exists()
