"""Data sets are built once from code, arguments and inputs, part by part, and nothing half-built is ever found."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from spotmpi.agent.files import lock_file
from spotmpi.api import datasets, pools
from spotmpi.api.datasets import DataSet
from spotmpi.api.lineage import trace
from spotmpi.backends import targets
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.entries import build_lock, inputs
from spotmpi.entries.storage import Storage
from spotmpi.entries.store import Store
from spotmpi.pools.errors import PoolError, PoolLost
from spotmpi.programs.pool.call import CallAborted
from spotmpi.runs.reader import RunState
from spotmpi.streams import part_files, storage, tables
from spotmpi.streams.dataset import Dataset, Source
from spotmpi.streams.errors import StreamError
from tests import nfs
from tests.unit.entries.conftest import Modules
from tests.unit.entries.in_process import InProcess

SETS = '''
import time, random, os, uuid
import numpy as np
import pyarrow as pa
import spotmpi
import helpers

@spotmpi.dataset
def ratings(raw: spotmpi.Source, cut: float = 0.5):
    """Those above a cut."""
    kept = raw["stars"] > cut
    return {"user": helpers.clean(raw["user"][kept]), "stars": raw["stars"][kept]}

@spotmpi.dataset
def joined(raw: spotmpi.Source, names: "spotmpi.Source"):
    known = dict(zip(names["user"], names["name"]))
    return [{"name": known.get(user), "file": raw.name} for user in raw["user"]]

@spotmpi.dataset
def copies(raw):
    with raw.open() as file:
        return {f"copy/{raw.name}": file.read(), f"{raw.name}.txt": "text"}

@spotmpi.dataset(row_group=1000)
def long(raw):
    for start in range(0, 2500, 700):
        yield pa.table({"x": np.arange(start, min(start + 700, 2500))})

@spotmpi.dataset
def failing(raw: spotmpi.Source):
    if raw.name == "b.csv":
        raise KeyError("no b")
    return raw

@spotmpi.dataset
def unordered(raw, values):
    return {"x": [1]}
'''
HELPERS = "def clean(users):\n    return users + 100\n\ndef unused(users):\n    return users\n"
HIDDEN = {
    "clock": "time.time_ns()",
    "random": "random.random()",
    "numpy": "np.random.random()",
    "entropy": "uuid.uuid4().hex",
    "process state": "helpers.__dict__.setdefault('seen', []).append(1) or len(helpers.seen)",
}


@pytest.fixture
def raw(tmp_path: Path, modules: Modules) -> Path:
    """Three files, and the modules of the data sets."""
    modules.write(sets=SETS, helpers=HELPERS)
    folder = tmp_path / "raw"
    folder.mkdir()
    for number, name in enumerate("abc"):
        write(folder / f"{name}.csv", number)
    return folder


def write(path: Path, number: int) -> None:
    path.write_text(f"user,stars\n{number},0.25\n{number + 1},0.75\n")


def files(found: DataSet) -> dict[str, str]:
    return {file.path: file.sha256 for file in found.manifest.files}


def refuse(*arguments: object) -> None:
    raise AssertionError("nothing was to be built")


def test_a_data_set_is_built_once_and_found_again_without_a_pool(raw: Path, modules: Modules, pool: InProcess) -> None:
    found = modules.load().ratings.options(pool=pool)(raw, cut=0.5)
    assert found.table.to_pydict() == {"user": [101, 102, 103], "stars": [0.75] * 3}
    assert (found.rows, pool.built) == (3, ["a", "b", "c"])
    # In a notebook it is shown so; with its manifest, the code and files were pages.
    assert repr(found) == f"<DataSet ratings:1: 3 rows, 3 files, {found.manifest.bytes:,} bytes, in {found.path}>"
    pool.map = refuse  # type: ignore[assignment, method-assign]
    assert modules.load().ratings.options(pool=pool)(raw / "*.csv", 0.5) == found
    assert Store().problems(found.manifest) == []


def test_a_data_set_on_nfs_leaves_no_part(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a folder cannot be removed while a file in it is open: a build ended with an error of its removal."""
    nfs.keep_open_files(monkeypatch)
    found = modules.load().ratings.options(pool=pool)(raw, cut=0.5)
    assert found.rows == 3 and list(Path(found.path).parents[1].glob(".parts/*")) == []


def test_the_manifest_says_what_it_was_made_from(raw: Path, modules: Modules, pool: InProcess) -> None:
    manifest = modules.load().ratings.options(pool=pool)(raw).manifest
    assert manifest.code is not None
    assert set(manifest.code.sources) == {"sets.ratings", "helpers.clean"}
    assert (manifest.arguments, manifest.run, manifest.cost) == ({"cut": 0.5}, "pool-1", 0.25)
    assert [(file.name, file.bytes) for file in manifest.inputs[0].files] == [(f"{name}.csv", 25) for name in "abc"]
    assert manifest.details["function"] == "sets:ratings"


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("sets", '"""Those above a cut."""', '"""Others."""  # a comment'),
        ("helpers", "return users\n", "return -users\n"),
        ("sets", "@spotmpi.dataset\ndef ratings", "@spotmpi.dataset(workers=7, check=0)\ndef ratings"),
    ],
)
def test_a_change_of_code_that_does_not_take_part_builds_nothing(
    raw: Path, modules: Modules, pool: InProcess, module: str, old: str, new: str
) -> None:
    modules.load().ratings.options(pool=pool)(raw)
    modules.replace(module, old, new)
    pool.map = refuse  # type: ignore[assignment, method-assign]
    modules.load().ratings.options(pool=pool)(raw)


def test_a_change_of_a_called_function_or_an_argument_builds_all(raw: Path, modules: Modules, pool: InProcess) -> None:
    first = modules.load().ratings.options(pool=pool)(raw)
    modules.replace("helpers", "users + 100", "users + 200")
    second = modules.load().ratings.options(pool=pool)(raw)
    third = modules.load().ratings.options(pool=pool)(raw, cut=0.1)
    assert len({first.key, second.key, third.key}) == 3 and len(pool.built) == 9
    assert second.table.column("user").to_pylist() == [201, 202, 203]
    assert [each.key for each in Store().list()] == [first.key, second.key, third.key]


def test_a_changed_input_builds_its_parts_and_no_others(raw: Path, modules: Modules, pool: InProcess) -> None:
    ratings = modules.load().ratings.options(pool=pool)
    first = ratings(raw)
    write(raw / "b.csv", 50)
    write(raw / "aa.csv", 60)
    (raw / "c.csv").unlink()
    pool.calls.clear()
    second = ratings(raw)
    assert pool.built == ["aa", "b"]
    assert files(second)["a.parquet"] == files(first)["a.parquet"]
    assert second.table.column("user").to_pylist() == [101, 161, 151]
    assert Path(first.path, "a.parquet").samefile(Path(second.path, "a.parquet"))


def test_a_damaged_part_is_built_again_and_not_shared_so_that_one_version_repairs_the_other(
    raw: Path, modules: Modules, pool: InProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both versions had the same damaged file, by a link, and a new build of one took it from the other."""
    ratings = modules.load().ratings.options(pool=pool)
    first = ratings(raw)
    write(raw / "b.csv", 50)
    second = ratings(raw)
    good, shared = files(first)["a.parquet"], Path(first.path, "a.parquet")
    assert shared.samefile(Path(second.path, "a.parquet"))
    shared.chmod(0o644)
    shared.write_bytes(b"rotten")
    pool.calls.clear()
    write(raw / "b.csv", 70)
    assert files(ratings(raw))["a.parquet"] == good and pool.built == ["a", "b"]
    assert f"{second} has 1 damaged part: `spotmpi data verify` names all" in capfd.readouterr().err
    for damaged, stars in ((second, 50), (first, 2)):
        shutil.rmtree(Path(damaged.path).parent)
        write(raw / "b.csv", stars)
        again = ratings(raw)
        assert Store().problems(again.manifest) == []
        assert files(again)["a.parquet"] == good


def test_a_touched_file_is_the_same_input(raw: Path, modules: Modules, pool: InProcess) -> None:
    ratings = modules.load().ratings.options(pool=pool)
    found = ratings(raw)
    os.utime(raw / "a.csv", (1, 1))
    assert ratings(raw) == found and len(pool.built) == 3


def test_a_data_set_of_data_sets_has_them_as_parents_and_builds_only_what_changed(
    raw: Path, tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    (tmp_path / "names.csv").write_text("user,name\n101,Ada\n103,Bob\n")
    sets = modules.load()
    ratings, joined = (each.options(pool=pool) for each in (sets.ratings, sets.joined))
    parent = ratings(raw)
    child = joined(parent, names=tmp_path / "names.csv")
    assert child.manifest.parents == (parent.manifest.reference,)
    assert child.table.column("name").to_pylist() == ["Ada", None, "Bob"]
    assert joined("datasets:ratings", tmp_path / "names.csv") == child
    write(raw / "c.csv", 0)
    pool.calls.clear()
    assert joined(ratings(raw), tmp_path / "names.csv").key != child.key
    assert pool.built == ["c", "c"]
    (tmp_path / "names.csv").write_text("user,name\n101,Eve\n")  # the second source counts as a whole
    pool.calls.clear()
    joined("datasets:ratings", tmp_path / "names.csv")
    assert pool.built == ["a", "b", "c"]


def test_no_data_set_is_made_of_one_that_was_removed_meanwhile(raw: Path, modules: Modules, pool: InProcess) -> None:
    """`rm` refuses a data set that another one names, which could still be in the making."""
    sets = modules.load()
    ratings = sets.ratings.options(pool=pool)(raw)
    whole = pool.map

    def remove_meanwhile(function: Any, tasks: Any) -> Iterator[Any]:
        yield from whole(function, tasks)
        if function is part_files.rebuild:
            Store().remove(ratings.manifest)

    pool.map = remove_meanwhile  # type: ignore[method-assign]
    with pytest.raises(
        SpotmpiError, match=rf"is not built: {ratings.manifest} was removed meanwhile; build that again"
    ):
        sets.ratings.options(pool=pool, name="above")(ratings)
    assert Store().list() == []


def test_any_files_can_be_a_data_set(raw: Path, modules: Modules, pool: InProcess) -> None:
    found = modules.load().copies.options(pool=pool)(raw)
    assert list(files(found)) == sorted([*(f"{x}.csv.txt" for x in "abc"), *(f"copy/{x}.csv" for x in "abc")])
    assert found.rows is None
    assert Path(found.path, "copy/b.csv").read_bytes() == (raw / "b.csv").read_bytes()


def test_row_groups_have_the_same_sizes_however_rows_arrive(raw: Path, modules: Modules, pool: InProcess) -> None:
    found = modules.load().long.options(pool=pool)(raw / "a.csv")
    metadata = pyarrow.parquet.read_metadata(Path(found.path, "a.parquet"))
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [1000, 1000, 500]


@pytest.mark.parametrize("value", HIDDEN.values(), ids=HIDDEN.keys())
def test_hidden_state_is_found_and_leaves_nothing(raw: Path, modules: Modules, pool: InProcess, value: str) -> None:
    modules.write(sets=SETS + f"\n@spotmpi.dataset\ndef hidden(raw):\n    return {{'x': [{value}]}}\n")
    hidden = modules.load().hidden.options(pool=pool)
    with pytest.raises(SpotmpiError, match=r"hidden gives other files when it builds . again, so it has hidden state"):
        hidden(raw)
    assert Store().list() == []
    assert list(Path(Store().storage.url, "datasets/hidden").rglob("*.parquet")) == []
    assert len(hidden.options(check=0)(raw).manifest.files) == 3


MORE_CALLS = pytest.mark.extensive("another call of the same kind as the first")


@pytest.mark.parametrize(
    "value",
    [
        "datetime.date.today().isoformat()",
        pytest.param("Date.today().isoformat()", marks=MORE_CALLS),
        pytest.param("datetime.datetime.now(datetime.UTC).year", marks=MORE_CALLS),
        pytest.param("time.strftime('%H')", marks=MORE_CALLS),
        pytest.param("localtime().tm_yday", marks=MORE_CALLS),
        "''.join({chr(97 + number) for number in range(26)})",
        "hash(raw.name)",
        "os.getpid()",
        "helpers.__dict__.setdefault('seen', []).append(1) or len(helpers.seen)",
    ],
)
def test_hidden_state_that_stays_the_same_for_a_while_is_found(
    raw: Path, modules: Modules, pool: InProcess, value: str
) -> None:
    imports = "import datetime\nfrom datetime import date as Date\nfrom time import localtime\n"
    modules.write(sets=f"{imports}{SETS}\n@spotmpi.dataset\ndef hidden(raw):\n    return {{'x': [{value}]}}\n")
    pool.other_process = True
    with pytest.raises(SpotmpiError, match=r"hidden gives other files when it builds . again, so it has hidden state"):
        modules.load().hidden.options(pool=pool)(raw)


def test_a_part_that_is_built_again_in_another_process_is_the_same_or_fails_as_the_function_does(
    raw: Path, modules: Modules, pool: InProcess
) -> None:
    modules.write(
        sets=f"""import datetime, os, signal\n{SETS}
@spotmpi.dataset
def fine(raw):
    begun = time.time()
    day = datetime.datetime.strptime("2020-02-29", "%Y-%m-%d")
    assert isinstance(day, datetime.datetime) and isinstance(datetime.date(2020, 2, 29), datetime.date)
    assert type(datetime.datetime.now()) is type(day) and time.time() - begun < 60
    return pa.table({{"day": [day, day + datetime.timedelta(1)], "name": [raw.name] * 2}})

@spotmpi.dataset
def late(raw):
    if "spotmpi-" in os.path.dirname(sys.argv[1] if len(sys.argv) > 1 else ""):
        raise KeyError("again")
    return raw.table

@spotmpi.dataset
def killed(raw):
    if "spotmpi-" in os.path.dirname(sys.argv[1] if len(sys.argv) > 1 else ""):
        os.kill(os.getpid(), signal.SIGKILL)
    return raw.table
""".replace("import time, random", "import sys, time, random")
    )
    pool.other_process = True
    built = modules.load()
    assert built.fine.options(pool=pool)(raw).rows == 6
    with pytest.raises(SpotmpiError, match=r"late failed for .: KeyError: 'again'"):
        built.late.options(pool=pool)(raw)
    with pytest.raises(SpotmpiError, match="again has ended with signal 9: if its memory was too little, give"):
        built.killed.options(pool=pool)(raw)


def test_one_percent_of_the_parts_is_built_twice_and_at_least_one(raw: Path, modules: Modules, pool: InProcess) -> None:
    for number in range(247):
        write(raw / f"more-{number}.csv", number)
    modules.load().ratings.options(pool=pool)(raw)
    assert len(pool.built) == 250 and len(pool.calls) == 253


def test_a_source_that_changes_meanwhile_is_an_error_and_leaves_no_entry(
    raw: Path, modules: Modules, pool: InProcess
) -> None:
    change = f"open({str(raw / 'b.csv')!r}, 'a').write('9,0.9\\n')"
    modules.write(sets=SETS + f"\n@spotmpi.dataset\ndef changing(raw):\n    {change}\n    return raw\n")
    changed = r"b\.csv was changed while the data set reads it: 25 bytes of {0}, now 31 bytes of {0}; call it"
    with pytest.raises(SpotmpiError, match=changed.format(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")):
        modules.load().changing.options(pool=pool)(raw / "b.csv")
    assert Store().list() == []


def test_code_that_is_changed_while_parts_are_built_is_an_error(raw: Path, modules: Modules, pool: InProcess) -> None:
    whole = pool.map

    def changing(function: Callable[..., Any], tasks: Any) -> Any:
        yield from whole(function, tasks)
        modules.replace("helpers", "users ", "users  ")

    pool.map = changing  # type: ignore[method-assign]
    with pytest.raises(SpotmpiError, match=r"helpers\.py was changed after it was imported: start Python again"):
        modules.load().ratings.options(pool=pool)(raw)
    assert Store().list() == []


def test_a_function_that_fails_names_its_part_and_the_next_call_builds_only_the_rest(
    raw: Path, modules: Modules, pool: InProcess
) -> None:
    failing = modules.load().failing.options(pool=pool)
    kept = r"failing failed for b: KeyError: 'no b' \(1 of 3 parts is kept\)"  # also where only two were to be built
    for built in (["a", "b"], ["b"]):
        pool.calls.clear()
        with pytest.raises(SpotmpiError, match=kept) as caught:
            failing(raw)
        assert isinstance(caught.value.__cause__, KeyError)
        assert Store().list() == [] and pool.built == built


def test_a_file_beside_a_module_is_not_shipped_and_the_remedy_says_what_to_do(
    raw: Path, modules: Modules, pool: InProcess
) -> None:
    looks = "def looks(raw):\n    return {'x': [len(open('absent.csv').read())]}\n"
    modules.write(sets=f"{SETS}\n@spotmpi.dataset\n{looks}")
    remedy = r"and no files beside these: make it a source \(0 of 3 parts are kept\)$"
    with pytest.raises(SpotmpiError, match=rf"^looks failed for a: FileNotFoundError: .*'absent.csv'; .*{remedy}"):
        modules.load().looks.options(pool=pool)(raw)


def test_a_file_of_an_entry_with_other_bytes_is_named_where_it_cannot_be_read(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the folder of all of them, with the remedy for a file that somebody else writes."""
    monkeypatch.setattr(storage, "PAUSES", ())
    monkeypatch.setattr(tables, "_SMALL", 0)
    sets = modules.load()
    found = sets.ratings.options(pool=pool)(raw)
    damaged = Path(found.path, "b.parquet")
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:20] + b"X" * 20 + damaged.read_bytes()[40:])
    remedy = (
        f"it is of the data set ratings@{found.key[:12]}: `spotmpi data verify ratings@{found.key[:12]}` says "
        r"which of its files are damaged; remove the folder of the data set and build it again \("
    )
    with pytest.raises(SpotmpiError, match=rf"^above failed for b: {damaged} cannot be read as Parquet: .*; {remedy}"):
        sets.ratings.options(pool=pool, name="above")(found)


@pytest.mark.parametrize("is_small", [True, False], ids=["small", "large"])
def test_a_flipped_bit_of_a_table_is_found_where_it_is_read(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    """Most of them gave other rows: only `spotmpi data verify` found them."""
    if not is_small:  # only pages have checksums there
        monkeypatch.setattr(tables, "_SMALL", 0)
    found = modules.load().ratings.options(pool=pool)(raw)
    damaged, title = Path(found.path, "b.parquet"), f"ratings@{found.key[:12]}"
    content, rows = damaged.read_bytes(), found.table
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    damaged.chmod(0o600)
    for place in range(0, len(content) if is_small else footer, 3):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        damaged.write_bytes(changed)
        os.utime(damaged, (place, place))  # readers keep what they have read of a version
        try:
            assert found.table.equals(rows) and not is_small  # such as in the header of a page
        except StreamError as error:
            assert str(error).startswith(f"{damaged} ")
            assert f"it is of the data set {title}: `spotmpi data verify {title}` says" in str(error)


def test_a_changed_byte_of_a_file_that_is_read_whole_is_found(raw: Path, modules: Modules, pool: InProcess) -> None:
    found = modules.load().copies.options(pool=pool)(raw)
    for name, folder in (("copy/b.csv", "copy"), ("b.csv.txt", "*.txt")):
        damaged = Path(found.path, name)
        damaged.chmod(0o600)
        damaged.write_bytes(damaged.read_bytes().replace(b"1", b"7").replace(b"x", b"y"))
        reason = (
            rf"{re.escape(str(damaged))} is damaged: its SHA-256 is not that of the manifest; .*`spotmpi data verify "
        )
        with pytest.raises(StreamError, match=reason):
            Source(*inputs.resolve("raw", f"{found.path}/{folder}", Store()).files).read()


def test_a_data_set_without_files_has_no_table(raw: Path, modules: Modules, pool: InProcess) -> None:
    """It was an IndexError."""
    modules.write(sets="import spotmpi\n@spotmpi.dataset\ndef none(raw):\n    return None\n")
    found = modules.load().none.options(pool=pool)(raw)
    with pytest.raises(StreamError, match=r"^the data set .* has no files, and so no table$"):
        _ = found.table


def test_what_is_built_again_with_other_files_is_not_damaged(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook that has read the former files knows their SHA-256."""
    monkeypatch.chdir(raw)
    modules.write(sets=f"{SETS}\n@spotmpi.dataset\ndef other(raw):\n    return {{'x': [open('lookup').read()]}}\n")
    other = modules.load().other.options(pool=pool, check=0)
    for text in ("one", "two"):
        Path("lookup").write_text(text)
        found = other(raw / "a.csv")
        assert found.table["x"].to_pylist() == [text]
        Store().remove(found.manifest)


def test_an_error_that_this_process_cannot_load_is_named_without_its_traceback(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a call raised an error that this driver cannot load (it cannot be pickled):\nTraceback:\n  File\nOdd: odd\n"

    def fail(*arguments: Any) -> None:
        raise PoolError(text)

    monkeypatch.setattr(pool, "map", fail)
    with pytest.raises(SpotmpiError, match=r"^ratings failed for a: .* pickled\): Odd: odd \(0 of 3 parts are kept\)$"):
        modules.load().ratings.options(pool=pool)(raw)


def test_parts_that_other_workers_have_completed_meanwhile_are_counted(
    raw: Path, modules: Modules, pool: InProcess
) -> None:
    whole = pool.map

    def at_once(function: Callable[..., Any], tasks: Any) -> Any:
        first, failing, *others = tasks
        yield from whole(function, [first])
        list(whole(function, others))  # whose results come after that of the one that fails
        yield from whole(function, [failing])

    pool.map = at_once  # type: ignore[method-assign]
    failing = modules.load().failing.options(pool=pool)
    with pytest.raises(SpotmpiError, match=r"failing failed for b: KeyError: 'no b' \(2 of 3 parts are kept\)"):
        failing(raw)
    pool.map = whole  # type: ignore[method-assign]
    with pytest.raises(SpotmpiError, match=r"failing failed for b: KeyError: 'no b' \(0 of 1 part is kept\)"):
        failing(raw / "b.csv")


def test_a_call_that_the_pool_gives_up_is_sent_again_after_the_others_and_not_forever(
    raw: Path, modules: Modules, pool: InProcess
) -> None:
    whole, losses = pool.map, {"a": 2, "c": 1, "d": 2}
    write(raw / "d.csv", 3)

    def losing(function: Callable[..., Any], tasks: Any) -> Any:
        for task in tasks:
            if losses.get(task.stem, 0):
                losses[task.stem] -= 1
                raise CallAborted(f"a call of {function.__name__} ended the process of its worker 3 times")
            yield from whole(function, [task])

    pool.map = losing  # type: ignore[method-assign]
    ratings = modules.load().ratings.options(pool=pool, check=0)
    assert ratings(raw).rows == 4
    assert pool.built == ["b", "c", "a", "d"]
    losses["b"] = 99
    remedy = f"; see `spotmpi logs {pool.id}`, and give workers more memory if it was too little"
    with pytest.raises(
        SpotmpiError, match=rf"ratings failed for b: a call of build ended .* 3 times{remedy} \(3 of 4 parts"
    ):
        ratings(raw, cut=0.1)


def test_a_function_that_ends_its_worker_for_each_part_fails_without_all_parts_being_tried(
    raw: Path, modules: Modules, pool: InProcess
) -> None:
    tried = list[str]()

    def losing(function: Callable[..., Any], tasks: Any) -> Any:
        tried.append(tasks[0].stem)
        raise CallAborted(f"a call of {function.__name__} ended the process of its worker 3 times")

    for number in range(20):
        write(raw / f"d{number:02}.csv", number)
    pool.map = losing  # type: ignore[method-assign]
    with pytest.raises(SpotmpiError, match=r"ratings failed for d01: a call of build .* \(0 of 23 parts are kept\)"):
        modules.load().ratings.options(pool=pool)(raw)
    assert tried == ["a", "b", "c", "d00", "d01"]


@pytest.mark.parametrize("losses", [2, 3])
def test_a_pool_that_loses_its_scheduler_is_replaced_and_its_parts_are_kept_and_checked(
    raw: Path,
    modules: Modules,
    monkeypatch: pytest.MonkeyPatch,
    losses: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    opened: list[InProcess] = []

    @contextlib.contextmanager
    def own(*arguments: Any) -> Iterator[InProcess]:
        opened.append(InProcess())
        whole = opened[-1].map

        def losing(function: Callable[..., Any], tasks: Any) -> Any:
            if len(opened) <= losses:
                yield from whole(function, tasks[:1])
                raise PoolLost("the pool is lost: node 0: it was reclaimed; spotmpi.pool('x') joins the next attempt")
            yield from whole(function, tasks)

        opened[-1].map = losing  # type: ignore[method-assign]
        yield opened[-1]

    monkeypatch.setattr(datasets, "_pool", own)
    ratings = modules.load().ratings.options(check=1.0)
    if losses == 3:
        with pytest.raises(SpotmpiError, match=r"reclaimed \(3 of 3 parts are kept\); call it again$"):
            ratings(raw)
        return
    found = ratings(raw)
    assert (found.rows, found.manifest.cost) == (3, 0.75), "the price of three pools"
    assert [pool.built for pool in opened] == [["a"], ["b"], ["c"]]
    assert [stem for name, stem in opened[-1].calls if name == "rebuild"] and len(opened[-1].calls) == 4
    line = "the pool is lost: node 0: it was reclaimed (1 of 3 parts is kept): another one builds the others"
    assert line in capfd.readouterr().err


def test_parts_of_a_builder_that_was_killed_before_they_were_compared_are_compared_by_the_next_one(
    raw: Path, modules: Modules, pool: InProcess
) -> None:
    """The next call took them as they were, hidden state and all."""
    modules.write(sets=SETS + "\n@spotmpi.dataset\ndef hidden(raw):\n    return {'x': [time.time()]}\n")
    hidden, whole = modules.load().hidden.options(pool=pool), pool.map

    def killed(function: Callable[..., Any], tasks: list[Any]) -> Any:
        if function is part_files.rebuild:
            raise KeyboardInterrupt
        return whole(function, tasks)

    pool.map = killed  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        hidden(raw)
    pool.map = whole  # type: ignore[method-assign]
    assert len(pool.built) == 3
    with pytest.raises(SpotmpiError, match=r"hidden gives other files when it builds . again, so it has hidden state"):
        hidden(raw)
    assert len(pool.built) == 3 and Store().list() == []
    assert hidden.options(check=0.0)(raw).rows == 3 and len(pool.built) == 6, "what was other the second time is gone"


def test_parts_of_a_build_that_broke_off_are_kept(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratings = modules.load().ratings.options(pool=pool)
    whole = pool.map

    def broken(function: Callable[..., Any], tasks: list[Any]) -> Any:
        yield from whole(function, tasks[:2])
        raise ConnectionError("the driver lost its pool")

    pool.map = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(SpotmpiError, match="ratings failed for c: ConnectionError: the driver lost its pool"):
        ratings(raw)
    assert Store().list() == []
    pool.map = whole  # type: ignore[method-assign]
    pool.calls.clear()
    found = ratings(raw)
    assert pool.built == ["c"] and found.rows == 3
    assert Store().problems(found.manifest) == []
    assert not Path(Store().storage.url, "datasets/ratings/.parts", found.key).exists()


def test_the_pool_of_a_killed_builder_is_named_by_the_next_build_while_it_runs(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for a driver as long as limits.driver says, and costs what it costs."""

    class Killed(InProcess):
        id = "pool-0"

        def map(self, function: Any, tasks: Any) -> Any:
            raise KeyboardInterrupt

    states = {"pool-0": "running", "pool-1": "running"}
    opened = iter([Killed(), Killed(), pool])
    monkeypatch.setattr(pools, "pool", lambda *arguments, **options: contextlib.nullcontext(next(opened)))
    known = SimpleNamespace(state=lambda run: RunState(run, "", "pool", states[run]))
    monkeypatch.setattr(targets, "backend_of", lambda run, on: known)
    build = modules.load().ratings
    with pytest.raises(KeyboardInterrupt):
        build(raw)
    assert "earlier build" not in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        build(raw)
    assert (
        "pool pool-0 of an earlier build, which was killed, still runs: `spotmpi stop pool-0` ends it"
        in capsys.readouterr().err
    )
    states["pool-0"] = "stopped"
    build(raw)
    assert "earlier build" not in capsys.readouterr().err
    assert not list(Store().storage.names("datasets/ratings/.parts"))


@pytest.mark.parametrize("place", ["folder", "file://", "memory"])
def test_parts_of_a_killed_builder_are_removed_by_the_next_build_and_those_of_a_living_one_are_not(
    raw: Path, modules: Modules, pool: InProcess, place: str, tmp_path: Path
) -> None:
    local = "" if place == "folder" else place
    url = f"memory://{uuid.uuid4().hex}" if place == "memory" else f"{local}{tmp_path}/sets"
    ratings, storage = modules.load().ratings.options(pool=pool, store=url), Store(url).storage
    killed, living = "a" * 64, "b" * 64
    for key in (killed, living):
        storage.write(f"datasets/ratings/.parts/{key}/x.json", b"[]")
    if storage.folder:
        (storage.folder / f"datasets/ratings/.lock-{killed}").touch()  # its process is gone, and so is its lock
    else:
        storage.write(f"datasets/ratings/.claim-{killed}.json", b"{}")
        modified = storage._remote[0].store[storage._path(f"datasets/ratings/.claim-{killed}.json")]
        modified.modified -= timedelta(seconds=build_lock.EXPIRY + 1)
    with build_lock.only_builder(storage, f"datasets/ratings/{living}", lambda text: None):
        assert ratings(raw).rows == 3
        assert storage.names("datasets/ratings/.parts") == [living]
    left = {path.split("/")[0] for path in storage.files("datasets/ratings")}
    assert left == {ratings(raw).key, ".parts", ".versions"}


def test_builders_at_the_same_time_do_the_work_once(raw: Path, modules: Modules, pool: InProcess) -> None:
    ratings, found = modules.load().ratings.options(pool=pool), list[DataSet]()
    threads = [threading.Thread(target=lambda: found.append(ratings(raw))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 and len({each.key for each in found}) == 1
    assert sorted(pool.built) == ["a", "b", "c"]


def test_who_has_waited_for_a_lock_that_was_removed_takes_a_new_one(tmp_path: Path) -> None:
    storage, name, waits = Storage(str(tmp_path)), f"datasets/ratings/{'a' * 64}", threading.Event()
    lock, refused = tmp_path / f"datasets/ratings/.lock-{'a' * 64}", list[bool]()

    def second() -> None:
        with build_lock.only_builder(storage, name, lambda line: waits.set()), lock.open() as file:
            try:
                lock_file(file)
            except BlockingIOError:
                refused.append(True)

    lock.parent.mkdir(parents=True)
    thread = threading.Thread(target=second)
    with lock.open("a") as first:  # as of a process that removes what a killed builder has left
        lock_file(first)
        thread.start()
        assert waits.wait(60)
        lock.unlink()
    thread.join(60)
    assert refused == [True]
    assert not lock.exists()


def test_who_waits_for_a_builder_says_so_with_a_short_key(tmp_path: Path) -> None:
    said, waits = list[str](), threading.Event()

    def echo(line: str) -> None:
        said.append(line)
        waits.set()

    def second() -> None:
        with build_lock.only_builder(Storage(str(tmp_path)), f"datasets/ratings/{'a' * 64}", echo):
            pass

    thread = threading.Thread(target=second)
    with build_lock.only_builder(Storage(str(tmp_path)), f"datasets/ratings/{'a' * 64}", refuse):
        thread.start()
        assert waits.wait(60)
    thread.join(60)
    assert said == ["waiting for another process that builds datasets/ratings/aaaaaaaaaaaa"]


def test_a_machine_that_lost_its_power_in_a_build_continues_it(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what was written last there are empty files, unless it was flushed to the disk, as parts are."""
    ratings, whole, flushed = modules.load().ratings.options(pool=pool), pool.map, list[str]()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def broken(function: Callable[..., Any], tasks: list[Any]) -> Any:
        yield from whole(function, tasks[:2])
        raise ConnectionError("the machine lost its power")

    monkeypatch.setattr(os, "fsync", noted)
    pool.map = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(SpotmpiError, match="lost its power"):
        ratings(raw)
    assert flushed == ["a.parquet", "b.parquet"]
    first, *_ = sorted(Path(Store().storage.url, "datasets/ratings/.parts").glob("*/*.json"))
    first.write_text("")
    pool.map = whole  # type: ignore[method-assign]
    pool.calls.clear()
    found = ratings(raw)
    assert len(pool.built) == 2 and found.rows == 3 and Store().problems(found.manifest) == []


def test_a_full_disk_is_one_line_and_the_next_call_continues(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = part_files._publish

    def full(task: Any, *arguments: Any) -> None:
        if task.stem == "c":
            raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")
        publish(task, *arguments)

    ratings = modules.load().ratings.options(pool=pool)
    monkeypatch.setattr(part_files, "_publish", full)
    with pytest.raises(SpotmpiError, match=r"c cannot be written to .*: No space left on device; free space there"):
        ratings(raw)
    assert Store().list() == []
    monkeypatch.undo()
    monkeypatch.setenv("SPOTMPI_RUNS", str(raw.parent / "runs"))
    pool.calls.clear()
    assert ratings(raw).rows == 3 and pool.built == ["c"]


@pytest.mark.parametrize("verb", ["return", "yield"])
@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("urllib.error.URLError('no route')", "f failed for a: URLError: <urlopen error no route> (0 of 3 parts"),
        ("OSError(28, 'No space left on device')", "f failed for a: OSError: [Errno 28] No space left on device (0 of"),
    ],
)
def test_what_the_function_raises_itself_is_no_error_of_the_store(
    raw: Path, modules: Modules, pool: InProcess, raised: str, message: str, verb: str
) -> None:
    body = f"    def fetch():\n        raise {raised}\n    {verb} fetch()\n"
    modules.write(sets=f"import urllib.error\nimport spotmpi\n@spotmpi.dataset\ndef f(raw):\n{body}")
    with pytest.raises(SpotmpiError, match=re.escape(message)):
        modules.load().f.options(pool=pool)(raw)


def test_a_store_behind_a_url_has_the_same_files(raw: Path, modules: Modules, pool: InProcess) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    ratings = modules.load().ratings.options(pool=pool)
    local = ratings(raw)
    found = ratings.options(store=url)(raw)
    assert found.key == local.key and files(found) == files(local)
    assert found.table.equals(local.table)
    write(raw / "b.csv", 9)
    pool.calls.clear()
    again = ratings.options(store=url)(raw)
    assert pool.built == ["b"] and Store(url).problems(again.manifest) == []
    left = {path.split("/")[0] for path in Store(url).storage.files("datasets/ratings")}
    assert left == {found.key, again.key, ".versions"}


def test_an_entry_with_a_missing_file_is_no_source(raw: Path, modules: Modules, pool: InProcess) -> None:
    sets = modules.load()
    found = sets.ratings.options(pool=pool)(raw)
    Path(found.path, "b.parquet").unlink()
    with pytest.raises(SpotmpiError, match=r"datasets:ratings@\w+ is damaged: .*b\.parquet"):
        sets.long.options(pool=pool)(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing a required argument: 'raw'"),
        (("absent.csv",), "is empty: no file has this name or pattern"),
        ((7,), "raw = 7: name a file, a folder, a pattern, a URL or a data set"),
        (("~nobody-here/a.csv",), "nobody-here/a.csv"),
        (("datasets:absent",), "is not in the store"),
        (("nothing://x",), "cannot be opened"),
    ],
)
def test_what_is_no_source_is_one_line_with_a_remedy(
    raw: Path, modules: Modules, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(SpotmpiError, match=message) as caught:
        modules.load().ratings(*arguments)
    assert "\n" not in str(caught.value)


def test_an_argument_that_cannot_be_hashed_is_an_error_that_names_it(raw: Path, modules: Modules) -> None:
    with pytest.raises(InputError, match=r"values = <object.*cannot be hashed"):
        modules.load().unordered(raw, values=object())


def test_equal_arguments_have_one_key_whatever_their_order(raw: Path, modules: Modules, pool: InProcess) -> None:
    unordered = modules.load().unordered.options(pool=pool)
    keys = {unordered(raw, value).key for value in ({"b", "a", "c"}, {"c", "b", "a"})}
    assert len(keys) == 1
    assert unordered(raw, {"a", "b"}).key not in keys


def test_a_function_that_workers_cannot_import_is_an_error_before_anything_is_built(
    raw: Path, modules: Modules
) -> None:
    modules.write(
        sets="""
import functools, spotmpi

def bare(function):
    def wrapper(raw):
        return function(raw)
    return wrapper

def wrapped(function):
    return functools.wraps(function)(bare(function))

@spotmpi.dataset
@bare
def lost(raw):
    return raw.table

@spotmpi.dataset
@wrapped
def found(raw):
    return raw.table

class Sets:
    @spotmpi.dataset
    def inner(raw):
        return raw.table
"""
    )
    sets = modules.load()
    for function, name in ((sets.lost, r"bare\.<locals>\.wrapper"), (sets.Sets.inner, r"Sets\.inner")):
        with pytest.raises(
            InputError, match=f"dataset = 'sets:{name}': workers import it by name: define it at the top"
        ):
            function(raw)
    assert sets.found.options(pool=InProcess())(raw).name == "found"


def test_unknown_options_are_an_error(modules: Modules) -> None:
    modules.write(sets="import spotmpi\n@spotmpi.dataset(wrokers=2)\ndef f(raw):\n    return raw\n")
    with pytest.raises(TypeError, match="unknown options of a data set: wrokers; it has name, workers, cpu"):
        modules.load()
    modules.write(sets="import spotmpi\n@spotmpi.dataset\ndef f(raw):\n    return raw\n")
    with pytest.raises(TypeError, match="unknown options of a data set: wrokers; it has name, workers, cpu"):
        modules.load().f.options(wrokers=2)
    modules.write(sets='import spotmpi\n@spotmpi.dataset("ratings")\ndef f(raw):\n    return raw\n')
    with pytest.raises(TypeError, match=r"'ratings' is no function: write options by their names, such as @spotmpi"):
        modules.load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_group": 0}, "row_group = 0: is a number of rows: 1 or more"),
        ({"check": 1.5}, "check = 1.5: is the share of parts that are built twice: from 0 to 1"),
        ({"check": -1}, "check = -1: is the share of parts"),
    ],
)
def test_options_out_of_range_are_an_error_before_a_pool_starts(
    raw: Path, modules: Modules, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        modules.load().ratings.options(pool="none is needed", **options)(raw)


def test_files_with_names_that_cannot_be_printed_are_sources(raw: Path, modules: Modules, pool: InProcess) -> None:
    """Such a name was refused once all parts were built, or no file could be written."""
    for number, name in enumerate([b"a\nb.csv", b"\xff/\tc.csv", b"a_b.csv"]):
        path = raw / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"user,stars\n{number},1.0\n")
    ratings = modules.load().ratings.options(pool=pool)
    found = ratings(raw)
    names = ["a.parquet", "a_b.csv.parquet", "a_b.parquet", "b.parquet", "c.parquet", "part/c.parquet"]
    assert [*files(found)] == names and ratings(raw).key == found.key
    tree = trace(f"{found.path}/part/c.parquet")
    assert [node.name for node in tree.walk() if node.what == "raw file"] == ["\udcff/\tc.csv"]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("7", r"int cannot be written as Parquet: 'int' object is not iterable; give columns by name"),
        ("[[1, 2]]", r"list cannot be written as Parquet: 'list' object is not a mapping; give columns by name"),
        ("['']", r"list cannot be written as Parquet: 'str' object is not a mapping; give columns by name"),
        ("{'x': 3}", r"dict cannot be written as Parquet: .*; give columns by name, each an array or a list"),
        ("{'x': [2**70]}", r"dict cannot be written as Parquet: .* too large .*; give columns by name"),
        ("[{'x': 1}, {'x': 'a'}]", r"list cannot be written as Parquet: Could not convert 'a' .*; give columns"),
        ("{'n' * 300: b'x'}", "a cannot be written to .*: File name too long; give the file a shorter name"),
        ("iter([{'a': b'1'}, {'a/b': b'2'}])", r"a/b is below another file of the data set: give each its own name"),
        ("{'a' if raw.name == 'a.csv' else f'a/{raw.name}': b'1'}", r"files = 'a': is the name of a file and of a fol"),
        ("{'a\\nb': b'1'}", r"a data set has no place for a file named 'a\\nb': it has characters that cannot be"),
    ],
)
def test_what_cannot_be_a_file_of_a_data_set_is_one_line_with_the_remedy(
    raw: Path, modules: Modules, pool: InProcess, result: str, message: str
) -> None:
    modules.write(sets=f"import spotmpi\n@spotmpi.dataset\ndef f(raw):\n    return {result}\n")
    with pytest.raises(SpotmpiError, match=message) as caught:
        modules.load().f.options(pool=pool)(raw)
    assert "\n" not in str(caught.value) and Store().list() == []


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", ".hidden", "_hidden"])
def test_names_of_files_outside_of_the_data_set_are_refused(
    raw: Path, modules: Modules, pool: InProcess, name: str
) -> None:
    modules.write(sets=f"import spotmpi\n@spotmpi.dataset\ndef f(raw):\n    return {{{name!r}: b'x'}}\n")
    with pytest.raises(SpotmpiError, match="a data set has no place for a file named"):
        modules.load().f.options(pool=pool)(raw)
    assert Store().list() == []


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([1], "{'y': [1]}", "columns x, then y"),
        ([1], "{'x': [1], 'y': [1]}", "columns x, then x, y"),
        ([1], "{'x': ['007']}", "Unable to merge: Field x has incompatible types: int64 vs string"),
        (["007"], "{'x': [7]}", "Unable to merge: Field x has incompatible types: string vs int64"),
        ([None], "{'x': [1]}", "Unsupported cast from int64 to null .*"),
    ],
)
def test_tables_that_do_not_fit_together_are_an_error(
    raw: Path, modules: Modules, pool: InProcess, monkeypatch: pytest.MonkeyPatch, first: Any, second: str, reason: str
) -> None:
    """On NFS, too, where the unfinished part of a file that was still open could not be removed."""
    nfs.keep_open_files(monkeypatch)
    modules.write(
        sets=f"import spotmpi\n@spotmpi.dataset\ndef f(raw):\n    yield {{'x': {first}}}\n    yield {second}\n"
    )
    with pytest.raises(
        SpotmpiError, match=rf"the tables of a do not fit together: {reason}; yield tables with the same columns"
    ):
        modules.load().f.options(pool=pool)(raw)
    assert list(Path(Store().storage.url).glob("**/.part-*")) == []


MIXED = """
import pyarrow as pa
import spotmpi

@spotmpi.dataset
def f(raw):
    values = {"a.csv": [1], "b.csv": ["1"], "c.csv": pa.array([], pa.bool_())}
    yield {"x": values[raw.name]}
"""


@pytest.mark.parametrize("is_remote", [False, True])
def test_parts_that_are_no_one_table_are_an_error_that_names_the_column_and_its_types(
    raw: Path, modules: Modules, pool: InProcess, is_remote: bool
) -> None:
    """The data set was kept, and no stream could read it."""
    modules.write(sets=MIXED)
    url = f"memory://{uuid.uuid4().hex}" if is_remote else None
    types = "a.parquet, b.parquet cannot be read together: .*Field x has incompatible types: int64 vs string"
    with pytest.raises(
        SpotmpiError, match=f"^datasets:f@.* is not built: {types}; give each column one type"
    ) as caught:
        modules.load().f.options(pool=pool, store=url)(raw)
    assert "\n" not in str(caught.value) and Store(url).list("datasets", "f") == []
    modules.write(sets=MIXED.replace('["1"]', "[0.5, None]"))
    found = modules.load().f.options(pool=pool, store=url)(raw)
    assert found.table["x"].to_pylist() == [1.0, 0.5, None]
    modules.write(sets=f'{MIXED.replace("""["1"]""", "[2]")}    yield {{f"{{raw.name}}.parquet": b"no table"}}\n')
    assert len(modules.load().f.options(pool=pool, store=url)(raw).manifest.files) == 6


def test_a_part_may_be_empty(raw: Path, modules: Modules, pool: InProcess) -> None:
    modules.write(
        sets="import spotmpi\n@spotmpi.dataset\ndef f(raw):\n    return raw if raw.name == 'b.csv' else None\n"
    )
    f = modules.load().f.options(pool=pool)
    assert [*files(f(raw))] == ["b.parquet"]
    write(raw / "d.csv", 1)
    pool.calls.clear()
    f(raw)
    assert pool.built == ["d"]


def test_a_file_without_rows_for_which_the_function_fails_is_named_with_the_remedy(
    tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    modules.write(
        sets="import numpy as np\nimport spotmpi\n\n@spotmpi.dataset\ndef known(raw: spotmpi.Source):\n"
        "    return {'x': raw['x'][~np.isnan(raw['x'])]}\n"
    )
    (tmp_path / "1.csv").write_text("x\n0.5\n")
    (tmp_path / "2.csv").write_text("x\n")
    with pytest.raises(
        SpotmpiError, match=r"^known failed for 2: TypeError: .*; it has no rows, .*: return None for it"
    ):
        modules.load().known.options(pool=pool)(str(tmp_path / "*.csv"))
    modules.replace("sets", "    return", "    if not len(raw['x']):\n        return None\n    return")
    assert modules.load().known.options(pool=pool)(str(tmp_path / "*.csv")).table["x"].to_pylist() == [0.5]


def test_a_claim_behind_a_url_is_waited_for_and_taken_over_once_it_is_not_renewed() -> None:
    storage, now, said = Storage(f"memory://{uuid.uuid4().hex}"), [0.0], list[str]()
    storage.write("sets/.claim-a.json", b"of a lost process")

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 30:
            storage.write("sets/.claim-a.json", b"renewed once")

    with build_lock.only_builder(storage, "sets/a", said.append, sleep, lambda: now[0]):
        assert 30 + build_lock.EXPIRY <= now[0] < 35 + build_lock.EXPIRY
        assert b"owner" in (storage.read("sets/.claim-a.json") or b"")
    assert storage.files("sets") == [], "neither the claim nor the marker of its takeover"
    assert said == ["waiting for another process that builds it: sets/.claim-a.json"]


class Waits(Exception):
    """A builder that would wait."""


def test_of_several_that_take_over_a_lost_claim_one_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes to remove it when another has done so, and has a claim of its own there."""
    storage, removals, builders = Storage(f"memory://{uuid.uuid4().hex}"), list[str](), list[str]()
    storage.write("sets/.claim-a.json", b"of a lost process")

    def build(name: str) -> None:
        now = [0.0]

        def pause(seconds: float) -> None:
            now[0] += seconds
            if now[0] > 1.5 * build_lock.EXPIRY:
                raise Waits

        stack.enter_context(build_lock.only_builder(storage, "sets/a", lambda line: None, pause, lambda: now[0]))
        builders.append(name)

    def remove(name: str, original: Callable[[str], None] = storage.remove) -> None:
        removals.append(name)
        if len(removals) == 1:
            with contextlib.suppress(Waits):
                build("the faster one")
        original(name)

    monkeypatch.setattr(storage, "remove", remove)
    with contextlib.ExitStack() as stack:
        build("the slower one")
        assert len(builders) == 1
    assert storage.read("sets/.claim-a.json") is None


def test_who_would_have_taken_over_may_be_lost_too() -> None:
    storage, now = Storage(f"memory://{uuid.uuid4().hex}"), [0.0]
    storage.write("sets/.claim-a.json", b"of a lost process")
    digest = hashlib.sha256(b"of a lost process").hexdigest()[:16]
    storage.write(f"sets/.claim-a.json.{digest}-0", b"")

    def pause(seconds: float) -> None:
        now[0] += seconds

    with build_lock.only_builder(storage, "sets/a", lambda line: None, pause, lambda: now[0]):
        assert 2 * build_lock.EXPIRY <= now[0] < 2 * build_lock.EXPIRY + 5
    assert storage.files("sets") == []


def test_who_was_stopped_before_its_takeover_takes_the_claim_of_no_later_builder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has seen the claim of a lost process; when it goes on, another has taken that over, and a third builds."""
    storage, now, building, write = Storage(f"memory://{uuid.uuid4().hex}"), [0.0], list[str](), Storage.write
    storage.write("sets/.claim-a.json", b"of a lost process")

    def others_first(self: Storage, name: str, content: bytes, exclusive: bool = False) -> bool:
        if name.partition(".json.")[2] and not building:
            building.append("the second one")
            with build_lock.only_builder(storage, "sets/a", lambda line: None, pause, lambda: now[0]):
                pass
            third.enter_context(build_lock.only_builder(storage, "sets/a", lambda line: None))
            building.append("the third one")
        return write(self, name, content, exclusive)

    def pause(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 2.5 * build_lock.EXPIRY:
            raise Waits

    monkeypatch.setattr(Storage, "write", others_first)
    with contextlib.ExitStack() as third:
        with (
            pytest.raises(Waits),
            build_lock.only_builder(storage, "sets/a", lambda line: None, pause, lambda: now[0]),
        ):
            raise AssertionError("two build at the same time")
        assert building == ["the second one", "the third one"] and len(storage.files("sets")) == 1
    assert storage.files("sets") == []


def test_a_builder_that_slept_takes_the_claim_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    monkeypatch.setattr(build_lock, "RENEWAL", 0.01)
    with build_lock.only_builder(storage, "sets/a", lambda line: None):
        storage.write("sets/.claim-a.json", b"of another process")
        time.sleep(0.1)
        assert storage.read("sets/.claim-a.json") == b"of another process"
    assert storage.read("sets/.claim-a.json") == b"of another process"


def test_the_second_call_takes_less_than_a_second(raw: Path, modules: Modules, pool: InProcess) -> None:
    ratings = modules.load().ratings.options(pool=pool)
    ratings(raw)
    begin = time.process_time()
    ratings(raw)
    assert time.process_time() - begin < 1


def test_a_data_set_is_a_function_with_its_name_and_documentation(raw: Path, modules: Modules) -> None:
    ratings = modules.load().ratings
    assert isinstance(ratings, Dataset)
    assert (ratings.name, ratings.__doc__) == ("ratings", "Those above a cut.")
    assert ratings.source_arguments() == ["raw"]
    assert modules.load().joined.source_arguments() == ["raw", "names"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_source_without_rows_has_its_columns(tmp_path: Path, modules: Modules, pool: InProcess, suffix: str) -> None:
    modules.write(sets="import spotmpi\n@spotmpi.dataset\ndef f(raw):\n    return {'x': raw['x'], 'y': raw['x']}\n")
    if suffix == "csv":
        (tmp_path / "a.csv").write_text("x\n")
    else:
        pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.array([], "int64")}), tmp_path / "a.parquet")
    found = modules.load().f.options(pool=pool)(tmp_path / f"a.{suffix}")
    assert (found.rows, found.table.column_names) == (0, ["x", "y"])


def test_a_function_of_any_arguments_is_refused(raw: Path, modules: Modules) -> None:
    modules.write(sets="import spotmpi\n@spotmpi.dataset\ndef f(raw, **more):\n    return raw\n")
    with pytest.raises(InputError, match="f = 'more': takes any arguments: list those that it has by their names"):
        modules.load().f(raw, cut=1)


def test_pods_are_not_sent_to_files_of_this_machine(raw: Path, modules: Modules) -> None:
    ratings = modules.load().ratings.options(on="kubernetes/training", store="memory://sets")
    with pytest.raises(InputError, match=r"raw = .*: is on this machine, where pods cannot reach it: use a URL"):
        ratings(raw)


def record_on_kubernetes(pool: RunPaths) -> None:
    """What says of an open pool that its workers are pods."""
    pool.folder.mkdir(parents=True)
    pool.plan.write_text(json.dumps({"backend": "kubernetes", "context": None, "namespace": "training"}))


def test_a_folder_that_pods_mount_at_the_same_path_is_a_store_and_a_source_for_them(
    raw: Path, modules: Modules, pool: InProcess, tmp_path: Path
) -> None:
    record_on_kubernetes(RunPaths(tmp_path / "runs" / pool.id))
    url = f"file://{tmp_path}/mount/sets"
    found = modules.load().ratings.options(pool=pool, store=url)(f"file://{raw}")
    assert found.path == f"{url}/datasets/ratings/{found.key}/files"
    assert found.rows == 3 and Store(url).problems(found.manifest) == []
    parts = tmp_path / "mount/sets/datasets/ratings/.parts"
    assert not [*parts.glob("*/*")], "the files of parts are moved, not copied"
    files = {node.name for node in trace(found.path).walk() if node.what == "raw file"}
    assert files == {f"file://{path}" for path in raw.iterdir()}
    pool.id = "pool-2"  # of this machine
    here = modules.load().ratings.options(pool=pool)(raw)
    assert (here.key, here.manifest.files) == (found.key, found.manifest.files)


def test_a_local_store_is_no_place_for_pods(modules: Modules, raw: Path) -> None:
    import fsspec

    url = f"memory://raw-{uuid.uuid4().hex}/a.csv"
    with fsspec.open(url, "w") as file:
        file.write("user,stars\n1,0.75\n")
    with pytest.raises(InputError, match=r"store = .*: is on this machine, where pods cannot reach it"):
        modules.load().ratings.options(on="kubernetes/training")(url)


def test_an_open_pool_of_a_cluster_does_not_get_a_folder_of_this_machine(
    modules: Modules, raw: Path, pool: InProcess, tmp_path: Path
) -> None:
    record_on_kubernetes(RunPaths(tmp_path / "runs" / pool.id))
    with pytest.raises(InputError, match=r"raw = .*where pods cannot reach it: .*; store = .*: is on this machine, wh"):
        modules.load().ratings.options(pool=pool)(raw)
    assert pool.calls == []


def test_a_column_that_a_source_lacks_is_named_with_those_that_it_has(
    tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    modules.write(
        sets="import spotmpi\n\n@spotmpi.dataset\ndef wrong(raw: spotmpi.Source):\n"
        '    assert raw.get("z") is None and "z" not in raw\n    return {"x": raw["z"]}\n'
    )
    (tmp_path / "raw.csv").write_text("x,y\n1,2\n")
    with pytest.raises(SpotmpiError, match=r"wrong failed for raw: KeyError: 'no column z: the columns are x, y'"):
        modules.load().wrong.options(pool=pool)(tmp_path / "raw.csv")
