"""A cluster whose pods run their commands here, on folders in place of the run volume."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import httpx2

from spotmpi.backends.kubernetes import pull as pulling
from spotmpi.backends.kubernetes.client import api
from spotmpi.backends.kubernetes.volume_access import Volume
from spotmpi.core.names import RunPaths
from tests.unit.backends.kubernetes.watched_cluster import RUN, FakeCluster, Object, api_error

_PIPES = 64 << 10  # bytes of input on their way to a command
VOLUME = Volume("claim", "registry/image:1", ("key",), ({"key": "team", "operator": "Exists"},))


class VolumeCluster(FakeCluster):
    """A cluster whose pods run commands here, on *root* in place of the mounted volume's runs, and `archives` of code.

    Where the connection is cut off, a command gets the end of its input after `cut_off` bytes and goes on by itself,
    and its caller an error: containerd closes the input of a command when the connection ends, whatever the reason
    (pkg/cri/io/exec_io.go, StdinOnce), and nobody ends the command (github.com/kubernetes/kubernetes/issues/89031).

    A run that goes on changes its folder while it is read: `meanwhile` happens once a command has begun to answer. It
    has then come no further than pipes hold (64 KiB, pipe(7)), so a file of some MiB is being read.

    A command has to read its input to the end, or exec never returns (seen with Kubernetes 1.35 and containerd 1.6 for
    more than 128 KiB; kubectl waits as well).

    A pod that has `ended` shows as running until its kubelet reports the end of its container, and runs no command
    meanwhile (seen with Kubernetes 1.35, up to a second).
    """

    def __init__(self, root: Path, pods: Sequence[Object] = (), phases: Sequence[str] = ("Pending", "Running")) -> None:
        super().__init__(pods)
        self.root, self.archives = root, root.parent / "archives"
        self.phases = list(phases)
        self.events: list[Object] = []
        self.commands: list[tuple[str, Sequence[str]]] = []
        self.claim: Object | None = {"metadata": {"name": "claim", "uid": "7"}}
        self.cut_off: int | None = None  # bytes of input after which the next connection with so many breaks
        self.meanwhile: Callable[[], None] | None = None
        self.torn_before: bytes | None = None  # where answers end too early
        self.ended: set[str] = set()

    async def create(self, values: Object, dry_run: bool = False) -> Object:
        self.created.append(values)
        return values

    async def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        self._raise(kind)
        if kind == api.CLAIM:
            return self.claim
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        return {"metadata": {"name": name}, "status": {"phase": phase}} if phase else None

    async def list(self, kind: str, labels: Any = None, about: str | None = None) -> list[Object]:
        if kind != api.EVENT:
            return await super().list(kind, labels)
        return [event for event in self.events if event["involvedObject"]["name"] == about]

    async def delete(self, kind: str, name: str, wait: bool = False, now: bool = False) -> None:
        self.deleted.append(name)

    async def stream(
        self, name: str, command: Sequence[str], stdin: BinaryIO | None, stdout: BinaryIO | None
    ) -> tuple[int, str]:
        if name in self.ended:
            raise api_error(500, 'Internal error occurred: unable to upgrade connection: container not found ("node")')
        data = stdin.read() if stdin else b""
        if self.cut_off is not None and len(data) > self.cut_off:
            self._run(name, command, data[: self.cut_off])
            self.cut_off = None
            raise httpx2.ReadError("the connection into the pod broke off")
        process = self._run(name, command, data)
        if stdout:
            output = process.stdout
            stdout.write(output if self.torn_before is None else output.partition(self.torn_before)[0])
        return process.returncode, process.stderr.decode()

    async def execute(self, name: str, command: Sequence[str]) -> str:
        return self._run(name, command, b"").stdout.decode()

    def _run(self, name: str, command: Sequence[str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        self.commands.append((name, command))
        places = {
            "/spotmpi/volume/runs": str(self.root),
            "/spotmpi/volume/code": str(self.archives),
            "/tmp/spotmpi": str(self.root.parent / "code"),
        }
        arguments = [sys.executable if part == "python3" else part for part in command]
        for place, path in places.items():
            arguments = [part.replace(place, path) for part in arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            with subprocess.Popen(arguments, bufsize=0, stdin=file, **pipes) as process:  # type: ignore[call-overload]
                first = process.stdout.read(1) if self.meanwhile else b""
                if self.meanwhile:
                    self.meanwhile()
                output, errors = process.communicate()
            unread = len(stdin) - os.lseek(file.fileno(), 0, os.SEEK_CUR)
            assert unread <= _PIPES, "exec would never return"
        return subprocess.CompletedProcess(arguments, process.returncode, first + output, errors)


def recorded_run(volume: Path) -> RunPaths:
    """A run folder as agents leave it on a volume."""
    paths = RunPaths(volume / RUN)
    files = [
        (paths.events, json.dumps({"t": time.time(), "event": "succeeded"}) + "\n"),
        (paths.spec, 'command = ["x"]\n'),
        (paths.checkpoints / "7" / "model.npz", "weights"),
    ]
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}.000000Z 0 o hello\n"
    for path, text in [*files, (paths.logs / "1" / "node-0.log", line)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths


def pull(cluster: VolumeCluster, paths: RunPaths) -> list[str]:
    messages: list[str] = []
    asyncio.run(pulling.pull(cluster, paths, VOLUME, messages.append))  # type: ignore[arg-type]
    return messages
