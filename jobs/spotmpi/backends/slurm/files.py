"""The files of a run on Slurm: on a file system that this machine shares with the nodes, or copied over ssh."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from spotmpi.agent import pod_context, record, slurm, unpack
from spotmpi.backends.downloads import OWN, remove_unfit_records
from spotmpi.backends.slurm.login import Login
from spotmpi.core import archives
from spotmpi.core.archives import Member
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import SPEC, RunPaths
from spotmpi.runs import reader

_UNPACK = Path(unpack.__file__).read_text(encoding="utf-8")
# Prints what is new in the record of a run as a tar: of files that grow what lies beyond the sizes that are known. All
# sizes are read before any content, first those of the files that tell the end of the run: with it comes all before it.
_NEWS = """
import io, json, os, stat, sys, tarfile
folder, known = json.load(sys.stdin)
sizes = {}
for root, folders, names in os.walk(folder):
    if root == folder:
        folders[:] = [name for name in folders if name in ("attempts", "logs")]
    for name in sorted(names, key=lambda name: name not in ("summary.json", "events.jsonl")):
        path = os.path.join(root, name)
        if name.endswith((".jsonl", ".json", ".log")):
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue  # the run has just removed it
            if stat.S_ISREG(status.st_mode):
                sizes[path] = status.st_size
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    for path, size in sizes.items():
        name = os.path.relpath(path, folder)
        start = known.get(name, 0)
        if name.endswith(".json") and size == start or size < start:
            continue
        try:
            file = open(path, "rb")
        except FileNotFoundError:
            continue
        with file:
            file.seek(0 if name.endswith(".json") else start)
            content = file.read(size - file.tell())
        if content:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
"""
_OWN = (SPEC, record.PLAN, *OWN)  # of the copy, which the login node does not replace


class RunFiles:
    """The folder of a run as the nodes see it, and *paths*, the same folder or this machine's copy."""

    def __init__(self, login: Login, paths: RunPaths, folder: str, python: str) -> None:
        self.paths = paths
        self.folder = folder
        self._login = login
        self._python = python

    def put(self, archive: bytes, folder: str = "") -> None:
        """Unpack an *archive* below the folder."""
        command = [self._python, "-I", "-S", "-c", _UNPACK, "take", f"{self.folder}/{folder}"]
        self._login.run("write the files of the run", command, archive)

    def write(self, name: str, content: bytes) -> None:
        """Write a file that only this user may read, whole or not at all."""
        text = 'umask 077 && mkdir -p "${0%/*}" && cat > "$0.part" && mv "$0.part" "$0"'
        self._login.run(f"write {name} of the run", ["sh", "-c", text, f"{self.folder}/{name}"], content)

    def append(self, name: str, values: Mapping[str, object]) -> None:
        """Append a line to the record."""
        line = json.dumps(values).encode() + b"\n"
        self._login.run(f"write {name} of the run", ["sh", "-c", 'cat >> "$0"', f"{self.folder}/{name}"], line)

    def remove(self, *entries: str) -> None:
        """Remove files and folders, if they exist."""
        self._login.run(
            "write the files of the run", ["rm", "-rf", "--", *(f"{self.folder}/{name}" for name in entries)]
        )

    def last_output(self) -> str:
        """The last line that the batch script or an agent printed; without those of srun, which follow an error."""
        lines = self._last_lines()
        own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
        return next(reversed(own or lines), "")

    def newest_wait(self) -> str:
        """The newest line of an agent that waits for node 0, among the last lines that were printed; else empty."""
        waits = [line for line in self._last_lines() if line.startswith(pod_context.WAITS_FOR_NODE_0)]
        return next(reversed(waits), "")

    def _last_lines(self) -> list[str]:
        command = ["tail", "-n", "20", f"{self.folder}/{slurm.FOLDER}/{slurm.OUTPUT}"]
        text = self._login.run("read the output of the job", command, allowed=(0, 1)).decode("utf-8", "replace")
        return text.strip().splitlines()

    def refresh(self) -> None:
        """Bring the record in this machine's copy up to date."""
        if self._login.host is None:
            return
        with reader.lock(self.paths):
            known = {
                str(path.relative_to(self.paths.folder)): path.stat().st_size
                for pattern in ("*.json*", "attempts/*/*.json", "logs/*/*.log")
                for path in self.paths.folder.glob(pattern)
            }
            command = [self._python, "-I", "-S", "-c", _NEWS]
            request = json.dumps([self.folder, known]).encode()
            with self._copied("read the record of the run", command, request) as packed:
                self._add(packed, known)

    def pull(self, part: str | None) -> dict[str, str]:
        """Copy the folder, or a *part* of it, to this machine, but for the run's key and what the copy knows better.

        Returns:
            What was left out, and why. Links among the records are: what is added to these later would go to others.
        """
        if self._login.host is None:
            return {}
        own = f"./{slurm.FOLDER}"
        command = ["tar", "-C", self.folder, f"--exclude={own}", "-cf", "-", part or "."]
        # 1: "file changed as we read it", as those of a run that goes on do
        with self._copied("read the folder of the run", command, allowed=(0, 1)) as packed:
            return self._unpack(packed, self.paths.folder) | remove_unfit_records(self.paths)

    @contextmanager
    def _copied(
        self, purpose: str, command: Sequence[str], data: bytes = b"", allowed: Sequence[int] = (0,)
    ) -> Iterator[BinaryIO]:
        """What a command prints, in a temporary file on the disk of the copy: a run may have more than fits memory."""
        with tempfile.TemporaryFile(prefix=f".{self.paths.id}-", dir=self.paths.folder.parent) as file:
            self._login.copy(purpose, command, file, data, allowed)
            yield file

    def _add(self, packed: BinaryIO, known: Mapping[str, int]) -> None:
        """Append to the copy what files of *known* sizes have grown by, and replace or add all others."""
        with tempfile.TemporaryDirectory(prefix=f".{self.paths.id}-", dir=self.paths.folder.parent) as temporary:
            self._unpack(packed, Path(temporary))
            for path in sorted(Path(temporary).rglob("*")):
                name = str(path.relative_to(temporary))
                target = self.paths.folder / name
                if path.is_symlink():
                    continue
                if path.is_dir():
                    target.mkdir(exist_ok=True)
                elif name in known and path.suffix != ".json":
                    with path.open("rb") as more, target.open("ab") as file:
                        shutil.copyfileobj(more, file)
                else:
                    path.replace(target)

    def _unpack(self, packed: BinaryIO, folder: Path) -> dict[str, str]:
        if os.fstat(packed.fileno()).st_size == 0:
            return {}
        skipped: dict[str, str] = {}
        try:
            with tarfile.open(fileobj=packed, mode="r:") as archive:
                unpack.unpack(
                    archive, str(folder), skipped, lambda name: None if posixpath.normpath(name) in _OWN else name
                )
        except unpack.DAMAGES as error:
            raise SpotmpiError(f"could not unpack the files of run {self.paths.id}: {error}; try again") from error
        return skipped


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of *files* by name, as `RunFiles.put` takes it."""
    return archives.archive(Member(name, content) for name, content in files.items())
