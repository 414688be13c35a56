"""Drivers of a pool: each call ends once, whatever happens to threads, connections, disks and results meanwhile."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.comm.core import CommClosedError

from spotmpi.agent import protocol
from spotmpi.pools import calls, dask_client
from spotmpi.pools import connection as connections
from spotmpi.pools import engine as engines
from spotmpi.pools import map as maps
from spotmpi.pools import results as results_module
from spotmpi.pools.async_pool import AsyncPool
from spotmpi.pools.calls import Call
from spotmpi.pools.engine import Engine
from spotmpi.pools.errors import PoolError, PoolLost
from spotmpi.pools.pool import Pool, PoolSummary
from spotmpi.programs.pool import driver
from spotmpi.programs.pool.call import CallFailure, pack, pack_function
from tests.contract.processes import wait_until
from tests.unit.pools.scripted_scheduler import ScriptedScheduler

SOON = 60.0  # seconds, for what takes milliseconds on a quiet machine


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> ScriptedScheduler:
    scripted = ScriptedScheduler()
    monkeypatch.setattr("spotmpi.pools.dask_client.PoolClient", scripted.client)
    for name, seconds in (("CHECK", 0.01), ("RETRY", 0.01), ("LOSS_TIMEOUT", 0.3)):
        monkeypatch.setattr(connections, name, seconds)
    return scripted


@pytest.fixture
def patient(scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose scheduler comes back, on a busy machine too."""
    monkeypatch.setattr(connections, "LOSS_TIMEOUT", SOON)


class Connection:
    """The run of a pool, whose backend answers *probe*."""

    outlives = True

    def __init__(self, probe: Callable[[], str | None] | None) -> None:
        self.run, self.opened, self.closed = "scan-1", 0, 0
        self.said: list[str] = []
        self._probe = probe

    def open(self, output: object) -> Engine:
        self.opened += 1
        time.sleep(0.01)  # longer than a thread waits for others
        return Engine("tls://node-0", "", None, self._probe, self.said.append)

    def resize(self, workers: int) -> None: ...

    def summary(self) -> PoolSummary:
        return PoolSummary()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def probe() -> Callable[[], str | None] | None:
    return None


@pytest.fixture
def connection(scheduler: ScriptedScheduler, probe: Callable[[], str | None] | None) -> Connection:
    return Connection(probe)


@pytest.fixture
def pool(connection: Connection) -> Iterator[Pool]:
    with Pool(connection) as opened:
        yield opened


def engine_of(pool: Pool) -> Engine:
    assert pool._engine
    return pool._engine


def new_call(pool: Pool, value: int) -> Call:
    key = calls.key("abs", engine_of(pool).driver, 1000 + value, 0)
    return Call(key, pack("abs", pack_function(abs), (-value,), {}))


class InterruptedDeque(collections.deque[Any]):
    """A queue of which the first reader is interrupted by another thread."""

    other: Callable[[], None] | None = None

    def popleft(self) -> Any:
        item = super().popleft()
        if self and (other := self.other):
            self.other = None
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return item


def test_a_call_that_comes_while_others_are_being_sent_is_sent_too(pool: Pool) -> None:
    engine, late = engine_of(pool), new_call(pool, 3)
    outbox = InterruptedDeque()
    outbox.other = lambda: engine.submit([late])
    engine._loop.call_soon_threadsafe(setattr, engine, "_outbox", outbox)
    wait_until(lambda: engine._outbox is outbox, SOON)

    engine.submit([new_call(pool, 1), new_call(pool, 2)])

    assert late.result(SOON) == 3


def test_a_result_that_is_let_go_while_others_are_being_released_is_released_too(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    engine = engine_of(pool)
    released = InterruptedDeque(["a", "b"])
    released.other = lambda: engine._let_go("c")
    engine._released = released

    engine._let_go("d")

    wait_until(lambda: sorted(scheduler.released) == ["a", "b", "c", "d"], SOON)


def test_those_who_wait_for_a_cancelled_call_hear_of_it(pool: Pool, scheduler: ScriptedScheduler) -> None:
    scheduler.holds = True
    sent = [pool.submit(abs, value) for value in range(2)]
    wait_until(lambda: len(scheduler.results) == 2, SOON)
    waiting = threading.Thread(target=lambda: futures.wait([sent[0]], SOON), daemon=True)
    waiting.start()

    assert sent[0].cancel()

    assert futures.wait([sent[0]], SOON).done == {sent[0]}
    assert list(futures.as_completed([sent[0]], SOON)) == [sent[0]]
    waiting.join(SOON)
    assert not waiting.is_alive()
    wait_until(lambda: list(scheduler.results) == [sent[1].key], SOON)


def test_a_call_that_is_cancelled_before_it_is_sent_is_never_sent(pool: Pool, scheduler: ScriptedScheduler) -> None:
    engine = engine_of(pool)
    busy = threading.Event()
    engine._loop.call_soon_threadsafe(busy.wait, SOON)
    call = pool.submit(abs, 1)
    call.cancel()
    busy.set()
    assert futures.wait([call], SOON).done == {call}
    assert pool.submit(abs, 2).result(SOON) == 2
    assert call.key not in scheduler.results and call.key not in scheduler.released


def test_a_warning_that_is_an_error_is_that_of_its_call_alone(
    pool: Pool, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LARGE", 1000)
    monkeypatch.setattr(results_module, "_PAUSE", 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sent = [pool.submit(bytes, size) for size in (1, 2000, 3)]
        assert sent[0].result(SOON) == bytes(1)
        with pytest.raises(UserWarning, match="the result of bytes has 0 MB"):
            sent[1].result(SOON)
        assert sent[2].result(SOON) == bytes(3)


def leave(call: futures.Future[Any]) -> None:
    raise SystemExit(3)


class Exiting(Exception):
    def __reduce__(self) -> Any:
        return leave, (None,)


def raise_exiting() -> None:
    raise Exiting("it leaves")


@pytest.mark.parametrize("loads_in_worker", [False, True])
def test_neither_a_callback_nor_an_error_that_exits_ends_the_thread_of_the_pool(
    pool: Pool, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch, loads_in_worker: bool
) -> None:
    if loads_in_worker:
        failure = CallFailure("Exiting: it leaves", pickle.dumps(Exiting()))
        monkeypatch.setattr("tests.unit.pools.scripted_scheduler.execute", lambda payload: failure)
    engine_of(pool)._loop.call_soon_threadsafe(time.sleep, 0.05)  # so that the callback is there first
    call = pool.submit(raise_exiting)
    call.add_done_callback(leave)
    with pytest.raises(PoolError, match=r"raised an error that this driver cannot load(.|\n)*Exiting: it leaves"):
        call.result(SOON)
    monkeypatch.undo()
    assert pool.submit(abs, -2).result(SOON) == 2


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_what_leaves_an_iterable_takes_the_place_of_its_item(
    pool: Pool, scheduler: ScriptedScheduler, error: BaseException
) -> None:
    def items() -> Iterator[int]:
        yield from range(-9, 0)
        raise error

    results: list[int] = []
    with pytest.raises(type(error)):
        for result in pool.map(abs, items()):
            results.append(result)
    assert results == [9, 8, 7, 6, 5, 4, 3, 2, 1]


def test_a_process_that_is_forked_while_a_thread_opens_its_pool_neither_waits_for_it_nor_ends_it(
    connection: Connection, tmp_path: Path
) -> None:
    opening, goes_on = threading.Event(), threading.Event()
    open_engine = connection.open

    def open_later(output: object) -> Engine:
        opening.set()
        goes_on.wait(SOON)
        return open_engine(output)

    connection.open = open_later  # type: ignore[method-assign]
    with contextlib.closing(Pool(connection)) as pool:
        thread = threading.Thread(target=pool.open)
        thread.start()
        opening.wait(SOON)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: that threads are not copied
            child = os.fork()
        if child == 0:
            try:
                with pytest.raises(PoolError, match="a forked process cannot use its parent's pool"):
                    pool.submit(abs, 1)
                pool.close()
                (tmp_path / "closed").write_text(str(connection.closed))
            finally:
                os._exit(0)
        wait_until(lambda: os.waitpid(child, os.WNOHANG) != (0, 0), SOON)
        goes_on.set()
        thread.join()
        assert (tmp_path / "closed").read_text() == "0"
        assert pool.submit(abs, -1).result(SOON) == 1


def test_a_callback_that_waits_for_its_own_pool_is_told_so(pool: Pool, scheduler: ScriptedScheduler) -> None:
    heard: list[str] = []

    def ask(wait: Callable[[], object]) -> None:
        with pytest.raises(PoolError) as error:
            wait()
        heard.append(str(error.value))

    def call_back(call: object) -> None:
        ask(lambda: pool.workers)
        ask(pool.submit(abs, 1).result)
        ask(pool.submit(abs, 1).exception)

    engine_of(pool)._loop.call_soon_threadsafe(time.sleep, 0.05)  # so that the callback is there first
    pool.submit(abs, 3).add_done_callback(call_back)

    wait_until(lambda: len(heard) == 3, SOON)
    assert heard[0] == "a callback of a call cannot wait for an answer of the pool"
    assert heard[1] == heard[2] == ("a callback cannot wait for the call of abs: it holds up the thread that ends it")


def test_a_callback_can_close_its_pool(pool: Pool) -> None:
    closed = threading.Event()

    def close(call: object) -> None:
        pool.close()
        closed.set()

    pool.submit(abs, 3).add_done_callback(close)
    assert closed.wait(SOON)
    with pytest.raises(PoolError, match="the pool is closed"):
        pool.submit(abs, 1)


@pytest.mark.parametrize("end", ["close", "lose"])
def test_a_call_that_is_submitted_while_the_pool_ends_does_not_wait_for_ever(
    pool: Pool, scheduler: ScriptedScheduler, end: str
) -> None:
    engine = engine_of(pool)
    scheduler.holds = True

    def during() -> Iterator[Call]:
        yield new_call(pool, 1)
        if end == "close":
            engine.close()
        else:
            engine._loop.call_soon_threadsafe(engine._lose, "node 0: gone")
            wait_until(lambda: engine.connection.failure is not None, SOON)
        yield late

    late = new_call(pool, 2)
    engine.submit(during())
    with pytest.raises(PoolError, match=r"the pool was closed before|the pool is lost: node 0: gone"):
        late.result(SOON)


def numbers_and_an_error(count: int) -> Iterator[int]:
    yield from range(count)
    raise OSError("the list of items ended early")


@pytest.mark.parametrize(("count", "buffersize"), [(600, None), (5, None), (7, 3), (0, None)])
def test_an_iterable_that_raises_loses_no_result(pool: Pool, count: int, buffersize: int | None) -> None:
    results: list[int] = []
    with pytest.raises(OSError, match="the list of items ended early"):
        results.extend(pool.map(abs, numbers_and_an_error(count), buffersize=buffersize))
    # list.extend keeps what it got before the error
    assert results == list(range(count))


def test_a_map_that_failed_keeps_no_call(pool: Pool) -> None:
    """A call that is kept keeps its result in the pool, from where other drivers collect it once this one has left."""

    def fail() -> None:
        with pytest.raises(OSError, match="the list of items ended early"):
            list(pool.map(abs, numbers_and_an_error(20)))

    def all_calls() -> set[Call]:
        return {each for each in gc.get_objects() if isinstance(each, Call)}

    gc.collect()
    before = all_calls()  # of other tests
    gc.disable()
    try:
        fail()
        wait_until(lambda: all_calls() <= before, SOON)
    finally:
        gc.enable()


def test_an_item_that_cannot_be_pickled_is_an_error_in_its_place(pool: Pool) -> None:
    results = pool.map(abs, [-1, -2, threading.Lock(), -4])
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(TypeError, match="an argument of abs cannot be pickled"):
        next(results)
    assert list(results) == []


def test_a_pool_that_is_lost_during_a_map_loses_no_result_that_is_here(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    engine = engine_of(pool)
    results = pool.map(abs, range(4), buffersize=4)
    wait_until(lambda: not engine._calls and not engine._outbox, SOON)
    engine._loop.call_soon_threadsafe(engine._lose, "node 0: gone")
    wait_until(lambda: engine.connection.failure is not None, SOON)
    assert list(results) == [0, 1, 2, 3]


@pytest.mark.parametrize("probe", [None, lambda: None])
def test_a_scheduler_that_answers_but_never_tells_which_calls_it_has_is_reported(
    pool: Pool, connection: Connection, scheduler: ScriptedScheduler, probe: Callable[[], str | None] | None
) -> None:
    """Each new connection began with an answer, so that calls waited for ever without a word."""

    def refuse(question: str) -> None:
        if question == "calls":
            raise TimeoutError  # without words, as that of asyncio

    engine = engine_of(pool)
    scheduler.holds, scheduler.on_question = True, refuse
    call = pool.submit(abs, -1)
    wait_until(lambda: call.key in engine._calls, SOON)
    scheduler.cut(engine)
    if probe is None:
        with pytest.raises(PoolLost, match="the scheduler does not answer: no answer in time"):
            call.result(SOON)
    else:
        wait_until(lambda: bool(connection.said), SOON)
        assert connection.said == [
            "waiting: the scheduler does not answer (no answer in time); calls wait until it does, or its run has ended"
        ]


def test_a_map_that_is_cancelled_in_asyncio_cancels_its_calls_at_once(pool: Pool, scheduler: ScriptedScheduler) -> None:
    """They would hold the workers until the first of them ends, in a thread that nobody waits for."""
    engine = engine_of(pool)
    scheduler.holds = True

    async def cancel() -> None:
        async def take() -> list[int]:
            return [each async for each in AsyncPool(pool).map(abs, range(6), buffersize=4)]

        task = asyncio.create_task(take())
        await asyncio.to_thread(wait_until, lambda: len(engine._calls) == 4, SOON)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: not engine.in_flight(), SOON)

    asyncio.run(cancel())
    assert list(pool.map(abs, [])) == []


def make(size: int) -> bytes:
    return bytes(size)


def test_large_results_count_for_what_a_map_has_under_way_and_for_what_is_fetched_together(
    pool: Pool, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "BUFFER_BYTES", 50_000)
    monkeypatch.setattr(results_module, "_BATCH_BYTES", 30_000)
    results = pool.map(make, [10_000] * 40)
    lengths = []
    gc.freeze()  # what other tests have imported: searching that for garbage 40 times takes seconds
    for result in results:  # by a driver that is slower than its workers
        engine = engine_of(pool)
        wait_until(lambda: not engine._calls and not engine._outbox, SOON)  # noqa: B023
        lengths.append(len(result))
        gc.collect()
        assert len(scheduler.results) <= 7, "5 results have 50 kB, and two are in the driver's hands"
    assert lengths == [10_000] * 40
    assert max(scheduler.fetched) <= 3


def test_small_results_are_fetched_many_at_once_and_a_slow_first_one_does_not_hold_up_others(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    release = threading.Event()
    slow = pool.map(abs, range(1000))
    assert list(slow) == list(range(1000))
    assert max(scheduler.fetched) > 20

    scheduler.holds = True
    results = pool.map(abs, range(-1000, 0))

    def take_first() -> None:
        with contextlib.suppress(PoolError):  # the test ends before it
            next(results)
            release.set()

    first = threading.Thread(target=take_first, daemon=True)
    first.start()
    wait_until(lambda: len(scheduler.results) == 4, SOON)
    second = list(scheduler.results)[1]
    scheduler.results[second] = None
    scheduler.holds = False
    engine = engine_of(pool)

    def finish_second() -> None:
        from spotmpi.programs.pool.call import execute

        scheduler.results[second] = execute(engine._calls[second].payload)
        state = engine._futures[second]._state
        assert state
        state.finish()

    engine._loop.call_soon_threadsafe(finish_second)
    wait_until(lambda: len(scheduler.results) > 200, SOON)
    assert not release.is_set(), "the first one is still under way"
    pool.close()
    first.join(SOON)


def failing_probe() -> str | None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("probe", [failing_probe])
def test_a_lost_scheduler_is_noticed_though_the_runs_folder_cannot_be_read(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    scheduler.holds = True
    call = pool.submit(abs, 1)
    scheduler.up = False
    with pytest.raises(
        PoolLost,
        match=r"the scheduler does not answer: the scheduler is down, and the state of its run cannot be read: .*space",
    ):
        call.result(SOON)


@pytest.mark.parametrize("probe", [lambda: None])
def test_a_scheduler_that_does_not_answer_while_its_run_goes_on_is_waited_for_with_a_message(
    pool: Pool, scheduler: ScriptedScheduler, connection: Connection
) -> None:
    scheduler.up = False
    call = pool.submit(abs, -7)
    wait_until(lambda: bool(connection.said), SOON)
    scheduler.up = True
    assert call.result(SOON) == 7
    assert connection.said == [
        "waiting: the scheduler does not answer (the scheduler is down); calls wait until it does, or its run has ended"
    ]


def take_while_cut_off(pool: Pool, scheduler: ScriptedScheduler) -> None:
    """Take a result, of which the scheduler, that answers no more, does not learn."""
    engine = engine_of(pool)
    scheduler.up = False
    scheduler.cut(engine)
    wait_until(lambda: not engine.connection.connected, SOON)
    engine._let_go("abs-spotmpi-9f-0-0")


@pytest.mark.parametrize("probe", [lambda: None])
def test_a_driver_that_closes_while_its_connection_is_cut_leaves_no_result_that_it_has_taken(
    pool: Pool, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver would collect it, and count it twice."""
    monkeypatch.setattr(connections, "CHECK", SOON)  # the connection is not restored before the driver closes
    take_while_cut_off(pool, scheduler)
    scheduler.up = True
    pool.close()
    assert scheduler.released == ["abs-spotmpi-9f-0-0"]


def test_a_driver_that_closes_waits_for_a_scheduler_that_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver would collect what it has taken: that driver's release does not arrive."""
    scheduler, probe = joins_after(None, None, None)
    scheduler.up = True
    monkeypatch.setattr("spotmpi.pools.dask_client.PoolClient", scheduler.client)
    monkeypatch.setattr(connections, "CHECK", SOON)  # the connection is not restored before the driver closes
    monkeypatch.setattr(engines, "LOSS_TIMEOUT", 0.0)
    connection = Connection(probe)
    with Pool(connection) as pool:
        take_while_cut_off(pool, scheduler)
    assert scheduler.released == ["abs-spotmpi-9f-0-0"]
    assert connection.said == [
        "waiting: the scheduler does not answer; closing the pool waits for it up to 30 s, since others could collect "
        "results again"
    ]


@pytest.mark.parametrize(
    ("outlives", "answers", "limit"),
    [(False, [], 30.0), (True, [None, "run scan-1 failed: no node"], 30.0), (True, [], 0.0)],
)
def test_a_driver_that_closes_does_not_wait_for_what_ends_nor_for_ever(
    monkeypatch: pytest.MonkeyPatch, outlives: bool, answers: list[str | None], limit: float
) -> None:
    scheduler, left = ScriptedScheduler(), [None, *answers, "another question"]
    monkeypatch.setattr("spotmpi.pools.dask_client.PoolClient", scheduler.client)
    monkeypatch.setattr(connections, "CHECK", SOON)
    monkeypatch.setattr(connections, "JOIN_TIMEOUT", limit)
    connection = Connection(lambda: left.pop(0))
    connection.outlives = outlives
    with Pool(connection) as pool:
        take_while_cut_off(pool, scheduler)
        wait_until(lambda: len(left) == 1 + len(answers), SOON)  # the first is asked since the connection is cut
    assert left == ["another question"] and not scheduler.released and connection.closed == 1


def test_a_driver_that_collects_says_that_others_may_come_back(
    pool: Pool, scheduler: ScriptedScheduler, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_SILENCE", 0.0)
    scheduler.waits = lambda question: question == "collect" and not connection.said
    assert pool.collect() == {}
    assert connection.said == [
        "waiting: drivers that were cut off may come back for 15 s, before others collect their calls"
    ]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("probe", [lambda: None])
@pytest.mark.parametrize("notices", [True, False])
def test_a_result_whose_release_was_lost_with_the_connection_is_released_again(
    pool: Pool, scheduler: ScriptedScheduler, notices: bool
) -> None:
    """Once the driver is gone, another one would collect what it has taken."""
    scheduler.loses_messages = True
    assert pool.submit(abs, -7).result(SOON) == 7
    engine = engine_of(pool)
    wait_until(lambda: bool(engine._let_go_of), SOON)
    assert scheduler.results, "it did not arrive"
    if notices:
        scheduler.loses_messages = False
        scheduler.cut(engine)
        wait_until(lambda: not scheduler.results, SOON)
    pool.close()
    assert not scheduler.results and len(scheduler.released) == 1


def fails_when_loaded() -> Unloadable:
    return Unloadable()


class Unloadable:
    """A value that its driver cannot load."""

    def __reduce__(self) -> Any:
        return divmod, (1, 0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("times", [1, 2])
def test_results_are_released_though_errors_of_their_fetches_live_on(
    pool: Pool, scheduler: ScriptedScheduler, times: int
) -> None:
    """Those of asyncio and Dask are part of cycles: with their frames they live until garbage is collected."""
    kept = [ValueError("no such result"), OSError("cut")][-times:]
    faults = iter(kept)

    def fail(question: str) -> None:
        if question == "fetch" and (error := next(faults, None)):
            raise error

    scheduler.on_question = fail
    assert list(pool.map(abs, range(10))) == list(range(10))
    wait_until(lambda: not scheduler.results, SOON)
    assert next(faults, None) is None and all(error.__traceback__ for error in kept)


def test_a_result_that_cannot_be_loaded_is_released_with_its_call(pool: Pool, scheduler: ScriptedScheduler) -> None:
    gc.disable()
    try:
        call = pool.submit(fails_when_loaded)
        assert isinstance(call.exception(SOON), ZeroDivisionError)
        del call
        wait_until(lambda: not scheduler.results, SOON)
    finally:
        gc.enable()


@pytest.mark.parametrize("outlives", [True, False])
def test_a_driver_that_closes_the_pool_keeps_what_it_has_got(
    pool: Pool, scheduler: ScriptedScheduler, connection: Connection, outlives: bool
) -> None:
    """Others would collect a result again of which it holds the call."""
    connection.outlives = outlives
    call = pool.submit(abs, -1)
    assert call.result(SOON) == 1
    pool.close()
    assert scheduler.released == ([call.key] if outlives else [])


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("probe", [lambda: None])
def test_a_driver_that_closes_before_its_new_connection_has_resumed_leaves_no_result(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    scheduler.loses_messages = True
    assert pool.submit(abs, -7).result(SOON) == 7
    engine = engine_of(pool)
    wait_until(lambda: bool(engine._let_go_of), SOON)
    scheduler.loses_messages = False
    asking: list[Any] = []

    def waits(question: str) -> bool:
        """The first question for the calls, which closing cancels, gets no answer."""
        if question == "calls" and not asking:
            asking.append(asyncio.current_task())
        return asyncio.current_task() in asking

    scheduler.waits = waits
    scheduler.cut(engine)
    wait_until(lambda: bool(asking), SOON)
    pool.close()
    assert not scheduler.results


def test_a_call_that_is_cancelled_right_before_the_pool_is_closed_is_released(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    """The engine's thread has a call to send, and learns of both at once."""
    scheduler.holds = True
    call = pool.submit(abs, -1)
    wait_until(lambda: call.key in scheduler.results, SOON)
    engine, resumed = engine_of(pool), threading.Event()
    engine._loop.call_soon_threadsafe(resumed.wait, SOON)
    pool.submit(abs, -2)
    assert call.cancel()
    closing = threading.Thread(target=pool.close)
    closing.start()
    wait_until(lambda: engine.connection.closed, SOON)
    resumed.set()
    closing.join(SOON)
    assert scheduler.released == [call.key]


def joins_after(*answers: str | None) -> tuple[ScriptedScheduler, Callable[[], str | None]]:
    """A scheduler that is up after so many questions for its run, and the answers of that."""
    scheduler, left = ScriptedScheduler(), list(answers)
    scheduler.up = False

    def probe() -> str | None:
        answer = left.pop(0)
        scheduler.up = not left and answer is None
        return answer

    return scheduler, probe


def test_a_driver_that_joins_waits_for_a_scheduler_that_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, probe = joins_after(None, None)
    monkeypatch.setattr("spotmpi.pools.dask_client.PoolClient", scheduler.client)
    monkeypatch.setattr(connections, "RETRY", 0.01)
    with Pool(Connection(probe)) as pool:
        assert pool.submit(abs, -1).result(SOON) == 1


@pytest.mark.parametrize(
    ("answers", "limit", "message"),
    [
        ((None, "run scan-1 failed: no node"), 30.0, "^the pool is lost: run scan-1 failed: no node$"),
        ((None, None), 0.0, "^the scheduler at tls://node-0 does not answer: the scheduler is down$"),
    ],
)
def test_a_driver_that_joins_does_not_wait_for_a_run_that_has_ended_nor_for_ever(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[str | None, ...], limit: float, message: str
) -> None:
    scheduler, probe = joins_after(*answers)
    monkeypatch.setattr("spotmpi.pools.dask_client.PoolClient", scheduler.client)
    monkeypatch.setattr(connections, "RETRY", 0.01)
    monkeypatch.setattr(connections, "JOIN_TIMEOUT", limit)
    with pytest.raises(PoolLost, match=message):
        Pool(Connection(probe)).open()


@pytest.mark.usefixtures("patient")
def test_a_connection_that_is_cut_again_while_calls_are_found_again_is_restored(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    faults = iter([OSError("cut"), ValueError("no answer"), asyncio.CancelledError(), OSError("cut")])

    def fail(question: str) -> None:
        if question == "calls" and (error := next(faults, None)):
            raise error

    scheduler.on_question, scheduler.holds = fail, True
    call = pool.submit(abs, -5)
    wait_until(lambda: call.key in scheduler.results, SOON)
    scheduler.results.clear()  # it arrived at nobody
    scheduler.holds = False
    scheduler.cut(engine_of(pool))
    assert call.result(SOON) == 5
    assert next(faults, None) is None


@pytest.mark.usefixtures("patient")
def test_a_fetch_that_a_cut_interrupts_loses_no_result(pool: Pool, scheduler: ScriptedScheduler) -> None:
    faults = iter([OSError("cut"), asyncio.CancelledError(), OSError("cut")])

    def fail(question: str) -> None:
        if question == "fetch" and (error := next(faults, None)):
            raise error

    scheduler.on_question = fail
    assert list(pool.map(abs, range(10))) == list(range(10))


@pytest.mark.usefixtures("patient")
def test_a_question_is_asked_again_where_the_connection_is_cut_meanwhile(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    scheduler.up = False
    scheduler.cut(engine_of(pool))
    threading.Timer(0.05, setattr, (scheduler, "up", True)).start()
    assert len(pool.workers) == 2


@pytest.mark.parametrize(
    ("error", "cuts"),
    [
        # distributed/comm/core.py, `connect`: to a scheduler that is frozen, though the connection of calls is there
        (OSError("Timed out trying to connect to tls://127.0.0.1:40639 after 5 s"), 1),
        (CommClosedError("in <TLS ConnectionPool.spotmpi_pool>: Stream is closed"), 1),
        (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), 0),
        (ValueError("of the handler"), 0),
    ],
    ids=["no connection", "closed", "a handler's disk", "a handler"],
)
def test_a_question_without_a_connection_is_a_cut_and_so_asked_again(error: Exception, cuts: int) -> None:
    async def fail() -> None:
        raise error

    found: list[str] = []
    client: Any = SimpleNamespace(scheduler=SimpleNamespace(spotmpi_pool=fail), _on_cut=lambda: found.append("cut"))
    with pytest.raises(type(error)):
        asyncio.run(dask_client.PoolClient.ask(client, "pool"))
    assert len(found) == cuts


@pytest.mark.usefixtures("patient")
def test_a_call_that_another_driver_has_collected_is_not_executed_again(
    pool: Pool, scheduler: ScriptedScheduler
) -> None:
    scheduler.holds = True
    call = pool.submit(abs, -5)
    wait_until(lambda: call.key in scheduler.results, SOON)
    scheduler.taken.add(call.key)
    scheduler.results.clear()
    scheduler.cut(engine_of(pool))
    with pytest.raises(PoolError, match="the call of abs is gone: another driver has collected it"):
        call.result(SOON)
    assert not scheduler.results


def test_calls_that_wait_for_a_worker_that_does_not_come_say_so(
    pool: Pool, scheduler: ScriptedScheduler, connection: Connection
) -> None:
    scheduler.workers.pop(1)
    scheduler.holds = True
    pool.workers[1].submit(abs, 1)
    wait_until(lambda: bool(connection.said), SOON)
    assert connection.said == ["waiting: worker 1 is not connected; the calls that were sent there wait for that"]


def test_threads_that_use_a_pool_first_at_the_same_time_start_one_run(connection: Connection) -> None:
    pool = Pool(connection)
    with futures.ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda value: pool.submit(abs, value), range(8)))
    assert [call.result(SOON) for call in sent] == list(range(8))
    pool.close()
    assert (connection.opened, connection.closed) == (1, 1)


def raise_stop(kind: type[StopIteration]) -> None:
    raise kind("the end")


class OwnStop(StopIteration):
    """One that asyncio takes for the result of what it awaits."""


@pytest.mark.parametrize("kind", [StopIteration, OwnStop])
def test_a_call_that_raises_stop_iteration_can_be_awaited(pool: Pool, kind: type[StopIteration]) -> None:
    async def use() -> None:
        awaitable = AsyncPool(pool)
        with pytest.raises(RuntimeError, match=f"the call raised {kind.__name__}: the end") as error:
            await asyncio.wait_for(awaitable.submit(raise_stop, kind), SOON)
        assert isinstance(error.value.__cause__, kind)
        with pytest.raises(RuntimeError, match=f"the call raised {kind.__name__}: the end"):
            await asyncio.wait_for(awaitable.run(raise_stop, kind), SOON)
        with pytest.raises(RuntimeError, match="generator raised StopIteration"):
            [result async for result in awaitable.map(raise_stop, [kind])]
        assert await awaitable.submit(abs, -1) == 1

    asyncio.run(use())


def test_an_awaited_call_that_is_cancelled_is_cancelled_in_the_pool(pool: Pool, scheduler: ScriptedScheduler) -> None:
    scheduler.holds = True

    async def cancel() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncPool(pool).submit(abs, 1), 0.05)

    asyncio.run(cancel())
    wait_until(lambda: not scheduler.results, SOON)


def test_a_forked_process_neither_waits_for_its_parents_calls_nor_ends_its_pool(
    pool: Pool, scheduler: ScriptedScheduler, connection: Connection, tmp_path: Path
) -> None:
    scheduler.holds = True
    call, cancelled = pool.submit(abs, -1), pool.submit(abs, 2)
    called: list[object] = []
    call.add_done_callback(called.append)
    wait_until(lambda: len(scheduler.results) == 2, SOON)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: that threads are not copied
        child = os.fork()
    if child == 0:
        try:
            cancelled.cancel()
            futures.wait([call, cancelled])
            texts = [str(call.exception()), str(called)]
            for use in (lambda: pool.workers, lambda: pool.submit(abs, 1), lambda: pool.collect()):
                with pytest.raises(PoolError) as error:
                    use()
                texts.append(str(error.value))
            pool.close()
            (tmp_path / "texts").write_text("\n".join([*texts, str(connection.closed)]))
        finally:
            os._exit(0)
    wait_until(lambda: os.waitpid(child, os.WNOHANG) != (0, 0), SOON)
    message = "a forked process cannot use its parent's pool: join it there with spotmpi.pool('ID')"
    assert (tmp_path / "texts").read_text().split("\n") == [message, "[]", message, message, message, "0"]
    scheduler.holds = False
    assert pool.submit(abs, -3).result(SOON) == 3, "the parent's pool works as before"


def test_a_fork_copies_no_lock_that_the_thread_of_the_pool_holds(pool: Pool) -> None:
    """Such as that of `functools.cached_property` in Python 3.11, of which Dask's expressions have some."""
    loop, lock = engine_of(pool)._loop, threading.Lock()
    held = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(0.05)

    loop.call_soon_threadsafe(hold)
    held.wait(SOON)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: that threads are not copied
        child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.submit(abs, -1).result(SOON) == 1, "the parent's thread goes on"


def test_every_connection_has_keys_of_its_own(pool: Pool, connection: Connection) -> None:
    with Pool(connection) as other:
        assert engine_of(other).driver != engine_of(pool).driver
        assert pool.submit(abs, 1).key.startswith(f"abs-spotmpi-{engine_of(pool).driver}-")


DRIVER = """
import subprocess, sys
from pathlib import Path
from spotmpi.programs.pool import driver

def start(command):
    for option in command:
        if option.startswith("--address-file="):
            Path(option.partition("=")[2]).write_text("{}")
    return subprocess.Popen(["sleep", "60"])

driver._start = start
print("ready", flush=True)
driver.main(["--", "train"])
"""


def test_a_driver_says_that_its_scheduler_got_a_signal_and_the_attempt_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A scheduler ends in order after SIGTERM or SIGINT (`programs/pool/scheduler.py`), with exit code 0."""

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        address = [option.partition("=")[2] for option in command if option.startswith("--address-file=")]
        if not address:
            return subprocess.Popen(["sleep", "60"])
        Path(*address).write_text("{}")
        return subprocess.Popen(["sleep", "0.2"])

    monkeypatch.setattr(driver, "_start", start)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setenv(protocol.ENV_PID_FILE, str(tmp_path / "rank-0.pid"))
    assert driver.main(["--", "train"]) == 1
    expected = "node 0: the scheduler was ended by SIGTERM or SIGINT from outside of the run\n"
    assert capfd.readouterr().err == expected


def test_drivers_that_are_killed_leave_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    temporary, work = tmp_path / "tmp", tmp_path / "work"
    for folder in (temporary, work):
        folder.mkdir()
    own = {"TMPDIR": str(temporary), protocol.ENV_PID_FILE: str(work / "rank-0.pid")}
    for _ in range(2):
        command = [sys.executable, "-c", DRIVER]
        with subprocess.Popen(
            command, env={**os.environ, **own}, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            wait_until(lambda: list(tmp_path.glob("*/*")))
            os.killpg(process.pid, signal.SIGKILL)
        assert list(temporary.iterdir()) == [] and [path.name for path in work.iterdir()] == ["scheduler.json"]
