"""Code as one deterministic archive: the same files give the same bytes. Pure but for reading the files."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

LARGEST = 700_000  # bytes of archive that a ConfigMap takes along


def archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A tar.gz of (name, content) pairs, in order of name, without times, owners or modes of this machine."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, content in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def pod_side(project: Path) -> bytes:
    """The archive of the agent and of our training programs."""
    jobs = project / "jobs"
    files = [jobs / "__init__.py", *(jobs / "pod").rglob("*.py"), *(jobs / "programs").rglob("*.py")]
    return archive((str(path.relative_to(project)), path.read_bytes()) for path in files)


def digest(data: bytes) -> str:
    """Sixteen hex digits that name *data*."""
    return hashlib.sha256(data).hexdigest()[:16]
