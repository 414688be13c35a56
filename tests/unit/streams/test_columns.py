"""Columns of tables: exact, of the same types in all batches, and owned by them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.streams import columns, sources, tables
from spotmpi.streams.dataset import Source
from spotmpi.streams.errors import StreamError
from tests.unit.streams.data import order_of, read_all

ID = 1234567890123456789  # beyond 2**53: a float of it is another number


def write(folder: Path, rows: list[dict[str, Any]], kind: str, name: str = "a") -> Path:
    """A file with *rows*, in row groups of 2 where there are some."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    elif kind == "csv":
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def columns_of(folder: Path, batch: int = 2) -> dict[str, list[Any]]:
    """All arrays of each column, by batch."""
    batches = read_all(order_of(folder, batch, last_batch="keep"))
    assert len({tuple(sorted(each)) for each in batches}) == 1
    return {name: [each[name] for each in batches] for name in batches[0]}


def table_of(path: Path) -> Any:
    """All rows of a file, as a function of a data set gets them."""
    return Source(str(path), sources.files_of(str(path)), [path.name]).table


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_whole_numbers_beside_nulls_are_exact_and_of_one_type_in_all_batches(tmp_path: Path, kind: str) -> None:
    ids = [ID, ID + 1, ID + 2, None, ID + 4]
    rows: list[dict[str, Any]] = [
        {"id": each, "whole": n, "flag": None if n == 4 else True, "x": 0.5} for n, each in enumerate(ids)
    ]
    rows[0]["x"] = None
    write(tmp_path, rows, kind)
    arrays = columns_of(tmp_path)
    assert [value for array in arrays["id"] for value in array.tolist()] == ids
    assert [value for array in arrays["flag"] for value in array.tolist()] == [True, True, True, True, None]
    assert {name: {array.dtype for array in each} for name, each in arrays.items()} == {
        "id": {np.dtype(object)},
        "whole": {np.dtype("int64")},
        "flag": {np.dtype(object)},
        "x": {np.dtype("float64")},
    }
    assert np.isnan(arrays["x"][0][0])


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_columns_have_the_type_that_all_files_need(tmp_path: Path, kind: str) -> None:
    """One has nulls, one has fractions, and one lacks a column."""
    write(tmp_path, [{"id": ID, "x": 1, "new": 1}] * 2, kind, "a")
    write(tmp_path, [{"id": ID, "x": 1.5, "new": 1}] * 2, kind, "b")
    write(tmp_path, [{"id": None, "x": 1}, {"id": ID, "x": 2}], kind, "c")
    arrays = columns_of(tmp_path)
    assert {name: {array.dtype for array in each} for name, each in arrays.items()} == {
        "id": {np.dtype(object)},
        "x": {np.dtype("float64")},
        "new": {np.dtype(object)},
    }
    assert [array.tolist() for array in arrays["new"]] == [[1, 1], [1, 1], [None, None]]


def test_parquet_without_statistics_is_read_for_nulls(tmp_path: Path) -> None:
    table = pyarrow.table({"id": pyarrow.array([1, 2, 3, None]), "all": [1, 2, 3, 4]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2, write_statistics=False)
    arrays = columns_of(tmp_path)
    assert {array.dtype for array in arrays["id"]} == {np.dtype(object)}
    assert {array.dtype for array in arrays["all"]} == {np.dtype("int64")}


def test_dictionaries_of_parquet_are_values_with_their_nulls(tmp_path: Path) -> None:
    """Of their chunks, pyarrow's `to_numpy` gives the first value in place of each null."""
    values = {"city": ["a", None, "b"], "id": [ID, None, ID]}
    table = pyarrow.table({name: pyarrow.array(each).dictionary_encode() for name, each in values.items()})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert {name: array.tolist() for name, (array,) in columns_of(tmp_path, 3).items()} == values


VIEW = pyarrow.string_view()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (VIEW, "a"),
        (pyarrow.binary_view(), b"a"),
        (pyarrow.list_(VIEW), ["a"]),
        (pyarrow.large_list(VIEW), ["a"]),
        (pyarrow.list_(VIEW, 1), ["a"]),
        (pyarrow.list_view(VIEW), ["a"]),
        (pyarrow.list_(pyarrow.list_(VIEW)), [["a"]]),
        (pyarrow.struct([("key", VIEW), ("id", pyarrow.int64())]), {"key": "a", "id": None}),
        (pyarrow.map_(VIEW, VIEW), [("a", "a")]),
        (pyarrow.decimal32(5, 2), Decimal("1.50")),
        (pyarrow.list_(pyarrow.decimal64(12, 2)), [Decimal("1.50")]),
    ],
    ids=str,
)
def test_types_of_parquet_for_which_pyarrow_lacks_functions_are_read_as_others_with_the_same_values(
    tmp_path: Path, kind: pyarrow.DataType, value: Any
) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.array([value, None, value], kind)}), tmp_path / "a.parquet")
    table = table_of(tmp_path / "a.parquet")
    assert table["a"].to_pylist() == [value, None, value]
    assert table.filter(pyarrow.array([True, False, True]))["a"].to_pylist() == [value, value]
    assert [len(array) for array in columns_of(tmp_path)["a"]] == [2, 1]


def test_whole_numbers_in_lists_of_a_fixed_size_are_exact_beside_lists_that_are_null(tmp_path: Path) -> None:
    """pyarrow gave floats in batches with a null."""
    values = [[ID, 1], None, [2, 3]]
    table = pyarrow.table({"ids": pyarrow.array(values, pyarrow.list_(pyarrow.int64(), 2))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    for batch in (1, 3):
        found = [each for array in columns_of(tmp_path, batch)["ids"] for each in array]
        assert [None if each is None else each.tolist() for each in found] == values
        assert {each.dtype for each in found if each is not None} == {np.dtype(np.int64)}


def test_arrays_in_arrays_of_a_fixed_size_are_those_of_their_rows(tmp_path: Path) -> None:
    """Such as images; of slices pyarrow took what was elsewhere in memory."""
    values = [[[[n, n + 1]] * 2] * 2 for n in range(9)]
    kind = pyarrow.list_(pyarrow.list_(pyarrow.list_(pyarrow.uint8(), 2), 2), 2)
    for name, rows in (("a", values[:5]), ("b", values[5:])):
        table = pyarrow.table({"image": pyarrow.array(rows, kind), "n": [row[0][0][0] for row in rows]})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    for batch in read_all(order_of(tmp_path, 4, last_batch="keep", shuffle=True, shuffle_block=4)):
        assert batch["image"].tolist() == [values[n] for n in batch["n"]]
    table = Source(str(tmp_path), sources.files_of(str(tmp_path)), ["a.parquet", "b.parquet"]).table
    odd = table.filter(pyarrow.array([n % 2 == 1 for n in range(9)]))
    assert odd["image"].to_pylist() == values[1::2]


def test_extensions_in_lists_and_objects_of_parquet_are_the_values_that_they_are_stored_as(tmp_path: Path) -> None:
    flags = pyarrow.ExtensionArray.from_storage(pyarrow.bool8(), pyarrow.array([1, 0, None], pyarrow.int8()))
    texts = pyarrow.array(["1", "2", "3"], pyarrow.json_())
    lists, objects = pyarrow.ListArray.from_arrays([0, 2, 3], flags), pyarrow.StructArray.from_arrays([texts], ["a"])
    pyarrow.parquet.write_table(pyarrow.table({"list": lists, "object": objects[:2]}), tmp_path / "a.parquet")
    assert table_of(tmp_path / "a.parquet").to_pydict() == {
        "list": [[True, False], [None]],
        "object": [{"a": "1"}, {"a": "2"}],
    }


@pytest.mark.parametrize("first", ["", "null\n", " \n\tnull\nnull\n", "\ufeffnull\n"])
@pytest.mark.parametrize(
    "value",
    [
        [None, 1],
        [None, None, "x"],
        [None, None],
        [[None, 1], None, [2]],
        [None, {"b": [None, 1]}],
        {"b": [None, None], "c": [None, ID]},
    ],
    ids=str,
)
def test_lists_and_files_that_begin_with_null_are_read_as_they_are(tmp_path: Path, value: Any, first: str) -> None:
    """Of the lists pyarrow makes arrays without the null, and a null as the first row ends the process by SIGSEGV."""
    rows = [{"a": value, "n": 1}, {"a": value, "n": 2}]
    (tmp_path / "a.jsonl").write_text(first + "".join(f"{json.dumps(row)}\n" for row in rows))
    source = Source(str(tmp_path), sources.files_of(str(tmp_path)), ["a.jsonl"])
    source.table.validate(full=True)
    assert source.table.to_pylist() == [{"a": None, "n": None}] * first.count("null") + rows
    (tmp_path / "a.jsonl").write_text(f"{first}nullable\n")
    with pytest.raises(StreamError, match=r"a\.jsonl cannot be read as JSON Lines"):
        table_of(tmp_path / "a.jsonl")


def test_objects_that_lack_keys_in_some_files_are_read_by_slices_as_they_are(tmp_path: Path) -> None:
    """Of slices of objects with objects of null, pyarrow's casts lost rows, and of lists of these nulls."""
    rows = [{"a": {"n": n, "of": {"key": None}, "in": [{"list": [None] * n}]}} for n in range(5)]
    write(tmp_path, rows, "jsonl", "a")
    write(tmp_path, [{"a": {"n": 5, "of": {"key": None}, "in": [{"list": [], "more": 1}], "more": 1}}], "jsonl", "b")
    for shuffle in (False, True):
        batches = read_all(order_of(tmp_path, 2, shuffle=shuffle))
        found = sorted((row for batch in batches for row in batch["a"]), key=lambda row: int(row["n"]))
        assert [(row["n"], row["of"], len(row["in"][0]["list"])) for row in found] == [
            (n, {"key": None}, n % 5) for n in range(6)
        ]


SHAPES = st.recursive(
    st.sampled_from([0, ""]),
    lambda of: st.lists(of, min_size=1, max_size=1) | st.dictionaries(st.sampled_from("abc"), of, max_size=2),
    max_leaves=4,
)


def values_of(shape: Any) -> st.SearchStrategy[Any]:
    """Values of JSON of one type, with nulls everywhere, and objects that lack keys."""
    if isinstance(shape, list):
        return st.none() | st.lists(values_of(shape[0]), max_size=3)
    if isinstance(shape, dict):
        return st.none() | st.fixed_dictionaries({}, optional={key: values_of(each) for key, each in shape.items()})
    return st.none() | (st.integers(-(2**63), 2**63 - 1) if shape == 0 else st.text("é\0😀 ", max_size=2))


def without_nulls(value: Any) -> Any:
    """A value of JSON, or an array, without the keys of null, which files add to objects."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, np.ndarray)):
        return [without_nulls(each) for each in (value if isinstance(value, list) else value.tolist())]
    return value


@settings(max_examples=20, deadline=None)  # it reads files
@given(data=st.data())
def test_batches_have_the_values_that_json_has(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("set")
    line = values_of({"x": data.draw(SHAPES)}).map(lambda row: {"n": 0, **(row or {})})
    files = data.draw(st.lists(st.lists(line, min_size=1, max_size=4), min_size=1, max_size=3))
    for index, rows in enumerate(files):
        write(folder, rows, "jsonl", str(index))
    batches = read_all(order_of(folder, data.draw(st.integers(1, 5)), last_batch="keep"))
    found = [dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True)]
    assert [without_nulls(row) for row in found] == [without_nulls(row) for rows in files for row in rows]


def test_lines_without_keys_are_rows_beside_files_that_have_some(tmp_path: Path) -> None:
    """pyarrow takes no row of a table without columns, and all rows for a slice of it."""
    (tmp_path / "a.jsonl").write_text("null\n{}\nnull\n")
    write(tmp_path, [{"x": 1.5}], "jsonl", "b")
    for shuffle in (False, True):
        batches = read_all(order_of(tmp_path, 1, shuffle=shuffle))
        assert sorted(str(value) for batch in batches for value in batch["x"].tolist()) == ["1.5", "nan", "nan", "nan"]


def test_whole_numbers_in_lists_beside_nulls_are_exact(tmp_path: Path) -> None:
    write(tmp_path, [{"ids": [ID, None]}, {"ids": [ID]}, {"ids": None}, {"ids": []}], "jsonl")
    (array,) = columns_of(tmp_path, 4)["ids"]
    assert [None if each is None else each.tolist() for each in array] == [[ID, None], [ID], None, []]
    assert [each.dtype for each in array if each is not None] == [np.dtype(object), np.int64, np.int64]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_numbers_beyond_int64_are_unsigned_and_those_beyond_that_are_refused(tmp_path: Path, kind: str) -> None:
    """Both are floats for pyarrow, as are fractions."""
    rows: list[dict[str, Any]] = [{"id": 2**64 - 1, "x": 1e300}, {"id": None, "x": 2**60}]
    write(tmp_path / "unsigned", rows, kind)
    arrays = columns_of(tmp_path / "unsigned")
    assert arrays["id"][0].tolist() == [2**64 - 1, None]
    assert arrays["x"][0].tolist() == [1e300, float(2**60)]
    for values in ([2**64 + 1, 1], [ID, 0.5]):
        write(tmp_path / "wrong", [{"id": value} for value in values], kind)
        with pytest.raises(StreamError, match=r"whole numbers in the column 'id' .* round: write them as text"):
            order_of(tmp_path / "wrong", 1)


def test_a_number_in_an_object_or_list_that_would_be_rounded_is_refused(tmp_path: Path) -> None:
    values: list[Any] = [{"of": [[2**64 - 1]]}, [2**64 - 1], {"n": 2**64 - 1, "x": 0.5}]
    for value in values:
        write(tmp_path, [{"at": value}], "jsonl")
        with pytest.raises(StreamError, match="whole numbers in the column 'at'"):
            order_of(tmp_path, 1)


def test_a_number_that_a_float_of_another_file_would_round_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [{"id": ID}], "jsonl", "a")
    write(tmp_path, [{"id": 0.5}], "jsonl", "b")
    with pytest.raises(StreamError, match=r"a\.jsonl cannot be read together with the others: .*have double"):
        read_all(order_of(tmp_path, 1))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,x\n1,2\n")
    with pytest.raises(StreamError, match=r"a\.csv has two columns named 'x': rename one"):
        order_of(tmp_path, 1)


TEXTS = [f'line {number}\nof a text, with "quotes"' + "\n" * (number % 3) for number in range(40_000)]


@pytest.mark.parametrize("names", [("text",), ("text", "n")])
@pytest.mark.parametrize("block", [None, 100_000], ids=["in one block", "in several"])
def test_texts_of_csv_may_have_several_lines(
    tmp_path: Path, names: tuple[str, ...], block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file of 2 MB, more than pyarrow reads at a time by default; or than spotmpi lets it read at a time."""
    if block:
        monkeypatch.setattr(tables, "_MAX_BLOCK", block)
    quoted = ('"' + text.replace('"', '""') + '"' for text in TEXTS)
    lines = [f"{text},{n}" if len(names) > 1 else text for n, text in enumerate(quoted)]
    (tmp_path / "a.csv").write_text("\r\n".join([",".join(names), *lines]))
    (batch,) = read_all(order_of(tmp_path, 40_000))
    assert batch["text"].tolist() == TEXTS


def test_types_of_csv_are_those_of_the_whole_file(tmp_path: Path) -> None:
    numbers = [*range(300_000), 0.5]
    (tmp_path / "a.csv").write_text("\n".join(map(str, ["x", *numbers])))
    (batch,) = read_all(order_of(tmp_path, len(numbers)))
    assert (batch["x"].dtype, batch["x"][-1]) == (np.float64, 0.5)


def zstd(content: bytes) -> bytes:
    return bytes(pyarrow.compress(content, "zstd", asbytes=True))


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "csv.gz": gzip.compress,
    "jsonl.gz": gzip.compress,
    "ndjson.bz2": bz2.compress,
    "CSV.XZ": lzma.compress,
    "jsonl.zst": zstd,
}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_tables_of_text_may_be_compressed(tmp_path: Path, kind: str) -> None:
    content = b"id\n%d\n7\n" if "csv" in kind.lower() else b'{"id": %d}\n{"id": 7}\n'
    compressed = COMPRESSED[kind](content % ID)
    (tmp_path / f"train-0.{kind}").write_bytes(compressed)
    (batch,) = read_all(order_of(tmp_path, 2, split="train"))
    assert batch["id"].tolist() == [ID, 7]
    row = COMPRESSED[kind](content.splitlines(keepends=True)[-1])
    (tmp_path / f"train-0.{kind}").write_bytes(compressed + row)  # as `cat` makes one file of two
    assert read_all(order_of(tmp_path, 3, split="train"))[0]["id"].tolist() == [ID, 7, 7]
    for damaged in (compressed[:-4], compressed + row[:-4], compressed + b"garbage", compressed + b"garbage!" * 9):
        (tmp_path / f"train-0.{kind}").write_bytes(damaged)
        with pytest.raises(StreamError, match=rf"train-0\.{kind} cannot be decompressed: .*; correct the file"):
            order_of(tmp_path, 2)


def test_a_file_of_xz_may_have_padding_and_says_what_is_at_its_end(tmp_path: Path) -> None:
    """What followed the first stream and was none was left out without a word."""
    compressed = lzma.compress(b"id\n7\n")
    (tmp_path / "a.csv.xz").write_bytes(compressed + bytes(8) + lzma.compress(b"8\n") + bytes(4))
    assert read_all(order_of(tmp_path, 2))[0]["id"].tolist() == [7, 8]
    for end, reason in {b"garbage": "its last 7 bytes are no stream of xz", b"\xfd7z": "its last stream is"}.items():
        (tmp_path / "a.csv.xz").write_bytes(compressed + end)
        with pytest.raises(StreamError, match=rf"a\.csv\.xz cannot be decompressed: {reason}"):
            order_of(tmp_path, 2)


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.tar.gz", "a.tgz", "a.tar.zst"])
def test_what_is_compressed_but_would_be_sought_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(StreamError, match=rf"{name} is compressed, so that its samples cannot be sought: use plain"):
        order_of(tmp_path, 1)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_arrays_are_writable_and_own_their_memory_whatever_rows_they_have(tmp_path: Path, kind: str) -> None:
    rows: list[dict[str, Any]] = [{"x": float(n), "n": n, "t": f"2020-01-0{n + 1}", "s": "a"} for n in range(8)]
    if kind != "csv":
        rows = [{**row, "list": [1, 2], "flag": True} for row in rows]
    write(tmp_path, rows, kind)
    for batch in (1, 2, 3, 8):  # in a row group, across them, and of the whole file
        first, again = (columns_of(tmp_path, batch) for _ in range(2))
        for name, arrays in first.items():
            for array, other in zip(arrays, again[name], strict=True):
                lists = [*array] if name == "list" else []
                assert all(each.flags.writeable and each.flags.owndata for each in [array, *lists])
                assert all(np.array_equal(one, two) for one, two in zip(array, other, strict=True))
        first["x"][0] -= 100.0
        for each in [*first["list"][0]] if kind != "csv" else []:
            each *= 0
        assert columns_of(tmp_path, batch)["x"][0][0] == 0.0


SPLITS = {
    "parts": ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"],
    "folders": ["train/0.parquet", "validation/0.parquet"],
    "files": ["Training.csv.gz", "eval_0.csv.gz"],
    "partitions": ["split=train/0.jsonl", "split=dev/0.jsonl"],
    "other files": ["train/cat/1.png", "val/cat/2.png"],
}


@pytest.mark.parametrize("layout", SPLITS)
def test_a_folder_with_several_splits_is_not_mixed_silently(tmp_path: Path, layout: str) -> None:
    for name in SPLITS[layout]:
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    with pytest.raises(StreamError, match=r"has the splits \w+, \w+: choose one with split = \"\w+\", or name the fi"):
        order_of(tmp_path / "set", 1)


@pytest.mark.parametrize(
    "names",
    [["train/0.bin", "train/1.bin"], ["train/0.bin", "car/1.bin"], ["val.bin", "dev-0.bin"], ["a.bin", "1.bin"]],
)
def test_a_folder_of_one_split_and_a_pattern_for_all_are_read(tmp_path: Path, names: list[str]) -> None:
    for name in [*names, "README.md"]:
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"-")
    assert order_of(tmp_path / "set", 1).rows == 3
    for name in ("test/2.bin", "train.bin"):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_bytes(b"-")
    assert order_of(f"{tmp_path}/set/**/*.bin", 1).rows == 4


def test_nothing_is_recorded_of_columns_that_are_the_same_everywhere(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path, [{"x": 1, "y": "a"}], "parquet", name)
    assert {part.columns for part in sources.parts_of(order_of(tmp_path, 1).settings)} == {""}
    assert columns.unify({}) == ""


def texts_of(folder: Path, *files: str) -> list[Any]:
    """The values of the column ``c`` of CSV files with these lines, in their order."""
    folder.mkdir(exist_ok=True)
    for index, lines in enumerate(files):
        (folder / f"{index}.csv").write_text("c,d\n" + "".join(f"{line},1\n" for line in lines.split()))
    return [value for array in columns_of(folder)["c"] for value in array.tolist()]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(["01234 98101"], ["01234", "98101"], id="a postal code"),
        pytest.param(['"00"'], ["00"], id="in quotes"),
        pytest.param(["-01 98101"], ["-01", "98101"], id="with a sign"),
        pytest.param(["98101", "01234"], ["98101", "01234"], id="only in another file"),
        pytest.param(["98101", "01234", "NA"], ["98101", "01234", "NA"], id="and a null in a third one"),
        pytest.param(["D-1", "01234"], ["D-1", "01234"], id="and text in another file"),
        pytest.param(
            ["00000000000000000000000012"], ["00000000000000000000000012"], id="more digits than an integer has"
        ),
        pytest.param(["007.5 1"], [7.5, 1.0], id="a fraction"),
        pytest.param(["0 10 -0"], [0, 10, 0], id="a single zero"),
    ],
)
def test_whole_numbers_with_leading_zeros_are_text(tmp_path: Path, files: list[str], expected: list[Any]) -> None:
    assert texts_of(tmp_path, *files) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(["NA NA", "DE FR"], ["NA", "NA", "DE", "FR"], id="only what stands for a null"),
        pytest.param(['""', "DE"], ["", "DE"], id="only empty"),
    ],
)
def test_what_stands_for_a_null_is_text_where_other_files_have_text(
    tmp_path: Path, files: list[str], expected: list[Any]
) -> None:
    assert texts_of(tmp_path, *files) == expected


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, [{"c": "Meier"}, {"c": "Mueller"}], kind)
    path.write_bytes(path.read_bytes().replace(b"ue", "ü".encode("latin-1")))
    with pytest.raises(
        StreamError, match=rf"a\.{kind} is not in UTF-8: line {3 if kind == 'csv' else 2} has the byte 0xfc.*8859-1"
    ):
        columns_of(tmp_path)
    path.write_text("c\nM\xfcller\n", "utf-16")
    with pytest.raises(StreamError, match=r"is not in UTF-8: line 1 has the byte 0xf.; .* `iconv -f UTF-16 -t"):
        columns_of(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("number", "is_exact"), [("12345678901234567.25", False), ("12345678901234568.0", True), ("1.5e300", True)]
)
def test_a_fraction_whose_whole_part_would_be_rounded_is_refused(
    tmp_path: Path, kind: str, number: str, is_exact: bool
) -> None:
    text = f"x\n0.5\n{number}\n" if kind == "csv" else f'{{"x": 0.5}}\n{{"x": {number}}}\n'
    (tmp_path / f"a.{kind}").write_text(text)
    if is_exact:
        assert columns_of(tmp_path)["x"][0].tolist() == [0.5, float(number)]
    else:
        with pytest.raises(StreamError, match="whole parts of fractions"):
            columns_of(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,x\n".encode("utf-16-le"), "begins with NUL bytes; .*`iconv -f UTF-16LE -t"),
        ("a,b\n1,x\n".encode("utf-16-be"), "begins with NUL bytes; .*`iconv -f UTF-16BE -t"),
        ("a,b\n1,x\n".encode("utf-32"), "has the byte 0xff; .*`iconv -f UTF-32 -t"),
        (bytes(4096), "begins with NUL bytes; it has nothing else, as after a loss of power: restore it"),
        (b"a,b\n1,2\n" + bytes(9), r"Row #3: Expected 2 columns, got 1: \?{9}; correct"),
        (gzip.compress(b"a\n1\n"), "has the byte 0x8b; it is compressed: give it a name that ends in .gz"),
        (b"PK\x03\x04\xff", "it is a ZIP archive, as files of spreadsheets are: unpack it, or export it as text"),
        (b"a;b\n1;x\n2;y\n", "has fields that ';' separates, not commas: write it with commas, or parse"),
        (b"a\tb\n1\tx\n", r"has fields that '\\t' separates"),
        (b'a,b\n1,x\n2,"y\n3,z\n\n', "a quote in its last row, 2 below the names, has no end; correct the file"),
        (b"a,b,a\n1,2,3\n", "has two columns named 'a': rename one"),
        (b"a,b\n1,2\n3\n", "Row #3: Expected 2 columns, got 1"),
        (b"", "Empty CSV file; correct the file, or leave it out"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_csv_is_refused_in_one_line_with_the_remedy(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(StreamError, match=message) as raised:
        table_of(tmp_path / "a.csv")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a;b\nx\ny;z\n", {"a;b": ["x", "y;z"]}),
        ("a;b\n", {"a;b": []}),
        ("a\nx;y\n", {"a": ["x;y"]}),
        ('a,b\n1,"x\ny" \n', {"a": [1], "b": ["x\ny "]}),
        ('a,b\n1,"\n"\n\n', {"a": [1], "b": ["\n"]}),
        ("a,b", {"a": [], "b": []}),
        ("a,b\r1,x\r", {"a": [1], "b": ["x"]}),
        ("\ufeffa,b\r\n1,x", {"a": [1], "b": ["x"]}),
        ("a,b\n1,x\0y\n", {"a": [1], "b": ["x\0y"]}),
        (f"a,b\n1,{'x' * 3_000_000}\n", {"a": [1], "b": ["x" * 3_000_000]}),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, str) else "",
)
def test_what_looks_odd_in_csv_and_is_none_is_read(tmp_path: Path, content: str, expected: Any) -> None:
    (tmp_path / "a.csv").write_bytes(content.encode())
    assert table_of(tmp_path / "a.csv").to_pydict() == expected


def test_empty_lines_of_csv_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('c\na\n\n""\n\n')
    assert columns_of(tmp_path)["c"][0].tolist() == ["a", ""]


def test_times_of_csv_have_their_nanoseconds_in_the_last_column_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t\n1,2020-01-02 03:04:05.123456789\n")
    assert str(columns_of(tmp_path)["t"][0][0]) == "2020-01-02T03:04:05.123456789"


def test_truth_values_in_bytes_are_truth_values(tmp_path: Path) -> None:
    values = pyarrow.ExtensionArray.from_storage(pyarrow.bool8(), pyarrow.array([1, None, 0, 1], pyarrow.int8()))
    pyarrow.parquet.write_table(pyarrow.table({"c": values}), tmp_path / "a.parquet")
    assert [array.tolist() for array in columns_of(tmp_path)["c"]] == [[True, None], [False, True]]


def test_values_that_python_cannot_hold_are_no_fault_of_the_storage(tmp_path: Path) -> None:
    times = pyarrow.array([3_723_000_000_005], pyarrow.time64("ns"))
    pyarrow.parquet.write_table(pyarrow.table({"c": times}), tmp_path / "a.parquet")
    with pytest.raises(StreamError, match=r"the column 'c' of type time64\[ns\] cannot be read"):
        columns_of(tmp_path)


def test_a_row_group_that_pyarrow_reads_in_part_is_refused(tmp_path: Path) -> None:
    """It writes pages of a byte with a list of which it reads none."""
    table = pyarrow.table({"a": [[1]]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", data_page_size=1)
    with pytest.raises(StreamError, match=r"a\.parquet cannot be read as Parquet: row group 0 has 0 of its 1 row"):
        read_all(order_of(tmp_path, 1))


def test_types_that_numpy_lacks_in_lists_are_refused(tmp_path: Path) -> None:
    kind = pyarrow.list_(pyarrow.binary(3))
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.array([[b"abc"]], kind)}), tmp_path / "a.parquet")
    with pytest.raises(StreamError, match=r"the column 'a' of type list<.*fixed_size_binary.* cannot be read"):
        columns_of(tmp_path)


def test_a_file_without_rows_has_no_say_in_the_types_of_a_table(tmp_path: Path) -> None:
    """As in streams; its types were those of the storage's failures, which are tried again for a while."""
    write(tmp_path, [{"x": 1}], "parquet", "a")
    pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.array([], pyarrow.string())}), tmp_path / "b.parquet")
    source = Source(str(tmp_path), sources.files_of(str(tmp_path)), ["a.parquet", "b.parquet"])
    assert source.table.to_pylist() == [{"x": 1}]
