"""A fake Kubernetes API over HTTP, for spotmpi's real client."""

from __future__ import annotations

import functools
import json
import math
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from spotmpi.backends.kubernetes.client.api import ClusterApi
from spotmpi.backends.kubernetes.client.view import ClusterView
from tests.cloud.cluster.answers import Refusal, Request, stamp_of, status
from tests.cloud.cluster.handler import Handler
from tests.cloud.cluster.kinds import BY_KIND, Resource
from tests.cloud.cluster.store import Key, Object, Store
from tests.cloud.json_values import copied
from tests.testbed.certificates import Credential

Output = subprocess.CompletedProcess[bytes]


class FakeCluster:
    """A Kubernetes API server on a port of this machine, and what stands behind it as far as runs see it.

    Tests `put` objects, as controllers and kubelets do, and look at `requests`. The server behaves as the original:

    * objects, lists in pages, selectors, merge patches, watches from a version on, and 410 for one that is forgotten:
      https://kubernetes.io/docs/reference/using-api/api-concepts/
    * it says when it made an object, in whole seconds by its own clock, which is *ahead* of this machine's by some
      seconds, and gives it ``uid`` and ``resourceVersion`` (kubernetes.io, Kubernetes API reference, ObjectMeta);
      each answer has a ``Date`` by that clock, as Go's net/http sends it (RFC 9110, section 6.6.1)
    * refusals are Status objects with the messages of apimachinery's ``pkg/api/errors`` and of the authorizer
      (apiserver, ``responsewriters.Forbidden``); an unknown API group is text, "404 page not found"
    * everybody may create a SelfSubjectAccessReview (RBAC's default role system:basic-user), which answers by `forbid`
    * JobSet's webhook refuses actions that need a feature gate (`restarts_jobs`)
    * JobSets lose the fields that their CRD does not know, and Jobs those of a newer Kubernetes (`pruned`), without an
      error (kubernetes.io, "Field pruning" and "Field validation")
    * the log of a pod is that of its kubelet: 400 before its container starts, followed until it has ended
    * deletion in the foreground leaves the object visible until what it owns is gone: here for one more look at it
    * exec and port-forward: see channels.py

    A pod ends at once when it is deleted. No controller runs: what it would do, tests put.
    """

    namespace, context = "here", "this"

    def __init__(
        self, *objects: Object, ahead: float = 0.0, port: int = 0, credential: Credential | None = None
    ) -> None:
        self.ahead, self.store = ahead, Store()
        self.logs: dict[str, list[tuple[float, str]]] = {}  # by pod: when each line came, and the line
        self.requests: list[Request] = []
        self.paths: list[str] = []  # of the same requests, with their parameters
        self.tokens: list[str] = []  # the Authorization of each
        self.impersonated: list[list[tuple[str, str]]] = []  # the headers of each by which its user acts as another
        self.created: list[Object] = []  # as they were sent
        self.patched: list[tuple[str, str, Object]] = []  # kind, name and values
        self.deleted: list[str] = []  # by requests
        self.pruned: Sequence[str] = ()
        self.restarts_jobs = False  # JobSet has its feature gate RestartJob, which is off by default
        self.missing: set[str] = set()  # API groups that are not installed
        self.watch_epoch = 0  # a watch of an earlier one ends
        self.before_request: Callable[[Request], object] = lambda request: None  # called before each is looked at
        self.on_request: Callable[[Request], object] = lambda request: None  # called after each that was carried out
        self.run: Callable[[str, Sequence[str], bytes], Output] = lambda pod, command, stdin: _printed("")
        self.cut_off: int | None = None  # bytes of input after which the next connection with so many breaks
        self.admits: Callable[[str], bool] = lambda authorization: True
        self.problems: list[BaseException] = []  # in the server, which tests must not cause
        self.over = threading.Event()
        self._forbidden: list[tuple[str, str]] = []
        self._refusals: list[Refusal] = []
        self._port, self._credential = port, credential
        self.put(*objects)

    @functools.cached_property
    def _http(self) -> ThreadingHTTPServer:
        """The server, which starts when somebody asks for its address."""
        server = ThreadingHTTPServer(("127.0.0.1", self._port), type("ClusterHandler", (Handler,), {"cluster": self}))
        if self._credential:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self._credential.certificate, self._credential.key)
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def close(self) -> None:
        """End the server: from now on nothing listens at its port."""
        self.over.set()
        with self.store.changed:
            self.store.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()

    # --- how to reach it

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._http.server_port

    @property
    def address(self) -> str:
        """Its address."""
        return f"http{'s' * bool(self._credential)}://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path, more: Object | None = None) -> Path:
        """Write a kubeconfig whose current context is this cluster."""
        return write_kubeconfig(path, self.address, self.context, self.namespace, more=more)

    def api(self) -> ClusterApi:
        """A client by the current kubeconfig."""
        return ClusterApi(None, None)

    def view(self) -> ClusterView:
        """A synchronous client, whatever the current kubeconfig says."""
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(self.kubeconfig(Path(folder, "config"))))
            return ClusterView(None)

    # --- what is in it

    def now(self) -> float:
        """Unix seconds by the server's clock."""
        return time.time() + self.ahead

    def put(self, *objects: Object) -> None:
        """Create or replace objects, as controllers and kubelets do."""
        for item in objects:
            metadata = {"creationTimestamp": stamp_of(self.now()), **item["metadata"]}
            self.store.put(self.key(item), {**item, "metadata": metadata})

    def remove(self, *objects: Object) -> None:
        """Take objects away, with what they own."""
        for item in objects:
            self.store.remove(self.key(item))

    def clear(self, kind: str) -> None:
        """Take all objects of a kind away."""
        self.remove(*self.all(kind))

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        """The object of that name."""
        resource = BY_KIND[kind]
        key = Key(resource.plural, namespace or self.namespace if resource.is_namespaced else "", name)
        return copied(self.store.objects[key])

    def all(self, kind: str) -> list[Object]:
        """All objects of a kind, by namespace and name."""
        plural = BY_KIND[kind].plural
        return [copied(item) for _, item in self.store.select(lambda key, item: key.plural == plural)]

    def unseen(self) -> AbstractContextManager[None]:
        """Nobody sees the changes in the context: watches end with 410 after it."""
        return self.store.unseen()

    def end_watches(self) -> None:
        """End all watches, as the API server does after some minutes."""
        with self.store.changed:
            self.watch_epoch += 1
            self.store.changed.notify_all()

    def add_log(self, pod: Object | str, *lines: str, end: str = "\n") -> None:
        """Let the log of a pod have more lines."""
        name = pod if isinstance(pod, str) else pod["metadata"]["name"]
        with self.store.changed:
            self.logs.setdefault(name, []).extend((self.now(), line + end) for line in lines)
            self.store.changed.notify_all()

    def answer_commands(self, *outputs: str) -> None:
        """Let commands in pods print these outputs, one after another; the last one repeats."""
        rest = list(outputs)
        self.run = lambda pod, command, stdin: _printed(rest.pop(0) if len(rest) > 1 else rest[0])

    # --- what it refuses

    def forbid(self, verb: str, resource: str) -> None:
        """Let the user lack a right; ``*`` is any verb or resource."""
        self._forbidden.append((verb, resource))

    def is_forbidden(self, verb: str, resource: str) -> bool:
        """Whether the user may not do that."""
        return any(_fits(verb, each[0]) and _fits(resource, each[1]) for each in self._forbidden)

    def refuse(
        self,
        verb: str,
        resource: str,
        code: int | None,
        text: str = "no",
        times: float = math.inf,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer the next requests of that kind with a code: with a Status, or as a proxy if *text* is a page.

        Without a *code* such requests get no answer; with 0 the connection breaks.
        """
        body = text if not text or text[0] in "<{" or "page not found" in text else json.dumps(status(code or 0, text))
        refusal = Refusal(verb, resource, code, body, headers or {})
        self._refusals += [refusal] * int(min(times, 99))

    def next_refusal(self, request: Request) -> Refusal | None:
        """What a test wants to be answered to this request, if anything."""
        for at, each in enumerate(self._refusals):
            if _fits(request.verb, each.verb) and _fits(request.resource, each.resource):
                return self._refusals.pop(at)
        return None

    # --- what it was asked

    def requests_of(self, verb: str, resource: str = "*") -> list[Request]:
        """The requests of a kind, in order."""
        return [each for each in self.requests if _fits(each.verb, verb) and _fits(each.resource, resource)]

    def kinds_created(self) -> list[str]:
        """The kinds of the created objects, in order."""
        return [item["kind"] for item in self.created]

    # --- for the handler

    def key(self, item: Object) -> Key:
        """Where an object belongs."""
        resource: Resource = BY_KIND[item["kind"]]
        namespace = item["metadata"].get("namespace", self.namespace) if resource.is_namespaced else ""
        return Key(resource.plural, namespace, item["metadata"]["name"])


def _printed(text: str) -> Output:
    return subprocess.CompletedProcess([], 0, text.encode(), b"")


def _fits(value: str, pattern: str) -> bool:
    return pattern in ("*", value)


def write_kubeconfig(
    path: Path,
    server: str,
    name: str = "test",
    namespace: str = "here",
    current: bool = True,
    user: Object | None = None,
    more: Object | None = None,
) -> Path:
    """Write a kubeconfig with one context, and *more* about its cluster; returns its path."""
    # Without it each client would read all authorities of the system, for 20 ms and a server that has no certificate.
    trust = {} if server.startswith("https") else {"insecure-skip-tls-verify": True}
    content = {
        "clusters": [{"name": name, "cluster": {"server": server, **trust, **(more or {})}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me", "namespace": namespace}}],
        "users": [{"name": "me", "user": user or {}}],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({**content, **({"current-context": name} if current else {})}))
    return path
