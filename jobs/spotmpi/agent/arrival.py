"""What node 0 waits for before it launches: every host, the name by which it is reached, and staged data."""

from __future__ import annotations

import time

from . import network
from .outcomes import Outcome
from .peers import Coordinator
from .staging import Staging

PATIENCE = 35.0  # seconds for DNS to say where workers came from; it never does where addresses are translated


class Arrival:
    """Knows who is not there yet.

    The pods of before a restart had the same names, and DNS may lead to them for seconds: a name counts when it leads
    to where its worker came from.
    """

    def __init__(self, hosts: list[str], hub: Coordinator, staging: Staging) -> None:
        self.hosts = hosts
        self.addresses: dict[str, str] = {}  # of hosts, where DNS and the worker agree
        self._hub = hub
        self._staging = staging
        self._complete: float | None = None  # when the last host had come, by time.monotonic

    @property
    def failed(self) -> Outcome | None:
        """How the attempt ends where the data cannot be staged, or None."""
        return self._staging.failure

    def awaited(self) -> str | None:
        """What is not there yet, in words, or None."""
        missing = [self.hosts[node] for node in self._hub.missing()]
        if missing:
            return self._words(missing, "are not ready yet")
        unknown = self._unknown()
        if unknown:
            return self._words(unknown, "are not known to DNS by their address yet")
        return "node 0: %s" % self._staging if self._staging.busy or self._staging.error else None

    def _unknown(self) -> list[str]:
        """The hosts whose name leads nowhere, or still to a pod of before."""
        now = time.monotonic()
        self._complete = now if self._complete is None else self._complete
        unknown = []
        for node, host in enumerate(self.hosts):
            if host in self.addresses:
                continue
            said = network.addresses(host)
            worker = self._hub.workers.get(node)
            if worker and worker.address in said:
                self.addresses[host] = worker.address
            elif not said or (worker and now < self._complete + PATIENCE):
                unknown.append(host)
        return unknown

    def _words(self, hosts: list[str], what: str) -> str:
        names = ", ".join(hosts[:8]) + (" ..." if len(hosts) > 8 else "")
        return "%d of %d hosts %s: %s" % (len(hosts), len(self.hosts), what, names)
