"""What every node of a run does: take notice of its end, run sshd, write the environment of its ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from types import FrameType

from . import boot, hardware, launchers, network, pool_wheels, protocol, ssh, store, unpack
from .clock import Clock
from .context import AgentContext
from .plan import AttemptPlan, Command, with_commands

MAX_PAUSE = 60.0  # seconds before another restart
POLL_INTERVAL = 0.05  # seconds


class Notice:
    """Whether this node received a signal to end; ``reason`` names it, and *what* received it."""

    def __init__(self, clock: Clock, what: str = "the pod of this node") -> None:
        self._clock = clock
        self._what = what
        self._signal: int | None = None
        signal.signal(signal.SIGTERM, self._handle_signal)
        signal.signal(signal.SIGINT, self._handle_signal)

    @property
    def reason(self) -> str | None:
        """What ends this node, or None."""
        return "%s received %s" % (self._what, signal.Signals(self._signal).name) if self._signal else None

    def wait(self, restarts: int, serve: Callable[[], object]) -> None:
        """Wait before an error of this machine restarts the run once more, which JobSet does at once, however often.

        *serve* is called meanwhile, again and again. A signal to end ends it.
        """
        seconds = min(2.0 ** (min(restarts, 10) - 1), MAX_PAUSE) if restarts else 0.0
        deadline = self._clock.awake() + seconds
        while not self.reason and self._clock.awake() < deadline:
            serve()
            self._clock.sleep(POLL_INTERVAL)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number


class Daemon:
    """This pod's sshd, where the launcher needs one."""

    def __init__(self, context: AgentContext) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = context.ssh_folder
        if launchers.is_mpi(context.plan["launcher"]) and not context.slurm:
            ssh.install_keys(context.mounts.secret, context.ssh_folder)
            self._process = ssh.start_daemon(context.ssh_folder)
            if not ssh.wait_until_open(clock=context.clock):
                raise ssh.InvalidKeys(
                    "sshd failed to start: %s" % _last_line(os.path.join(context.ssh_folder, "sshd.log"))
                )

    def pin(self, addresses: Mapping[str, str]) -> None:
        """Connect to other pods at these *addresses* from now on, if this pod runs sshd at all."""
        if self._process is not None:
            ssh.pin(self._folder, addresses)

    def error(self) -> str | None:
        """Why no more ranks can be started on this node, or None."""
        if self._process is not None and self._process.poll() is not None:
            return "its sshd ended"
        return None


def unpack_code(context: AgentContext) -> None:
    """Unpack the user's code into the working directory of the command, and the wheels of Dask that the image lacks.

    Raises:
        Incompatible: the image does not fit the pool, and wheels cannot help.
        OSError: something cannot be unpacked.
    """
    pool_wheels.install(context.plan, context.mounts.work, context.clock)
    code = context.plan["code"]
    if code is None:
        os.makedirs(context.plan["folder"], exist_ok=True)
        return
    try:
        store.require(code["archive"], [code["bytes"], code["sha256"]])
        with tarfile.open(code["archive"], "r:gz") as packed:
            unpack.unpack(packed, context.plan["folder"])
    except unpack.DAMAGES as error:
        # tarfile raises ReadError also for a file system error, which another attempt may get past.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
            raise error.__cause__ from error
        text = "the code in %s is damaged: %s; submit the run again, which uploads its code anew" % (
            code["archive"],
            error,
        )
        raise OSError(text) from error


def check_hardware(context: AgentContext) -> hardware.Facts:
    """The hardware of this pod; `hardware.Incompatible` where it cannot run what the image holds, or lacks."""
    facts = hardware.describe_pod(context.mounts.pod_info, context.plan["machine"])
    hardware.require_compatible(facts, hardware.image_record(context.mounts.image_record), context.plan["gpus"])
    return facts


def write_environment(context: AgentContext, attempt: int) -> dict[str, str]:
    """Write the environment of this pod's ranks (image, pod, spec, attempt) to the file of the starter; returns it."""
    interface = _interface(context)
    own = {
        "NCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        protocol.ENV_ATTEMPT: str(attempt),
        protocol.ENV_PID_FILE: context.pid_file,
    }
    environment = {**os.environ, **own, **context.plan["environment"]}
    if not launchers.is_mpi(context.plan["launcher"]):  # which chooses it by its arguments
        environment.update(launchers.transport_environment(environment))
    wheels = pool_wheels.folder(context.mounts.work)
    folders = [environment.get("PYTHONPATH"), environment.pop(boot.ENV_IMAGE_PATH, None)]
    folders.append(wheels if os.path.isdir(wheels) else None)
    environment["PYTHONPATH"] = ":".join(filter(None, folders))
    descriptor = os.open(context.environment_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump(environment, file)
    return environment


def attempt_plan(context: AgentContext, environment: dict[str, str]) -> AttemptPlan:
    """The plan of this node's own launcher, as `Attempt` takes it."""
    arguments, extra = _launcher(context, environment)
    command: Command = {"node": context.node, "arguments": arguments, "environment": extra}
    return with_commands(context.plan, [command], environment, context.pid_file)


def _launcher(context: AgentContext, environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The arguments of this node's launcher or worker, and its variables."""
    plan, pool = context.plan, context.plan["pool"]
    starter = [sys.executable, "-I", "-S", os.path.join(os.path.dirname(os.path.abspath(__file__)), "starter.py")]
    starter += ["--env", context.environment_file]
    if context.worker is not None:
        return [*starter, *_worker(context, context.worker)], {}
    if plan["launcher"] == "pool":
        return [*starter, *_pool(context)], {}
    arguments, extra = _rank_launcher(context, environment, starter)
    if pool and context.is_coordinator:  # the scheduler of its stream
        wait_for = context.launchers_ended_file if context.launcher_count > 1 else None
        arguments = [*starter, *launchers.pool_driver(_scheduler(context), arguments, wait_for)]
    return arguments, extra


def _rank_launcher(
    context: AgentContext, environment: dict[str, str], starter: list[str]
) -> tuple[list[str], dict[str, str]]:
    """The arguments of what starts this node's ranks, and its variables."""
    launcher = launchers.LAUNCHERS[context.plan["launcher"]]
    nodes = 1 if context.plan["where"] == "first" else len(context.hosts)
    mpi = _open_mpi(context, environment) if launcher.mpi else None
    world = launchers.World(nodes, context.plan["slots"], context.node, context.hosts[0], mpi=mpi)
    port = str(context.ports.rendezvous)
    start = [part.replace(launchers.PORT, port) for part in launcher.arguments(world)]
    variables = {key: value.replace(launchers.PORT, port) for key, value in launcher.environment(world).items()}
    return [*start, *starter, *launcher.starter_options(), *context.plan["rank"]], variables


def _worker(context: AgentContext, number: int) -> list[str]:
    """One worker of a pool or stream."""
    worker = launchers.pool_worker(
        sys.executable, number, context.plan["environment"][protocol.ENV_POOL], context.plan["folder"]
    )
    own = network.address_towards(context.hosts[0])
    return [*worker, "--host=" + ("[%s]" % own if ":" in own else own)]  # as Dask takes an IPv6 address


def _scheduler(context: AgentContext, start: float | None = None, driver: float | None = None) -> list[str]:
    """The scheduler of a pool or stream; *start* and *driver* are its limits as of `launchers.pool_scheduler`."""
    pool = context.plan["pool"]
    assert pool is not None
    limits = context.plan["limits"]
    # A lost worker may need another machine, as at the start.
    return launchers.pool_scheduler(
        sys.executable, pool["workers"], limits["interruptions"], start, driver, replacement=limits["start"]
    )


def _pool(context: AgentContext) -> list[str]:
    """The scheduler of a pool with its driver, or alone."""
    plan, pool = context.plan, context.plan["pool"]
    assert pool is not None
    if plan["rank"]:  # whose end is that of the pool
        return launchers.pool_driver(_scheduler(context), plan["rank"])
    driver = pool["driver"]
    return _scheduler(context, None if driver is None else plan["limits"]["start"], driver)


def _open_mpi(context: AgentContext, environment: dict[str, str]) -> launchers.OpenMpi:
    mpirun = shutil.which("mpirun", path=environment.get("PATH"))
    if mpirun is None:
        raise FileNotFoundError("the image has no mpirun on PATH")
    hostfile = os.path.join(context.mounts.work, "hosts")
    with open(hostfile, "w") as file:
        file.write(launchers.hostfile(context.hosts, context.plan["slots"]))
    version = subprocess.run([mpirun, "--version"], stdout=subprocess.PIPE).stdout.decode("utf-8", "replace")
    reach = launchers.by_slurm(context.hosts) if context.slurm else launchers.by_ssh(ssh.client(context.ssh_folder))
    remote = launchers.Remote(hostfile, reach, _interface(context), launchers.uses_fabric(environment))
    extra, root = context.plan["mpi_args"], context.slurm and os.geteuid() == 0
    return launchers.OpenMpi(mpirun, launchers.family(version), root, remote=remote, extra=extra)


def _interface(context: AgentContext) -> str:
    """The network interface that leads to the other nodes, for MPI, NCCL and Gloo alike."""
    return network.interface_towards(context.hosts[1 if context.is_coordinator and len(context.hosts) > 1 else 0])


def _last_line(path: str) -> str:
    with open(path, errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1] if lines else "it printed no error"
