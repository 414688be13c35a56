"""What every pool does, on this machine and on a cluster: a class that each inherits with a fixture of its own.

The fixture `pool` is an open pool of two workers; `inject_fault` kills the process of a worker.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import itertools
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from spotmpi.pools import calls
from spotmpi.pools.engine import Engine
from spotmpi.pools.pool import Pool
from spotmpi.programs.pool.call import CallAborted, pack, pack_function
from tests.contract.processes import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests

InjectFault = Callable[[Pool, int], None]


def add(left: int, right: int = 0) -> int:
    return left + right


async def double(value: int) -> int:
    await asyncio.sleep(0.001)
    return 2 * value


def nap(value: int, seconds: float = 0.05) -> int:
    time.sleep(seconds)
    return value


def fail(value: int) -> int:
    raise KeyError(f"no {value}")


def echo(text: str) -> None:
    print(text)


def process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()  # pods have process ids of their own


def lock() -> Any:
    return threading.Lock()


def end_process(code: int) -> None:
    os._exit(code)


def read(path: str) -> str:
    return Path(path).read_text()


class PoolContract:
    def test_a_call_gives_its_result(self, pool: Pool) -> None:
        assert pool.submit(add, 3, right=4).result(30) == 7
        assert pool.submit(functools.partial(add, right=1), 3).result(30) == 4
        assert pool.submit(double, 3).result(30) == 6

    def test_an_error_is_raised_with_the_traceback_of_the_worker(self, pool: Pool) -> None:
        call = pool.submit(fail, 3)
        with pytest.raises(KeyError, match="no 3") as error:
            call.result(30)
        assert "in fail" in "".join(traceback.format_tb(error.value.__traceback__))

    def test_a_map_gives_results_in_order_from_endless_items(self, pool: Pool) -> None:
        results = pool.map(add, itertools.count(), itertools.count(), buffersize=8)
        assert list(itertools.islice(results, 30)) == [2 * value for value in range(30)]
        results.close()  # type: ignore[attr-defined]
        assert list(pool.map(add, [])) == []

    def test_an_error_in_a_map_is_raised_in_its_place(self, pool: Pool) -> None:
        results = pool.map(fail, [5, 6])
        with pytest.raises(KeyError, match="no 5"):
            next(results)
        assert list(results) == []

    def test_every_worker_executes_a_call_once_or_one_with_a_value_of_its_own(self, pool: Pool) -> None:
        assert len(set(pool.run(process).values())) == 2
        assert pool.run(add, 1, each=[10, 20]) == {0: 11, 1: 21}
        with pytest.raises(ValueError, match="each has 3 values for 2 workers"):
            pool.run(add, each=[1, 2, 3])

    def test_one_worker_executes_the_calls_that_are_sent_to_it(self, pool: Pool) -> None:
        processes = pool.run(process)
        first, second = pool.workers
        assert (first.index, second.index, first.connected) == (0, 1, True)
        assert {second.submit(process).result(30) for _ in range(5)} == {processes[1]}

    def test_what_functions_print_comes_to_the_driver(self, pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
        pool.workers[1].submit(echo, "it's \x1b[1m here").result(30)
        printed = ""

        def arrived() -> bool:
            nonlocal printed
            printed += capfd.readouterr().out
            return "[worker 1] it's \x1b[1m here\n" in printed

        wait_until(arrived)

    def test_what_cannot_be_pickled_is_the_error_of_its_call(self, pool: Pool) -> None:
        with pytest.raises(TypeError, match="the result of lock cannot be pickled"):
            pool.submit(lock).result(30)
        with pytest.raises(TypeError, match="an argument of add cannot be pickled"):
            pool.submit(add, threading.Lock())
        assert pool.submit(add, 1).result(30) == 1

    def test_a_large_argument_and_a_large_result_give_a_warning(self, pool: Pool) -> None:
        with pytest.warns(UserWarning, match="a call of len has 11 MB.*run volume"):
            assert pool.submit(len, b"x" * 11_000_000).result(60) == 11_000_000
        with pytest.warns(UserWarning, match="the result of bytes has 11 MB.*run volume"):
            assert len(pool.submit(bytes, 11_000_000).result(60)) == 11_000_000

    def test_a_module_is_imported_anew_after_each_upload(
        self, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        module = tmp_path / "uploaded.py"
        module.write_text("def version(): return 1\n")
        uploaded = importlib.import_module("uploaded")
        with pytest.raises(ModuleNotFoundError, match="no module uploaded: send it with files"):
            pool.submit(uploaded.version).result(30)
        pool.upload(module)
        assert pool.run(uploaded.version) == {0: 1, 1: 1}
        module.write_text("def version(): return 2\n")
        pool.upload(module)
        assert pool.run(uploaded.version) == {0: 2, 1: 2}

    @pytest.mark.parametrize("name", ['it\'s "quoted"', "two\nlines", "ünd 50%"])
    def test_files_and_folders_of_any_name_can_be_uploaded(self, pool: Pool, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("content")
        pool.upload(tmp_path / name)
        assert set(pool.run(read, f"{name}/{name}").values()) == {"content"}

    def test_the_verbs_can_be_awaited(self, pool: Pool) -> None:
        from spotmpi.pools.async_pool import AsyncPool

        async def use(same: AsyncPool) -> None:
            assert await same.submit(add, 1, 2) == 3
            assert [value async for value in same.map(double, range(3))] == [0, 2, 4]
            assert await same.run(add, each=[1, 2]) == {0: 1, 1: 2}
            assert await (await same.workers())[1].submit(add, 5) == 5
            async with await same.client() as client:
                assert await client.submit(sum, [1, 2]) == 3

        asyncio.run(use(AsyncPool(pool)))

    def test_the_client_is_that_of_dask(self, pool: Pool) -> None:
        assert pool.client.submit(sum, [1, 2]).result(30) == 3

    def test_a_cut_connection_loses_no_call(self, pool: Pool) -> None:
        engine = pool._engine
        assert engine is not None
        results = pool.map(nap, range(20))
        first = next(results)
        engine._loop.call_soon_threadsafe(lambda: engine.connection.client.scheduler_comm.comm.abort())  # type: ignore[union-attr]
        assert [first, *results] == list(range(20))

    def test_another_driver_collects_what_the_first_one_left_but_not_what_it_still_waits_for(self, pool: Pool) -> None:
        assert pool._engine is not None
        first, third = (Engine(pool._engine.connection.url, pool._engine.connection.tls) for _ in range(2))
        sent = [calls.Call(calls.key("nap", first.driver, 7, index), packed_nap(index)) for index in (2, 1, 0)]
        first.submit(sent[:1])
        assert sent[0].result(30) == 2, "a result that has arrived stays in the pool as long as the call is held"
        first._results.fetch = lambda sent, client: None  # type: ignore[method-assign]  # no other arrives
        first.submit(sent[1:])
        wait_until(lambda: sum(first.driver in key for key in first.states()) == 3, 30)
        assert pool.collect() == {}, "its driver is connected"
        first.close()
        assert first._loop.is_closed()
        assert pool.collect("other") == []
        assert pool.collect("nap") == [0, 1], "without the result that the first driver has got"
        assert pool.collect() == {} and third.collect(None) == [], "each result is given once"
        third.close()

    def test_a_killed_worker_loses_no_call_of_a_map(self, pool: Pool, inject_fault: InjectFault) -> None:
        results = pool.map(nap, range(60))
        first = next(results)
        inject_fault(pool, 0)
        assert [first, *results] == list(range(60))
        assert pool.run(add, each=[1, 2]) == {0: 1, 1: 2}  # the replacement takes over what is sent to its number

    def test_a_call_that_ends_its_process_is_given_up_with_the_reason(self, pool: Pool) -> None:
        with pytest.raises(CallAborted, match="a call of end_process ended the process of its worker 3 times"):
            pool.submit(end_process, 3).result(90)
        assert pool.run(add, each=[1, 2]) == {0: 1, 1: 2}

    def test_a_pool_grows_and_shrinks(self, pool: Pool) -> None:
        pool.scale(3)
        assert pool.run(add, each=[1, 2, 3]) == {0: 1, 1: 2, 2: 3}
        third = pool.workers[2]
        in_flight = [third.submit(nap, value, 60.0) for value in range(2)]
        pool.scale(2)
        for call in (*in_flight, third.submit(add, 1)):
            with pytest.raises(CallAborted, match=r"was sent to worker 2, and the pool has 2 workers now"):
                call.result(30)
        wait_until(lambda: len(pool.workers) == 2 and all(worker.connected for worker in pool.workers), 30)
        assert pool.run(add, each=[1, 2]) == {0: 1, 1: 2}


def packed_nap(value: int) -> bytes:
    return pack("nap", pack_function(nap), (value,), {"seconds": 1.0})


def open_pool(pool: Pool) -> Iterator[Pool]:
    """For fixtures: the pool, open, with both workers."""
    with pool:
        wait_until(lambda: all(worker.connected for worker in pool.workers), 60)
        yield pool
