"""What the command line says of itself, and of input that it cannot use."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from spotmpi.cli.main import COMMANDS, _process_value, app
from spotmpi.core import names
from tests.command_line import SPOTMPI, invoke, spotmpi_process
from tests.unit.cli.terminal import job

pytestmark = pytest.mark.usefixtures("own_folder")

GROUP: Any = typer.main.get_command(app)


def fresh_interpreter(*arguments: str) -> tuple[str, set[str]]:
    """The output of a command in an interpreter of its own, and the modules that it imported."""
    code = (
        "import sys; sys.argv[0] = 'spotmpi'\n"
        "from spotmpi.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    return result.stdout, set(result.stderr.splitlines()[-1].split())


def test_help_in_a_fresh_interpreter_imports_nothing_heavy() -> None:
    output, modules = fresh_interpreter("--help")

    heavy = {"pulumi", "boto3", "pydantic", "lightkube", "httpx", "rich", "torch", "chainer", "vl_convert", "numpy"}
    assert not (heavy | {"scipy", "jinja2", "asyncio", "tomlkit"}) & {name.partition(".")[0] for name in modules}
    assert "Usage" in output


def test_a_loader_of_plugins_with_more_than_one_function_is_pydantics_own() -> None:
    code = (
        "from spotmpi.cli import main\nmain.leave_out_plugins()\n"
        "from pydantic.plugin._loader import get_plugins\nassert get_plugins() == ()\n"
        "from pydantic.plugin._loader import PYDANTIC_ENTRY_POINT_GROUP\nprint(PYDANTIC_ENTRY_POINT_GROUP)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("pydantic\n", "")


@pytest.mark.parametrize(
    "arguments", ["list", "list --json", "status no-such-run", "logs no-such-run", "stop no-such-run"]
)
def test_commands_that_read_no_spec_import_no_models_of_one(arguments: str) -> None:
    _, modules = fresh_interpreter(*arguments.split())

    assert modules & {"spotmpi.api.runs", "spotmpi.api.stopping"}
    unneeded = {"spotmpi.spec.job", "pydantic", "rich", "lightkube", "importlib.metadata", "spotmpi.runs.fingerprint"}
    assert not (unneeded | {"spotmpi.images.environment", "spotmpi.agent.children"}) & modules


def test_a_dry_run_imports_nothing_that_it_does_not_need() -> None:
    output, modules = fresh_interpreter("run", job("true"), "--dry-run")

    assert json.loads(output)["backend"] == "local"
    unneeded = {"rich", "lightkube", "tarfile", "importlib.metadata", "spotmpi.core.environment", "spotmpi.cli.bench"}
    unneeded |= {"spotmpi.metrics.rates", "statistics"}
    assert not (unneeded | {"typer._adapters", "spotmpi.agent.handover"}) & modules


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_values_that_skip_typers_coercion_are_those_that_it_gives(name: str) -> None:
    """Typer imports pydantic to coerce any value, even one that stays as it is."""
    command = GROUP.get_command(None, name)
    compared = 0
    for each in (command, *getattr(command, "commands", {}).values()):
        context = typer.Context(each)
        for parameter in each.params:
            kind = parameter.type_descriptor.annotation
            if kind in (str, Path, list[str]) and parameter.callback is None:
                value = ("b", "a") if parameter.multiple or parameter.nargs == -1 else "./some//value"
                own = _process_value(parameter, None, context, value) if parameter.nargs == 1 else None
                theirs = type(parameter).process_value(parameter, context, value)
                assert own is None or (own, type(own)) == (theirs, type(theirs))
                compared += own is not None
    assert compared


def test_help_lists_every_command_with_the_first_sentence_of_its_own_help() -> None:
    listed = " ".join(invoke("--help").stdout.split())

    for name, entry in COMMANDS.items():
        first = GROUP.get_command(None, name).help.split("\n\n")[0]
        assert " ".join(first.split()) == entry.help and entry.help.endswith(".")
        assert f" {name} {entry.help}" in listed


def test_a_command_imports_only_its_own_module() -> None:
    _, modules = fresh_interpreter("status", "--help")

    commands = {name.removeprefix("spotmpi.cli.") for name in modules if name.startswith("spotmpi.cli.")}
    assert commands == {"completion", "main", "options", "status"}


def test_a_misspelt_command_is_answered_with_the_nearest_ones() -> None:
    code, output, errors = invoke("stats")
    assert (code, output) == (2, "") and "No such command 'stats'. Did you mean 'status'" in errors


@pytest.mark.parametrize("command", ["bench", "logs", "models keep x"])
def test_a_missing_argument_names_where_it_is_explained(command: str) -> None:
    code, output, errors = invoke(*command.split())
    missing = command.removesuffix(" x")
    assert (code, output) == (2, "") and len(errors.splitlines()) == 1
    assert errors.startswith("spotmpi: Missing argument '")
    assert errors.endswith(f"'; `spotmpi {missing} --help` shows what it takes\n")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("run --slots x -- true", "--slots = 'x': write a whole number"),
        ("bench job.toml --seed 1.5", "--seed = '1.5': write a whole number"),
        ("predict --price much", "--price = 'much': write a number"),
        ("resize run many", "WORKERS = 'many': write a whole number"),
    ],
)
def test_a_word_in_place_of_a_number_is_named(command: str, problem: str) -> None:
    assert invoke(*command.split()) == (2, "", f"spotmpi: {problem}\n")


def test_an_argument_too_many_names_what_the_command_takes() -> None:
    problem = "Got unexpected extra argument(s) (b); `spotmpi why --help` shows what it takes"
    assert invoke("why", "a", "b") == (2, "", f"spotmpi: {problem}\n")


@pytest.mark.parametrize(
    ("mistake", "meant"), [("kubernets", "kubernetes"), ("slrum/gpu", "slurm"), ("loacl", "local")]
)
def test_a_misspelt_target_is_answered_with_the_nearest_one(
    mistake: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path.cwd()))  # without pulumi

    code, _, errors = invoke("run", "--on", mistake, "--", "true")

    assert code == 1 and errors.startswith("spotmpi: command not found: pulumi, which reads the outputs of stack")
    assert errors.endswith(f"; or did you mean {meant}?\n")


def test_the_file_of_an_environment_may_have_any_name(tmp_path: Path) -> None:
    outputs = tmp_path / "lab.out"
    outputs.write_text("[]")
    code, _, errors = invoke("list", "--on", str(outputs))
    assert code == 2 and errors.endswith(": is not a JSON object: write it with `pulumi stack output --json`\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_ctrl_c_while_the_command_line_is_imported_prints_no_traceback(error: type[BaseException]) -> None:
    code = f"import spotmpi.cli; raise {error.__name__}"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    expected = (-signal.SIGINT, "") if error is KeyboardInterrupt else (1, "Traceback")
    assert (result.returncode, result.stderr[:9]) == expected


def test_ctrl_c_prints_no_traceback_during_the_first_import_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    code = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "spotmpi.agent":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
import spotmpi.cli
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_option_of_every_command_has_help(name: str) -> None:
    for parameter in GROUP.get_command(None, name).params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_without_arguments_spotmpi_shows_its_help() -> None:
    for arguments in ([], ["image"]):
        code, output, errors = invoke(*arguments)

        assert (code, output) == (2, "") and errors.startswith("Usage: spotmpi")


def test_completion_works() -> None:
    request = {"_SPOTMPI_COMPLETE": "complete_bash", "COMP_WORDS": "spotmpi st", "COMP_CWORD": "1"}
    result = spotmpi_process(env={**os.environ, **request})
    assert {"status", "stop"} <= set(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("status tr", ["train-1", "train-2"]),
        ("run --resume train-2", ["train-2"]),
        ("logs --runs elsewhere ", ["other-1"]),
        ("report s", ["sweep-1"]),
        ("models show d", ["digits"]),
        ("models promote ", ["digits"]),
        ("data show ", ["ratings"]),
        ("status --runs nowhere ", []),
        ("up ", ["cpu", "g5-data"]),
        ("list --on ", ["cpu", "g5-data", "kubernetes", "local", "slurm"]),
        ("run --launcher t", ["torchrun"]),
    ],
)
def test_completion_offers_names_without_a_heavy_import(words: str, offered: list[str]) -> None:
    for run in ("runs/train-1", "runs/train-2", "elsewhere/other-1"):
        Path(run).mkdir(parents=True)
        Path(run, "events.jsonl").touch()
    entries = ("store/models/digits", "store/models/.writing-1", "store/datasets/ratings")  # one is being pulled
    for folder in ("runs/sweeps/sweep-1", "runs/no-run", "stacks", *entries):
        Path(folder).mkdir(parents=True)
    for stack in ("Pulumi.cpu.yaml", "Pulumi.g5-data.yaml", "Pulumi.cpu.yaml.orig", "README.md"):
        Path("stacks", stack).touch()
    words = f"spotmpi {words}"
    request = {"_SPOTMPI_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    heavy = "set(sys.modules) & {'pydantic', 'numpy', 'yaml', 'fsspec', 'spotmpi.spec.job', 'rich'}"
    code = f"import sys, atexit\natexit.register(lambda: print({heavy}, file=sys.stderr))\n"
    code += "from spotmpi.cli.main import main\nmain()"
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **request}, capture_output=True, text=True, check=False
    )
    assert (sorted(result.stdout.split()), result.stderr) == (offered, "set()\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "nonsense"),
        (["run"], 2, "name a spec file (`spotmpi init` writes one), or a command after --"),
        (["run", "job.toml", "--nodes", "-3"], 2, "nodes = -3"),
        (["run", "job.toml", "--nodes", "many"], 2, "nodes = 'many': write a number of nodes such as 2, or all that"),
        (["run", "job.toml", "--set", "launcher=mpirun"], 2, "no mpirun of Open MPI on PATH"),
        (["run", "job.toml", "--runs", "job.toml"], 2, "is not a folder: name another folder"),
        (["run", "--resume", "x"], 2, "no such run"),
        (["run", "--what"], 2, "--what"),
        (["status", "x"], 2, "no such run"),
        (["status"], 2, "ID"),
        (["logs", "x", "-f"], 2, "no such run"),
        (["stop", ""], 2, "no such run"),
        (["clean", "--older", "soon"], 2, "write a duration"),
        (["clean"], 2, "--older"),
        (["init", "job.toml"], 2, "exists already; remove it or name another file"),
        (["init", "no/such/folder.toml"], 2, "its folder does not exist; create it first"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_on_stderr_with_its_exit_code(
    arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Path(job("true")).read_text()
    programs = Path("programs")  # all that is on PATH: the machine may have an mpirun
    programs.mkdir()
    for name in ("sh", "python3"):
        (programs / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(programs.absolute()))

    status, output, errors = invoke(*arguments)

    assert (status, output) == (code, "")
    (line,) = errors.splitlines()
    assert line.startswith("spotmpi: ") and message in line
    assert not Path("runs").exists() and Path("job.toml").read_text() == before


def test_a_traceback_is_shown_only_with_debug() -> None:
    assert "Traceback" not in invoke("status", "x").stderr
    assert invoke("run", "no.toml", "--", "python3", "train.py", "--debug").returncode == 2
    assert "Traceback" in spotmpi_process("--debug", "status", "x").stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_a_full_disk_below_stderr_leaves_the_documented_exit_code(debug: tuple[str, ...]) -> None:
    """At the end the interpreter flushes as well, and exits with 120 where that fails."""
    with Path("/dev/full").open("w") as full:
        command = [SPOTMPI, *debug, "status", "no-such-run", "--runs", "/nowhere"]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full).returncode in (1, 2)


def test_the_page_of_commands_is_their_help(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    parts = ["# Commands\n\nWritten by `pytest tests/unit/cli/test_command_help.py --update-golden` from `--help`.\n"]
    groups = {
        "image": ("build", "push"),
        "data": ("push", "ls", "pull", "clean", "build", "list", "show", "diff", "promote", "verify", "rm"),
        "models": ("keep", "predict", "push", "pull", "list", "show", "diff", "promote", "verify", "rm"),
    }
    for words in ("", *(f"{name} {each}" for name in COMMANDS for each in ("", *groups.get(name, ())))):
        output = invoke(*words.split(), "--help")[1]
        parts.append(f"\n## {f'spotmpi {words}'.strip()}\n\n```\n{output.strip()}\n```\n")
    text = "".join(parts)
    assert not re.search(r"^  [a-z]+ .*\.\.\.$", text, re.MULTILINE)  # a sentence that click has cut off
    usages = re.findall(r"^Usage: .*", text, re.MULTILINE)
    assert not [usage for usage in usages if re.search(r"[{[][A-Z|]*([a-z]|\.\.\.)", usage)], "arguments are NAME"
    page = names.PROJECT / "docs" / "commands.md"
    if request.config.getoption("--update-golden"):
        page.write_text(text)

    assert page.read_text() == text, "run pytest with --update-golden"
