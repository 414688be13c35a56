"""Where entries lie: a folder of this machine, or a URL that fsspec knows, by the few operations that a store needs."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from spotmpi.agent import store as files_of_folder
from spotmpi.agent.files import exists, is_folder, lock_file, locked, remove_folder
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import absolute
from spotmpi.core.wording import option
from spotmpi.streams.storage import local_path

_BLOCK = 1 << 20
READ_ONLY = 0o444
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space there"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check who may read and write there"),
    errno.EROFS: "mount it for writing",
}
_UNFINISHED = ".writing-"  # what the names of folders begin with that are not complete
LAST = "manifest.json"  # the file that is written last


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """Failures of a storage as a SpotmpiError that says *what* could not be done."""
    try:
        yield
    except SpotmpiError:
        raise
    except Exception as error:  # libraries of storages raise errors of their own
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        remedy = _REMEDIES.get(getattr(error, "errno", None) or 0, "check the storage")
        raise SpotmpiError(f"{what}: {reason}; {remedy}, then try again") from error


def require_room(folder: Path, size: int) -> None:
    """Raise OSError unless the disk of a folder has room for *size* bytes: a manifest says it before they come."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(errno.ENOSPC, f"it has {size:,} bytes, and {free:,} are free there")


class Storage:
    """The files below *url*; names are relative to it, with slashes."""

    def __init__(self, url: str) -> None:
        if url.endswith("://"):
            raise input_error(option("store"), url, "names no bucket or host: write it like s3://bucket/store")
        self.url = url.rstrip("/") if "://" in url else str(absolute(url))
        local = local_path(self.url)
        self.folder = Path(local) if local else None
        self._opened: tuple[Any, str] | None = None

    @property
    def _remote(self) -> tuple[Any, str]:
        """The file system of fsspec, and the path in it."""
        if self._opened is None:
            import fsspec.core

            try:
                system, path = fsspec.core.url_to_fs(self.url)
            except (ImportError, ValueError) as error:
                remedy = "name a folder by SPOTMPI_STORE, or a URL that fsspec knows, such as s3://bucket/store"
                raise SpotmpiError(f"the store {self.url} cannot be opened: {error}; {remedy}") from error
            self._opened = system, path.rstrip("/")
        self._opened[0].invalidate_cache()
        return self._opened

    def place(self, name: str) -> str:
        """A name as a path of this machine, or as a URL."""
        return f"{self.url}/{name}"

    def _require_folder(self) -> None:
        """Raise SpotmpiError where the store is not a folder and cannot become one: it would look empty."""
        for place in (self.folder, *self.folder.parents) if self.folder else ():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                is_link = stat.S_ISLNK(place.lstat().st_mode)
                if is_folder(place):
                    return
                what = "a link to what is not there" if is_link and not exists(place) else "not a folder"
                remedy = "name a folder by SPOTMPI_STORE, or correct this one"
                raise SpotmpiError(f"the store {self.url} cannot be used: {place} is {what}; {remedy}")

    def _path(self, name: str) -> str:
        return f"{self._remote[1]}/{name}"

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none."""
        with errors(f"{self.place(name)} cannot be read"):
            try:
                if self.folder:
                    return (self.folder / name).read_bytes()
                return bytes(self._remote[0].cat_file(self._path(name)))
            except FileNotFoundError:
                return None
            except NotADirectoryError:
                self._require_folder()
                return None

    def names(self, name: str = "", start: str = "") -> list[str]:
        """The names that begin with *start* of what is in a folder, sorted; empty where there is no such folder.

        Hidden ones are left out unless *start* is hidden.
        """
        with errors(f"{self.place(name)} cannot be listed"):
            try:
                if self.folder:
                    found = [path.name for path in (self.folder / name).iterdir()]
                else:
                    entries = self._remote[0].ls(self._path(name).rstrip("/"), detail=False)
                    found = [entry.rstrip("/").rpartition("/")[2] for entry in entries]
            except (FileNotFoundError, NotADirectoryError):
                self._require_folder()
                return []
        hidden = "." if not start.startswith(".") else "\0"
        return sorted(each for each in found if each.startswith(start) and not each.startswith(hidden))

    def files(self, name: str) -> list[str]:
        """The paths of all files below a folder, relative to it, sorted."""
        with errors(f"{self.place(name)} cannot be listed"):
            if self.folder:
                top = self.folder / name
                return sorted(files_of_folder.files(str(top)))
            prefix = self._path(name)
            return sorted(path.removeprefix(prefix).lstrip("/") for path in self._remote[0].find(prefix))

    def open(self, name: str) -> BinaryIO:
        """A file for reading; FileNotFoundError where there is none."""
        if self.folder:
            return (self.folder / name).open("rb")
        found: BinaryIO = self._remote[0].open(self._path(name))
        return found

    def digest(self, name: str) -> tuple[int, str] | None:
        """Bytes and SHA-256 of a file; None where there is none."""
        whole, size = hashlib.sha256(), 0
        with errors(f"{self.place(name)} cannot be read"):
            try:
                with self.open(name) as file:
                    while block := file.read(_BLOCK):
                        whole.update(block)
                        size += len(block)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return size, whole.hexdigest()

    def modified(self, name: str) -> float | None:
        """When a file behind a URL was written, in Unix seconds of that storage's clock; None where there is none."""
        with errors(f"{self.place(name)} cannot be read"), contextlib.suppress(FileNotFoundError):
            return float(self._remote[0].modified(self._path(name)).timestamp())
        return None

    def copy(self, name: str, target: Path) -> None:
        """Copy a file to a path of this machine, whose folder exists."""
        with errors(f"{self.place(name)} cannot be copied to {target}"):
            if self.folder:
                shutil.copyfile(self.folder / name, target)
            else:
                self._remote[0].get_file(self._path(name), str(target))

    def write(self, name: str, content: bytes, exclusive: bool = False) -> bool:
        """Write a whole file; with *exclusive* False where there is one already, which stays as it is."""
        with errors(f"{self.place(name)} cannot be written"):
            if self.folder:
                self._require_folder()
                return _write_local(self.folder / name, content, exclusive)
            try:
                self._remote[0].pipe_file(self._path(name), content, mode="create" if exclusive else "overwrite")
            except FileExistsError:
                return False
            except Exception as error:
                # Amazon S3 answers a PUT with If-None-Match by 412, or 409 where another one is under way.
                if exclusive and any(code in str(error) for code in ("PreconditionFailed", "ConditionalRequest")):
                    return False
                raise
            return True

    def create(self, name: str, files: Mapping[str, str], last: bytes) -> bool:
        """Create the folder *name* with the file `LAST` and with *files*, complete or not at all.

        *files* has for each path in the folder where its content is: a name in this storage, or a path of this machine.
        False where there is one already, which stays as it is.
        """
        with errors(f"{self.place(name)} cannot be written"):
            if self.folder:
                return self._create_local(self.folder / name, files, last)
            system, _ = self._remote
            for path, source in files.items():
                target = self._path(f"{name}/{path}")
                if Path(source).is_absolute():
                    system.put_file(source, target)
                else:
                    system.cp_file(self._path(source), target)
        return self.write(f"{name}/{LAST}", last, exclusive=True)

    def _create_local(self, final: Path, files: Mapping[str, str], last: bytes) -> bool:
        assert self.folder
        with unfinished(final.parent) as temporary:
            for path, source in files.items():
                target = temporary / path
                target.parent.mkdir(parents=True, exist_ok=True)
                _put(self.folder / source, target, copy=Path(source).is_absolute())
            _synced(temporary / LAST, last)
            (temporary / LAST).chmod(READ_ONLY)
            try:
                temporary.rename(final)
            except OSError:
                if exists(final / LAST):
                    return False
                if not is_folder(final):
                    raise
                _discard(final)  # what a removal has left that was interrupted
                temporary.rename(final)
            return True

    def remove(self, name: str) -> None:
        """Remove a folder or a file; `LAST` first, so that a folder is never found without its files."""
        with errors(f"{self.place(name)} cannot be removed"), contextlib.suppress(FileNotFoundError):
            if self.folder:
                path = self.folder / name
                if not is_folder(path):
                    path.unlink(missing_ok=True)
                    return
                (path / LAST).unlink(missing_ok=True)
                _discard(path)
                return
            system, _ = self._remote
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(self._path(f"{name}/{LAST}"))
            system.rm(self._path(name), recursive=True)


@contextlib.contextmanager
def unfinished(parent: Path) -> Iterator[Path]:
    """A new folder in *parent*, which is removed unless it gets another name; if this is killed, by the next one."""
    parent.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(parent)
    with locked(parent):
        temporary = parent / f"{_UNFINISHED}{uuid.uuid4().hex}"
        temporary.mkdir()
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _discard(folder: Path) -> None:
    """Remove a folder, whose name is free even where files of it are open on NFS; the next writer removes those."""
    unnamed = folder.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
    folder.rename(unnamed)
    remove_folder(unnamed)


def _remove_unfinished(folder: Path) -> None:
    """Remove what processes have left that were killed while they wrote, unless one writes there now."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # another one writes, or the file system has no such locks
            if lock_file(descriptor):
                for path in folder.iterdir():
                    if path.name.startswith(_UNFINISHED):
                        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _put(source: Path, target: Path, copy: bool) -> None:
    """A file of the store is linked, since it never changes; any other one is copied."""
    if not copy and _linked(source, target):
        return
    shutil.copyfile(source, target)
    seal(target)


def _linked(source: Path, target: Path) -> bool:
    """Link a new file; False on a file system without hard links, such as a shared folder of a virtual machine."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


def seal(path: Path) -> None:
    """Let the content of a new file be on the disk, and let nobody change it by mistake."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.chmod(READ_ONLY)


def _write_local(path: Path, content: bytes, exclusive: bool) -> bool:
    """Write a file whole or not at all; False where *exclusive* and there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        _synced(temporary, content)
        if not exclusive:
            temporary.replace(path)
        elif not _linked(temporary, path):
            path.touch(exist_ok=False)  # first; whoever reads meanwhile finds it empty
            temporary.replace(path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
