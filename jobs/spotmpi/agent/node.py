"""What every node of a run does, whatever its part: hears notice, runs sshd, gives its ranks their environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Mapping
from types import FrameType
from typing import Any

from . import hardware, launchers, network, pod_context, protocol, ssh, store
from .pod_context import PodContext


class Notice:
    """Whether this pod was told to go away."""

    def __init__(self) -> None:
        self.reason: str | None = None
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGINT, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.reason = "the pod of this node got %s" % signal.Signals(number).name


class Daemon:
    """This pod's sshd, where the launcher needs one."""

    def __init__(self, here: PodContext) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = here.ssh_folder
        if here.plan["launcher"] == "mpirun":
            ssh.lay_out(pod_context.SECRET, here.ssh_folder)
            self._process = ssh.start_daemon(here.ssh_folder)
            if not ssh.wait_until_open():
                raise ssh.KeysWrong("sshd does not start: %s" % _last_line(os.path.join(here.ssh_folder, "sshd.log")))

    def pin(self, addresses: Mapping[str, str]) -> None:
        """Reach other pods at these *addresses* from now on, where sshd runs at all."""
        if self._process is not None:
            ssh.pin(self._folder, addresses)

    def trouble(self) -> str | None:
        """Why ranks can no longer be started here, or None."""
        if self._process is not None and self._process.poll() is not None:
            return "its sshd ended"
        return None


def unpack_code(here: PodContext) -> None:
    """Lay out the user's code where their command starts; OSError where that cannot be done."""
    code = here.plan["code"]
    if code is None:
        return
    try:
        store.require(code["archive"], [code["bytes"], code["sha256"]])
        with tarfile.open(code["archive"], "r:gz") as packed:
            packed.extractall(here.plan["folder"])
    except ValueError as error:
        what = "the code in %s is damaged: %s" % (code["archive"], error)
        raise OSError("%s; start the run again, which uploads it anew" % what) from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        # An archive that cannot be read at the moment is none that is broken, though tarfile calls both a ReadError.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
            raise error.__cause__ from error
        raise OSError("the code in %s cannot be unpacked: %s" % (code["archive"], error)) from error


def own_hardware(here: PodContext) -> hardware.Facts:
    """What this pod's machine is made of; `hardware.Unfit` where it cannot run what the image holds."""
    facts = hardware.of_pod(pod_context.POD_INFO, here.plan["machine"])
    hardware.require_fit(facts, hardware.image(), here.plan["gpus"])
    return facts


def write_environment(here: PodContext, attempt: int) -> dict[str, str]:
    """Write the environment of this pod's ranks (image, pod, spec, attempt) where the starter finds it; returns it."""
    interface = _interface(here)
    own = {
        "NCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        protocol.ENV_ATTEMPT: str(attempt),
        protocol.ENV_PID_FILE: here.pid_file,
    }
    environment = {**os.environ, **own, **here.plan["environment"]}
    descriptor = os.open(here.environment_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(environment, file)
    return environment


def attempt_plan(here: PodContext, environment: dict[str, str], port: str) -> dict[str, Any]:
    """The plan of this node's own launcher, in the shape that `Attempt` carries out."""
    arguments, extra = _launcher(here, environment, port)
    command = {"node": here.node, "arguments": arguments, "environment": extra}
    return {**here.plan, "commands": [command], "environment": environment, "pid_file": here.pid_file}


def _launcher(here: PodContext, environment: dict[str, str], port: str) -> tuple[list[str], dict[str, str]]:
    plan, rank = here.plan, here.plan["rank"]
    starter = [sys.executable, "-I", "-S", os.path.join(os.path.dirname(os.path.abspath(__file__)), "starter.py")]
    starter += ["--env", here.environment_file]
    if plan["launcher"] == "mpirun":
        return [*_mpirun(here, environment), *starter, *rank], {}
    if plan["launcher"] == "torchrun":
        torchrun = launchers.torchrun("python3", len(here.hosts), here.node, plan["slots"], here.hosts[0])
        launcher = [part.replace(launchers.PORT, port) for part in torchrun]
        return [*launcher, "--no-python", *starter, "--tag", *rank], {}
    plain = launchers.plain_environment(here.launching, here.node, here.hosts[0])
    return [*starter, *rank], {key: value.replace(launchers.PORT, port) for key, value in plain.items()}


def _mpirun(here: PodContext, environment: dict[str, str]) -> list[str]:
    found = shutil.which("mpirun", path=environment.get("PATH"))
    if found is None:
        raise FileNotFoundError("the image has no mpirun on PATH")
    hostfile = os.path.join(pod_context.WORK, "hosts")
    with open(hostfile, "w") as file:
        file.write(launchers.hostfile(here.hosts, here.plan["slots"]))
    said = subprocess.run([found, "--version"], stdout=subprocess.PIPE).stdout.decode("utf-8", "replace")
    ranks = len(here.hosts) * here.plan["slots"]
    ssh_config = os.path.join(here.ssh_folder, "ssh_config")
    remote = launchers.Remote(hostfile, ssh_config, _interface(here))
    return launchers.mpirun_over_ssh(found, launchers.family(said), ranks, remote, here.plan["mpi_args"])


def _interface(here: PodContext) -> str:
    """The network interface that leads to the other nodes, for MPI, NCCL and Gloo alike."""
    return network.interface_towards(here.hosts[1 if here.leads and len(here.hosts) > 1 else 0])


def _last_line(path: str) -> str:
    with open(path, errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1] if lines else "it says nothing"
