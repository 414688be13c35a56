"""Diagnoses why a launcher ended, from its exit code and its last lines. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from . import protocol
from .lines import Line

_SIGNALED = re.compile(r"rank (\d{1,9}) with PID \d+ on node \S+ exited on\s+signal (\d{1,9})")
_EXITED = re.compile(r"(?:@\d+|\[\d+,\d+\]),(\d{1,9})\]\s+Exit code:\s+(\d{1,9})")  # Open MPI 5, 4
_TORCHRUN = re.compile(r"rank\s+: (\d{1,9}) \(local_rank: \d+\)\s+exitcode\s+: (-?\d{1,9}) \(pid")
_LOST_DAEMON = re.compile(r"lost communication with a remote daemon\..*?Remote daemon: \S+ on node (\S+)")
_CALLED = r'process rank (\d{1,9}) with PID \d+ on node \S+ calling "abort"'  # Open MPI 5
_ABORTED = re.compile(_CALLED + r"|MPI_ABORT was invoked on rank (\d{1,9}) in communicator MPI_COMM_WORLD")  # 4
_NO_FINALIZE = re.compile(r"process rank (\d{1,9}) with PID \d+ on node \S+ exiting improperly")
_EXCEPTION = re.compile(
    r"(?:\[\S+\] \*\*\* (?=MPI_ERR_))?((?:MPI_ERR_\w+|\w[\w.]*(?:Error|Exception|Interrupt|Exit))\b.*)"
)
# Parent and child both put ssh into a process group of its own; the parent warns where it is late (open-mpi/ompi#2957).
_HARMLESS = re.compile(r"\[\S+\] plm:\w+: Warning: setpgid\(\d+,\d+\) failed in parent\b")

SCHEDULER_END = "node 0: the scheduler "  # how a pool's launcher begins the line that says why its scheduler ended
_MAX_OWN_LINE = 1000  # characters; no launcher prints longer lines itself


def describe(node: int, code: int, lines: Iterable[Line]) -> str:
    """Why node *node*'s launcher ended with *code* (negative: killed by that signal); *lines* are its last `Line`s."""
    return protocol.truncate(_diagnose(node, code, [line for line in lines if line.stream == "e"]))


def process_reason(code: int, lines: Iterable[Line]) -> str:
    """How a process that starts no ranks ended, as a predicate, with its last message in *lines*."""
    return protocol.truncate(_reason(code, [line for line in lines if line.stream == "e"]))


def rank_end(rank: int, code: int, lines: Iterable[Line]) -> str:
    """Why a rank ended with *code* (negative: killed by that signal), of whose launcher *lines* are the last."""
    return protocol.truncate(_worker(str(rank), str(code), [line for line in lines if line.stream == "e"]))


def exception_of_rank(lines: Iterable[Line]) -> tuple[int, str] | None:
    """The first rank whose last line on stderr is that of an exception with a traceback, and this line; or None."""
    last: dict[int, str] = {}
    with_traceback = set()
    for line in lines:
        if line.stream == "e" and line.rank is not None:
            last[line.rank] = line.text
            if line.text.startswith("Traceback (most recent call last):"):
                with_traceback.add(line.rank)
    matches = [(rank, _EXCEPTION.match(text)) for rank, text in last.items() if rank in with_traceback]
    return next(((rank, protocol.truncate(match.group(1))) for rank, match in matches if match), None)


def is_harmless(text: str) -> bool:
    """Whether a line is a harmless warning of mpirun."""
    return _HARMLESS.match(text) is not None


def process_end(code: int) -> str:
    """How a process with this exit *code* ended (negative: killed by that signal), as a predicate."""
    return "was killed by %s" % _name(-code) if code < 0 else "ended with exit code %d" % code


def _diagnose(node: int, code: int, lines: list[Line]) -> str:
    scheduler = [line.text for line in lines if line.rank is None and line.text.startswith(SCHEDULER_END)]
    if scheduler:
        return scheduler[-1]
    output = _launcher_output(lines)
    worker = _TORCHRUN.findall(output)
    if worker:
        rank, exit_code = worker[-1]
        return _worker(rank, exit_code, lines)
    killed = _SIGNALED.search(output)
    if killed:
        return "rank %s was killed by %s" % (killed.group(1), _name(int(killed.group(2))))
    exited = _EXITED.search(output)
    if exited:
        rank = int(exited.group(1))
        return "rank %d ended with exit code %s%s" % (rank, exited.group(2), _exception(lines, rank))
    lost = _LOST_DAEMON.search(output)
    if lost:
        return "lost %s: mpirun's daemon on it no longer answers" % lost.group(1)
    aborted = _ABORTED.search(output)
    if aborted:
        rank = int(aborted.group(1) or aborted.group(2))
        return "rank %d called MPI_Abort with %d%s" % (rank, code, _exception(lines, rank))
    no_finalize = _NO_FINALIZE.search(output)
    if no_finalize:
        return "rank %s ended without MPI_Finalize" % no_finalize.group(1)
    return "the launcher on node %d %s" % (node, _reason(code, lines))


def _reason(code: int, lines: list[Line]) -> str:
    if code < 0:
        return process_end(code)
    if code > 128 and _known_signal(code - 128):
        return "ended with exit code %d (%s)" % (code, _name(code - 128))
    return "ended with exit code %d%s" % (code, _exception(lines, None) or _last(lines))


def effective_exit_code(code: int, lines: Iterable[Line]) -> int:
    """The exit code that counts: launchers print more than their own *code* says.

    torchrun prints that of the first worker. mpirun of Open MPI 5 exits with 0 after it has lost a host.
    """
    output = _launcher_output(lines)
    worker = _TORCHRUN.findall(output) if code else []
    if worker:
        return int(worker[-1][1])
    rank_failed = _SIGNALED.search(output) or _EXITED.search(output)
    return protocol.INTERRUPTED if _LOST_DAEMON.search(output) and not rank_failed else code


def _launcher_output(lines: Iterable[Line]) -> str:
    """What the launcher itself printed, joined to one line."""
    return " ".join(line.text[:_MAX_OWN_LINE].strip() for line in lines if line.stream == "e" and line.rank is None)


def _worker(rank: str, code: str, lines: list[Line]) -> str:
    if int(code) < 0:
        return "rank %s was killed by %s" % (rank, _name(-int(code)))
    return "rank %s ended with exit code %s%s" % (rank, code, _exception(lines, int(rank)))


def _exception(lines: list[Line], rank: int | None) -> str:
    """The last exception that *rank* (or any, for None) printed, as the end of a sentence."""
    matches = [_EXCEPTION.match(line.text) for line in lines if rank is None or line.rank == rank]
    exceptions = [match.group(1) for match in matches if match]
    return ": " + exceptions[-1] if exceptions else ""


def _last(lines: list[Line]) -> str:
    texts = [line.text.strip() for line in lines if line.text.strip(" -") and not is_harmless(line.text)]
    return ": " + texts[-1] if texts else ""


def _known_signal(number: int) -> bool:
    return number in {item.value for item in signal.Signals}


def _name(number: int) -> str:
    return signal.Signals(number).name if _known_signal(number) else "signal %d" % number
