"""What every node of a run does: take notice of its end, run sshd, write the environment of its ranks."""

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

from . import boot, hardware, launchers, network, pod_context, pool_wheels, protocol, ssh, store
from .plan import AttemptPlan, Command, with_commands
from .pod_context import PodContext


class Notice:
    """Whether this pod received a signal to end; ``reason`` names it."""

    def __init__(self) -> None:
        self.reason: str | None = None
        signal.signal(signal.SIGTERM, self._handle_signal)
        signal.signal(signal.SIGINT, self._handle_signal)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self.reason = "the pod of this node received %s" % signal.Signals(number).name


class Daemon:
    """This pod's sshd, where the launcher needs one."""

    def __init__(self, pod: PodContext) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = pod.ssh_folder
        if pod.plan["launcher"] == "mpirun":
            ssh.install_keys(pod_context.SECRET, pod.ssh_folder)
            self._process = ssh.start_daemon(pod.ssh_folder)
            if not ssh.wait_until_open():
                raise ssh.InvalidKeys("sshd failed to start: %s" % _last_line(os.path.join(pod.ssh_folder, "sshd.log")))

    def pin(self, addresses: Mapping[str, str]) -> None:
        """Connect to other pods at these *addresses* from now on, if this pod runs sshd at all."""
        if self._process is not None:
            ssh.pin(self._folder, addresses)

    def error(self) -> str | None:
        """Why no more ranks can be started on this node, or None."""
        if self._process is not None and self._process.poll() is not None:
            return "its sshd ended"
        return None


def unpack_code(pod: PodContext) -> None:
    """Unpack the user's code into the working directory of the command, and the wheels of Dask that the image lacks.

    Raises:
        Incompatible: the image does not fit the pool, and wheels cannot help.
        OSError: something cannot be unpacked.
    """
    pool_wheels.install(pod.plan)
    code = pod.plan["code"]
    if code is None:
        os.makedirs(pod.plan["folder"], exist_ok=True)
        return
    try:
        store.require(code["archive"], [code["bytes"], code["sha256"]])
        with tarfile.open(code["archive"], "r:gz") as packed:
            packed.extractall(pod.plan["folder"])
    except ValueError as error:
        text = "the code in %s is damaged: %s; submit the run again, which uploads its code anew" % (
            code["archive"],
            error,
        )
        raise OSError(text) from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        # tarfile raises ReadError also for a file system error, which another attempt may get past.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
            raise error.__cause__ from error
        raise OSError("the code in %s cannot be unpacked: %s" % (code["archive"], error)) from error


def check_hardware(pod: PodContext) -> hardware.Facts:
    """The hardware of this pod; `hardware.Incompatible` where it cannot run what the image holds, or lacks."""
    facts = hardware.describe_pod(pod_context.POD_INFO, pod.plan["machine"])
    hardware.require_compatible(facts, hardware.image_record(), pod.plan["gpus"])
    return facts


def write_environment(pod: PodContext, attempt: int) -> dict[str, str]:
    """Write the environment of this pod's ranks (image, pod, spec, attempt) to the file of the starter; returns it."""
    interface = _interface(pod)
    own = {
        "NCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        protocol.ENV_ATTEMPT: str(attempt),
        protocol.ENV_PID_FILE: pod.pid_file,
    }
    environment = {**os.environ, **own, **pod.plan["environment"]}
    if pod.plan["launcher"] != "mpirun":  # whose arguments choose it, and which sets the variable of its ranks
        environment.update(launchers.transport_environment(environment))
    wheels = pool_wheels.folder()
    folders = [environment.get("PYTHONPATH"), environment.pop(boot.ENV_IMAGE_PATH, None)]
    folders.append(wheels if os.path.isdir(wheels) else None)
    environment["PYTHONPATH"] = ":".join(filter(None, folders))
    descriptor = os.open(pod.environment_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(environment, file)
    return environment


def attempt_plan(pod: PodContext, environment: dict[str, str], port: str) -> AttemptPlan:
    """The plan of this node's own launcher, as `Attempt` takes it."""
    arguments, extra = _launcher(pod, environment, port)
    command: Command = {"node": pod.node, "arguments": arguments, "environment": extra}
    return with_commands(pod.plan, [command], environment, pod.pid_file)


def _launcher(pod: PodContext, environment: dict[str, str], port: str) -> tuple[list[str], dict[str, str]]:
    """The arguments of this node's launcher or worker, and its variables."""
    plan, pool = pod.plan, pod.plan["pool"]
    starter = [sys.executable, "-I", "-S", os.path.join(os.path.dirname(os.path.abspath(__file__)), "starter.py")]
    starter += ["--env", pod.environment_file]
    if pod.worker is not None:
        return [*starter, *_worker(pod, pod.worker)], {}
    if plan["launcher"] == "pool":
        return [*starter, *_pool(pod)], {}
    arguments, extra = _rank_launcher(pod, environment, port, starter)
    if pool and pod.is_coordinator:  # the scheduler of its stream
        wait_for = pod.launchers_ended_file if pod.launcher_count > 1 else None
        arguments = [*starter, *launchers.pool_driver(_scheduler(pod), arguments, wait_for)]
    return arguments, extra


def _rank_launcher(
    pod: PodContext, environment: dict[str, str], port: str, starter: list[str]
) -> tuple[list[str], dict[str, str]]:
    """The arguments of what starts this node's ranks, and its variables."""
    plan, rank = pod.plan, pod.plan["rank"]
    if plan["launcher"] == "mpirun":
        return [*_mpirun(pod, environment), *starter, *rank], {}
    if plan["launcher"] == "torchrun":
        torchrun = launchers.torchrun("python3", len(pod.hosts), pod.node, plan["slots"], pod.hosts[0])
        launcher = [part.replace(launchers.PORT, port) for part in torchrun]
        return [*launcher, "--no-python", *starter, "--tag", *rank], {}
    plain = launchers.plain_environment(pod.launcher_count, pod.node, pod.hosts[0])
    return [*starter, *rank], {key: value.replace(launchers.PORT, port) for key, value in plain.items()}


def _worker(pod: PodContext, number: int) -> list[str]:
    """One worker of a pool or stream."""
    worker = launchers.pool_worker(
        sys.executable, number, pod.plan["environment"][protocol.ENV_POOL], pod.plan["folder"]
    )
    return [*worker, "--host=" + network.address_towards(pod.hosts[0])]


def _scheduler(pod: PodContext, start: float | None = None, driver: float | None = None) -> list[str]:
    """The scheduler of a pool or stream; *start* and *driver* are its limits as of `launchers.pool_scheduler`."""
    pool = pod.plan["pool"]
    assert pool is not None
    limits = pod.plan["limits"]
    # A lost worker may need another machine, as at the start.
    return launchers.pool_scheduler(
        sys.executable, pool["workers"], limits["interruptions"], start, driver, replacement=limits["start"]
    )


def _pool(pod: PodContext) -> list[str]:
    """The scheduler of a pool with its driver, or alone."""
    plan, pool = pod.plan, pod.plan["pool"]
    assert pool is not None
    if plan["rank"]:  # whose end is that of the pool
        return launchers.pool_driver(_scheduler(pod), plan["rank"])
    driver = pool["driver"]
    return _scheduler(pod, None if driver is None else plan["limits"]["start"], driver)


def _mpirun(pod: PodContext, environment: dict[str, str]) -> list[str]:
    mpirun = shutil.which("mpirun", path=environment.get("PATH"))
    if mpirun is None:
        raise FileNotFoundError("the image has no mpirun on PATH")
    hostfile = os.path.join(pod_context.WORK, "hosts")
    with open(hostfile, "w") as file:
        file.write(launchers.hostfile(pod.hosts, pod.plan["slots"]))
    version = subprocess.run([mpirun, "--version"], stdout=subprocess.PIPE).stdout.decode("utf-8", "replace")
    ranks = len(pod.hosts) * pod.plan["slots"]
    ssh_config = os.path.join(pod.ssh_folder, "ssh_config")
    remote = launchers.Remote(hostfile, ssh_config, _interface(pod), launchers.uses_fabric(environment))
    return launchers.mpirun_over_ssh(mpirun, launchers.family(version), ranks, remote, pod.plan["mpi_args"])


def _interface(pod: PodContext) -> str:
    """The network interface that leads to the other nodes, for MPI, NCCL and Gloo alike."""
    return network.interface_towards(pod.hosts[1 if pod.is_coordinator and len(pod.hosts) > 1 else 0])


def _last_line(path: str) -> str:
    with open(path, errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1] if lines else "it printed no error"
