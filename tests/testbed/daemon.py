"""Programs that run during tests: started, watched, stopped, and ended with the tests unless configured otherwise."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.errors import TestbedError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOG_LINES_SHOWN = 15


@dataclass
class Daemon:
    """One background program; its output goes to `<folder>/logs/<name>.log`.

    `outlives_us` is for a cluster that a developer starts by hand; otherwise the kernel kills the program with us.
    """

    name: str
    arguments: Sequence[object]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    outlives_us: bool = False
    inherited_files: Sequence[int] = ()
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Return the file that holds everything the program printed."""
        return self.folder / "logs" / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """Return the process id while the program runs, else None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the program; it goes on appending to the same log after a restart."""
        if self.pid is not None:
            raise TestbedError(f"{self.name} is already running as process {self.pid}; stop it first")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        leash = [] if self.outlives_us else ["setpriv", "--pdeathsig", "KILL"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*leash, *map(str, self.arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": SYSTEM_PATH, "HOME": str(self.folder), **self.environment},
                cwd=self.folder,
                start_new_session=True,
                pass_fds=self.inherited_files,
            )

    def stop(self, limit: float = 10.0) -> None:
        """End the program by SIGTERM, after `limit` seconds by SIGKILL; nothing happens where it is gone."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End the program by SIGKILL, as a crash would."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(10)
        self._process = None

    @contextlib.contextmanager
    def running(self, probe: Callable[[], str], limit: float) -> Iterator[None]:
        """Have it running during the block, ready by then; it is killed at the end."""
        self.start()
        try:
            self.wait_until_ready(probe, limit)
            yield
        finally:
            self.kill()

    def wait_until_ready(self, probe: Callable[[], str], limit: float) -> None:
        """Wait until `probe` returns "" instead of a reason; TestbedError after `limit` seconds or at its end."""
        wait_until(self.name, probe, limit, self)

    def explain(self) -> str:
        """Return the program's state and the last lines of its log."""
        state = "is running"
        if self.pid is None:
            state = f"ended with {self._process.returncode}" if self._process else "is not running"
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:] if self.log.exists() else []
        return "\n  ".join([f"{self.name} {state}; end of {self.log}:", *lines])


def wait_until(what: str, probe: Callable[[], str], limit: float, *daemons: Daemon) -> None:
    """Wait until `probe` returns "" instead of a reason; TestbedError has the last reason and the daemons' logs."""
    deadline = time.monotonic() + limit
    pause = 0.02
    while reason := probe():
        dead = [daemon for daemon in daemons if daemon.pid is None]
        if dead or time.monotonic() > deadline:
            after = "because a program ended" if dead else f"after {limit:g} s"
            logs = "\n".join(daemon.explain() for daemon in dead or daemons)
            raise TestbedError(f"{what} is not ready {after}: {reason}\n{logs}".rstrip())
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
