"""Results that workers postprocess before the rank writes them."""

from __future__ import annotations

import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent.plan import POSTPROCESS, WORKER, Member
from spotmpi.streams.delivery import Delivery
from spotmpi.streams.engine import TaskLocation
from spotmpi.streams.errors import StreamError
from spotmpi.streams.rank import predict
from spotmpi.streams.sinks import FunctionSink, ResultFiles
from tests.unit.streams.conftest import InProcess
from tests.unit.streams.flow import PREFIX

WORKER_1 = Member(WORKER, 1)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


@pytest.fixture
def predicted(make_stream: Any, tmp_path: Path) -> Any:
    """Predicts with the functions of this folder's `flow`; the rows of all results."""

    def run(name: str = "predict", **values: Any) -> list[dict[str, Any]]:
        settings = {"last_batch": "keep", "write": "jsonl", "postprocess": PREFIX + "root", **values}
        predict(PREFIX + name, make_stream(**settings), tmp_path)
        return rows(tmp_path)

    return run


@pytest.mark.parametrize("size", [1, 3])
def test_each_result_is_postprocessed_with_the_seed_of_its_batch(make_stream: Any, tmp_path: Path, size: int) -> None:
    values = {"last_batch": "keep", "write": "jsonl", "postprocess": PREFIX + "root"}
    order = make_stream(**values).order
    for rank in range(size):
        predict(PREFIX + "predict", make_stream(rank=rank, size=size, **values), tmp_path)
    assert rows(tmp_path) == [
        {"number": number, "half": number / 2, "root": number**0.5, "seed": order.seed(number)} for number in range(40)
    ]


def test_results_that_exist_are_neither_predicted_nor_postprocessed_again(
    predicted: Any, workers: InProcess, tmp_path: Path
) -> None:
    complete = predicted(length=9)
    workers.calls.clear()
    (tmp_path / "results-00000004.jsonl").unlink()
    assert predicted(length=9) == complete
    assert workers.calls == ["batch 4", "postprocess of batch 4"]


@pytest.mark.parametrize(("own", "roles"), [(0, {WORKER}), (2, {WORKER, POSTPROCESS})])
def test_a_postprocess_goes_to_its_own_workers_where_it_has_any(
    predicted: Any, workers: InProcess, own: int, roles: set[str]
) -> None:
    predicted(postprocess_workers=own)
    assert set(workers.roles) == roles
    for title, role in zip(workers.calls, workers.roles, strict=True):
        assert role == (POSTPROCESS if own and title.startswith("postprocess") else WORKER)


def test_what_is_under_way_is_bounded_whatever_ranks_and_workers_do(predicted: Any, workers: InProcess) -> None:
    predicted(length=600, prefetch=3)
    assert workers.most <= 6  # chunks of batches and of results
    assert workers.in_flight == 0


def test_the_batch_the_trace_and_what_is_kept_are_named_where_a_postprocess_raises(
    predicted: Any, workers: InProcess, tmp_path: Path
) -> None:
    with pytest.raises(StreamError) as failure:
        predicted(postprocess=PREFIX + "root_fails_at_7", length=20)
    line, trace = str(failure.value).split("\n", 1)
    written = len(rows(tmp_path))
    assert 0 < written <= 7
    assert line == (
        f"{PREFIX}root_fails_at_7 failed for batch 7 ({PREFIX}numbers rows 7 to 7): ValueError: seven has no root; "
        f"the results of {written} batches are written, and a resumed run computes the others"
    )
    assert 'raise ValueError("seven has no root")' in trace
    assert [row["number"] for row in rows(tmp_path)] == list(range(written))
    assert workers.cancelled


def test_batches_whose_postprocess_raises_are_skipped_if_that_is_allowed(
    predicted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = predicted(postprocess=PREFIX + "root_fails_at_7", length=20, on_error="skip")
    assert [row["number"] for row in result] == [number for number in range(20) if number != 7]
    assert "batch 7 skipped (tests.unit.streams.flow:numbers rows 7 to 7): ValueError: seven" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"postprocess": PREFIX + "nothing"}, r"flow:nothing gave nothing for batch 0: give the results of each batch"),
        ({"name": "predict_nothing", "postprocess": None}, "flow:predict_nothing gave nothing for batch 0"),
        ({"name": "predict_locks"}, "flow:predict_locks yielded from batch 0 on what cannot be pickled: .* yield"),
        ({"postprocess": PREFIX + "absent"}, "flow:absent cannot be imported: the module .* has no absent"),
        ({"postprocess": "builtins:max"}, r"builtins:max failed for batch 0 \(.* rows 0 to 0\): TypeError"),
        (
            {"postprocess": PREFIX + "count"},
            "flow:count, batch 0: .* cannot hold this int: TypeError: ",
        ),
    ],
)
def test_results_that_cannot_be_written_are_named(
    predicted: Any, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(StreamError, match=message):
        predicted(**values)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["jsonl", "files"])
def test_a_full_disk_is_named_and_leaves_no_half_result(
    predicted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    whole = Path.write_bytes

    def fill(path: Path, content: bytes) -> int:
        if "00000005" in str(path):
            whole(path, content[:3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return whole(path, content)

    monkeypatch.setattr(Path, "write_bytes", fill)
    post = PREFIX + ("as_files" if kind == "files" else "root")
    with pytest.raises(StreamError, match=r"No space left on device; free some space, then resume the run"):
        predicted(length=9, write=kind, postprocess=post)
    assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == [
        f"results-{number:08d}" for number in range(5)
    ]


@pytest.fixture
def deliver(make_stream: Any) -> Any:
    """Delivers 40 results, one every so many seconds, to a function; the numbers that it is called with."""

    def run(seconds: float, reports: list[dict[str, Any]] | None = None) -> list[int]:
        clock, written = itertools.count(0, seconds), list[int]()
        stream = make_stream(reports=reports, postprocess=PREFIX + "root", write="flow:write")
        sink = FunctionSink(lambda results, number: written.append(number))
        delivery = Delivery(stream, "flow:predict", sink, lambda: next(clock))
        for number in range(40):
            delivery.add(number, [{"number": number}])
        delivery.finish()
        return written

    return run


def test_fast_results_are_sent_together_and_slow_ones_at_once(deliver: Any, workers: InProcess) -> None:
    assert deliver(1e-6) == list(range(40))
    together = len(workers.calls)
    assert deliver(1.0) == list(range(40))
    assert len(workers.calls) - together == 40
    assert together < 30


def test_a_rank_that_waits_for_results_reports_the_worker_and_its_batch(deliver: Any, workers: InProcess) -> None:
    reports: list[dict[str, Any]] = []
    workers.places = [TaskLocation(WORKER_1, None), TaskLocation(WORKER_1, (3, "set rows 3 to 3", 40.0))]
    deliver(1.0, reports)
    first, second = (each["pending"] for each in reports if "pending" in each)
    assert (first["batch"], first["worker"]) == (0, "worker 1")
    assert second == {"batch": 3, "rows": "set rows 3 to 3", "worker": "worker 1", "seconds": 40.0}


@pytest.mark.parametrize(("kind", "post"), [("jsonl", "root"), ("files", "as_files")])
def test_results_that_a_machine_lost_with_its_power_are_computed_again(
    make_stream: Any, workers: InProcess, tmp_path: Path, kind: str, post: str
) -> None:
    def files() -> dict[Path, bytes]:
        values = {"length": 9, "last_batch": "keep", "write": kind, "postprocess": PREFIX + post}
        predict(PREFIX + "predict", make_stream(**values), tmp_path)
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    complete = files()
    next(path for path in complete if "00000004" in str(path)).write_bytes(b"")
    workers.calls.clear()
    assert files() == complete
    assert workers.calls == ["batch 4", "postprocess of batch 4"]


def test_two_processes_may_write_the_same_results_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other = Path.write_bytes, ResultFiles(tmp_path, "jsonl")

    def interrupted(path: Path, content: bytes) -> int:
        count = whole(path, content[:1])
        monkeypatch.undo()
        other.write([(3, b"xyz\n")])
        return count + whole(path, content)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    ResultFiles(tmp_path, "jsonl").write([(3, b"xyz\n")])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("results-00000003.jsonl", b"xyz\n")]
