"""A system that fails for a moment, as network file systems and DNS do: chosen calls give errors a number of times.

How the originals behave:

- ESTALE: the server no longer knows the handle of a file, since another client replaced or removed it, or another
  server took over (RFC 8881, NFS4ERR_STALE). Linux looks a path up once more (`retry_estale`, include/linux/namei.h),
  so `open` and `stat` rarely give it, but `read`, `write` and `readdir` on what is open do; the next open works again.
- EIO and ETIMEDOUT: a server does not answer a soft mount within `retrans` tries (nfs(5)); EIO also from a local disk.
- EMFILE: this process has used up its descriptors (open(2)).
- EAI_AGAIN: "the name server returned a temporary failure indication" (getaddrinfo(3)); EAI_NONAME while a headless
  Service has no record of a pod yet.

A process of its own gets them by the variable TRANSIENT_ERRORS, which `from_environment` reads: JSON, a list of the
arguments of `add`. Only the tests' own entry points call it.
"""

from __future__ import annotations

import builtins
import fnmatch
import io
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "TRANSIENT_ERRORS"

# How often shutil tries to read a file that it copies: by sendfile and by read, from Python 3.14 on first by
# copy_file_range, each in another way after the error of the one before (`shutil.copyfile`, `_GiveupOnFastCopy`).
READS_OF_A_COPY = 3 if hasattr(shutil, "_USE_CP_COPY_FILE_RANGE") else 2
Patch = Callable[[Any, str, Any], None]


class TransientErrors:
    """The errors that calls are to give; *patch* puts a function in the place of another, as `setattr` does."""

    def __init__(self, patch: Patch = setattr) -> None:
        self._rules: list[list[Any]] = []
        self._open, self._getaddrinfo = io.open, socket.getaddrinfo
        patch(builtins, "open", self._opened)
        patch(io, "open", self._opened)  # by which pathlib opens
        patch(socket, "getaddrinfo", self._resolved)
        for name in ("stat", "open", "mkdir", "write"):
            patch(os, name, self._checked(getattr(os, name), name))
        for name in ("listdir", "scandir"):
            patch(os, name, self._checked(getattr(os, name), "list"))
        sendfile = os.sendfile  # by which shutil copies
        patch(os, "sendfile", lambda target, source, *more: self._copied(sendfile, source, target, source, *more))
        if copy := getattr(os, "copy_file_range", None):  # which macOS lacks
            patch(os, "copy_file_range", lambda source, *more, **to: self._copied(copy, source, source, *more, **to))

    def add(self, call: str, pattern: str, error: int, times: int = 1) -> None:
        """Let *call* fail with *error* so many times, for names that match.

        Calls are open, read, write, stat, mkdir, list, and resolve, whose names are hosts with ports: ``node-0:9``.
        """
        self._rules.append([call, pattern, error, times])

    def _check(self, call: str, name: Any) -> None:
        if isinstance(name, int):
            name = Path(f"/proc/self/fd/{name}").readlink()
        for rule in self._rules:
            if rule[0] == call and rule[3] > 0 and fnmatch.fnmatch(os.fspath(name), rule[1]):
                rule[3] -= 1
                if call == "resolve":
                    raise socket.gaierror(rule[2], "a transient error of name resolution")
                raise OSError(rule[2], os.strerror(rule[2]), os.fspath(name))

    def _checked(self, original: Callable[..., Any], call: str) -> Callable[..., Any]:
        def checked(name: Any = ".", *more: Any, **options: Any) -> Any:
            self._check(call, name)
            return original(name, *more, **options)

        return checked

    def _opened(self, file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if isinstance(file, int) or "opener" in options:
            return self._open(file, mode, *more, **options)
        self._check("open", file)
        wrapped = not {"w", "a", "x", "+"} & set(mode) and any(rule[0] == "read" for rule in self._rules)
        if not wrapped:
            return self._open(file, mode, *more, **options)
        buffered = io.BufferedReader(_Raw(file, self._check))
        return buffered if "b" in mode else io.TextIOWrapper(buffered, options.get("encoding"), options.get("errors"))

    def _copied(self, original: Callable[..., int], source: int, *arguments: Any, **options: Any) -> int:
        self._check("read", source)
        return original(*arguments, **options)

    def _resolved(self, host: Any, port: Any, *more: Any, **options: Any) -> Any:
        self._check("resolve", f"{host}:{port}")
        return self._getaddrinfo(host, port, *more, **options)


class _Raw(io.FileIO):
    """A file whose reads are checked."""

    def __init__(self, path: Any, check: Callable[[str, Any], None]) -> None:
        super().__init__(path)
        self._path, self._check = os.fspath(path), check

    def readinto(self, buffer: Any) -> int:
        self._check("read", self._path)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._check("read", self._path)
        return super().readall()


def from_environment() -> None:
    """Let this process meet the errors that its environment names."""
    plans = json.loads(os.environ.get(VARIABLE, "[]"))
    errors = TransientErrors() if plans else None
    for arguments in plans:
        assert errors
        errors.add(*arguments)
