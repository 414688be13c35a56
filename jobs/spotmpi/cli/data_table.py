"""What `spotmpi data` does once its options are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from spotmpi.backends.targets import Target
from spotmpi.cli.tables import show_table
from spotmpi.cli.view import say
from spotmpi.core import names
from spotmpi.core.errors import input_error
from spotmpi.data import datasets
from spotmpi.data.datasets import Storage
from spotmpi.data.store import Moved

VOC = "voc"  # the data set of that name; a folder of this machine is ./voc


def storage(on: str | None, claim: str | None, image: str | None) -> Storage:
    """The storage that the options name."""
    return Storage(Target(on), claim, image)


def push(words: Sequence[str], authority: Path | None, storage: Storage, as_json: bool) -> None:
    """Push all but the last of *words* to the last, or all of PASCAL VOC, and print what came of it."""
    if len(words) < 2:
        raise input_error("DEST", None, "name what to push, then the folder on the storage: spotmpi data push SRC DEST")
    if words[0] == VOC:
        found, folder = (words[1:], VOC) if len(words) == 4 else (words[1:-1], words[-1])
        moved = datasets.push_voc(found, folder, storage, say, authority)
    else:
        found, folder = words[:-1], words[-1]
        moved = datasets.push(found, folder, storage, say, authority)
    if as_json:
        print(json.dumps([asdict(each) for each in moved]))
        return
    for source, each in zip(found, moved, strict=True):
        print(f"{source.partition('#')[0]} -> {folder}: {_told(each)}")
    say(f"a spec reads it with: data = {json.dumps(folder)}")


def ls(folder: str, storage: Storage, as_json: bool) -> None:
    """Print a folder's entries, or a JSON list."""
    found = datasets.ls(folder, storage, say)
    if as_json:
        print(json.dumps(found))
        return
    rows = [
        (f"{each['bytes'] / 1e6:,.1f}", "" if each["files"] is None else str(each["files"]), each["name"])
        for each in found
    ]
    show_table(("MB", "FILES", "NAME"), rows)


def pull(folder: str, into: Path, storage: Storage, as_json: bool) -> None:
    """Pull a folder, and print what came of it."""
    target = into if into != Path() else Path(Path(folder).name)
    moved = datasets.pull(folder, target, storage, say)
    print(json.dumps(asdict(moved)) if as_json else f"{folder} -> {names.shown(target.absolute())}: {_told(moved)}")


def _told(moved: Moved) -> str:
    return f"{moved.files} files, {moved.bytes / 1e6:,.1f} MB, {moved.moved} of them new"
