"""Whether files and folders exist, where "no" must not mean "could not be read".

`Path.exists` and its kin raised errors such as a refused permission or a stale handle up to Python 3.13; from 3.14 on
they answer False. A run whose folder cannot be read is not a run that was deleted.
"""

from __future__ import annotations

import stat
from pathlib import Path


def exists(path: Path) -> bool:
    """Whether there is anything at *path*, links followed; OSError where that cannot be read."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether there is a regular file at *path*, links followed; OSError where that cannot be read."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_folder(path: Path) -> bool:
    """Whether there is a folder at *path*, links followed; OSError where that cannot be read."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
