"""An agent of a run: the first process of each pod, or the one that runs all of a run on this machine.

    python -m spotmpi.agent               in a pod: its part of a run, reported by the exit code
    python -m spotmpi.agent RUN_FOLDER    on this machine: the run in that folder, to its end
    python -m spotmpi.agent --wait        the same, for the folder that comes over stdin

Node 0 coordinates: it waits for the others, starts the launcher, records the run and decides how each attempt ended.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from . import coordinator, processes, protocol
from .clock import CLOCK, Clock
from .context import AgentContext, in_pod, in_run_folder, is_controller, read_pod_context
from .handover import WAIT
from .outcomes import repeat
from .pod_context import SHARED_MEMORY
from .stop_requests import PreemptionNotice

if TYPE_CHECKING:  # each place needs its own transport alone
    from .children import Children
    from .tcp import Tcp


def main(arguments: list[str]) -> int:
    """Run the agent of this pod, or that of a run folder; the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # with one that a caller ignores, each exit code is 0 in Python
    if arguments == [WAIT]:
        from . import children, handover, hardware  # all that a run imports at its start

        assert children and hardware
        folder = handover.receive()
        return 0 if folder is None else run_folder(folder, CLOCK)
    return run_folder(arguments[0], CLOCK) if arguments else run_pod()


def run_pod() -> int:
    """Run this pod's part of a run; the exit code is for the pod failure policy."""
    if is_controller():
        from . import placement_controller

        return placement_controller.run()
    from .tcp import Tcp

    return run_member(read_pod_context(in_pod(), CLOCK), Tcp(), PreemptionNotice("the pod of this node"))


def run_member(context: AgentContext, transport: Tcp, notice: PreemptionNotice, copies_port: int | None = None) -> int:
    """Run *context*'s part of a run of agents on machines of their own, which *notice* may end; the exit code.

    Node 0 and its neighbour exchange checkpoints in memory on *copies_port* and the next one, by default their own.
    """
    from . import worker

    processes.adopt_orphans()
    processes.protect_output()
    os.makedirs(context.mounts.work, exist_ok=True)
    started = context.clock()
    if protocol.ENV_CHECKPOINT_MEMORY_PATH in context.plan["environment"]:
        from .checkpoint_copies import Exchange  # few runs need it

        transport.exchange = Exchange(copies_port)
    try:
        if transport.exchange is not None:
            transport.exchange.begin(context)
        if context.is_coordinator:
            code = coordinator.run(context, transport, notice)
            _keep_checkpoints(context)
            return code
        code = worker.run(context, transport, notice, started)
        if context.slurm and code == protocol.INTERRUPTED:  # node 0's memory may be lost, and this one's ends now
            _keep_checkpoints(context)
        return code
    finally:
        if transport.exchange is not None:
            transport.exchange.close()
        processes.exempt.clear()
        processes.kill_descendants()


def run_folder(folder: str, clock: Clock) -> int:
    """Run all of a run on this machine; whoever starts this process holds the lock of its folder and passes it on."""
    from . import hardware
    from .children import Children, read_context

    folder = os.path.abspath(folder)
    name = "spotmpi-" + os.urandom(8).hex()
    scratch, memory = os.path.join(temporary_folder(), name), os.path.join(SHARED_MEMORY, name)
    own = in_run_folder(folder, scratch, hardware.own_cgroup(), memory)
    context = repeat(lambda: read_context(own, clock), clock)
    os.chdir("/")
    guard = os.getpid()

    def work() -> int:
        try:
            return run_children(context, Children(sys.executable))
        finally:
            if os.getppid() != guard:  # it was killed, and cannot clean up
                _clean_up(context)

    try:
        return processes.run_guarded(work)
    finally:
        _clean_up(context)


def temporary_folder() -> str:
    """TMPDIR, unless it cannot be written or is relative: that of a job which has ended is still in its terminal."""
    folder = os.environ.get("TMPDIR", "")
    return folder if os.path.isabs(folder) and os.access(folder, os.W_OK | os.X_OK) else "/tmp"


def _clean_up(context: AgentContext) -> None:
    """Remove what a run on this machine has left outside of its folder."""
    import shutil  # delays no start

    _keep_checkpoints(context, clear=True)
    for folder in (context.mounts.work, context.mounts.shared_memory):
        shutil.rmtree(str(folder), ignore_errors=True)


def run_children(context: AgentContext, transport: Children) -> int:
    """Run a run whose processes are all children of this one; the exit code."""
    processes.adopt_orphans()
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    return coordinator.run(context, transport, PreemptionNotice("the agent", [signal.SIGTERM]))


def _keep_checkpoints(context: AgentContext, clear: bool = False) -> None:
    """Copy what only memory has to the volume, and *clear* memory."""
    if protocol.ENV_CHECKPOINT_MEMORY_PATH not in context.plan["environment"]:
        return
    from . import checkpoint_memory  # delays no start

    checkpoint_memory.preserve(context)
    if clear:
        checkpoint_memory.clear(context)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
