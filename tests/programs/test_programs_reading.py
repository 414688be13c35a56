"""Reading is measured on the same files by any number of ranks, and each file is read once a pass."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spotmpi.agent import protocol
from spotmpi.programs.exits import Fatal
from spotmpi.programs.reading import choose_files, files_in, measure
from spotmpi.programs.reporting import Reporter
from spotmpi.programs.world import World
from tests.transient_errors import TransientErrors

if TYPE_CHECKING:
    from tests.programs.conftest import Image


def data(folder: Path, files: int) -> Path:
    (folder / "deep" / "er").mkdir(parents=True)
    for number in range(files):
        (folder / ("deep/er" if number % 2 else ".") / f"{number}.jpg").write_bytes(b"x" * 1000)
    return folder


def test_the_same_files_are_chosen_on_every_rank_and_no_more_than_requested(tmp_path: Path) -> None:
    folder = data(tmp_path, 20)
    assert choose_files(folder, 7) == choose_files(folder, 7)
    assert len(set(choose_files(folder, 7))) == 7
    assert set(choose_files(folder, 100)) == set(folder.rglob("*.jpg"))
    with pytest.raises(Fatal, match="contains no files"):
        choose_files(tmp_path / "nothing", 7)


def test_rates_are_those_of_all_ranks_at_the_speed_of_the_slowest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another rank that read as many bytes in 2 s, as its gathered times say."""

    def gather(value: object) -> list[object]:
        return [value, (2.0, 10_000)] if value else [value, value]

    world = World(0, 2, 0, ("here",), lambda value: value, gather)
    measure(world, choose_files(data(tmp_path, 20), 20), {}, Reporter(0))
    lines = [protocol.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [line and line[0] for line in lines] == ["context", "metric", "metric", "result"]
    result = lines[-1][1] if lines[-1] else {}
    assert result["cold_files_per_second"] == result["warm_files_per_second"] == 10.0
    assert result["warm_mb_per_second"] == pytest.approx(0.01)
    assert (result["files"], result["bytes"]) == (20, 20_000)


@pytest.mark.images
@pytest.mark.timeout(900)
def test_two_ranks_read_a_folder(image: Image, tmp_path: Path) -> None:
    run = image.mpirun(2, *image.program("read"), "--data", str(data(tmp_path, 50))).succeed()
    result = run.one("result")
    assert result["files"] == 50 and result["bytes"] == 50_000
    assert result["warm_mb_per_second"] > 0


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"1")
    TransientErrors(monkeypatch.setattr).add("list", str(tmp_path / "b"), errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        files_in(tmp_path)
    assert len(files_in(tmp_path)) == 2
