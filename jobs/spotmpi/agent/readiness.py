"""What node 0 waits for before it launches: every host, the name by which it is reached, and staged data.

Data is copied from shared storage to every node, before its ranks start.
"""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import threading
from collections.abc import Callable

from . import hardware, network, protocol, record
from .clock import CLOCK, Clock
from .outcomes import NOT_RETRYABLE, Outcome, StopSignal, outcome_of_error
from .peers import Coordinator
from .plan import NODE, Member, StagingPlan

DNS_GRACE = 35.0  # seconds for DNS to resolve hosts to their workers' addresses; with address translation it never does
COPY_THREADS = 16  # shared storage has high latency, not low throughput
EVENT_INTERVAL = 1.0  # seconds between events that name the missing hosts; hundreds of hosts come within one


class Staging:
    """Copies a data set in the background; with a *plan* of None there is nothing to do.

    Files that are kept in memory count towards the limit of *cgroup*.
    """

    def __init__(self, plan: StagingPlan | None, cgroup: str) -> None:
        self._cgroup = cgroup
        self.failure: Outcome | None = None  # of the attempt, where the copy failed
        self._copied, self._size = 0, 0  # bytes
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(plan,), daemon=True)
        if plan is not None:
            self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether the copy is in progress."""
        return self._thread.is_alive()

    def __str__(self) -> str:
        tenths = 10 * self._copied // max(self._size, 1)
        return "%d0 %% of %.1f GB of data copied" % (tenths, self._size / 1e9)

    def _run(self, plan: StagingPlan) -> None:
        try:
            self._copy(plan["from"], plan["to"], plan["stage"])
        except OSError as error:
            failure = outcome_of_error(error)
            self.failure = failure._replace(reason="data %s cannot be staged: %s" % (plan["from"], failure.reason))

    def _copy(self, source: str, target: str, stage: str) -> None:
        """Copy all files below *source*; OSError where they do not fit."""
        files = _files(source)
        self._size = sum(size for _, size in files)
        os.makedirs(target, exist_ok=True)
        free = hardware.free_bytes(target, self._cgroup if stage == "memory" else None)
        if self._size > free:
            place = "in the memory of this pod" if stage == "memory" else "on the disk of this node"
            raise OSError("it has %.1f GB, %.1f GB are free %s" % (self._size / 1e9, free / 1e9, place))
        for folder in sorted({os.path.dirname(name) for name, _ in files}):
            os.makedirs(os.path.join(target, folder), exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(COPY_THREADS) as pool:
            for _ in pool.map(lambda file: self._copy_file(source, target, *file), files):
                pass

    def _copy_file(self, source: str, target: str, name: str, size: int) -> None:
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
        with self._lock:
            self._copied += size


class Readiness:
    """Knows what is still missing.

    Where programs need the *names* of hosts, one counts when its name resolves to the address from which its worker
    connected: the pods of before a restart had the same names, and DNS may lead to them for seconds. *hosts* gives the
    name of each node, which may have another one once a pod that stood by does its work. *missing_here* says what else
    node 0 waits for on itself, if anything.
    """

    def __init__(
        self,
        hosts: Callable[[], list[str]],
        coordinator: Coordinator,
        staging: Staging,
        clock: Clock = CLOCK,
        names: bool = False,
        missing_here: Callable[[], str | None] | None = None,
    ) -> None:
        self._hosts = hosts
        self.addresses: dict[str, str] = {}  # of hosts whose name resolves to their worker's address
        self._names = names
        self._coordinator = coordinator
        self._staging = staging
        self._missing_here = missing_here or (lambda: None)
        self._clock = clock
        self._all_connected: float | None = None  # when the last host connected, as `Clock.uptime` counts

    @property
    def failure(self) -> Outcome | None:
        """How the attempt ends where the data cannot be staged, or None."""
        return self._staging.failure

    def missing(self) -> str | None:
        """What is still missing, as a sentence, or None."""
        hosts = self._hosts()
        unready = [hosts[node] for node in self._coordinator.missing()]
        if unready:
            return self._describe(unready, "are not ready yet")
        unresolved = self._unresolved() if self._names else []
        if unresolved:
            return self._describe(unresolved, "are not in DNS with their address yet")
        here = str(self._staging) if self._staging.busy or self._staging.failure else self._missing_here()
        return here and "node 0: %s" % here

    def wait(self, limit: float, events: record.Record, stop_signal: StopSignal) -> Outcome | None:
        """None once nothing is missing, else the outcome of waiting for *limit* seconds; records what is missing."""
        deadline, last_text, last_event = self._clock.uptime() + limit, "", 0.0
        self._all_connected = None
        while True:
            self._coordinator.serve(0.05)
            text = self.missing()
            if text is None:
                return None
            stop_request = stop_signal.pending()
            if stop_request:
                return stop_request.outcome
            if self.failure:
                return self.failure._replace(reason="node 0: %s" % self.failure.reason)
            if self._clock.uptime() > deadline:
                reason = "limits.start (%s) is over: %s" % (protocol.duration(limit), text)
                return Outcome(NOT_RETRYABLE, reason)
            if text != last_text and self._clock.uptime() > last_event + EVENT_INTERVAL:
                last_text, last_event = text, self._clock.uptime()
                reason = "%s (limits.start allows %s)" % (text, protocol.duration(limit))
                events.event(record.WAITING, reason=reason)

    def _unresolved(self) -> list[str]:
        """The hosts whose name does not resolve, or still leads to a pod of before."""
        now = self._clock.uptime()
        self._all_connected = now if self._all_connected is None else self._all_connected
        unresolved = []
        for node, host in enumerate(self._hosts()):
            worker = self._coordinator.workers.get(Member(NODE, node))
            if host in self.addresses and (worker is None or worker.address == self.addresses[host]):
                continue
            addresses = network.addresses(host)
            if worker and worker.address in addresses:
                self.addresses[host] = worker.address
            elif not addresses or (worker and now < self._all_connected + DNS_GRACE):
                unresolved.append(host)
        return unresolved

    def _describe(self, hosts: list[str], what: str) -> str:
        names = ", ".join(hosts[:8]) + (" ..." if len(hosts) > 8 else "") + self._coordinator.hint
        return "%d of %d hosts %s: %s" % (len(hosts), len(self._hosts()), what, names)


def _files(source: str) -> list[tuple[str, int]]:
    """Path below *source* and size of every file; OSError where the folder cannot be read."""
    files = []

    def fail(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(source, onerror=fail, followlinks=True):
        for name in names:
            path = os.path.join(folder, name)
            files.append((os.path.relpath(path, source), os.path.getsize(path)))
    return files
