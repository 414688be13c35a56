"""What every member does in a pod: check its hardware, unpack code, run sshd, write its processes' environment.

A node is fit for an attempt if its GPUs are there, without errors and not slowed down by their hardware, and its disks
take files. Nothing in a run compares the time of two nodes, so that is not checked. Neither is a collective, which
would need the framework of the program and seconds of every start; the connection to node 0 is one already.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Mapping
from typing import List

from . import boot, hardware, launchers, network, preload, processes, protocol, remote_processes, ssh, store, unpack
from .clock import Clock
from .context import AgentContext
from .launch import RANK_WRAPPER, Location
from .plan import workers

POLL_INTERVAL = 0.05  # seconds
_RESTART_PAUSE = 1.0  # seconds from the end of an sshd to the start of the next

ROOM = 64 * 1024 * 1024  # bytes on the node's own disk, without which no rank writes its output
_DISK_TIMEOUT = 30.0  # seconds for a small file on a file system of the network, which may hang for ever
_BROKEN = (errno.EIO, errno.ESTALE, errno.EROFS)
_COOLING = 5.0  # seconds after which a GPU that has just worked is no longer slowed down for its heat
# Uncorrected errors since the driver was loaded, or the GPU reset: https://docs.nvidia.com/deploy/nvidia-smi
_ERRORS = "ecc.errors.uncorrected.volatile.total"
# Clocks at half of their speed or less, by the hardware. What software does (`sw_power_cap`, `sw_thermal_slowdown`) is
# usual under load, and `hw_slowdown` is reported at changes of the clock, too. Drivers before 535 have the second name.
_SLOWDOWNS = {"hw_thermal_slowdown": "heat", "hw_power_brake_slowdown": "a brake of the power supply"}
_GROUPS = ("clocks_event_reasons", "clocks_throttle_reasons")
_UNKNOWN_FIELD = "is not a valid field"


def start_sshd(context: AgentContext) -> None:
    """Run an sshd in this pod from now on where its launcher is mpirun; a thread starts it, and again if it ends.

    Programs of the user may need it, attempts do not: what keeps it from running is printed.
    """
    if launchers.is_mpi(context.plan["launcher"]) and not (context.slurm or context.is_worker):
        threading.Thread(target=_run_sshd, args=(context,), name="sshd", daemon=True).start()


def unpack_code(context: AgentContext) -> None:
    """Unpack the user's code into the working directory of the command, and the wheels of Dask that the image lacks.

    Raises:
        Incompatible: the image does not fit the pool, and wheels cannot help.
        OSError: something cannot be unpacked.
    """
    if workers(context.plan):
        from . import pool_wheels  # other runs do without

        pool_wheels.install(context.plan, context.wheels_folder, context.clock)
    code = context.plan.get("code")
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


def prepare(context: AgentContext, facts: hardware.Facts | None) -> hardware.Facts:
    """The hardware of this pod, on which its processes can start now; *facts* is that, once the pod has been prepared.

    Raises:
        Unfit: the node cannot do its part of an attempt.
        Incompatible: the image does not fit its hardware, or the pool.
        OSError: the run volume does not answer, or something cannot be unpacked.
    """
    if not context.is_worker:
        check(context)
    if facts is None:
        facts = check_hardware(context)
        unpack_code(context)
    if not context.is_worker:
        serve_forks(context)
    return facts


def check_hardware(context: AgentContext) -> hardware.Facts:
    """The hardware of this pod; `hardware.Incompatible` where it cannot run what the image holds, or lacks."""
    facts = hardware.describe_pod(context.mounts.pod_info, context.plan.get("machine", {}))
    hardware.require_compatible(facts, hardware.image_record(context.mounts.image_record), context.role["gpus"])
    return facts


def connected(context: AgentContext, peer: str | None) -> AgentContext:
    """The context of an agent that is connected with the one at the address *peer*, of which one is node 0's.

    Its processes find node 0 by the address of that connection: name servers may give that of the pod before for
    seconds. Node 0 alone takes the one of its host name, in pods by /etc/hosts.
    """
    address, plan = peer, context.plan
    if context.is_coordinator:
        address = network.own_address() if peer is None else network.address_towards(peer)
    scheduler = plan["environment"].get(protocol.ENV_POOL)
    if address is not None and scheduler is not None:
        host, port = "[%s]" % address if ":" in address else address, scheduler.rpartition(":")[2]
        plan = {**plan, "environment": {**plan["environment"], protocol.ENV_POOL: "tls://%s:%s" % (host, port)}}
    return context._replace(node_0=address, plan=plan)


def write_environment(context: AgentContext, attempt: int) -> dict[str, str]:
    """Write the environment of this pod's ranks (image, pod, spec, attempt) to the wrapper's file; returns it."""
    own = {protocol.ENV_ATTEMPT: str(attempt), protocol.ENV_PID_FILE: context.pid_file}
    interface = _interface(context)
    interfaces = {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    environment = {**own, **_environment(context, interfaces)}
    descriptor = os.open(context.environment_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(environment, file)
    return environment


def serve_forks(context: AgentContext) -> None:
    """Start the fork server of this node, unless it runs or the plan has none.

    Where it does not start, rank wrappers start ranks without it and print that.
    """
    server = _fork_server(context)
    if server is not None:
        rank_wrapper = [sys.executable, "-I", "-S", RANK_WRAPPER]
        with contextlib.suppress(OSError):
            # Without the variables of a network interface: it is chosen once other nodes are known, and only ranks
            # read them.
            preload.serve(server, context.plan["folder"], rank_wrapper, _environment(context, {}))


def wait_for_imports(context: AgentContext, wait: Callable[[], bool]) -> None:
    """Wait until the fork server of this node has imported its modules, if it has one, or *wait* returns False."""
    server = _fork_server(context)
    if server is not None:
        are_done = preload.imports(server.path)
        while not are_done() and wait():
            pass


def location(context: AgentContext, environment: dict[str, str]) -> Location:
    """What the arguments of this node's processes depend on, with its *environment*."""
    starts_mpi = launchers.is_mpi(context.plan["launcher"]) and context.is_coordinator
    forks = _fork_server(context)
    return Location(
        sys.executable,
        str(context.rendezvous),
        context.node_0 or context.hosts[0],
        context.environment_file,
        _open_mpi(context, environment) if starts_mpi else None,
        worker_host=network.address_towards(context.node_0 or context.hosts[0]) if context.is_worker else "",
        wait_for=context.launchers_ended_file if context.launcher_count > 1 else None,
        fork_socket=None if forks is None else forks.path,
    )


class Unfit(Exception):
    """The node cannot do its part of an attempt; the message says what is wrong with it."""


def check(context: AgentContext) -> None:
    """Raise `Unfit` for a fault of this node, or OSError where the run volume does not answer, which others share."""
    problem = gpu_problem(context.role["gpus"], context.clock) or disk_problem(context.mounts.work)
    if problem:
        raise Unfit(problem)
    _write(context.mounts.runs, "check-%s" % context.member.file)


def gpu_problem(requested: int, clock: Clock) -> str | None:
    """What is wrong with the *requested* GPUs of this node; None where nobody can tell, as without nvidia-smi."""
    if not requested or not shutil.which("nvidia-smi"):
        return None
    try:
        answer = _ask_gpus()
        if ", Active" in answer:
            clock.sleep(_COOLING)
            answer = _ask_gpus()
    except subprocess.TimeoutExpired:
        return "nvidia-smi has not answered for %g s" % hardware.GPU_TIMEOUT
    return gpu_fault(answer, requested)


def _ask_gpus() -> str:
    """A line of each GPU, or the error of nvidia-smi: index, errors, and where the driver knows them, slowdowns."""
    text = ""
    for fields in [["%s.%s" % (group, name) for name in _SLOWDOWNS] for group in _GROUPS] + [[]]:
        query = ["--query-gpu=" + ",".join(["index", _ERRORS, *fields]), "--format=csv,noheader"]
        _, text = hardware.ask_nvidia_smi(*query)
        if _UNKNOWN_FIELD not in text:
            break
    return text


def gpu_fault(answer: str, requested: int) -> str | None:
    """What an *answer* of nvidia-smi says of the *requested* GPUs that is a fault, or None."""
    lines = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
    gpus = {cells[0]: cells[1:] for cells in lines if len(cells) in (2, 2 + len(_SLOWDOWNS)) and cells[0].isdigit()}
    others = " ".join(line.strip() for line in answer.splitlines() if line.split(",")[0].strip() not in gpus)
    # Of more GPUs than that, as without control groups on Slurm, some are those of other jobs.
    if len(gpus) > requested or _UNKNOWN_FIELD in answer:
        return None
    # Fewer alone are none: parts of a GPU (MIG), and turns on one, count as GPUs of a pod, and as one here.
    if not gpus or (len(gpus) < requested and others):
        return "%d of %d GPUs visible%s" % (len(gpus), requested, ": " + others[:200] if others else "")
    faults = []
    for gpu, (errors, *slowdowns) in gpus.items():
        if errors.isdigit() and int(errors):
            faults.append("GPU %s: %s uncorrected ECC errors" % (gpu, errors))
        states = dict(enumerate(slowdowns))  # none of a driver that knows no slowdowns
        causes = [cause for number, cause in enumerate(_SLOWDOWNS.values()) if states.get(number) == "Active"]
        if causes:
            faults.append("GPU %s: its clocks are slowed down for %s" % (gpu, " and ".join(causes)))
    return "; ".join(faults) or None


def disk_problem(folder: str) -> str | None:
    """What is wrong with the disk of *folder*, this node's own, or None."""
    try:
        free = shutil.disk_usage(folder).free
        if free < ROOM:
            return "%d MiB free on its disk (%s), %d are needed" % (free >> 20, folder, ROOM >> 20)
        _write(folder, "check")
    except OSError as error:
        return "its disk does not take a file (%s): %s" % (folder, error.strerror or error)
    return None


def _run_sshd(context: AgentContext) -> None:
    """Run sshd until this agent ends, and again if it ends before; what prevents it is printed."""
    assert context.mounts.secret is not None, "agents on machines of their own have keys"
    try:
        ssh.install_keys(context.mounts.secret, context.ssh_folder)
        while True:
            process = ssh.start_daemon(context.ssh_folder)
            processes.exempt.add(process.pid)
            process.wait()
            if process.pid not in processes.exempt:
                return  # this agent ends
            processes.exempt.discard(process.pid)
            context.clock.sleep(_RESTART_PAUSE)
    except (ssh.InvalidKeys, OSError) as error:
        sys.stderr.write("no sshd runs in this pod, which only programs that call ssh need: %s\n" % error)


def _fork_server(context: AgentContext) -> preload.ForkServer | None:
    return preload.of_ranks(context.plan, context.mounts.work) if context.plan.get("preload") else None


def _environment(context: AgentContext, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of this pod's ranks, in every attempt; *own* variables win over those of the pod."""
    environment = {**os.environ, **own, **context.plan["environment"], **context.role["environment"]}
    if not launchers.is_mpi(context.plan["launcher"]):  # which chooses it by its arguments
        environment.update(launchers.transport_environment(environment))
    elif context.slurm:
        environment.update(_memory_environment(context, environment))
    folders = [environment.get("PYTHONPATH"), environment.pop(boot.ENV_IMAGE_PATH, None)]
    folders.append(context.wheels_folder if os.path.isdir(context.wheels_folder) else None)
    environment["PYTHONPATH"] = ":".join(filter(None, folders))
    return environment


def _memory_environment(context: AgentContext, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables for MPI's files in memory, on a node that is not the run's alone."""
    folder, mpirun = context.mounts.shared_memory, shutil.which("mpirun", path=environment.get("PATH"))
    if mpirun is None or folder is None:
        return {}
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        return launchers.memory_environment(folder, launchers.family(_version(mpirun)), environment)
    return {}


def _open_mpi(context: AgentContext, environment: dict[str, str]) -> launchers.OpenMpi:
    mpirun = shutil.which("mpirun", path=environment.get("PATH"))
    if mpirun is None:
        raise FileNotFoundError("the image has no mpirun on PATH")
    hostfile = os.path.join(context.mounts.work, "hosts")
    with open(hostfile, "w", encoding="utf-8") as file:
        file.write(launchers.hostfile(context.hosts, context.plan["slots"]))
    version = _version(mpirun)
    agent = [sys.executable, "-I", "-S", remote_processes.SCRIPT, context.start_socket]
    reach = launchers.by_slurm(context.hosts) if context.slurm else launchers.by_agent(agent)
    remote = launchers.Remote(hostfile, reach, _interface(context), launchers.uses_fabric(environment))
    extra, root = context.plan["mpi"]["args"], context.slurm and os.geteuid() == 0
    return launchers.OpenMpi(mpirun, launchers.family(version), root, remote=remote, extra=extra)


@functools.lru_cache(maxsize=None)
def _version(mpirun: str) -> str:
    return subprocess.run([mpirun, "--version"], stdout=subprocess.PIPE).stdout.decode("utf-8", "replace")


def _interface(context: AgentContext) -> str:
    """The network interface that leads to the other nodes, for MPI, NCCL and Gloo alike."""
    return network.interface_towards(context.node_0 or context.hosts[0])


def _write(folder: str, name: str) -> None:
    """Write and remove a file; OSError where *folder* is broken, or does not answer in time."""
    failures: List[OSError] = []

    def write() -> None:
        path = os.path.join(folder, "." + name)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(descriptor, b"x")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
                os.unlink(path)
        except OSError as error:  # who needs a file that is denied says so
            if error.errno in _BROKEN:
                failures.append(error)

    thread = threading.Thread(target=write, name="check", daemon=True)
    thread.start()
    thread.join(_DISK_TIMEOUT)
    if thread.is_alive():
        raise OSError(errno.ETIMEDOUT, "no answer for %g s" % _DISK_TIMEOUT, folder)
    if failures:
        raise failures[0]
