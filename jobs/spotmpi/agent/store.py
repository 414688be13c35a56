"""Lists, receives and sends files below a folder of the run volume. Passed to a pod as text, as is `unpack`.

python3 -I -S -c SOURCE list FOLDER      a JSON object per entry: name, bytes, files
python3 -I -S -c SOURCE index FOLDER     {name: [bytes, SHA-256]} of every file
python3 -I -S -c SOURCE missing FOLDER   stdin: such an index; stdout: the names that are missing or differ
python3 -I -S -c SOURCE voc FOLDER       {"VOC2007/trainval": images of that list that are complete, ...}
python3 -I -S -c SOURCE give FOLDER      stdin: a list of names; stdout: a tar of them
python3 -I -S -c SOURCE renew FOLDER     lets the manifest of an entry be as new as if it was copied now
python3 -I -S -c SOURCE unused VOLUME SECONDS   stdin: keys in use; stdout: entries that no run names for so long
python3 -I -S -c SOURCE remove-unused VOLUME SECONDS   the same, and removes them
python3 -I -S -c SOURCE put FOLDER NAME BYTES SHA256   stdin: the content of a file, which appears once it is verified

Answers are padded with blanks or zeros: with a slow reader, what is still in pipes 2 s after the end of a command is
lost, which is then padding only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
import time
import uuid
from collections.abc import Iterator
from typing import IO, Any

PART = ".spotmpi-part"
_BLOCK = 1 << 20
TAIL = 1 << 19  # bytes; more than the pipes from a container hold


def files(folder: str) -> Iterator[str]:
    """The name of every whole file below *folder*, sorted within each folder; links are followed to files only.

    Raises:
        OSError: a folder cannot be read; its files are not left out for that.
    """
    for place, folders, names in os.walk(folder, onerror=require_missing):
        folders[:] = sorted(each for each in folders if not each.endswith(PART))
        for name in sorted(names):
            if not name.endswith(PART):
                yield os.path.relpath(os.path.join(place, name), folder)


def require_missing(error: OSError) -> None:
    """Raise *error*, unless what it is about was removed meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error


def size_of(path: str) -> int | None:
    """Bytes of a regular file; None for none, OSError where a disk does not tell."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def digest(file: IO[bytes]) -> str:
    """The SHA-256 of the rest of *file*."""
    whole = hashlib.sha256()
    for block in iter(lambda: file.read(_BLOCK), b""):
        whole.update(block)
    return whole.hexdigest()


def size_and_digest(path: str) -> list[Any]:
    """Bytes and SHA-256 of a file."""
    with open(path, "rb") as file:
        return [os.path.getsize(path), digest(file)]


def missing(folder: str, expected: dict[str, list[Any]]) -> list[str]:
    """The names in *expected* that *folder* lacks, or has with other content."""
    names = []
    for name, facts in expected.items():
        path = safe_path(folder, name)
        if size_of(path) != facts[0] or size_and_digest(path) != list(facts):
            names.append(name)
    return names


def safe_path(folder: str, name: str) -> str:
    """The path of *name* below *folder*; ValueError where it is outside of it."""
    path = os.path.normpath(os.path.join(folder, name))
    if os.path.isabs(name) or not path.startswith(os.path.normpath(folder) + os.sep):
        raise ValueError("%r is outside of the folder" % name)
    return path


def index(folder: str) -> dict[str, list[Any]]:
    """Bytes and SHA-256 of every file below *folder*, except those that are removed meanwhile."""
    entries = {}
    for name in files(folder):
        with contextlib.suppress(FileNotFoundError):
            entries[name] = size_and_digest(os.path.join(folder, name))
    return entries


def put(path: str, content: IO[bytes], expected: list[Any]) -> None:
    """Store *content* as the file *path*; ValueError, and no file, unless it has the *expected* bytes and SHA-256.

    Several pods may store the same file at once: each writes a file of its own until it is verified.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = "%s.%s%s" % (path, uuid.uuid4().hex, PART)
    try:
        with open(part, "xb") as file:
            shutil.copyfileobj(content, file, _BLOCK)
            file.flush()
            os.fsync(file.fileno())
        require(part, expected)
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)


def require(path: str, expected: list[Any]) -> None:
    """ValueError unless the file *path* has the *expected* bytes and SHA-256."""
    size, sha256 = size_and_digest(path)
    if size != expected[0]:
        raise ValueError("it has %d bytes, expected %d" % (size, expected[0]))
    if sha256 != expected[1]:
        raise ValueError("its SHA-256 is %s, expected %s" % (sha256, expected[1]))


def listing(folder: str) -> Iterator[dict[str, Any]]:
    """What is directly in *folder*: name, bytes in all, and for a folder the number of files below it."""
    for name in sorted(each for each in os.listdir(folder) if not each.endswith(PART)):
        path = os.path.join(folder, name)
        if not stat.S_ISDIR(os.stat(path).st_mode):
            yield {"name": name, "bytes": os.path.getsize(path), "files": None}
            continue
        below = [os.path.join(path, each) for each in files(path)]
        yield {"name": name + "/", "bytes": sum(map(os.path.getsize, below)), "files": len(below)}


def voc(folder: str) -> dict[str, int]:
    """How many images of each list of PASCAL VOC below *folder* are complete, with their annotations."""
    counts = {}
    for place, _, names in os.walk(folder, onerror=require_missing):
        parts = place.split(os.sep)
        if parts[-2:] != ["ImageSets", "Main"]:
            continue
        year = os.sep.join(parts[:-2])
        for name in {"trainval.txt", "test.txt"} & set(names):
            with open(os.path.join(place, name), encoding="utf-8") as lines:
                images = lines.read().split()
            complete = [image for image in images if _is_complete(year, image)]
            counts["%s/%s" % (parts[-3], name[:-4])] = len(complete)
    return counts


def _is_complete(year: str, image: str) -> bool:
    parts = (("JPEGImages", ".jpg"), ("Annotations", ".xml"))
    return all(size_of(os.path.join(year, part, image + end)) is not None for part, end in parts)


def unused(volume: str, before: float, keys: list[str]) -> list[dict[str, Any]]:
    """The entries of the volume's store that were copied *before* that Unix time, and that nothing names since.

    That is none of *keys*, and no spec of a run whose folder has a file that is newer.
    """
    named = "\n".join([*keys, *_specs_since(os.path.join(volume, "runs"), before)])
    found = []
    for kind in _names(os.path.join(volume, "store")):
        for name in _names(os.path.join(volume, "store", kind)):
            for key in _names(os.path.join(volume, "store", kind, name)):
                place = os.path.join(volume, "store", kind, name, key)
                if len(key) == 64 and key not in named and _newest(place) < before:
                    size = sum(os.path.getsize(os.path.join(place, each)) for each in files(place))
                    found.append({"kind": kind, "name": name, "key": key, "bytes": size})
    return found


def _specs_since(runs: str, since: float) -> Iterator[str]:
    """The specs of the runs in whose folder a file is as new as that Unix time."""
    for run in _names(runs):
        if _newest(os.path.join(runs, run)) >= since:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with open(os.path.join(runs, run, "spec.toml"), encoding="utf-8", errors="replace") as spec:
                    yield spec.read()


def _names(folder: str) -> list[str]:
    """What is in a folder, sorted; nothing where there is none."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _newest(folder: str) -> float:
    """When the newest of what is directly in a folder was changed, in Unix seconds, or the folder itself."""
    times = [os.stat(folder).st_mtime]
    for name in _names(folder):
        with contextlib.suppress(FileNotFoundError):
            times.append(os.stat(os.path.join(folder, name)).st_mtime)
    return max(times)


def remove_entry(place: str) -> None:
    """Remove a folder, its manifest first: without one an entry is none.

    On a network file system the folder of a file that somebody has open stays, for the next removal: see
    `spotmpi.agent.files.remove_folder`, which pods do not get with this text.
    """
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(place, "manifest.json"))
    try:
        shutil.rmtree(place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
            raise
        shutil.rmtree(place, ignore_errors=True)


def require_folder(folder: str) -> None:
    """Exit with a message unless *folder* is one; OSError where a disk does not tell."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISDIR(os.stat(folder).st_mode):
            return
    sys.exit("folder not found: %s" % folder)


def main(verb: str, folder: str, *rest: str) -> None:
    """Run *verb* on *folder*."""
    if verb in ("list", "index", "give", "voc"):
        require_folder(folder)
    if verb == "list":
        print_padded(list(listing(folder)))
    elif verb == "index":
        print_padded(index(folder))
    elif verb == "missing":
        print_padded(missing(folder, json.load(sys.stdin)))
    elif verb == "voc":
        print_padded(voc(folder))
    elif verb == "renew":
        os.utime(os.path.join(folder, "manifest.json"))
    elif verb in ("unused", "remove-unused"):
        entries = unused(folder, time.time() - float(rest[0]), json.load(sys.stdin))
        for each in entries if verb == "remove-unused" else ():
            remove_entry(os.path.join(folder, "store", each["kind"], each["name"], each["key"]))
        print_padded(entries)
    elif verb == "put":
        name, size, sha256 = rest
        put(safe_path(folder, name), sys.stdin.buffer, [int(size), sha256])
    else:
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as packed:
            for name in json.load(sys.stdin):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile: the reader sees that it is missing
                    packed.add(safe_path(folder, name), name, recursive=False)
        sys.stdout.buffer.write(bytes(TAIL))


def print_padded(values: Any) -> None:
    """Print values as JSON, with the padding."""
    print(json.dumps(values) + " " * TAIL)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError, tarfile.TarError) as error:
        # Nobody learns of the end of a command in a pod that has not read its input to the end: exec does not return.
        while sys.stdin.buffer.read(_BLOCK):
            pass
        sys.exit(str(error))
