"""The objects behind a fake Kubernetes API, with a version for each change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.cloud.json_values import copied

Object = dict[str, Any]
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


class Key(NamedTuple):
    """Where an object is; cluster-wide kinds have no namespace."""

    plural: str
    namespace: str
    name: str


class Change(NamedTuple):
    """A change that watches report."""

    version: int
    kind: str
    key: Key
    item: Object


@dataclass
class Store:
    """Objects by key; *changed* is notified of each change.

    Each change has a version that is higher than any before, and becomes the object's ``resourceVersion``. What was
    forgotten of the history (etcd's compaction) cannot be watched any more: who asks for it gets 410
    (https://kubernetes.io/docs/reference/using-api/api-concepts/, Resource versions).
    """

    objects: dict[Key, Object] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    version: int = 1
    oldest: int = 0  # versions before this one are forgotten
    changed: threading.Condition = field(default_factory=threading.Condition)
    _uids: Iterator[int] = field(default_factory=itertools.count)
    _is_recording: bool = True

    def put(self, key: Key, item: Object) -> Object:
        """Create an object or replace it; the object with its version, and a uid if it had none."""
        with self.changed:
            kind = MODIFIED if key in self.objects else ADDED
            item = copied(item)
            if kind == MODIFIED:
                item["metadata"]["uid"] = self.objects[key]["metadata"]["uid"]
            item["metadata"].setdefault("uid", f"uid-{next(self._uids)}")
            self.objects[key] = item
            self._record(kind, key)
            return item

    def remove(self, key: Key) -> None:
        """Delete an object and all that it owns, if it is there."""
        with self.changed:
            if key not in self.objects:
                return
            uid = self.objects[key]["metadata"]["uid"]
            self._record(DELETED, key)
            del self.objects[key]
            for each in [each for each, item in self.objects.items() if _is_owned_by(item, uid)]:
                self.remove(each)

    def select(self, fits: Callable[[Key, Object], bool]) -> list[tuple[Key, Object]]:
        """The objects that fit, by name."""
        with self.changed:
            return sorted((key, item) for key, item in self.objects.items() if fits(key, item))

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Changes in the context are in no history: every watch has to list anew."""
        with self.changed:
            self._is_recording = False
            try:
                yield
            finally:
                self._is_recording = True
                self.version += 1
                self.history, self.oldest = [], self.version
                self.changed.notify_all()

    def _record(self, kind: str, key: Key) -> None:
        self.version += 1
        item = self.objects[key]
        item["metadata"]["resourceVersion"] = str(self.version)
        if self._is_recording:
            self.history.append(Change(self.version, kind, key, copied(item)))
        self.changed.notify_all()


def _is_owned_by(item: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", ()))
