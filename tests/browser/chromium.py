"""A headless Chromium that a test drives over the DevTools pipe: no port, no driver program, nothing to download."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "google-chrome", "chromium-browser")
_OPTIONS = ("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe")
_CONSOLE_EVENTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
_PATIENCE = 60.0  # seconds for any one answer; a loaded machine starts a browser slowly


def program() -> str | None:
    """The browser of this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Page:
    """An open page, with its console output and its requests."""

    tab: Tab
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.tab.call("Runtime.evaluate", {"expression": script, "returnByValue": True})
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        shot = self.tab.call("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))


class Tab:
    """A tab of a running browser."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def show(self, path: Path, width: int, dark: bool) -> Page:
        """Open a file at that width, as wide as a phone's or a desk's screen, in light or dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", screen)
        self._events.clear()
        self.call("Page.navigate", {"url": path.as_uri()})
        page = Page(self)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._message())
        page.evaluate("document.fonts.ready.then(() => 0)")  # all earlier events of the page have arrived by now
        for event in self._events:
            if event["method"] == "Network.requestWillBeSent":
                page.requests.append(event["params"]["request"]["url"])
            elif event["method"] in _CONSOLE_EVENTS:
                page.console.append(json.dumps(event["params"]))
        return page

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to one call; events that come in between are kept."""
        self._last += 1
        request: dict[str, Any] = {"id": self._last, "method": method, "params": params or {}}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._writes, json.dumps(request).encode() + b"\0")
        while (message := self._message()).get("id") != self._last:
            self._events.append(message)
        assert "error" not in message, (method, message["error"])
        return dict(message["result"])

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reads], [], [], max(until - time.monotonic(), 0))
            more = os.read(self._reads, 1 << 20) if ready else b""
            assert more, "the browser does not answer"
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))


@contextlib.contextmanager
def running(profile: Path) -> Iterator[Tab]:
    """A browser with a profile of its own, and a tab in it; gone afterwards."""
    browser = program()
    assert browser, "there is no Chromium: run scripts/browser-packages"
    options = [*_OPTIONS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    their_in, writes = os.pipe()
    reads, their_out = os.pipe()
    # The browser reads its descriptor 3 and writes its 4, wherever ours are.
    command = ["bash", "-c", f'exec "$@" 3<&{their_in} 4>&{their_out}', "bash", browser, *options]
    with subprocess.Popen(
        command, pass_fds=(their_in, their_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        os.close(their_in)
        os.close(their_out)
        try:
            yield Tab(reads, writes)
        finally:
            os.close(writes)
            os.close(reads)
            process.terminate()
            process.wait(30)
