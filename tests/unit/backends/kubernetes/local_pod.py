"""A pod with the run volume whose programs run on this machine, on a folder in place of the volume."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from spotmpi.agent.store import TAIL
from spotmpi.backends.kubernetes.volume_access import VolumeAccess
from spotmpi.core.errors import SpotmpiError


class Pod(VolumeAccess):
    """Runs what a pod would run, on a local folder in place of the volume; fails where a test scripts it."""

    def __init__(self, volume: Path) -> None:
        self.volume, self.pod = volume, "spotmpi-volume"
        self.failures: list[str] = []  # verbs that fail once each
        self.torn: list[str] = []  # verbs whose output is cut off in the middle, once each
        self.meanwhile: dict[str, Callable[[], None]] = {}  # what others do to the volume before a verb, once each
        self.lost = 0  # bytes at the end of every answer that were in pipes when the command ended

    async def _execute(self, command: Sequence[str], stdin: BinaryIO | None, stdout: BinaryIO | None) -> None:
        python, *rest = (part.replace("/spotmpi/volume", str(self.volume)) for part in command)
        assert python == "python3"
        words, verb = [sys.executable, *rest], rest[4]
        self.meanwhile.pop(verb, lambda: None)()
        data = stdin.read() if stdin else b""
        if verb in self.failures:
            self.failures.remove(verb)
            data = data[: len(data) // 2]  # the connection breaks in the middle
        result = await asyncio.to_thread(subprocess.run, words, input=data, capture_output=True)
        if result.returncode:
            raise SpotmpiError(f"could not access the files on the run volume: {result.stderr.decode().strip()}")
        if stdout:
            output = result.stdout[: len(result.stdout) - self.lost]
            half = self.torn.pop(self.torn.index(verb)) if verb in self.torn else ""
            stdout.write(output[: (len(output) - TAIL) // 2] if half else output)
