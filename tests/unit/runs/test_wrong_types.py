"""A record of which a program of the run has changed values to other types costs what is lost, and ends no command."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.agent import protocol
from spotmpi.agent.attempt_history import read_attempts
from spotmpi.api.lineage import run_node
from spotmpi.backends.targets import Target
from spotmpi.cli import tables
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.entries.store import Store
from spotmpi.environments.cost import run_cost
from spotmpi.report.files import markdown
from spotmpi.report.gather import gather
from spotmpi.runs import node_usage, reader, recorded_plan
from tests.unit.report.recorded_runs import NOW, SPEC, START, Recorded, record, work_of

WRONG: list[Any] = [
    "text",
    -1,
    1.5,
    True,
    [],
    {},
    [[]],
    ["text"],
    [{"nodes": "text"}],
    [{"nodes": None}],
    {"files": 1},
    None,
]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run of one attempt on a machine with a name."""
    paths = record(tmp_path, "run-1", SPEC, Recorded(ranks=(0.1, 0.1), iterations=60))
    attempt = {"attempt": 1, "started": 1e9, "ended": 1e9 + 60, "cause": "succeeded", "last_iteration": 60}
    (paths.attempts / "1").mkdir(parents=True, exist_ok=True)
    (paths.attempts / "1" / "node-0.json").write_text(json.dumps(attempt))
    return paths


def read(paths: RunPaths) -> None:
    """What `report`, `cost`, `why`, `status` and `list` read."""
    report = gather([paths.id], paths.folder.parent, NOW)
    markdown(report)
    report.to_json()
    run_cost(paths.id, Target(None, paths.folder.parent), price=1.0)
    state = reader.state(paths)
    for as_json in (True, False):
        tables.show_status(state, as_json)
        tables.show_runs([state], as_json)
    read_attempts(str(paths.folder))
    node_usage.machine_uses(paths)
    node_usage.worker_machines(paths)
    node_usage.machine_kinds(paths)
    run_node(paths, Store(str(paths.folder.parent / "store")))


@pytest.mark.parametrize("key", ["hardware", "attempts", "context", "result", "reason", "iteration"])
def test_of_a_summary(paths: RunPaths, key: str) -> None:
    for wrong in WRONG:
        paths.summary.write_text(json.dumps({"state": "succeeded", key: wrong}))
        read(paths)


@pytest.mark.parametrize("key", ["attempt", "ended", "started", "hardware", "reason", "last_iteration", "cause"])
def test_of_an_attempt(paths: RunPaths, key: str) -> None:
    file = paths.attempts / "1" / "node-0.json"
    whole = json.loads(file.read_text())
    for wrong in WRONG:
        file.write_text(json.dumps({**whole, key: wrong}))
        read(paths)
        assert all(each["attempt"] == 1 for each in reader.attempts(paths))


@pytest.mark.parametrize("key", ["attempt", "machines", "machine", "member", "standby", "owner", "event"])
def test_of_an_event(paths: RunPaths, key: str) -> None:
    """Of each kind of event one after the other, as they were in a whole record."""
    with paths.events.open("a") as file:
        for wrong in [*WRONG, [{"member": "x"}], [{"member": "node/0", "since": "x"}]]:
            for kind in ("submitted", "started", "joined", "avoided"):
                event = {"t": 2e9, "event": kind, "member": "worker/1", "machine": {"name": "a"}}
                file.write(json.dumps({**event, key: wrong}) + "\n")
    read(paths)
    reader.state(paths)


MACHINE = {"member": "node/0", "name": "ip-1", "instance": "i-1", "type": "g5", "market": "spot", "zone": "a"}
GPU = {"name": "A10G", "memory": "24 GiB", "driver": "550"}
PLACE = {"type": "g5", "market": "spot", "zone": "a", "placement_group": "yes"}
FORECAST = {"dollars": 1.0, "low": 0.5, "high": 2.0, "in_time": 0.9, "on_demand": 4.0, "deadline": 3600.0}


def whole_record(folder: Path) -> dict[Path, Any]:
    """A run's folder with all that its files may hold; their values by path, those of lines as a list."""
    context = {"hosts": ["a", "b"], "samples": 100, "seed": 3, "data_fingerprint": "f" * 64}
    stream = {**dict.fromkeys(protocol.STREAM_COUNTS, 1), "postprocess_workers": 1, "postprocessing": 0.5}
    outcome = Recorded(ranks=(0.1, 0.1), iterations=40, context=context, stream=(stream,))
    paths = record(folder, "run-1", SPEC, outcome)
    work = {
        **work_of(SPEC),
        "machine": {"cpu": "X", "cores": 4, "memory_gib": 8, "gpus": [GPU], "system": "Linux"},
        "data": {"path": "/d", "state": "a" * 64, "content": "b" * 64, "listing": "c", "files": 3, "bytes": 10**6},
        "code": {"files": {"programs": "b" * 64}, "commit": "c" * 40, "diff": "d" * 64},
        "entries": [f"datasets:ratings@{'a' * 64}"],
        "stream": {"source": "s3://bucket/x"},
        "container": "image@sha256:1",
    }
    hardware = [{"nodes": [0], "node_group": "g", **PLACE}]
    attempt = {
        **{"version": 1, "attempt": 1, "node": 0, "cause": "succeeded", "reason": None, "exit_code": 0},
        **{"allocated": START, "started": START + 1, "ended": START + 60, "elapsed": 60.0, "start": 1.0},
        **{"first_iteration": 1, "first_iteration_time": START + 2, "last_iteration": 40, "lost_iterations": 10},
        **{"resumed_iteration": 0, "checkpoint_iteration": 10, "lost_nodes": [1], "failed_machine": "ip-1"},
        "world": {"members": ["a", "b"], "ranks": 2, "size": 2, "rate": 1.5, "standby": 1, "pods": ["x"]},
        **{"hardware": hardware, "context": context, "result": {"accuracy": 0.9}},
    }
    summary = {
        **{"version": 1, "id": "run-1", "name": "digits", "state": "succeeded", "reason": None, "iteration": 40},
        **{"started": START, "ended": START + 60, "failures": 0, "interruptions": 0, "oversubscribed": False},
        **{"work": work, "hardware": hardware, "image": {"name": "x"}, "context": context, "result": {}},
        "attempts": [attempt],
    }
    plan = {**json.loads(paths.plan.read_text()), "backend": "local", "folder": "/tmp", "work": work}
    share = {"run": "run-1", "owner": "me", "team": "none", "hours": 1.0, "waiting": 0.1, "training": 0.2}
    member = {"member": "worker/1", "machine": MACHINE}
    placed = {"group": "g", "type": "g5", "market": "spot", "rate": 1.5, "idle": 3.0, "idle_dollars": 0.1}
    stands_by, promoted = {"standby": "pod-x", "machine": MACHINE}, {"node": 1, "replaces": "pod-y", "seconds": 2.0}
    events: list[dict[str, Any]] = [
        {"event": "submitted", "name": "digits", "owner": "me", "continued": False},
        {"event": "placed", **placed, "forecast": FORECAST},
        {"event": "started", "attempt": 1, "machines": [MACHINE], "failures": 0, "interruptions": 0},
        {"event": "joined", **member},
        {"event": "joined", **stands_by},
        {"event": "promoted", **stands_by, **promoted},
        {"event": "avoided", "machine": "ip-2", "reason": "bad"},
        {"event": "left", "member": "worker/1"},
        {"event": "interrupted", "attempt": 1, "interruptions": 1, "failures": 0, "reason": "reclaimed"},
        {"event": "started", "attempt": 2, "machines": [MACHINE], "failures": 0, "interruptions": 1},
        {"event": "succeeded", "failures": 0, "interruptions": 1, "reason": None},
    ]
    files = {
        paths.summary: summary,
        paths.attempts / "1" / "node-0.json": attempt,
        paths.plan: plan,
        paths.nodes: {"nodes": {"ip-1": {"id": "i-1", **PLACE}}, "failure": None},
        paths.stream / "source.json": {"source": "s3://b/x", "digest": "d" * 64, "parts": [["s3://b/x/1", 0, 9, "v"]]},
        paths.bill: {"bill": {"runs": [share], "machines": []}, "title": "run-1", "since": START, "until": START + 60},
        paths.events: [{"t": START + number, **each} for number, each in enumerate(events)],
        paths.metrics: [json.loads(line) for line in paths.metrics.read_text().splitlines()],
    }
    for path, values in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, values)
    return files


def write(path: Path, values: Any) -> None:
    lines = values if path.suffix == ".jsonl" else [values]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def places(values: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each value in JSON values."""
    yield from [at] if at else []
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """The files of a run's folder by name, with their values."""
    return {path.name: (path, values) for path, values in whole_record(tmp_path_factory.mktemp("runs")).items()}


_NAMES = ("summary.json", "node-0.json", "plan.yaml", "nodes.json", "source.json", "bill.json")


@pytest.mark.parametrize(
    "examples", [10, pytest.param(40, marks=pytest.mark.extensive("more values of the same files than by default"))]
)
@pytest.mark.parametrize("name", [*_NAMES, "events.jsonl", "metrics.jsonl"])
def test_of_any_value_of_any_file(name: str, examples: int, files: dict[str, tuple[Path, Any]], request: Any) -> None:
    """A summary whose work lacked a key ended `report` with a KeyError, and so did what else stood in others."""
    path, whole = files[name]
    paths = RunPaths(files["summary.json"][0].parent)
    if name == "plan.yaml":  # read where there is no summary of the work
        paths.summary.unlink()
        request.addfinalizer(lambda: write(*files["summary.json"]))
    request.addfinalizer(lambda: write(path, whole))

    @settings(max_examples=examples, deadline=None)
    @given(st.sampled_from([*places(whole)]), st.sampled_from([*WRONG, 10**30, DELETED]))
    def check(place: tuple[Any, ...], wrong: Any) -> None:
        write(path, _changed(whole, place, wrong))
        with contextlib.suppress(SpotmpiError):  # which says what is wrong with the record
            read(paths)

    check()


DELETED = object()


def _changed(values: Any, place: tuple[Any, ...], wrong: Any) -> Any:
    """*values* of which one is *wrong*, or deleted."""
    changed = owner = copy.deepcopy(values)
    *above, last = place
    for key in above:
        owner = owner[key]
    if wrong is DELETED:
        del owner[last]
    else:
        owner[last] = wrong
    return changed


@pytest.mark.parametrize("key", ["program", "machine", "versions", "resources", "image", "code", "data", "seed"])
def test_what_a_record_does_not_know_of_the_work_is_left_out_of_the_report(
    key: str, files: dict[str, tuple[Path, Any]], request: Any
) -> None:
    path, whole = files["summary.json"]
    request.addfinalizer(lambda: write(path, whole))
    for wrong in (DELETED, None, [1], {"cpu": 1, "lock": 2}):
        write(path, _changed(whole, ("work", key), wrong))
        read(RunPaths(path.parent))


@pytest.mark.parametrize("wrong", [value for value in WRONG if value])
def test_of_the_plan_of_a_run_on_a_cluster(paths: RunPaths, wrong: Any) -> None:
    """Its environment ended `cost` with an error of pydantic, its context `status`, and its objects `why`."""
    work = {"work": {"program": "train.py"}}
    whole = {"backend": "kubernetes", "namespace": "team", "objects": [{"data": {"plan.json": json.dumps(work)}}]}
    write(paths.plan, whole)
    assert reader.work(paths) == work["work"]
    for place in (["outputs"], ["context"], ["objects"], ["objects", 0], ["objects", 0, "data"]):
        write(paths.plan, _changed(whole, (*place,), wrong))
        assert reader.state(paths).state == "succeeded"
        run_node(paths, Store(str(paths.folder.parent / "store")))
        recorded_plan.cluster_of(paths)
        with contextlib.suppress(SpotmpiError):  # no environment, of which the price is not asked
            run_cost(paths.id, Target(None, paths.folder.parent), price=1.0)
