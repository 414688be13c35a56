"""What docs/programs.md says about options and lines is so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotmpi.agent import protocol
from spotmpi.programs.bandwidth import bandwidth_parser
from spotmpi.programs.options import image_options, training_parser
from spotmpi.programs.ssd import ssd_options

PROJECT = Path(__file__).resolve().parents[2]
GUIDE = (PROJECT / "docs" / "programs.md").read_text()


def test_every_option_is_in_the_guide() -> None:
    parser = training_parser("", {})
    ssd_options(parser)
    image_options(parser)
    options = set(re.findall(r"--[a-z][a-z0-9-]+", parser.format_help() + bandwidth_parser("").format_help()))
    for framework in ("chainermn", "pytorch"):
        for path in (PROJECT / "jobs" / "spotmpi" / "programs" / framework).glob("*.py"):
            options |= set(re.findall(r'add_argument\("(--[a-z-]+)"', path.read_text()))

    assert len(options) > 25
    assert {option for option in options if option not in GUIDE and option != "--help"} == set()


def test_every_kind_of_line_is_in_the_guide() -> None:
    for kind in protocol.KINDS:
        assert f"| `{kind}` |" in GUIDE


def test_the_guides_example_program_prints_protocol_lines(python_process: Callable[..., Any]) -> None:
    code = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert code
    shorter = code[1].replace("range(1, 1001)", "range(1, 4)")

    result = python_process("def train_one_iteration(): return 0.5\n" + shorter)

    assert result.returncode == 0, result.stderr
    lines = [protocol.decode(line) for line in result.stdout.splitlines()]
    assert [entry and entry[0] for entry in lines] == ["context", "metric", "metric", "metric", "result"]
    metrics = [json.loads(line) for line in result.stdout.splitlines()[1:4]]
    assert [(line["iteration"], len(line["seconds"])) for line in metrics] == [(1, 1), (2, 1), (3, 1)]
    other = python_process("def train_one_iteration(): return 0.5\n" + shorter, OMPI_COMM_WORLD_RANK="1")
    assert (other.returncode, other.stdout) == (0, "")
