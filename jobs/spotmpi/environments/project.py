"""The Pulumi project that `spotmpi init --environment` writes: its user owns, edits and commits it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spotmpi.core import names
from spotmpi.core.archives import Member
from spotmpi.core.errors import InputError, Problem, SpotmpiError, input_error
from spotmpi.environments.stack_file import stack_of

_NAME = re.compile(r"(?=.{1,16}$)[a-z][a-z0-9]*(-[a-z0-9]+)*")  # as the program asks for it, infra/checks.py
_DEFAULT_STACK = "lab"  # the ready stack that a name of one's own starts from
_WORKFLOWS = ".github/workflows"
_SCRIPTS = ("ci-preview", "ci-up", "ci-destroy", "instance-types")
_IGNORED = ".venv/\n__pycache__/\n"
_SETUP = """\
#!/usr/bin/env bash
# Makes .venv, in which Pulumi runs the program, from requirements.txt; Python 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
"""


def stack_file(environment: str) -> str:
    """The stack file of an environment, relative to its project."""
    return f"stacks/Pulumi.{stack_of(environment)}.yaml"


def write(environment: str, folder: Path) -> list[Path]:
    """Write a project with a stack for *environment*; in a folder with a Pulumi.yaml, the stack alone.

    The stack starts as the ready one of that name, otherwise as `lab`. Nothing that exists is overwritten.

    Raises:
        InputError: the name is not a stack's name, or files exist already.
        SpotmpiError: a file cannot be written.
    """
    stack = stack_of(environment)
    if not _NAME.fullmatch(stack):
        raise input_error("--environment", environment, "use at most 16 lower-case letters, digits and single hyphens")
    if stack.endswith("-data"):
        raise input_error("--environment", environment, "use another ending: a stack NAME-data is the storage of NAME")
    stacks = list(_stacks(stack))
    files = stacks if (folder / "Pulumi.yaml").is_file() else [*_program(), *_workflows(stack, stacks), *stacks]
    problems = [
        Problem("--environment", environment, f"{folder / file.name} exists already; remove it or use another folder")
        for file in files
        if (folder / file.name).exists()
    ]
    if problems:
        raise InputError(problems[:5])
    if not (folder / ".gitignore").exists():
        files.append(Member(".gitignore", _IGNORED.encode()))
    return [_write(folder / file.name, file) for file in files]


def _stacks(stack: str) -> Iterator[Member]:
    """The stack's file, and that of the stack that keeps its storage, where it has one."""
    ready = names.PROJECT / "stacks"
    start = stack if (ready / f"Pulumi.{stack}.yaml").is_file() else _DEFAULT_STACK
    yield Member(stack_file(stack), (ready / f"Pulumi.{start}.yaml").read_bytes())
    data = ready / f"Pulumi.{start}-data.yaml"
    if data.is_file():
        yield Member(stack_file(f"{stack}-data"), data.read_bytes())


def _program() -> Iterator[Member]:
    """Pulumi.yaml, the program with its locked requirements, and the scripts that CI and people run."""
    yield Member("Pulumi.yaml", (names.PROJECT / "Pulumi.yaml").read_bytes())
    program = names.PROJECT / "infra"
    for path in sorted(program.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.name != "requirements.lock":
            yield Member(f"infra/{path.relative_to(program)}", path.read_bytes())
    yield Member("requirements.txt", (program / "requirements.lock").read_bytes())
    yield Member("scripts/setup", _SETUP.encode(), True)
    for name in _SCRIPTS:
        yield Member(f"scripts/{name}", (names.PROJECT / "scripts" / name).read_bytes(), True)


def _workflows(stack: str, stacks: list[Member]) -> Iterator[Member]:
    """The workflows that preview, build and destroy, for these stacks."""
    written = {Path(file.name).stem.removeprefix("Pulumi.") for file in stacks}

    def options(match: re.Match[str]) -> str:
        chosen = [option for option in match[1].split(", ") if option in written] or [stack]
        return f"options: [{', '.join(chosen)}]"

    for path in sorted((names.PROJECT / _WORKFLOWS).glob("environment-*.yml")):
        text = re.sub(r"options: \[(.*)\]", options, path.read_text(encoding="utf-8"))
        yield Member(f"{_WORKFLOWS}/{path.name}", text.replace("requirements.lock", "requirements.txt").encode())


def _write(path: Path, file: Member) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        if file.executable:
            path.chmod(0o755)
    except OSError as error:
        raise SpotmpiError(f"cannot write {path}: {error.strerror}; name another folder") from error
    return path
