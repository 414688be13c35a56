"""Files and functions as sources of a stream."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from spotmpi.streams import sources, storage
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Order, Part, Settings


def batches(settings: Settings) -> list[Any]:
    """Every batch of an epoch as it is read."""
    order = Order(sources.parts_of(settings), settings)
    return [sources.read(settings, order.slices(number)) for number in range(order.epoch_batches)]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """Two files with the numbers from 0 to 24, in row groups of 4."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name, start, stop in (("1.parquet", 0, 10), ("2.parquet", 10, 25)):
        table = pyarrow.table({"x": np.arange(start, stop), "name": [str(number) for number in range(start, stop)]})
        pyarrow.parquet.write_table(table, folder / name, row_group_size=4)
    return folder


def test_parquet_files_give_arrays_by_column_across_row_groups_and_files(parquet: Path) -> None:
    (parquet / "_SUCCESS").touch()
    read = batches(Settings(str(parquet), 7, remainder="keep"))
    assert [batch["x"].tolist() for batch in read] == [[*range(n, min(25, n + 7))] for n in (0, 7, 14, 21)]
    assert list(read[1]["name"]) == ["7", "8", "9", "10", "11", "12", "13"]


@pytest.mark.parametrize("source", ["*.parquet", "[12].parquet", "file://{}/*.parquet"])
def test_a_source_is_a_pattern_or_url(parquet: Path, source: str) -> None:
    source = source.format(parquet) if "{}" in source else str(parquet / source)
    assert [part.rows for part in sources.parts_of(Settings(source, 7))] == [10, 15]


def test_csv_files_give_arrays_by_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    (tmp_path / "b.csv").write_text("x,y\n3.5,c\n")
    (batch,) = batches(Settings(str(tmp_path), 3))
    assert batch["x"].tolist() == [1.0, 2.0, 3.5]
    assert list(batch["y"]) == ["a", "b", "c"]


def test_other_files_are_one_row_each(tmp_path: Path) -> None:
    for name in ("2.bin", "1.bin"):
        (tmp_path / name).write_bytes(name.encode())
    (batch,) = batches(Settings(str(tmp_path), 2))
    assert [(Path(name).name, content) for name, content in batch] == [("1.bin", b"1.bin"), ("2.bin", b"2.bin")]


def test_any_storage_of_fsspec_is_read() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe({"/set/a.bin": b"a", "/set/b.bin": b"b"})
    (batch,) = batches(Settings("memory://set", 2))
    assert [content for _, content in batch] == [b"a", b"b"]


def test_a_function_gives_the_rows_of_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squares.py").write_text("def rows(number):\n    return number ** 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert batches(Settings("squares:rows", length=4)) == [0, 1, 4, 9]
    sys.modules.pop("squares")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent_module:rows", "no module absent_module; ship it with `code` or `files`"),
        ("json:absent", "the module json has no absent"),
    ],
)
def test_a_function_that_cannot_be_imported_is_named(name: str, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        sources.function(name)


def test_a_source_without_files_and_one_of_two_formats_are_refused(parquet: Path) -> None:
    with pytest.raises(StreamError, match="is empty: no file has this name or pattern"):
        sources.parts_of(Settings(str(parquet / "*.csv"), 1))
    (parquet / "c.csv").write_text("x\n1\n")
    with pytest.raises(StreamError, match="mixes formats"):
        sources.parts_of(Settings(str(parquet), 1))


def test_a_file_that_is_not_of_its_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no table")
    with pytest.raises(StreamError, match=r"a\.parquet cannot be read as Parquet"):
        sources.parts_of(Settings(str(tmp_path), 1))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _replace(path: Path) -> None:
    """Replace a file by one of the same size."""
    path.with_suffix(".new").write_bytes(bytes(path.stat().st_size))
    path.with_suffix(".new").replace(path)
    os.utime(path, (1, 1))


@pytest.mark.parametrize(("change", "verb"), [(_truncate, "changed"), (_replace, "changed"), (Path.unlink, "removed")])
def test_a_file_that_is_changed_meanwhile_is_an_error(parquet: Path, change: Any, verb: str) -> None:
    settings = Settings(str(parquet), 5)
    order = Order(sources.parts_of(settings), settings)
    sources.read(settings, order.slices(0))
    change(parquet / "1.parquet")
    sources.read(settings, order.slices(3))  # of the other file
    with pytest.raises(StreamError, match=rf"1\.parquet was {verb} while the stream reads it"):
        sources.read(settings, order.slices(1))


def test_without_pyarrow_the_remedy_is_named(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StreamError, match=r"cannot be read without pyarrow: install spotmpi\[streams\]"):
        sources.parts_of(Settings(str(parquet), 1))


def test_the_parts_have_name_rows_size_and_time(parquet: Path) -> None:
    first = sources.parts_of(Settings(str(parquet), 1))[0]
    path = parquet / "1.parquet"
    assert first == Part(str(path), 10, path.stat().st_size, str(path.stat().st_mtime))


def test_storage_that_does_not_answer_is_no_fault_of_the_source(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(str(parquet), 5)
    order = Order(sources.parts_of(settings), settings)
    monkeypatch.setattr(sources, "_rows", _time_out)
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0))
    with pytest.raises(SourceError, match=r"1\.parquet rows 0 to 4 cannot be read: timed out"):
        sources.read(settings, order.slices(0))


def _time_out(*arguments: Any) -> None:
    raise TimeoutError("timed out")
