"""A run volume in a fake cluster: commands in its pods run on this machine, on a folder in place of the volume."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from spotmpi.agent.store import TAIL
from spotmpi.backends.kubernetes import pull as pulling
from spotmpi.backends.kubernetes.volume_access import VolumeAccess
from spotmpi.core.names import RunPaths
from spotmpi.plan.pods import PYTHON
from spotmpi.plan.volume_pod import Volume
from tests.cloud.cluster.answers import Request
from tests.cloud.cluster.fake_cluster import FakeCluster, Output
from tests.cloud.cluster.objects import RUN, a_pod, of_kind
from tests.forked_python import ForkedPython

# What the programs of commands import.
_IMPORTS = ("contextlib", "errno", "hashlib", "json", "shutil", "stat", "tarfile", "time", "typing", "uuid", "zlib")
_Started = tuple[ForkedPython | subprocess.Popen[bytes], IO[bytes], IO[bytes]]
_PIPES = 64 << 10  # bytes of input on their way to a command
VOLUME = Volume("claim", "registry/image:1", ("key",), ({"key": "team", "operator": "Exists"},))


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """A disk that takes no file of more than *size* bytes, by setrlimit(2): a write fails as for lack of room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class FakeVolume:
    """The volume's runs are in *root*, `archives` of code and its store beside it; a created pod goes through `phases`.

    A run that goes on changes its folder while it is read: `meanwhile` happens once a command has begun to answer. It
    has then come no further than pipes hold (64 KiB, pipe(7)), so a file of some MiB is being read.

    A command has to read its input to the end, or exec never returns (seen with Kubernetes 1.35 and containerd 1.6 for
    more than 128 KiB; kubectl waits as well).
    """

    def __init__(self, cluster: FakeCluster, root: Path, phases: Sequence[str] = ("Pending", "Running")) -> None:
        self.cluster, self.root, self.archives = cluster, root, root.parent / "archives"
        self.phases = list(phases)  # one at each look at the pod; an empty one: somebody has deleted it
        self.commands: list[tuple[str, Sequence[str]]] = []
        self.meanwhile: Callable[[], None] | None = None
        self.torn_before: bytes | None = None  # where answers end too early
        # Verbs of `agent.store` that happen once each: their input or their answer ends in the middle, or somebody
        # changes the volume before.
        self.failures: list[str] = []
        self.torn: list[str] = []
        self.before: dict[str, Callable[[], object]] = {}
        self.lost = 0  # bytes at the end of every answer that were in pipes when the command ended
        cluster.put(of_kind("PersistentVolumeClaim", VOLUME.claim))
        cluster.run, cluster.on_request = self.run, self._move_on

    @property
    def folder(self) -> Path:
        """The folder in place of the volume."""
        return self.root.parent

    def access(self) -> VolumeAccess:
        """A pod that runs already."""
        self.cluster.put(a_pod("spotmpi-volume", "Running", {}))
        return VolumeAccess(self.cluster.api(), "spotmpi-volume")

    def verbs(self) -> list[str]:
        """The verbs of all commands."""
        return [command[5] for _, command in self.commands if len(command) > 5]

    def run(self, pod: str, command: Sequence[str], stdin: bytes) -> Output:
        """Run a command as a pod would."""
        self.commands.append((pod, command))
        verb = command[5] if len(command) > 5 else ""
        self.before.pop(verb, lambda: None)()
        if verb in self.failures:
            self.failures.remove(verb)
            stdin = stdin[: len(stdin) // 2]
        places = {
            "/spotmpi/volume/runs": str(self.root),
            "/spotmpi/volume/code": str(self.archives),
            "/spotmpi/volume/store": str(self.root.parent / "store"),
            "/tmp/spotmpi": str(self.root.parent / "code"),
            "/spotmpi/volume": str(self.root.parent),
        }
        arguments = list(command)
        for place, path in places.items():
            arguments = [part.replace(place, path) for part in arguments]
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            process, stdout, stderr = self._start(arguments, file)
            with stdout, stderr:
                first = stdout.read(1) if self.meanwhile else b""
                if self.meanwhile:
                    self.meanwhile()
                output = stdout.read()
                code = process.wait()
                stderr.seek(0)
                errors = stderr.read()
            unread = len(stdin) - os.lseek(file.fileno(), 0, os.SEEK_CUR)
            assert unread <= _PIPES, "exec would never return"
        output = (first or b"") + output
        if self.torn_before is not None:
            output = output.partition(self.torn_before)[0]
        output = output[: len(output) - self.lost]
        if verb in self.torn:
            self.torn.remove(verb)
            output = output[: (len(output) - TAIL) // 2]
        return subprocess.CompletedProcess(arguments, code, output, errors)

    def _start(self, arguments: list[str], stdin: IO[bytes]) -> _Started:
        """The process of a command, a pipe with its output, and a file with its errors."""
        errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # which the caller closes
        reading, writing = os.pipe()
        files = stdin.fileno(), writing, errors.fileno()
        try:
            if arguments[:4] == [*PYTHON, "-c"]:
                return ForkedPython(arguments[3:], files, _IMPORTS, PYTHON[1:]), os.fdopen(reading, "rb", 0), errors
            arguments = [sys.executable if part == "python3" else part for part in arguments]
            process = subprocess.Popen(arguments, stdin=files[0], stdout=files[1], stderr=files[2])
            return process, os.fdopen(reading, "rb", 0), errors
        finally:
            os.close(writing)

    def _move_on(self, request: Request) -> None:
        """Move a pod on to its next phase, as its kubelet does."""
        if request.resource != "pods" or request.verb not in ("create", "get"):
            return
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        pod = self.cluster.get("Pod", request.name)
        if phase:
            self.cluster.put({**pod, "status": {"phase": phase}})
        else:
            self.cluster.remove(pod)


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


def pull(cluster: FakeCluster, paths: RunPaths) -> list[str]:
    """Download the run's folder; the messages."""
    messages: list[str] = []
    asyncio.run(pulling.pull(cluster.api(), paths, VOLUME, messages.append))
    return messages
