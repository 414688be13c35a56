"""Streams on the test cluster, under an environment's policies and rights: whatever is lost, the result is the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from spotmpi.agent import pod_context, protocol, record
from spotmpi.agent.plan import NODE, POSTPROCESS, WORKER, Member
from spotmpi.api.drill import Fault, drill
from spotmpi.backends.local.backend import LocalBackend
from spotmpi.core import names
from spotmpi.core.events import Event
from spotmpi.core.names import RunPaths
from spotmpi.plan.pods import image as image_of
from spotmpi.spec.source import from_values
from spotmpi.streams.results import encode
from tests.cluster.pools import small_pods
from tests.cluster.runs import FollowedRun, Runs, digits, parameters
from tests.testbed.kueue import Kueue
from tests.testbed.waiting import wait_for
from tests.unit.streams import stages

pytestmark = [pytest.mark.cluster, pytest.mark.pod_images("chainermn"), pytest.mark.timeout(400)]

LIMIT = 240.0  # seconds for a run with a fault, on a busy machine
RANKS = 2
PAUSE = 24  # the position at which a run waits for the test; its newest checkpoint is that of 20
at_night = pytest.mark.nightly("half a minute each; by day a worker is evicted")
EXAMPLE = names.EXAMPLES / "factorization_machine.py"
STREAM = {
    "source": "factorization_machine:ratings",
    "length": 30,
    "epochs": 2,
    "prepare": "factorization_machine:prepare",
    "shuffle_batches": True,
    "prefetch": 2,
}
# Trains, and waits in the middle until there is a file that the test writes.
TRAIN = f"""
import os, time
from pathlib import Path
import factorization_machine, spotmpi

go = Path(os.environ["SPOTMPI_STREAM_FOLDER"], "go")
stream = spotmpi.stream()

def wait(position):
    if position == {PAUSE} and not go.exists():
        print("rank", stream.rank, "waits", flush=True)
        while not go.exists():
            time.sleep(0.05)

factorization_machine.train(stream, wait)
"""
PREDICT = """
def predict(batches):
    for batch in batches:
        yield {"x": batch["x"], "square": batch["x"] ** 2}
"""


class Streams:
    """Starts runs with streams on the cluster and, for comparison, on this machine."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.runs = runs
        self.folder = folder
        self.kubernetes = {"templates": [small_pods(folder)]}
        for name, text in (("train.py", TRAIN), ("flow.py", PREDICT)):
            (folder / name).write_text(text)

    def values(self, workers: int = 2, **values: Any) -> dict[str, Any]:
        """The values of a spec that trains on two nodes."""
        return {
            "name": "stream",
            "image": "chainermn",
            "command": ["python3", "train.py"],
            "files": [str(EXAMPLE), str(self.folder / "train.py")],
            "nodes": RANKS,
            "stream": {**STREAM, "workers": {"count": workers}},
            "limits": {"failures": 0},
            "kubernetes": self.kubernetes,
            **values,
        }

    def prediction(self, source: str, **values: Any) -> dict[str, Any]:
        """The values of a spec that predicts."""
        stream = {"source": source, "batch": 7, "last_batch": "keep", "workers": {"count": 2}}
        command = ["python3", "-m", "spotmpi.streams.rank", "predict", "flow:predict"]
        return self.values(command=command, files=[str(self.folder / "flow.py")], stream=stream, **values)

    def start(self, values: Mapping[str, Any]) -> FollowedRun:
        return self.runs.start(values)

    def paused(self, values: Mapping[str, Any]) -> FollowedRun:
        """A run both of whose ranks wait in the middle."""
        run = self.start(values)
        self.until_paused(run)
        return run

    def until_paused(self, run: FollowedRun, attempt: int = 1) -> None:
        """Wait until both ranks wait in the middle."""
        waiting: set[str] = set()

        def all_wait(event: Event) -> bool:
            if event.attempt == attempt and _text(event).endswith("waits"):
                waiting.add(_text(event))
            return len(waiting) == RANKS

        run.until("that both ranks wait", all_wait, limit=LIMIT)

    def until_joined(self, run: FollowedRun, attempt: int) -> None:
        """Wait until both workers have joined an attempt."""
        missing = {"worker/0", "worker/1"}

        def all_joined(event: Event) -> bool:
            if (event.kind, event.attempt) == (record.JOINED, attempt):
                missing.discard(event.values.get("member", ""))  # that of a pod that stands by has none
            return not missing

        run.until("that both workers join", all_joined, limit=LIMIT)

    def finish(self, run: FollowedRun) -> str:
        """Let the run go on; the checksum of its final parameters."""
        (run.folder / "stream" / "go").touch()
        end = run.end(LIMIT)
        assert end.kind == record.SUCCEEDED, run.recent_events()
        return checksum(run.events)

    def workers(self, run: FollowedRun) -> dict[str, str]:
        """The uid of each worker's pod."""
        selector = f"{names.LABEL_RUN}={run.id},{names.LABEL_ROLE}={WORKER}"
        pods = self.runs.testbed.get("pods", "-n", self.runs.namespace, "-l", selector)["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def _text(event: Event) -> str:
    return str(event.values.get("text"))


def checksum(events: list[Event]) -> str:
    """The checksum that every rank printed."""
    texts = [_text(event) for event in events]
    (checksum,) = {text.split("checksum ")[1][:16] for text in texts if "checksum " in text}
    return checksum


def local_run(folder: Path, values: dict[str, Any]) -> tuple[list[Event], RunPaths]:
    """The events and the folder of the same work on this machine, in an image's environment."""
    backend = LocalBackend(folder)
    spec = from_values({**values, "nodes": 1, "slots": RANKS, "kubernetes": {}})
    backend.submit(spec, backend.plan(spec, "stream-1", print), lambda text: None)
    events = list(backend.events("stream-1", follow=True))
    assert events[-1].kind == record.SUCCEEDED, [event.values for event in events[-10:]]
    return events, RunPaths(folder / "stream-1")


@pytest.fixture
def streams(runs: Runs, tmp_path: Path) -> Streams:
    """Streams in a fresh namespace with a run volume."""
    return Streams(runs, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checksum of the same training without a fault, on this machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    values = Streams.values(Streams(None, folder))  # type: ignore[arg-type]
    command = ["python3", EXAMPLE.name]
    return checksum(local_run(folder / "runs", {**values, "command": command})[0])


def test_an_evicted_worker_touches_nothing_of_the_gang_and_changes_no_parameter(
    streams: Streams, undisturbed: str
) -> None:
    run = streams.paused(streams.values())
    streams.until_joined(run, 1)  # one worker alone can do all the work
    streams.runs.backend.inject_fault(run.id, Member(WORKER, 0), "evict")
    left = run.until_kind(record.LEFT)
    assert (left.values["member"], left.reason) == ("worker/0", "the pod of this node received SIGTERM")
    assert streams.finish(run) == undisturbed
    kinds = run.kinds()
    assert kinds.count(record.STARTED) == 1 and record.RESTARTED not in kinds
    joined = {event.values["member"] for event in run.events if event.kind == record.JOINED}
    assert joined == {"worker/0", "worker/1"}


@at_night
@pytest.mark.parametrize("node", [1, 0])
def test_a_reclaimed_node_restarts_the_gang_alone_and_its_workers_join_again(
    streams: Streams, undisturbed: str, node: int
) -> None:
    run = streams.paused(streams.values())
    before = streams.workers(run)
    streams.runs.backend.inject_fault(run.id, Member(NODE, node), "evict")
    streams.until_paused(run, attempt=2)
    streams.until_joined(run, attempt=2)
    assert streams.workers(run) == before, "no worker's pod was replaced"
    assert streams.finish(run) == undisturbed
    assert len(run.summary()["attempts"]) == 2


@at_night
def test_a_pod_that_stands_by_takes_over_a_node_of_a_stream_whose_workers_stay(
    streams: Streams, undisturbed: str
) -> None:
    run = streams.start(streams.values(standby=1))
    stands_by = run.until("a pod that stands by", lambda event: "standby" in event.values, limit=LIMIT)
    streams.until_paused(run)
    before = streams.workers(run)
    streams.runs.backend.inject_fault(run.id, Member(NODE, 1), "evict")
    promoted = run.until_kind(record.PROMOTED, limit=LIMIT).values
    assert (promoted["node"], promoted["standby"]) == (1, stands_by.values["standby"])
    streams.until_paused(run, attempt=2)
    streams.until_joined(run, attempt=2)
    assert streams.workers(run) == before, "no worker's pod was replaced"
    assert streams.finish(run) == undisturbed
    worlds = [attempt["world"]["pods"] for attempt in run.summary()["attempts"]]
    assert worlds == [["node/0", "node/1"], ["node/0", "standby/0"]]


@at_night
def test_a_killed_scheduler_costs_an_attempt_that_the_next_one_continues(streams: Streams, undisturbed: str) -> None:
    run = streams.paused(streams.values(limits={"failures": 1}))
    before = streams.workers(run)
    os.kill(run.process(0, "the scheduler", lambda command: "-m spotmpi.programs.pool.scheduler" in command), SIGKILL)
    restarted = run.until_kind(record.RESTARTED, limit=LIMIT)
    assert restarted.reason == "node 0: the scheduler was killed by SIGKILL"
    streams.until_paused(run, attempt=2)
    assert streams.workers(run) == before, "no worker's pod was replaced"
    assert streams.finish(run) == undisturbed
    assert [attempt["cause"] for attempt in run.summary()["attempts"]] == ["failure", "succeeded"]
    counts = [event.values["batches"] for event in run.events if event.values.get("kind") == protocol.STREAM]
    assert counts[-1] == (60 - 20) / RANKS, "it went on from the checkpoint"


@pytest.mark.tools("kueue")
@pytest.mark.nightly("a controller to build; half a minute")
def test_gang_and_workers_are_admitted_on_their_own_and_ranks_wait_for_the_workers_quota(
    streams: Streams, undisturbed: str
) -> None:
    controller = Kueue(streams.runs.testbed.plane)
    values = streams.values(command=["python3", EXAMPLE.name])
    values["kubernetes"] = {**streams.kubernetes, "queue": "streams"}

    def waits(*parts: str) -> Callable[[Event], bool]:
        return lambda event: all(part in (event.reason or "") for part in parts)

    with controller.running():
        controller.queue(streams.runs.namespace, "streams", {"cpu": "100m"})  # the gang and the workers take 200m each
        run = streams.start(values)
        run.until("that the gang waits for quota", waits("insufficient quota", "200m > 100m"))
        assert streams.runs.backend.state(run.id).state == "waiting"
        controller.queue(streams.runs.namespace, "streams", {"cpu": "300m"})
        run.until_kind(record.STARTED, limit=LIMIT)
        run.until("that the workers wait for quota", waits("2 workers: ", "insufficient unused quota"))
        state = streams.runs.backend.state(run.id)
        assert state.state == "running" and "2 workers: Pending: " in str(state.reason)
        controller.queue(streams.runs.namespace, "streams", {"cpu": "400m"})
        assert run.end(LIMIT).kind == record.SUCCEEDED, run.recent_events()
    assert checksum(run.events) == undisturbed


@at_night
@pytest.mark.parametrize("workers", [1, 4])
def test_the_number_of_workers_changes_no_parameter(streams: Streams, undisturbed: str, workers: int) -> None:
    run = streams.start(streams.values(workers, command=["python3", EXAMPLE.name]))
    assert run.end(LIMIT).kind == record.SUCCEEDED, run.recent_events()
    assert checksum(run.events) == undisturbed


@at_night
def test_workers_are_drilled_and_become_more_while_ranks_wait(streams: Streams, undisturbed: str) -> None:
    run = streams.paused(streams.values())
    backend = streams.runs.backend
    recovery = drill(backend, backend.state(run.id), Fault(Member(WORKER, 1), "evict"))
    assert str(recovery).startswith("evict of worker 1: lost after ")
    recovery = drill(backend, backend.state(run.id), Fault(Member(WORKER, 0), "kill"))
    assert str(recovery).startswith("kill of worker 0: its process was killed")
    streams.runs.backend.resize(run.id, 3)
    run.until("worker 2", lambda event: event.kind == record.JOINED and event.values["member"] == "worker/2")
    assert streams.finish(run) == undisturbed


@pytest.fixture
def data(streams: Streams) -> Callable[[Path], None]:
    """A function that writes the source of a prediction to a folder: 100 rows in two files."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        for name, rows in (("1.parquet", range(60)), ("2.parquet", range(60, 100))):
            pyarrow.parquet.write_table(pyarrow.table({"x": list(rows)}), folder / name, row_group_size=16)

    return write


def results(folder: Path) -> dict[str, bytes]:
    """The files of a prediction."""
    return {path.name: path.read_bytes() for path in sorted((folder / "stream" / "results").iterdir())}


@at_night
def test_a_prediction_on_the_run_volume_equals_the_local_one_byte_for_byte_and_is_pulled(
    streams: Streams, data: Callable[[Path], None], tmp_path: Path
) -> None:
    assert streams.runs.volume is not None
    data(tmp_path / "set")
    _, local = local_run(tmp_path / "local", streams.prediction(str(tmp_path / "set")))
    data(streams.runs.volume / "sets" / "numbers")
    run = streams.start(streams.prediction("sets/numbers/*.parquet"))
    assert run.end(LIMIT).kind == record.SUCCEEDED, run.recent_events()
    expected = results(local.folder)
    assert len(expected) == 15
    assert results(run.folder) == expected
    pulled = streams.runs.backend.pull(run.id, lambda text: None)
    assert results(pulled) == expected


def start_paused_prediction(
    streams: Streams, tmp_path: Path, name: str, postprocess_workers: dict[str, Any]
) -> tuple[FollowedRun, Path]:
    """A run whose rank waits for batch 3 until the file `pause` is removed, and its folder *name* on the run volume."""
    volume = streams.runs.volume
    assert volume is not None
    marks = volume / name
    for folder in (volume / "sets", marks):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    files = stages.write_files(tmp_path, f"{pod_context.VOLUME}/{name}")
    (volume / "sets" / f"{name}.csv").write_bytes((tmp_path / "data.csv").read_bytes())
    (marks / "pause").touch()
    command = ["python3", "-m", "spotmpi.streams.rank", "predict", "flow:predict"]
    stream = stages.stream(f"sets/{name}.csv", write="jsonl", postprocess_workers=postprocess_workers)
    run = streams.start({**streams.values(command=command, files=files, stream=stream), "limits": {"failures": 1}})
    wait_for("the rank", lambda: stages.places(marks, "predict"), LIMIT)
    return run, marks


def predicted() -> dict[str, bytes]:
    """The files with the results of such a run."""
    return {
        f"results-{number:08d}.jsonl": encode("jsonl", "flow:postprocess", number, columns)
        for number, columns in stages.expected()
    }


@at_night
@pytest.mark.pod_images("pytorch")
def test_results_are_the_same_bit_for_bit_after_the_loss_of_a_process_and_of_a_pod_of_each_stage(
    streams: Streams, tmp_path: Path
) -> None:
    """Pods are evicted while the rank of batch 3 waits; then each stage kills its own process once.

    The postprocess has an image of its own.
    """
    own = {"count": 1, "memory": "256Mi", "image": streams.runs.testbed.images["pytorch"]}
    run, marks = start_paused_prediction(streams, tmp_path, "marks", own)
    for member in (Member(POSTPROCESS, 0), Member(WORKER, 0)):
        run.until(f"{member} to join", partial(_is_of, member, record.JOINED), limit=LIMIT)
        streams.runs.backend.inject_fault(run.id, member, "evict")
        left = run.until(f"{member} to leave", partial(_is_of, member, record.LEFT), limit=LIMIT)
        assert left.reason == "the pod of this node received SIGTERM"
    pods = streams.runs.testbed.get("pods", "-n", streams.runs.namespace, "-l", f"{names.LABEL_RUN}={run.id}")["items"]
    images = {(pod["metadata"]["labels"][names.LABEL_ROLE], image_of(pod)) for pod in pods}
    chainermn = streams.runs.testbed.images["chainermn"]
    assert images == {(NODE, chainermn), (WORKER, chainermn), (POSTPROCESS, own["image"])}
    streams.runs.backend.inject_fault(run.id, Member(NODE, 1), "evict")
    run.until("attempt 2", lambda event: (event.kind, event.attempt) == (record.STARTED, 2), limit=LIMIT)
    (marks / "pause").unlink()
    assert run.end(LIMIT).kind == record.SUCCEEDED, run.recent_events()

    assert {path.name for path in marks.iterdir() if " " not in path.name} == {"prepare", "predict", "postprocess"}
    assert {place.split()[0] for place in stages.places(marks, "postprocess")} == {f"{run.id}-postprocess-0"}
    assert {place.split()[0] for place in stages.places(marks, "prepare")} <= {f"{run.id}-worker-{k}" for k in (0, 1)}
    assert [attempt["cause"] for attempt in run.summary()["attempts"]] == ["interruption", "failure", "succeeded"]
    joined = [event.values["member"] for event in run.events if event.kind == record.JOINED]
    assert joined.count("postprocess/0") >= 2, "the pod after the one that was evicted has joined"
    assert any("postprocess 0" in line and "killed by SIGKILL" in line for line in map(_text, run.events))
    assert results(run.folder) == predicted()


@at_night
def test_the_workers_of_the_postprocess_become_more_and_fewer_during_the_run(streams: Streams, tmp_path: Path) -> None:
    run, marks = start_paused_prediction(streams, tmp_path, "resized", {"count": 1, "memory": "256Mi"})
    added = Member(POSTPROCESS, 1)
    streams.runs.backend.resize(run.id, 2, POSTPROCESS)
    run.until(f"{added} to join", partial(_is_of, added, record.JOINED), limit=LIMIT)
    streams.runs.backend.resize(run.id, 1, POSTPROCESS)
    run.until(f"{added} to leave", partial(_is_of, added, record.LEFT), limit=LIMIT)
    (marks / "pause").unlink()
    assert run.end(LIMIT).kind == record.SUCCEEDED, run.recent_events()
    assert results(run.folder) == predicted()


def _is_of(member: Member, kind: str, event: Event) -> bool:
    return (event.kind, event.values.get("member")) == (kind, member.text)


@at_night
@pytest.mark.pod_images("pytorch")
def test_ranks_of_torchrun_on_two_nodes_take_their_batches_from_node_0s_scheduler(
    streams: Streams, data: Callable[[Path], None]
) -> None:
    assert streams.runs.volume is not None
    data(streams.runs.volume / "sets" / "numbers")
    values = streams.prediction("sets/numbers/*.parquet", image="pytorch", launcher="torchrun")
    values["stream"]["write"] = "jsonl"
    run = FollowedRun(streams.runs, streams.runs.submit(values, "pytorch"))
    assert run.end(LIMIT).kind == record.SUCCEEDED, run.recent_events()
    lines = [line for text in results(run.folder).values() for line in text.decode().splitlines()]
    assert [json.loads(line) for line in lines] == [{"x": row, "square": row * row} for row in range(100)]


@at_night
def test_digits_through_a_stream_trains_the_same_parameters_as_on_this_machine(
    runs: Runs, streams: Streams, tmp_path: Path
) -> None:
    arguments = ["--global-batch", "64", "--epochs", "2", "--batches", "stream"]
    values = digits(args=arguments, stream={"workers": {"count": 2}}, kubernetes=streams.kubernetes)
    expected = parameters(local_run(tmp_path / "local", values)[0])
    run = runs.start(values)
    assert run.end(LIMIT).kind == record.SUCCEEDED, run.recent_events()
    assert parameters(run.events) == expected


# Node 0's rank is done at once, and that of node 1 only when the test says so.
UNEVEN = """
import os, time
from pathlib import Path
import spotmpi

stream = spotmpi.stream()
if stream.rank == 1:
    while not Path(os.environ["SPOTMPI_STREAM_FOLDER"], "go").exists():
        time.sleep(0.05)
print("rank", stream.rank, "had", len(list(stream)), "batches", flush=True)
"""


@at_night
def test_the_scheduler_serves_the_rank_of_another_node_after_that_of_node_0_has_ended(
    streams: Streams, tmp_path: Path
) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    files = [str(EXAMPLE), str(tmp_path / "uneven.py")]
    run = streams.start(streams.values(command=["python3", "uneven.py"], files=files, launcher="none"))
    run.until("the end of rank 0", lambda event: _text(event) == "rank 0 had 30 batches", limit=LIMIT)
    (run.folder / "stream" / "go").touch()
    assert run.end(LIMIT).kind == record.SUCCEEDED, run.recent_events()
    assert "rank 1 had 30 batches" in run.lines()
