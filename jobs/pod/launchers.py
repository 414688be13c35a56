"""The argument lists that start ranks, for each launcher and Open MPI family. Pure."""

from __future__ import annotations

PORT = "{spotmpi-port}"  # stands for a port that is chosen when the attempt starts


def mpirun(mpirun_path: str, family: int, ranks: int, root: bool) -> list[str]:
    """The mpirun arguments before the rank's command, all ranks on this machine.

    *family* is Open MPI's major version, 4 or 5; *root* tells whether the user is root. More ranks than cores are
    allowed: that they are is said elsewhere.
    """
    arguments = [mpirun_path, "-np", str(ranks), "--bind-to", "none"]
    if family >= 5:
        arguments += ["--map-by", "slot:OVERSUBSCRIBE", "--output", "tag"]
    else:
        arguments += ["--map-by", "slot", "--oversubscribe", "--tag-output"]
    return arguments + (["--allow-run-as-root"] if root else [])


def mpirun_over_ssh(
    mpirun_path: str, family: int, ranks: int, hostfile: str, ssh_config: str, interface: str
) -> list[str]:
    """The mpirun arguments before the rank's command, with ranks on the hosts of *hostfile*.

    The defaults of the published runs (ChainerCV SSD300 on EKS), in each family's spelling, with two differences: the
    interface that leads to the peers is named instead of those that do not, and the map of ranks, which Open MPI 5
    spreads over dozens of lines, is left to the record, as are timestamps.
    """
    shared = ["--hostfile", hostfile, "-np", str(ranks), "--bind-to", "none", "--map-by", "slot"]
    shared += ["--mca", "pml", "ob1", "--mca", "btl", "^openib", "--mca", "btl_tcp_if_include", interface]
    if family >= 5:
        runtime = ["--prtemca", "plm_ssh_no_tree_spawn", "1", "--prtemca", "plm_ssh_args", "-F " + ssh_config]
        runtime += ["--prtemca", "prte_if_include", interface]
        return [mpirun_path, *shared, *runtime, "--output", "tag"]
    runtime = ["--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "plm_rsh_args", "-F " + ssh_config]
    runtime += ["--mca", "oob_tcp_if_include", interface]
    return [mpirun_path, *shared, *runtime, "--tag-output"]


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
    """What a plain command on one node finds in its environment: per node, as PyTorchJob's users expect."""
    return {"MASTER_ADDR": address, "MASTER_PORT": PORT, "WORLD_SIZE": str(nodes), "RANK": str(node)}
