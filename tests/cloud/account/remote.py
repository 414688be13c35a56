"""A test's AWS account over HTTP, for the processes that the test starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

from tests.cloud.account.answers import Refusal
from tests.cloud.account.answers import Request as Call
from tests.cloud.account.fake_account import FakeAccount
from tests.testbed.web import answering

Handlers = Mapping[str, Callable[..., Any]]  # by name; each takes the parameters by keyword


@contextmanager
def serve(handlers: Handlers) -> Iterator[str]:
    """The address at which *handlers* answer until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                response = {"answer": handlers[self.path[1:]](**request)}
            except Refusal as refusal:
                response = {"refused": refusal.parsed}
            content = json.dumps(response, default=str).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield f"http://{address}"


def fetch(address: str, name: str, **request: Any) -> Any:
    """The answer of that name; Refusal where AWS would refuse."""
    content = json.dumps(request, default=str).encode()
    with urlopen(Request(f"{address}/{name}", content), timeout=120) as answer:
        response = json.load(answer)
    if "refused" in response:
        refusal = Refusal("")
        refusal.parsed = response["refused"]
        raise refusal
    return response["answer"]


class RemoteAccount(FakeAccount):
    """An account whose every call is answered at *address*, by the `answer` that is served there as ``aws``."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def answer(self, service: str, operation: str, region: str, request: Call) -> Any:
        """The answer of the account that is served."""
        return fetch(self._address, "aws", service=service, operation=operation, region=region, request=request)
