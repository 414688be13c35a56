"""`spotmpi init`: which script a spec is for, examples, and a Pulumi project."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer

from tests.command_line import invoke

pytestmark = pytest.mark.usefixtures("own_folder")


def spec(name: str = "job.toml") -> dict[str, Any]:
    return tomllib.loads(Path(name).read_text())


def test_a_folder_without_scripts_gets_the_example_which_can_be_planned() -> None:
    Path("run.sh").touch()
    example = "no *.py file is here, so the spec runs an example; --script FILE takes a script of yours\n"
    assert invoke("init") == (0, "job.toml\n", f"{example}next: spotmpi run job.toml\n")
    assert spec()["program"] == "digits"
    plan = json.loads(invoke("run", "job.toml", "--dry-run")[1])
    assert plan["spec"]["program"] == "digits"


def test_the_next_command_takes_a_name_with_a_dash_for_no_option() -> None:
    for arguments in (["--", "-a b.toml"], ["--example", "digits", "--", "-c.toml"]):
        code, _, talk = invoke("init", *arguments)
        assert code == 0 and talk.splitlines()[-1] == f"next: spotmpi run {shlex.quote(f'./{arguments[-1]}')}"


def test_train_py_is_taken_without_a_question() -> None:
    for name in ("train.py", "model.py"):
        Path(name).touch()

    code, _, talk = invoke("init", "mine.toml")

    assert code == 0 and talk.startswith(
        "the spec runs train.py (--script model.py takes another one); check its image, launcher and slots\n"
    )
    assert spec("mine.toml")["command"] == ["python3", "train.py"]
    assert spec("mine.toml")["code"] == ".", "the same spec works on a cluster"


@pytest.mark.parametrize("script", ["train.py", "elsewhere"])
def test_a_folder_that_takes_long_to_read_and_one_elsewhere_are_not_the_code_of_each_run(
    script: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if script == "elsewhere":
        script = str(tmp_path_factory.mktemp("elsewhere") / "train.py")
    else:
        Path("data").mkdir()
        with Path("data/images.bin").open("wb") as file:
            file.truncate(30 << 20)
    Path(script).touch()
    assert invoke("init", "--script", script)[0] == 0
    assert "code" not in spec() and '\n# code = "src" ' in Path("job.toml").read_text()


def test_paths_in_the_commands_to_copy_are_quoted_where_a_shell_needs_it() -> None:
    Path("my specs").mkdir()
    for name in ("train.py", "a model.py"):
        Path(name).touch()

    code, _, talk = invoke("init", "my specs/job.toml")

    assert code == 0 and talk.endswith("\nnext: spotmpi run 'my specs/job.toml'\n") and "--script 'a model.py'" in talk
    assert invoke("init", "my specs/cpu.toml", "--example", "cpu").stderr == "next: spotmpi bench 'my specs/cpu.toml'\n"


@pytest.mark.parametrize("options", [(), ("--example", "digits")])
def test_a_spec_in_a_folder_that_does_not_exist_is_wrong_input(options: tuple[str, ...]) -> None:
    problem = "path = 'specs/job.toml': its folder does not exist; create it first"
    assert invoke("init", "specs/job.toml", *options) == (2, "", f"spotmpi: {problem}\n")


@pytest.mark.parametrize("exists", [True, False])
def test_a_script_in_the_place_of_the_spec_is_neither_written_nor_to_be_removed(exists: bool) -> None:
    if exists:
        Path("train.py").write_text("import time\n")
    problem = "path = 'train.py': is where the spec is written: name the script with --script train.py"
    assert invoke("init", "train.py") == (2, "", f"spotmpi: {problem}\n")
    assert Path("train.py").exists() == exists


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_script_in_the_place_of_a_spec_says_how_it_is_run(command: str) -> None:
    Path("train.py").write_text("import time\n")
    assert invoke(command, "train.py") == (
        2,
        "",
        "spotmpi: spec = 'train.py': is a script, not a spec: `spotmpi init --script train.py` writes one for it, and "
        "`spotmpi run -- python3 train.py` runs it without\n",
    )


def test_a_folder_in_the_place_of_a_spec_is_named_as_one() -> None:
    assert invoke("run", ".") == (2, "", "spotmpi: spec = '.': is a folder; name a spec file in it\n")


def test_a_pattern_for_what_the_script_prints_is_named_to_be_checked() -> None:
    Path("train.py").write_text("print(f'step {step} loss {loss}')")

    assert invoke("init").stderr.startswith(
        "the spec runs train.py; check its image, launcher, slots and metrics.pattern\n"
    )
    assert spec()["metrics"] == {"pattern": r"step (?P<iteration>\d+) loss (?P<loss>[-+\w.]+)"}


def test_without_a_terminal_one_of_several_scripts_must_be_named() -> None:
    for name in ("b.py", "a.py"):
        Path(name).touch()

    assert invoke("init") == (2, "", "spotmpi: --script: name the script to run, one of: a.py, b.py\n")
    assert invoke("init", "--script", "b.py")[0] == 0 and spec()["command"] == ["python3", "b.py"]


def test_of_several_scripts_a_terminal_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.py", "a.py"):
        Path(name).touch()
    prompt = Mock(return_value="b.py")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", prompt)

    assert invoke("init")[0] == 0 and spec()["command"] == ["python3", "b.py"]
    (question,) = prompt.call_args.args
    assert (question, prompt.call_args.kwargs["default"]) == ("Script to run (a.py, b.py)", "a.py")


def test_examples_and_studies_are_copied_under_their_own_names() -> None:
    assert invoke("init", "--example", "cpu") == (0, "cpu.toml\n", "next: spotmpi bench cpu.toml\n")
    assert invoke("init", "mine.toml", "--example", "ssd") == (0, "mine.toml\n", "next: spotmpi run mine.toml\n")
    code, _, talk = invoke("init", "--example", "none")
    assert code == 2 and "use one of: allreduce, cpu, " in talk


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--example cpu --script train.py", "--example = 'cpu': does not go together with --script: omit one of them"),
        ("x.toml --environment lab", "--environment = 'lab': does not go together with path: omit one of them"),
    ],
)
def test_options_that_exclude_each_other_are_refused(arguments: str, problem: str) -> None:
    assert invoke("init", *arguments.split()) == (2, "", f"spotmpi: {problem}\n")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", ["lab", "spotmpi-lab"])
def test_an_environment_gets_a_project_and_the_next_steps(name: str) -> None:
    code, out, talk = invoke("init", "--environment", name)

    assert code == 0 and {"Pulumi.yaml", "infra/__main__.py", "stacks/Pulumi.lab.yaml"} <= set(out.splitlines())
    assert "spotmpi:access in stacks/Pulumi.lab.yaml" in talk and "spotmpi up lab" in talk
