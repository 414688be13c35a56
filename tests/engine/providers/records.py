"""The resources of the stand-in cloud and their references; a request that breaks a rule is refused."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.engine.providers.schema import UNKNOWN

ACCOUNT = "123456789012"


class Refusal(Exception):
    """A request that the real service would refuse; the message is the service's answer."""


@dataclass(frozen=True)
class Record:
    """One thing that exists: its identity, what it was made from, what it answers, and the things it uses.

    What has `failed` exists and is of no use, as a node group whose nodes can't join, or a NAT gateway without address.
    """

    token: str
    id: str
    urn: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    uses: frozenset[str] = frozenset()
    exposed_values: frozenset[str] = frozenset()
    scope: str | None = None
    failed: bool = False

    @property
    def key(self) -> str:
        """What names this record among all; ids alone repeat over types and clusters."""
        return record_key(self.token, self.id, self.scope)


def record_key(token: str, identity: str, scope: str | None = None) -> str:
    """The key of the record with this type and id, `scope` a cluster for Kubernetes objects."""
    return f"{token} {identity}" + (f" in {scope}" if scope else "")


@dataclass
class Records:
    """Everything that exists; refuses what breaks a reference. `without_capacity` are types that can't be had now.

    Every control plane answers at the address `endpoint` with the certificate `authority` (base64), if they are given.
    """

    region: str = "us-east-1"
    endpoint: str | None = None
    authority: str = "Y2VydGlmaWNhdGU="
    without_capacity: set[str] = field(default_factory=set)
    _records: dict[str, Record] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def of(self, token: str) -> list[Record]:
        """All records of a type."""
        return [record for record in self if record.token == token]

    def get(self, token: str, identity: str, scope: str | None = None) -> Record | None:
        """The record with this type and id."""
        return self._records.get(record_key(token, identity, scope))

    def find(self, token: str, path: str, value: str) -> Record | None:
        """The record of a type whose output at `path` is the value; `id` is a path too."""
        for record in self.of(token):
            if value == (record.id if path == "id" else value_at(record.outputs, path)):
                return record
        return None

    def owner_of(self, value: str) -> Record | None:
        """The record that handed out this id, ARN or name."""
        return next((record for record in self if value in record.exposed_values), None)

    def users_of(self, record: Record) -> list[Record]:
        """The records that use this one."""
        return [other for other in self if record.key in other.uses and other.key != record.key]

    def add(self, record: Record) -> None:
        """Hold a new record; one that exists already is refused."""
        if record.key in self._records:
            raise Refusal(f"already exists: {record.key}")
        self._records[record.key] = record

    def change(self, old: Record, **changes: Any) -> Record:
        """Put a changed record in the place of an old one."""
        self._records[old.key] = changed = replace(old, **changes)
        return changed

    def fail(self, record: Record) -> Record:
        """Put one in its place that has failed; those with a status say so (of EKS)."""
        status = {"status": "CREATE_FAILED"} if "status" in record.outputs else {}
        return self.change(record, outputs={**record.outputs, **status}, failed=True)

    def remove(self, record: Record) -> None:
        """Remove a record that no other one uses."""
        if users := self.users_of(record):
            names = ", ".join(sorted(user.key for user in users))
            raise Refusal(f"DependencyViolation: {record.key} has dependencies and cannot be deleted: {names}")
        self.delete(record)

    def delete(self, record: Record) -> None:
        """Let go of a record as if it had vanished by itself, with everything inside it."""
        for other in self:
            if other.scope == record.id or other.key == record.key:
                self._records.pop(other.key, None)

    def restore(self, records: dict[str, Record]) -> None:
        """Hold these records and no others."""
        self._records = dict(records)

    def new_hex(self, salt: str, length: int = 17) -> str:
        """Hexadecimal digits that were never given before and are the same in each run of the same requests."""
        return hashlib.sha256(f"{salt} {next(self._numbers)}".encode()).hexdigest()[:length]


def value_at(value: Any, path: str) -> Any:
    """The value at a dotted path of objects, None where there is none."""
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def values_at(value: Any, path: str) -> list[str]:
    """All known texts at a dotted path; `[]` behind a part goes into each item of a list."""
    values: list[Any] = [value]
    for part in path.split("."):
        name, each = part.removesuffix("[]"), part.endswith("[]")
        values = [item.get(name) for item in values if isinstance(item, dict)]
        if each:
            values = [item for items in values if isinstance(items, list) for item in items]
    return [item for item in values if isinstance(item, str) and item != UNKNOWN]


def texts_in(value: Any) -> Iterator[str]:
    """Every text anywhere in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from texts_in(item)
