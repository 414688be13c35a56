"""The program that kills the ranks of a run on one node, which `spotmpi drill --fault kill` runs there."""

from __future__ import annotations

from spotmpi.agent.plan import Member
from spotmpi.core.errors import SpotmpiError

# Its argument is the run, and it prints a line for each rank that it kills. The agent has no SPOTMPI_ATTEMPT, or an
# environment that cannot be read (see `agent.processes.protect_output`). A rank that is a fork has the environment of
# its server in /proc, and the server as its parent.
PROGRAM = """
import os, signal, sys
def read(process, name):
    with open("/proc/%s/%s" % (process, name), "rb") as file:
        return file.read()
def is_server(process):
    return b"fork_server.py" in read(process, "cmdline")
def is_rank(process):
    variables = read(process, "environ").split(b"\\0")
    if b"SPOTMPI_RUN=" + sys.argv[1].encode() not in variables:
        return False
    if any(each.startswith(b"SPOTMPI_ATTEMPT=") for each in variables):
        return True
    parent = int(read(process, "stat").rpartition(b")")[2].split()[1])
    return parent > 0 and is_server(process) and is_server(parent)
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            if is_rank(name):
                os.kill(int(name), signal.SIGKILL)
                print("killed")
        except OSError:
            continue
"""


class NotRunning(SpotmpiError):
    """A node has no running pod or rank."""


def require_killed(printed: str, run: str, member: Member) -> None:
    """Check what the program has printed on a node.

    Raises:
        NotRunning: it has killed no rank.
    """
    if "killed" not in printed.split():
        raise NotRunning(f"{member} of run {run} has no running ranks; see `spotmpi logs {run}`")
