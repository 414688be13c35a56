"""The training program of the fault benchmark: a killed rank changes nothing, and MPI and gloo give the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.faults.records import Reader, Turn, check, effective, frontier
from tests.contract.processes import wait_until

if TYPE_CHECKING:
    from tests.programs.conftest import Image

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(300),
    pytest.mark.nightly("the program of a benchmark, of which the tests of the unit tier have all but the training"),
]

PROGRAM = str(Path(__file__).resolve().parents[2] / "scripts" / "faults" / "train.py")


def reader(folder: Path) -> Reader:
    found = Reader(folder / "records")
    found.update()
    return found


def result(folder: Path) -> tuple[int, str]:
    values = json.loads((folder / "result.json").read_text())
    return values["iteration"], values["parameters"]


def test_a_killed_rank_repeats_iterations_and_neither_loses_nor_doubles_a_sample(
    pytorch: Image, tmp_path: Path
) -> None:
    plain, struck = tmp_path / "plain", tmp_path / "struck"
    pytorch.mpirun(2, PROGRAM, str(plain), "1", "10", "0", "--with", "mpi", "--until", "60").succeed()
    arguments = (PROGRAM, str(struck), "1", "10", "0.05", "--until")
    first = pytorch.torchrun(2, *arguments, "1000")
    wait_until(lambda: struck.exists() and len(frontier(reader(struck).records)) > 25, 100)
    first.kill_rank(1)
    assert first.end() != 0
    before = frontier(reader(struck).records)[-1][1]
    (struck / "stop").write_text("60")

    pytorch.torchrun(2, *arguments, "1000").succeed()

    done = reader(struck).records
    second = [record for record in done if record.attempt != done[0].attempt]
    again = {record.iteration for record in done if record not in second} & {record.iteration for record in second}
    start = min(record.iteration for record in second)
    assert start % 10 == 1 and again == set(range(start, before + 1))
    turn = Turn("struck", iteration=result(struck)[0], parameters=result(struck)[1])
    check(turn, done, effective(reader(plain).records))
    assert (turn.iteration, turn.lost, turn.doubled, turn.equal) == (60, 0, 0, True)
