"""The storage of a source, as fsspec gives it: file systems, and the versions of files."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from spotmpi.agent.files import exists, is_folder
from spotmpi.agent.protocol import counted
from spotmpi.agent.store import require_missing
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Part

# Keys of fsspec's file systems.
_CHECKSUMS = ("ETag", "etag", "md5Hash", "checksum", "content_md5", "Content-MD5", "Digest")
_TIMES = ("mtime", "LastModified", "Last-Modified", "modificationTime", "created")
PAUSES: tuple[float, ...] = (0.2, 1.0, 5.0)  # seconds before storage that failed is asked again
_REFUSALS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
# Exceptions of botocore, by names since the libraries of a storage may not be installed: no login, or one that is over.
_NO_LOGIN = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound")

# A place in the files of an entry of a store: its kind, name and key.
ENTRY = re.compile(r"/(datasets|models)/([^/]+)/([0-9a-f]{64})/files(?:/|$)")

T = TypeVar("T")
_FILE = "file://"
_lock = threading.Lock()


def local_path(place: str) -> str | None:
    """The path of a place in a file system of machines, also of one that pods mount at the same path: ``file:///mnt``.

    None for other URLs.
    """
    return place.removeprefix(_FILE) if place.startswith(_FILE) or "://" not in place else None


def with_retries(call: Callable[[], T], name: str) -> T:
    """The result of *call*, which uses the storage of what *name* says.

    Libraries of storages raise errors of their own, so whatever is not ours counts as a failure of the storage.

    Raises:
        StreamError: the source is not what it was.
        SourceError: the storage fails again and again, or refuses.
    """
    for pause in (*PAUSES, None):
        try:
            return call()
        except (StreamError, SourceError):
            raise
        except Exception as error:
            remedy = _remedy(error)
            if pause is None or remedy or isinstance(error, _REFUSALS):
                raise SourceError(f"{name} cannot be read: {str(error) or type(error).__name__}{remedy}") from error
            time.sleep(pause)
    raise AssertionError


def _remedy(error: Exception) -> str:
    """What helps where a storage does not know or does not admit the user; empty for other errors."""
    name = type(error).__name__
    if name in _NO_LOGIN or "SSO" in name or name == "TokenRetrievalError":
        return "; log in, as with `aws sso login`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    # Of a file of this machine Python gives the name.
    is_refused = isinstance(error, PermissionError) and error.filename is None
    if is_refused or getattr(error, "status", None) in (401, 403):
        return "; check the login and its rights to list and read there"
    return ""


@functools.lru_cache(maxsize=4)
def file_system(source: str) -> tuple[Any, str]:
    """The file system of a source, and the path in it."""
    import fsspec.core

    try:
        system, path = fsspec.core.url_to_fs(source)
    except (ImportError, ValueError) as error:
        remedy = "name files, or a URL that fsspec knows, such as s3://bucket/folder"
        raise StreamError(f"the source {source} cannot be opened: {error}; {remedy}") from error
    if "http" in system.protocol:
        return _web_files()(**system.storage_options), path
    return (_local_files() if "file" in system.protocol else system), path


@functools.lru_cache(maxsize=1)
def _local_files() -> Any:
    """The files of this machine, where fsspec takes what cannot be read for missing: rows would be left out."""
    from fsspec.implementations.local import LocalFileSystem

    class LocalFiles(LocalFileSystem):
        def walk(self, path: str, maxdepth: int | None = None, topdown: bool = True, **options: Any) -> Any:
            return super().walk(path, maxdepth, topdown, on_error=require_missing, **options)

        def isdir(self, path: str) -> bool:
            return is_folder(self._strip_protocol(path))

        def exists(self, path: str, **options: Any) -> bool:
            return exists(self._strip_protocol(path))

    return LocalFiles()


class _WebError(Exception):
    """A web server answers by an error, with its *status*, or not at all."""

    def __init__(self, error: BaseException) -> None:
        self.status: int | None = getattr(error, "status", None)
        reason = getattr(error, "message", "")
        remedy = "check the address, the network and the server"
        silence = f"the server does not answer: {str(error) or type(error).__name__}; {remedy}"
        super().__init__(silence if self.status is None else f"the server answers {self.status} {reason}".rstrip())


@functools.lru_cache(maxsize=1)
def _web_files() -> Any:
    """The class of the files of web servers: fsspec takes files for missing if the server fails or does not answer."""
    from aiohttp import ClientError
    from fsspec.implementations.http import HTTPFileSystem

    class WebFiles(HTTPFileSystem):
        async def _ls(self, url: str, detail: bool = True, **options: Any) -> Any:
            try:
                return await super()._ls(url, detail, **options)
            except (FileNotFoundError, ValueError):
                raise
            except (ClientError, OSError) as error:  # `walk` would take an OSError for no files
                raise _WebError(error) from error

        async def _info(self, url: str, **options: Any) -> Any:
            try:
                return await super()._info(url, **options)
            except FileNotFoundError as error:
                cause = error.__cause__
                if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == 404:
                    raise
                raise _WebError(cause) from error

        async def _exists(self, path: str, **options: Any) -> bool:
            try:
                await self._info(path)
            except FileNotFoundError:
                return False
            return True

    return WebFiles


def version(system: Any, name: str) -> tuple[int, str]:
    """The size of a file in bytes, and its ETag, checksum or time of modification."""
    return _version(system, name)[:2]


def _version(system: Any, name: str) -> tuple[int, str, str]:
    system.invalidate_cache()
    info = system.info(name)
    checksum = next((str(info[key]) for key in _CHECKSUMS if info.get(key)), None)
    current = checksum or str(next((info[key] for key in _TIMES if info.get(key)), None))
    number = str(info.get("VersionId") or "")
    return int(info["size"] or 0), current, "" if number == "null" else number  # S3's null: the bucket keeps none now


def check_unchanged(system: Any, part: Part, reader: str = "the stream", remedy: str = "start a new run") -> str:
    """Raise StreamError unless the file of a part is what it was when the source was listed for *reader*.

    The id of its version in a bucket that keeps versions, else empty.
    """
    try:
        size, current, number = _version(system, part.name)
    except FileNotFoundError:
        raise StreamError(f"{part.name} was removed while {reader} reads it: {remedy}") from None
    if (size, current) != (part.size, part.version):
        before, now = _described(part.size, part.version), _described(size, current)
        raise StreamError(f"{part.name} was changed while {reader} reads it: {before}, now {now}; {remedy}")
    return number


def _described(size: int, version: str) -> str:
    """Size and version of a file for people: a time of modification in seconds since 1970 is a date."""
    if re.fullmatch(r"\d{1,10}\.\d+", version):
        version = datetime.fromtimestamp(float(version)).isoformat(" ", "milliseconds")
    return f"{counted(size, 'byte')} of {version}"


def read_whole(system: Any, name: str) -> bytes:
    """The content of a file; StreamError where it is of a data set whose manifest has another SHA-256 for it."""
    content: bytes = system.cat_file(name)
    entry = ENTRY.search(name)
    if entry is None or entry[1] != "datasets":
        return content
    folder, path = name[: entry.start()] + f"/datasets/{entry[2]}/{entry[3]}", name[entry.end() :]
    digest = hashlib.sha256(content).hexdigest()
    for _ in range(2):
        with _lock:  # of the threads that read parts at a time
            expected = _digests(system, folder).get(path)
            if expected in (None, digest):
                return content
            _digests.cache_clear()  # it may have been removed and built again meanwhile
    raise StreamError(f"{name} is damaged: its SHA-256 is not that of the manifest; {remedy_of_damage(name)}")


@functools.lru_cache(maxsize=4)
def _digests(system: Any, folder: str) -> dict[str, str]:
    """The SHA-256 of the files of a data set by path, by its manifest; empty where it has none yet."""
    try:
        manifest = json.loads(system.cat_file(f"{folder}/manifest.json"))
    except FileNotFoundError:
        return {}
    return {file["path"]: file["sha256"] for file in manifest["files"]}


def remedy_of_damage(name: str) -> str:
    """What helps where a file is damaged, which as one of a data set nobody corrects."""
    entry = ENTRY.search(name)
    if entry is None or entry[1] != "datasets":
        return "correct the file, or leave it out of the source"
    title = f"{entry[2]}@{entry[3][:12]}"
    verify = f"`spotmpi data verify {title}` says which of its files are damaged"
    return f"it is of the data set {title}: {verify}; remove the folder of the data set and build it again"
