"""Storage behind a network: a web server by fsspec, one that fails and recovers, and files that change meanwhile."""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from spotmpi.streams import sources, storage
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Order, Settings
from tests.testbed.web import answering
from tests.unit.streams.data import order_of, read, read_all, samples, table, write_tar


class WebServer(ThreadingHTTPServer):
    """Files by name, with Range, ETag and a listing of each folder.

    The next *failures* requests, and all for the folders that are *broken*, get an error *status*. None gets an answer
    while it is not *awake*.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.failures, self.status = 0, 503
        self.broken: set[str] = set()
        self.awake = threading.Event()
        self.awake.set()
        self.sent = 0  # bytes of files

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_GET(self) -> None:
        if not self.server.awake.is_set():
            self.server.awake.wait()
            self.close_connection = True
            return
        name = self.path.lstrip("/")
        if self.server.failures > 0 or name in self.server.broken:
            self.server.failures -= 1
            self.send_error(self.server.status)
            return
        content = self.server.files.get(name)
        if content is not None:
            self._send(content)
        elif name.endswith("/") and (below := [file for file in self.server.files if file.startswith(name)]):
            names = {file[: file.find("/", len(name)) + 1] or file for file in below}
            self._answer(200, "".join(f'<a href="/{each}">{each}</a>' for each in names).encode(), {})
        elif any(file.startswith(f"{name}/") for file in self.server.files):
            self._answer(301, b"", {"Location": f"/{name}/"})
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def _send(self, content: bytes) -> None:
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:8]}"', "Accept-Ranges": "bytes"}
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if requested is None:
            self._answer(200, content, headers)
            return
        start, stop = int(requested[1]), int(requested[2] or len(content) - 1) + 1
        if start >= len(content):
            self.send_error(416)
            return
        part = content[start:stop]
        self._answer(206, part, {**headers, "Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(content)}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(ConnectionError):  # the client wants no more
                for start in range(0, len(body), 1 << 16):
                    block = body[start : start + (1 << 16)]
                    self.server.sent += len(block)  # before the client has the last of them and looks
                    self.wfile.write(block)

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A web server on this machine; storage that failed is asked again at once."""
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0, 0.0))
    server = WebServer()
    with answering(server):
        yield server


@pytest.fixture
def order(web: WebServer) -> Order:
    """The batches of two Parquet files on the server."""
    web.files |= {"set/1.parquet": table(0, 10), "set/2.parquet": table(10, 20)}
    return order_of(f"{web.url}/set/*.parquet", 5)


def test_a_web_server_has_parts_by_pattern_with_their_etags(web: WebServer, order: Order) -> None:
    parts = sources.parts_of(order.settings)
    assert [(part.name, part.rows, part.size) for part in parts] == [
        (f"{web.url}/{name}", 10, len(web.files[name])) for name in ("set/1.parquet", "set/2.parquet")
    ]
    assert [part.version for part in parts] == [
        f'"{hashlib.sha256(content).hexdigest()[:8]}"' for content in web.files.values()
    ]
    assert [batch["x"].tolist() for batch in read_all(order)] == [[*range(n, n + 5)] for n in (0, 5, 10, 15)]


def test_one_file_of_a_web_server_is_a_source(web: WebServer) -> None:
    web.files["a.bin"] = bytes(24 << 20)
    (part,) = sources.parts_of(Settings(f"{web.url}/a.bin", 1))
    assert (part.rows, part.size) == (1, 24 << 20)
    assert web.sent < 16 << 20  # it was not read for that


def test_samples_of_a_tar_file_are_read_by_their_place(web: WebServer, tmp_path: Path) -> None:
    web.files["a.tar"] = write_tar(tmp_path / "a.tar", samples("a", range(50))).read_bytes()
    order = order_of(f"{web.url}/a.tar", 2)
    sent = web.sent
    assert [row["cls"] for row in read(order, 20)] == [b"40", b"41"]
    assert web.sent - sent < 8 * 1024


@pytest.mark.parametrize("failures", [1, 3])
def test_storage_that_fails_and_recovers_costs_nothing(web: WebServer, order: Order, failures: int) -> None:
    web.failures = failures
    assert read(order, 1)["x"].tolist() == [5, 6, 7, 8, 9]
    assert web.failures == 0


def test_storage_that_stays_away_is_an_error_that_another_attempt_may_survive(web: WebServer, order: Order) -> None:
    web.failures = 1000
    with pytest.raises(SourceError, match=r"set/1\.parquet rows 0 to 4 cannot be read: .*(503|set/1)"):
        read(order, 0)
    with pytest.raises(SourceError, match=r"the source http.* cannot be read"):
        sources.parts_of(order.settings)


PLACES = ("set/1.parquet", "set/*.parquet", "set/**/*.parquet", "set/", "set/[1].parquet")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (503, "the server answers 503 Service Unavailable$"),
        (403, "the server answers 403 Forbidden; check the login and its rights to list and read there$"),
    ],
)
def test_a_web_server_that_fails_has_not_lost_its_files(
    web: WebServer, order: Order, place: str, status: int, message: str
) -> None:
    web.failures, web.status = 1000, status
    source = f"{web.url}/{place}"
    with pytest.raises(SourceError, match=f"^the source {re.escape(source)} cannot be read: {message}"):
        sources.files_of(source)


@pytest.mark.parametrize("place", PLACES)
def test_a_web_server_that_is_away_is_named_with_what_its_connection_says(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(storage, "PAUSES", (0.0,))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        refused = rf"the server does not answer: .*{host}.*Connect call failed.*; check the address, the network and"
        with pytest.raises(SourceError, match=rf"^the source {re.escape(f'http://{host}/{place}')} cannot.*{refused}"):
            sources.files_of(f"http://{host}/{place}")


@pytest.mark.parametrize("place", PLACES)
def test_a_web_server_that_is_silent_is_named(web: WebServer, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{web.url}/{place}"
    monkeypatch.setitem(storage.file_system(source)[0].kwargs, "timeout", aiohttp.ClientTimeout(total=0.05))
    web.awake.clear()
    with pytest.raises(SourceError, match=r"cannot be read: the server does not answer: .*Timeout.*; check"):
        sources.files_of(source)
    web.awake.set()


def test_a_folder_below_that_a_web_server_cannot_list_is_not_left_out(web: WebServer) -> None:
    web.files |= {"set/1.parquet": table(0, 10), "set/more/2.parquet": table(10, 20)}
    web.broken = {"set/more/"}
    for place in ("set/**/*.parquet", "set/"):
        with pytest.raises(SourceError, match="the server answers 503"):
            sources.files_of(f"{web.url}/{place}")


@pytest.mark.parametrize("place", ["none.parquet", "none/*.parquet", "set/*.csv"])
def test_a_file_that_a_web_server_does_not_have_is_missing(web: WebServer, order: Order, place: str) -> None:
    with pytest.raises(StreamError, match="is empty: no file has this name or pattern"):
        sources.files_of(f"{web.url}/{place}")


@pytest.mark.parametrize(("change", "verb"), [("truncate", "changed"), ("replace", "changed"), ("remove", "removed")])
def test_a_file_that_changes_meanwhile_is_an_error(web: WebServer, order: Order, change: str, verb: str) -> None:
    assert read(order, 0)["x"].tolist() == [0, 1, 2, 3, 4]
    if change == "remove":
        del web.files["set/1.parquet"]
    else:
        web.files["set/1.parquet"] = {"truncate": table(0, 10)[:100], "replace": table(20, 30)}[change]
    with pytest.raises(StreamError, match=rf"set/1\.parquet was {verb} while the stream reads it"):
        read(order, 1)
    assert read(order, 2)["x"].tolist() == [10, 11, 12, 13, 14]
