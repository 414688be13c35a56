"""Fetches files from https addresses to the run volume: in pieces at once, taken up where it broke off, checked.

    python3 -m spotmpi.agent.fetch ORDERS AUTHORITY

ORDERS is a gzipped JSON list of lists, one for each source: {"url", "name", "folder", "sha256" or null, "unpack"};
AUTHORITY a file of certificates (PEM) that are trusted besides the usual ones, or an empty one. It prints JSON lines:
{"name", "got": bytes, "of": bytes, "whole": files, "all": files} now and then. The last word is
{"done": [[files, bytes, files that had to travel], ...]}, one for each source, or {"failed": why}, and is the
container's termination message, too. The exit code is 1 where another try may help, and 78 where none will. SIGTERM
ends it at once with 75: the pieces that have come are kept, and another fetch goes on with them.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import signal
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import Any

from . import store, web_file
from .web_file import Changed, Gone

PIECE = 16 << 20
PIECES_AT_ONCE = 8  # over all files; each is in memory while it is under way
FILES_AT_ONCE = 4
VERSIONS = 3  # of a file that are begun, each because the one before was replaced
FINAL = 78
TAKEN_AWAY = 75
SAID_EVERY = 1.0  # seconds
LAST_WORD = "/dev/termination-log"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Arrived:
    """What earlier fetches brought to a folder, written down in it: files and sizes by mark and version."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, ".fetched" + store.PART)
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}
        if os.path.exists(self._path):
            with open(self._path) as lines:
                for line in lines:
                    self._take(line)

    def _take(self, line: str) -> None:
        try:
            note = json.loads(line)
            self._known[note["mark"]] = note
        except (ValueError, KeyError, TypeError):
            pass  # two wrote at once, or one was killed: what it told of is fetched again

    def files(self, mark: str, version: list[Any]) -> dict[str, int] | None:
        """Names and sizes of what came of that very file, where all of it is still there."""
        note = self._known.get(mark)
        if note is None or note["version"] != version:
            return None
        found: dict[str, int] = note["files"]
        paths = {name: store.inside(self._folder, name) for name in found}
        whole = all(os.path.isfile(paths[name]) and os.path.getsize(paths[name]) == found[name] for name in found)
        return found if whole else None

    def add(self, mark: str, version: list[Any], files: dict[str, int]) -> None:
        """Write down what came of a file."""
        with self._lock, open(self._path, "a") as notes:
            notes.write(json.dumps({"mark": mark, "version": version, "files": files}) + "\n")


class Progress:
    """Tells how far all is, at most once a second."""

    def __init__(self, count: int) -> None:
        self._all, self._whole, self._told = count, 0, 0.0
        self._lock = threading.Lock()

    def tell(self, name: str, got: int, of: int, whole: bool = False) -> None:
        """A piece of a file has come; *whole* when it was the last."""
        with self._lock:
            self._whole += whole
            if whole or time.monotonic() > self._told + SAID_EVERY:
                self._told = time.monotonic()
                say(name=name, got=got, of=of, whole=self._whole, all=self._all)


class Fetch:
    """One file on its way: its pieces that are here are written down beside it."""

    def __init__(self, order: dict[str, Any], arrived: Arrived, pieces: ThreadPoolExecutor, progress: Progress) -> None:
        self._order, self._arrived, self._pool, self._progress = order, arrived, pieces, progress
        # Signed addresses differ from one order to the next, and mean the same file.
        self._mark = hashlib.sha256(order["url"].split("?")[0].encode()).hexdigest()[:12]
        self._place = store.inside(order["folder"], ".fetch-" + self._mark + store.PART)
        self._path = os.path.join(self._place, "file")
        self._notes = os.path.join(self._place, "pieces")
        self._lock = threading.Lock()

    def run(self) -> list[int]:
        """Fetch, check and unpack it, unless it is here: files that came of it, their bytes, how many travelled.

        A file that is replaced meanwhile is begun anew: pieces of two versions would make neither.
        """
        for _ in range(VERSIONS):
            try:
                return self._fetched()
            except Changed:
                pass
        raise OSError("it was replaced %d times while it was fetched; push again once it no longer changes" % VERSIONS)

    def _fetched(self) -> list[int]:
        size, version = web_file.again(lambda: web_file.probe(self._order["url"]))
        same = [size, version, self._order["sha256"]]
        files, moved = self._arrived.files(self._mark, same), False
        if files is None:
            files, moved = self._brought(size, version), True
            self._arrived.add(self._mark, same, files)
        self._progress.tell(self._order["name"], size, size, whole=True)
        return [len(files), sum(files.values()), len(files) * moved]

    def _brought(self, size: int, version: str) -> dict[str, int]:
        here, tag = self._here(size, version), self._tag(size, version)
        wanted = [start for start in range(0, size, PIECE) if start not in here]
        pieces = [self._pool.submit(self._piece, start, size, tag) for start in wanted]
        try:
            for piece in as_completed(pieces):
                here.add(piece.result())
                self._progress.tell(self._order["name"], min(len(here) * PIECE, size), size)
        finally:
            # Those under way write into the same file as the next version's would.
            wait([piece for piece in pieces if not piece.cancel()])
        self._check()
        return self._settled()

    def _tag(self, size: int, version: str) -> str | None:
        """The entity tag that all pieces must have, None where the checksum of the whole says more."""
        if self._order["sha256"] or not size:
            return None
        if not version.startswith('"'):
            remedy = "write ...#sha256= and 64 hexadecimal digits"
            raise Gone("the server gives no strong ETag, so a change would go unnoticed: %s" % remedy)
        return version

    def _here(self, size: int, version: str) -> set[int]:
        """Where the pieces begin that an earlier fetch of the very same file has brought."""
        os.makedirs(self._place, exist_ok=True)
        head = "%d %s\n" % (size, version)
        lines = []
        if os.path.exists(self._notes) and os.path.exists(self._path):
            with open(self._notes) as notes:
                lines = notes.readlines()
        if lines[:1] != [head]:
            with open(self._notes, "w") as notes:
                notes.write(head)
            with open(self._path, "wb") as file:
                file.truncate(size)
            return set()
        return {int(line) for line in lines[1:] if line.endswith("\n")}

    def _piece(self, start: int, size: int, tag: str | None) -> int:
        data = web_file.again(lambda: web_file.read(self._order["url"], start, min(start + PIECE, size), tag))
        with open(self._path, "r+b") as file:
            file.seek(start)
            file.write(data)
        with self._lock, open(self._notes, "a") as notes:
            notes.write("%d\n" % start)
        return start

    def _check(self) -> None:
        wanted = self._order["sha256"]
        if wanted and store.described(self._path)[1] != wanted:
            remove(self._place)
            raise Gone("the file has another SHA-256 than the one given: check both, then push again")

    def _settled(self) -> dict[str, int]:
        folder, name = self._order["folder"], self._order["name"]
        if self._order["unpack"]:
            with tarfile.open(self._path) as packed:
                files = store.take(folder, packed)
        else:
            path = store.inside(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(self._path, path)
            files = {name: os.path.getsize(path)}
        remove(self._place)
        return files


def carry_out(sources: list[list[dict[str, Any]]]) -> list[list[int]]:
    """Fetch every file of every source: files, bytes and files that had to travel, for each source."""
    orders = [(number, order) for number, source in enumerate(sources) for order in source]
    folders = {order["folder"] for _, order in orders}
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    arrived = {folder: Arrived(folder) for folder in folders}
    progress, sums = Progress(len(orders)), [[0, 0, 0] for _ in sources]
    with ThreadPoolExecutor(PIECES_AT_ONCE) as pieces, ThreadPoolExecutor(FILES_AT_ONCE) as files:

        def fetched(item: tuple[int, dict[str, Any]]) -> tuple[int, list[int]]:
            number, order = item
            try:
                return number, Fetch(order, arrived[order["folder"]], pieces, progress).run()
            except (Gone, ValueError, tarfile.TarError) as error:
                raise Gone("%s: %s" % (order["name"], error)) from error
            except OSError as error:
                kind = Gone if error.errno in _FULL else OSError
                raise kind("%s: %s" % (order["name"], error)) from error

        for number, came in files.map(fetched, orders):
            sums[number] = [sums[number][at] + came[at] for at in range(len(came))]
    return sums


def remove(place: str) -> None:
    """Delete a folder of files."""
    for name in os.listdir(place):
        os.remove(os.path.join(place, name))
    os.rmdir(place)


def say(**values: Any) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main(path: str, authority: str) -> int:
    """Carry out the orders in the file *path*, trusting *authority* too; the exit code."""
    web_file.trust(authority)
    try:
        with gzip.open(path) as file:
            word: dict[str, Any] = {"done": carry_out(json.load(file))}
        code = 0
    except Gone as error:
        word, code = {"failed": str(error)}, FINAL
    except OSError as error:
        word, code = {"failed": str(error)}, 1
    say(**word)
    with open(LAST_WORD, "w") as last:
        json.dump(word, last)
    return code


if __name__ == "__main__":
    # The first process of a container ignores SIGTERM unless it says what to do; threads would outlive an exception.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(TAKEN_AWAY))
    sys.exit(main(*sys.argv[1:]))
