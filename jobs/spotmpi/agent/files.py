"""Writes of whole files, removals, locks, and whether a file exists, where "no" must not mean "could not be read".

Everything in this package that replaces a text file uses the first. `os.path.exists` and its kin, and from Python 3.14
on those of `Path`, answer False as well where a handle is stale or a disk fails: a run whose folder cannot be read is
not a run that was deleted. Locks end with the process that holds them, also on file systems that have none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import IO, Optional, Union

Path = Union[str, "os.PathLike[str]"]

# What flock(2) answers on a file system without locks, such as some network mounts: ENOTSUP on macOS, where it is not
# EOPNOTSUPP as on Linux, ENOLCK for NFS without a lock manager.
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)

# What the Linux NFS client and libfuse name a removed file that a process of this machine has open, until it is closed.
_STILL_OPEN = (".nfs", ".fuse_hidden")
CLOSE_DELAY = 5.0  # seconds in which such a file is gone after it was closed

_NUMBER = re.compile(r"\[Errno -?\d+\] ")


def error_text(error: object) -> str:
    """What an error says, in words of the system alone: its number is for programs."""
    return _NUMBER.sub("", str(error))


def key_log_text(error: OSError) -> Optional[str]:
    """What to say of an error of the file in SSLKEYLOGFILE, which Python opens with TLS; None of another file."""
    if not error.filename or error.filename != os.environ.get("SSLKEYLOGFILE"):
        return None
    remedy = "unset the variable, or name another file"
    return "SSLKEYLOGFILE = %r cannot be written (%s): %s" % (error.filename, error.strerror, remedy)


def _mode(path: Path) -> Optional[int]:
    """The type and mode of what is at *path*, links followed; None for nothing, OSError where that cannot be read."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def exists(path: Path) -> bool:
    """Whether there is anything at *path*, links followed; OSError where that cannot be read."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether there is a regular file at *path*, links followed; OSError where that cannot be read."""
    return stat.S_ISREG(_mode(path) or 0)


def is_folder(path: Path) -> bool:
    """Whether there is a folder at *path*, links followed; OSError where that cannot be read."""
    return stat.S_ISDIR(_mode(path) or 0)


def read_text(path: Path) -> str:
    """The text of a file, with marks in place of what is not UTF-8; empty where there is no file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write_atomically(path: Path, text: str, errors: str = "strict", keep_mode: bool = False) -> None:
    """Replace the file *path* by *text*: readers see the old content or the new, and the old one stays on failure.

    Several processes may write the same file at once. With *keep_mode* the new file gets the mode of the old one.
    """
    folder, name = os.path.split(os.fspath(path))
    temporary = os.path.join(folder, ".%s.%s.part" % (name, os.urandom(4).hex()))
    try:
        with open(temporary, "w", encoding="utf-8", errors=errors) as file:
            file.write(text)
        if keep_mode:
            os.chmod(temporary, os.stat(path).st_mode & 0o7777)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def remove_folder(path: Path, wait: float = 0.0) -> None:
    """Remove a folder with all that is in it, as `shutil.rmtree`.

    On NFS and FUSE the folder of a file that a process of this machine has open stays, with nothing else in it, until a
    moment after the file was closed: with *wait*, that is waited for, as many seconds at most.
    """
    import shutil  # delays no start

    deadline = time.monotonic() + wait
    while True:
        try:
            shutil.rmtree(path)
            return
        except OSError as error:
            was_open = os.path.basename(str(error.filename)).startswith(_STILL_OPEN)  # it may be gone meanwhile
            if not was_open and error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
                raise
            shutil.rmtree(path, ignore_errors=True)
            if not exists(path):
                return
            left = [name for _, _, files in os.walk(path) for name in files]
            is_over = time.monotonic() >= deadline
            if not all(name.startswith(_STILL_OPEN) for name in left) or (is_over and not left):
                raise
            if is_over:
                return
        time.sleep(0.01)


def lock_file(file: int | IO[str], shared: bool = False, on_wait: Callable[[], object] | None = None) -> bool:
    """Lock an open file until it is closed; False where its file system has no locks.

    Raises:
        BlockingIOError: another process holds the lock; with *on_wait*, that is called, and the lock waited for.
    """
    import fcntl  # delays no start

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if on_wait is None:
            raise
        on_wait()
        fcntl.flock(file, kind)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


@contextlib.contextmanager
def locked(path: Optional[Path]) -> Iterator[None]:
    """Hold a lock on the file *path*, which ends with this process; without the file, or the right to it, none."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = None if path is None else os.open(path, os.O_RDONLY)
    try:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                lock_file(descriptor, shared=True, on_wait=lambda: None)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of `locked` on the file *path*."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        lock_file(descriptor)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
