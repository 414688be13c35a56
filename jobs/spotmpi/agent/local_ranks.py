"""Starts the ranks of one node with torchrun's variables, but without torch, whose import takes torchrun seconds.

    python local_ranks.py --nnodes=N --node-rank=N --nproc-per-node=N --master-addr=HOST --master-port=N COMMAND ...

The options are torchrun's. It is run by path, alone. Where a rank fails, the others get SIGTERM and 30 s later SIGKILL,
as from torchrun, and it ends with that rank's exit code: 128 and the signal where one killed it. Rank 0 serves the
store by which ranks find each other, in place of this process (torch 2.15, local_elastic_agent.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GRACE = 30  # seconds from SIGTERM to SIGKILL


def variables(options: dict[str, str], local_rank: int) -> dict[str, str]:
    """The variables of one rank, as torchrun sets them."""
    node, nodes, ranks = (int(options[name]) for name in ("node-rank", "nnodes", "nproc-per-node"))
    rank, size = str(node * ranks + local_rank), str(nodes * ranks)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": options["master-addr"],
        "MASTER_PORT": options["master-port"],
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": os.environ.get("SPOTMPI_RUN", "none"),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


class Ranks:
    """The processes of the ranks of this node."""

    def __init__(self) -> None:
        self._processes: list[int] = []
        self._code: int | None = None  # of the first that has failed, or of this process where it was ended
        for number in _SIGNALS:
            signal.signal(number, lambda number, frame: self._stop(128 + number, number))
        signal.signal(signal.SIGALRM, lambda number, frame: self._signal(signal.SIGKILL))

    def start(self, command: list[str], environments: list[dict[str, str]]) -> None:
        """Start one in each environment; signals wait until all are there."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for each in environments:
            environment = {**os.environ, **each}
            pid = os.posix_spawnp(command[0], command, environment, setsigmask=(), setsigdef=_SIGNALS)
            self._processes.append(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def wait(self) -> int:
        """Wait for the end of all; the exit code."""
        while self._processes:
            pid, status = os.wait()
            if pid in self._processes:
                self._processes.remove(pid)
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                if code:
                    self._stop(code, signal.SIGTERM)
        return self._code or 0

    def _stop(self, code: int, number: int) -> None:
        if self._code is None:
            self._code = code
            signal.alarm(_GRACE)
            self._signal(number)

    def _signal(self, number: int) -> None:
        for pid in self._processes:
            with contextlib.suppress(ProcessLookupError):  # it has just been waited for
                os.kill(pid, number)


def main(arguments: list[str]) -> int:
    """Run the ranks; the exit code."""
    options: dict[str, str] = {}
    while arguments and arguments[0].startswith("--"):
        name, _, value = arguments.pop(0)[2:].partition("=")
        options[name] = value
    ranks = Ranks()
    ranks.start(arguments, [variables(options, local_rank) for local_rank in range(int(options["nproc-per-node"]))])
    return ranks.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
