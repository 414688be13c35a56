"""The folder from which ranks and agents import the agent and the training programs, and nothing else.

A wheel's package lies in site-packages, whose other packages must not hide those of an image's environment.
"""

from __future__ import annotations

from pathlib import Path

from spotmpi.agent.files import is_folder
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError


def rank_source() -> Path:
    """A checkout's `jobs` folder; for an installed spotmpi a copy in the cache folder, made once for each content.

    Raises:
        SpotmpiError: the cache folder cannot be written.
    """
    return _copy(names.SOURCE, names.cache_folder() / "source") if names.INSTALLED else names.SOURCE


def _copy(source: Path, parent: Path) -> Path:
    """The copy of the agent and the programs of *source* below *parent*, complete or absent."""
    from spotmpi.core import archives  # an installed spotmpi alone needs it

    files = archives.agent_files(source)
    folder = parent / archives.digest(b"".join(f"{file.name}\0".encode() + file.content for file in files))
    if is_folder(folder):
        return folder
    import compileall  # neither is needed again before the next version
    import tempfile

    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as temporary:
            copy = Path(temporary, "source")
            for file in files:
                path = copy / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.content)
            compileall.compile_dir(copy, ddir=str(folder), quiet=1)
            copy.rename(folder)
    except OSError as error:
        if not is_folder(folder):  # else another process was first
            remedy = "set SPOTMPI_CACHE to a folder that can be written"
            raise SpotmpiError(f"cannot write {parent}: {error.strerror}; {remedy}") from error
    return folder
