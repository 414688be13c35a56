"""Data sets on real pools of this machine: the same bytes through the loss of workers, and from scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.core import names
from spotmpi.entries.store import Store
from tests.unit.entries.conftest import Modules
from tests.unit.entries.in_process import InProcess

SETS = """
import os
import spotmpi
import helpers

@spotmpi.dataset(workers=2, row_group=100)
def numbers(raw: spotmpi.Source, lost: str):
    if raw.name in ("1.csv", "5.csv"):
        try:
            os.close(os.open(f"{lost}-{raw.name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os._exit(9)
    return {"x": helpers.square(raw["x"])}
"""
SCRIPT = """
import spotmpi

@spotmpi.dataset
def doubled(raw: spotmpi.Source):
    return {"x": raw["x"] * 2}

if __name__ == "__main__":
    print(doubled("raw.csv").key)
"""


def test_a_lost_worker_costs_its_parts_and_the_files_are_those_of_any_number_of_workers(
    tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    modules.write(sets=SETS, helpers="def square(x):\n    return x * x\n")
    (tmp_path / "raw").mkdir()
    for number in range(8):
        text = "".join(f"{value}\n" for value in range(number, 250 + number))
        (tmp_path / f"raw/{number}.csv").write_text(f"x\n{text}")
    numbers = modules.load().numbers
    lost = tmp_path / "lost"
    found = numbers(tmp_path / "raw", str(lost))
    assert sorted(path.name for path in tmp_path.glob("lost-*")) == ["lost-1.csv", "lost-5.csv"]
    assert (found.rows, len(found.manifest.files)) == (2000, 8)
    alone = numbers.options(pool=pool, store=str(tmp_path / "other"))(tmp_path / "raw", str(lost))
    assert alone.key == found.key and alone.manifest.files == found.manifest.files
    assert Store().problems(found.manifest) == []


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(["script.py"], id="a script"),
        pytest.param(
            ["-m", "shop.sets"], id="a module of a package", marks=pytest.mark.extensive("as by a script, by its name")
        ),
    ],
)
def test_a_program_builds_a_data_set_of_its_own_which_a_module_finds(tmp_path: Path, start: list[str]) -> None:
    """The package was not shipped, and the key another one than that of the module when it is imported."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/factors.py").write_text("TWO = 2\n")
    text = SCRIPT.replace("* 2", "* TWO").replace("    return", "    from .factors import TWO\n    return")
    (tmp_path / "shop/sets.py").write_text(text)
    module = start[-1].removesuffix(".py")
    (tmp_path / "raw.csv").write_text("x\n1\n2\n")
    environment = {**os.environ, "PYTHONPATH": str(names.SOURCE), "SPOTMPI_CACHE": str(tmp_path / "cache")}
    environment = {key: value for key, value in environment.items() if key != "SPOTMPI_RUNS"}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    key = run(*start)
    program = f"import {module} as sets; print(sets.doubled.options(pool='none is needed')('raw.csv').key)"
    assert run("-c", program) == key
    found = Store(str(tmp_path / "store")).find("doubled")
    assert (found.rows, found.details["function"]) == (2, f"{module}:doubled")
