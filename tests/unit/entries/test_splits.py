"""Splits and samples are data sets: complete, disjoint, and the same whenever they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import spotmpi
from spotmpi.core.errors import SpotmpiError
from tests.unit.entries.conftest import Modules
from tests.unit.entries.in_process import InProcess

SHARES = {"train": 0.7, "test": 0.2}


@pytest.fixture
def ratings(tmp_path: Path, modules: Modules) -> Path:
    """Two files with 1000 rows of 100 users each, one of them without a name."""
    (tmp_path / "raw").mkdir()
    for number in range(2):
        users = [None if row % 100 == 7 else f"user {row % 100}" for row in range(1000)]
        rows = list(range(1000 * number, 1000 * (number + 1)))
        pyarrow.parquet.write_table(pyarrow.table({"user": users, "row": rows}), tmp_path / f"raw/{number}.parquet")
    return tmp_path / "raw"


def test_a_split_by_a_column_keeps_the_rows_of_a_value_together(ratings: Path, pool: InProcess) -> None:
    found = spotmpi.split(ratings, SHARES, by="user", name="ratings", pool=pool)
    users = {key: {*each.table.column("user").to_pylist()} for key, each in found.items()}
    assert [each.name for each in found.values()] == ["ratings-train", "ratings-test"]
    assert not users["train"] & users["test"]
    assert 55 < len(users["train"]) < 85 and 8 < len(users["test"]) < 35
    assert {each.rows for each in found.values()} == {20 * len(each) for each in users.values()}


def test_a_value_is_in_one_set_though_it_is_a_fraction_in_some_files(
    tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    """The types of CSV are those of each file: where one user has the id 2.5, the others are fractions as well."""
    users = range(300)
    (tmp_path / "0.csv").write_text("user\n" + "".join(f"{user}\n" for user in users))
    (tmp_path / "1.csv").write_text("user\n2.5\n" + "".join(f"{user}\n" for user in users))
    found = spotmpi.split(str(tmp_path / "*.csv"), {"train": 0.5, "test": 0.5}, by="user", name="users", pool=pool)
    sets = [{*each.table.column("user").to_pylist()} for each in found.values()]
    assert not sets[0] & sets[1] and len(sets[0] | sets[1]) == 301


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pyarrow.timestamp("us", "UTC"), pyarrow.timestamp("us", "Europe/Berlin")),
        (pyarrow.timestamp("us"), pyarrow.timestamp("ns")),
        (pyarrow.timestamp("ms", "UTC"), pyarrow.timestamp("ns", "America/New_York")),
        (pyarrow.duration("us"), pyarrow.duration("ns")),
        (pyarrow.decimal128(30, 2), pyarrow.decimal128(38, 9)),
        (pyarrow.decimal128(30, 2), pyarrow.int64()),
    ],
    ids=str,
)
def test_a_value_is_in_one_set_whichever_type_of_time_or_number_a_file_has(
    tmp_path: Path, modules: Modules, pool: InProcess, first: pyarrow.DataType, second: pyarrow.DataType
) -> None:
    found: list[list[int]] = []
    for kind in (first, second):
        column = pyarrow.array(range(0, 40_000_000, 1_000_000))
        if pyarrow.types.is_temporal(kind):
            is_duration = pyarrow.types.is_duration(kind)
            column = column.cast(pyarrow.duration("us") if is_duration else pyarrow.timestamp("us"))
        path = tmp_path / f"{len(found)}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"row": range(40), "by": column.cast(kind)}), path)
        name = f"set{len(found)}"
        found.append(spotmpi.split(path, {"a": 0.5}, by="by", name=name, pool=pool)["a"].table["row"].to_pylist())
    assert found[0] == found[1] and 0 < len(found[0]) < 40


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (pyarrow.string_view(), pyarrow.string()),
        (pyarrow.binary_view(), pyarrow.binary()),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), pyarrow.string()),
        (pyarrow.decimal32(5, 2), pyarrow.decimal128(5, 2)),
        (pyarrow.decimal64(12, 2), pyarrow.decimal128(12, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "by", ["value", pytest.param(None, marks=pytest.mark.extensive("the rows are taken in the same way"))]
)
def test_types_that_pyarrow_cannot_take_rows_of_are_split_as_plain_ones(
    tmp_path: Path, modules: Modules, pool: InProcess, kind: pyarrow.DataType, plain: pyarrow.DataType, by: str | None
) -> None:
    """So Polars writes text with its newest Arrow level. Values in lists and objects are read alike."""
    values = pyarrow.array([str(row % 30) if row % 7 else None for row in range(100)]).cast(plain)
    found: list[dict[str, Any]] = []
    for each in (plain, kind):
        column = values.dictionary_encode() if pyarrow.types.is_dictionary(each) else values.cast(each)
        inside = pyarrow.array([column.to_pylist()[:2]] * 100, pyarrow.list_(plain if column.type != each else each))
        folder = tmp_path / f"raw{len(found)}"
        folder.mkdir()
        table = pyarrow.table({"value": column, "list": inside, "row": range(100)})
        pyarrow.parquet.write_table(table, folder / "0.parquet")
        name = f"set{len(found)}"
        found.append(spotmpi.split(folder, {"a": 0.5, "b": 0.5}, by=by, name=name, pool=pool))
    assert {key: each.table for key, each in found[0].items()} == {key: each.table for key, each in found[1].items()}
    assert found[1]["a"].rows + found[1]["b"].rows == 100 and 20 < found[1]["a"].rows < 80
    assert found[1]["a"].table.schema.field("value").type == plain


def test_nanoseconds_decide_and_nested_values_are_refused_in_one_line(
    tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    times = pyarrow.array([1_700_000_000_000_000_000 + row for row in range(100)]).cast(pyarrow.timestamp("ns"))
    table = pyarrow.table({"time": times, "list": [[row] for row in range(100)]})
    pyarrow.parquet.write_table(table, tmp_path / "0.parquet")
    found = spotmpi.split(tmp_path / "0.parquet", {"a": 0.5, "b": 0.5}, by="time", name="times", pool=pool)
    assert 20 < found["a"].rows < 80 and found["a"].rows + found["b"].rows == 100
    message = r"column 'list' of 0.parquet has the type list<.*>: split by a column of single values, or at random"
    with pytest.raises(SpotmpiError, match=message):
        spotmpi.split(tmp_path / "0.parquet", {"a": 0.5}, by="list", name="lists", pool=pool)


def test_a_split_by_seed_has_its_shares_and_each_row_once(ratings: Path, pool: InProcess) -> None:
    found = spotmpi.split(ratings, {"train": 0.7, "valid": 0.1, "test": 0.2}, name="ratings", pool=pool)
    rows = [row for each in found.values() for row in each.table.column("row").to_pylist()]
    assert sorted(rows) == list(range(2000))
    assert 1300 < found["train"].rows < 1500
    other = spotmpi.split(ratings, {"train": 0.7}, seed=1, name="ratings", pool=pool)["train"]
    assert other.key != found["train"].key
    assert other.table.column("row") != found["train"].table.column("row")


def test_a_split_is_found_again_and_depends_on_its_source(ratings: Path, pool: InProcess) -> None:
    first = spotmpi.split(ratings, SHARES, by="user", name="ratings", pool=pool)
    pool.calls.clear()
    assert spotmpi.split(ratings, SHARES, by="user", name="ratings", pool=pool) == first and pool.calls == []
    (ratings / "0.parquet").rename(ratings / "2.parquet")
    assert spotmpi.split(ratings, SHARES, by="user", name="ratings", pool=pool)["train"].key != first["train"].key


def test_a_sample_of_a_data_set_has_its_name_and_parent(ratings: Path, modules: Modules, pool: InProcess) -> None:
    modules.write(sets="import spotmpi\n\n@spotmpi.dataset\ndef all_rows(raw):\n    return raw\n")
    whole = modules.load().all_rows.options(pool=pool)(ratings)
    sample = spotmpi.sample(whole, 0.1, pool=pool)
    assert (sample.name, sample.manifest.parents) == ("all_rows-sample", (whole.manifest.reference,))
    assert 130 < sample.rows < 270
    assert spotmpi.sample("datasets:all_rows", 0.1, pool=pool) == sample
    assert "rows_between" in " ".join(sample.manifest.code.sources)


@pytest.mark.parametrize("shares", [{}, {"train": 0.0}, {"train": 0.9, "test": 0.2}, [0.8], 0.8, {"train": "0.8"}])
def test_shares_that_do_not_fit_are_refused(shares: Any) -> None:
    with pytest.raises(ValueError, match="give each more than 0, and all together at most 1"):
        spotmpi.split("raw.csv", shares, name="x")


def test_an_unknown_column_and_a_source_without_a_name_are_one_line(ratings: Path, pool: InProcess) -> None:
    with pytest.raises(SpotmpiError, match=r"0\.parquet has no column 'usr': it has user, row"):
        spotmpi.split(ratings, SHARES, by="usr", name="ratings", pool=pool)
    with pytest.raises(ValueError, match="give the data sets a name"):
        spotmpi.split("s3://x/*.parquet", SHARES)


def test_options_reach_the_workers(ratings: Path, pool: InProcess) -> None:
    found = spotmpi.sample(ratings, 1.0, name="all", row_group=300, pool=pool)
    metadata = pyarrow.parquet.read_metadata(Path(found.path, "0.parquet"))
    assert metadata.row_group(0).num_rows == 300
