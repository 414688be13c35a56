"""From a file back to the raw data by records alone, as a tree and as events; and made again, bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.api import lineage, open_lineage
from spotmpi.api.datasets import DataSet
from spotmpi.api.entry_page import entry_report
from spotmpi.api.lineage import Node, entry_node, lines, trace
from spotmpi.api.open_lineage import events
from spotmpi.api.reproduce import reproduce, temporary_store
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.entries.manifest import Input, Manifest, RawFile
from spotmpi.entries.store import Store
from tests.command_line import invoke
from tests.testbed.web import answering
from tests.unit.entries.conftest import Modules
from tests.unit.entries.in_process import InProcess

SETS = """
import spotmpi
import helpers

@spotmpi.dataset
def ratings(raw: spotmpi.Source, cut: float = 0.5):
    return {"x": helpers.clean(raw["x"])}

@spotmpi.dataset
def doubled(raw: spotmpi.Source):
    return {"x": raw["x"] * 2}
"""
FLOW = """
def prepare(rows, seed):
    return rows

def predict(batches):
    for batch in batches:
        yield {"y": batch["x"] + 1}
"""


@pytest.fixture
def sets(tmp_path: Path, modules: Modules, pool: InProcess) -> tuple[DataSet, DataSet]:
    """A data set of three raw files, and one that is made of it."""
    modules.write(sets=SETS, helpers="def clean(x):\n    return x + 1\n", flow=FLOW)
    (tmp_path / "raw").mkdir()
    for number, name in enumerate("abc"):
        (tmp_path / f"raw/{name}.csv").write_text(f"x\n{number}\n")
    loaded = modules.load()
    parent = loaded.ratings.options(pool=pool)(tmp_path / "raw/*.csv")
    return parent, loaded.doubled.options(pool=pool)(parent)


def find(tree: Node, what: str) -> list[str]:
    return [node.name for node in tree.walk() if node.what == what]


def test_a_manifest_leads_to_its_entry_and_a_copy_of_a_file_to_the_entries_with_that_content(
    sets: tuple[DataSet, DataSet], modules: Modules, pool: InProcess, tmp_path: Path
) -> None:
    """Both had no record, as a model that was pulled."""
    parent, child = sets
    assert trace(str(Path(child.path).with_name("manifest.json"))) == trace(child.path)
    copy = tmp_path / "elsewhere.bin"
    copy.write_bytes(Path(child.path, "b.parquet").read_bytes())
    tree = trace(str(copy))
    assert find(tree, "data set") == [str(child.manifest), str(parent.manifest)] and find(tree, "raw file") == ["b.csv"]
    output = invoke("why", str(copy)).stdout
    assert output.startswith(f"file {copy}, ") and f", with the content of b.parquet of {child.manifest}\n" in output
    for place in (copy, Path(child.path).with_name("manifest.json")):
        assert reproduce(str(place), modules.folder, pool=pool).files == 6
    copy.write_bytes(b"x")
    assert "elsewhere.bin': no manifest and no record of a run tells" in invoke("why", str(copy)).stderr
    copy.write_bytes(b"")
    assert invoke("why", str(copy)).returncode == 2
    copy.unlink()
    assert "elsewhere.bin': no such file: name a file of the store" in invoke("why", str(copy)).stderr


def test_a_file_leads_to_the_raw_file_that_its_part_was_made_from(sets: tuple[DataSet, DataSet]) -> None:
    parent, child = sets
    tree = trace(f"{child.path}/b.parquet")
    assert find(tree, "data set") == [str(child.manifest), str(parent.manifest)]
    assert find(tree, "raw file") == ["b.csv"]
    assert find(tree, "code") == ["sets:doubled", "sets:ratings"]
    assert find(tree, "run") == ["pool-1", "pool-1"]
    assert tree.facts["state"] == "as recorded"
    assert (
        find(trace(child.path), "raw file")
        == ["a.csv", "b.csv", "c.csv"]
        == find(trace(str(parent.manifest)), "raw file")
    )


def test_the_tree_is_text_and_json(sets: tuple[DataSet, DataSet]) -> None:
    parent, child = sets
    text = invoke("why", f"{child.path}/b.parquet").stdout.splitlines()
    assert text == list(lines(trace(f"{child.path}/b.parquet")))
    assert text[1].startswith(f"└─ data set {child.manifest}, version 1, 3 rows, ") and "$0.25" in text[1]
    assert text[-1].endswith(
        "└─ raw file b.csv, 4 bytes, digest " + trace(str(parent.manifest)).parents[-1].parents[1].facts["digest"][:12]
    )
    values = json.loads(invoke("why", str(child.manifest), "--json").stdout)
    assert values["key"] == child.key
    assert values["from"][0]["sources"] == {
        "sets.doubled": "def doubled(raw: spotmpi.Source):\n    return {'x': raw['x'] * 2}"
    }


def test_records_alone_are_enough_and_may_be_moved(
    sets: tuple[DataSet, DataSet], tmp_path: Path, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trace(str(sets[1].manifest)).values()
    shutil.move(tmp_path / "store", tmp_path / "archive")
    for name in ("raw", "code", "cache"):
        shutil.rmtree(tmp_path / name)
    monkeypatch.setenv("SPOTMPI_RUNS", str(tmp_path / "elsewhere" / "runs"))
    path = tmp_path / "archive" / "datasets" / "doubled" / sets[1].key
    assert trace(str(path)).values() == before
    assert find(trace(f"{path}/files/a.parquet"), "raw file") == ["a.csv"]


def test_changed_missing_and_added_files_are_told_apart(sets: tuple[DataSet, DataSet]) -> None:
    path = Path(sets[0].path)
    (path / "a.parquet").unlink()
    (path / "b.parquet").chmod(0o644)
    (path / "b.parquet").write_bytes(b"other")
    (path / "d.parquet").write_bytes(b"")
    assert trace(f"{path}/a.parquet").facts["state"] == "missing"
    assert trace(f"{path}/b.parquet").facts["state"] == "changed since it was recorded"
    with pytest.raises(InputError, match=r"is not a file of datasets:ratings@\w+: somebody has added it"):
        trace(f"{path}/d.parquet")


def test_what_cannot_be_read_of_a_file_leaves_its_lineage(sets: tuple[DataSet, DataSet], tmp_path: Path) -> None:
    """The command ended with that alone; a file of a run folder that is not there was shown as if it were."""
    path = Path(sets[0].path)
    for name in "ab":
        (path / f"{name}.parquet").unlink()
    (path / "a.parquet").mkdir()
    (path / "b.parquet").symlink_to("absent")
    unreadable = "cannot be read: Is a directory; check the storage, then try again"
    assert [trace(f"{path}/{name}.parquet").facts["state"] for name in "abc"] == [unreadable, "missing", "as recorded"]
    output = invoke("why", f"{path}/a.parquet")
    assert output.returncode == 0 and "raw file a.csv" in output.stdout and output.stderr == ""
    run = tmp_path / "runs" / "run-1"
    run.mkdir(parents=True)
    (run / "spec.toml").touch()
    (run / "plan.yaml").write_text("{}")
    (run / "link").symlink_to("absent")
    (run / "unreadable").symlink_to("/proc/self/mem")
    assert [trace(str(run / name)).facts for name in ("link", "absent", "plan.yaml")] == [
        {"state": "missing"},
        {"state": "missing"},
        {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()},
    ]
    failed = trace(str(run / "unreadable"))
    assert failed.facts == {"state": "cannot be read: Input/output error; check the storage, then try again"}
    assert find(failed, "run") == ["run-1"]


def test_a_folder_of_a_data_set_is_none_of_its_files(tmp_path: Path, modules: Modules, pool: InProcess) -> None:
    """It was called a file that somebody has added."""
    modules.write(sets=SETS, helpers="def clean(x):\n    return x\n")
    for name in ("a/1", "a/2", "b/1"):
        (tmp_path / f"raw/{name}.csv").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"raw/{name}.csv").write_text("x\n1\n")
    found = modules.load().ratings.options(pool=pool)(tmp_path / "raw")
    tree = trace(f"{found.path}/a")
    assert (tree.what, tree.facts["files"], find(tree, "data set")) == ("folder", 2, [str(found.manifest)])
    assert invoke("why", f"{found.path}/a").stdout.startswith(f"folder {found.path}/a, 2 files, ")


def test_a_missing_parent_is_shown_and_stops_a_reproduction(
    sets: tuple[DataSet, DataSet], tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    parent, child = sets
    shutil.rmtree(Path(parent.path).parent)
    tree = trace(f"{child.path}/b.parquet")
    remedy = "copy its folder from a store that has it, or build it again as it was"
    lack = f"missing from the store {tmp_path / 'store'}: {remedy}"
    assert f"{parent.manifest}, record {lack}" in invoke("why", str(child.manifest)).stdout
    assert [node.facts["record"] for node in tree.walk() if node.name == str(parent.manifest)] == [lack]
    assert all(event["outputs"][0]["name"] == "datasets:doubled" for event in events(tree))
    with pytest.raises(SpotmpiError, match=re.escape(f"{parent.manifest} is {lack}")):
        reproduce(child.path, modules.folder, pool=pool)


def test_an_edited_manifest_of_an_ancestor_is_one_line_of_the_tree_and_all_else_is_shown(
    sets: tuple[DataSet, DataSet], modules: Modules, pool: InProcess, tmp_path: Path
) -> None:
    """It ended `why` and `show` of all that was made from that one, and of any entry that its key named."""
    parent, child = sets
    file = Path(parent.path).with_name("manifest.json")
    file.chmod(0o644)
    file.write_text(file.read_text().replace('"rows": 1', '"rows": 2'))
    line = f"└─ data set {parent.manifest}, the manifest {file} was edited or damaged, its digest is not that of"
    remedy = ": restore it from a copy, or remove its folder and make the entry again"
    for arguments in (
        ("why", child.path),
        ("why", f"{child.path}/b.parquet"),
        ("data", "show", "doubled"),
        ("data", "show", child.key[:12]),
        ("why", f"datasets:doubled@{child.key}"),
    ):
        output = invoke(*arguments)
        (found,) = (each for each in output.stdout.splitlines() if str(parent.manifest) in each and "input" not in each)
        assert output.returncode == 0 and line in found and found.endswith(remedy), output
        assert "code sets:doubled" in output.stdout
    (node,) = (each for each in trace(child.path).walk() if each.name == str(parent.manifest))
    assert node.facts == {"key": parent.key, "damage": found.partition(", ")[2]} and node.parents == ()
    told = events(trace(child.path))
    assert told[-1]["inputs"][0]["name"] == "datasets:ratings"
    assert {each["name"] for event in told for each in event["outputs"]} == {"datasets:doubled"}
    page = tmp_path / "page.html"
    assert invoke("data", "show", "doubled", "--html", str(page)).returncode == 0
    assert "was edited or damaged" in page.read_text()
    with pytest.raises(SpotmpiError, match=r"^the manifest .* was edited or damaged"):
        reproduce(child.path, modules.folder, pool=pool)
    assert "was edited or damaged" in invoke("why", str(parent.manifest)).stderr
    refused = invoke("data", "rm", "doubled").stderr
    assert (
        f"{child.manifest} is not removed, since what cannot be read may be made from it: the manifest {file}"
        in refused
    )


@pytest.mark.parametrize(
    ("cost", "text"), [(0.25, "$0.25"), (0.0, "$0.00"), (0.004, "< $0.01"), (0.005, "$0.01"), (1234.5, "$1,234.50")]
)
def test_a_small_sum_is_not_nothing(cost: float, text: str, tmp_path: Path) -> None:
    manifest = Manifest(kind="datasets", name="made", key="a" * 64, created=1.0, files=(), cost=cost)
    (line,) = lines(entry_node(manifest, Store(str(tmp_path))))
    assert line.endswith(f", {text}")
    assert dict(entry_report(manifest, Store(str(tmp_path)), 2.0).conditions)["Cost"] == text


@pytest.mark.parametrize("place", ["/etc/passwd", "/absent/file", "s3://bucket/file", "datasets:absent"])
def test_a_place_without_a_record_is_one_line(sets: tuple[DataSet, DataSet], place: str) -> None:
    for command in ("why", "reproduce"):
        output = invoke(command, place)
        assert output.returncode == 2 and len(output.stderr.splitlines()) == 1, output


def test_events_name_each_data_set_with_its_inputs_and_version(sets: tuple[DataSet, DataSet], tmp_path: Path) -> None:
    parent, child = sets
    assert invoke("why", f"{child.path}/b.parquet", "--openlineage", str(tmp_path / "events.jsonl")).returncode == 0
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["eventType"], event["job"]["name"]) for event in events] == [
        ("START", "sets:ratings"),
        ("COMPLETE", "sets:ratings"),
        ("START", "sets:doubled"),
        ("COMPLETE", "sets:doubled"),
    ]
    made = events[-1]
    assert [
        (each["name"], each["facets"]["version"]["datasetVersion"]) for each in made["inputs"] + made["outputs"]
    ] == [
        ("datasets:ratings", parent.key),
        ("datasets:doubled", child.key),
    ]
    read = events[1]["inputs"][0]
    assert (read["namespace"], read["name"]) == ("file", f"{tmp_path}/raw")
    condition = {"type": "location", "locations": [f"{tmp_path}/raw/{name}.csv" for name in "abc"]}
    assert read["inputFacets"]["subset"]["inputCondition"] == condition
    assert events[0]["run"] == events[1]["run"] != made["run"]
    for event in events:  # what the schema of OpenLineage 2-0-2 requires
        assert {"eventTime", "producer", "schemaURL", "run", "job"} <= event.keys()


def test_events_are_in_the_order_in_which_their_entries_were_made() -> None:
    """A tree explains once what two entries were made from, which may be below the later one."""

    def made(name: str, hour: int, *parents: Node) -> Node:
        facts = {"key": name * 64, "created": f"2026-01-02T{hour:02}:00:00+00:00"}
        return Node("data set", f"datasets:{name}", facts, parents)

    above = Node("data set", "datasets:a", {"key": "a" * 64, "repeated": True})
    tree = made("d", 4, made("c", 3, made("a", 1)), made("b", 2, above))
    found = [event["outputs"][0]["name"] for event in open_lineage.events(tree)[::2]]
    assert found == ["datasets:a", "datasets:b", "datasets:c", "datasets:d"]


@pytest.mark.parametrize(
    ("source", "folder", "names", "expected", "locations"),
    [
        (
            "s3://bucket/raw/*/x.csv",
            "s3://bucket/raw/",
            ["1/x.csv", "2/x.csv"],
            ("s3://bucket", "raw"),
            ["s3://bucket/raw/1/x.csv", "s3://bucket/raw/2/x.csv"],
        ),
        ("s3://bucket/*.csv", "s3://bucket/", ["1.csv"], ("s3://bucket", "/"), ["s3://bucket/1.csv"]),
        ("s3://bucket/raw/1.csv", "s3://bucket/raw/", ["1.csv"], ("s3://bucket", "raw/1.csv"), None),
        (
            "s3://bucket/set/",
            "",  # as the source of a stream
            ["bucket/set/1.csv", "bucket/set/2.csv"],
            ("s3://bucket", "set"),
            ["s3://bucket/set/1.csv", "s3://bucket/set/2.csv"],
        ),
        ("/raw", "", ["1.csv", "a/2.csv"], ("file", "/raw"), ["/raw/1.csv", "/raw/a/2.csv"]),
        ("/raw", "", ["1.csv"], ("file", "/raw"), ["/raw/1.csv"]),
        ("/raw/1.csv", "", ["1.csv"], ("file", "/raw/1.csv"), None),
        ("/raw/[12].csv", "", ["/raw/1.csv"], ("file", "/raw"), ["/raw/1.csv"]),
        ("kafka://broker:9092/topic", "", ["topic/0", "topic/1"], ("kafka://broker:9092", "topic"), None),
    ],
)
def test_raw_files_are_a_data_set_of_their_folder_with_those_that_were_read(
    source: str, folder: str, names: list[str], expected: tuple[str, str], locations: list[str] | None, tmp_path: Path
) -> None:
    files = tuple(RawFile(name, 1, "d") for name in names)
    read = Input("raw", source, "e" * 64, files, folder=folder)
    manifest = Manifest(kind="datasets", name="made", key="a" * 64, created=1.0, files=(), inputs=(read,))
    (found,) = events(entry_node(manifest, Store(str(tmp_path))))[-1]["inputs"]
    assert (found["namespace"], found["name"]) == expected
    assert found["facets"]["version"]["datasetVersion"] == "e" * 64
    subset = found.get("inputFacets", {}).get("subset", {}).get("inputCondition")
    assert subset == (locations and {"type": "location", "locations": locations})


def test_events_are_posted_to_a_catalogue_and_a_refusal_is_one_line(sets: tuple[DataSet, DataSet]) -> None:
    received: list[Any] = []

    class Catalogue(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201 if self.path == "/api/v1/lineage" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with answering(HTTPServer(("127.0.0.1", 0), Catalogue)) as address:
        url = f"http://{address}"
        tree = trace(str(sets[0].manifest))
        assert open_lineage.send(tree, f"{url}/api/v1/lineage") == 2
        assert received == open_lineage.events(tree)
        with pytest.raises(
            SpotmpiError, match=r"does not take the events: HTTP Error 404.*; check the URL of the catalogue"
        ):
            open_lineage.send(tree, f"{url}/other")
    with pytest.raises(SpotmpiError, match="take the events: Connection refused; check the URL"):
        open_lineage.send(tree, url)


def test_a_file_is_made_again_from_the_raw_data(
    sets: tuple[DataSet, DataSet], modules: Modules, pool: InProcess
) -> None:
    pool.calls.clear()
    result = reproduce(f"{sets[1].path}/b.parquet", str(modules.folder), pool=pool)
    assert (result.files, result.different, result.reproduced) == (
        6,
        (),
        (str(sets[0].manifest), str(sets[1].manifest)),
    )
    assert pool.built == ["a", "b", "c"] * 2
    assert {each.key for each in Store().list()} == {each.key for each in sets}


def test_a_file_that_was_changed_after_it_was_kept_is_not_called_identical(
    sets: tuple[DataSet, DataSet], modules: Modules, pool: InProcess
) -> None:
    """What was made again was compared with the manifest alone."""
    path = Path(sets[0].path)
    (path / "b.parquet").chmod(0o644)
    with (path / "b.parquet").open("r+b") as file:
        file.write(b"rot!")
    line = f"{sets[0].manifest}: b.parquet was changed after it was kept"
    for place in (f"{path}/b.parquet", str(path), str(path.parent)):
        assert reproduce(place, modules.folder, pool=pool).different == (line,)
    for place in (f"{path}/a.parquet", str(sets[0].manifest)):
        assert reproduce(place, modules.folder, pool=pool).different == ()
    (path / "d.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"'d.parquet': is not a file of datasets:ratings@\w+: somebody has added it"):
        reproduce(f"{path}/d.parquet", modules.folder, pool=pool)


@pytest.mark.parametrize(
    ("on", "url", "is_in_store", "builders"),
    [
        ("local", "/{}", False, "local"),
        ("kubernetes/team", "/{}", False, None),  # pods cannot reach it: data sets are built here, as they were
        ("kubernetes/team", "file:///{}", True, "kubernetes/team"),
        ("slurm", "/{}", True, "slurm"),  # which the nodes share
    ],
)
def test_data_sets_are_made_again_where_their_workers_reach_the_store_and_nothing_of_it_stays(
    tmp_path: Path, on: str, url: str, is_in_store: bool, builders: str | None
) -> None:
    store = Store(url.format(str(tmp_path)[1:]))
    with pytest.raises(SpotmpiError, match="a part fails"), temporary_store(store, on) as (own, workers):
        own.storage.write("datasets/a/b", b"")
        assert own.storage.url.startswith(f"{store.storage.url}/.reproduced-") == is_in_store
        assert workers == builders
        raise SpotmpiError("a part fails")
    assert own.storage.read("datasets/a/b") is None and [*tmp_path.iterdir()] == []


def test_a_difference_is_named(sets: tuple[DataSet, DataSet], modules: Modules, pool: InProcess) -> None:
    whole = pool.map

    def other(function: Any, tasks: Any) -> Any:  # a library that behaves otherwise, with the same version
        return ([(path, size, "0" * 64, rows) for path, size, _, rows in each] for each in whole(function, tasks))

    pool.map = other  # type: ignore[method-assign]
    result = reproduce(str(sets[0].manifest), modules.folder, pool=pool)
    assert result.different == tuple(f"{sets[0].manifest}: {name}.parquet" for name in "abc")


def test_changed_code_and_raw_files_stop_a_reproduction_with_the_remedy(
    sets: tuple[DataSet, DataSet], modules: Modules, pool: InProcess, tmp_path: Path
) -> None:
    modules.replace("helpers", "x + 1", "x + 2")
    modules.load()
    with pytest.raises(
        SpotmpiError, match=r"cannot be made again: its code is not what it was \(helpers\.clean\): restore"
    ):
        reproduce(sets[1].path, modules.folder, pool=pool)
    modules.replace("helpers", "x + 2", "x + 1")
    modules.load()
    (tmp_path / "raw/b.csv").write_text("x\n7\n")
    with pytest.raises(SpotmpiError, match=r"raw/\*\.csv are not what they were \(b\.csv\): restore them"):
        reproduce(sets[1].path, modules.folder, pool=pool)
    modules.forget()
    modules.folder.joinpath("sets.py").unlink()
    with pytest.raises(
        InputError, match=r"sets:ratings.: cannot be imported: .*; name the folder of its modules: code="
    ):
        (tmp_path / "raw/b.csv").write_text("x\n1\n")
        reproduce(sets[1].path, tmp_path / "raw", pool=pool)


def test_an_entry_that_several_others_were_made_from_is_explained_once(
    tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    """Of 20 data sets that each read the one before twice, the whole tree would have a million lines."""
    function = "def both(a: spotmpi.Source, b: spotmpi.Source):\n    return {'x': b['x'] + 1}\n"
    modules.write(sets=f"import spotmpi\n\n@spotmpi.dataset\n{function}")
    (tmp_path / "raw.csv").write_text("x\n1\n")
    both = modules.load().both.options(pool=pool, check=0)
    chain = [both(tmp_path / "raw.csv", tmp_path / "raw.csv")]
    for number in range(20):
        chain.append(both.options(name=f"both-{number}")(chain[-1], chain[-1]))
    output = invoke("why", chain[-1].path)
    assert output.returncode == 0 and len(output.stdout.splitlines()) < 200
    assert f"data set {chain[0].manifest}, version 1, see above" in output.stdout
    tree = trace(chain[-1].path)
    assert {*find(tree, "data set")} == {str(each.manifest) for each in chain} and find(tree, "raw file") == [
        "raw.csv"
    ] * 2
    repeated = next(each.values() for each in tree.walk() if "repeated" in each.facts)
    assert repeated["key"] in {each.key for each in chain} and repeated["from"] == []
    inputs = {event["outputs"][0]["name"]: [each["name"] for each in event["inputs"]] for event in events(tree)}
    assert inputs["datasets:both-7"] == ["datasets:both-6"] * 2 and len(inputs) == 21


ARGUMENTS = """
import collections, dataclasses, datetime, decimal, enum, functools, pathlib
import numpy
import spotmpi


class Kind(enum.Enum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Inner:
    at: float
    kinds: tuple = (Kind.LOW,)


@dataclasses.dataclass(slots=True)
class Config:
    inner: Inner
    of: dict = dataclasses.field(default_factory=lambda: {1: 2, "x": {3}})


class Plain:
    def __init__(self, at):
        self.at = at


class Reduced(Plain):
    def __reduce__(self):
        return Reduced, (self.at,)


Pair = collections.namedtuple("Pair", "a b")


def half(x):
    return x / 2


def scaled(x, by):
    return x * by


@spotmpi.dataset
def cut(raw: spotmpi.Source, at, other: Config = Config(Inner(0.25)), unheld: Plain = Reduced(3)):
    return {"x": raw["x"], "at": [repr(type(at))] * len(raw["x"])}
"""
HELD = [
    "numpy.float64(0.5)",
    "numpy.arange(6.0).reshape(2, 3)",
    "(1, 2.5, ('a', None), float('nan'))",
    "{1: {'b': {2}}, ('c',): frozenset({3})}",
    "Config(Inner(0.5), {5: (6,)})",
    "Plain(Plain([Kind.LOW]))",
    "Pair(1, half)",
    "half",
    "Plain",
    "functools.partial(scaled, by=3)",
    "datetime.datetime(2026, 11, 27, 12, tzinfo=datetime.timezone.utc)",
    "[datetime.date(2026, 1, 2), decimal.Decimal('1.50'), pathlib.Path('a/b'), 1j, b'\\x00']",
]


@pytest.mark.parametrize("value", HELD)
def test_a_data_set_is_made_again_with_arguments_that_are_no_json(
    value: str, tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    """A tuple or a dataclass, even as a default, ended as an argument that its manifest did not hold."""
    modules.write(sets=ARGUMENTS)
    (tmp_path / "raw.csv").write_text("x\n1\n")
    sets = modules.load()
    found = sets.cut.options(pool=pool)(tmp_path / "raw.csv", at=eval(value, vars(sets)))
    result = reproduce(found.path, modules.folder, pool=pool)
    assert (result.different, result.files) == ((), 1)


def test_an_argument_of_which_not_all_is_known_is_named(tmp_path: Path, modules: Modules, pool: InProcess) -> None:
    modules.write(sets=ARGUMENTS)
    (tmp_path / "raw.csv").write_text("x\n1\n")
    sets = modules.load()
    found = sets.cut.options(pool=pool)(tmp_path / "raw.csv", at=sets.Reduced(1))
    with pytest.raises(SpotmpiError, match=r"has arguments that its manifest does not hold \(at\): call its function"):
        reproduce(found.path, modules.folder, pool=pool)


def test_a_prediction_leads_to_its_run_and_data_and_is_made_again(
    sets: tuple[DataSet, DataSet], modules: Modules, pool: InProcess
) -> None:
    flow = modules.load("flow")
    pipeline = spotmpi.pipeline(sets[1], flow.prepare, predict=flow.predict, batch=2, write="jsonl")
    state = pipeline.run(on_event=lambda event: None, echo=lambda text: None)
    assert state.state == "succeeded", state.reason
    file = Path(state.folder, "stream/results/results-00000000.jsonl")
    assert file.read_text() == '{"y": 3}\n{"y": 5}\n'
    tree = trace(str(file))
    assert find(tree, "run")[0] == state.id and find(tree, "data set") == [str(sets[1].manifest), str(sets[0].manifest)]
    assert find(tree, "raw file") == ["a.csv", "b.csv", "c.csv"]
    events = open_lineage.events(tree)
    assert [each["name"] for each in events[-1]["inputs"]] == ["datasets:doubled"]
    assert events[-1]["outputs"][0]["name"] == str(file)
    of_folder = open_lineage.events(trace(str(file.parent)))
    assert of_folder[-1]["outputs"][0]["name"] == str(file.parent) and trace(str(file.parent)).what == "folder"
    result = reproduce(str(file), modules.folder, pool=pool)
    assert result.different == () and result.files == 7
    assert result.reproduced[:2] == (str(sets[0].manifest), str(sets[1].manifest)) and result.reproduced[2] != state.id
    text = (modules.folder / "flow.py").read_text()
    (modules.folder / "flow.py").write_text(
        text.replace("(batches):", "(  # of six\n    batches\n):\n\n") + "# a comment\n"
    )
    assert reproduce(str(file), modules.folder, pool=pool).different == ()
    for changed in (text.replace("+ 1", "+ 2"), f'"""A program may read this."""{text}', f"{text}1 +\n"):
        (modules.folder / "flow.py").write_text(changed)
        with pytest.raises(
            SpotmpiError, match=rf"the code of run {state.id} is not what it was \(flow\.py\): restore it"
        ):
            reproduce(str(file), modules.folder, pool=pool)


def test_a_checkpoint_is_the_same_though_its_manifest_has_the_time(modules: Modules) -> None:
    modules.write(save="import numpy, spotmpi\nspotmpi.checkpoint.save(1, {'w': numpy.ones(2)}, now=True)\n")
    values = {"command": [sys.executable, str(modules.folder / "save.py")], "launcher": "none"}
    state = spotmpi.run(values, on_event=lambda event: None, echo=lambda text: None)
    assert state.state == "succeeded", state.reason
    (manifest,) = Path(state.folder).glob("checkpoints/*/manifest.json")
    assert reproduce(str(manifest.parent), modules.folder).different == ()
    manifest.write_text(manifest.read_text().replace('"iteration": 1', '"iteration": 2'))
    assert len(reproduce(str(manifest), modules.folder).different) == 1


def test_a_script_that_a_command_names_counts_though_it_is_not_shipped(tmp_path: Path, modules: Modules) -> None:
    modules.write(shipped="one = 1\n")
    script = tmp_path / "outside.sh"
    values = {"command": ["sh", str(script)], "files": [str(modules.folder / "shipped.py")], "launcher": "none"}
    script.write_text('touch "$(dirname $SPOTMPI_CHECKPOINT_PATH)/out"\n')
    state = spotmpi.run(values, on_event=lambda event: None, echo=lambda text: None)
    assert state.state == "succeeded", state.reason
    place = str(Path(state.folder, "out"))
    modules.replace("shipped", "1", "1  # a comment")
    assert reproduce(place, modules.folder).different == ()
    script.write_text('touch "$(dirname $SPOTMPI_CHECKPOINT_PATH)/out"  # otherwise\n')
    with pytest.raises(SpotmpiError, match=rf"is not what it was \({script}\): restore it"):
        reproduce(place, modules.folder)


def test_a_command_gets_the_interpreter_with_which_it_was_made_though_path_has_another_one(
    tmp_path: Path, modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of PATH was taken without a word, whatever packages it had."""
    run_folder = "pathlib.Path(os.environ['SPOTMPI_CHECKPOINT_PATH']).parent"
    modules.write(which=f"import os, pathlib\n({run_folder} / 'out').write_text(os.environ['PYTHON'])\n")
    for name in ("first", "second"):
        python = tmp_path / name / "python3"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nPYTHON={name} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
    values = {"command": ["python3", "which.py"], "files": [str(modules.folder / "which.py")], "launcher": "none"}
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{path}")
    state = spotmpi.run(values, on_event=lambda event: None, echo=lambda text: None)
    assert state.state == "succeeded", state.reason
    place, said = str(Path(state.folder, "out")), list[str]()
    assert Path(place).read_text() == "first"
    monkeypatch.setenv("PATH", f"{tmp_path / 'second'}:{path}")
    assert reproduce(place, modules.folder, echo=said.append).different == () and said == []
    shutil.rmtree(tmp_path / "first")
    assert reproduce(place, modules.folder, echo=said.append).different == ("out",)
    first, second = (tmp_path / name / "python3" for name in ("first", "second"))
    assert said == [f"{first}, with which the run was made, is not here any more: {second} is used in its place"]


def test_all_data_sets_with_the_same_files_are_named_since_any_may_be_what_a_call_was_given(
    sets: tuple[DataSet, DataSet], tmp_path: Path, modules: Modules, pool: InProcess
) -> None:
    """The one of them that was built first was named alone, also where a call had been given another one."""
    parent, child = sets
    source = "@spotmpi.dataset\ndef other(raw: spotmpi.Source):\n    return {'x': 1 + raw['x']}\n"
    modules.write(sets=f"{SETS}\n{source}")
    loaded = modules.load()
    other = loaded.other.options(pool=pool)(tmp_path / "raw/*.csv")
    assert loaded.doubled.options(pool=pool)(other).manifest == child.manifest != other.manifest
    copied = loaded.doubled.options(pool=pool, name="again")(child)  # 4 times, so other files
    for place in (child.path, f"{child.path}/b.parquet", str(child.manifest)):
        tree = trace(place)
        assert find(tree, "data set") == [str(each.manifest) for each in (child, parent, other)]
        assert {*find(tree, "code")} == {"sets:doubled", "sets:ratings", "sets:other"}
    assert find(trace(f"{child.path}/b.parquet"), "raw file") == ["b.csv"] * 2
    text = invoke("why", child.path).stdout
    assert f"input raw = {parent.manifest}, one of 2 with the same files\n" in text
    (read,) = (each.values() for each in trace(child.path).walk() if "same_files" in each.facts)
    assert read["same_files"] == [f"datasets:other@{other.key}"]
    assert [each["key"] for each in read["from"]] == [parent.key, other.key]
    made = next(each for each in events(trace(child.path)) if each["outputs"][0]["name"] == "datasets:doubled")
    assert [each["name"] for each in made["inputs"]] == ["datasets:ratings", "datasets:other"]
    assert "one of 2 with the same files" in str(entry_report(child.manifest, Store(), 2.0).sections)
    assert find(trace(copied.path), "data set")[1:] == [str(each.manifest) for each in (child, parent, other)]


@pytest.mark.parametrize(("others", "shown"), [(3, 4), (4, 1)])
def test_of_many_with_the_same_files_only_the_first_shows_what_it_was_made_from(others: int, shown: int) -> None:
    """Of 21 the tree had 528 lines."""
    alike = tuple(Node("data set", f"set@{number}", {}, (Node("code", "make"),)) for number in range(others + 1))
    same = [f"datasets:{each.name}" for each in alike[1:]]
    first, *rest = lineage.lines(Node("input", "raw = set@0", {lineage.SAME_FILES: same}, alike))
    assert first.endswith("what the others were made from") == (shown == 1)
    assert len([line for line in rest if "data set set@" in line]) == len(alike)
    assert len([line for line in rest if "code make" in line]) == shown and "code make" in rest[1]


def test_what_was_left_out_of_many_with_the_same_files_is_shown_where_it_stands_again() -> None:
    """It was "see above", where nothing above said what it was made from."""
    base = Node("data set", "base", {}, (Node("code", "make"),))
    alike = tuple(Node("data set", f"set@{number}", {}, (base,) if number == 3 else ()) for number in range(6))
    read = Node("input", "a = set@0", {lineage.SAME_FILES: [each.name for each in alike[1:]]}, alike)
    again = tuple(Node("data set", name, {lineage.REPEATED: True}) for name in ("set@3", "base", "set@3"))
    text = list(lineage.lines(Node("run", "last", {}, (read, *again))))
    assert text[-5:] == [
        "├─ data set set@3",
        "│  └─ data set base",
        "│     └─ code make",
        "├─ data set base, see above",
        "└─ data set set@3, see above",
    ]


def test_what_was_made_from_a_data_set_with_the_same_files_is_none_that_it_may_be_made_from(
    sets: tuple[DataSet, DataSet], modules: Modules, pool: InProcess
) -> None:
    modules.write(sets=f"{SETS}\n@spotmpi.dataset\ndef same(raw: spotmpi.Source):\n    return raw.table\n")
    same = modules.load().same.options(pool=pool)
    chain = [sets[0]]
    for number in range(3):
        chain.append(same.options(name=f"same-{number}")(chain[-1]))
    assert len({each.manifest.files[0].sha256 for each in chain}) == 1
    for number, each in enumerate(chain):
        assert {*find(trace(each.path), "data set")} == {str(one.manifest) for one in chain[: number + 1]}
