"""How tests start training programs: inside an image's environment, under its own launchers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import launchers, protocol
from spotmpi.checkpoint.state import decode

PROJECT = Path(__file__).resolve().parents[2]


@dataclass
class RunningProgram:
    """A program that runs: its lines as they come, and how it ended."""

    process: subprocess.Popen[str]
    mark: str  # in the environment of all its processes
    printed: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Protocol lines until the program's output ends."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line = protocol.decode(text)
            if line is None:
                self.plain.append(text.rstrip("\n"))
            else:
                self.printed.append(line)
                yield line

    def until(self, kind: str, times: int = 1) -> dict[str, Any]:
        """The values of the next line of *kind*, or of the one so many *times* on."""
        for kind_, values in self.lines():
            if kind_ == kind:
                times -= 1
                if not times:
                    return values
        pytest.fail(f"the program ended without saying {kind}:\n{self.text()}")

    def end(self) -> int:
        """Read to the end; the exit code."""
        for _ in self.lines():
            continue
        return self.process.wait(timeout=60)

    def succeed(self) -> RunningProgram:
        """Read to the end, which has to be a success."""
        assert self.end() == 0, self.text()
        return self

    def refusal(self) -> str:
        """Read to the end, which has to be one for good; its reason, in place of a traceback."""
        assert self.end() == protocol.NOT_RETRYABLE, self.text()
        assert not any("Traceback" in line for line in self.plain), self.text()
        return str(self.one(protocol.FATAL)["reason"])

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The values of every line of *kind* so far."""
        return [values for kind_, values in self.printed if kind_ == kind]

    def one(self, kind: str) -> dict[str, Any]:
        """The values of the only line of *kind*."""
        values = self.all(kind)
        assert len(values) == 1, f"{len(values)} lines of {kind}:\n{self.text()}"
        return values[0]

    def text(self) -> str:
        """Everything that was printed, for a failing test's message."""
        return "\n".join([*self.plain, *(f"{kind} {json.dumps(values)}" for kind, values in self.printed)])

    def ranks(self) -> list[int]:
        """Process ids of the ranks, in order of rank."""
        pids = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                items = (folder / "environ").read_text().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            variables = dict(item.split("=", 1) for item in items if "=" in item)
            rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("RANK"))
            if variables.get("SPOTMPI_TEST_START") == self.mark and rank and _is_rank(folder):
                pids[int(rank)] = int(folder.name)
        return [pids[rank] for rank in sorted(pids)]

    def kill_rank(self, rank: int) -> None:
        """SIGKILL to one rank."""
        os.kill(self.ranks()[rank], signal.SIGKILL)


def _is_rank(folder: Path) -> bool:
    return b"spotmpi.programs.loader" not in (folder / "cmdline").read_bytes()


class Image:
    """The environment of one image, able to start programs."""

    def __init__(self, name: str, place: Path, scratch: Path) -> None:
        self.name = name
        self.place = place
        self._scratch = scratch  # of mpirun
        self._started: list[RunningProgram] = []

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.place / "bin" / "python")

    def mpirun(self, ranks: int, *arguments: str, **environment: str) -> RunningProgram:
        """*arguments* for Python, on so many ranks."""
        start = [str(self.place / "bin" / "mpirun"), "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
        session = launchers.session_environment(str(self._scratch / uuid.uuid4().hex))
        return self.start([*start, self.python, *arguments], **session, **environment)

    def torchrun(self, ranks: int, *arguments: str, **environment: str) -> RunningProgram:
        """*arguments* for Python, on so many processes of one agent."""
        start = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        start += ["--max-restarts", "0"]
        return self.start([*start, *arguments], **environment)

    def alone(self, *arguments: str, **environment: str) -> RunningProgram:
        """*arguments* for Python, without a launcher."""
        return self.start([self.python, *arguments], **environment)

    def program(self, name: str) -> list[str]:
        """The arguments for Python that run a program of this image."""
        return ["-m", f"spotmpi.programs.{self.name}.{name}"]

    def start(self, command: list[str], **environment: str) -> RunningProgram:
        """*command* in a group of its own, which ends with the test."""
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=PROJECT,
            env={**_clean_environment(), "SPOTMPI_TEST_START": mark, **environment},
            start_new_session=True,
        )
        started = RunningProgram(process, mark)
        self._started.append(started)
        return started

    def end_all(self) -> None:
        """Kill what still runs."""
        for started in self._started:
            if started.process.poll() is None:
                os.killpg(started.process.pid, signal.SIGKILL)
                started.process.wait()
            assert started.process.stdout is not None
            started.process.stdout.close()
        self._started.clear()


def _clean_environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPOTMPI_", "OMPI_"))}
    return {
        **inherited,
        "PYTHONPATH": str(PROJECT / "jobs"),
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_btl": "^ofi",  # as runs of spotmpi
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


@contextmanager
def prepared_image(name: str) -> Iterator[Image]:
    """The image with its environment, installed where it is missing; no program of it outlives the block."""
    from spotmpi.images.environment import prepare

    with tempfile.TemporaryDirectory(prefix="spotmpi-") as scratch:
        image = Image(name, prepare(name), Path(scratch))
        yield image
        image.end_all()


@pytest.fixture
def chainermn() -> Iterator[Image]:
    """The ChainerMN image."""
    with prepared_image("chainermn") as image:
        yield image


@pytest.fixture
def pytorch() -> Iterator[Image]:
    """The PyTorch image."""
    with prepared_image("pytorch") as image:
        yield image


@pytest.fixture(params=["chainermn", "pytorch"])
def image(request: pytest.FixtureRequest) -> Iterator[Image]:
    """Each of the images."""
    with prepared_image(request.param) as image:
        yield image


def newest_state(folder: Path, prefix: str = "parameters/") -> dict[str, Any]:
    """The arrays below *prefix* in the newest checkpoint of *folder*."""
    path = max(folder.glob("iteration-*")) / "state.safetensors"
    return {name: value for name, value in decode(bytearray(path.read_bytes())).items() if name.startswith(prefix)}


@pytest.fixture
def python_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code in this environment, as a process of its own."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**_clean_environment(), **environment},
            timeout=60,
        )

    return run
