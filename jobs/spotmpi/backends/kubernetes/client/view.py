"""The synchronous, read-only face of the client: objects as plain values, from any namespace."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Protocol, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from spotmpi.backends.kubernetes.client.api import ClusterApi, Object
from spotmpi.backends.kubernetes.client.errors import translate_errors

T = TypeVar("T")


class ClusterReader(Protocol):
    """What a cluster can be read for; tests bring their own."""

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, None where there is none; SpotmpiError where it cannot be read."""
        ...

    def list(self, kind: str, namespace: str | None = None) -> list[Object]:
        """The objects of a kind; SpotmpiError where they cannot be listed."""
        ...


class ClusterView:
    """The cluster of an environment's or a kubeconfig's context; safe to use from several threads."""

    def __init__(self, context: str | None) -> None:
        self._api = ClusterApi(context, "default")
        self._lock = threading.Lock()  # one request at a time: the first may start a program that logs in

    @cached_property
    def _portal(self) -> BlockingPortal:
        """The event loop of the client's connections, which ends with this view."""
        stack = ExitStack()
        portal = stack.enter_context(start_blocking_portal(name="spotmpi cluster view"))
        weakref.finalize(self, _close, stack, portal.call(threading.get_ident))
        return portal

    def _call(self, action: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with translate_errors(action), self._lock:
            result: T = self._portal.call(work)
            return result

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, None where there is none."""
        return self._call(f"read {kind} {name}", lambda: self._api.find(kind, name, namespace))

    def list(self, kind: str, namespace: str | None = None) -> list[Object]:
        """The objects of a kind, in *namespace* (``default`` where there is none) or in all of them (``*``)."""
        return self._call(f"list {kind}s", lambda: self._api.list(kind, namespace=namespace))


def _close(stack: ExitStack, thread: int) -> None:
    """End an event loop and its *thread*, which cannot wait for itself where it is the one that collects garbage."""
    if threading.get_ident() == thread:
        threading.Thread(target=stack.close, name="spotmpi cluster view ends").start()
    else:
        stack.close()
