"""Data sets on a run volume: push, list and pull, checked by SHA-256; an interrupted transfer is continued."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from spotmpi.agent import fetch, store
from spotmpi.agent.files import error_text
from spotmpi.agent.unpack import DAMAGES, require_readable, unpack
from spotmpi.backends.downloads import room_in
from spotmpi.backends.kubernetes.volume_access import VolumeAccess, json_answer, unreadable_answer
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.wording import Echo, counted, format_size
from spotmpi.data.local_source import Index, Source
from spotmpi.plan import volume_pod
from spotmpi.plan.agent_plan import VOLUME

BATCH = 64 << 20  # bytes of files that are sent at once; files of an interrupted batch that arrived are kept
AT_ONCE = 4
ROUNDS = 3  # of a pull for files that did not arrive completely
# Images of the original tar files, as their authors publish them.
VOC = {"VOC2007/trainval": 5011, "VOC2007/test": 4952, "VOC2012/trainval": 11540}
OTHER_FOLDERS = "push them to different folders"
_IN_MEMORY = 8 << 20


@dataclass(frozen=True)
class Transfer:
    """A push or pull: files and bytes in all, and how many files had to be sent."""

    files: int
    bytes: int
    transferred: int


class DataStore:
    """The data on a run volume, through a pod that mounts it."""

    def __init__(self, access: VolumeAccess, echo: Echo) -> None:
        self._access, self._echo = access, echo

    async def push(self, source: Source, folder: str, index: Index | None = None) -> Transfer:
        """Send every file of *source* to *folder*, except those that are on the volume already.

        *index* is that of the source, if it is known. SpotmpiError if files on the volume differ from those sent.
        """
        if index is None:
            index = await asyncio.to_thread(index_of, source)
        self._echo(f"{counted(len(index), 'file')}, {format_size(_bytes(index))}: comparing with the volume")
        missing = {name: index[name] for name in await self._missing(folder, index)}
        batches, lock, sent_bytes = _batches(source, set(missing)), asyncio.Lock(), 0

        async def send() -> None:
            nonlocal sent_bytes
            while True:
                async with lock:
                    batch = await asyncio.to_thread(next, batches, None)
                if batch is None:
                    return
                with batch[0]:
                    await self._access.run(self._command("take", folder), batch[0])
                sent_bytes += batch[1]
                self._echo(f"{format_size(sent_bytes)} of {format_size(_bytes(missing))}")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(send())
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        if missing and (incomplete := await self._missing(folder, missing)):
            raise SpotmpiError(
                f"{counted(len(incomplete), 'file')} did not arrive completely, such as {incomplete[0]}; push again"
            )
        return Transfer(len(index), _bytes(index), len(missing))

    async def require_other_names(self, index: Index, folder: str, addresses: Sequence[str]) -> None:
        """SpotmpiError if a file of *index* came to *folder* from one of *addresses* too, with other content."""
        archive = await self._ask("give", folder, json.dumps([fetch.LOG]).encode())
        try:
            fetched = _fetched(io.BytesIO(archive), set(map(fetch.key_of, addresses)))
        except (*DAMAGES, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SpotmpiError(f"the run volume's list of fetched files cannot be used: {error}") from error
        for name in await self._missing(folder, {name: index[name] for name in index if name in fetched}):
            raise SpotmpiError(f"{name} is in another of the sources too, with other content: {OTHER_FOLDERS}")

    async def check_voc(self, folder: str) -> None:
        """SpotmpiError unless the folder holds the three published sets of PASCAL VOC, each image with its objects."""
        counts = json_answer(await self._ask("voc", folder), dict)
        bad = [
            f"{name} has {counts.get(name, 0)} of {count}" for name, count in VOC.items() if counts.get(name) != count
        ]
        if bad:
            raise SpotmpiError(f"PASCAL VOC is incomplete: {', '.join(bad)} images; push what is missing")
        self._echo(f"PASCAL VOC is complete: {', '.join(f'{name} {count}' for name, count in VOC.items())}")

    async def entries(self, folder: str) -> list[dict[str, Any]]:
        """The entries of *folder*: name, bytes, and the number of files of a folder."""
        entries: list[Any] = json_answer(await self._ask("list", folder), list)
        if not all(map(_is_entry, entries)):
            raise unreadable_answer()
        return entries

    async def renew(self, folder: str) -> None:
        """Let the entry in *folder* count as copied now."""
        await self._access.run(self._command("renew", folder))

    async def unused(self, older: float, keys: Sequence[str], remove: bool) -> list[dict[str, Any]]:
        """Kind, name, key and bytes of the entries of the volume that no run has named for *older* seconds.

        The pod's clock counts, not that of this machine. Those of *keys* are in use, whatever the volume says. With
        *remove* they are removed.
        """
        command = volume_pod.store_command("remove-unused" if remove else "unused", VOLUME, str(older))
        into = io.BytesIO()
        await self._access.exchange(command, io.BytesIO(json.dumps(list(keys)).encode()), into)
        return json_answer(into.getvalue(), list)

    async def pull(self, folder: str, into: Path) -> Transfer:
        """Copy every file below *folder* to *into*, except those that are in it already."""
        index = _checked(json_answer(await self._ask("index", folder), dict), into)
        required = await asyncio.to_thread(store.missing, str(into), index)
        self._echo(
            f"{counted(len(index), 'file')}, {format_size(_bytes(index))}: {len(required)} missing on this machine"
        )
        missing = required
        for _ in range(ROUNDS):
            if missing:
                await self._receive(folder, {name: index[name] for name in missing}, into)
                missing = await asyncio.to_thread(store.missing, str(into), {name: index[name] for name in missing})
        if missing:
            raise SpotmpiError(
                f"{counted(len(missing), 'file')} did not arrive completely, such as {missing[0]}; pull again"
            )
        return Transfer(len(index), _bytes(index), len(required))

    async def _receive(self, folder: str, index: Index, into: Path) -> None:
        """Request the files of *index*; those after an interruption do not arrive."""
        received, total = 0, _bytes(index)
        into.mkdir(parents=True, exist_ok=True)
        for batch in _named_batches(index):
            with room_in(into), tempfile.TemporaryFile(dir=into) as file:  # /tmp may be small
                await self._access.exchange(self._command("give", folder), io.BytesIO(json.dumps(batch).encode()), file)
                file.seek(0)
                await asyncio.to_thread(_unpack, file, into, frozenset(batch))
            received += _bytes({name: index[name] for name in batch})
            self._echo(f"{format_size(received)} of {format_size(total)}")

    async def _missing(self, folder: str, index: Index) -> list[str]:
        output = await self._ask("missing", folder, json.dumps(index).encode())
        names: list[Any] = json_answer(output, list)
        if not all(isinstance(name, str) and name in index for name in names):
            raise unreadable_answer()
        return names

    async def _ask(self, verb: str, folder: str, stdin: bytes = b"") -> bytes:
        return await self._access.output(self._command(verb, folder), stdin)

    def _command(self, verb: str, folder: str) -> Sequence[str]:
        return volume_pod.store_command(verb, f"{VOLUME}/{folder}".rstrip("/"))


def _fetched(packed: BinaryIO, keys: Collection[str]) -> set[str]:
    """The files that came from the addresses with these *keys*, by the log of a folder in a tar that a pod sent."""
    names: set[str] = set()
    with tarfile.open(fileobj=packed) as tar:
        for member in tar:
            require_readable(member)
            log = tar.extractfile(member) if member.name == fetch.LOG and member.isfile() else None
            for entry in map(json.loads, log or ()):
                names.update(entry["files"] if entry["mark"] in keys else ())
    return names


def _is_entry(entry: Any) -> bool:
    """Whether it is an entry of a folder as `spotmpi.agent.store` lists them."""
    if not isinstance(entry, dict) or entry.keys() != {"name", "bytes", "files"}:
        return False
    whole = all(type(entry[key]) is int and entry[key] >= 0 for key in ("bytes", "files") if entry[key] is not None)
    return isinstance(entry["name"], str) and entry["bytes"] is not None and whole


def _checked(index: dict[str, Any], into: Path) -> Index:
    """*index* as a pod sent it; SpotmpiError where a name leads out of *into*, or an entry is none."""
    for name, entry in index.items():
        try:
            store.safe_path(str(into), name)
            size, sha256 = entry
            if "\0" in name or type(size) is not int or size < 0 or not isinstance(sha256, str):
                raise ValueError(f"no bytes and SHA-256 of {name!r}")
        except (TypeError, ValueError) as error:
            raise SpotmpiError(f"the run volume's list of files cannot be used: {error}") from error
    return index


def index_of(source: Source) -> Index:
    """Bytes and SHA-256 of every file; InputError for a tar with two files of one name and other content."""
    facts: Index = {}
    for name, size, file in source.files():
        found: list[object] = [size, store.digest(file)]
        if facts.setdefault(name, found) != found:
            raise input_error("SRC", name, "is in the tar twice, with other content; pack it again")
    return facts


def _batches(source: Source, required: set[str]) -> Iterator[tuple[BinaryIO, int]]:
    """The required files as tars of about 64 MiB, each with the bytes of its files."""
    batch, packed, size = _new_batch()
    for name, length, file in source.files():
        if name not in required:
            continue
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = length, 0o644
        with room_in(Path(tempfile.gettempdir())):
            packed.addfile(entry, file)
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


def _unpack(file: BinaryIO, into: Path, requested: frozenset[str]) -> None:
    try:
        with room_in(into), tarfile.open(fileobj=file, mode="r:") as packed:
            unpack(packed, str(into), rename=lambda name: name if name in requested else None)
    except tarfile.ReadError:
        pass  # the connection broke; missing files are requested again
    except (OSError, *DAMAGES) as error:
        raise SpotmpiError(f"cannot unpack the data from the run volume: {error_text(error)}") from error


def _bytes(index: Index) -> int:
    return sum(int(str(entry[0])) for entry in index.values())
