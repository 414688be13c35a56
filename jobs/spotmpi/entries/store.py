"""The store of entries: found by name or key, created complete or not at all, verified and removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from spotmpi.core import names
from spotmpi.core.errors import InputError, SpotmpiError, input_error
from spotmpi.entries import manifest as form
from spotmpi.entries.manifest import FILES, KINDS, MANIFEST, SHORT, File, Manifest, Reference
from spotmpi.entries.storage import Storage

_THREADS = 16
_HEX = re.compile(r"[0-9a-f]{6,64}")
_PLACE = re.compile(rf"/({'|'.join(KINDS)})/([^/]+)/([0-9a-f]{{64}})/{FILES}(?:/|$)")
_REFERENCE = re.compile(rf"(?:(?P<kind>{'|'.join(KINDS)}):)?(?P<name>[^@]+)(?:@(?P<key>[0-9a-f]+))?")


class UnknownEntry(InputError):
    """There is no entry of that name or key."""


def is_reference(text: str) -> bool:
    """Whether a text names an entry with its kind, such as ``datasets:ratings`` or ``datasets:ratings@1a2b3c4d``."""
    return text.startswith(tuple(f"{kind}:" for kind in KINDS))


class Store:
    """Entries below *url*, a folder of this machine or a URL; by default that of `names.default_store`."""

    def __init__(self, url: str | None = None) -> None:
        self.storage = Storage(url or names.default_store())

    def place(self, reference: Reference) -> str:
        """The folder of the files of an entry, as a path of this machine or as a URL."""
        return self.storage.place(f"{folder(reference)}/{FILES}")

    def get(self, reference: Reference) -> Manifest | None:
        """The manifest of an entry; None where there is none. SpotmpiError where it was edited or damaged."""
        name = f"{folder(reference)}/{MANIFEST}"
        content = self.storage.read(name)
        if content is None:
            return None
        place = self.storage.place(name)
        manifest = form.read(content.decode(errors="replace"), place)
        if manifest.reference != reference:
            raise SpotmpiError(f"the manifest {place} is of {manifest}: it was moved; move it back")
        return manifest

    def list(
        self, kind: str | None = None, name: str | None = None, on_damage: Callable[[str], None] | None = None
    ) -> Sequence[Manifest]:
        """The entries, oldest first; *on_damage* gets a line on each that cannot be read, else that is raised."""
        references = [
            Reference(each, known, key)
            for each in ([kind] if kind else KINDS)
            for known in ([name] if name else self.storage.names(each))
            for key in self.storage.names(f"{each}/{known}")
        ]

        def get(reference: Reference) -> Manifest | None:
            try:
                return self.get(reference)
            except SpotmpiError as error:
                if on_damage is None:
                    raise
                on_damage(str(error))
                return None

        with ThreadPoolExecutor(_THREADS) as threads:
            found = [each for each in threads.map(get, references) if each]
        return sorted(found, key=lambda each: (each.created, each.reference))

    def find(self, text: str, kind: str | None = None) -> Manifest:
        """The entry that *text* names: the newest of a name, ``name@key``, or a key; keys may be shortened.

        Raises:
            UnknownEntry: there is none.
            InputError: more than one has a key that begins so.
        """
        match = _REFERENCE.fullmatch(text)
        if match is None or (kind and match["kind"] not in (None, kind)):
            remedy = f"name one as NAME, NAME@KEY or KEY{f' of {kind}' if kind else ''}; `spotmpi data list` has all"
            raise input_error("entry", text, remedy)
        kind, key = match["kind"] or kind, match["key"]
        found = [each for each in self.list(kind, match["name"]) if each.key.startswith(key or "")]
        if found and key is None:
            return found[-1]
        if not found and key is None and _HEX.fullmatch(text.rpartition(":")[2]):
            found = [each for each in self.list(kind) if each.key.startswith(match["name"])]
        if len({each.reference for each in found}) > 1:
            raise input_error("entry", text, f"is the beginning of several keys: {', '.join(map(str, found[:3]))}")
        if not found:
            known = sorted({each.name for each in self.list(kind, on_damage=lambda text: None)})
            remedy = f"is not in the store {self.storage.url}; it has: {', '.join(known[:10]) or 'no entry yet'}"
            raise UnknownEntry(input_error(kind or "entry", text, remedy).problems)
        return found[0]

    def add(self, manifest: Manifest, sources: Mapping[str, str]) -> Manifest:
        """Create the entry, complete or not at all; the one that there is where another process was first.

        *sources* says for each file of the manifest where it is: a name in the store's storage, or an absolute path of
        this machine.

        Raises:
            SpotmpiError: the storage fails, as a full disk does; then there is no entry.
        """
        text = form.write(manifest).encode()
        files = {f"{FILES}/{file.path}": sources[file.path] for file in manifest.files}
        self._prepare()
        if self.storage.create(folder(manifest.reference), files, text):
            return manifest
        return self.get(manifest.reference) or manifest

    def _prepare(self) -> None:
        """Keep the store out of git, and so out of the code that is shipped."""
        if self.storage.folder and not (self.storage.folder / ".gitignore").exists():
            self.storage.write(".gitignore", b"*\n", exclusive=True)

    def problems(self, manifest: Manifest) -> Sequence[str]:
        """What is wrong with an entry, a line each: missing, damaged and unknown files, and missing parents."""
        place = f"{folder(manifest.reference)}/{FILES}"

        def check(file: File) -> str | None:
            found = self.storage.digest(f"{place}/{file.path}")
            if found is None:
                return f"{manifest}: {file.path} is missing"
            if found != (file.bytes, file.sha256):
                made = f"{file.bytes} bytes with {file.sha256[:SHORT]}"
                return f"{manifest}: {file.path} is damaged: {found[0]} bytes with {found[1][:SHORT]}, not {made}"
            return None

        with ThreadPoolExecutor(_THREADS) as threads:
            lines = [line for line in threads.map(check, manifest.files) if line]
        more = sorted({*self.storage.files(place)} - {file.path for file in manifest.files})
        lines += [f"{manifest}: {path} is no file of it" for path in more]
        lines += [f"{manifest}: its parent {each} is missing" for each in manifest.parents if self.get(each) is None]
        return lines

    def children(self, manifest: Manifest) -> Sequence[Manifest]:
        """The entries that were made from this one."""
        return [each for each in self.list() if manifest.reference in each.parents]

    def remove(self, manifest: Manifest) -> None:
        """Remove an entry with its files.

        Raises:
            SpotmpiError: another entry was made from it.
        """
        children = self.children(manifest)
        if children:
            named = ", ".join(map(str, children[:3]))
            raise SpotmpiError(f"{manifest} is a parent of {named}: remove what was made from it first")
        self.storage.remove(folder(manifest.reference))


def reference_in(place: str) -> Reference | None:
    """The entry whose files a path or URL leads to; None for a place that is none of a store."""
    match = _PLACE.search(place.rstrip("/"))
    return Reference(*match.groups()) if match else None


def folder(reference: Reference) -> str:
    """The folder of an entry in its store."""
    return f"{reference.kind}/{reference.name}/{reference.key}"
