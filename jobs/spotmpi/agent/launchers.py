"""The argument lists that start ranks, for each launcher and Open MPI family. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

_MCA = ("mca", "gmca", "omca", "prtemca", "pmixmca")

PORT = "{spotmpi-port}"  # replaced by a port when the attempt starts


def family(version: str) -> int:
    """Open MPI's major version in *version*, the output of `mpirun --version`; 5 where it has none."""
    match = re.search(r"\(Open MPI\) (\d+)", version)
    return int(match.group(1)) if match else 5


def mpirun(mpirun_path: str, family: int, ranks: int, root: bool) -> list[str]:
    """The mpirun arguments before the rank's command, all ranks on this machine.

    *family* is Open MPI's major version, 4 or 5; *root* tells whether the user is root. More ranks than cores are
    allowed; the plan has a note about that.
    """
    arguments = [mpirun_path, "-np", str(ranks), "--bind-to", "none"]
    if family >= 5:
        arguments += ["--map-by", "slot:OVERSUBSCRIBE", "--output", "tag"]
    else:
        arguments += ["--map-by", "slot", "--oversubscribe", "--tag-output"]
    return arguments + (["--allow-run-as-root"] if root else [])


def session_environment(folder: str) -> dict[str, str]:
    """The variables that let mpirun keep its session folder, named after its process id, in *folder*, in place of /tmp.

    A killed mpirun leaves that folder, and a later one of Open MPI 5.0 with the same process id ends with code 213.
    """
    return {"PRTE_MCA_prte_tmpdir_base": folder, "OMPI_MCA_orte_tmpdir_base": folder}


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


class Remote(NamedTuple):
    """How mpirun reaches the other hosts: hostfile, configuration of ssh, and the network interface."""

    hostfile: str
    ssh_config: str
    interface: str
    fabric: bool = False  # as `uses_fabric`


def mpirun_over_ssh(mpirun_path: str, family: int, ranks: int, remote: Remote, extra: Sequence[str] = ()) -> list[str]:
    """The mpirun arguments before the rank's command, with ranks on other hosts too and the user's *extra* arguments.

    The defaults of the published runs (ChainerCV SSD300 on EKS), in each family's spelling, with two differences: the
    interface to use is named instead of those to exclude, and the map of ranks, which Open MPI 5
    spreads over dozens of lines, is left to the record, as are timestamps. A default that *extra* arguments set is left
    out, since Open MPI 5 refuses an option that is given twice.
    """
    defaults = [["--bind-to", "none"], ["--map-by", "slot"], ["--mca", "pml", "ob1"]]
    # Families lack one of these components each, which does no harm; for ofi see `transport_environment`.
    defaults += [["--mca", "btl", "^openib" if remote.fabric else "^openib,ofi"]]
    defaults += [["--mca", "btl_tcp_if_include", remote.interface]]
    if family >= 5:
        defaults += [["--prtemca", "plm_ssh_no_tree_spawn", "1"]]
        wire_up = ["--prtemca", "prte_if_include", remote.interface]
        fixed = ["--prtemca", "plm_ssh_args", "-F " + remote.ssh_config, "--output", "tag"]
    else:
        defaults += [["--mca", "plm_rsh_no_tree_spawn", "1"]]
        # Where seccomp keeps ranks from reading each other's memory, 4 warns with every message and 5 not at all.
        defaults += [["--mca", "btl_vader_single_copy_mechanism", "none"]]
        wire_up = ["--mca", "oob_tcp_if_include", remote.interface]
        fixed = ["--mca", "plm_rsh_args", "-F " + remote.ssh_config, "--tag-output"]
    defaults += [wire_up] if remote.interface != "lo" else []  # Open MPI 5 refuses it, even for one host
    overridden = set(_settings(extra))
    effective = [default for default in defaults if not overridden.intersection(_settings(default))]
    options = [argument for default in effective for argument in default]
    return [mpirun_path, "--hostfile", remote.hostfile, "-np", str(ranks), *options, *fixed, *extra]


def _settings(arguments: Sequence[str]) -> Iterator[str]:
    """The options and MCA parameters that *arguments* set; ``_if_exclude`` counts as ``_if_include``, its opposite."""
    for number, argument in enumerate(arguments):
        option = argument.split("=")[0].lstrip("-") if argument.startswith("-") else ""
        if option in _MCA:
            yield "".join(arguments[number + 1 : number + 2]).replace("_if_exclude", "_if_include")
        elif option:
            yield option


def hostfile(hosts: list[str], slots: int) -> str:
    """The text of a hostfile that gives every host the same number of slots."""
    return "".join("%s slots=%d\n" % (host, slots) for host in hosts)


def torchrun(python: str, nodes: int, node: int, slots: int, address: str = "127.0.0.1") -> list[str]:
    """The torchrun arguments of one node before the rank's command; rendezvous is on node 0's address."""
    return [
        python,
        "-m",
        "torch.distributed.run",
        "--nnodes=%d" % nodes,
        "--node-rank=%d" % node,
        "--nproc-per-node=%d" % slots,
        "--master-addr=%s" % address,
        "--master-port=%s" % PORT,
        "--max-restarts=0",
    ]


def plain_environment(nodes: int, node: int, address: str = "127.0.0.1") -> dict[str, str]:
    """The environment variables of a plain command on one node; ranks are nodes, as in a PyTorchJob."""
    return {"MASTER_ADDR": address, "MASTER_PORT": PORT, "WORLD_SIZE": str(nodes), "RANK": str(node)}


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
    arguments = [python, "-m", "spotmpi.programs.pool.scheduler"]
    arguments += ["--workers=%d" % workers, "--interruptions=%d" % interruptions]
    limits = (("--start-limit", start), ("--driver-limit", driver), ("--replacement-limit", replacement))
    return arguments + ["%s=%g" % (option, seconds) for option, seconds in limits if seconds is not None]


def pool_driver(scheduler: Sequence[str], command: Sequence[str], wait_for: str | None = None) -> list[str]:
    """The scheduler with the *command* of a pool's driver or of a stream's launcher, with which it ends.

    After a command that succeeded it ends only once the file *wait_for* exists.
    """
    python, module, _, *options = scheduler
    wait = ["--wait-for=" + wait_for] if wait_for else []
    return [python, module, "spotmpi.programs.pool.driver", *wait, *options, "--", *command]


def pool_worker(python: str, worker: int, address: str, folder: str) -> list[str]:
    """Worker number *worker* of the pool whose scheduler is at *address*, with *folder* as its working folder."""
    return [
        python,
        "-m",
        "spotmpi.programs.pool.worker",
        "--worker=%d" % worker,
        "--address=" + address,
        "--folder=" + folder,
    ]
