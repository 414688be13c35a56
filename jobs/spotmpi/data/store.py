"""Data sets on a run volume: pushed, listed and brought here, checked by SHA-256 and taken up where they broke off."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from spotmpi.agent import store
from spotmpi.backends.kubernetes.volume_access import VolumeAccess
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.progress import Say
from spotmpi.data.local_source import Index, Source
from spotmpi.plan import volume_pod
from spotmpi.plan.agent_plan import VOLUME

BATCH = 64 << 20  # bytes of files that go at once; what arrived of a batch that broke off is kept
AT_ONCE = 4
ROUNDS = 3  # in which a pull asks for what did not arrive whole
# Images of the original tar files, as their authors publish them.
VOC = {"VOC2007/trainval": 5011, "VOC2007/test": 4952, "VOC2012/trainval": 11540}
_IN_MEMORY = 8 << 20


@dataclass(frozen=True)
class Moved:
    """What a push or pull came to: files and bytes in all, and how many of them had to travel."""

    files: int
    bytes: int
    moved: int


class DataStore:
    """The data on a run volume, by way of a pod that sees it."""

    def __init__(self, there: VolumeAccess, say: Say) -> None:
        self._there, self._say = there, say

    async def push(self, source: Source, folder: str) -> Moved:
        """Bring every file of *source* below *folder*; those that are there already stay.

        SpotmpiError where the volume has something else than what was sent.
        """
        index = await asyncio.to_thread(_index, source)
        self._say(f"{len(index)} files, {size_of(_bytes(index))}: comparing with what is there")
        lacking = {name: index[name] for name in await self._missing(folder, index)}
        batches, taking, sent = _batches(source, set(lacking)), asyncio.Lock(), 0

        async def carry() -> None:
            nonlocal sent
            while True:
                async with taking:
                    batch = await asyncio.to_thread(next, batches, None)
                if batch is None:
                    return
                with batch[0]:
                    await self._there.run(self._command("take", folder), batch[0])
                sent += batch[1]
                self._say(f"{size_of(sent)} of {size_of(_bytes(lacking))}")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(carry())
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        if lacking and (lost := await self._missing(folder, lacking)):
            raise SpotmpiError(f"{len(lost)} files did not arrive whole, such as {lost[0]}; push again")
        return Moved(len(index), _bytes(index), len(lacking))

    async def check_voc(self, folder: str) -> None:
        """SpotmpiError unless the folder holds the three published sets of PASCAL VOC, each image with its objects."""
        found = json.loads(await self._said("voc", folder))
        bad = [f"{name} has {found.get(name, 0)} of {count}" for name, count in VOC.items() if found.get(name) != count]
        if bad:
            raise SpotmpiError(f"not the whole of PASCAL VOC: {', '.join(bad)} images; push what is missing")
        self._say(f"PASCAL VOC is whole: {', '.join(f'{name} {count}' for name, count in VOC.items())}")

    async def listed(self, folder: str) -> list[dict[str, Any]]:
        """What is directly in *folder*: name, bytes, and the number of files where it is a folder."""
        return list(json.loads(await self._said("list", folder)))

    async def pull(self, folder: str, into: Path) -> Moved:
        """Bring every file below *folder* here; those that are here already stay."""
        index: Index = json.loads(await self._said("index", folder))
        wanted = await asyncio.to_thread(store.missing, str(into), index)
        self._say(f"{len(index)} files, {size_of(_bytes(index))}: {len(wanted)} are not here")
        lacking = wanted
        for _ in range(ROUNDS):
            if lacking:
                await self._bring(folder, {name: index[name] for name in lacking}, into)
                lacking = await asyncio.to_thread(store.missing, str(into), {name: index[name] for name in lacking})
        if lacking:
            raise SpotmpiError(f"{len(lacking)} files did not arrive whole, such as {lacking[0]}; pull again")
        return Moved(len(index), _bytes(index), len(wanted))

    async def _bring(self, folder: str, index: Index, into: Path) -> None:
        """Have the files of *index* sent here; those after a break are left out."""
        got, whole = 0, _bytes(index)
        for batch in _named_batches(index):
            with tempfile.TemporaryFile() as file:
                await self._there.exchange(self._command("give", folder), io.BytesIO(json.dumps(batch).encode()), file)
                file.seek(0)
                await asyncio.to_thread(_unpack, file, into)
            got += _bytes({name: index[name] for name in batch})
            self._say(f"{size_of(got)} of {size_of(whole)}")

    async def _missing(self, folder: str, index: Index) -> list[str]:
        said = await self._said("missing", folder, json.dumps(index).encode())
        return [str(name) for name in json.loads(said)]

    async def _said(self, verb: str, folder: str, given: bytes = b"") -> str:
        into = io.BytesIO()
        await self._there.exchange(self._command(verb, folder), io.BytesIO(given), into)
        return into.getvalue().decode()

    def _command(self, verb: str, folder: str) -> Sequence[str]:
        return volume_pod.store_command(verb, f"{VOLUME}/{folder}".rstrip("/"))


def _index(source: Source) -> Index:
    """Bytes and SHA-256 of every file."""
    found: Index = {}
    for name, size, file in source.files():
        found[name] = [size, store.digest(file)]
    return found


def _batches(source: Source, wanted: set[str]) -> Iterator[tuple[BinaryIO, int]]:
    """The wanted files as tars of about 64 MiB, each with the bytes of its files."""
    batch, packed, size = _new_batch()
    for name, length, file in source.files():
        if name not in wanted:
            continue
        facts = tarfile.TarInfo(name)
        facts.size, facts.mode = length, 0o644
        packed.addfile(facts, file)
        size += length
        if size >= BATCH:
            yield _closed(batch, packed), size
            batch, packed, size = _new_batch()
    if packed.getnames():
        yield _closed(batch, packed), size


def _new_batch() -> tuple[BinaryIO, tarfile.TarFile, int]:
    batch: Any = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # closed by whoever sends it  # noqa: SIM115
    return batch, tarfile.open(fileobj=batch, mode="w"), 0


def _closed(batch: BinaryIO, packed: tarfile.TarFile) -> BinaryIO:
    packed.close()
    batch.seek(0)
    return batch


def _named_batches(index: Index) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in index:
        batch.append(name)
        size += _bytes({name: index[name]})
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _unpack(file: BinaryIO, into: Path) -> None:
    try:
        with tarfile.open(fileobj=file, mode="r:") as packed:
            store.take(str(into), packed)
    except tarfile.ReadError:
        pass  # the connection broke off; what lacks is asked for again
    except (tarfile.TarError, ValueError, OSError) as error:
        raise SpotmpiError(f"what came from the run volume cannot be taken over: {error}") from error


def _bytes(index: Index) -> int:
    return sum(int(str(facts[0])) for facts in index.values())


def size_of(count: int) -> str:
    """A number of bytes, as it is told."""
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"
