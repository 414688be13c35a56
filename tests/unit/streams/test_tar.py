"""Tar files in WebDataset's form: samples, their order, and what is read for them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from spotmpi.streams import sources
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Order, Settings


def write_tar(path: Path, files: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def samples(prefix: str, numbers: range) -> dict[str, bytes]:
    """An image and a label for each number."""
    files = {}
    for number in numbers:
        files[f"{prefix}/{number:04}.jpg"] = b"image %d" % number * (number + 1)
        files[f"{prefix}/{number:04}.cls"] = b"%d" % number
    return files


def batches(settings: Settings) -> list[Any]:
    order = Order(sources.parts_of(settings), settings)
    return [sources.read(settings, order.slices(number)) for number in range(order.epoch_batches)]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_sample_has_the_bytes_of_its_members_by_extension(tmp_path: Path, kind: int) -> None:
    write_tar(tmp_path / "set-0.tar", samples("a", range(5)), kind)
    write_tar(tmp_path / "set-1.tar", samples("b", range(5, 7)), kind)
    read = batches(Settings(str(tmp_path / "*.tar"), 3, remainder="keep"))
    assert [[row["__key__"] for row in batch] for batch in read] == [
        ["a/0000", "a/0001", "a/0002"],
        ["a/0003", "a/0004", "b/0005"],
        ["b/0006"],
    ]
    assert read[1][1] == {
        "__key__": "a/0004",
        "__url__": str(tmp_path / "set-0.tar"),
        "jpg": b"image 4" * 5,
        "cls": b"4",
    }


def test_names_divide_at_the_first_dot_and_others_are_left_out(tmp_path: Path) -> None:
    files = {
        "__info__.json": b"{}",
        "README": b"text",
        "x.1/7.seg.PNG": b"mask",
        "x.1/7.png": b"",
        "x.1/.hidden": b"-",
        f"x.1/{'long' * 50}.txt": b"far",
    }
    write_tar(tmp_path / "a.tar", files)
    ((first, second),) = batches(Settings(str(tmp_path), 2))
    assert (first["__key__"], first["seg.png"], first["png"]) == ("x.1/7", b"mask", b"")
    assert second["txt"] == b"far"


def test_a_batch_reads_its_samples_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.local import LocalFileSystem

    write_tar(tmp_path / "a.tar", samples("a", range(100)))
    settings = Settings(str(tmp_path), 2)
    order, ranges = Order(sources.parts_of(settings), settings), []
    whole = LocalFileSystem.cat_file

    def cat_file(system: Any, path: str, start: int, end: int) -> Any:
        ranges.append(end - start)
        return whole(system, path, start=start, end=end)

    monkeypatch.setattr(LocalFileSystem, "cat_file", cat_file)
    assert [row["cls"] for row in sources.read(settings, order.slices(30))] == [b"60", b"61"]
    assert len(ranges) == 1
    assert ranges[0] < 4 * 1024  # four members with their headers


@pytest.mark.parametrize(
    ("size", "message"),
    [(700, "unexpected end of data"), (0, "empty file"), (100, "truncated header|invalid header|empty header")],
)
def test_a_truncated_tar_file_is_named(tmp_path: Path, size: int, message: str) -> None:
    path = write_tar(tmp_path / "a.tar", {"a.bin": bytes(9000), "b.bin": bytes(9000)}, tarfile.USTAR_FORMAT)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StreamError, match=rf"a\.tar cannot be read as tar: .*({message})"):
        sources.parts_of(Settings(str(tmp_path), 1))


def test_a_file_that_is_twice_in_a_sample_and_a_compressed_tar_file_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("x.txt"))
    with pytest.raises(StreamError, match=r"a\.tar has x\.txt twice in one sample"):
        sources.parts_of(Settings(str(tmp_path / "a.tar"), 1))
    tarfile.open(tmp_path / "b.tar.gz", "w:gz").close()
    with pytest.raises(StreamError, match=r"b\.tar\.gz is compressed, so that its samples cannot be sought"):
        sources.parts_of(Settings(str(tmp_path / "b.tar.gz"), 1))
