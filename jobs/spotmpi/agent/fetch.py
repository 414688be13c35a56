"""Fetches files from https addresses to the run volume: in parallel pieces, resumable, verified.

    python3 -m spotmpi.agent.fetch DOWNLOADS AUTHORITY

DOWNLOADS is a gzipped JSON list of lists, one for each source: {"url", "name", "folder", "sha256" or null, "unpack"};
AUTHORITY a file of certificates (PEM) that are trusted in addition to the default ones, or an empty one. It prints
progress as JSON lines: {"name", "got": bytes, "of": bytes, "whole": files, "all": files}. The last line is
{"done": [[files, bytes, files that were transferred], ...]}, one for each source, or {"failed": reason}, and is the
container's termination message, too. The exit code is 1 where a retry may help, and 78 where it cannot. SIGTERM ends it
at once with 75: the pieces that have arrived stay, and the next fetch continues with them.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import Any, Optional, TypedDict

from . import store, web_file
from .files import error_text, exists
from .unpack import DAMAGES, unpack
from .web_file import Changed, Unavailable

PIECE = 16 << 20
PIECES_AT_ONCE = 8  # of all files; each is in memory while it is transferred
FILES_AT_ONCE = 4
VERSIONS = 3  # of a file that is replaced while it is fetched, before giving up
NOT_RETRYABLE = 78
INTERRUPTED = 75
PROGRESS_INTERVAL = 1.0  # seconds
TERMINATION_LOG = "/dev/termination-log"
_FULL = (errno.ENOSPC, errno.EDQUOT)


LOG = ".fetched" + store.PART  # in a folder: what was fetched to it


def key_of(url: str) -> str:
    """What an address is known by; the query of a signed one differs each time, for the same file."""
    return hashlib.sha256(url.split("?")[0].encode()).hexdigest()[:12]


class FetchLog:
    """The log, in a folder, of what was fetched to it: files and sizes by key (of the address) and version.

    No file of an address replaces one with other content of another address that is fetched together with it.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, LOG)
        self._folder = folder
        self._lock = threading.Lock()
        self._entries: dict[str, Any] = {}
        self._owners: dict[str, set[str]] = {}  # the keys from which files of this fetch came, by path
        with contextlib.suppress(FileNotFoundError), open(self._path, encoding="utf-8") as lines:
            for line in lines:
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            self._entries[entry["mark"]] = entry
        except (ValueError, KeyError, TypeError):
            pass  # two processes wrote at once, or one was killed: the file is fetched again

    def files(self, key: str, version: list[Any]) -> dict[str, int] | None:
        """Names and sizes of the files that came from that version, if all of them still exist."""
        entry = self._entries.get(key)
        if entry is None or entry["version"] != version:
            return None
        sizes: dict[str, int] = entry["files"]
        paths = {name: store.safe_path(self._folder, name) for name in sizes}
        complete = all(store.size_of(paths[name]) == sizes[name] for name in sizes)
        if complete:
            with self._lock:
                for path in paths.values():
                    self._owners.setdefault(path, set()).add(key)
        return sizes if complete else None

    def install(self, key: str, part: str, path: str) -> None:
        """Give a file that is complete in *part* its *path*; ValueError if another source has it with other content."""
        with self._lock:
            owners = self._owners.setdefault(path, set())
            is_shared = owners - {key} and exists(path)
            if is_shared and store.size_and_digest(path) != store.size_and_digest(part):
                os.remove(part)
                remedy = "push them to different folders"
                raise ValueError("is in another of the sources too, with other content: %s" % remedy)
            os.replace(part, path)
            owners.add(key)

    def add(self, key: str, version: list[Any], files: dict[str, int]) -> None:
        """Log the files that came from a version."""
        with self._lock, open(self._path, "a", encoding="utf-8") as log:
            log.write(json.dumps({"mark": key, "version": version, "files": files}) + "\n")


class DownloadValues(TypedDict):
    """A file to fetch, and where to."""

    url: str
    name: str  # in messages
    folder: str
    sha256: Optional[str]  # of its content, where it is known
    unpack: bool  # it is an archive


class FetchProgress:
    """Prints progress, at most once a second."""

    def __init__(self, count: int) -> None:
        self._all, self._whole, self._printed = count, 0, 0.0
        self._lock = threading.Lock()

    def report(self, name: str, got: int, of: int, whole: bool = False) -> None:
        """Report how much of a file has arrived; *whole* once all of it has."""
        with self._lock:
            self._whole += whole
            if whole or time.monotonic() > self._printed + PROGRESS_INTERVAL:
                self._printed = time.monotonic()
                print_json(name=name, got=got, of=of, whole=self._whole, all=self._all)


class Fetch:
    """Fetches one file; a list of the pieces that have arrived is kept next to it."""

    def __init__(
        self, download: DownloadValues, log: FetchLog, pieces: ThreadPoolExecutor, progress: FetchProgress
    ) -> None:
        self._values, self._log, self._pool, self._progress = download, log, pieces, progress
        self._key = key_of(download["url"])
        self._folder = store.safe_path(download["folder"], ".fetch-" + self._key + store.PART)
        self._path = os.path.join(self._folder, "file")
        self._notes = os.path.join(self._folder, "pieces")
        self._lock = threading.Lock()
        self._probed: tuple[int, str] | None = None

    def look(self) -> None:
        """Find out whether it is there already, before others are unpacked: its files must not be replaced then."""
        self._probed = web_file.retry(lambda: web_file.probe(self._values["url"]))
        self._log.files(self._key, self._version(*self._probed))

    def _version(self, size: int, version: str) -> list[Any]:
        return [size, version, self._values["sha256"]]

    def named(self, step: Callable[[], Any]) -> Any:
        """The result of a step of it, whose errors have its name."""
        try:
            return step()
        except (Unavailable, *DAMAGES) as error:
            raise Unavailable("%s: %s" % (self._values["name"], error_text(error))) from error
        except OSError as error:
            if error.errno in _FULL:
                remedy = "free space on the volume, then try again"
                raise Unavailable("%s: %s; %s" % (self._values["name"], error.strerror, remedy)) from error
            raise OSError("%s: %s" % (self._values["name"], error_text(error))) from error

    def run(self) -> list[int]:
        """Fetch, verify and unpack it, unless done before: its files, their bytes, and how many files were transferred.

        A file that is replaced meanwhile is fetched anew, since pieces of two versions do not fit together.
        """
        for _ in range(VERSIONS):
            try:
                return self._fetch()
            except Changed:
                pass
        raise OSError("it was replaced %d times while it was fetched; push again once it no longer changes" % VERSIONS)

    def _fetch(self) -> list[int]:
        size, version = self._probed or web_file.retry(lambda: web_file.probe(self._values["url"]))
        self._probed = None
        full_version = self._version(size, version)
        files, transferred = self._log.files(self._key, full_version), False
        if files is None:
            files, transferred = self._download(size, version), True
            self._log.add(self._key, full_version, files)
        self._progress.report(self._values["name"], size, size, whole=True)
        return [len(files), sum(files.values()), len(files) * transferred]

    def _download(self, size: int, version: str) -> dict[str, int]:
        """Fetch the pieces that are missing, verify the whole and install it; its files with their bytes."""
        present, tag = self._present_pieces(size, version), self._tag(size, version)
        missing = [start for start in range(0, size, PIECE) if start not in present]
        pieces = [self._pool.submit(self._download_piece, start, size, tag) for start in missing]
        try:
            self._report(present, size)  # also where nothing arrives
            for piece in as_completed(pieces):
                present.add(piece.result())
                self._report(present, size)
        finally:
            # Those in progress write into the same file as the next version's would.
            wait([piece for piece in pieces if not piece.cancel()])
        expected = self._values["sha256"]
        if expected and store.size_and_digest(self._path)[1] != expected:
            remove(self._folder)
            raise Unavailable("the SHA-256 of the file is not the given one: check both, then push again")
        return self._install()

    def _report(self, present: set[int], size: int) -> None:
        self._progress.report(self._values["name"], min(len(present) * PIECE, size), size)

    def _tag(self, size: int, version: str) -> str | None:
        """The entity tag that all pieces must have, None where a checksum of the file is given."""
        if self._values["sha256"] or not size:
            return None
        if not version.startswith('"'):
            remedy = "append #sha256= and 64 hexadecimal digits to the address"
            raise Unavailable("the server sends no strong ETag, so a change would go unnoticed: %s" % remedy)
        return version

    def _present_pieces(self, size: int, version: str) -> set[int]:
        """The offsets of the pieces that an earlier fetch of the same version has stored."""
        os.makedirs(self._folder, exist_ok=True)
        head = "%d %s\n" % (size, version)
        lines = []
        if exists(self._notes) and exists(self._path):
            with open(self._notes, encoding="utf-8") as notes:
                lines = notes.readlines()
        if lines[:1] != [head]:
            with open(self._notes, "w", encoding="utf-8") as notes:
                notes.write(head)
            with open(self._path, "wb") as file:
                file.truncate(size)
            return set()
        return {int(line) for line in lines[1:] if line.endswith("\n")}

    def _download_piece(self, start: int, size: int, tag: str | None) -> int:
        data = web_file.retry(lambda: web_file.read(self._values["url"], start, min(start + PIECE, size), tag))
        with open(self._path, "r+b") as file:
            file.seek(start)
            file.write(data)
        with self._lock, open(self._notes, "a", encoding="utf-8") as notes:
            notes.write("%d\n" % start)
        return start

    def _install(self) -> dict[str, int]:
        """Give the file its name, or unpack it; its files with their bytes."""
        folder, name = self._values["folder"], self._values["name"]

        def install(part: str, path: str) -> None:
            self._log.install(self._key, part, path)

        if self._values["unpack"]:
            with tarfile.open(self._path) as packed:
                files = unpack(packed, folder, install=install)
        else:
            path = store.safe_path(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                install(self._path, path)
            except ValueError as error:
                raise ValueError("%r %s" % (name, error)) from error
            files = {name: os.path.getsize(path)}
        remove(self._folder)
        return files


def fetch_all(sources: list[list[DownloadValues]]) -> list[list[int]]:
    """Fetch all *sources*; of each the number of its files, their bytes, and how many files were transferred.

    Raises:
        Unavailable: a file cannot be had, or does not fit; another try would not help.
        OSError: it may be had later.
    """
    downloads = [(number, download) for number, source in enumerate(sources) for download in source]
    folders = {download["folder"] for _, download in downloads}
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    logs = {folder: FetchLog(folder) for folder in folders}
    progress, sums = FetchProgress(len(downloads)), [[0, 0, 0] for _ in sources]
    with ThreadPoolExecutor(PIECES_AT_ONCE) as pieces, ThreadPoolExecutor(FILES_AT_ONCE) as files:
        fetches = [Fetch(download, logs[download["folder"]], pieces, progress) for _, download in downloads]
        list(files.map(lambda each: each.named(each.look), fetches))
        for index, result in enumerate(files.map(lambda each: each.named(each.run), fetches)):
            number = downloads[index][0]
            sums[number] = [sums[number][at] + result[at] for at in range(len(result))]
    return sums


def remove(folder: str) -> None:
    """Delete a folder of files."""
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
    os.rmdir(folder)


def print_json(**values: Any) -> None:
    """Print one JSON line."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main(path: str, authority: str) -> int:
    """Fetch the downloads in the file *path*, trusting *authority* too; the exit code."""
    web_file.trust(authority)
    try:
        with gzip.open(path) as file:
            result: dict[str, Any] = {"done": fetch_all(json.load(file))}
        code = 0
    except Unavailable as error:
        result, code = {"failed": str(error)}, NOT_RETRYABLE
    except OSError as error:
        result, code = {"failed": str(error)}, 1
    print_json(**result)
    with open(TERMINATION_LOG, "w", encoding="utf-8") as log:
        json.dump(result, log)
    return code


if __name__ == "__main__":
    # The first process of a container ignores SIGTERM without a handler; threads would outlive an exception.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(INTERRUPTED))
    sys.exit(main(*sys.argv[1:]))
