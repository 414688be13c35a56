"""`scripts/tools`: what it builds, when it builds again, and what it says when it can't."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tests.tools import REPOSITORY


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with recipes and a cache of its own."""
    loader = SourceFileLoader("tools_script", str(REPOSITORY / "scripts" / "tools"))
    spec = importlib.util.spec_from_loader("tools_script", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tools_script", module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "RECIPES", tmp_path / "tools.d")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tools.d").mkdir()
    return module


def _recipe(tools: ModuleType, name: str, toml: str) -> Path:
    folder = Path(tools.RECIPES) / name
    folder.mkdir()
    (folder / "go.mod").write_text(f"module tools/{name}\n\ngo 1.24\n")
    (folder / "main.go").write_text("package main\n\nfunc main() { println(version) }\n\nvar version string\n")
    (folder / "tool.toml").write_text(toml)
    return folder


def _run(tools: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["tools", *arguments])
    return int(tools.main())


def test_every_recipe_in_the_repository_can_be_read_and_is_locked(tools: ModuleType) -> None:
    folders = [path.parent for path in (REPOSITORY / "scripts" / "tools.d").glob("*/tool.toml")]
    assert {"pulumi", "pulumi-language-python"} <= {folder.name for folder in folders}
    for folder in folders:
        assert tools.read_recipe(folder).programs
        assert (folder / "go.mod").is_file()
        assert (folder / "go.sum").is_file()


def test_an_unknown_tool_is_named_with_those_there_are(
    tools: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _recipe(tools, "hello", 'programs = ["tools/hello"]')
    assert _run(tools, monkeypatch, "helo") == 1
    assert capsys.readouterr().err == "error: no tool 'helo'; choose from: hello\n"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('programs = ["x"]\nldflag = "-s"', "unknown key 'ldflag'"),
        ('ldflags = "-s"', "programs"),
        ('programs = ["x"]\nname = "y"', "unknown key 'name'"),
        ('programs = ["x"]\nfiles = [{ modul = "m" }]', "modul"),
    ],
)
def test_a_wrong_recipe_is_refused(tools: ModuleType, toml: str, message: str) -> None:
    with pytest.raises(tools.ToolError, match=message):
        tools.read_recipe(_recipe(tools, "wrong", toml))


def test_any_change_of_the_recipe_or_of_go_is_another_build(tools: ModuleType) -> None:
    folder = _recipe(tools, "hello", 'programs = ["tools/hello"]')
    recipe = tools.read_recipe(folder)
    first = tools.fingerprint(recipe, "go1.26.6")
    assert tools.fingerprint(recipe, "go1.26.6") == first
    assert tools.fingerprint(recipe, "go1.26.7") != first
    (folder / "go.sum").write_text("")
    assert tools.fingerprint(recipe, "go1.26.6") != first


def test_a_program_of_the_user_is_taken_when_it_is_new_enough(
    tools: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own" / "thing"
    own.parent.mkdir()
    monkeypatch.setenv("PATH", f"{own.parent}:/usr/bin:/bin")
    toml = 'programs = ["x"]\non_path = { program = "thing", at_least = "3.200.0" }'
    recipe = tools.read_recipe(_recipe(tools, "thing", toml))
    for version, folder in (("v3.199.9", None), ("v3.200.0", own.parent), ("v4.0.0-dev", own.parent)):
        own.write_text(f"#!/bin/sh\necho {version}\n")
        own.chmod(0o755)
        assert tools.usable_on_path(recipe) == folder


def test_a_full_disk_is_reported_before_anything_is_built(
    tools: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def ask_go(go: Path, recipe: object, *arguments: str) -> str:
        questions.append(" ".join(arguments))
        return str(tmp_path)

    monkeypatch.setattr(tools, "ask_go", ask_go)
    monkeypatch.setattr(tools, "free_gib", lambda folder: 1.5)
    recipe = tools.read_recipe(_recipe(tools, "hello", 'programs = ["tools/hello"]'))
    with pytest.raises(tools.ToolError, match=r"6 GiB must be free, found 1\.5 GiB"):
        tools.require_disk(Path("go"), recipe, tmp_path)
    assert "clean -cache" in questions


@pytest.mark.engine
def test_a_program_is_built_once_and_a_broken_build_leaves_nothing(
    tools: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _recipe(tools, "hello", 'programs = ["tools/hello"]\nldflags = "-X main.version=1.2.3"')
    (folder / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    assert _run(tools, monkeypatch, "hello") == 1
    assert "undefined" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "cache" / "spotmpi" / "tools").iterdir()] == ["hello.lock"]
    (folder / "main.go").write_text("package main\n\nfunc main() { println(version) }\n\nvar version string\n")
    assert _run(tools, monkeypatch, "hello") == 0
    first = capsys.readouterr()
    assert "hello: built in" in first.err
    assert (Path(first.out.strip()) / "hello").is_file()
    assert _run(tools, monkeypatch, "hello") == 0
    assert capsys.readouterr() == (first.out, "")
