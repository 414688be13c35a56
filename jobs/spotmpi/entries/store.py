"""The store of entries: found by name or key, created complete or not at all, verified and removed."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from spotmpi.agent.files import exists, is_file
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.wording import counted
from spotmpi.entries import manifest as form
from spotmpi.entries.manifest import (
    COMMANDS,
    DATASET,
    FILES,
    KINDS,
    MANIFEST,
    SHORT,
    WORDS,
    File,
    Manifest,
    Reference,
)
from spotmpi.entries.storage import READ_ONLY, Storage, errors, require_room, unfinished
from spotmpi.entries.versions import Promotion, Versions, current, require_alias
from spotmpi.streams.storage import ENTRY

_THREADS = 16
_SHOWN = 10  # entries that a message names
_DIGITS = 6  # of a key without a name, at least
_HEX = re.compile(rf"[0-9a-f]{{{_DIGITS},64}}")
_SHORT_KEY = re.compile(rf"[0-9a-f]{{1,{_DIGITS - 1}}}")
_REFERENCE = re.compile(
    rf"(?:(?P<kind>{'|'.join(KINDS)}):)?(?P<name>[^@:]+)(?:@(?P<key>[0-9a-f]+)|:(?P<label>[^@:]+))?"
)


Files = list[tuple[File, str]]  # files of entries, with their names in the storage


def is_reference(text: str) -> bool:
    """Whether a text names an entry with its kind, such as ``datasets:ratings`` or ``models:digits:prod``."""
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

    def require(self, reference: Reference) -> Manifest:
        """The manifest of an entry that something was made from; SpotmpiError where there is none."""
        manifest = self.get(reference)
        if manifest is None:
            raise SpotmpiError(f"{reference} is {self.lack(reference.kind)}")
        return manifest

    def lack(self, kind: str) -> str:
        """What is said of an entry that was removed, as by hand: that, and the remedy."""
        again = ", or build it again as it was" if kind == DATASET else ""
        return f"missing from the store {self.storage.url}: copy its folder from a store that has it{again}"

    def list(
        self,
        kind: str | None = None,
        name: str | None = None,
        on_damage: Callable[[str], None] | None = None,
        key: str = "",
    ) -> Sequence[Manifest]:
        """The entries by name and version, of those whose key begins with *key*.

        *on_damage* gets a line on each that cannot be read, else that is raised.
        """
        references = [
            Reference(each, known, whole)
            for each in ([kind] if kind else KINDS)
            for known in ([name] if name else self.storage.names(each))
            for whole in self.storage.names(f"{each}/{known}", start=key)
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
        return sorted(found, key=lambda each: (each.kind, each.name, each.version))

    def find(self, text: str, kind: str | None = None) -> Manifest:
        """The entry that *text* names: the newest of a name, ``name:3``, ``name:alias``, ``name@key``, or a key.

        Keys may be shortened, one without a name to 6 digits. Without *kind* that may be before the name.

        Raises:
            InputError: there is none, or more than one has a key that begins so.
        """
        match = _REFERENCE.fullmatch(text)
        if match is None or (kind and match["kind"] not in (None, kind)):
            remedy = "name one as NAME, NAME:VERSION, NAME:ALIAS, NAME@KEY or KEY"
            raise input_error("entry", text, remedy + (f" of {kind}; `{COMMANDS[kind]} list` has all" if kind else ""))
        kind, name, key, label = match["kind"] or kind, match["name"], match["key"], match["label"]
        if key is not None:
            found = [*self.list(kind, name, key=key)]
        else:
            found = [each for one in ([kind] if kind else KINDS) if (each := self._version(one, name, label))]
            if not found and label is None and _HEX.fullmatch(name):
                found = [*self.list(kind, key=name)]
        if len(found) > 1:
            raise input_error("entry", text, f"can be any of {', '.join(map(str, found[:3]))}: write more of it")
        if not found:
            short = f" (a KEY without a name has {_DIGITS} digits or more)" if _SHORT_KEY.fullmatch(text) else ""
            remedy = f"is not in the store {self.storage.url}{short}; it has: {self._known(kind, name)}"
            raise input_error(WORDS[kind] if kind else "entry", text, remedy)
        return found[0]

    def _version(self, kind: str, name: str, label: str | None) -> Manifest | None:
        """The version of a name with that number or alias, by default the newest."""
        versions = self.versions(kind, name)
        for each in [label] if label else map(str, versions.numbers()[::-1]):
            key = versions.key(each)
            if key and (found := self.get(Reference(kind, name, key))):
                return found
        entries = self.list(kind, name)  # a copy of the store may lack the numbers, which manifests have too
        return next((each for each in reversed(entries) if label in (None, str(each.version))), None)

    def _known(self, kind: str | None, name: str) -> str:
        """The versions and aliases of a name, for a message; where it has none, the names of entries."""
        known = self.list(kind, on_damage=lambda line: None)
        texts = [each.title for each in known if each.name == name][-_SHOWN:]
        for one in KINDS if texts else ():
            aliases = self.versions(one, name).aliases() if kind in (one, None) else {}
            versions = {each.version for each in known if (each.kind, each.name) == (one, name)}
            for alias, past in aliases.items():
                number = past[-1].version
                lost = f" ({name}:{number}, which cannot be read)" if number not in versions else ""
                texts += [f"{name}:{alias}{lost}"] if number else []
        return ", ".join(texts or sorted({each.name for each in known})[:_SHOWN]) or "no entry yet"

    def versions(self, kind: str, name: str) -> Versions:
        """The versions and aliases of a name."""
        return Versions(self.storage, kind, form.check_name(name))

    def promote(self, manifest: Manifest, alias: str, by: str, now: float, remove: bool = False) -> Promotion:
        """Let an alias name this version, or with *remove* no version any more; its history stays.

        Raises:
            InputError: it cannot be an alias, or with *remove* it does not name this version.
            SpotmpiError: another process has promoted a version meanwhile, which holds, or has removed this one.
        """
        require_alias(alias)
        versions = self.versions(manifest.kind, manifest.name)
        number, past = versions.last(alias) + 1, versions.history(alias)
        current = past[-1].version if past else None
        if remove and current != manifest.version:
            named = f"{manifest.name}:{current}" if current else "no version"
            remedy = f"does not name {manifest.title}, but {named}; `{COMMANDS[manifest.kind]} list` shows the aliases"
            raise input_error("alias", alias, remedy)
        if not remove and current == manifest.version:
            return past[-1]
        promotion = Promotion(None if remove else manifest.version, now, by)
        versions.append(alias, number, promotion)
        if not remove and self.get(manifest.reference) is None:
            versions.append(alias, number + 1, Promotion(current, now, by))
            raise SpotmpiError(f"{manifest.title} was removed meanwhile: {manifest.name}:{alias} stays as it was")
        return promotion

    def add(self, manifest: Manifest, sources: Mapping[str, str]) -> Manifest:
        """Create the entry with the next number of its name, complete or not at all.

        Where there is one of that key already, or another process is first, that one.

        *sources* says for each file of the manifest where it is: a name in the store's storage, or an absolute path of
        this machine.

        Raises:
            SpotmpiError: the storage fails, as a full disk does; then there is no entry.
        """
        form.write(manifest)  # before anything is written
        existing = self.get(manifest.reference)
        if existing is not None:
            return existing
        self._prepare()
        number = self.versions(manifest.kind, manifest.name).number(manifest.reference)
        manifest = msgspec.structs.replace(manifest, version=number)
        text = form.write(manifest).encode()
        files = {f"{FILES}/{file.path}": sources[file.path] for file in manifest.files}
        if self.storage.create(folder(manifest.reference), files, text):
            return manifest
        return self.get(manifest.reference) or manifest

    @contextlib.contextmanager
    def room_for(self, manifest: Manifest) -> Iterator[Path]:
        """A new folder for the files of an entry that is added from there, on the disk of a store that is a folder.

        Raises:
            SpotmpiError: there is not room enough, or it cannot be written.
        """
        own = self.storage.folder
        if own:
            self._prepare()
        place = unfinished(own / manifest.kind) if own else tempfile.TemporaryDirectory(prefix="spotmpi-")
        with errors(f"{manifest.name} cannot be written to {own or tempfile.gettempdir()}"), place as temporary:
            require_room(Path(temporary), sum({file.sha256: file.bytes for file in manifest.files}.values()))
            yield Path(temporary)

    def _prepare(self) -> None:
        """Keep the store out of git, and so out of the code that is shipped."""
        if self.storage.folder and not exists(self.storage.folder / ".gitignore"):
            self.storage.write(".gitignore", b"*\n", exclusive=True)

    def intact(self, parts: Mapping[str, Files]) -> dict[str, Files]:
        """Those of *parts* whose files are what was kept of them; behind a URL, where none rot, they are not read."""

        def is_intact(files: Files) -> bool:
            return all(self.storage.digest(name) == (file.bytes, file.sha256) for file, name in files)

        if not self.storage.folder:
            return dict(parts)
        with ThreadPoolExecutor(_THREADS) as threads:
            known = zip(parts.items(), threads.map(is_intact, parts.values()), strict=True)
            return {part: files for (part, files), good in known if good}

    def problems(self, manifest: Manifest) -> Sequence[str]:
        """What is wrong with an entry, a line each: missing, damaged and unknown files, parents."""
        place = f"{folder(manifest.reference)}/{FILES}"

        def check(file: File) -> str | None:
            try:
                found = self.storage.digest(f"{place}/{file.path}")
            except SpotmpiError as error:
                return f"{manifest}: {error}"
            if found is None:
                return f"{manifest}: {file.path} is missing"
            if found != (file.bytes, file.sha256):
                there, kept = (f"{counted(n, 'byte')} with {d[:SHORT]}" for n, d in (found, (file.bytes, file.sha256)))
                return f"{manifest}: {file.path} is damaged: {there}, not {kept}"
            return None

        with ThreadPoolExecutor(_THREADS) as threads:
            lines = [line for line in threads.map(check, manifest.files) if line]
        more = sorted({*self.storage.files(place)} - {file.path for file in manifest.files})
        lines += [f"{manifest}: {path} is not a file of it" for path in more]
        for each in manifest.parents:
            try:
                lines += [] if self.get(each) else [f"{manifest}: its parent {each} is {self.lack(each.kind)}"]
            except SpotmpiError as error:
                lines.append(f"{manifest}: its parent {each} cannot be read: {error}")
        return lines

    def alias_problems(self, kind: str, name: str) -> Sequence[str]:
        """What is wrong with the aliases of a name, a line each: an edited history, and versions that are missing."""
        try:
            aliases = Versions(self.storage, kind, name).aliases()  # of any folder that lies there
        except SpotmpiError as error:
            return [str(error)]
        lines = []
        for alias, number in {alias: past[-1].version for alias, past in aliases.items() if past[-1].version}.items():
            with contextlib.suppress(SpotmpiError):  # a damaged version is not missing
                if self._version(kind, name, str(number)) is None:
                    remedy = f"{self.lack(kind)}, or promote another version"
                    lines.append(f"{name}:{alias} names {name}:{number}, which is {remedy}")
        return lines

    def copy(self, manifest: Manifest, target: Path) -> None:
        """Copy the files of an entry to a new folder of this machine, complete or not at all.

        Raises:
            SpotmpiError: a file is damaged or missing, or cannot be written.
        """
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        try:
            with errors(f"{manifest.title} cannot be copied to {names.display_path(target)}"):
                temporary.mkdir(parents=True)
                self._copy_files(manifest, temporary)
                temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def copy_to(self, other: Store, manifest: Manifest) -> None:
        """Copy an entry to a store in a folder, unless that has it; raises as `copy`."""
        target = Path(other.place(manifest.reference)).parent
        with errors(f"{manifest.title} cannot be copied to {target}"), unfinished(target.parent) as temporary:
            self._copy_files(manifest, temporary / FILES)
            for file in manifest.files:
                (temporary / FILES / file.path).chmod(READ_ONLY)
            (temporary / MANIFEST).write_text(form.write(manifest), encoding="utf-8")
            if not is_file(target / MANIFEST):  # as by another process meanwhile
                temporary.rename(target)

    def _copy_files(self, manifest: Manifest, target: Path) -> None:
        target.mkdir(exist_ok=True)
        require_room(target, manifest.bytes)

        def copy(file: File) -> None:
            place = target / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            self.storage.copy(f"{folder(manifest.reference)}/{FILES}/{file.path}", place)
            if form.describe(place, file.path) != msgspec.structs.replace(file, rows=None, part=None):
                command = f"`{COMMANDS[manifest.kind]} verify {manifest.title}`"
                raise SpotmpiError(f"{manifest.title} is damaged, {file.path}: {command} shows all that is")

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(copy, manifest.files))

    def children(self, manifest: Manifest) -> Sequence[Manifest]:
        """The entries that were made from this one."""
        return [each for each in self.list() if manifest.reference in each.parents]

    def remove(self, manifest: Manifest) -> None:
        """Remove an entry with its files; its number is not given again.

        Raises:
            SpotmpiError: an alias names it, or another entry was made from it, or may be, as its manifest is damaged.
        """
        aliases = current(self.versions(manifest.kind, manifest.name).aliases(), manifest.version)
        if aliases:
            remedy = f"`{COMMANDS[manifest.kind]} promote {manifest.title} {aliases[0]} --remove`"
            raise SpotmpiError(
                f"{manifest.title} is {manifest.name}:{aliases[0]}: promote another version, or {remedy}"
            )
        try:
            children = self.children(manifest)
        except SpotmpiError as error:
            reason = "since what cannot be read may be made from it"
            raise SpotmpiError(f"{manifest} is not removed, {reason}: {error}") from error
        if children:
            named = ", ".join(map(str, children[:3]))
            raise SpotmpiError(f"{manifest} is a parent of {named}: remove what was made from it first")
        self.storage.remove(folder(manifest.reference))


def reference_in(place: str) -> Reference | None:
    """The entry whose files a path or URL leads to; None for a place that is none of a store."""
    match = ENTRY.search(place.rstrip("/"))
    return Reference(*match.groups()) if match else None


def read_reference(text: str) -> Reference | None:
    """The entry in a text ``kind:name@key`` of a record; None for another text."""
    kind, _, rest = text.partition(":")
    name, _, key = rest.rpartition("@")
    return reference_in(f"/{folder(Reference(kind, name, key))}/{FILES}")


def folder(reference: Reference) -> str:
    """The folder of an entry in its store."""
    return f"{reference.kind}/{reference.name}/{reference.key}"
