"""The commands of a client as a laptop with macOS runs them; test_macos.py runs this file under the double."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import json
import os
import pkgutil
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.agent.plan import COORDINATOR
from spotmpi.backends.local.backend import LocalBackend
from spotmpi.core.errors import InputError
from spotmpi.core.names import RunPaths
from spotmpi.runs import reader
from tests.cloud.cluster.fake_cluster import FakeCluster
from tests.command_line import invoke
from tests.unit.cli.terminal import write_spec
from tests.unit.macos import double
from tests.unit.macos.training_cluster import TrainingCluster

COMMAND = {"name": "job", "command": ["python3", "/app/train.py"], "launcher": "none"}  # of the image
REFUSAL = "spotmpi: --on = 'local': runs on this machine need Linux; use --on kubernetes or --on STACK\n"
# What runs in pods, or trains with a framework that an image has.
POD_SIDE = re.compile(r"spotmpi\.programs\.(chainermn|pytorch)\b|spotmpi\.agent\.__main__$")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of its own, with a spec, and a cache folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("SPOTMPI_RUNS", "SPOTMPI_ON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPOTMPI_CACHE", str(tmp_path / "cache"))
    write_spec({**COMMAND, "kubernetes": {"image": "registry/any:1", "volume": "claim"}})
    return tmp_path


@pytest.fixture
def training(cluster: FakeCluster, tmp_path: Path) -> TrainingCluster:
    """The cluster of the current context, which runs what is submitted."""
    return TrainingCluster(cluster, tmp_path / "volume")


def output_of(*arguments: str) -> str:
    """What a command that succeeds prints."""
    code, output, errors = invoke(*arguments)
    assert code == 0, errors
    return output


def submit() -> str:
    """The id of a run on the cluster."""
    return output_of("run", "job.toml", "--on", "kubernetes", "--detach").strip()


# --- the double itself


@pytest.mark.parametrize(
    "use",
    [
        lambda: os.sched_getaffinity(0),
        lambda: os.pidfd_open(1),
        lambda: signal.SIGRTMIN,
        lambda: socket.SO_PEERCRED,
        lambda: ctypes.CDLL(None).prctl,
        lambda: double._require_program(["env", "--chdir", "/"]),
    ],
)
def test_what_macos_lacks_fails(use: Callable[[], Any]) -> None:
    with pytest.raises((AttributeError, AssertionError)):
        use()


def test_spotmpi_finds_no_file_that_macos_lacks_and_starts_no_program() -> None:
    source = (
        "import os, subprocess\n"
        "def found():\n"
        "    for use in (lambda: open('/proc/self/stat'), lambda: os.listdir('/proc'), lambda: os.stat('/dev/shm'),\n"
        "                lambda: subprocess.run(['taskset', '1', 'true'])):\n"
        "        try:\n"
        "            use()\n"
        "        except FileNotFoundError:\n"
        "            continue\n"
        "        return True\n"
        "    return os.access('/proc', os.R_OK) or os.path.exists('/sys')\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, f"{double.PROJECT}/jobs/spotmpi/any.py", "exec"), namespace)
    assert namespace["found"]() is False
    assert Path("/proc/self").exists(), "only spotmpi's own code is on macOS"


# --- what every command imports


def test_every_module_of_the_client_can_be_imported() -> None:
    modules = [each.name for each in pkgutil.walk_packages(spotmpi.__path__, "spotmpi.", onerror=_ignore)]
    for name in modules:
        if not POD_SIDE.search(name):
            importlib.import_module(name)


def _ignore(name: str) -> None:
    """Of a package without its framework: its modules are not the client's."""


# --- runs on this machine


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "job.toml"],
        ["run", "job.toml", "--dry-run"],
        ["run", "--launcher", "mpirun", "--nodes", "2", "--", "python3", "train.py"],
        ["run", "--image", "pytorch", "--", "python", "train.py"],
        ["bench", "job.toml", "--nodes", "1,2"],
    ],
    ids=" ".join,
)
def test_a_run_on_this_machine_is_refused_in_one_line_with_the_remedy(arguments: list[str]) -> None:
    assert invoke(*arguments) == (2, "", REFUSAL)
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_pool_on_this_machine_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match='need Linux; use on="kubernetes"'), spotmpi.pool(workers=2):
        pytest.fail("there is a pool")


# --- runs on a cluster


def test_a_run_is_submitted_followed_and_read(training: TrainingCluster) -> None:
    ended = output_of("run", "job.toml", "--on", "kubernetes")
    (state,) = reader.every(Path("runs"))
    run = state.id
    assert ended.splitlines()[-1] == f"{run} succeeded"
    assert run in output_of("list", "--on", "kubernetes") and "succeeded" in output_of("status", run)
    events = [json.loads(line)["event"] for line in output_of("logs", run, "--json").splitlines()]
    assert events[:2] == ["submitted", "started"] and events[-1] == "succeeded"
    assert run in output_of("list") and "Iterations/s" in output_of("report", run)


def test_a_run_is_stopped_and_its_record_deleted(training: TrainingCluster) -> None:
    training.holds = True
    run = submit()
    assert "running" in output_of("status", run)
    output_of("stop", run, "--now")
    assert "stopped" in output_of("status", run)
    output_of("clean", "--older", "0s", "--yes")
    assert not (Path("runs") / run).exists()


def test_the_folder_of_a_run_is_pulled_from_its_volume(training: TrainingCluster, folder: Path) -> None:
    run = submit()
    checkpoint = folder / "volume" / run / "checkpoints" / "7" / "model.npz"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("weights")
    output_of("pull", run, "--on", "kubernetes")
    assert (Path("runs") / run / "checkpoints" / "7" / "model.npz").read_text() == "weights"


def test_a_study_is_measured_reported_and_its_speed_predicted(training: TrainingCluster) -> None:
    output = output_of("bench", "job.toml", "--on", "kubernetes", "--nodes", "1,2", "--repeats", "1")
    assert "Iterations/s" in output
    output_of("report")
    (page,) = Path("runs").glob("sweeps/*/report/report.html")
    assert "<svg" in page.read_text()
    assert "16" in output_of("predict", "--nodes", "1..16")


def test_a_driver_uses_a_pool_whose_workers_run_on_linux() -> None:
    """The pool was started before the double; its connection is that of a forwarded port: TLS to 127.0.0.1."""
    target = spotmpi.Target("local", Path(os.environ["POOL_RUNS"]))
    with spotmpi.pool(os.environ["POOL_RUN"], on=target) as pool:
        assert list(pool.map(divmod, [7, 9], [2, 4])) == [(3, 1), (2, 1)]
        assert len(pool.workers) == 1


# --- files without locks, as on some network mounts


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Any, operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("without_locks")
def test_a_client_needs_no_lock_of_its_file_system(training: TrainingCluster) -> None:
    output_of("run", "job.toml", "--on", "kubernetes")
    (paths,) = reader.every(Path("runs"))
    output_of("pull", paths.id, "--on", "kubernetes")
    assert "succeeded" in output_of("status", paths.id)
    output_of("bench", "job.toml", "--on", "kubernetes", "--nodes", "1", "--repeats", "1")


# --- programs of this machine


def test_a_shell_opens_in_the_folder_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = RunPaths(folder / "runs" / "it's 50% done")
    paths.folder.mkdir(parents=True)
    paths.events.write_text('{"t": 1.0, "event": "succeeded"}\n')
    monkeypatch.setenv("SHELL", "/bin/pwd")
    words = LocalBackend(folder / "runs").shell(paths.id, COORDINATOR)
    double._require_program(list(words))
    assert subprocess.run(words, capture_output=True, text=True).stdout == f"{paths.folder}\n"


def test_a_spec_is_written_for_a_script_and_for_an_example() -> None:
    Path("train.py").write_text("print(1)\n")
    output_of("init", "new.toml")
    output_of("init", "--example", "cpu")
    assert Path("new.toml").is_file() and Path("cpu.toml").is_file()


def test_a_cluster_needs_no_tool_of_this_machine(training: TrainingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has stubs of python3 that offer to install Xcode, and its mpirun is not that of the pods."""
    started: list[str] = []
    sys.addaudithook(lambda event, words: started.append(words[0]) if event == "subprocess.Popen" else None)
    arguments = ["run", "--on", "kubernetes", "--set", "kubernetes.image='registry/any:1'", "--detach"]
    for launcher in ("mpirun", "torchrun"):
        output_of(*arguments, "--nodes", "2", "--gpu", "1", "--launcher", launcher, "--", "python3", "/app/x.py")
    assert {Path(program).name for program in started} <= {"git", "ssh-keygen"}
