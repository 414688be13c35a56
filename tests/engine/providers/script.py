"""The faults that a test injects into the stand-ins, and the journal of their calls."""

import threading
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from tests.engine.providers.records import Refusal

CHANGES = ("create", "update", "delete")


@dataclass(frozen=True)
class Call:
    """One request: method, type and name of the resource, and the refusal if any."""

    method: str
    token: str
    name: str
    preview: bool = False
    refused: str | None = None


@dataclass
class Fault:
    """Calls that fail or take long: of type and method, from the `nth` match on, `times` times.

    With `after_success` a call fails only after the thing was done.
    """

    token: str
    method: str
    nth: int = 1
    times: int = 1
    seconds: float = 0.0
    message: str | None = None
    after_success: bool = False
    matched: int = 0

    def matches(self, method: str, token: str) -> bool:
        """Whether this call is one of those; counts it if it matches."""
        if method != self.method or not fnmatch(token, self.token):
            return False
        self.matched += 1
        return self.nth <= self.matched < self.nth + self.times


@dataclass
class Script:
    """The faults to come and the calls that were; once it is `over` nothing is slow any more."""

    faults: list[Fault] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, method: str, token: str, **more: Any) -> Fault:
        """Let a coming call fail; `more` are fields of the fault."""
        self.faults.append(Fault(token, method, message=f"InternalError: {method}: injected fault", **more))
        return self.faults[-1]

    def slow(self, method: str, token: str, seconds: float, times: int) -> Fault:
        """Let coming calls take `seconds`."""
        self.faults.append(Fault(token, method, seconds=seconds, times=times))
        return self.faults[-1]

    def before(self, method: str, token: str) -> Fault | None:
        """Act out what was planned for this call; gives the fault that fails after the thing was done."""
        with self._lock:
            due = [fault for fault in self.faults if fault.matches(method, token)]
        for fault in due:
            self.over.wait(fault.seconds)
            if fault.message and not fault.after_success:
                raise Refusal(fault.message)
        return next((fault for fault in due if fault.message), None)

    def record(self, method: str, token: str, name: str, preview: bool, refused: str | None) -> None:
        """Write one call down."""
        with self._lock:
            self.calls.append(Call(method, token, name, preview, refused))

    def changes(self) -> list[Call]:
        """The calls that changed something, in order."""
        return [call for call in self.calls if call.method in CHANGES and not call.preview and not call.refused]

    def changed(self, method: str) -> list[tuple[str, str]]:
        """Type and name of everything that was created, updated or deleted, in order."""
        return [(call.token, call.name) for call in self.changes() if call.method == method]
