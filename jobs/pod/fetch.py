"""Fetches one file from an https address to the run volume: in pieces at once, taken up where it broke off, checked.

    python3 -m jobs.pod.fetch      stdin: {"url", "name", "folder", "sha256" or null, "unpack"}

It prints JSON lines: {"got": bytes, "of": bytes} now and then, at the end {"files": how many} or {"failed": why}.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import store

PIECE = 16 << 20
AT_ONCE = 4
TRIES = 6
PAUSE = 1.0  # seconds before the second try; each further pause is twice as long
_GONE = (401, 403, 404, 410)


class Gone(Exception):
    """The address does not give the file, however often one asks."""


class Fetch:
    """One file on its way: its pieces that are here are written down beside it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        # Signed addresses differ from one order to the next, and mean the same file.
        mark = hashlib.sha256(order["url"].split("?")[0].encode()).hexdigest()[:12]
        self.place = store.inside(order["folder"], ".fetch-" + mark + store.PART)
        self.path = os.path.join(self.place, "file")
        self._notes = os.path.join(self.place, "pieces")
        self._lock = threading.Lock()

    def run(self) -> int:
        """Fetch, check and unpack; the number of files that came of it."""
        size, version = probe(self.order["url"])
        here = self._pieces(size, version)
        wanted = [start for start in range(0, max(size, 1), PIECE) if start not in here]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in pool.map(lambda start: self._piece(start, size), wanted):
                here.add(start)
                say(got=min(len(here) * PIECE, size), of=size)
        self._check()
        return self._settle()

    def _pieces(self, size: int, version: str) -> set[int]:
        """Where the pieces begin that an earlier fetch of the very same file has brought."""
        os.makedirs(self.place, exist_ok=True)
        head = "%d %s\n" % (size, version)
        lines = []
        if os.path.exists(self._notes) and os.path.exists(self.path):
            with open(self._notes) as notes:
                lines = notes.readlines()
        if lines[:1] != [head]:
            with open(self._notes, "w") as notes:
                notes.write(head)
            with open(self.path, "wb") as file:
                file.truncate(size)
            return set()
        return {int(line) for line in lines[1:] if line.endswith("\n")}

    def _piece(self, start: int, size: int) -> int:
        data = read(self.order["url"], start, min(start + PIECE, size))
        with open(self.path, "r+b") as file:
            file.seek(start)
            file.write(data)
        with self._lock, open(self._notes, "a") as notes:
            notes.write("%d\n" % start)
        return start

    def _check(self) -> None:
        wanted = self.order["sha256"]
        if wanted and store.described(self.path)[1] != wanted:
            remove(self.place)
            raise Gone("the file has another SHA-256 than the one given: check both, then push again")

    def _settle(self) -> int:
        folder = self.order["folder"]
        if self.order["unpack"]:
            with tarfile.open(self.path) as packed:
                count = store.take(folder, packed)
        else:
            path = store.inside(folder, self.order["name"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(self.path, path)
            count = 1
        remove(self.place)
        return count


def probe(url: str) -> tuple[int, str]:
    """Bytes of the file at *url*, and what changes with its content; Gone where it gives no pieces."""
    with asked(url, 0, 1) as answer:
        total = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
        if answer.status != 206 or not total.isdigit():
            raise Gone("the server gives no pieces of it (answer %d), so nothing could be taken up" % answer.status)
        return int(total), answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""


def read(url: str, start: int, end: int) -> bytes:
    """The bytes of *url* from *start* to before *end*, however often that has to be tried."""
    for number in range(TRIES):
        try:
            with asked(url, start, end) as answer:
                data: bytes = answer.read()
            if len(data) == end - start:
                return data
        except (OSError, http.client.HTTPException) as error:
            if number == TRIES - 1:
                raise Gone("no answer after %d tries: %s" % (TRIES, error)) from error
        time.sleep(PAUSE * 2**number)
    raise Gone("the server breaks off after %d tries" % TRIES)


def asked(url: str, start: int, end: int) -> Any:
    """The answer to a question for some bytes; Gone where asking again is of no use."""
    wanted = urllib.request.Request(url, headers={"Range": "bytes=%d-%d" % (start, end - 1)})
    try:
        return urllib.request.urlopen(wanted, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code in _GONE:
            raise Gone("the address answers %d: the file is gone, or access to it has ended" % error.code) from error
        raise


def remove(place: str) -> None:
    """Delete a folder of files."""
    for name in os.listdir(place):
        os.remove(os.path.join(place, name))
    os.rmdir(place)


def say(**values: Any) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Carry out the order on the standard input."""
    try:
        say(files=Fetch(json.load(sys.stdin)).run())
    except (Gone, OSError, ValueError, tarfile.TarError) as error:
        say(failed=str(error))


if __name__ == "__main__":
    main()
