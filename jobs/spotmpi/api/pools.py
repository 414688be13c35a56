"""Worker pools: bring one up, join one, and change its size."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from spotmpi.agent import record
from spotmpi.agent.plan import POSTPROCESS, WORKER
from spotmpi.api import runs, stopping
from spotmpi.backends import targets
from spotmpi.backends.base import Backend, PoolAddress
from spotmpi.backends.targets import TargetLike, submit
from spotmpi.core import wording
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import RunPaths, absolute, is_image_reference
from spotmpi.core.reminders import QUIET, reminders
from spotmpi.core.wording import Echo, print_message, printable_output
from spotmpi.pools.calls import is_count
from spotmpi.pools.engine import Engine, import_client
from spotmpi.pools.errors import PoolError, PoolLost
from spotmpi.pools.pool import Pool, PoolSummary
from spotmpi.runs import reader
from spotmpi.spec.job import POOL
from spotmpi.spec.source import Source, load_spec

STAGES = {"prepare": WORKER, "postprocess": POSTPROCESS}  # the roles of the workers of a stream by what they do
Output = Callable[[int, str, Sequence[str]], None]


def pool(
    source: Source | None = None,
    *,
    workers: int | None = None,
    image: str | None = None,
    on: TargetLike = None,
    files: Iterable[Path | str] | Path | str = (),
    overrides: Iterable[str] = (),
    echo: Echo | None = None,
) -> Pool:
    """Workers that execute functions: a new pool, or an existing one if *source* is the id of its run.

    *source* may also be a spec with a table ``[pool]``; the other arguments override its values. Code inside a pool
    gets that pool. *echo* gets messages, such as why a pool has not started yet; by default they are printed.

    Raises, when the pool is opened:
        InputError: all problems of the spec.
        SpotmpiError: it could not be started.
    """
    echo = echo or print_message
    paths = [files] if isinstance(files, str | Path) else list(files)
    overrides = [overrides] if isinstance(overrides, str) else list(overrides)
    if isinstance(source, int):
        raise input_error("source", source, f"needs a spec or the id of a pool: workers={source} is their number")
    if workers is not None and not is_count(workers):
        raise input_error("workers", workers, "needs to be 1 or more")
    if isinstance(source, str) and not source.endswith(".toml"):
        arguments = {"workers": workers, "image": image, "files": paths, "overrides": overrides}
        for name, value in arguments.items():
            if value:
                raise input_error(name, value, f"run {source} is up already; `resize` and `upload` change a pool")
        return Pool(ExistingRun(source, on), printable=printable_output)
    if is_image_reference(image) and not targets.target_of(on).has_pods:
        raise input_error("image", image, "only pods pull an image: add on= with a cluster, or name one under images/")
    changes = [f"pool.count={workers}"] if workers is not None else []
    changes += [f'image="{image}"'] if image is not None else []
    paths = [str(absolute(path)) for path in paths]
    changes += [f"files+={json.dumps(paths, ensure_ascii=False)}"] if paths else []
    run = NewRun({"launcher": POOL} if source is None else source, [*changes, *overrides], on, echo)
    return Pool(run, printable=printable_output)


def resize(run: str, workers: int, on: TargetLike = None, stage: str | None = None) -> None:
    """Change the number of workers of a pool or stream; this does not wait for them to start or leave.

    *stage* is ``prepare``, as by default, or ``postprocess`` where that has workers of its own.

    Raises:
        SpotmpiError: its scheduler does not take this driver: calls that were sent to workers which leave would wait.
    """
    if stage not in (None, *STAGES):
        raise input_error(wording.option("stage"), stage, f"use one of: {', '.join(STAGES)}")
    if not is_count(workers):
        raise input_error("workers", workers, f"needs to be 1 or more; `spotmpi stop {run}` ends the run")
    backend = targets.backend_of(run, on)
    state = backend.state(run)
    run, role = state.id, STAGES[stage or "prepare"]
    backend.resize(run, workers, role)
    if role != WORKER:
        return  # calls are sent to a certain worker in a pool alone
    try:
        with address_of(backend, run) as address, contextlib.closing(Engine(address.url, str(address.tls))) as engine:
            engine.set_size(workers)
    except PoolLost:
        pass  # it is not up, or not any more
    except PoolError as error:
        if load_spec(RunPaths(Path(state.folder)).spec).launcher != POOL:
            return
        remedy, size = f"call `pool.scale({workers})` in its driver", wording.counted(workers, "worker")
        raise SpotmpiError(f"run {run} gets {size}, but its scheduler could not be told: {error}; {remedy}") from error


@contextlib.contextmanager
def address_of(backend: Backend, run: str) -> Iterator[PoolAddress]:
    """The address of the scheduler of a pool or stream while in the context; what it waits for first is printed."""
    with contextlib.ExitStack() as stack:
        with _reminders(run):
            address = stack.enter_context(backend.pool_address(run))
        yield address


def _reminders(run: str) -> contextlib.AbstractContextManager[None]:
    """Says, while in the context, that the scheduler of *run* does not listen yet: it may be in a queue for hours."""
    what, more = f"waiting until the scheduler of {run} listens", f"`spotmpi status {run}` shows why"
    return reminders(lambda seconds: f"{what}, for {seconds:.0f} s (Ctrl-C ends this); {more}", print_message, QUIET)


@contextlib.contextmanager
def dashboard(run: str, on: TargetLike = None) -> Iterator[str]:
    """The address of Dask's dashboard of a pool or stream on this machine, while in the context.

    Raises:
        SpotmpiError: it has ended, does not take this driver, or has no bokeh.
    """
    backend = targets.backend_of(run, on)
    run = backend.state(run).id
    with address_of(backend, run) as address:
        try:
            with contextlib.closing(Engine(address.url, str(address.tls))) as engine:
                remote = engine.dashboard()
        except PoolError as error:
            raise SpotmpiError(str(error)) from error
    with backend.forward_port(run, remote) as port:
        yield f"http://127.0.0.1:{port}/status"


class ExistingRun:
    """A pool that another driver has started: it keeps running when this driver leaves."""

    outlives = True

    def __init__(self, run: str, on: TargetLike) -> None:
        self.run, self._on = run, on
        self._echo: Echo = print_message
        self._contexts = contextlib.ExitStack()
        self._backend: Backend
        self._price: float | None = None  # of a node and hour
        self._has_price = False

    def open(self, output: Output) -> Engine:
        """Wait until the scheduler listens, and connect to it."""
        self._backend = targets.backend_of(self.run, self._on)
        state = self._backend.state(self.run)
        self.run = state.id
        if state.over:
            raise SpotmpiError(state.end)
        with _reminders(self.run):
            return self._connect(output)

    def resize(self, workers: int) -> None:
        """Request another number of workers."""
        self._backend.resize(self.run, workers)

    def summary(self) -> PoolSummary:
        """Where the pool runs and what it has cost so far; prices are queried once."""
        from spotmpi.api import prices

        folder = Path(self._backend.state(self.run).folder)
        if not self._has_price:
            with contextlib.suppress(SpotmpiError):
                self._price = prices.node_price(folder)
            self._has_price = True
        return prices.summarize(folder, self._price)

    def close(self) -> None:
        """Close the way to the scheduler."""
        self._contexts.close()

    def _connect(self, output: Output) -> Engine:
        threading.Thread(target=import_client, daemon=True).start()  # while the scheduler is waited for
        address = self._contexts.enter_context(self._backend.pool_address(self.run))
        attempt = self._backend.state(self.run).attempt
        return Engine(address.url, str(address.tls), output, lambda: self._loss(attempt), self._echo)

    def _loss(self, attempt: int) -> str | None:
        """Why the scheduler of attempt number *attempt* is gone, or None where it may answer again."""
        try:
            state = self._backend.state(self.run)
        except SpotmpiError:
            return None  # the target does not answer either
        if state.over:
            return state.end
        if state.attempt > attempt:
            reason = None
            with contextlib.suppress(OSError):  # this machine may have no record of it
                recorded = reader.attempts(RunPaths(Path(state.folder)))
                reason = next((each.get("reason") for each in recorded if each["attempt"] == attempt), None)
            return f"{reason or 'node 0: its scheduler ended'}; spotmpi.pool('{state.id}') joins the next attempt"
        return None


class NewRun(ExistingRun):
    """A pool that this driver starts when it opens it, and stops when it closes it."""

    outlives = False

    def __init__(self, source: Source, overrides: list[str], on: TargetLike, echo: Echo) -> None:
        super().__init__("", on)
        self._source, self._overrides, self._echo = source, overrides, echo

    def open(self, output: Output) -> Engine:
        """Submit the run, say what it waits for, and connect to its scheduler.

        Raises:
            PoolLost: the run was lost before, such as by the end of its agent: another one may do.
        """
        self._backend, spec, plan = runs.prepare(self._source, self._overrides, self._on, self._echo)
        if spec.launcher != POOL:
            raise input_error("launcher", spec.launcher, 'a pool needs launcher = "pool" and the table [pool]')
        for note in plan["notes"]:
            self._echo(note)
        submit(self._backend, spec, plan, self._echo)
        self.run = plan["run"]
        atexit.register(self._say_open, os.getpid())
        connected = threading.Event()
        threading.Thread(target=self._follow, args=(connected,), daemon=True).start()
        try:
            return self._connect(output)
        except BaseException as error:
            self.close()
            if isinstance(error, SpotmpiError) and self._backend.state(self.run).state == record.LOST:
                raise PoolLost(str(error)) from error
            raise
        finally:
            connected.set()

    def close(self) -> None:
        """Stop the run and wait until it has ended."""
        atexit.unregister(self._say_open)
        super().close()
        if self.run:
            stopping.stop_run(self._backend, self.run, reader.CLOSED, self._echo)

    def _say_open(self, process: int) -> None:
        """Say at the end of the *process* that opened the pool that it goes on, and costs."""
        if os.getpid() == process:
            remedy = f"`spotmpi stop {self.run}` ends it, and spotmpi.pool('{self.run}') joins it"
            self._echo(f"pool {self.run} was not closed, and goes on without a driver up to limits.driver: {remedy}")

    def _follow(self, connected: threading.Event) -> None:
        """Say what the run waits for until its scheduler is reached."""
        with contextlib.suppress(SpotmpiError):
            for event in self._backend.events(self.run, True):
                if connected.is_set():
                    return
                if event.kind == record.WAITING and event.values.get("reason"):
                    self._echo(f"waiting: {event.values['reason']}")
