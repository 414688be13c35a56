"""The faults that a test injects into the stand-ins, and the journal of their calls."""

import threading
import time
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from tests.engine.providers.records import Refusal

CHANGES = ("create", "update", "delete")


@dataclass(frozen=True)
class Call:
    """One request: seconds since the start, method, type and name of the resource, and the refusal if any."""

    at: float
    method: str
    token: str
    name: str
    preview: bool = False
    refused: str | None = None


@dataclass
class Fault:
    """Calls that fail or take long: of type and method, from the `nth` match on, `times` times.

    With `after_success` they do so once the thing is done, as a provider that waits for what it has asked for; with
    `incomplete` the provider names it as well, so that it is in the state, with an error.
    With `once_made` they wait until something of that type was created, at most a minute.
    """

    token: str
    method: str
    name: str = "*"
    nth: int = 1
    times: int = 1
    seconds: float = 0.0
    message: str | None = None
    after_success: bool = False
    incomplete: bool = False
    once_made: str | None = None
    matched: int = 0

    def matches(self, method: str, token: str, name: str) -> bool:
        """Whether this call is one of those; counts it if it matches."""
        if method != self.method or not fnmatch(token, self.token) or not fnmatch(name, self.name):
            return False
        self.matched += 1
        return self.nth <= self.matched < self.nth + self.times


@dataclass
class Script:
    """The faults to come and the calls that were; once it is `over` nothing is slow any more."""

    faults: list[Fault] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    _start: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, method: str, token: str, **more: Any) -> Fault:
        """Let a coming call fail."""
        return self._plan(Fault(token, method, message=f"InternalError: {method}: injected fault", **more))

    def slow(self, method: str, token: str, seconds: float, **more: Any) -> Fault:
        """Let coming calls take `seconds`."""
        return self._plan(Fault(token, method, seconds=seconds, **more))

    def _plan(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def before(self, method: str, token: str, name: str) -> Fault | None:
        """Act out what was planned for this call; gives the fault that comes after the thing was done."""
        with self._lock:
            due = [fault for fault in self.faults if fault.matches(method, token, name)]
        for fault in [each for each in due if not each.after_success]:
            self.wait(fault)
            limit = time.monotonic() + 60.0
            while fault.once_made and not (self._has_made(fault.once_made) or self.over.is_set()):
                if time.monotonic() > limit:
                    break
                self.over.wait(0.01)
            if fault.message:
                raise Refusal(fault.message)
        return next((fault for fault in due if fault.after_success), None)

    def wait(self, fault: Fault) -> None:
        """Take as long as the fault says, which a test may shorten meanwhile."""
        start = time.monotonic()
        while time.monotonic() - start < fault.seconds and not self.over.wait(0.05):
            pass

    def record(self, method: str, token: str, name: str, preview: bool, refused: str | None) -> None:
        """Write one call down."""
        with self._lock:
            self.calls.append(Call(time.monotonic() - self._start, method, token, name, preview, refused))

    def changes(self) -> list[Call]:
        """The calls that changed something, in order."""
        return [call for call in self.calls if call.method in CHANGES and not call.preview and not call.refused]

    def _has_made(self, token: str) -> bool:
        return any(call.method == "create" and call.token == token for call in self.changes())
