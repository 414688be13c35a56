"""The stream of a rank: order, prefetching, chunks, position and failures."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import subprocess
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import spotmpi
from spotmpi.core import names
from spotmpi.images import environment as image_environment
from spotmpi.streams import chunk, engine
from spotmpi.streams import stream as rank_stream
from spotmpi.streams.chunk import Chunk
from spotmpi.streams.errors import StreamError
from spotmpi.streams.order import Order, Part, Settings
from spotmpi.streams.stream import CHUNK_BYTES, MAX_CHUNK, chunk_length, waiting_share
from tests.unit.streams.conftest import InProcess
from tests.unit.streams.flow import PREFIX


@pytest.mark.parametrize("prefetch", [1, 2, 8])
def test_a_rank_gets_its_batches_in_order_whatever_its_prefetch(make_stream: Any, prefetch: int) -> None:
    stream = make_stream(rank=1, size=3, prefetch=prefetch, prepare=PREFIX + "double")
    assert list(stream) == [[2 * number] for number in range(1, 39, 3)]
    assert (len(stream), stream.count, stream.finished) == (13, 13, True)


@pytest.mark.parametrize("prefetch", [1, 3, 8])
def test_at_most_prefetch_chunks_are_under_way(make_stream: Any, workers: InProcess, prefetch: int) -> None:
    list(make_stream(prefetch=prefetch, epochs=50))
    assert workers.most == prefetch
    assert sum(workers.sizes) == 2000


def test_the_next_chunk_is_fetched_while_the_rank_works_and_no_other(make_stream: Any, workers: InProcess) -> None:
    batches = iter(make_stream(prefetch=4, prepare=PREFIX + "slow"))
    next(batches)
    assert (workers.fetched, workers.in_flight) == (1, 3)
    assert len(list(batches)) == 39
    assert workers.fetched == len(workers.sizes) - 1


def test_the_position_continues_after_the_current_round(make_stream: Any) -> None:
    stream = make_stream(rank=1, size=2)
    batch = next(batch for batch in stream if stream.number == 9)
    assert (batch, stream.position) == ([9], 10)
    assert next(iter(stream.resume(stream.position))) == [11]


def test_a_stream_continues_with_another_number_of_ranks(make_stream: Any) -> None:
    first = [batch for rank in range(2) for batch in list(make_stream(rank=rank, size=2))[:6]]
    rest = [batch for rank in range(4) for batch in make_stream(start=12, rank=rank, size=4)]
    assert sorted(first + rest) == [[number] for number in range(40)]


def test_leaving_the_loop_cancels_what_is_under_way(make_stream: Any, workers: InProcess) -> None:
    for _ in make_stream():
        break
    import gc

    gc.collect()
    assert workers.cancelled == workers.in_flight > 0


def test_small_batches_travel_together_and_slow_ones_alone(make_stream: Any, workers: InProcess) -> None:
    list(make_stream(epochs=50, prefetch=1))
    assert max(workers.sizes) == MAX_CHUNK
    workers.sizes.clear()
    list(make_stream(prepare=PREFIX + "slow", prefetch=1))
    assert max(workers.sizes) <= 8  # of 30 ms


@pytest.mark.parametrize(
    ("batches", "size", "seconds", "expected"),
    [
        (1, CHUNK_BYTES, 0.001, 1),
        (1, 10 * CHUNK_BYTES, 0.001, 1),
        (4, CHUNK_BYTES, 0.001, 4),
        (8, CHUNK_BYTES, 0.001, 8),
        (2, 100, 0.001, 8),
        (40, 100, 0.001, MAX_CHUNK),
        (2, 100, 5.0, 1),
    ],
)
def test_a_chunk_has_4_mb_or_a_time_worth_a_task(batches: int, size: int, seconds: float, expected: int) -> None:
    result = Chunk([(number, None) for number in range(batches)], [], seconds, size)
    assert chunk_length(result, batches) == expected


@pytest.mark.parametrize(
    ("name", "error"), [("fail_at_7", "ValueError: seven is not liked"), ("exit_at_7", "SystemExit: 3")]
)
def test_what_prepare_raises_names_batch_rows_and_place(make_stream: Any, name: str, error: str) -> None:
    with pytest.raises(StreamError) as raised:
        list(make_stream(prepare=PREFIX + name))
    first, *traceback = str(raised.value).splitlines()
    assert first == (
        f"tests.unit.streams.flow:{name} failed for batch 7 (tests.unit.streams.flow:numbers rows 7 to 7): {error}"
    )
    assert any("flow.py" in line and name in line for line in traceback)
    assert not any("chunk.py" in line for line in traceback)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ({"x": [1], "label": [2]}, "KeyError: 'price'; the batch has x, label"),
        ([{"price": 1}, {"jpg": b"", "__key__": "a"}], "KeyError: 'price'; row 1 of the batch has jpg, __key__"),
        ({"price": [1]}, "KeyError: 'price'"),  # of a dictionary of the user
        ({f"c{number}": [] for number in range(99)}, "KeyError: 'price'; the batch has c0, c1, .* c19 and 79 others"),
        ([{"price": 1}, 2], "TypeError: .*"),
    ],
)
def test_a_key_that_rows_do_not_have_is_named_with_those_that_they_have(
    make_stream: Any, rows: Any, error: str
) -> None:
    """It was `KeyError: 'price'` alone."""
    source = {"source": PREFIX + "given", "arguments": json.dumps({"rows": rows}, default=str), "length": 1}
    with pytest.raises(StreamError) as raised:
        list(make_stream(**source, prepare=PREFIX + "price"))
    assert re.fullmatch(rf".* failed for batch 0 \(.*\): {error}", str(raised.value).partition("\n")[0])


def test_a_batch_that_cannot_be_sent_ends_the_run(make_stream: Any) -> None:
    with pytest.raises(StreamError, match="flow:generate returned for batch 0 what cannot be pickled: cannot pickle"):
        list(make_stream(prepare=PREFIX + "generate"))


def test_the_error_of_a_batch_is_sent_without_its_cause_which_may_not_be_picklable() -> None:
    settings = Settings(PREFIX + "numbers", length=1, prepare=PREFIX + "recur")
    request = chunk.request(Order([Part(settings.source, 1, 0, "")], settings), 0)
    with pytest.raises(StreamError, match="RecursionError") as error:
        engine.execute(pickle.dumps((chunk.prepare, (settings, [request]))))
    assert error.value.__context__ is None


def test_a_skipped_batch_is_replaced_by_the_next_one(make_stream: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stream = make_stream(prepare=PREFIX + "fail_at_7", on_error="skip")
    assert list(stream)[6:9] == [[6], [8], [8]]
    assert [(skip.number, skip.error) for skip in stream.skips] == [(7, "ValueError: seven is not liked")]
    assert "batch 7 skipped (tests.unit.streams.flow:numbers rows 7 to 7)" in capsys.readouterr().err


def test_a_skipped_batch_is_left_out_where_rounds_may_be_incomplete(make_stream: Any) -> None:
    stream = make_stream(prepare=PREFIX + "fail_at_7", on_error="skip", last_batch="keep")
    assert list(stream)[6:9] == [[6], [8], [9]]


def test_batches_that_all_fail_end_the_run(make_stream: Any) -> None:
    with pytest.raises(StreamError, match="batch 0 and the 16 after it cannot be prepared: ValueError: no number"):
        list(make_stream(prepare=PREFIX + "fail", on_error="skip"))
    with pytest.raises(StreamError, match="rank 0 skipped more than 100 batches"):
        list(make_stream(prepare=PREFIX + "fail", on_error="skip", last_batch="keep", epochs=10))


def test_a_process_outside_of_a_run_has_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTMPI_STREAM", raising=False)
    with pytest.raises(spotmpi.StreamError, match=r"this process has no stream: .* a spec with the table \[stream\]"):
        spotmpi.stream()


def test_arrays_of_a_chunk_travel_as_buffers() -> None:
    import numpy as np
    from distributed.protocol.serialize import deserialize, serialize

    array = np.arange(100_000.0)
    header, frames = serialize(chunk.seal(Chunk([(0, {"x": array})], [], 0.0, array.nbytes)))
    assert [memoryview(frame).nbytes for frame in frames if memoryview(frame).nbytes >= array.nbytes] == [array.nbytes]
    assert np.shares_memory(np.frombuffer(next(f for f in frames if memoryview(f).nbytes == array.nbytes)), array)
    assert deserialize(header, frames).open().batches[0][1]["x"].tolist() == array.tolist()


class Named(NamedTuple):
    """What a `prepare` may return."""

    array: Any


def test_a_rank_gets_arrays_that_are_writable_whatever_prepare_returned() -> None:
    import numpy as np
    from distributed.protocol.serialize import deserialize, serialize

    batch: dict[str, Any] = {
        "fixed": np.frombuffer(b"abcdefgh", np.uint8),
        "own": np.arange(3),
        "order": np.ones((2, 3), order="F"),
        "named": Named(np.frombuffer(b"abc", np.uint8)),
    }
    header, frames = serialize(chunk.seal(Chunk([(0, batch)], [], 0.0, 0)))
    ((_, received),) = deserialize(header, [bytes(memoryview(frame).cast("B")) for frame in frames]).open().batches
    batch["named"], received["named"] = batch["named"].array, received["named"].array
    assert all(array.flags.writeable for array in received.values())
    assert all(np.array_equal(received[name], batch[name]) for name in batch)


def test_what_a_rank_cannot_load_is_an_error_that_names_the_module_and_its_interpreter() -> None:
    """Dask, which loads results as it receives them, would close the connection instead."""
    from distributed.protocol.serialize import deserialize, serialize

    frames = ModuleType("frames_of_workers")
    frames.Frame = type("Frame", (), {"__module__": frames.__name__})  # type: ignore[attr-defined]
    sys.modules[frames.__name__] = frames
    sent = serialize(engine.execute(pickle.dumps((make_chunk, ()))))
    del sys.modules[frames.__name__]
    received = deserialize(*sent)
    with pytest.raises(StreamError) as error:
        engine.load("batch 7", received)
    assert str(error.value) == (
        f"batch 7 cannot be loaded by its rank's interpreter {sys.executable}: ModuleNotFoundError: No module named "
        "'frames_of_workers'; install what it needs there too, or return arrays, tensors, numbers, texts and bytes"
    )


def make_chunk() -> Chunk:
    return Chunk([(7, sys.modules["frames_of_workers"].Frame())], [], 0.0, 0)


def test_a_forked_process_is_refused_and_does_not_wait_for_threads_that_it_has_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Dask's client has all its threads in the rank; its methods would wait for them for ever."""
    connection = engine.Engine.__new__(engine.Engine)
    connection._process = os.getpid() + 1
    task = engine._Task("batch 1", None, connection)  # type: ignore[arg-type]
    for use in (lambda: connection.submit("batch 1", abs, 1), connection.workers, task.result):
        with pytest.raises(StreamError, match=r"a forked process, .* cannot use the stream of its parent"):
            use()
    connection.close()
    rank_stream._print(os.getpid() + 1, connection, "digest", {"batches": 1})
    assert capsys.readouterr().out == "", "the report is the rank's"


def test_dask_prints_nothing_below_the_error_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that a failed rank cut was its last traceback, and so the reason of the run's end."""
    logger = logging.getLogger("distributed.batched")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr("distributed.Client", lambda *arguments, **options: None)
    monkeypatch.setattr(engine, "security", lambda tls: None)
    engine.Engine("tls://127.0.0.1:1", "")
    assert logger.level >= logging.ERROR


TENSORS = """
import torch
from distributed.protocol.serialize import deserialize, serialize
from spotmpi.streams.chunk import Chunk, seal

batch = {"x": torch.arange(100_000.0), "parts": [(torch.ones(2, 3, dtype=torch.uint8), "name")], "half": torch.ones(
    3, dtype=torch.bfloat16), "weight": torch.ones(3, requires_grad=True)}
header, frames = serialize(seal(Chunk([(0, batch)], [], 0.0, 0)))
assert [memoryview(frame).nbytes for frame in frames if memoryview(frame).nbytes >= 400_000] == [400_000]
(number, other), = deserialize(header, [bytes(frame) for frame in frames]).open().batches
assert torch.equal(batch["x"], other["x"]) and torch.equal(batch["half"], other["half"])
assert torch.equal(batch["parts"][0][0], other["parts"][0][0]) and other["parts"][0][1] == "name"
assert other["weight"].requires_grad
other["x"] += 1
print("equal")
"""


@pytest.mark.images
@pytest.mark.nightly("imports PyTorch and Dask in a process of its own")
def test_tensors_of_a_chunk_travel_as_buffers() -> None:
    python = image_environment.prepare("pytorch") / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(names.SOURCE)}
    assert subprocess.check_output([python, "-W", "error", "-c", TENSORS], env=environment) == b"equal\n"


def test_rank_0_says_how_long_it_waited(make_stream: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        list(make_stream(rank=rank, size=2))
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"rank 0 waited \d+\.\d s of \d+\.\d s \(\d+ %\) for batches", line), line
    assert waiting_share(1.0, 10.0) == "rank 0 waited 1.0 s of 10.0 s (10 %) for batches"
