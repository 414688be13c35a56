"""Starts the ranks of one node with torchrun's variables, but without torch, whose import takes torchrun seconds.

    python local_ranks.py --nnodes=N --node-rank=N --nproc-per-node=N --master-addr=HOST --master-port=N COMMAND ...
    python local_ranks.py ... --accelerate COMMAND ...

With --accelerate ranks also get the variables of Hugging Face's `accelerate launch`; where those would follow from more
than its options, that replaces this process (accelerate 1.15).
The options are torchrun's. It is run by path, alone. Where a rank fails, the others get SIGTERM and 30 s later SIGKILL,
as from torchrun, and it ends with that rank's exit code: 128 and the signal where one killed it. Rank 0 serves the
store by which ranks find each other, in place of this process (torch 2.15, local_elastic_agent.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

TYPE_CHECKING = False  # typing's own costs an import; type checkers know the name
if TYPE_CHECKING:
    from typing import NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_OF_RANKS = (signal.SIGUSR1, signal.SIGUSR2)  # which `scancel` or a job's --signal sends to all processes
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


def accelerate_variables() -> dict[str, str]:
    """The variables of all ranks by `accelerate launch`; those that begin with its name are its defaults."""
    dynamo = {"BACKEND": "NO", "MODE": "default"}
    dynamo.update(dict.fromkeys(("USE_FULLGRAPH", "USE_DYNAMIC", "USE_REGIONAL_COMPILATION"), "False"))
    variables = {"ACCELERATE_DYNAMO_" + name: value for name, value in dynamo.items()}
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return {**variables, "ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": threads}


def needs_accelerate(options: dict[str, str], gpus: str = "/proc/driver/nvidia/gpus") -> bool:
    """Whether variables follow from the user's file of defaults, from GPUs, or from a rank that is alone."""
    home = os.environ.get("HF_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
    if os.path.isfile(os.path.expanduser(os.path.join(home, "accelerate", "default_config.yaml"))):
        return True
    with contextlib.suppress(OSError):
        for gpu in os.listdir(gpus):
            with open(os.path.join(gpus, gpu, "information"), encoding="utf-8") as information:
                if "RTX 40" in information.read():
                    return True
    return int(options["nnodes"]) * int(options["nproc-per-node"]) == 1


def launch_by_accelerate(options: dict[str, str], command: list[str]) -> NoReturn:
    """Replace this process by `accelerate launch`, which refuses --multi_gpu for a single rank."""
    nodes = int(options["nnodes"])
    ranks = nodes * int(options["nproc-per-node"])
    arguments = [
        *(["--multi_gpu"] if ranks > 1 else []),
        "--num_machines=%d" % nodes,
        "--machine_rank=%s" % options["node-rank"],
        "--num_processes=%d" % ranks,
        "--main_process_ip=%s" % options["master-addr"],
        "--main_process_port=%s" % options["master-port"],
        "--mixed_precision=no",
        "--dynamo_backend=no",
        "--no_python",
    ]
    os.execv(sys.executable, [sys.executable, "-m", "accelerate.commands.launch", *arguments, *command])


class Ranks:
    """The processes of the ranks of this node."""

    def __init__(self) -> None:
        self._processes: list[int] = []
        self._code: int | None = None  # of the first that has failed, or of this process where it was ended
        for number in _SIGNALS:
            signal.signal(number, lambda number, frame: self._stop(128 + number, number))
        for number in _OF_RANKS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, lambda number, frame: self._signal(signal.SIGKILL))

    def start(self, command: list[str], environments: list[dict[str, str]]) -> None:
        """Start one in each environment; signals wait until all are there."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for each in environments:
            environment = {**os.environ, **each}
            pid = os.posix_spawnp(command[0], command, environment, setsigmask=(), setsigdef=_SIGNALS + _OF_RANKS)
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
    if "accelerate" in options and needs_accelerate(options):
        launch_by_accelerate(options, arguments)
    more = accelerate_variables() if "accelerate" in options else {}
    environments = [{**more, **variables(options, rank)} for rank in range(int(options["nproc-per-node"]))]
    ranks = Ranks()
    ranks.start(arguments, environments)
    return ranks.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
