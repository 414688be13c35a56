"""What data sets and models have in common: a version of a name in the store, which is promoted and removed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spotmpi.agent.files import is_file, is_folder
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import counted
from spotmpi.entries.manifest import KINDS, WORDS, Manifest, Reference
from spotmpi.entries.store import Store, folder
from spotmpi.entries.versions import Promotion


@dataclass(frozen=True, repr=False)
class Entry:
    """A version of a data set or model: files that never change, and the manifest of what they were made from."""

    manifest: Manifest
    store: Store = field(compare=False)

    @property
    def name(self) -> str:
        """Its name, which its other versions share."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """Its number among the versions of its name."""
        return self.manifest.version

    @property
    def key(self) -> str:
        """The SHA-256 that stands for it: the same key is the same files."""
        return self.manifest.key

    @property
    def parents(self) -> tuple[Reference, ...]:
        """The entries that it was made from."""
        return self.manifest.parents

    @property
    def cost(self) -> float | None:
        """US dollars of the run that made it, where they are known."""
        return self.manifest.cost

    @property
    def path(self) -> str:
        """The folder of its files, as a path of this machine or as a URL."""
        return self.store.place(self.manifest.reference)

    def __str__(self) -> str:
        return self.manifest.title

    def __repr__(self) -> str:
        """For a notebook: the manifest has all code and files."""
        manifest = self.manifest
        sizes = [] if manifest.rows is None else [counted(manifest.rows, "row")]
        sizes += [counted(len(manifest.files), "file"), counted(manifest.bytes, "byte")]
        return f"<{type(self).__name__} {manifest.title}: {', '.join(sizes)}, in {self.path}>"


def promote(manifest: Manifest, alias: str, store: Store, remove: bool = False) -> Promotion:
    """Let an alias such as ``prod`` name a version; with *remove* no version any more.

    Raises:
        SpotmpiError: another process has promoted a version at the same time, which holds.
    """
    return store.promote(manifest, alias, names.user(), time.time(), remove)


def remove(manifest: Manifest, store: Store) -> None:
    """Remove an entry from its store. Its number is not given again.

    Raises:
        SpotmpiError: an alias, another entry or the spec of a run on this machine names it.
    """
    runs = [
        path.parent.name for path in _specs() if _names(path.read_text(encoding="utf-8", errors="replace"), manifest)
    ]
    if runs:
        more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
        read = f"{'runs' if runs[1:] else 'run'} {', '.join(sorted(runs)[:3])}{more}"
        remedy = f"remove {'their records' if runs[1:] else 'its record'} first (`spotmpi clean`)"
        raise SpotmpiError(f"{manifest} is read by {read}: {remedy}, or keep the {WORDS[manifest.kind]}")
    store.remove(manifest)


def _names(spec: str, manifest: Manifest) -> bool:
    """Whether a spec has the folder of an entry, or names this version by its key or number, as among arguments.

    By a number only together with its kind: ``digits:1`` may be the tag of an image.
    """
    if f"/{folder(manifest.reference)}/" in spec:  # of another name with the same files, the key is the same
        return True
    name = re.escape(manifest.name)
    for kind, key, number in re.findall(rf"(?<![\w.-])(?:({'|'.join(KINDS)}):)?{name}(?:@([0-9a-f]+)|:(\d+))", spec):
        if kind in (manifest.kind, "") and key and manifest.key.startswith(key):
            return True
        if kind == manifest.kind and number == str(manifest.version):
            return True
    return False


def _specs() -> Iterator[Path]:
    """The specs of all runs that are recorded on this machine."""
    folder = names.default_runs_folder()
    if is_folder(folder):
        specs = (RunPaths(each).spec for each in folder.iterdir())
        yield from (path for path in specs if is_file(path))
