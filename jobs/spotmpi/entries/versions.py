"""Numbers of the versions of a name, and aliases such as ``prod`` with their history.

Beside the entries of a name are ``.versions/3``, which has the key of version 3, and ``.aliases/prod/000002``, the
second promotion of that alias. Each is created once and never changes: of two processes only one gets a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import msgspec

from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.entries.manifest import LATEST, Reference
from spotmpi.entries.storage import Storage

_ALIAS = re.compile(r"[A-Za-z][\w-]{0,49}", re.ASCII)
_THREADS = 16


class Promotion(msgspec.Struct, frozen=True):
    """One line of an alias' history: the version that it names from *time* on; None where the alias was removed."""

    version: int | None
    time: Annotated[float, msgspec.Meta(ge=0, lt=LATEST)]  # Unix seconds
    by: str


_LINE = msgspec.json.Decoder(Promotion)


class Versions:
    """The versions and aliases of one *kind* and *name* in a storage."""

    def __init__(self, storage: Storage, kind: str, name: str) -> None:
        self._storage, self._name = storage, name
        self._versions, self._aliases = f"{kind}/{name}/.versions", f"{kind}/{name}/.aliases"

    def number(self, reference: Reference) -> int:
        """The number of a key; it is taken before the entry is complete, and stays taken when that is removed."""
        own = reference.key.encode()
        while True:
            numbers = self.numbers()
            with ThreadPoolExecutor(_THREADS) as threads:
                known = dict(zip(threads.map(self._read, numbers), numbers, strict=True))
            if own in known:
                return known[own]
            number = max(numbers, default=0) + 1
            if self._storage.write(f"{self._versions}/{number}", own, exclusive=True):
                return number

    def numbers(self) -> list[int]:
        """The numbers that were given, the newest last."""
        return sorted(map(int, self._numbered(self._versions)))

    def _numbered(self, folder: str) -> list[str]:
        """The names in a folder that are numbers; people and tools put other files into a store as well."""
        return [each for each in self._storage.names(folder) if each.isascii() and each.isdigit()]

    def key(self, label: str) -> str | None:
        """The key of a version, by its number or an alias; None where there is none."""
        past = [] if label.isdigit() else self.history(label)
        number = int(label) if label.isascii() and label.isdigit() else past[-1].version if past else None
        content = self._read(number) if number else None
        return content.decode(errors="replace") if content else None

    def _read(self, number: int) -> bytes | None:
        return self._storage.read(f"{self._versions}/{number}")

    def aliases(self) -> dict[str, Sequence[Promotion]]:
        """The aliases that ever were, each with its history."""
        found = {alias: self.history(alias) for alias in self._storage.names(self._aliases)}
        return {alias: past for alias, past in found.items() if past}

    def history(self, alias: str) -> Sequence[Promotion]:
        """The promotions of an alias, oldest first; the last one holds.

        Raises:
            SpotmpiError: one was edited or damaged.
        """
        found: list[Promotion] = []
        for number in self._numbered(f"{self._aliases}/{alias}") if _ALIAS.fullmatch(alias) else ():
            name = f"{self._aliases}/{alias}/{number}"
            try:
                found.append(_LINE.decode(self._storage.read(name) or b""))
            except msgspec.DecodeError as error:
                remedy = "restore it from a copy, or remove it and promote again"
                text = f"the history of {self._name}:{alias} was edited or damaged in {self._storage.place(name)}"
                raise SpotmpiError(f"{text}: {remedy}") from error
        return found

    def append(self, alias: str, number: int, promotion: Promotion) -> None:
        """Let *promotion* be line *number* of an alias' history; SpotmpiError where another one is."""
        place = f"{self._aliases}/{alias}/{number:06d}"
        if not self._storage.write(place, msgspec.json.encode(promotion) + b"\n", exclusive=True):
            other = self.history(alias)[-1]
            named = f"{self._name}:{other.version}" if other.version else "no version"
            remedy = "look at it, then promote again"
            raise SpotmpiError(f"{self._name}:{alias} was changed by {other.by} meanwhile, and names {named}: {remedy}")

    def last(self, alias: str) -> int:
        """The number of the last line of an alias' history; 0 without one."""
        return int((self._numbered(f"{self._aliases}/{alias}") or ["0"])[-1])


def current(aliases: Mapping[str, Sequence[Promotion]], version: int) -> Sequence[str]:
    """Those of *aliases* that name a version now."""
    return [alias for alias, past in aliases.items() if past[-1].version == version]


def require_alias(alias: str) -> None:
    """InputError for what cannot be an alias."""
    if not _ALIAS.fullmatch(alias):
        raise input_error("alias", alias, "use up to 50 letters, digits, '_' and '-'; a letter is first")
