"""A web server that gives pieces of files and the listings of buckets as S3 does.

`test_data_fetch` compares its answers with moto's S3: a quoted MD5 as ETag, 412 where that is not what If-Match says,
416 beyond the end. That S3 itself answers 412 is in the reference of GetObject, under If-Match.
"""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from spotmpi.agent.fetch import DownloadValues
from spotmpi.data.remote_source import Download
from tests.testbed.certificates import Credential
from tests.testbed.web import answering


class Site:
    """Files by path, with faults by number of the request; `ranges` has the range of each request."""

    def __init__(self, host: str, credential: Credential | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges: list[str] = []
        self.faults: dict[int, int] = {}  # question -> status instead of an answer; 0 breaks off in the middle
        self.replacements: dict[int, dict[str, bytes]] = {}  # question -> files as they are from then on
        self.pieces = True
        self.conditions = True  # whether If-Match is understood
        self.tags = True
        self.lock = threading.Lock()
        self.open = threading.Event()  # unless set, questions beyond the first `free` wait for it
        self.open.set()
        self.free = 0
        self.http = ThreadingHTTPServer((host, 0), type("Handler", (_Handler,), {"site": self}))
        if credential:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(credential.certificate, credential.key)
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.address = f"{'https' if credential else 'http'}://{host}:{self.http.server_port}"

    def download(self, name: str, folder: str, sha256: str | None = None) -> DownloadValues:
        """The download for a file, with a new signature each time."""
        return Download(f"{self.address}/{name}?signature={len(self.ranges)}", name, sha256).values(folder)

    def listing(self, bucket: str, prefix: str) -> bytes:
        """The answer to S3's ListObjectsV2."""
        names = [name.removeprefix(f"{bucket}/") for name in self.files if name.startswith(f"{bucket}/{prefix}")]
        contents = "".join(f"<Contents><Key>{name}</Key></Contents>" for name in names)
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()


@contextmanager
def serving(host: str = "127.0.0.1", credential: Credential | None = None) -> Iterator[Site]:
    """A site that answers until the end of the block, by https where it has a certificate."""
    site = Site(host, credential)
    with answering(site.http):
        try:
            yield site
        finally:
            site.open.set()


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        parameters = parse_qs(parts.query)
        if "list-type" in parameters:
            self._give(200, self.site.listing(parts.path.strip("/"), parameters.get("prefix", [""])[0]))
            return
        with self.site.lock:
            number = len(self.site.ranges)
            self.site.ranges.append(self.headers["Range"])
            self.site.files |= self.site.replacements.get(number, {})
            content = self.site.files.get(parts.path[1:])
        if number >= self.site.free:
            self.site.open.wait()
        fault = self.site.faults.get(number)
        if fault or content is None:
            self.send_error(fault or 404)
            return
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        if self.site.conditions and self.headers["If-Match"] not in (None, tag):
            self.send_error(412)
            return
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        if first >= len(content):
            self.send_error(416)
            return
        piece = content[first : last + 1]
        extent = f"bytes {first}-{first + len(piece) - 1}/{len(content)}"
        headers = {"Content-Range": extent, **({"ETag": tag} if self.site.tags else {})}
        self._give(206 if self.site.pieces else 200, piece, headers, fault == 0)

    def _give(
        self, status: int, content: bytes, headers: Mapping[str, str] | None = None, broken: bool = False
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if broken else content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
