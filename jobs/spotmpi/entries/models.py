"""Models of the store: numbered versions of a name, and aliases such as ``prod`` with their history.

Beside the entries of a name are ``.versions/3``, which has the key of version 3, and ``.aliases/prod/000002``, the
second promotion of that alias. Each is created once and never changes: of two processes only one gets a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.entries.manifest import MODEL, Manifest, Reference, check_name
from spotmpi.entries.store import Store, UnknownEntry

_VERSIONS, _ALIASES = ".versions", ".aliases"
_ALIAS = re.compile(r"[A-Za-z][\w-]{0,49}", re.ASCII)


class Promotion(msgspec.Struct, frozen=True):
    """One line of an alias' history: the version that it names from *time* on; None where the alias was removed."""

    version: int | None
    time: float  # Unix seconds
    by: str


def version_of(manifest: Manifest) -> int:
    """The number of a model's version."""
    return int(manifest.details["version"])


def title(manifest: Manifest) -> str:
    """A model as people name it, such as ``digits:3``."""
    return f"{manifest.name}:{version_of(manifest)}"


def add(store: Store, manifest: Manifest, sources: Mapping[str, str]) -> Manifest:
    """Create the next version of a model, complete or not at all; the same content of the same run is the same version.

    Raises:
        SpotmpiError: the storage fails, as a full disk does; then there is no such version.
    """
    details = {**manifest.details, "version": _number(store, manifest.reference)}
    return store.add(msgspec.structs.replace(manifest, details=details), sources)


def _number(store: Store, reference: Reference) -> int:
    """The number of this key; it is taken before the model is complete, and stays taken when that is removed."""
    number = 1
    while True:
        name = _version(reference.name, number)
        key = store.storage.read(name)
        if key is None and store.storage.write(name, reference.key.encode(), exclusive=True):
            return number
        if key == reference.key.encode():
            return number
        number += key is not None


def find(store: Store, text: str) -> Manifest:
    """The model that *text* names: ``digits`` (its newest), ``digits:3``, ``digits:prod``, ``digits@KEY`` or ``KEY``.

    Raises:
        UnknownEntry: there is none.
    """
    name, colon, label = text.removeprefix(f"{MODEL}:").partition(":")
    if not colon:
        found = store.find(name, MODEL)
        return max(store.list(MODEL, name), key=version_of) if name == found.name else found
    if label.isascii() and label.isdigit():
        number = int(label)
    else:
        past = history(store, check_name(name), label) if _ALIAS.fullmatch(label) else []
        number = past[-1].version or 0 if past else 0
    key = store.storage.read(_version(check_name(name), number)) if number else None
    manifest = store.get(Reference(MODEL, name, key.decode(errors="replace"))) if key else None
    if manifest is None:
        known = [title(each) for each in store.list(MODEL, name, on_damage=lambda line: None)]
        known += [f"{name}:{alias}" for alias, past in aliases(store, name).items() if past[-1].version]
        remedy = f"is no model of the store {store.storage.url}; it has: {', '.join(known) or f'none named {name}'}"
        raise UnknownEntry(input_error("model", text, remedy).problems)
    return manifest


def aliases(store: Store, name: str) -> dict[str, Sequence[Promotion]]:
    """The aliases of a name that ever were, each with its history."""
    found = ((alias, history(store, name, alias)) for alias in store.storage.names(f"{MODEL}/{name}/{_ALIASES}"))
    return {alias: past for alias, past in found if past}


def history(store: Store, name: str, alias: str) -> Sequence[Promotion]:
    """The promotions of an alias, oldest first; the last one holds.

    Raises:
        SpotmpiError: one was edited or damaged.
    """
    folder = _folder(name, alias)
    found = []
    for number in store.storage.names(folder):
        content = store.storage.read(f"{folder}/{number}") or b""
        try:
            found.append(msgspec.json.decode(content, type=Promotion))
        except msgspec.DecodeError as error:
            place = store.storage.place(f"{folder}/{number}")
            remedy = "restore it from a copy, or remove it and promote again"
            raise SpotmpiError(f"the history of {name}:{alias} was edited or damaged in {place}: {remedy}") from error
    return found


def aliases_of(store: Store, manifest: Manifest) -> Sequence[str]:
    """The aliases that name this version now."""
    version = version_of(manifest)
    return [alias for alias, past in aliases(store, manifest.name).items() if past[-1].version == version]


def promote(store: Store, manifest: Manifest, alias: str, by: str, now: float, remove: bool = False) -> Promotion:
    """Let an alias name this version, or with *remove* no version any more; its history stays.

    Raises:
        InputError: it cannot be an alias, or with *remove* it does not name this version.
        SpotmpiError: another process has promoted a version meanwhile, which holds, or has removed this one.
    """
    if not _ALIAS.fullmatch(alias):
        raise input_error("alias", alias, "use up to 50 letters, digits, '_' and '-'; a letter is first")
    number = int((store.storage.names(_folder(manifest.name, alias)) or ["0"])[-1]) + 1
    version, past = version_of(manifest), history(store, manifest.name, alias)
    current = past[-1].version if past else None
    if remove and current != version:
        remedy = f"does not name {title(manifest)}, but {f'{manifest.name}:{current}' if current else 'no version'}"
        raise input_error("alias", alias, f"{remedy}; `spotmpi models list` shows what aliases name")
    if not remove and current == version:
        return past[-1]
    promotion = Promotion(None if remove else version, now, by)
    _append(store, manifest.name, alias, number, promotion)
    if not remove and store.get(manifest.reference) is None:
        _append(store, manifest.name, alias, number + 1, Promotion(current, now, by))
        raise SpotmpiError(f"{title(manifest)} was removed meanwhile: {manifest.name}:{alias} stays as it was")
    return promotion


def _append(store: Store, name: str, alias: str, number: int, promotion: Promotion) -> None:
    place = f"{_folder(name, alias)}/{number:06d}"
    if not store.storage.write(place, msgspec.json.encode(promotion) + b"\n", exclusive=True):
        other = history(store, name, alias)[-1]
        named = f"{name}:{other.version}" if other.version else "no version"
        remedy = "look at it, then promote again"
        raise SpotmpiError(f"{other.by} has let {name}:{alias} name {named} meanwhile, and that holds: {remedy}")


def _folder(name: str, alias: str) -> str:
    return f"{MODEL}/{name}/{_ALIASES}/{alias}"


def _version(name: str, number: int) -> str:
    return f"{MODEL}/{name}/{_VERSIONS}/{number}"
