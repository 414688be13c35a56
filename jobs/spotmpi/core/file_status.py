"""Whether files and folders exist, by the rule of `agent.files.mode`.

`Path.exists` and its kin raised errors such as a refused permission or a stale handle up to Python 3.13; from 3.14 on
they answer False.
"""

from __future__ import annotations

import stat
from pathlib import Path

from spotmpi.agent.files import mode


def exists(path: Path) -> bool:
    """Whether there is anything at *path*, links followed; OSError where that cannot be read."""
    return mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether there is a regular file at *path*, links followed; OSError where that cannot be read."""
    return stat.S_ISREG(mode(path) or 0)


def is_folder(path: Path) -> bool:
    """Whether there is a folder at *path*, links followed; OSError where that cannot be read."""
    return stat.S_ISDIR(mode(path) or 0)
