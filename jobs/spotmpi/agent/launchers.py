"""The launchers: how each starts the ranks of a run, what it needs, and how a script is recognized that uses it. Pure.

`LAUNCHERS` is the one list of them, which validation, the help, templates, plans and agents read.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from . import protocol

_REACH = {"plm_ssh_agent", "plm_rsh_agent"}  # parameters of mpirun: what starts its daemons on other hosts
_MCA = ("mca", "gmca", "omca", "prtemca", "pmixmca")

PORT = "{spotmpi-port}"  # replaced by a port when the attempt starts
LOCAL_RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "local_ranks.py")
PIPELINE_MODULES = ["spotmpi.streams.rank", "distributed"]  # that a pipeline's ranks import, by default
POOL_SCHEDULER, POOL_WORKER = "spotmpi.programs.pool.scheduler", "spotmpi.programs.pool.worker"


class Remote(NamedTuple):
    """How mpirun reaches the other hosts: hostfile, arguments for each family, and the network interface."""

    hostfile: str
    reach: Callable[[int], list[str]]
    interface: str
    fabric: bool = False  # as `uses_fabric`


class OpenMpi(NamedTuple):
    """An mpirun of Open MPI."""

    path: str
    family: int  # Open MPI's major version, 4 or 5
    root: bool = False  # whether the user is root
    remote: Remote | None = None  # None where all ranks are on this machine
    extra: Sequence[str] = ()  # the user's arguments


class Start(NamedTuple):
    """What a launcher on node number *node* starts: *slots* ranks on each of *nodes* nodes."""

    nodes: int
    slots: int
    node: int = 0
    address: str = "127.0.0.1"  # of node 0
    python: str = "python3"  # the interpreter of the ranks
    mpi: OpenMpi | None = None  # for a launcher that is Open MPI's


class Launcher(NamedTuple):
    """One way to start ranks; the command of a rank stands after the arguments of its launcher and of the wrapper."""

    arguments: Callable[[Start], list[str]]
    environment: Callable[[Start], dict[str, str]] = lambda start: {}
    name: str = ""  # in messages, where it is not that of the table
    once: bool = False  # one process on node 0 starts the ranks of all nodes; else one on each node starts its own
    parallel: bool = True  # whether it starts more than one rank on a node
    mpi: bool = False  # needs Open MPI's mpirun; its arguments choose MPI's transport
    module: str | None = None  # the module of Python that it is part of, where it is started by python3
    preload: Sequence[str] = ()  # what its ranks import, which `spotmpi init` names
    requirement: str | None = None  # the package that brings it, as locks of images name it
    tags: bool = True  # whether it marks the lines of ranks; else the rank wrapper does
    script: str | None = None  # a pattern of what scripts that need it contain
    without_gpu: dict[str, str] = {}  # variables of ranks that have no GPU

    def wrapper_options(self) -> list[str]:
        """The options of the rank wrapper of each rank."""
        return [*(["--report"] if self.parallel else []), *([] if self.tags else ["--tag"])]


def family(version: str) -> int:
    """Open MPI's major version in *version*, the output of `mpirun --version`; 5 where it has none."""
    match = re.search(r"\(Open MPI\) (\d+)", version)
    return int(match.group(1)) if match else 5


def session_environment(folder: str) -> dict[str, str]:
    """The variables that let mpirun keep its session folder, named after its process id, in *folder*, in place of /tmp.

    A killed mpirun leaves that folder, and a later one of Open MPI 5.0 with the same process id ends with code 213.
    """
    return {"PRTE_MCA_prte_tmpdir_base": folder, "OMPI_MCA_orte_tmpdir_base": folder}


def memory_environment(folder: str, family: int, variables: Collection[str]) -> dict[str, str]:
    """The variables that let ranks share memory by files in *folder*, in place of /dev/shm.

    Killed ranks leave these, and mpirun is killed together with its ranks. Empty where *variables* of ranks name one.
    """
    if any(name.endswith("backing_directory") for name in variables):
        return {}
    components = ("btl_sm" if family >= 5 else "btl_vader", "osc_sm", "osc_rdma")
    return {"OMPI_MCA_%s_backing_directory" % component: folder for component in components}


def uses_fabric(variables: Collection[str]) -> bool:
    """Whether *variables* of ranks have the one that names libfabric's provider, as those of pods with EFA do."""
    return "FI_PROVIDER" in variables


def transport_environment(variables: Collection[str]) -> dict[str, str]:
    """The variable that keeps Open MPI from probing libfabric; empty where *variables* of ranks choose the transport.

    The BTL ofi sleeps for a second in `MPI_Init`, whether or not there is such a network (Open MPI 5.0.11).
    """
    return {} if "OMPI_MCA_btl" in variables or uses_fabric(variables) else {"OMPI_MCA_btl": "^ofi"}


def tags_pieces(arguments: Sequence[str]) -> bool:
    """Whether this launcher tags every piece of output, in the middle of lines too: Open MPI 4's mpirun does."""
    return "--tag-output" in arguments


def _mpirun(start: Start) -> list[str]:
    """The mpirun arguments; more ranks than cores are allowed on one machine, and the plan has a note about that."""
    mpi = start.mpi
    assert mpi is not None
    ranks = start.nodes * start.slots
    if mpi.remote is not None:
        return _mpirun_on_hosts(mpi, mpi.remote, ranks)
    arguments = [mpi.path, "-np", str(ranks), "--bind-to", "none"]
    if mpi.family >= 5:
        arguments += ["--map-by", "slot:OVERSUBSCRIBE", "--output", "tag"]
    else:
        # Called by its path, it would put its own folder before all others of PATH: /usr/bin before that of a venv.
        arguments += ["--noprefix", "--map-by", "slot", "--oversubscribe", "--tag-output"]
    return arguments + (["--allow-run-as-root"] if mpi.root else [])


def by_agent(command: Sequence[str]) -> Callable[[int], list[str]]:
    """As `Remote.reach`: from node 0 to each host by a *command* that takes the arguments of ssh, without a space.

    Names are not resolved, as by default in Open MPI 5: they may lead to a pod of before, and its address to node 0.
    """

    def arguments(family: int) -> list[str]:
        if family >= 5:
            return ["--prtemca", "plm_ssh_agent", " ".join(command)]
        return ["--mca", "orte_do_not_resolve", "1", "--mca", "plm_rsh_agent", " ".join(command)]

    return arguments


def by_slurm(hosts: Sequence[str]) -> Callable[[int], list[str]]:
    """As `Remote.reach`: by srun in the job of these *hosts*; the slots are those of the hostfile, not the job's.

    Without the job's own list mpirun does not tell srun which hosts it means.
    """

    def arguments(family: int) -> list[str]:
        option = "--prtemca" if family >= 5 else "--mca"
        others = "--nodes=%d --nodelist=%s" % (len(hosts) - 1, ",".join(hosts[1:]))
        return [option, "ras", "^slurm", option, "plm", "slurm", option, "plm_slurm_args", others]

    return arguments


def _mpirun_on_hosts(mpi: OpenMpi, remote: Remote, ranks: int) -> list[str]:
    """The mpirun arguments with ranks on other hosts too.

    The defaults of the published runs (ChainerCV SSD300 on EKS), in each family's spelling, with two differences: the
    interface to use is named instead of those to exclude, and the map of ranks, which Open MPI 5
    spreads over dozens of lines, is left to the record, as are timestamps. A default that the user's arguments set is
    left out, since Open MPI 5 refuses an option that is given twice.
    """
    defaults = [["--bind-to", "none"], ["--map-by", "slot"], ["--mca", "pml", "ob1"]]
    # Families lack one of these components each, which does no harm; for ofi see `transport_environment`.
    defaults += [["--mca", "btl", "^openib" if remote.fabric else "^openib,ofi"]]
    defaults += [["--mca", "btl_tcp_if_include", remote.interface]]
    if mpi.family >= 5:
        defaults += [["--prtemca", "plm_ssh_no_tree_spawn", "1"]]
        wire_up = ["--prtemca", "prte_if_include", remote.interface]
        fixed = ["--output", "tag"]
    else:
        defaults += [["--mca", "plm_rsh_no_tree_spawn", "1"]]
        # Where seccomp keeps ranks from reading each other's memory, 4 warns with every message and 5 not at all.
        defaults += [["--mca", "btl_vader_single_copy_mechanism", "none"]]
        wire_up = ["--mca", "oob_tcp_if_include", remote.interface]
        fixed = ["--tag-output"]
    fixed += ["--allow-run-as-root"] if mpi.root else []
    defaults += [wire_up] if remote.interface != "lo" else []  # Open MPI 5 refuses it, even for one host
    defaults += [remote.reach(mpi.family)]
    overridden = set(_settings(mpi.extra))
    effective = [default for default in defaults if not overridden.intersection(_settings(default))]
    options = [argument for default in effective for argument in default]
    return [mpi.path, "--hostfile", remote.hostfile, "-np", str(ranks), *options, *fixed, *mpi.extra]


def _settings(arguments: Sequence[str]) -> Iterator[str]:
    """The options and MCA parameters that *arguments* set; ``_if_exclude`` counts as ``_if_include``, its opposite."""
    for number, argument in enumerate(arguments):
        option = argument.split("=")[0].lstrip("-") if argument.startswith("-") else ""
        if option in _MCA:
            yield "".join(arguments[number + 1 : number + 2]).replace("_if_exclude", "_if_include")
        elif option:
            yield option


def needs_names(launcher: str, nodes: int, mpi_arguments: Sequence[str]) -> bool:
    """Whether programs of a run reach other nodes by their names, which DNS has a while after the pods.

    A plain command may. mpirun does where its arguments name a program such as ssh; others get the address of node 0.
    """
    if launcher == "none":
        return nodes > 1
    return is_mpi(launcher) and not _REACH.isdisjoint(_settings(mpi_arguments))


def hostfile(hosts: list[str], slots: int) -> str:
    """The text of a hostfile that gives every host the same number of slots."""
    return "".join("%s slots=%d\n" % (host, slots) for host in hosts)


def _torchrun(start: Start) -> list[str]:
    """What starts the ranks of one node in place of torchrun, which would import torch; rendezvous is on node 0."""
    return [
        start.python,
        "-I",
        "-S",
        LOCAL_RANKS,
        "--nnodes=%d" % start.nodes,
        "--node-rank=%d" % start.node,
        "--nproc-per-node=%d" % start.slots,
        "--master-addr=%s" % start.address,
        "--master-port=%s" % PORT,
    ]


def _accelerate(start: Start) -> list[str]:
    """As `_torchrun` in place of Hugging Face's `accelerate launch`, which starts torchrun in itself."""
    return [*_torchrun(start), "--accelerate"]


def _deepspeed(start: Start) -> list[str]:
    """The arguments of DeepSpeed's launcher on one node: what `deepspeed` starts there by ssh, which is not needed."""
    ranks = {"node-%d" % node: list(range(start.slots)) for node in range(start.nodes)}
    return [
        start.python,
        "-m",
        "deepspeed.launcher.launch",
        "--world_info=" + base64.urlsafe_b64encode(json.dumps(ranks).encode()).decode(),
        "--node_rank=%d" % start.node,
        "--master_addr=%s" % start.address,
        "--master_port=%s" % PORT,
        "--no_local_rank",
        "--no_python",
    ]


def _plain_environment(start: Start) -> dict[str, str]:
    """The variables of a plain command on one node; ranks are nodes, as in a PyTorchJob."""
    return {
        "MASTER_ADDR": start.address,
        "MASTER_PORT": PORT,
        "WORLD_SIZE": str(start.nodes),
        "RANK": str(start.node),
    }


_OF_DDP = ("torch", "torch._dynamo")  # DistributedDataParallel imports the latter when it is made, which takes a second
_IMPORT = r"^\s*(?:from\s+|import\s+(?:[^#\n]*,\s*)?)(?:%s)\b"  # a line of a script that imports one of these modules


def imports(*modules: str) -> str:
    """A pattern of a line that imports one of the *modules*, for a search over several lines."""
    return _IMPORT % "|".join(modules)


# A script is started by the last one that recognizes it, and alone without one.
LAUNCHERS = {
    "mpirun": Launcher(
        _mpirun,
        name="mpirun of Open MPI",
        once=True,
        mpi=True,
        requirement="openmpi",
        script=imports("chainermn", "mpi4py", "horovod"),
    ),
    "torchrun": Launcher(
        _torchrun,
        module="torch",
        requirement="torch",
        tags=False,
        script=r"torch\.distributed|init_process_group|DistributedDataParallel",
        preload=_OF_DDP,
    ),
    "accelerate": Launcher(
        _accelerate,
        module="accelerate",
        requirement="accelerate",
        tags=False,
        script=imports("accelerate"),
        preload=(*_OF_DDP, "accelerate"),
        # Without a GPU its ranks would not find each other, and train alone (accelerate 1.15).
        without_gpu={"ACCELERATE_USE_CPU": "true"},
    ),
    "deepspeed": Launcher(
        _deepspeed,
        module="deepspeed",
        requirement="deepspeed",
        tags=False,
        script=imports("deepspeed"),
    ),
    "none": Launcher(lambda start: [], _plain_environment, parallel=False),
}


def is_mpi(name: str) -> bool:
    """Whether a launcher is Open MPI's."""
    return name in LAUNCHERS and LAUNCHERS[name].mpi


def variables(name: str, gpus: int) -> dict[str, str]:
    """The variables of all ranks of a launcher, each of which has so many GPUs."""
    if gpus:
        return {protocol.ENV_GPUS: str(gpus)}
    launcher = LAUNCHERS.get(name)
    return {} if launcher is None else launcher.without_gpu


def start_count(name: str, nodes: int, run_on: str) -> int:
    """On how many of the *nodes* a launcher is started."""
    launcher = LAUNCHERS.get(name)
    return 1 if run_on == "first" or launcher is None or launcher.once else nodes


def pool_scheduler(
    python: str,
    workers: int,
    interruptions: int,
    start: float | None = None,
    driver: float | None = None,
    replacement: float | None = None,
) -> list[str]:
    """The scheduler of a pool, by the image's *python*; it needs `protocol.ENV_POOL_TLS` in its environment.

    *start* are the seconds in which a first driver has to connect, and *driver* those after which it ends without one;
    *replacement* are those for which drivers wait for workers once all are lost.
    """
    arguments = [python, "-m", POOL_SCHEDULER]
    arguments += ["--workers=%d" % workers, "--interruptions=%d" % interruptions]
    limits = (("--start-limit", start), ("--driver-limit", driver), ("--replacement-limit", replacement))
    return arguments + ["%s=%g" % (option, seconds) for option, seconds in limits if seconds is not None]


def pool_driver(
    scheduler: Sequence[str], command: Sequence[str], forks: str | None, wait_for: str | None = None
) -> list[str]:
    """The scheduler with the *command* of a pool's driver or of a stream's launcher, with which it ends.

    The scheduler is a fork of the server at *forks*, if there is one. After a command that succeeded it ends only once
    the file *wait_for* exists.
    """
    python, module, _, *options = scheduler
    own = ["--fork=" + forks] if forks else []
    own += ["--wait-for=" + wait_for] if wait_for else []
    return [python, module, "spotmpi.programs.pool.driver", *own, *options, "--", *command]


def pool_worker(python: str, worker: str, address: str, folder: str) -> list[str]:
    """The *worker*, such as worker/3, of a pool whose scheduler is at *address*; it works in *folder*."""
    return [
        python,
        "-m",
        POOL_WORKER,
        "--worker=" + worker,
        "--address=" + address,
        "--folder=" + folder,
    ]
