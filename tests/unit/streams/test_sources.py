"""Files, functions and tar files in WebDataset's form as sources of a stream."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from spotmpi.streams import sources, storage
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Part, Settings
from tests.transient_errors import TransientErrors
from tests.unit.streams.data import order_of, read, read_all, samples, table, write_tar


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """Two files with the numbers from 0 to 24, in row groups of 4."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "1.parquet").write_bytes(table(0, 10))
    (folder / "2.parquet").write_bytes(table(10, 25))
    return folder


def test_parquet_files_give_arrays_by_column_across_row_groups_and_files(parquet: Path) -> None:
    (parquet / "_SUCCESS").touch()
    batches = read_all(order_of(parquet, 7, last_batch="keep"))
    assert [batch["x"].tolist() for batch in batches] == [[*range(n, min(25, n + 7))] for n in (0, 7, 14, 21)]
    assert list(batches[1]["name"]) == ["7", "8", "9", "10", "11", "12", "13"]


@pytest.mark.parametrize("source", ["*.parquet", "[12].parquet", "file://{}/*.parquet"])
def test_a_source_is_a_pattern_or_url(parquet: Path, source: str) -> None:
    source = source.format(parquet) if "{}" in source else str(parquet / source)
    assert [part.rows for part in sources.parts_of(Settings(source, 7))] == [10, 15]


def test_a_file_may_have_brackets_in_its_name(parquet: Path) -> None:
    path = (parquet / "1.parquet").rename(parquet / "old [1].parquet")
    assert [part.rows for part in sources.parts_of(Settings(str(path), 7))] == [10]


def test_csv_files_give_arrays_by_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    (tmp_path / "b.csv").write_text("x,y\n3.5,c\n")
    (batch,) = read_all(order_of(tmp_path, 3))
    assert batch["x"].tolist() == [1.0, 2.0, 3.5]
    assert list(batch["y"]) == ["a", "b", "c"]


def test_json_lines_give_arrays_by_column_and_objects_as_they_are(tmp_path: Path) -> None:
    first = '{"x": 1, "y": "a", "at": {"n": 1, "of": [1, 2]}, "ids": [1, 2]}\n\n{"x": 2, "ids": []}\n'
    (tmp_path / "a.jsonl").write_text(first)
    (tmp_path / "b.ndjson").write_text('{"x": 2.5, "y": "c", "at": {"n": 3}, "new": true}')
    (tmp_path / "empty.jsonl").touch()
    (batch,) = read_all(order_of(tmp_path, 3))
    assert batch["x"].tolist() == [1.0, 2.0, 2.5]
    assert list(batch["y"]) == ["a", None, "c"]
    assert list(batch["new"]) == [None, None, True]
    assert list(batch["at"]) == [{"n": 1, "of": [1, 2]}, None, {"n": 3, "of": None}]
    assert type(batch["at"][0]["n"]) is int
    assert [None if each is None else each.tolist() for each in batch["ids"]] == [[1, 2], [], None]


def test_a_line_of_json_may_be_long(tmp_path: Path) -> None:
    """Longer than the blocks in which pyarrow reads by default."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' + json.dumps({"x": 2, "text": "a" * 3_000_000}) + "\n")
    (batch,) = read_all(order_of(tmp_path, 2))
    assert [len(each or "") for each in batch["text"]] == [0, 3_000_000]


def test_the_row_of_a_csv_file_that_cannot_be_read_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n4,5\n")
    with pytest.raises(StreamError, match=r"Row #3: Expected 2 columns, got 1: 3; correct the file, or leave it out"):
        order_of(tmp_path, 1)


@pytest.mark.parametrize("text", ["[1, 2]\n", '{"x": 1}\n{"x": "a"}\n', '{"x": ', "{\n}x"])
def test_what_is_no_json_lines_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(StreamError, match=r"a\.jsonl cannot be read as JSON Lines: JSON parse error"):
        order_of(tmp_path, 1)


LAYOUTS = {
    "shards": [
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/test-00000-of-00001.parquet",
    ],
    "with digests": [
        "train-00000-of-00002-6f3ae2.parquet",
        "train-00001-of-00002-0c4d1b.parquet",
        "test-00000-of-00001-ab.parquet",
    ],
    "folders": ["train/0000.parquet", "train/0001.parquet", "test/0000.parquet", "partial-train/0000.parquet"],
    "files": ["train.parquet", "train_sft.parquet", "test.parquet"],
    "numbers": ["train_0.parquet", "train-1.parquet", "train_sft_0.parquet", "test.0.parquet"],
    "a longer name": ["train-00000-of-00001.parquet", "train.clean.100-00000-of-00001.parquet"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_split_of_a_folder_is_named_as_hugging_face_lays_it_out(tmp_path: Path, layout: str) -> None:
    for number, name in enumerate(["README.md", ".gitattributes", *LAYOUTS[layout]]):
        path = tmp_path / "train" / name  # the folder of the set has no say
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(table(10 * number, 10 * number + 5))
    parts = sources.parts_of(Settings(str(tmp_path / "train"), 5, split="train"))
    expected = [name for name in LAYOUTS[layout] if re.search(r"(^|/)train(/|\.parquet|[-_]\d)", name)]
    assert [part.name.removeprefix(f"{tmp_path}/train/") for part in parts] == sorted(expected) != []


def test_a_split_of_json_lines_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    (tmp_path / "test.jsonl").write_text('{"x": 3}\n')
    (batch,) = read_all(order_of(tmp_path, 2, split="train"))
    assert batch["x"].tolist() == [1, 2]


def test_a_split_that_a_source_does_not_have_is_refused_with_those_that_it_has(parquet: Path) -> None:
    for name in ("test-00000-of-00001.parquet", "dev/0000.parquet"):
        (parquet / name).parent.mkdir(exist_ok=True)
        (parquet / name).write_bytes(table(0, 5))
    with pytest.raises(StreamError, match=r"/set has no split train; it has: dev, test$"):
        order_of(parquet, 1, split="train")
    with pytest.raises(StreamError, match=r"\*\.parquet is not a folder, so it has no split train: name the folder"):
        order_of(parquet / "*.parquet", 1, split="train")


def test_files_whose_columns_differ_in_type_are_no_fault_of_the_storage(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("x\nword\n")
    with pytest.raises(StreamError, match=r"a\.csv, .*b\.csv cannot be read together: .*int64 vs string; give each"):
        read_all(order_of(tmp_path, 2))


def test_other_files_are_one_row_each(tmp_path: Path) -> None:
    for name in ("2.bin", "1.bin"):
        (tmp_path / name).write_bytes(name.encode())
    (batch,) = read_all(order_of(tmp_path, 2))
    assert [(Path(name).name, content) for name, content in batch] == [("1.bin", b"1.bin"), ("2.bin", b"2.bin")]


def test_any_storage_of_fsspec_is_read() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe({"/set/a.bin": b"a", "/set/b.bin": b"b"})
    (batch,) = read_all(order_of("memory://set", 2))
    assert [content for _, content in batch] == [b"a", b"b"]


def test_a_function_gives_the_rows_of_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squares.py").write_text("def rows(number):\n    return number ** 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert read_all(order_of("squares:rows", 1, length=4)) == [0, 1, 4, 9]
    sys.modules.pop("squares")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent_module:rows", f"{sys.executable} has no module absent_module: ship it with `code` or `files`"),
        ("json:absent", "the module json has no absent"),
    ],
)
def test_a_function_that_cannot_be_imported_is_named(name: str, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        sources.function(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def rows(n:\n", r"the module broken raises SyntaxError: .*\(broken.py, line 1\); correct it"),
        (
            "import json\njson.absent\n",
            r"the module broken raises AttributeError: .* \(broken.py, line 2\); correct it",
        ),
        ("from json import absent\n", r"the module broken raises ImportError: .* \(broken.py, line 1\); correct it"),
        (
            "import pathlib\npathlib.Path('absent.json').read_text()\n",
            rf"'absent.json' \(broken.py, line 2\); correct it: this process runs in {re.escape(str(Path.cwd()))}$",
        ),
        ("open('/absent.json')\n", r"'/absent.json' \(broken.py, line 1\); correct it$"),
        ("raise SystemExit(5)\n", r"the module broken raises SystemExit: 5 \(broken.py, line 1\); correct it"),
    ],
)
def test_a_module_that_raises_is_named_with_the_place_and_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("broken:rows", "broken:absent"):
        with pytest.raises(StreamError, match=message):
            sources.function(name)


def test_a_source_without_files_and_one_of_two_formats_are_refused(parquet: Path) -> None:
    with pytest.raises(StreamError, match="is empty: no file has this name or pattern"):
        order_of(parquet / "*.csv", 1)
    (parquet / "c.csv").write_text("x\n1\n")
    with pytest.raises(StreamError, match="mixes formats"):
        order_of(parquet, 1)


def test_a_pipe_and_a_device_are_no_files_of_a_source(parquet: Path) -> None:
    """They were read for ever, or until something was written to the pipe."""
    os.mkfifo(parquet / "pipe")
    for source, name in ((parquet, "pipe"), (parquet / "pipe", "pipe"), ("/dev/zero", "zero")):
        with pytest.raises(StreamError, match=f"{name} is a pipe, a socket or a device, not a file; a source is read"):
            order_of(source, 1)


def test_a_file_that_is_not_of_its_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no table")
    with pytest.raises(
        StreamError, match=r"a\.parquet cannot be read as Parquet: .*[^.]; correct the file, or leave it out"
    ):
        order_of(tmp_path, 1)


def test_a_damaged_parquet_file_is_named_at_once(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow raises an OSError for it, and the storage was asked again for 6 seconds."""
    message = r"1\.parquet cannot be read as Parquet: .*; correct the file, or leave it out of the source"
    whole = (parquet / "1.parquet").read_bytes()
    monkeypatch.setattr(storage, "PAUSES", (0.0,))
    for begin, damage in ((4, b"\xff" * 40), (len(whole) - 60, b"\xff" * 40)):
        (parquet / "1.parquet").write_bytes(whole[:begin] + damage + whole[begin + len(damage) :])
        with pytest.raises(StreamError, match=message):
            read(order_of(parquet, 5), 0)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _replace(path: Path) -> None:
    """Replace a file by one of the same size."""
    path.with_suffix(".new").write_bytes(bytes(path.stat().st_size))
    path.with_suffix(".new").replace(path)
    os.utime(path, (1, 1))


@pytest.mark.parametrize(("change", "verb"), [(_truncate, "changed"), (_replace, "changed"), (Path.unlink, "removed")])
def test_a_file_that_is_changed_meanwhile_is_an_error(parquet: Path, change: Any, verb: str) -> None:
    order = order_of(parquet, 5)
    read(order, 0)
    change(parquet / "1.parquet")
    read(order, 3)  # of the other file
    with pytest.raises(StreamError, match=rf"1\.parquet was {verb} while the stream reads it"):
        read(order, 1)


def test_without_pyarrow_the_remedy_is_named(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StreamError, match=r"cannot be read without pyarrow: install spotmpi\[streams\]"):
        order_of(parquet, 1)


def test_the_parts_have_name_rows_size_time_and_the_rows_of_a_group(parquet: Path) -> None:
    first = sources.parts_of(Settings(str(parquet), 1))[0]
    path = parquet / "1.parquet"
    assert first == Part(str(path), 10, path.stat().st_size, str(path.stat().st_mtime), unit=4)


def test_storage_that_does_not_answer_is_no_fault_of_the_source(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*arguments: Any) -> None:
        raise TimeoutError("timed out")

    order = order_of(parquet, 5)
    monkeypatch.setattr(sources, "_rows", time_out)
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0))
    with pytest.raises(SourceError, match=r"1\.parquet rows 0 to 4 cannot be read: timed out"):
        read(order, 0)


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_what_cannot_be_listed_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    for name in ("a/0", "a/1", "b/0", "b/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n')
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0))
    top, disk, is_tried_again = str(tmp_path), TransientErrors(monkeypatch.setattr), error != errno.EACCES
    for source, call, path, count in (
        (top, "list", f"{top}/b", 4),
        (top, "stat", top, 4),
        (f"file://{top}/**/*.jsonl", "list", f"{top}/b", 4),
        (f"{top}/b/0.jsonl", "stat", f"{top}/b/0.jsonl", 1),
    ):
        if is_tried_again:
            disk.add(call, path, error)
            assert len(sources.files_of(source)) == count, source
        disk.add(call, path, error, 3 if is_tried_again else 1)
        with pytest.raises(SourceError) as failed:
            sources.files_of(source)
        assert os.strerror(error) in str(failed.value) and path in str(failed.value)
        assert len(sources.files_of(source)) == count
    with pytest.raises(StreamError, match="is empty: no file has this name"):
        sources.files_of(f"{top}/none/*")


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_sample_has_the_bytes_of_its_members_by_extension(tmp_path: Path, kind: int) -> None:
    write_tar(tmp_path / "set-0.tar", samples("a", range(5)), kind)
    write_tar(tmp_path / "set-1.tar", samples("b", range(5, 7)), kind)
    batches = read_all(order_of(tmp_path / "*.tar", 3, last_batch="keep"))
    assert [[row["__key__"] for row in batch] for batch in batches] == [
        ["a/0000", "a/0001", "a/0002"],
        ["a/0003", "a/0004", "b/0005"],
        ["b/0006"],
    ]
    assert batches[1][1] == {
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
    ((first, second),) = read_all(order_of(tmp_path, 2))
    assert (first["__key__"], first["seg.png"], first["png"]) == ("x.1/7", b"mask", b"")
    assert second["txt"] == b"far"


def test_a_batch_reads_its_samples_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.local import LocalFileSystem

    write_tar(tmp_path / "a.tar", samples("a", range(100)))
    order, ranges = order_of(tmp_path, 2), []
    whole = LocalFileSystem.cat_file

    def cat_file(system: Any, path: str, start: int, end: int) -> Any:
        ranges.append(end - start)
        return whole(system, path, start=start, end=end)

    monkeypatch.setattr(LocalFileSystem, "cat_file", cat_file)
    assert [row["cls"] for row in read(order, 30)] == [b"60", b"61"]
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
        order_of(tmp_path, 1)


def test_a_file_that_is_twice_in_a_sample_and_a_compressed_tar_file_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("x.txt"))
    with pytest.raises(StreamError, match=r"a\.tar has x\.txt twice in one sample"):
        order_of(tmp_path / "a.tar", 1)
    tarfile.open(tmp_path / "b.tar.gz", "w:gz").close()
    with pytest.raises(StreamError, match=r"b\.tar\.gz is compressed, so that its samples cannot be sought"):
        order_of(tmp_path / "b.tar.gz", 1)


@pytest.mark.parametrize(
    ("kind", "message"), [(tarfile.LNKTYPE, r"as a link to x\.jpg"), (tarfile.GNUTYPE_SPARSE, "with holes")]
)
def test_a_member_whose_bytes_are_elsewhere_is_refused(tmp_path: Path, kind: bytes, message: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("x.jpg"))
        member = tarfile.TarInfo("x.png")
        member.type, member.linkname = kind, "x.jpg"
        tar.addfile(member)
    with pytest.raises(StreamError, match=message):
        order_of(tmp_path, 1)
