"""Streams on this machine, with real workers: the same parameters whatever happens."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet
import pytest

from spotmpi.agent.plan import POSTPROCESS
from spotmpi.backends.local import machine
from spotmpi.core import names
from spotmpi.core.errors import InputError, Problem
from spotmpi.spec.source import read_spec
from spotmpi.spec.validate import validate
from spotmpi.streams.order import Order, Part, Settings
from spotmpi.streams.results import encode
from spotmpi.streams.stream import Stream
from tests.contract.conftest import BackendHarness, local_harness
from tests.contract.event_values import texts
from tests.contract.processes import wait_until
from tests.unit.backends.local_runs import attempts_of, paths_of
from tests.unit.streams import stages
from tests.unit.streams.conftest import InProcess

EXAMPLE = names.EXAMPLES / "factorization_machine.py"
STREAM = {
    "source": "factorization_machine:ratings",
    "length": 20,
    "epochs": 2,
    "prepare": "factorization_machine:prepare",
    "shuffle_batches": True,
}
# Kills worker 0 after 14 batches and the rank itself after 26; the newest checkpoint is then that of 20. The next
# attempt waits for both workers, as one alone can do all the work.
FAULTS = """
import os, re, signal, time
from pathlib import Path
import factorization_machine, spotmpi
from spotmpi.streams.engine import Engine

def fault(position):
    if os.environ["SPOTMPI_ATTEMPT"] == "1" and position == 14:
        file = Path(os.environ["SPOTMPI_POOL_CONTROL"], "worker-0.pid")
        before = file.read_text()
        os.kill(int(re.search(r"(\\d+)\\D*$", before)[1]), signal.SIGKILL)
        while file.read_text() == before:  # until its replacement has started
            time.sleep(0.01)
    if os.environ["SPOTMPI_ATTEMPT"] == "1" and position == 26:
        os.kill(os.getpid(), signal.SIGKILL)
    if position == 30:
        engine = Engine(os.environ["SPOTMPI_POOL"], os.environ["SPOTMPI_POOL_TLS"])
        while len(engine.workers()) < 2:
            time.sleep(0.01)
        engine.close()

factorization_machine.train(spotmpi.stream(), fault)
"""

# Stops the process of worker 0 after 14 batches, so that it answers no more.
FREEZE = """
import os, signal
from pathlib import Path
import factorization_machine, spotmpi

def freeze(position):
    if position != 14:
        return
    wrapper = Path(os.environ["SPOTMPI_POOL_CONTROL"], "worker-0.pid").read_text()
    for process in Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split():
        os.kill(int(process), signal.SIGSTOP)

factorization_machine.train(spotmpi.stream(), freeze)
"""
# Prints the resident memory of all workers with every 1000th batch.
SLOW = """
import os, time
from pathlib import Path
import spotmpi

def resident():
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"spotmpi.programs.pool.worker" in (folder / "cmdline").read_bytes() and (
                ("SPOTMPI_RUN=" + os.environ["SPOTMPI_RUN"]).encode() in (folder / "environ").read_bytes()
            ):
                pages += int((folder / "statm").read_text().split()[1])
        except OSError:
            pass
    return pages * os.sysconf("SC_PAGE_SIZE") // 10**6

for batch in (stream := spotmpi.stream()):
    time.sleep(0.001)  # a hundred times as long as a loop that does nothing takes for a batch
    if stream.count % 1000 == 0:
        print("workers have", resident(), "MB", flush=True)
"""
LOOP = "import spotmpi\nfor batch in spotmpi.stream():\n    pass\n"
# Is killed with its sixth batch, once.
PREDICTION = """
import os, signal

def predict(batches):
    for batch in batches:
        if batches.count == 6 and batches.number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"x": batch["x"], "square": batch["x"] ** 2}
"""


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The example's module."""
    description = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert description and description.loader
    module = importlib.util.module_from_spec(description)
    sys.modules[EXAMPLE.stem] = module
    description.loader.exec_module(module)
    yield module
    del sys.modules[EXAMPLE.stem]


@pytest.fixture
def checksum(example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The checksum of the parameters after training in this process, without workers."""
    monkeypatch.setenv("SPOTMPI_CHECKPOINT_PATH", str(tmp_path / "in-process"))
    settings = Settings(**STREAM)  # type: ignore[arg-type]
    order = Order([Part(settings.source, settings.length, 0, "")], settings)
    return str(example.train(Stream(order, InProcess().submit, 0, 0, 1)).checksum())


def finished(
    local: BackendHarness, folder: Path, program: str, flow: str = "", **values: Any
) -> tuple[list[str], str, str]:
    """Execute a run whose rank is *program* by the interpreter of this test.

    *flow* is the module ``flow`` of its workers, which else have that of the example.

    Returns:
        The cause of the end of each attempt, the output, and the reason of the end.
    """
    (folder / "train.py").write_text(program)
    (folder / "flow.py").write_text(flow)
    files = [str(folder / "train.py"), str(folder / "flow.py") if flow else str(EXAMPLE)]
    command = {"command": [sys.executable, "train.py"], "launcher": "none", "files": files}
    events = local.all_events({**command, "limits": {"failures": 1}, **values})
    run = local.backend.list()[-1]
    return [attempt["cause"] for attempt in attempts_of(local, run.id)], "\n".join(texts(events)), run.reason or ""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("set", True),
        ("set/*.csv", True),
        ("{}/set/a.csv", True),
        ("outer", True),
        ("linked", True),
        ("set/*.parquet", False),
        ("absent", False),
        ("{}/absent", False),
        ("/{}/absent", False),
        ("/{}/set/*.csv", True),
        ("empty", False),
        ("nested", False),
        ("s3://absent/x", True),
        ("file:///absent", True),
        ("absent:rows", True),
    ],
)
def test_a_source_without_a_file_is_refused_before_anything_is_started(
    source: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("set", "outer/inner", "linked", "empty", "nested/deeper"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "set" / "a.csv").write_text("x\n1\n")
    (tmp_path / "outer" / "inner" / "a.csv").write_text("x\n1\n")
    (tmp_path / "linked" / "to").symlink_to(tmp_path / "set")
    source = source.format(tmp_path)
    batches = {"length": 2} if ":rows" in source else {"batch": 2}
    stream = {"source": source, **batches}
    spec = read_spec({"command": ["true"], "launcher": "none", "stream": stream})
    problems = [str(each) for each in validate(spec, machine.inspect(spec))]
    message = "no file of this machine has this name or pattern; check it, or name a data set: datasets:NAME"
    place = spec.stream and spec.stream.source
    assert problems == ([] if found else [str(Problem("stream.source", place, message))])


def _parquet(rows: int) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.array(range(rows), pyarrow.int64())}), file)
    return file.getvalue()


def _empty(kind: str, path: Path) -> Path:
    """A file of this kind without a row, as those who write them leave it."""
    contents = {
        "csv": b"x,y\r\n\r\n",
        "jsonl": b"\n",
        "csv.gz": gzip.compress(b"x,y\n"),
        "jsonl.xz": lzma.compress(b""),
        "parquet": _parquet(0),
    }
    file = path / f"a.{kind}"
    file.write_bytes(contents[kind])
    return file


def _with_row(kind: str, path: Path) -> Path:
    """The same with one row."""
    contents = {
        "csv": b"x\r1\r",
        "jsonl": b"{}",
        "csv.gz": gzip.compress(b"x\n1"),
        "jsonl.xz": lzma.compress(b"{}\n"),
        "parquet": _parquet(1),
    }
    file = path / f"b.{kind}"
    file.write_bytes(contents[kind])
    return file


@pytest.mark.parametrize("kind", ["csv", "jsonl", "csv.gz", "jsonl.xz", "parquet"])
def test_a_source_whose_files_have_no_rows_is_refused_as_one_without_files_is(kind: str, tmp_path: Path) -> None:
    """The run started, and ended with the traceback of a rank and exit code 1."""

    def problems(source: str) -> list[str]:
        spec = read_spec({"command": ["true"], "launcher": "none", "stream": {"source": source, "batch": 2}})
        return [str(each) for each in validate(spec, machine.inspect(spec))]

    empty = _empty(kind, tmp_path)
    remedy = "none of its files has a row, only at most the names of columns; write rows, or name other files"
    assert problems(str(empty)) == [str(Problem("stream.source", str(empty), remedy))]
    assert problems(str(tmp_path)) == [str(Problem("stream.source", str(tmp_path), remedy))]
    other = _with_row(kind, tmp_path)
    assert problems(str(tmp_path)) == problems(str(other)) == []
    other.write_bytes(b"damaged")
    damaged = [str(Problem("stream.source", str(other), remedy))] if kind == "csv" else []
    assert problems(str(other)) == damaged  # a line of CSV is names; workers say what is wrong with other files


def test_a_killed_worker_and_a_killed_rank_change_nothing(local: BackendHarness, checksum: str, tmp_path: Path) -> None:
    stream, metrics = {**STREAM, "workers": {"count": 2}}, {"pattern": r"step (?P<iteration>\d+) loss"}
    causes, output, _ = finished(local, tmp_path, FAULTS, stream=stream, metrics=metrics)

    assert causes == ["failure", "succeeded"]
    figures = local.backend.list()[-1].stream
    assert figures and (figures["ranks"], figures["workers"], figures["fewest"]) == (1, 2, figures["most"])
    assert '"spotmpi"' not in output
    assert "worker 0 was killed by SIGKILL" in output
    assert f"checksum {checksum}" in output


@pytest.mark.nightly("each is a run of several seconds")
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [1, 3, 16])
def test_workers_and_window_change_nothing(
    local: BackendHarness, checksum: str, tmp_path: Path, workers: int, prefetch: int
) -> None:
    stream = {**STREAM, "prefetch": prefetch, "workers": {"count": workers}}
    assert f"checksum {checksum}" in finished(local, tmp_path, EXAMPLE.read_text(), stream=stream)[1]


@pytest.mark.nightly("a run of several seconds each; the hang waits for limits.no_progress")
@pytest.mark.parametrize(
    ("flow", "values", "cause", "reason", "printed"),
    [
        pytest.param(
            "def rows(n):\n    return n\n\ndef prepare(rows, seed):\n    1 / (rows - 7)\n",
            {},
            "not retryable",
            r"flow:prepare failed for batch 7 \(flow:rows rows 7 to 7\): ZeroDivisionError",
            "1 / (rows - 7)",
            id="raises",
        ),
        pytest.param(
            "import os\n\ndef rows(n):\n    os._exit(1)\n",
            {"prepare": None, "prefetch": 1},
            "not retryable",
            "batch 0 repeatedly ended the process of its worker",
            "",
            id="ends its worker",
        ),
        pytest.param(
            "import time\n\ndef rows(n):\n    return n\n\n"
            "def prepare(rows, seed):\n    time.sleep(3600 if rows == 7 else 0)\n",
            {},
            "failure",
            r".*worker [01] has spent \d+ s on batch 7 \(flow:rows rows 7 to 7\), and rank 0 waits",
            "",
            id="hangs",
        ),
        pytest.param(
            "import os, time\n\ndef rows(n):\n    return [n]\n\n"
            "def prepare(rows, seed):\n    time.sleep(0.3)\n    return [os.getpid()]\n",
            {"debug": 1.0},  # until the second worker is there
            "not retryable",
            r"flow:prepare is not a function of its arguments: for batch (\d+) \(flow:rows rows \1 to \1\) "
            r"worker ([01]) and worker (?!\2)[01] have different values: \[0\] is \d+, then \d+",
            "",
            id="has state, where the run compares",
        ),
    ],
)
def test_a_faulty_prepare_ends_the_run_with_batch_and_rows(
    local: BackendHarness, tmp_path: Path, flow: str, values: dict[str, Any], cause: str, reason: str, printed: str
) -> None:
    stream = {"source": "flow:rows", "length": 20, "prepare": "flow:prepare", "workers": {"count": 2}, **values}
    limits = {"failures": 0, "no_progress": "30s"}
    causes, output, end = finished(local, tmp_path, LOOP, flow, stream=stream, limits=limits)

    assert causes == [cause]
    assert re.match(reason, end), end
    assert printed in output


@pytest.mark.nightly("a run of several seconds")
def test_a_source_that_changed_between_attempts_is_an_error(local: BackendHarness, tmp_path: Path) -> None:
    data = tmp_path / "set"
    data.mkdir()
    for number in range(4):
        (data / f"{number}.bin").write_bytes(bytes(number))
    program = f"{LOOP}open({str(data / '1.bin')!r}, 'w').write('other')\nraise SystemExit(1)\n"

    causes, output, _ = finished(local, tmp_path, program, stream={"source": str(data), "batch": 1})

    assert causes == ["failure", "not retryable"]
    assert "is not what it was when the run began" in output


@pytest.mark.nightly("two attempts of several seconds")
def test_a_killed_scheduler_costs_an_attempt_and_changes_nothing(
    local: BackendHarness, checksum: str, tmp_path: Path
) -> None:
    program = FAULTS.replace("worker-0.pid", "address.json").replace("26", "-1")
    causes, output, _ = finished(local, tmp_path, program, stream={**STREAM, "workers": {"count": 2}})

    assert len(causes) == 2
    assert "node 0: the scheduler was killed by SIGKILL" in output
    assert f"checksum {checksum}" in output


@pytest.mark.nightly("a frozen worker counts as lost after 15 to 30 s")
def test_a_frozen_worker_changes_nothing(local: BackendHarness, checksum: str, tmp_path: Path) -> None:
    causes, output, _ = finished(local, tmp_path, FREEZE, stream={**STREAM, "workers": {"count": 2}})

    assert causes == ["succeeded"]
    assert f"checksum {checksum}" in output


@pytest.mark.nightly("a run of 15 s")
def test_the_memory_of_workers_stays_flat_beside_a_slow_rank(local: BackendHarness, tmp_path: Path) -> None:
    flow = "import numpy\n\ndef rows(number):\n    return numpy.full(5_000, float(number))\n"  # 40 kB
    stream = {"source": "flow:rows", "length": 10_000, "prefetch": 4, "workers": {"count": 2}}

    output = finished(local, tmp_path, SLOW, flow, stream=stream)[1]

    sizes = [int(line.split()[2]) for line in output.splitlines() if line.startswith("workers have ")]
    assert len(sizes) == 10
    assert max(sizes[2:]) < min(sizes[2:]) + 100  # MB; all batches would have 400


@pytest.mark.parametrize("own", [pytest.param(0, marks=pytest.mark.nightly("the stages of the other in one role")), 1])
def test_results_are_the_same_bit_for_bit_after_the_loss_of_a_process_of_each_stage(
    local: BackendHarness, tmp_path: Path, own: int
) -> None:
    workers = {"postprocess_workers": {"count": own}} if own else {}
    values = {
        "command": [sys.executable, "-m", "spotmpi.streams.rank", "predict", "flow:predict"],
        "launcher": "none",
        "files": stages.write_files(tmp_path, str(tmp_path)),
        "stream": stages.stream(str(tmp_path / "data.csv"), **workers),
        "limits": {"failures": 1},
    }
    run = local.submit(values)
    local.wait_for_state(run, "succeeded")

    assert [attempt["cause"] for attempt in attempts_of(local, run)] == ["failure", "succeeded"]
    assert {"prepare", "predict", "postprocess"} <= {path.name for path in tmp_path.iterdir()}
    folders = {
        stage: {each.split()[-1] for each in stages.places(tmp_path, stage)} for stage in ("prepare", "postprocess")
    }
    assert folders["prepare"] <= {"worker-0", "worker-1"}
    if own:
        assert folders["postprocess"] == {"postprocess-0"}
        logs = (paths_of(local, run).folder / "logs").glob("*/postprocess-0.log")
        assert "the first batch is postprocessed\n" in "".join(each.read_text() for each in logs)
        figures = local.backend.list()[-1].stream
        assert figures and (figures["workers"], figures["postprocess_workers"]) == (2, 1)
    expected = {
        f"results-{number:08d}.parquet": encode("parquet", "flow:postprocess", number, columns)
        for number, columns in stages.expected()
    }
    folder = paths_of(local, run).stream / "results"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected


@pytest.mark.extensive("a stage more than in the test of a pool that is resized")
def test_the_number_of_workers_of_the_postprocess_changes_during_the_run(local: BackendHarness, tmp_path: Path) -> None:
    more = tmp_path / "more"
    (tmp_path / "flow.py").write_text(
        f"""
import time
from pathlib import Path

def predict(batches):
    for batch in batches:
        while not Path({str(more)!r}).exists():
            time.sleep(0.02)
        yield {{"x": batch["x"]}}

def postprocess(result, seed):
    return {{"y": result["x"] * 2}}
"""
    )
    (tmp_path / "data.csv").write_text("x\n" + "".join(f"{row}\n" for row in range(40)))
    stream = {"source": str(tmp_path / "data.csv"), "batch": 4, "last_batch": "keep", "write": "jsonl"}
    own = {"postprocess": "flow:postprocess", "workers": {"count": 1}, "postprocess_workers": {"count": 1}}
    values = {
        "command": [sys.executable, "-m", "spotmpi.streams.rank", "predict", "flow:predict"],
        "launcher": "none",
        "files": [str(tmp_path / "flow.py")],
        "stream": {**stream, **own},
    }
    run = local.submit(values)
    paths = paths_of(local, run)
    wait_until(lambda: (paths.pool / "postprocess-0.pid").exists())
    local.backend.resize(run, 3, POSTPROCESS)
    wait_until(lambda: (paths.pool / "postprocess-2.pid").exists())
    assert not (paths.pool / "worker-1.pid").exists()
    more.touch()
    local.wait_for_state(run, "succeeded")
    lines = [line for path in sorted((paths.stream / "results").iterdir()) for line in path.read_text().splitlines()]
    assert [json.loads(line)["y"] for line in lines] == [2 * row for row in range(40)]


@pytest.mark.extensive("a refusal; the test above resizes the workers of a stage")
def test_a_stage_without_workers_of_its_own_is_not_resized(local: BackendHarness, tmp_path: Path) -> None:
    values = {"command": ["sleep", "30"], "launcher": "none", "files": [str(EXAMPLE)], "stream": STREAM}
    run = local.submit(values)
    with pytest.raises(InputError, match=rf"stage = 'postprocess': run {run} has no workers for it alone: omit"):
        local.backend.resize(run, 2, POSTPROCESS)
    local.backend.stop(run, "enough", now=True)
    local.wait_for_state(run, "stopped")


@pytest.mark.nightly("two runs of several seconds")
def test_a_prediction_that_is_continued_has_every_row_once(local: BackendHarness, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(PREDICTION)
    (tmp_path / "data.csv").write_text("x\n" + "".join(f"{row}\n" for row in range(100)))
    values = {
        "command": [sys.executable, "-m", "spotmpi.streams.rank", "predict", "flow:predict"],
        "launcher": "none",
        "files": [str(tmp_path / "flow.py")],
        "stream": {"source": str(tmp_path / "data.csv"), "batch": 7, "last_batch": "keep", "write": "jsonl"},
        "limits": {"failures": 0},
    }

    run = local.submit(values)
    local.wait_for_state(run, "failed")
    folder = paths_of(local, run).stream / "results"
    complete = {path: path.stat().st_mtime_ns for path in folder.glob("*.jsonl")}
    assert len(complete) == 5
    local.resume(run, values)
    local.wait_for_state(run, "succeeded")

    assert {path: path.stat().st_mtime_ns for path in complete} == complete
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [json.loads(line) for line in lines] == [{"x": row, "square": row * row} for row in range(100)]


@pytest.mark.images
def test_two_ranks_under_mpirun_train_the_same_parameters(tmp_path: Path) -> None:
    checksums = set()
    for workers in (1, 3):
        for local in local_harness(tmp_path / f"runs-{workers}", timeout=300.0):
            ranks = {"image": "chainermn", "launcher": "mpirun", "slots": 2, "command": ["python", EXAMPLE.name]}
            stream = {**STREAM, "workers": {"count": workers}}
            run = local.submit({**ranks, "files": [str(EXAMPLE)], "limits": {"failures": 1}, "stream": stream})
            lines = texts(local.events(run))
            checksums |= {line.split("checksum ")[1][:16] for line in lines if "checksum " in line}
            assert json.loads((paths_of(local, run).stream / "source.json").read_text())["parts"]
            figures = local.backend.state(run).stream
            assert figures and (figures["ranks"], figures["fewest"], figures["most"]) == (2, 20, 20)
    assert len(checksums) == 1
