"""The end of a worker's process is blamed on the call that it executed."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker, WorkerPlugin
from distributed.comm.core import CommClosedError
from distributed.core import Status, rpc

from spotmpi.agent.plan import WORKER, Member
from spotmpi.programs.pool.call import CallAborted
from spotmpi.programs.pool.execution import CancelledCalls, ExecutionFile, shortened
from spotmpi.programs.pool.scheduler import MAX_DEATHS, PoolScheduler, has_meaning
from spotmpi.programs.pool.worker import is_relevant

FIRST = Member(WORKER, 0)
FINISHED, ENDING = "add-spotmpi-1", "end-spotmpi-2"


def test_a_later_process_reads_which_call_was_executed(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.call"
    first = ExecutionFile(path)
    first.transition(FINISHED, "ready", "executing")
    first.transition(FINISHED, "executing", "memory")
    assert (first.former, ExecutionFile(path).former) == (None, "")

    second = ExecutionFile(path)
    second.transition(ENDING, "ready", "executing")
    assert (second.former, ExecutionFile(path).former) == ("", ENDING)


def test_a_disk_that_is_full_shows_when_the_file_is_made_and_not_by_the_end_of_the_process_in_a_call(
    tmp_path: Path,
) -> None:
    """A hole of the file gets its page when it is written to, which on a full disk is SIGBUS, blamed on the call."""
    path = tmp_path / "worker-0.call"
    ExecutionFile(path)
    assert path.stat().st_blocks > 0


@pytest.mark.parametrize("name", ["é" * 300 + "x", "x" + "é" * 300, "🙂" * 200, "\udce9" * 600])
def test_a_key_that_is_too_long_is_cut_between_characters(tmp_path: Path, name: str) -> None:
    path = tmp_path / "worker-0.call"
    ExecutionFile(path).transition(name, "ready", "executing")
    former = ExecutionFile(path).former
    assert former and former == shortened(name)


@pytest.mark.parametrize(("executed", "blamed"), [(ENDING, [ENDING]), (None, [FINISHED]), ("", []), ("other", [])])
def test_of_several_calls_the_executed_one_is_blamed(executed: str | None, blamed: list[str]) -> None:
    scheduler = PoolScheduler.__new__(PoolScheduler)  # before its event loop starts
    scheduler.deaths, scheduler.unclear, scheduler.tasks = {}, {FIRST: [FINISHED, ENDING]}, {}

    scheduler.attribute_death(Member(WORKER, 1), executed)
    assert not scheduler.deaths, "another worker"
    scheduler.attribute_death(FIRST, executed)
    scheduler.attribute_death(FIRST, executed)  # none is left

    assert scheduler.deaths == dict.fromkeys(blamed, 1)


END = threading.Event()


def wait_for_end() -> None:
    END.wait(60)


@pytest.mark.parametrize("resources", [None, {WORKER: 1}], ids=["of any worker", "of a role"])
def test_a_worker_gets_no_calls_while_it_executes_a_cancelled_one(resources: dict[str, float] | None) -> None:
    END.clear()

    async def cancel() -> None:
        scheduler = Scheduler(protocol="inproc", dashboard=False, dashboard_address=":0")
        async with scheduler, Client(scheduler.address, asynchronous=True, set_as_default=False) as client:
            workers = [
                Worker(
                    scheduler.address,
                    nthreads=1,
                    memory_limit=0,
                    plugins=(CancelledCalls(),),
                    dashboard=False,
                    resources={WORKER: 9, f"worker-{number}": 9},
                )
                for number in range(2)
            ]
            async with workers[0] as busy, workers[1]:
                endless = client.submit(wait_for_end, workers=[busy.address], pure=False)
                options: Any = {"resources": resources, "pure": False}
                behind = client.map(int, range(5), workers=[busy.address], allow_other_workers=True, **options)
                while not busy.state.executing:
                    await asyncio.sleep(0.01)
                endless.release()
                after = client.map(int, range(5), **options)
                assert await asyncio.wait_for(client.gather([*behind, *after]), 30) == [*range(5), *range(5)]
                END.set()
                while busy.status != Status.running:
                    await asyncio.sleep(0.01)
                assert await client.submit(int, workers=[busy.address], pure=False) == 0

    asyncio.run(cancel())


def test_a_call_that_waits_for_a_worker_can_be_given_up() -> None:
    async def give_up() -> None:
        scheduler = PoolScheduler(protocol="inproc", dashboard=False)
        async with scheduler, Client(scheduler.address, asynchronous=True, set_as_default=False) as client:
            ending = client.submit(int, key=ENDING)
            finished = client.submit(int, key=FINISHED)
            while len(scheduler.tasks) < 2:
                await asyncio.sleep(0.01)
            for _ in range(MAX_DEATHS):
                scheduler.unclear = {FIRST: [FINISHED, ENDING]}
                scheduler.attribute_death(FIRST, ENDING)
            with pytest.raises(CallAborted, match=r"a call of end ended the process of its worker 3 times"):
                await ending
            assert not finished.done()

    asyncio.run(give_up())


class UnwritableDisk(WorkerPlugin):
    def setup(self, worker: Worker) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class RankThatHasEnded:
    """A connection of Dask's to who has asked a worker for data and is gone before they are sent."""

    peer_address = "tcp://127.0.0.1:9"

    async def write(self, message: object, serializers: object) -> None:
        raise CommClosedError("Stream is closed")

    def abort(self) -> None:
        """Called by the worker."""


def test_a_lost_connection_and_a_failed_call_are_no_errors_of_a_worker_but_a_full_disk_is() -> None:
    """Both are messages that Dask's own worker logs."""
    messages: list[logging.LogRecord] = []
    ended: Any = RankThatHasEnded()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record)

    async def log_both() -> None:
        async with (
            PoolScheduler(protocol="inproc", dashboard=False) as scheduler,
            Worker(scheduler.address, nthreads=1, memory_limit=0, dashboard=False) as worker,
            rpc(f"{scheduler.address}-gone", timeout=0.1) as gone,
            Client(scheduler.address, asynchronous=True, set_as_default=False) as client,
        ):
            assert isinstance(await client.submit(int, "x").exception(), ValueError)
            connected, worker.scheduler = worker.scheduler, gone
            await worker.heartbeat()
            worker.scheduler = connected
            with pytest.raises(CommClosedError):
                await worker.get_data(ended, keys=[])
            await worker.plugin_add(UnwritableDisk(), name="disk", catch_errors=True)

    kept, logger = Kept(logging.ERROR), logging.getLogger("distributed.worker")
    logger.addHandler(kept)
    try:
        asyncio.run(log_both())
    finally:
        logger.removeHandler(kept)

    shown = {message.getMessage().partition("\n")[0] for message in messages if is_relevant(message)}
    hidden = {message.getMessage().partition("\n")[0] for message in messages if not is_relevant(message)}
    # Dask sends a heartbeat by itself, too.
    (unsent,) = (text for text in hidden if text.startswith("failed during get data with "))
    assert hidden == {"Failed to communicate with scheduler during heartbeat.", "Compute Failed", unsent}
    assert shown == {"Worker plugin disk failed to setup"}


def test_what_a_client_has_given_up_and_asks_for_is_no_message_of_the_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It stood below the traceback of a rank that had failed."""

    async def gather() -> None:
        async with PoolScheduler(protocol="inproc", dashboard=False) as scheduler:
            await scheduler.gather(["batch-1"])
            logging.getLogger("distributed.scheduler").error("a defect")

    asyncio.run(gather())
    messages = [each for each in caplog.records if each.name == "distributed.scheduler" and each.levelname == "ERROR"]
    hidden = [each.getMessage() for each in messages if not has_meaning(each)]
    assert hidden == ["Couldn't gather keys: {'batch-1': 'forgotten'}"]
    assert [each.getMessage() for each in messages if has_meaning(each)] == ["a defect"]
