"""Drivers of one pool on this machine under stress: each result once, right, and to the right driver; no endless wait.

    PYTHONPATH=.:jobs .venv/bin/python -m tests.unit.pools.stress SEED SECONDS

Actors in threads use a pool in every way, while another kills, freezes and resizes it, cuts connections and sets
clocks. Each has random numbers of its own, so that a seed repeats what they do, though not when. Warnings are errors. A
call may end with `CallAborted`, which says why. Any other wrong outcome is a failure, and so is a time of `LIMIT` in
which no call ends: on a busy machine one call may wait longer, for hundreds of others.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import faulthandler
import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import cloudpickle

import spotmpi
from spotmpi.agent.plan import WORKER, Member
from spotmpi.backends import targets
from spotmpi.backends.targets import Target
from spotmpi.core.errors import SpotmpiError
from spotmpi.pools import calls, engine
from spotmpi.pools.async_pool import AsyncPool
from spotmpi.pools.calls import Call
from spotmpi.pools.errors import PoolError
from spotmpi.pools.pool import Pool
from spotmpi.programs.pool.call import CallAborted
from tests.contract import processes

LIMIT = 60.0  # seconds from the end of one call to that of another, which may be executed again a few times
_DRIVER_LIMIT = 2 * LIMIT  # the same with a driver in a process, which may join a frozen pool up to twice
_PAUSE = 1.0  # seconds between two looks at what is waited for
_LARGE = 1 << 20  # bytes of a result of which a driver is warned here
_PROJECT = Path(__file__).parents[3]
_HOSTILE = ("exit", "stop", "unpicklable", "exits when loaded", "error that exits when loaded", "fails when loaded")
_ENDS = {
    "exit": RuntimeError,
    "stop": StopIteration,
    "unpicklable": TypeError,
    "exits when loaded": SystemExit,
    "error that exits when loaded": PoolError,
    "fails when loaded": ZeroDivisionError,
}

Token = tuple[str, int]  # of one call: which actor sent it, and its number


def echo(token: Token, seconds: float = 0.0, size: int = 0) -> tuple[Token, bytes]:
    """The token, with *size* bytes, after a while."""
    time.sleep(seconds)
    return token, b"x" * size


async def echo_later(token: Token) -> tuple[Token, bytes]:
    """As `echo`, asynchronously."""
    await asyncio.sleep(0.01)
    return token, b""


def left(token: Token) -> Token:
    """A call of a driver that does not live to see its result."""
    time.sleep(0.02)
    return token


class Loaded:
    """What calls a function when it is loaded."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


class LoadedError(Exception):
    """An error that exits when it is loaded."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def hurt(how: str) -> Any:
    """End in one of the ways of `_HOSTILE`."""
    if how == "exit":
        sys.exit(7)
    if how == "stop":
        raise StopIteration(how)
    if how == "unpicklable":
        return threading.Lock()
    if how == "exits when loaded":
        return Loaded(sys.exit, 3)
    if how == "error that exits when loaded":
        raise LoadedError(how)
    return Loaded(divmod, 1, 0)


def step_clock(seconds: float) -> None:
    """Set the time of the day in this process, for every module that has imported the function."""
    original = vars(time).setdefault("spotmpi_original", time.time)
    former, now = time.time, lambda: original() + seconds
    for module in list(sys.modules.values()):
        if getattr(module, "time", None) is former:
            module.time = now  # type: ignore[attr-defined]


def describe_scheduler(dask_scheduler: Any) -> str:
    """The workers, drivers and unfinished calls of a scheduler."""
    text = [
        f"{worker.name} at {address}: {worker.status}, silent for {dask_scheduler.silence(address):.0f} s, "
        f"{len(worker.processing)} calls, long-running {len(worker.long_running)}, {worker.used_resources}"
        for address, worker in dask_scheduler.workers.items()
    ]
    text += [f"client {client}, connected {client in dask_scheduler.client_comms}" for client in dask_scheduler.clients]
    text += [
        f"{task.key}: {task.state} on {task.processing_on}, waiting on {task.waiting_on}, for {task.who_wants}, "
        f"{task.resource_restrictions}"
        for task in dask_scheduler.tasks.values()
        if task.state != "memory" and task.state != "erred"
    ]
    text += [f"now {time.monotonic():.2f}; history:", *dask_scheduler.spotmpi_history]
    text.append(f"idle {list(dask_scheduler.idle)}, queued {len(dask_scheduler.queued)}")
    return "\n".join(text)


def keep_history(dask_scheduler: Any) -> None:
    """Have a scheduler keep which drivers came and went, and which calls it held and released."""
    history = dask_scheduler.spotmpi_history = collections.deque(maxlen=20_000)

    def note(where: Any, name: str) -> None:
        function = getattr(where, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            listed = " ".join(str(key).partition("-spotmpi-")[2] for key in kwargs.get("keys", ()))
            history.append(f"{time.monotonic():.2f} {name} {kwargs.get('client')} {listed}")
            return function(*args, **kwargs)

        setattr(where, name, noted)

    for name in ("client_desires_keys", "client_releases_keys"):
        note(dask_scheduler, name)
    for name in ("add_client", "remove_client"):
        note(dask_scheduler.plugins["spotmpi-calls"], name)


def describe_worker(dask_worker: Any) -> str:
    """The calls of a worker."""
    state = dask_worker.state
    stories = {each.key: state.story(each.key) for each in [*state.executing, *list(state.ready)[:3]]}
    text = f"{dask_worker.name} {dask_worker.status}: executing {state.executing}, ready {list(state.ready)}, "
    return f"{text}constrained {list(state.constrained)}, {state.available_resources}, {stories}, all {state.tasks}"


class Stress:
    """One pool in *folder* and its drivers, for so many *seconds*."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.target, self.seed = Target("local", folder), seed
        self.begin = time.monotonic()
        self.end, self.is_long = self.begin + seconds, seconds >= 60
        self.faults: collections.deque[str] = collections.deque(maxlen=20)
        self.pause = 0.4
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.left: Counter[Token] = Counter()  # by drivers that were killed
        self.collected: Counter[Token] = Counter()
        self._serial = 0
        self._ended = self.begin  # when the last call did
        self._version = 0
        self._lock = threading.Lock()
        self.pool: Pool

    def run(self) -> None:
        """Run all actors to the end of the time, then look at what killed drivers have left."""
        with spotmpi.pool(workers=2, on=self.target, echo=lambda text: None) as self.pool:
            assert self.pool._engine
            with self.pool._engine.client() as client:
                client.run_on_scheduler(keep_history)
            actors = [self.submit, self.map, self.cancel, self.use_asyncio, self.pin, self.be_hostile]
            actors += [self.collect, self.collect, self.be_killed, self.fork, self.upload, self.disturb]
            threads = [
                threading.Thread(target=self._act, args=(actor, random.Random(f"{self.seed}-{number}")), daemon=True)
                for number, actor in enumerate(actors)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._is_stuck(self.end, 3 * LIMIT):
                    thread.join(_PAUSE)
                if thread.is_alive():
                    self.failures.append(f"an actor waits for ever\n{_stacks()}")
            if not self.failures:
                self._collect_from(self.pool)
                if self.collected != self.left:
                    self.failures.append(f"left: {self.left - self.collected}, twice: {self.collected - self.left}")

    def _act(self, actor: Callable[[random.Random], None], chance: random.Random) -> None:
        while time.monotonic() < self.end and not self.failures:
            try:
                actor(chance)
            except CallAborted as error:
                self.counts[f"aborted: {str(error).split(',')[0][-40:]}"] += 1
            except BaseException:
                with self._lock:
                    first, failure = not self.failures, f"{actor.__name__}:\n{traceback.format_exc()}"
                    self.failures.append(failure)
                if first:
                    self.failures.append(self._state())
            self.counts[actor.__name__] += 1
            time.sleep(chance.uniform(0, 2 * self.pause))

    def _state(self) -> str:
        """What drivers, scheduler and workers know of calls, for a failure."""
        text = [f"at {time.monotonic() - self.begin:.0f} s; the last faults:", *self.faults, _stacks()]
        for pid, command in processes.of_run(self.pool.id).items():
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/status").read_text().partition("State:")[2].split()[0]
                text.append(f"{pid} {state} {command[:200]}")
        used = self.pool._engine
        assert used
        text.append(f"the pool's driver {used.driver}: up {used.connection.is_up}, releasing {used._released}")
        held = {key: future.status for key, future in list(used._futures.items())}
        text += [f"  {key}: {held.get(key)}" for key in list(used._calls)] + [f"  not sent: {used._outbox}"]
        for where, function in (("scheduler", describe_scheduler), ("workers", describe_worker)):
            try:
                with used.client() as client:
                    run = client.run_on_scheduler if where == "scheduler" else client.run
                    text.append(f"{where}: {run(function)}")
            except Exception as error:
                text.append(f"{where}: {error!r}")
        return "\n".join(text)

    def token(self, who: str) -> Token:
        """That of a new call."""
        with self._lock:
            self._serial += 1
            return who, self._serial

    def _note_end(self, *_: Any) -> None:
        self._ended = time.monotonic()

    def _is_stuck(self, begin: float, limit: float = LIMIT) -> bool:
        """Whether no call has ended for *limit* seconds since *begin*."""
        return time.monotonic() - max(begin, self._ended) > limit

    def _submit(self, function: Callable[..., Any], *args: Any) -> Call:
        call = self.pool.submit(function, *args)
        call.add_done_callback(self._note_end)
        return call

    def _wait(self, sent: list[Call]) -> None:
        begin = time.monotonic()
        while waiting := futures.wait(sent, _PAUSE).not_done:
            assert not self._is_stuck(begin), f"{len(waiting)} calls wait, and none ends"

    def _result(self, call: Call) -> Any:
        begin = time.monotonic()
        while not call.done():
            with contextlib.suppress(TimeoutError):
                return call.result(_PAUSE)
            assert not self._is_stuck(begin), "a call waits, and none ends"
        return call.result()

    # The actors: each does its part once.

    def submit(self, chance: random.Random) -> None:
        """Calls whose results are awaited in various ways."""
        sizes = [chance.choice((0, 0, 100, 50_000, 2_000_000)) for _ in range(chance.randrange(1, 30))]
        tokens = [self.token("submit") for _ in sizes]
        sent = [
            self._submit(echo, token, chance.uniform(0, 0.02), size) for token, size in zip(tokens, sizes, strict=True)
        ]
        if chance.random() < 0.5:
            self._wait(sent)
        elif chance.random() < 0.5:
            assert set(futures.as_completed(sent)) == set(sent)
        for call, token, size in zip(sent, tokens, sizes, strict=True):
            try:
                assert self._result(call) == (token, b"x" * size)
            except UserWarning:
                assert size > _LARGE

    def map(self, chance: random.Random, pool: Pool | None = None) -> None:
        """A map, of which the items or the driver may fail."""
        tokens = [self.token("map") for _ in range(chance.randrange(0, 300))]
        fault = chance.choice((None, None, "iterable", "item", "break"))

        def items() -> Iterator[Any]:
            yield from tokens
            if fault == "iterable":
                raise OSError("no more items")
            if fault == "item":
                yield threading.Lock()

        size = chance.choice((0, 0, 10_000))
        results: list[Any] = []
        buffersize = chance.choice((None, 3, 50))
        stop = chance.randrange(len(tokens) + 1) if fault == "break" else -1
        try:
            iterator = (pool or self.pool).map(echo, items(), _repeat(0.0), _repeat(size), buffersize=buffersize)
            for result in iterator:
                results.append(result)
                self._note_end()
                if len(results) == stop:
                    break
        except (OSError, TypeError) as error:
            assert str(error).startswith({"iterable": "no more items", "item": "an argument of echo"}[str(fault)])
        expected = tokens[:stop] if fault == "break" and stop else tokens
        assert results == [(token, b"x" * size) for token in expected], f"{fault}, {buffersize}"

    def cancel(self, chance: random.Random) -> None:
        """Calls of which some are cancelled: waiting, executing or done."""
        tokens = [self.token("cancel") for _ in range(10)]
        sent = [self._submit(echo, token, chance.uniform(0, 0.2)) for token in tokens]
        time.sleep(chance.uniform(0, 0.2))
        cancelled = [call for call in sent if chance.random() < 0.5 and call.cancel()]
        self._wait(sent)
        assert all(call.cancelled() == (call in cancelled) for call in sent)
        for call, token in zip(sent, tokens, strict=True):
            assert call.cancelled() or call.result() == (token, b"")

    def use_asyncio(self, chance: random.Random) -> None:
        """The same pool from an event loop, where some waits time out."""

        async def use(pool: AsyncPool) -> None:
            tokens = [self.token("asyncio") for _ in range(20)]
            awaited = [pool.submit(chance.choice((echo, echo_later)), token) for token in tokens]
            assert [token for token, _ in await self._awaited(asyncio.gather(*awaited))] == tokens
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pool.submit(echo, self.token("asyncio"), 0.2), chance.uniform(0, 0.3))
            assert [token async for token, _ in pool.map(echo, tokens)] == tokens
            try:
                await self._awaited(pool.submit(hurt, "stop"))
            except RuntimeError:
                return
            raise AssertionError("no StopIteration")

        asyncio.run(use(AsyncPool(self.pool)))

    async def _awaited(self, result: Awaitable[Any]) -> Any:
        begin, future = time.monotonic(), asyncio.ensure_future(result)
        while not (await asyncio.wait([future], timeout=_PAUSE))[0]:
            assert not self._is_stuck(begin), "an asynchronous driver waits, and no call ends"
        self._note_end()
        return future.result()

    def pin(self, chance: random.Random) -> None:
        """Calls for one worker, and for each, while their number changes."""
        token = self.token("pin")
        assert self._result(chance.choice(self.pool.workers).submit(echo, token, 0.01)) == (token, b"")
        assert set(self.pool.run(echo, token).values()) == {(token, b"")}

    def be_hostile(self, chance: random.Random) -> None:
        """What calls return and raise is hostile to its driver."""
        how = chance.choice(_HOSTILE)
        call = self._submit(hurt, how)
        try:
            if chance.random() < 0.3:
                call.add_done_callback(lambda done: sys.exit(3))
            self._wait([call])
            error = call.exception()
        except SystemExit:
            return  # the callback's, since the call was done before it
        assert isinstance(error, _ENDS[how]), f"{how}: {error!r}"

    def collect(self, chance: random.Random) -> None:
        """Another driver, which also takes what killed ones have left."""
        with spotmpi.pool(self.pool.id, on=self.target) as other:
            self.map(chance, other)
            self._collect_from(other)
            self.map(chance, other)

    def _collect_from(self, pool: Pool) -> None:
        collected = pool.collect()
        others = {name: results for name, results in collected.items() if name != "left"}
        assert not others, f"not left by a killed driver: {others}"[:2000]
        with self._lock:
            self.collected.update(collected.get("left", []))

    def be_killed(self, chance: random.Random) -> None:
        """A driver that is killed once its calls have arrived; its warnings are errors."""
        tokens = [self.token("left") for _ in range(chance.randrange(1, 40))]
        with self._driver("killed", tokens, ["-W", "error"]) as driver:
            assert driver.stdout and driver.stdout.readline() == "sent\n"
            with self._lock:
                self.left.update(tokens)
            driver.kill()

    def fork(self, chance: random.Random) -> None:
        """A driver whose forked process joins the same pool."""
        tokens = [self.token("fork") for _ in range(chance.randrange(1, 100))]
        with self._driver("forks", tokens, []) as driver:
            assert driver.wait() == 0, "see above"

    @contextlib.contextmanager
    def _driver(self, way: str, tokens: list[Token], options: list[str]) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, *options, "-c", _DRIVER, way, str(self.target.folder), self.pool.id, repr(tokens)]
        path = os.pathsep.join((str(_PROJECT), str(_PROJECT / "jobs")))
        environment = {**os.environ, "PYTHONPATH": path}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdout=pipe, text=True, start_new_session=True) as driver:
            threading.Thread(target=self._end_stuck, args=(driver,), daemon=True).start()
            try:
                yield driver
            finally:
                _signal_group(driver.pid, signal.SIGKILL)

    def _end_stuck(self, driver: subprocess.Popen[str]) -> None:
        """Kill a driver while which no call ends, once it has printed where it is."""
        begin = time.monotonic()
        while driver.poll() is None:
            if self._is_stuck(begin, _DRIVER_LIMIT):
                _signal_group(driver.pid, signal.SIGUSR1)
                time.sleep(_PAUSE)
                _signal_group(driver.pid, signal.SIGKILL)
            time.sleep(_PAUSE)

    def upload(self, chance: random.Random) -> None:
        """A module that every later call has in its latest version."""
        self._version += 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "stressed.py")
            path.write_text(f"VERSION = {self._version}\n")
            self.pool.upload(path)
        versions = {self._result(self._submit(eval, "__import__('stressed').VERSION")) for _ in range(5)}
        assert versions == {self._version}

    def disturb(self, chance: random.Random) -> None:
        """One fault."""
        faults = [self._kill, self._freeze, self._resize, self._cut, self._cut, self._set_clocks]
        fault, begin = chance.choice(faults), time.monotonic()
        fault(chance)
        self.faults.append(f"{begin - self.begin:.1f} s, for {time.monotonic() - begin:.1f} s: {fault.__name__}")
        time.sleep(chance.uniform(0, 4 * self.pause))

    def _kill(self, chance: random.Random) -> None:
        with contextlib.suppress(SpotmpiError):  # it is being started
            targets.backend(self.target).inject_fault(self.pool.id, Member(WORKER, chance.choice((0, 1))), "kill")

    def _freeze(self, chance: random.Random) -> None:
        """Suspend the whole pool, as the sleep of its machine does, or one process of it."""
        chosen = [pid for pid, command in processes.of_run(self.pool.id).items() if "programs.pool" in command]
        chosen = chosen if chance.random() < 0.5 else chance.sample(chosen, 1)
        longest = 25.0 if self.is_long and chance.random() < 0.1 else 2.0
        for number, seconds in ((signal.SIGSTOP, chance.uniform(0.1, longest)), (signal.SIGCONT, 0.0)):
            for pid in chosen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(seconds)

    def _resize(self, chance: random.Random) -> None:
        self.pool.scale(chance.choice((2, 2, 3)))

    def _cut(self, chance: random.Random) -> None:
        used = self.pool._engine
        assert used

        def abort() -> None:
            with contextlib.suppress(AttributeError):  # it is cut already
                used.connection.client.scheduler_comm.comm.abort()  # type: ignore[union-attr]

        used._loop.call_soon_threadsafe(abort)

    def _set_clocks(self, chance: random.Random) -> None:
        """Set the clocks of node 0, of the workers, or of the driver."""
        seconds = chance.choice((-3600.0, -20.0, 20.0, 3600.0, 0.0))
        where = chance.choice(("scheduler", "workers", "driver"))
        if where == "driver":
            step_clock(seconds)
            return
        assert self.pool._engine
        with contextlib.suppress(OSError, TimeoutError), self.pool._engine.client() as client:
            (client.run_on_scheduler if where == "scheduler" else client.run)(step_clock, seconds)


_DRIVER = """
import sys, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what is imported
    from tests.unit.pools import stress
stress.drive(*sys.argv[1:])
"""


def drive(way: str, folder: str, run: str, packed: str) -> None:
    """Be a driver in a process of its own."""
    faulthandler.register(signal.SIGUSR1)
    tokens: list[Token] = eval(packed)
    target = Target("local", Path(folder))
    with spotmpi.pool(run, on=target) as pool:
        if way == "killed":
            sent = [pool.submit(left, token) for token in tokens]
            assert pool._engine
            while not {call.key for call in sent} <= set(pool._engine.states()):
                time.sleep(0.05)
            print("sent", flush=True)
            time.sleep(LIMIT)
        results = pool.map(echo, tokens)
        first = [next(results)]
        child = os.fork()
        if child == 0:
            _be_forked(target, run, tokens, results)
        assert [*first, *results] == [(token, b"") for token in tokens]
        assert os.waitpid(child, 0)[1] == 0, "the forked process failed"


def _be_forked(target: Target, run: str, tokens: list[Token], results: Iterator[Any]) -> None:
    try:
        own = [("forked", number) for _, number in tokens]
        with contextlib.suppress(PoolError):
            assert len(list(results)) < 300, "what had arrived before"
        with spotmpi.pool(run, on=target) as pool:
            assert list(pool.map(echo, own)) == [(token, b"") for token in own]
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _repeat(value: Any) -> Iterator[Any]:
    while True:
        yield value


def _stacks() -> str:
    """Where all threads are, and all tasks of drivers."""
    text = io.StringIO()
    for frame in sys._current_frames().values():
        print("thread:", "".join(traceback.format_stack(frame)), sep="\n", file=text)
    for used in list(engine._engines):
        for task in asyncio.all_tasks(used._loop):
            task.print_stack(file=text)
    return text.getvalue()


def main(arguments: list[str]) -> None:
    """Run it, and print what was done how often; exits with all that went wrong."""
    seed, seconds = int(arguments[0]), float(arguments[1])
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests
    engine.import_client()
    calls.LARGE = _LARGE
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        run = Stress(Path(folder), seed, seconds)
        run.run()
    print(f"seed {seed}: {dict(run.counts)}", flush=True)
    if run.failures:
        print("\n".join(reversed(run.failures)), file=sys.stderr, flush=True)  # the first one last, which a test shows
    os._exit(bool(run.failures))  # an actor that waits for ever must not hold it


if __name__ == "__main__":
    from tests.unit.pools import stress  # by its name, which its driver processes import too

    stress.main(sys.argv[1:])
