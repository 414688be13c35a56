"""Code as one deterministic archive, or as a copy: the same files give the same bytes or the same folder."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from spotmpi.agent.files import is_folder
from spotmpi.core import names

LARGEST = 700_000  # bytes of archive that a ConfigMap takes along
POLICY = ("__init__", "blocks", "chains", "choice", "controller", "job", "market", "placement", "policy", "values")
DIGITS = 16  # hex digits of a SHA-256 that name an archive


class Member(NamedTuple):
    """One file of an archive."""

    name: str
    content: bytes
    executable: bool = False


def archive(files: Iterable[Member]) -> bytes:
    """A tar.gz of files, in order of name, without times and owners of this machine."""
    import gzip  # few local runs need it

    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as zipped:
        zipped.write(tar(sorted(files)))
    return packed.getvalue()


def tar(files: Iterable[Member]) -> bytes:
    """A tar of files as they come, without times and owners of this machine."""
    import tarfile  # few local runs need it

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for name, content, executable in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if executable else 0o644
            opened.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def agent_files() -> list[Member]:
    """The agent, checkpoints, our programs and the clients of pools and streams."""
    package = names.SOURCE / "spotmpi"
    rooms = ("agent", "checkpoint", "pools", "programs", "streams")
    files = [package / "__init__.py", *(path for room in rooms for path in (package / room).rglob("*.py"))]
    return _members(files)


def _members(files: Iterable[Path]) -> list[Member]:
    return sorted(Member(str(path.relative_to(names.SOURCE)), path.read_bytes()) for path in files)


def agent_folder(parent: Path) -> Path:
    """A folder below *parent* with the `agent_files`, complete or absent."""
    files = agent_files()
    folder = parent / digest(b"".join(f"{file.name}\0".encode() + file.content for file in files))
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
            raise names.cache_error(parent, error) from error
    return folder


def policy_archive() -> bytes:
    """What decides for a run with a deadline, in the pod of its controller, beside the `agent_archive`."""
    return archive(_members(names.SOURCE / "spotmpi" / "capacity" / f"{name}.py" for name in POLICY))


def agent_archive() -> bytes:
    """The archive of `agent_files`."""
    return _archived(tuple(agent_files()))


@functools.lru_cache(maxsize=1)
def _archived(files: tuple[Member, ...]) -> bytes:
    """As `archive`, which takes a tenth of a second for the agent: the trials of a sweep all have the same one."""
    return archive(files)


def digest(data: bytes) -> str:
    """Sixteen hex digits that name *data*."""
    return hashlib.sha256(data).hexdigest()[:DIGITS]
