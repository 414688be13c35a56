"""What studies believe of the real programs is so: who has which option, and what it does.

Right: each program takes the option of a parameter exactly where a study allows the parameter, with exactly its values.
"""

from __future__ import annotations

import json
import re

import pytest

from spotmpi.study.parameters import FRAMEWORK_PARAMETERS, FRAMEWORK_VALUES, KNOWN, PARAMETER_PROGRAMS
from tests.programs.conftest import Image

pytestmark = [pytest.mark.images, pytest.mark.timeout(300)]

PROGRAMS = ("digits", "ssd", "resnet50", "allreduce", "read")
HELP = """
import contextlib, importlib, io, json, sys
told, (_, framework, *names) = {}, sys.argv
for name in names:
    program, shown = importlib.import_module(f"spotmpi.programs.{framework}.{name}"), io.StringIO()
    sys.argv = [name, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
        program.main()
    told[name] = shown.getvalue()
print(json.dumps(told))
"""
OPTIONS = {("allreduce", "pytorch"): "--ddp-hook"}  # where a parameter's option is not the same in both


def test_programs_have_the_options_and_values_that_studies_allow(image: Image) -> None:
    run = image.alone("-c", HELP, image.name, *PROGRAMS).succeed()
    helps: dict[str, str] = json.loads(run.plain[-1])
    for parameter, programs in PARAMETER_PROGRAMS.items():
        option = OPTIONS.get((parameter, image.name)) or str(KNOWN[parameter].option)
        having_option = {name for name, text in helps.items() if re.search(rf"{option}\b", text)}
        allowed = set(programs) if FRAMEWORK_PARAMETERS.get(parameter, image.name) == image.name else set()
        values = FRAMEWORK_VALUES.get(parameter, {}).get(image.name, ())
        if values == ("fp32",):  # what is done without an option
            allowed = set()
        # ChainerMN's micro-benchmarks take all options of gradient synchronization, and mean only the communicator.
        assert allowed <= having_option <= allowed | {"allreduce", "read"}, (parameter, allowed, having_option)
        choices_of = {name: re.search(rf"{option} {{(.*?)}}", helps[name]) for name in allowed}
        for name, choices in choices_of.items():
            if values:
                assert choices, f"{name} does not list what {option} can be"
                assert {*choices[1].split(","), "fp32"} == {*values, "fp32"}, (name, choices[1], values)


@pytest.mark.nightly("two trainings in PyTorch, 11 s")
def test_bf16_computes_otherwise_and_learns_the_same(pytorch: Image) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        options = ["--global-batch", "64", "--iterations", "40", "--precision", precision]
        run = pytorch.alone(*pytorch.program("digits"), *options).succeed()
        assert run.one("context")["options"]["precision"] == precision
        losses[precision] = [line["loss"] for line in run.all("metric")]
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.2)  # 0.12 on some processors, after 40 iterations
    assert losses["bf16"][-1] < losses["bf16"][0] / 2
