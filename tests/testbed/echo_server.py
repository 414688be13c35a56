"""A web server that load tests drive."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator


class _Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        values = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"value": "0"} if values.get("value") == "13" else values).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def echo_server(host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server that answers with the query's values; the answer to the value 13 is wrong."""
    with http.server.ThreadingHTTPServer((host, 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{host}:{server.server_port}/"
        server.shutdown()
