"""Options in messages: as the command line takes them in a command, as arguments in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.core import names, wording
from tests.command_line import invoke

HINTS = [
    (("on", "STACK"), "--on STACK", 'on="STACK"'),
    (("image", "registry/name:1"), "--image registry/name:1", 'image="registry/name:1"'),
    (("env", "A=VALUE"), "--env A=VALUE", 'overrides=["env.A=VALUE"]'),
    (("node", 2), "--node 2", "node=2"),
    (("force",), "--force", "force=True"),
    (("min-efficiency",), "--min-efficiency", "min_efficiency"),
]


@pytest.mark.parametrize(("arguments", "option", "argument"), HINTS)
def test_a_hint_is_an_option_in_a_command_and_an_argument_elsewhere(
    arguments: tuple[Any, ...], option: str, argument: str
) -> None:
    assert wording.option(*arguments) == argument
    with wording.of_commands():
        assert wording.option(*arguments) == option
    assert wording.option(*arguments) == argument


def test_one_problem_is_worded_for_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOMEE", raising=False)
    with pytest.raises(spotmpi.InputError) as caught:
        spotmpi.plan_run(
            {"command": ["true"], "launcher": "none", "image": "a/b:1", "env_passthrough": ["HOMEE"]}, on="kubernetes"
        )
    text = "env_passthrough = 'HOMEE': is not set in this terminal: export it, or give it a value with "
    assert str(caught.value) == text + 'overrides=["env.HOMEE=VALUE"]'
    _, _, errors = invoke("run", "--on", "kubernetes", "--image", "a/b:1", "--env", "HOMEE", "--dry-run", "--", "true")
    assert errors == f"spotmpi: {text}--env HOMEE=VALUE\n"


def test_functions_take_a_reference_of_an_image_as_the_option_does() -> None:
    reference = "registry/name:1"
    command = {"command": ["true"], "launcher": "none"}
    by_override = spotmpi.read_spec(command, [f'image="{reference}"'])
    assert (by_override.image, by_override.kubernetes.image) == (None, reference)
    assert spotmpi.read_spec({**command, "image": reference}) == by_override
    both = spotmpi.read_spec({**command, "image": "pytorch"}, [f"image={reference}"])
    assert (both.image, both.kubernetes.image) == ("pytorch", reference)


def test_a_pool_on_this_machine_pulls_no_image(tmp_path: Path) -> None:
    with pytest.raises(spotmpi.InputError, match=r"image = 'a/b:1': only pods pull an image: add on= with a cluster"):
        spotmpi.pool(workers=1, image="a/b:1", on="local")


def test_an_unknown_image_of_a_pool_is_answered_with_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    from spotmpi.spec.validate import TargetCapabilities, validate

    spec = spotmpi.read_spec({"launcher": "pool", "pool": {"count": 1}}, ["image=nowhere"])
    (problem,) = validate(spec, TargetCapabilities(programs={"pytorch": ()}, persistent=()))
    expected = 'use one of: pytorch; pods pull any other image by its reference, such as image="REGISTRY/nowhere:TAG"'
    assert problem.remedy == expected


ROOMS = (
    "agent",
    "api",
    "backends",
    "forecast",
    "images",
    "plan",
    "pools",
    "report",
    "runs",
    "spec",
    "streams",
    "study",
)
REPORTS = {"Problem", "input_error", "SpotmpiError"}
OPTION = re.compile(
    r"(^|[\s(])--(?!batches|no-requeue|namespace|server-side|force-conflicts)[a-z]"
)  # but for those of programs, sbatch, helm and kubectl


def calls_that_report(room: str) -> Iterator[tuple[str, str]]:
    """Each text in a call that reports a problem, with its place; commands in backticks are left out."""
    for path in sorted((names.PROGRAMS.parent / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in REPORTS:
                for each in ast.walk(node):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield f"{path.name}:{each.lineno}", re.sub(r"`[^`]*`?", "", each.value)


@pytest.mark.parametrize("room", ROOMS)
def test_no_problem_that_a_function_may_report_names_an_option_by_itself(room: str) -> None:
    assert [place for place, text in calls_that_report(room) if OPTION.search(text)] == []
