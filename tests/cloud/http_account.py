"""A test's AWS account over HTTP, for the processes that the test starts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

from tests.cloud.account_resources import AccountResources
from tests.cloud.scripted_account import Refusal, ScriptedAccount

Answers = Mapping[str, Callable[..., Any]]  # by name; each takes the parameters by keyword


@contextmanager
def serve(answers: Answers) -> Iterator[str]:
    """The address at which *answers* are served until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                response = {"answer": answers[self.path[1:]](**asked)}
            except Refusal as refusal:
                response = {"refused": refusal.parsed}
            content = json.dumps(response, default=str).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def fetch(address: str, name: str, **asked: Any) -> Any:
    """The answer of that name; Refusal where AWS would refuse."""
    content = json.dumps(asked, default=str).encode()
    with urlopen(Request(f"{address}/{name}", content), timeout=120) as answer:
        response = json.load(answer)
    if "refused" in response:
        refusal = Refusal("")
        refusal.parsed = response["refused"]
        raise refusal
    return response["answer"]


def answers_of(scripted: Mapping[str, Callable[[str, Mapping[str, Any]], Any]]) -> Answers:
    """An account's answers, for `serve`."""

    def answer(operation: str, region: str, asked: Mapping[str, Any]) -> Any:
        return scripted[operation](region, asked)

    return {operation: partial(answer, operation) for operation in scripted}


def account_at(address: str) -> ScriptedAccount:
    """An account whose every call is answered at *address*."""

    def answer(operation: str, region: str, asked: Mapping[str, Any]) -> Any:
        return fetch(address, operation, region=region, asked=dict(asked))

    account = ScriptedAccount()
    account.answers = {operation: partial(answer, operation) for operation in AccountResources().account().answers}
    return account
