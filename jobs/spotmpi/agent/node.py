"""What every node of a run does: take notice of its end, run sshd, write the environment of its ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from types import FrameType

from . import boot, hardware, launchers, network, pod_context, pool_wheels, protocol, ssh, store, unpack
from .plan import AttemptPlan, Command, with_commands
from .pod_context import PodContext

MAX_PAUSE = 60.0  # seconds before another restart
POLL_INTERVAL = 0.05  # seconds


class Notice:
    """Whether this pod received a signal to end; ``reason`` names it."""

    def __init__(self) -> None:
        self.reason: str | None = None
        signal.signal(signal.SIGTERM, self._handle_signal)
        signal.signal(signal.SIGINT, self._handle_signal)

    def wait(self, restarts: int, serve: Callable[[], object]) -> None:
        """Wait before an error of this machine restarts the run once more, which JobSet does at once, however often.

        *serve* is called meanwhile, again and again. A signal to end ends it.
        """
        seconds = min(2.0 ** (min(restarts, 10) - 1), MAX_PAUSE) if restarts else 0.0
        deadline = time.monotonic() + seconds
        while not self.reason and time.monotonic() < deadline:
            serve()
            time.sleep(POLL_INTERVAL)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self.reason = "the pod of this node received %s" % signal.Signals(number).name


class Daemon:
    """This pod's sshd, where the launcher needs one."""

    def __init__(self, pod: PodContext) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = pod.ssh_folder
        if launchers.is_mpi(pod.plan["launcher"]):
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
            unpack.unpack(packed, pod.plan["folder"])
    except unpack.DAMAGES as error:
        # tarfile raises ReadError also for a file system error, which another attempt may get past.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
            raise error.__cause__ from error
        text = "the code in %s is damaged: %s; submit the run again, which uploads its code anew" % (
            code["archive"],
            error,
        )
        raise OSError(text) from error


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
    if not launchers.is_mpi(pod.plan["launcher"]):  # which chooses it by its arguments
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
    launcher = launchers.LAUNCHERS[pod.plan["launcher"]]
    nodes = 1 if pod.plan["where"] == "first" else len(pod.hosts)
    mpi = _open_mpi(pod, environment) if launcher.mpi else None
    world = launchers.World(nodes, pod.plan["slots"], pod.node, pod.hosts[0], mpi=mpi)
    start = [part.replace(launchers.PORT, port) for part in launcher.arguments(world)]
    variables = {key: value.replace(launchers.PORT, port) for key, value in launcher.environment(world).items()}
    return [*start, *starter, *launcher.starter_options(), *pod.plan["rank"]], variables


def _worker(pod: PodContext, number: int) -> list[str]:
    """One worker of a pool or stream."""
    worker = launchers.pool_worker(
        sys.executable, number, pod.plan["environment"][protocol.ENV_POOL], pod.plan["folder"]
    )
    own = network.address_towards(pod.hosts[0])
    return [*worker, "--host=" + ("[%s]" % own if ":" in own else own)]  # as Dask takes an IPv6 address


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


def _open_mpi(pod: PodContext, environment: dict[str, str]) -> launchers.OpenMpi:
    mpirun = shutil.which("mpirun", path=environment.get("PATH"))
    if mpirun is None:
        raise FileNotFoundError("the image has no mpirun on PATH")
    hostfile = os.path.join(pod_context.WORK, "hosts")
    with open(hostfile, "w") as file:
        file.write(launchers.hostfile(pod.hosts, pod.plan["slots"]))
    version = subprocess.run([mpirun, "--version"], stdout=subprocess.PIPE).stdout.decode("utf-8", "replace")
    ssh_config = os.path.join(pod.ssh_folder, "ssh_config")
    remote = launchers.Remote(hostfile, ssh_config, _interface(pod), launchers.uses_fabric(environment))
    return launchers.OpenMpi(mpirun, launchers.family(version), remote=remote, extra=pod.plan["mpi_args"])


def _interface(pod: PodContext) -> str:
    """The network interface that leads to the other nodes, for MPI, NCCL and Gloo alike."""
    return network.interface_towards(pod.hosts[1 if pod.is_coordinator and len(pod.hosts) > 1 else 0])


def _last_line(path: str) -> str:
    with open(path, errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1] if lines else "it printed no error"
