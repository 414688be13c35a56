"""Tokens that are renewed, and the programs that print them (client-go's exec credential plugins)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator

import httpx2
from lightkube.config.client_adapter import ExecAuth
from lightkube.config.models import UserExec
from lightkube.core.exceptions import ConfigError

ACCESS = "spotmpi.access"  # the extension of a request with the `RenewedToken` that signed it
_QUIET = 2.0  # seconds for which what a program writes for people is held back: most log in silently, or fail
_LIFETIME = 10 * 60.0  # seconds after which the program is asked again: somebody may have logged in as another user
_END_TIMEOUT = 1.0  # seconds that a killed program may take, whose own children may hold its output
_POLL_INTERVAL = 0.05  # seconds
_LINES = 20  # of errors that are kept


class RenewedToken(httpx2.Auth):
    """A token that a cluster may refuse at any time: the sleep of a machine can stop our clock, but delays no end."""

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """The request with the token, and with a new one if the cluster does not accept that."""
        request.extensions[ACCESS] = self
        used = request.headers["Authorization"] = await self._bearer()
        response = yield request
        if response.status_code == 401:
            request.headers["Authorization"] = await self._bearer(refused=used)
            yield request

    async def _bearer(self, refused: str = "") -> str:
        """The header with the token, another one than *refused*."""
        raise NotImplementedError

    def refusal(self) -> str | None:
        """Why the cluster accepts no such token, where that is known."""
        return None


class ExecLogin(RenewedToken, ExecAuth):
    """The token of one login program, which a process starts once for all its clients; ConfigError without a token.

    What the program writes to standard error is shown while it takes its time: it may ask somebody to open a page.
    """

    def __init__(self, program: UserExec) -> None:
        super().__init__(program)
        self._lock = threading.Lock()  # clients may be in several threads and event loops
        self._since = 0.0

    async def _bearer(self, refused: str = "") -> str:
        while not self._lock.acquire(blocking=False):
            await asyncio.sleep(_POLL_INTERVAL)
        try:
            is_old = time.monotonic() - self._since > _LIFETIME
            if self._last_bearer is None or self._last_bearer == refused or is_old:
                self._last_bearer = f"Bearer {await self._token()}"
                self._since = time.monotonic()
            return self._last_bearer
        finally:
            self._lock.release()

    async def _token(self) -> str:
        command = self._exec.command
        try:
            return str(json.loads(await self._output())["status"]["token"])
        except OSError as error:
            hint = f": {self._exec.installHint}" if self._exec.installHint else ""
            raise ConfigError(f"cannot start the login program {command} ({error.strerror}){hint}") from error
        except (ValueError, KeyError, TypeError) as error:
            remedy = "client certificates from login programs are not supported"
            raise ConfigError(f"the login program {command} printed no token; {remedy}") from error

    async def _output(self) -> bytes:
        """What the program prints; a caller that is cancelled ends it."""
        (command, *arguments), variables = self._prepare()
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(command, *arguments, env=variables, stdout=pipe, stderr=pipe)
        assert process.stdout and process.stderr
        errors: deque[str] = deque(maxlen=_LINES)
        try:
            _, output = await asyncio.gather(_show(command, process.stderr, errors), process.stdout.read())
            code = await process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):  # or what it has open outlives the event loop
                await asyncio.wait_for(process.wait(), _END_TIMEOUT)
            raise
        if code:
            raise ConfigError(f"the login program {command} failed (exit code {code}): {' '.join(errors)}")
        return output


async def _show(command: str, stream: asyncio.StreamReader, kept: deque[str]) -> None:
    """Keep the newest lines of *stream*; all of them are shown on standard error once the program has run a while."""
    reading = asyncio.create_task(stream.readline())
    until: float | None = time.monotonic() + _QUIET
    try:
        while True:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            done, _ = await asyncio.wait({reading}, timeout=timeout)
            if not done:
                wait = f"spotmpi: waiting for the login program {command} (Ctrl-C ends it)"
                print(wait, *kept, sep="\n", file=sys.stderr, flush=True)
                until = None
                continue
            if not (line := reading.result()):
                return
            text = line.decode("utf-8", "replace").rstrip()
            kept.append(text)
            if until is None:
                print(text, file=sys.stderr, flush=True)
            reading = asyncio.create_task(stream.readline())
    finally:
        reading.cancel()


_logins: dict[str, ExecLogin] = {}  # of this process, as its clients are many


def login_of(program: UserExec) -> ExecLogin:
    """The login by a program with its arguments and variables, the same one for all clients of this process."""
    return _logins.setdefault(repr(program), ExecLogin(program))
