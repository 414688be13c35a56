"""From a file back to what it was made from: its run, data sets, code, image and raw files, by their records alone."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from spotmpi.agent import checkpoint_files
from spotmpi.agent.files import exists, is_file, is_folder
from spotmpi.agent.store import size_and_digest
from spotmpi.aws.billing import Bill
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.names import RunPaths
from spotmpi.core.structs import inspected
from spotmpi.core.wording import counted, dollars, shortened
from spotmpi.entries.inputs import digest_of_files
from spotmpi.entries.manifest import MANIFEST, WORDS, File, Input, Manifest, RawFile, Reference
from spotmpi.entries.storage import errors
from spotmpi.entries.store import Store, folder, is_reference, read_reference, reference_in
from spotmpi.runs import reader
from spotmpi.runs.fingerprint import command_of, own_files

FILE, FOLDER, RUN, CODE, IMAGE, INPUT, RAW = "file", "folder", "run", "code", "image", "input", "raw file"
LOCATIONS = "locations"  # the fact of an input that has the paths or URLs of all of its files
_MAX_RAW = 20  # raw files of an input that a tree has, where no single one is meant

_Place = tuple[Reference, str]  # an entry, in whichever store, with the file of it that is meant
DAMAGE = "damage"  # the fact of an entry whose manifest was edited or damaged: that, and the remedy
SAME_FILES = "same_files"  # the fact of an input that lists the other entries with the same files
_MANY = 4  # other entries with the same files, of which a tree for people leaves out what they were made from
REPEATED = "repeated"  # the fact of an entry that stands in the tree already, there with what it was made from


class _Walk(NamedTuple):
    """What is known while a tree is made: its entries, and those of each store by the digest of their files."""

    seen: set[_Place]
    by_files: dict[str, dict[str, list[Manifest]]]


_walk: ContextVar[_Walk | None] = ContextVar("_walk", default=None)
_below: ContextVar[frozenset[Reference]] = ContextVar("_below", default=frozenset())  # entries on the way to a node


@dataclass(frozen=True)
class Node:
    """Something that a file was made from, directly or not, with what is known of it."""

    what: str
    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    parents: tuple[Node, ...] = ()

    def values(self) -> dict[str, Any]:
        """The tree as JSON values."""
        return {"what": self.what, "name": self.name, **self.facts, "from": [each.values() for each in self.parents]}

    def walk(self) -> Iterator[Node]:
        """This node and all that it was made from."""
        yield self
        for each in self.parents:
            yield from each.walk()


@inspected
class _SavedCost(msgspec.Struct):
    """What is read of ``bill.json``, see `environments.cost.Cost`."""

    bill: Bill


def trace(place: str, store: str | None = None) -> Node:
    """What a file, a folder or an entry was made from: *place* is a path, a URL or ``datasets:NAME@KEY``.

    Raises:
        InputError: no manifest and no record of a run tells.
        SpotmpiError: its manifest was edited or damaged; that of an entry that it was made from is a fact of this one.
    """
    with _each_once():
        return _trace(place, store)


def _trace(place: str, store: str | None) -> Node:
    if is_reference(place):
        opened = Store(store)
        return entry_node(opened.find(place), opened)
    path = place if "://" in place else str(Path(place).absolute())
    found = locate(path)
    if found is not None:
        manifest, opened, name = found
        return _file_node(path, name, manifest, opened) if name else entry_node(manifest, opened)
    paths = None if "://" in place else run_of(Path(path))
    if paths is None:
        opened = Store(store)
        if copied := entries_with_content(path, opened):
            state = f"with the content of {', '.join(f'{file.path} of {each}' for each, file in copied)}"
            facts = {"bytes": copied[0][1].bytes, "sha256": copied[0][1].sha256, "state": state}
            return Node(FILE, path, facts, tuple(entry_node(each, opened, file) for each, file in copied))
        remedy = "name a file of the store, of a run folder, or an entry such as datasets:ratings"
        is_missing = "://" not in place and not exists(Path(path))
        lacking = "no such file" if is_missing else "no manifest and no record of a run tells where it comes from"
        raise input_error("FILE", place, f"{lacking}: {remedy}")
    what = FOLDER if is_folder(Path(path)) else FILE
    return Node(what, path, _facts_of_file(Path(path), paths), (run_node(paths, Store(store)),))


def entries_with_content(place: str, store: Store) -> Sequence[tuple[Manifest, File]]:
    """The entries with a file of the content of the one at *place*, such as a copy or what a command has pulled."""
    path = Path(place)
    if "://" in place or not is_file(path):
        return ()
    with errors("cannot be read"):
        size, digest = size_and_digest(str(path))
    entries = store.list(on_damage=lambda line: None) if size else ()
    return [(each, file) for each in entries for file in each.files if file.sha256 == digest]


def locate(place: str) -> tuple[Manifest, Store, str] | None:
    """The entry that a path or URL leads to, its store, and the name of the file in it; None for other places."""
    if "/files/" not in f"{place}/":
        place = place.rstrip("/").removesuffix(f"/{MANIFEST}")
    reference = reference_in(place if "/files/" in f"{place}/" else f"{place}/files")
    if reference is None:
        return None
    top, _, rest = place.partition(f"/{folder(reference)}")
    store = Store(top)
    manifest = store.get(reference)
    if manifest is None:
        raise SpotmpiError(f"{place} has no manifest: its data set was never complete; build it again")
    return manifest, store, rest.removeprefix("/files").strip("/")


def changed_files(manifest: Manifest, store: Store, name: str) -> list[str]:
    """Of the file *name* of an entry, or the files below that folder, those whose content is not what was kept.

    Raises:
        InputError: the entry has no such file.
    """
    files = [file for file in manifest.files if not name or f"{file.path}/".startswith(f"{name}/")]
    if not files and manifest.files:
        raise input_error("FILE", name, f"is not a file of {manifest}: somebody has added it")
    contents = {file: store.storage.digest(f"{folder(manifest.reference)}/files/{file.path}") for file in files}
    return [file.path for file, found in contents.items() if found not in (None, (file.bytes, file.sha256))]


def run_of(path: Path) -> RunPaths | None:
    """The run in whose folder a path is."""
    for each in (path, *path.parents):
        paths = RunPaths(each)
        if is_file(paths.spec) and is_file(paths.plan):
            return paths
    return None


def _file_node(path: str, name: str, manifest: Manifest, store: Store) -> Node:
    file = next((each for each in manifest.files if each.path == name), None)
    below = [each for each in manifest.files if each.path.startswith(f"{name}/")]
    if below:
        total = {"files": len(below), "bytes": sum(each.bytes for each in below)}
        return Node(FOLDER, path, total, (entry_node(manifest, store),))
    if file is None:
        raise input_error("FILE", path, f"is not a file of {manifest}: somebody has added it")
    try:
        found = store.storage.digest(f"{folder(manifest.reference)}/files/{name}")
        state = _state(found, (file.bytes, file.sha256))
    except SpotmpiError as error:
        state = str(error).removeprefix(f"{store.place(manifest.reference)}/{name} ")
    facts = {"bytes": file.bytes, "sha256": file.sha256, "rows": file.rows, "state": state}
    return Node(FILE, path, _known(facts), (entry_node(manifest, store, file),))


def _state(found: tuple[int, str] | None, recorded: tuple[int, str] | None) -> str:
    """What the bytes and SHA-256 of a file say beside those that were recorded of it."""
    return "missing" if found is None else "as recorded" if found == recorded else "changed since it was recorded"


def entry_node(manifest: Manifest, store: Store, file: File | None = None) -> Node:
    """An entry with all that it was made from; for one *file* only with what that part depends on."""
    with _each_once() as walk:
        place = manifest.reference, file.path if file else ""
        if place in walk.seen and manifest.reference not in _below.get():
            facts: dict[str, Any] = {"key": manifest.key, "version": manifest.version, REPEATED: True}
            return Node(WORDS[manifest.kind], str(manifest.reference), facts)
        walk.seen.add(place)
        return _entry_node(manifest, store, file)


@contextlib.contextmanager
def _each_once() -> Iterator[_Walk]:
    """The tree that is made: an entry that several others were made from would be there many times."""
    walk = _walk.get()
    if walk is not None:
        yield walk
        return
    token = _walk.set(walk := _Walk(set(), {}))
    try:
        yield walk
    finally:
        _walk.reset(token)


def _entry_node(manifest: Manifest, store: Store, file: File | None) -> Node:
    facts = {
        "key": manifest.key,
        "version": manifest.version,
        "metrics": manifest.details.get("metrics"),
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "created": moment(manifest.created),
        "arguments": manifest.arguments or None,
        "cost": manifest.cost,
        "spotmpi": manifest.spotmpi,
    }
    below = _below.get()
    if manifest.reference in below:  # another name may have its key: the same code and files
        remedy = f"somebody has written them by hand: remove their folders from {store.storage.url}"
        raise SpotmpiError(f"{manifest} was made from itself, according to manifests of the store: {remedy}")
    token = _below.set(below | {manifest.reference})
    try:
        parents = tuple(_parents(manifest, store, file))
    finally:
        _below.reset(token)
    return Node(WORDS[manifest.kind], str(manifest.reference), _known(facts), parents)


def _parents(manifest: Manifest, store: Store, file: File | None) -> Iterator[Node]:
    # The run of a function's data set is a pool, and its code ours; the record of any other has code, image and data.
    recorded = manifest.run and "function" not in manifest.details
    paths = RunPaths(names.default_runs_folder() / str(manifest.run)) if recorded else None
    if paths and run_of(paths.folder):
        node = run_node(paths, store)
        yield node
        known = {each.name for each in node.walk()}
        yield from (_reference_node(each, store) for each in manifest.parents if str(each) not in known)
        return
    if manifest.code:
        code = manifest.code
        facts = {"commit": code.commit, "changes": code.diff, "digest": code.digest, "sources": code.sources}
        yield Node(
            CODE,
            str(manifest.details.get("function") or manifest.details.get("command") or ", ".join(code.sources)),
            _known(facts),
        )
    if manifest.image or (manifest.code and manifest.code.packages):
        packages = manifest.code.packages if manifest.code and not manifest.image else None
        yield Node(IMAGE, " ".join((manifest.image or {"": "none"}).values()), _known({"packages": packages}))
    if manifest.run:
        yield Node(RUN, manifest.run)
    part = manifest.details.get("parts", {}).get(file.part) if file and file.part else None
    for number, each in enumerate(manifest.inputs):
        yield _input_node(each, store, part if number == 0 else None)
    inputs = {each.parent for each in manifest.inputs}
    yield from (_reference_node(each, store) for each in manifest.parents if each not in inputs)


def _input_node(value: Input, store: Store, only: str | None) -> Node:
    name = f"{value.argument} = {value.source}"
    if value.parent:
        others = [each.reference for each in _with_same_files(value, store)]
        parents = tuple(_reference_node(each, store, only) for each in (value.parent, *others))
        return Node(
            INPUT, name, _known({SAME_FILES: [f"{each.kind}:{each.name}@{each.key}" for each in others]}), parents
        )
    chosen = [file for file in value.files if only in (None, file.name)]
    raw = tuple(_raw_node(value, each) for each in chosen[:_MAX_RAW])
    locations = _locations(value.source, value.folder, [file.name for file in value.files])
    return Node(INPUT, name, _known({"files": len(value.files), "digest": value.digest, LOCATIONS: locations}), raw)


def _with_same_files(value: Input, store: Store) -> Iterator[Manifest]:
    """The other entries of a store by which a call has the same input, since their files have the same content.

    Those that were made from an entry on the way to this input are none: what this was made from has none of them.
    """
    with _each_once() as walk:
        if store.storage.url not in walk.by_files:
            found = walk.by_files[store.storage.url] = defaultdict(list)
            for each in store.list(on_damage=lambda line: None):
                found[digest_of_files(each.files)].append(each)
        same = walk.by_files[store.storage.url].get(value.digest, ())
    for each in same:
        if each.reference != value.parent and not _below.get() & {each.reference, *_ancestors(each, store)}:
            yield each


def _ancestors(manifest: Manifest, store: Store) -> set[Reference]:
    """All entries that one was made from, as far as manifests tell."""
    found, left = set[Reference](), [*manifest.parents]
    while left:
        reference = left.pop()
        if reference not in found:
            found.add(reference)
            with contextlib.suppress(SpotmpiError):
                parent = store.get(reference)
                left += parent.parents if parent else ()
    return found


def _locations(source: str, folder: str, names: Sequence[str]) -> list[str]:
    """The paths or URLs of the files of a source, which have their names below its *folder*, or from the root on."""
    scheme, mark, _ = source.partition("://")
    if scheme == "kafka":
        return []
    base = folder or (f"{scheme}{mark}" if mark else f"{folder_of(source, names)}/")
    return [name if name.startswith("/") else base + name for name in names]


def folder_of(source: str, names: Sequence[str]) -> str:
    """The folder of a source, which is one, a pattern, or the only one of *names*."""
    before = re.split(r"[*?\[]", source)[0]
    is_folder = [name.rpartition("/")[2] for name in names] != [source.rpartition("/")[2]]
    return source.rstrip("/") if before == source and is_folder else before.rpartition("/")[0]


def _raw_node(value: Input, file: RawFile) -> Node:
    digest = file.digest.removeprefix(f"version {file.bytes} ")  # which an ETag follows
    facts = {"bytes": file.bytes, "version": file.version, "digest": digest}
    return Node(RAW, f"{value.folder}{file.name}", _known(facts))


def _reference_node(reference: Reference, store: Store, only: str | None = None) -> Node:
    try:
        manifest = store.get(reference)
    except SpotmpiError as error:
        return Node(WORDS[reference.kind], str(reference), {"key": reference.key, DAMAGE: str(error)})
    if manifest is None:
        return Node(WORDS[reference.kind], str(reference), {"key": reference.key, "record": store.lack(reference.kind)})
    return entry_node(manifest, store, next((file for file in manifest.files if file.path == only), None))


def run_node(paths: RunPaths, store: Store) -> Node:
    """A run with its code, image and data, as its folder has them."""
    work = reader.work(paths)
    submitted = reader.submissions(paths)
    facts = {
        "command": command_of(work) or work.get("launcher"),
        "created": moment(submitted[0]) if submitted else None,
        "cost": cost_of(paths),
        "spotmpi": work.get("spotmpi"),
    }
    return Node(RUN, paths.id, _known(facts), tuple(_parents_of_run(paths, work, store)))


def _parents_of_run(paths: RunPaths, work: dict[str, Any], store: Store) -> Iterator[Node]:
    code = work.get("code") or {}
    if files := own_files(code):
        facts = {"files": files, "commit": code.get("commit"), "changes": code.get("diff")}
        yield Node(CODE, ", ".join(files), _known(facts))
    image = work.get("image")
    yield Node(IMAGE, image["name"] if image else "none", _known({"lock": image and image["lock"]}))
    for text in work.get("entries") or ():
        if reference := read_reference(text):
            yield _reference_node(reference, store_of(paths, text, store))
    data = work.get("data")
    if data and reference_in(data["path"]) is None:
        yield Node(
            INPUT, data["path"], _known({each: data.get(each) for each in ("files", "bytes", "content", "listing")})
        )
    source = reader.source(paths)
    if source and reference_in(source.source) is None:
        raw = tuple(Node(RAW, name, {"bytes": size, "version": each}) for name, size, each in source.files[:_MAX_RAW])
        locations = _locations(source.source, "", [name for name, _, _ in source.files])
        facts = {"files": len(source.files), "digest": source.digest, LOCATIONS: locations}
        yield Node(INPUT, source.source, _known(facts), raw)


def store_of(paths: RunPaths, text: str, store: Store) -> Store:
    """The store in which a run found an entry, by the path in its spec; *store* where that is gone, or on a volume."""
    key = text.rpartition("@")[2]
    for line in paths.spec.read_text(encoding="utf-8", errors="replace").split('"'):
        found = reference_in(line)
        top = line.partition(f"/{folder(found)}")[0] if found else ""
        if found and found.key == key and ("://" in top or Path(top).is_absolute()):
            own = Store(top)
            return own if own.storage.read(f"{folder(found)}/{MANIFEST}") is not None else store
    return store


def _facts_of_file(path: Path, run: RunPaths) -> dict[str, Any]:
    """Bytes and SHA-256 of a file in the folder of a run, and whether it is what was recorded of it."""
    recorded = _recorded(path, run)
    if not is_file(path):
        return {"state": _state(None, recorded)} if recorded or not exists(path) else {}
    try:
        with errors("cannot be read"):
            size, digest = size_and_digest(str(path))
    except SpotmpiError as error:
        return {"state": str(error)}
    return {"bytes": size, "sha256": digest, **({"state": _state((size, digest), recorded)} if recorded else {})}


def _recorded(path: Path, run: RunPaths) -> tuple[int, str] | None:
    """Bytes and SHA-256 of a file as a checkpoint's manifest has them, or as they were when the results were kept."""
    from spotmpi.api import keep_requests  # which imports all that starts runs

    with contextlib.suppress(checkpoint_files.Damaged, OSError, KeyError, TypeError, ValueError):
        files = checkpoint_files.read_manifest(str(path.parent))["files"]
        return int(files[path.name]["bytes"]), str(files[path.name]["sha256"])
    results = run.stream / "results"
    with contextlib.suppress(SpotmpiError):  # that was removed, or the store does not answer
        if path.is_relative_to(results) and is_file(run.keep) and (kept := keep_requests.results_of(run)):
            name = path.relative_to(results).as_posix()
            return next(((each.bytes, each.sha256) for each in kept.manifest.files if each.path == name), None)
    return None


def cost_of(paths: RunPaths) -> float | None:
    """US dollars for a run's nodes, as `spotmpi cost` has saved them; None where it has not."""
    try:
        saved = msgspec.json.decode(paths.bill.read_bytes(), type=_SavedCost)
    except (OSError, msgspec.DecodeError):
        return None
    shares = [each for each in saved.bill.runs if each.run == paths.id]
    return sum(each.dollars for each in shares) if shares else None


def moment(seconds: float) -> str:
    """A time in Unix seconds as people and catalogues read it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in (None, "", {}, [])}


def lines(node: Node) -> Iterator[str]:
    """The tree for people, a line for each node.

    Of many entries with the same files only the one that was read first has what it was made from. Where another one
    of them, or what is below it, stands in the tree again, it is explained there.
    """
    yield from _lines(node, {each.name: each for each in node.walk() if REPEATED not in each.facts}, set())


def _lines(
    node: Node,
    whole: Mapping[str, Node],
    shown: set[str],
    prefix: str = "",
    last: bool | None = None,
    below: bool = True,
) -> Iterator[str]:
    """The lines of a *node*, without what is *below* it one line; *shown* has the names of those that had theirs."""
    if REPEATED in node.facts and node.name not in shown:
        node = whole.get(node.name, node)
    if below:
        shown.add(node.name)
    mark = "" if last is None else "└─ " if last else "├─ "
    facts = [fact(name, value) for name, value in node.facts.items() if name not in ("key", "sources", LOCATIONS)]
    title = [] if node.what == CODE and "files" in node.facts else [node.name]  # which is those files
    yield f"{prefix}{mark}{node.what} {', '.join(title + facts)}"
    indent = prefix if last is None else prefix + ("   " if last else "│  ")
    is_long = len(node.facts.get(SAME_FILES, ())) >= _MANY
    for number, each in enumerate(node.parents if below else ()):
        yield from _lines(each, whole, shown, indent, number == len(node.parents) - 1, not (is_long and number))


def fact(name: str, value: Any) -> str:
    """A fact of a node for people."""
    if name in ("rows", "bytes", "files") and isinstance(value, int):
        return counted(value, name[:-1])
    if name == "cost":
        return dollars(value)
    if name == REPEATED:
        return "see above"
    if name == SAME_FILES:
        origins = "; --json shows what the others were made from" if len(value) >= _MANY else ""
        return f"one of {len(value) + 1} with the same files{origins}"
    if name == "changes":
        return "with changes"
    if name == "files":
        return ", ".join(f"{path} {shortened(digest)}" for path, digest in value.items())
    if isinstance(value, dict):
        return f"{name} {', '.join(f'{key}={shortened(each)}' for key, each in value.items())}"
    return f"{name} {shortened(value)}" if name not in ("state", DAMAGE) else str(value)
