"""Processes that mpirun starts on other nodes by the agents, in place of ssh."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import launchers
from spotmpi.agent.launchers import LAUNCHERS, OpenMpi, Remote, Start
from spotmpi.agent.remote_processes import SCRIPT, StartedProcesses, StartServer
from spotmpi.images import environment as image_environment


class Nodes:
    """Node 0 and node 1 on this machine, named here and elsewhere.example; a thread passes messages on."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "start.sock")
        self.is_connected = True
        self.sent: list[dict[str, Any]] = []
        self.server = StartServer(self.socket, ["here", "elsewhere.example"], self._send)
        self.processes = StartedProcesses(str(folder), lambda **message: self.server.relay(message))
        self._over = threading.Event()
        self._requests: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._tend)
        self._thread.start()

    @property
    def command(self) -> list[str]:
        """What mpirun starts in place of ssh."""
        return [sys.executable, "-I", "-S", SCRIPT, self.socket]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*self.command, *arguments], stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a command."""
        with self.start(*arguments) as process:
            output, errors = process.communicate(timeout=60)
            assert not output
            return process.returncode, errors

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for process in self.processes._running.values():
            os.killpg(process.pid, signal.SIGKILL)
        self.processes.clear()

    def _send(self, node: int, **message: Any) -> bool:
        self.sent.append({"node": node, **message})
        if self.is_connected:
            self._requests.append(message)
        return self.is_connected

    def _tend(self) -> None:
        while not self._over.wait(0.005):
            while self._requests:
                request = self._requests.pop(0)
                self.processes.start(request["start"], request["command"])
            self.processes.supervise()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.close()


@pytest.mark.parametrize("host", ["elsewhere.example", "elsewhere"])
def test_output_and_exit_code_of_a_command_on_another_node_come_back(nodes: Nodes, host: str) -> None:
    assert nodes.run(host, "echo", "é;", "echo error >&2; read line; echo $?;", "exit 7") == (7, "é\nerror\n1\n")
    assert [each["node"] for each in nodes.sent] == [1]


def test_a_command_that_is_killed_ends_as_a_shell_says_and_much_output_arrives_in_order(nodes: Nodes) -> None:
    code, output = nodes.run("elsewhere", "seq 50000; kill -9 $$")
    assert code == 137
    assert output.split() == [str(number) for number in range(1, 50001)]


def test_a_daemon_that_stays_behind_lets_the_command_end(nodes: Nodes, tmp_path: Path) -> None:
    assert nodes.run("elsewhere", f"sleep 60 & echo $! > {tmp_path}/daemon") == (0, "")
    os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)


def test_several_commands_run_at_once_and_those_of_an_attempt_that_is_over_end(nodes: Nodes) -> None:
    with nodes.start("elsewhere", "echo up; sleep 60") as first:
        assert first.stderr and first.stderr.readline() == "up\n"
        assert nodes.run("elsewhere", "true") == (0, "")
        nodes.server.begin(["here", "elsewhere.example"])
        assert first.wait(60) == 255
        assert "elsewhere: the agent of this node has ended the attempt" in first.stderr.read()


def test_a_node_has_the_name_of_the_pod_that_does_its_work_in_this_attempt(nodes: Nodes) -> None:
    nodes.server.begin(["here", "promoted.example"])
    assert nodes.run("promoted", "echo started") == (0, "started\n")
    assert nodes.run("elsewhere", "true") == (255, "node elsewhere is not connected\n")


def test_a_node_that_cannot_be_reached_is_named(nodes: Nodes, tmp_path: Path) -> None:
    assert nodes.run("nowhere", "true") == (255, "node nowhere is not connected\n")
    nodes.is_connected = False
    assert nodes.run("elsewhere", "true") == (255, "node elsewhere is not connected\n")
    nodes.socket = str(tmp_path / "gone")
    code, output = nodes.run("elsewhere", "true")
    assert code == 255 and output.startswith("no process can be started on elsewhere: ")


@pytest.mark.parametrize("data", [b"", b"nonsense\n", b"[1]\n", b'{"host": "elsewhere"}\n'])
def test_what_is_no_request_is_not_answered(nodes: Nodes, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(nodes.socket)
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(10) == b""
    assert nodes.run("elsewhere", "true") == (0, "")


def _open_mpi(family: int) -> str:
    path = image_environment.prepare("chainermn") / "bin" / "mpirun" if family == 5 else Path("/usr/bin/mpirun")
    if not path.is_file():
        pytest.skip(f"Open MPI {family} is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    if launchers.family(version) != family:
        pytest.skip(f"{path} is not Open MPI {family}")
    return str(path)


@pytest.mark.parametrize("family", [4, pytest.param(5, marks=[pytest.mark.images, pytest.mark.smoke])])
def test_a_real_mpirun_starts_its_daemon_on_another_node_by_the_agents(
    nodes: Nodes, family: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    (tmp_path / "hosts").write_text(f"{socket.gethostname()} slots=1\nelsewhere slots=1\n")
    remote = Remote(str(tmp_path / "hosts"), launchers.by_agent(nodes.command), "lo")
    mpi = OpenMpi(_open_mpi(family), family, root=True, remote=remote)
    command = LAUNCHERS["mpirun"].arguments(Start(2, 1, mpi=mpi))

    result = subprocess.run([*command, "echo", "rank"], capture_output=True, text=True, timeout=60)

    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.replace(":rank", ": rank") for line in result.stdout.splitlines()]
    assert sorted(lines) == ["[1,0]<stdout>: rank", "[1,1]<stdout>: rank"]
    (request,) = nodes.sent
    assert ("prted" if family == 5 else "orted") in request["command"]


def test_nonsense_ends_no_later_start(nodes: Nodes) -> None:
    """Any process of the pod may write to the socket; without the thread that reads it, mpirun would start no more."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(nodes.socket)
        client.sendall(b"[" * 60_000 + b"\n")
        assert client.recv(10) == b""
    assert nodes.run("elsewhere", "true") == (0, "")


def test_a_request_of_a_process_that_has_ended_starts_nothing(nodes: Nodes) -> None:
    """It is read late: mpirun was killed with its attempt, and the next attempt has begun."""
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as client:
        for each in (silent, client):
            each.connect(nodes.socket)
        client.sendall(b'{"host": "elsewhere", "command": "true"}\n')
        client.shutdown(socket.SHUT_WR)
        silent.close()  # only now the next request is read
        assert client.recv(10) == b""
    assert nodes.sent == []
    assert nodes.run("elsewhere", "true") == (0, "")
