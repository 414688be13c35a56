"""A Kubernetes API over real HTTP that answers as scripted, and the objects in its answers."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from spotmpi.backends.kubernetes.client.api import ClusterApi
from tests.testbed.certificates import Credential

Object = dict[str, Any]
Answer = tuple[int, str]  # code and body
Answers = dict[str, list[Answer]]
PODS = "/api/v1/namespaces/here/pods"


def pod(name: str, version: int) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "resourceVersion": str(version)}}


def change(kind: str, item: Object) -> str:
    return json.dumps({"type": kind, "object": item}) + "\n"


def status(code: int, message: str = "no") -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def listing(*items: Object, kind: str = "Pod") -> str:
    metadata = {"resourceVersion": "8"}
    return json.dumps({"kind": f"{kind}List", "apiVersion": "v1", "metadata": metadata, "items": list(items)})


def write_kubeconfig(
    path: Path, server: str, name: str = "test", current: bool = True, user: Object | None = None, **cluster: str
) -> Path:
    """Write a kubeconfig with one context, in the namespace ``here``; returns its path."""
    content = {
        "clusters": [{"name": name, "cluster": {"server": server, **cluster}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me", "namespace": "here"}}],
        "users": [{"name": "me", "user": user or {}}],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({**content, **({"current-context": name} if current else {})}))
    return path


def api_at(port: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterApi:
    """A client of the server on a port of this machine, which is also that of the current context."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(folder / "config", f"http://127.0.0.1:{port}")))
    return ClusterApi(None, None)


class Server:
    """Answers each kind of request by its next scripted answer: (code, body); where none is left, it does not answer.

    Each answer has a ``Date``, as an origin server with a clock must send it (RFC 9110, section 6.6.1), and Go's
    net/http, which carries the API server, does: by a clock that is *ahead* of this machine's by some seconds.
    Where *retry_after* is set, refusals with code 429 have that header, as those of a busy API server: it is 1 there
    (kubernetes/kubernetes#84903). With a *credential* it answers by https.
    """

    retry_after: str | None = None

    def __init__(
        self, port: int = 0, answers: Answers | None = None, ahead: float = 0.0, credential: Credential | None = None
    ) -> None:
        self.ahead = ahead
        self.answers: Answers = {"watch": [], "list": [], "log": [], "other": [], **(answers or {})}
        self.requests: list[str] = []
        self.tokens: list[str] = []  # the Authorization of each request
        self.admits: Callable[[str], bool] = lambda token: True
        self.over = threading.Event()
        handler = type("Handler", (_Handler,), {"server_of": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        if credential:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(credential.certificate, credential.key)
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_of: ClassVar[Server]

    def do_GET(self) -> None:
        kind = "watch" if "watch=" in self.path else "log" if "/log" in self.path else "list"
        self._answer(kind if self.path.startswith(PODS) else "other")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer("other")

    def _answer(self, kind: str) -> None:
        own = self.server_of
        own.requests.append(f"{kind} {self.path}")
        own.tokens.append(self.headers.get("Authorization", ""))
        if not own.admits(own.tokens[-1]):
            self._give(401, json.dumps(status(401, "Unauthorized")))
            return
        if not own.answers[kind]:
            own.over.wait(10)
            return
        self._give(*own.answers[kind].pop(0))

    def _give(self, code: int, body: str) -> None:
        own = self.server_of
        self.send_response(code)
        if code == 429 and own.retry_after is not None:
            self.send_header("Retry-After", own.retry_after)
        if body:  # some proxies answer without any
            self.send_header("Content-Type", "application/json" if body.startswith("{") else "text/plain")
        self.end_headers()
        self.wfile.write(body.encode())

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The ``Date`` header."""
        return super().date_time_string(time.time() + self.server_of.ahead)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
