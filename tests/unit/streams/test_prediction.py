"""Predictions, written by batch number."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from spotmpi.api.keep_requests import _rows
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Settings, Slice, read_settings
from spotmpi.streams.rank import every_row, predict, train
from spotmpi.streams.results import encode
from spotmpi.streams.sinks import ResultFiles
from spotmpi.streams.sources import parts_of, read
from tests.unit.streams.flow import PREFIX


def write(files: ResultFiles, kind: str, results: Any, number: int) -> None:
    """Write the results of one batch."""
    files.write([(number, encode(kind, "flow:predict", number, results))])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_each_batch_has_its_results_in_a_file(make_stream: Any, tmp_path: Path) -> None:
    for rank in range(2):
        predict(
            PREFIX + "predict", make_stream(rank=rank, size=2, last_batch="keep", length=5, write="jsonl"), tmp_path
        )
    assert [json.loads(content) for content in contents(tmp_path).values()] == [
        {"number": number, "half": number / 2} for number in range(5)
    ]


def test_parquet_is_the_default(make_stream: Any, tmp_path: Path) -> None:
    predict(PREFIX + "predict", make_stream(last_batch="keep", length=3), tmp_path)
    table = pyarrow.parquet.read_table(tmp_path)
    assert table.to_pydict() == {"number": [0, 1, 2], "half": [0.0, 0.5, 1.0]}


@pytest.mark.parametrize(
    "nothing", [[], {}, {"number": [], "half": []}, {"number": np.zeros(0, int), "half": np.zeros(0)}]
)
def test_a_first_batch_without_rows_takes_no_column_from_readers_of_the_folder(nothing: Any, tmp_path: Path) -> None:
    files = ResultFiles(tmp_path, "parquet")
    write(files, "parquet", nothing, 0)
    write(files, "parquet", [{"number": 1, "half": 0.5}], 1)

    assert pyarrow.parquet.read_table(tmp_path).to_pydict() == {"number": [1], "half": [0.5]}
    assert files.missing([0, 1, 2]) == [2], "a batch without rows is not computed again"


@pytest.mark.parametrize("nothing", [[], {}, {"x": []}])
def test_a_batch_without_rows_is_not_computed_again_and_has_no_line_for_readers(nothing: Any, tmp_path: Path) -> None:
    """Its file was empty, which is what a machine that lost its power leaves, so each resume computed it again."""
    files = ResultFiles(tmp_path, "jsonl")
    write(files, "jsonl", nothing, 0)
    write(files, "jsonl", [{"x": 1}], 1)

    assert files.missing([0, 1, 2]) == [2]
    assert [part.rows for part in parts_of(Settings(str(tmp_path)))] == [1]
    (hidden,) = tmp_path.glob("_*")
    assert [part.rows for part in parts_of(Settings(str(hidden)))] == [0]
    assert (_rows(hidden), _rows(files.path(1))) == (0, 1)


@pytest.mark.parametrize(("last_batch", "used"), [("drop", "keep"), ("keep", "keep"), ("pad", "pad")])
def test_a_prediction_that_a_spec_starts_has_every_row_too(last_batch: str, used: str) -> None:
    assert read_settings(every_row(Settings("set", 7, last_batch=last_batch).to_json())).last_batch == used


def test_results_that_exist_are_not_computed_again(make_stream: Any, tmp_path: Path) -> None:
    def stream() -> Any:
        return make_stream(last_batch="keep", length=9, write="jsonl")

    predict(PREFIX + "predict", stream(), tmp_path)
    complete = contents(tmp_path)
    for name in ("results-00000004.jsonl", "results-00000007.jsonl"):
        (tmp_path / name).unlink()
    (tmp_path / ".results-00000007.0a1b2c3d.part").write_text("cut off")
    again = stream()
    predict(PREFIX + "predict", again, tmp_path)
    assert again.count == 2
    assert contents(tmp_path) == complete


@pytest.mark.parametrize(
    ("name", "message"), [("predict_twice", "it yielded 2 for 1"), ("predict_first", "it yielded 1 for 1")]
)
def test_a_prediction_yields_one_result_for_each_batch(
    make_stream: Any, tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(StreamError, match=message):
        predict(PREFIX + name, make_stream(last_batch="keep", write="jsonl"), tmp_path)


def test_a_function_that_returns_no_results_is_refused_with_the_remedy(make_stream: Any, tmp_path: Path) -> None:
    """A function that trains ran in each attempt to its end, where 'NoneType' object was not iterable."""
    with pytest.raises(StreamError, match=r"returned NoneType in place of results: let it yield .*train=train_nothing"):
        predict(PREFIX + "train_nothing", make_stream(last_batch="keep", write="jsonl"), tmp_path)
    assert not any(tmp_path.iterdir())


def test_columns_of_arrays_are_written_as_rows(tmp_path: Path) -> None:

    files = ResultFiles(tmp_path, "jsonl")
    write(files, "jsonl", {"x": np.arange(2), "y": ["a", "b"]}, 3)
    assert files.path(3).read_text() == '{"x": 0, "y": "a"}\n{"x": 1, "y": "b"}\n'
    assert files.missing(range(2, 5)) == [2, 4]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 2), (2, 0), (2, 3, 0), (0, 3)])
def test_an_array_of_more_than_one_dimension_has_a_list_in_each_row(
    tmp_path: Path, kind: str, shape: tuple[int, ...]
) -> None:
    """As the probabilities of classes are: Parquet refused them, with `only handle 1-dimensional arrays`."""
    array = np.arange(np.prod(shape)).reshape(shape)[:, ::-1]
    masked = np.ma.array(array, mask=array == 1)
    write(ResultFiles(tmp_path, kind), kind, {"p": array, "masked": masked}, 0)
    file = tmp_path / f"results-00000000.{kind}"
    if kind == "parquet":
        rows = pyarrow.parquet.read_table(file).to_pylist()
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()] if len(array) else []

    assert [row["p"] for row in rows] == array.tolist()
    assert [row["masked"] for row in rows] == masked.tolist()


def test_files_of_a_batch_are_a_folder_that_a_replay_replaces(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path, "files")
    write(files, "files", {"a.png": b"1", "old.txt": "2"}, 3)
    write(files, "files", {"a.png": b"1", "b.txt": "ü"}, 3)

    assert {path.name: path.read_bytes() for path in files.path(3).iterdir()} == {"a.png": b"1", "b.txt": "ü".encode()}
    assert files.missing(range(2, 5)) == [2, 4]
    for wrong, message in (
        ([b"1"], "needs a dictionary of bytes or text by name"),
        ({"../x": b""}, "not a plain file"),
    ):
        with pytest.raises(StreamError, match=message):
            write(files, "files", wrong, 4)
    assert files.missing([4]) == [4]


def test_a_filter_may_leave_no_file_of_a_batch_which_is_not_computed_again(make_stream: Any, tmp_path: Path) -> None:
    def stream() -> Any:
        return make_stream(last_batch="keep", length=6, write="files")

    predict(PREFIX + "predict_even", stream(), tmp_path)
    found = {path.name[-1]: sorted(each.name for each in path.iterdir()) for path in tmp_path.iterdir()}
    assert found == {"0": ["0.txt"], "1": [], "2": ["2.txt"], "3": [], "4": ["4.txt"], "5": []}
    again = stream()
    predict(PREFIX + "predict_even", again, tmp_path)
    assert again.count == 0

    files = ResultFiles(tmp_path, "files")
    write(files, "files", {}, 4)
    assert [*files.path(4).iterdir()] == [] and files.missing(range(7)) == [6], "what a filter no longer leaves is gone"


def test_a_file_without_a_byte_among_the_files_of_a_batch_is_not_computed_again(tmp_path: Path) -> None:
    """Each resume took it for one that a machine lost with its power, and computed its batch again."""
    files = ResultFiles(tmp_path, "files")
    for number in range(5):
        write(files, "files", {"a.txt": "", "b.png": b"1", "line\nend": b""}, number)
    assert files.missing(range(6)) == [5]

    (files.path(1) / "b.png").write_bytes(b"")
    for number, lost in ((2, ""), (3, '["a.txt'), (4, "5")):
        (files.path(number) / ".empty").write_text(lost)
    assert files.missing(range(6)) == [1, 2, 3, 4, 5]
    write(files, "files", {"a.txt": "1"}, 0)
    assert [path.name for path in files.path(0).iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train_nothing", "has taken no batch of the stream: iterate over its argument, for batch in batches"),
        ("train_wrapped", "has returned a generator, which computes nothing by itself: give .* as predict="),
    ],
)
def test_a_training_that_takes_no_batch_is_an_error(make_stream: Any, name: str, message: str) -> None:
    with pytest.raises(StreamError, match=f"{PREFIX}{name} {message}"):
        train(PREFIX + name, make_stream())


@pytest.mark.parametrize("name", ["train_again", "train_end"])
def test_a_training_may_continue_from_a_checkpoint_whether_batches_are_left_or_not(make_stream: Any, name: str) -> None:
    train(PREFIX + name, make_stream())


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_value_that_only_later_rows_have_is_written(tmp_path: Path, kind: str) -> None:
    write(ResultFiles(tmp_path, kind), kind, [{"n": 1}, {"n": 2, "note": "late"}], 0)
    if kind == "parquet":
        rows = pyarrow.parquet.read_table(tmp_path).to_pylist()
    else:
        rows = [json.loads(line) for line in (tmp_path / "results-00000000.jsonl").read_text().splitlines()]
    assert [row.get("note") for row in rows] == [None, "late"]


@pytest.mark.parametrize("write", ["parquet", "jsonl", "kafka://broker:9092/scores"])
def test_text_where_a_list_is_wanted_is_refused_and_not_taken_for_one_of_characters(write: str) -> None:
    for result in ({"label": "cat"}, "cat", b"cat"):
        with pytest.raises(StreamError, match=r"predict, batch 3: .*cat|cannot be written as Parquet"):
            encode(write, "predict", 3, result)
    with pytest.raises(StreamError, match="rows without a key cannot be written as Parquet; give each its keys, or le"):
        encode("parquet", "predict", 3, [{}])


def test_a_table_has_its_rows_in_json_too() -> None:
    """Of one `list` has the columns, which were lines."""
    table = pyarrow.table({"x": [1, 2], "name": ["a", None]})
    for each in (table, table.to_batches()[0]):
        assert encode("jsonl", "predict", 0, each) == b'{"x": 1, "name": "a"}\n{"x": 2, "name": null}\n'


def test_json_has_times_as_text_and_names_what_it_cannot_hold(tmp_path: Path) -> None:
    files, time = ResultFiles(tmp_path, "jsonl"), np.array(["2020-01-01T00:00:00.000000001"], "M8[ns]")
    write(files, "jsonl", {"at": time, "day": time.astype("M8[D]"), "date": [datetime.date(2020, 1, 2)]}, 0)
    (row,) = map(json.loads, (tmp_path / "results-00000000.jsonl").read_text().splitlines())
    assert row == {"at": "2020-01-01T00:00:00.000000001", "day": "2020-01-01", "date": "2020-01-02"}
    with pytest.raises(StreamError, match=r'JSON cannot hold a bytes: .* write = "parquet"'):
        write(files, "jsonl", [{"image": b"png"}], 1)


def test_json_has_null_for_what_is_no_number_or_no_time_as_its_readers_expect(tmp_path: Path) -> None:
    """NaN is not JSON: the readers of Kafka, JavaScript and Go refuse it. A NaT as text would make times text."""
    files, nan = ResultFiles(tmp_path, "jsonl"), float("nan")
    times = np.array(["2020-01-01T00:00:01", "NaT"], "M8[s]")
    columns = {
        "y": np.array([0.5, nan], np.float32),
        "all": [{"a": [nan, np.float64(nan)]}, {"a": (1, nan)}],
        "at": times,
    }
    write(files, "jsonl", columns, 0)

    def refuse(text: str) -> None:
        raise AssertionError(text)

    text = (tmp_path / "results-00000000.jsonl").read_text()
    assert [json.loads(line, parse_constant=refuse) for line in text.splitlines()] == [
        {"y": 0.5, "all": {"a": [None, None]}, "at": "2020-01-01T00:00:01"},
        {"y": None, "all": {"a": [1, None]}, "at": None},
    ]
    (part,) = parts_of(Settings(str(tmp_path)))
    read_back = read(Settings(str(tmp_path)), [Slice(part, 0, 2)])
    assert np.isnan(read_back["y"][1]) and np.isnat(read_back["at"][1])
    for values, message in (
        ({"y": np.array([np.inf])}, 'JSON has no infinite numbers: replace them, or use write = "parquet"'),
        ({"y": np.array([5], "m8[ns]")}, "JSON cannot hold a timedelta64"),
    ):
        with pytest.raises(StreamError, match=message):
            write(files, "jsonl", values, 1)


def test_a_table_with_two_columns_of_one_name_is_not_written_as_nothing_reads_it_again(tmp_path: Path) -> None:
    table = pyarrow.table([pyarrow.array([1]), pyarrow.array([2])], ["a", "a"])
    message = "flow:predict, batch 0: the result has two columns named 'a': rename one"
    with pytest.raises(StreamError, match=message):
        write(ResultFiles(tmp_path, "parquet"), "parquet", table, 0)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "x" * 256, "a\0b", ".hidden", "_SUCCESS", 3])
def test_a_file_of_a_result_has_a_name_that_is_a_file_and_not_hidden(tmp_path: Path, name: Any) -> None:
    """Hidden files would be missing in the data set of the results, and in the next stage."""
    with pytest.raises(StreamError, match=r"batch 0: a result named .* (is not a plain file name|would be hidden)"):
        write(ResultFiles(tmp_path, "files"), "files", {name: b"1"}, 0)
    assert [*tmp_path.iterdir()] == []
