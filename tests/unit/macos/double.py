"""A Python on macOS, on Linux: what macOS lacks is absent, and what needs it fails.

    python -m tests.unit.macos.double PYTEST-ARGUMENT ...

runs pytest in it. It has to be installed before anything else is imported.

What it knows of macOS, and from where:

- Names that modules of the standard library lack there (``os.sched_getaffinity``, ``signal.SIGRTMIN``,
  ``socket.SO_PEERCRED``, ``select.epoll``, ``time.CLOCK_BOOTTIME``, ``resource.prlimit``, ``errno.ECOMM``, ...): the
  standard library's type stubs, which state the platforms of each name and which typeshed compares with a real macOS
  (https://github.com/python/typeshed, ``tests/stubtest_stdlib.py``), as mypy carries them. The library's documentation
  says the same under "Availability" (https://docs.python.org/3/library/intro.html#notes-on-availability).
- There is no /proc and no /sys (https://developer.apple.com/library/archive/documentation/Porting/Conceptual/PortingUnix:
  "Mac OS X does not support the /proc file system"), and POSIX shared memory is in no file system (shm_open(2)).
- Calls of the C library that are Linux's (prctl(2): "This call is Linux-specific"; likewise in CONFORMING TO of the
  others) are not symbols of libSystem.
- Its programs are BSD's, which take no long options (env(1), ps(1), cp(1), date(1), stat(1), sed(1), readlink(1),
  mktemp(1), df(1), du(1)), and programs of util-linux, procps, iproute and coreutils beyond POSIX are absent.
- flock(2) exists. For a file system without locks it fails with ENOTSUP, and mount_nfs(8) has the option ``nolocks``.
- Processes of ``multiprocessing`` are spawned: https://docs.python.org/3/library/multiprocessing.html, "Contexts".
- ``uname -m`` is arm64 (that of Linux is aarch64).

It is a double of what spotmpi itself does. Other packages have builds of their own for macOS; what those for Linux do
here says nothing, so only files and programs that our code opens are refused.
"""

from __future__ import annotations

import ast
import errno
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[3]
OURS = (f"{PROJECT}/jobs/", f"{PROJECT}/infra/")
MODULES = (
    *("os", "posix", "errno", "fcntl", "mmap", "resource", "select", "signal", "termios", "time"),
    *("socket", "_socket"),
)
ABSENT_PATHS = ("/proc", "/sys", "/dev/shm", "/run", "/etc/os-release", "/etc/machine-id")
ABSENT_SYMBOLS = ("prctl", "unshare", "setns", "signalfd", "pidfd_open", "inotify_init", "sched_setaffinity", "gettid")
ABSENT_PROGRAMS = {
    *("setsid", "taskset", "unshare", "nsenter", "prlimit", "ionice", "lscpu", "flock", "findmnt"),  # util-linux
    *("free", "pidof"),  # procps
    *("ip", "ss", "ldd", "getent"),
    *("nproc", "timeout", "stdbuf", "tac", "numfmt", "sha1sum", "sha512sum"),  # coreutils
}
BSD_PROGRAMS = {
    *("cp", "mv", "rm", "ln", "ls", "stat", "readlink", "mktemp", "df", "du"),
    *("env", "ps", "date", "sed"),
}


def absent_names(module: str) -> list[str]:
    """The names of a module of the standard library that Linux has and macOS lacks."""
    names = {platform: set(_names(_stub(module).body, platform)) for platform in ("linux", "darwin")}
    return sorted(names["linux"] - names["darwin"])


def _stub(module: str) -> ast.Module:
    spec = importlib.util.find_spec("mypy")
    assert spec and spec.origin
    stubs = Path(spec.origin).parent / "typeshed" / "stdlib"
    paths = (stubs / f"{module}.pyi", stubs / module / "__init__.pyi")
    return ast.parse(next(path for path in paths if path.is_file()).read_text())


def _names(body: Iterable[ast.stmt], platform: str) -> Iterator[str]:
    """The names that the stub of a module defines on a platform, with this version of Python."""
    system = types.SimpleNamespace(platform=platform, version_info=sys.version_info)
    for each in body:
        if isinstance(each, ast.If):
            condition = eval(compile(ast.Expression(each.test), "stub", "eval"), {"sys": system})
            yield from _names(each.body if condition else each.orelse, platform)
        elif isinstance(each, ast.FunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id
        elif isinstance(each, ast.Assign):
            yield from (target.id for target in each.targets if isinstance(target, ast.Name))
        elif isinstance(each, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in each.names)


def install() -> None:
    """Let this process be one on macOS, for good."""
    import ctypes
    import platform
    import sysconfig

    for package in ("psutil", "truststore"):  # on macOS these use its frameworks and other extension modules
        importlib.import_module(package)
    sysconfig.get_config_vars()  # of this interpreter, whose build has Linux in the names of its files
    _remove_names()
    sys.platform = "darwin"
    machine = os.uname_result(("Darwin", "laptop.local", "24.6.0", "Darwin Kernel Version 24.6.0", "arm64"))
    os.uname = lambda: machine
    platform._uname_cache = None  # type: ignore[attr-defined]
    _replace_libraries()
    sys.addaudithook(_refuse)
    for function in ("stat", "lstat", "access", "readlink"):
        _guard(function)
    _hide_symbols(ctypes)


def _remove_names() -> None:
    for module in MODULES:
        loaded = importlib.import_module(module)
        for name in absent_names(module):
            if hasattr(loaded, name):
                delattr(loaded, name)


def _replace_libraries() -> None:
    """Adapt modules of the standard library that have looked at the platform already, or look for parts of macOS."""
    import multiprocessing
    import selectors
    import shutil
    import subprocess

    subprocess._HAVE_POSIX_SPAWN_CLOSEFROM = False  # type: ignore[attr-defined]  # since Python 3.13
    vars(os)["process_cpu_count"] = os.cpu_count  # as without sched_getaffinity
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc,assignment]
    shutil._copyxattr = lambda *arguments, **options: None  # type: ignore[attr-defined]
    vars(shutil).update(_USE_CP_SENDFILE=False, _USE_CP_COPY_FILE_RANGE=False)  # the second since Python 3.14
    proxies: Any = types.ModuleType("_scproxy")  # of the system's settings; urllib.request asks it
    proxies._get_proxy_settings = proxies._get_proxies = dict
    sys.modules["_scproxy"] = proxies
    multiprocessing.set_start_method("spawn")


def _is_absent(path: object) -> bool:
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:  # a file descriptor
        return False
    return text.startswith(tuple(f"{folder}/" for folder in ABSENT_PATHS)) or text in ABSENT_PATHS


def _is_our_call() -> bool:
    """Whether the innermost code outside of the standard library and of this file is spotmpi's."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            return True
        if "site-packages" in name or (name.startswith(str(PROJECT)) and name != __file__):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook: refuses files that macOS lacks, and programs and their options."""
    if event in ("open", "os.listdir", "os.scandir"):
        if _is_absent(arguments[0]) and _is_our_call():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
    elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn") and _is_our_call():
        _require_program([os.fsdecode(each) for each in arguments[1]])


def _require_program(words: list[str]) -> None:
    """Fail as the start of a command of macOS would."""
    name = words[0].rpartition("/")[2]
    if name in ABSENT_PROGRAMS:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), words[0])
    option = next((word for word in words[1:] if word.startswith("--") and word != "--"), None)
    if name in BSD_PROGRAMS and option:
        raise AssertionError(f"{name}: illegal option -- {option}")  # no caller may take it for an answer


def _guard(function: str) -> None:
    """Let a function of ``os`` find no path that macOS lacks, where our code asks for it."""
    original = getattr(os, function)

    def guarded(path: Any, *arguments: Any, **options: Any) -> Any:
        if _is_absent(path) and _is_our_call():
            if function == "access":
                return False
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return original(path, *arguments, **options)

    setattr(os, function, guarded)
    if original in os.supports_dir_fd:
        os.supports_dir_fd.add(guarded)
    if original in os.supports_follow_symlinks:
        os.supports_follow_symlinks.add(guarded)


def _hide_symbols(ctypes: Any) -> None:
    """Let the C library have no functions of Linux."""

    def refuse(self: Any, name: str) -> Any:
        if name in ABSENT_SYMBOLS:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return original(self, name)

    original = ctypes.CDLL.__getattr__
    ctypes.CDLL.__getattr__ = refuse


if __name__ == "__main__":
    install()
    import pytest

    sys.exit(pytest.main(sys.argv[1:]))
