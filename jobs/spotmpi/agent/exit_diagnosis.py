"""Says in words why a launcher ended, from its exit code and its last lines. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from . import protocol
from .lines import Line

_SIGNALLED = re.compile(r"rank (\d{1,9}) with PID \d+ on node \S+ exited on\s+signal (\d{1,9})")
_EXITED = re.compile(r"(?:@\d+|\[\d+,\d+\]),(\d{1,9})\]\s+Exit code:\s+(\d{1,9})")  # Open MPI 5, 4
_UNDER_TORCHRUN = re.compile(r"rank\s+: (\d{1,9}) \(local_rank: \d+\)\s+exitcode\s+: (-?\d{1,9}) \(pid")
_LOST = re.compile(r"lost communication with a remote daemon\..*?Remote daemon: \S+ on node (\S+)")
_CALLED = r'process rank (\d{1,9}) with PID \d+ on node \S+ calling "abort"'  # Open MPI 5
_ABORTED = re.compile(_CALLED + r"|MPI_ABORT was invoked on rank (\d{1,9}) in communicator MPI_COMM_WORLD")  # 4
_LEFT = re.compile(r"process rank (\d{1,9}) with PID \d+ on node \S+ exiting improperly")
_EXCEPTION = re.compile(
    r"(?:\[\S+\] \*\*\* (?=MPI_ERR_))?((?:MPI_ERR_\w+|\w[\w.]*(?:Error|Exception|Interrupt|Exit))\b.*)"
)

_WORDS = 1000  # letters of a line; no launcher's own are longer


def describe(node: int, code: int, lines: Iterable[Line]) -> str:
    """Why node *node*'s launcher ended with *code* (negative: killed by that signal); *lines* are its last `Line`s."""
    return protocol.bounded(_described(node, code, [line for line in lines if line.stream == "e"]))


def _described(node: int, code: int, said: list[Line]) -> str:
    own_words = _own_words(said)
    worker = _UNDER_TORCHRUN.findall(own_words)
    if worker:
        rank, ended = worker[-1]
        return _worker(rank, ended, said)
    killed = _SIGNALLED.search(own_words)
    if killed:
        return "rank %s was killed by %s" % (killed.group(1), _name(int(killed.group(2))))
    exited = _EXITED.search(own_words)
    if exited:
        rank = int(exited.group(1))
        return "rank %d ended with exit code %s%s" % (rank, exited.group(2), _exception(said, rank))
    lost = _LOST.search(own_words)
    if lost:
        return "lost %s: mpirun's daemon there does not answer any more" % lost.group(1)
    aborted = _ABORTED.search(own_words)
    if aborted:
        rank = int(aborted.group(1) or aborted.group(2))
        return "rank %d called MPI_Abort with %d%s" % (rank, code, _exception(said, rank))
    left = _LEFT.search(own_words)
    if left:
        return "rank %s ended without MPI_Finalize" % left.group(1)
    if code < 0:
        return "the launcher on node %d was killed by %s" % (node, _name(-code))
    if code > 128 and _known_signal(code - 128):
        return "the launcher on node %d ended with exit code %d (%s)" % (node, code, _name(code - 128))
    return "the launcher on node %d ended with exit code %d%s" % (node, code, _exception(said, None) or _last(said))


def exit_code(code: int, lines: Iterable[Line]) -> int:
    """The exit code that is meant: launchers have words that say more than their own *code*.

    torchrun tells the first worker's. mpirun of Open MPI 5 ends with 0 where it lost a host in the middle of the work.
    """
    own_words = _own_words(lines)
    worker = _UNDER_TORCHRUN.findall(own_words) if code else []
    if worker:
        return int(worker[-1][1])
    of_a_rank = _SIGNALLED.search(own_words) or _EXITED.search(own_words)
    return protocol.INTERRUPTED if _LOST.search(own_words) and not of_a_rank else code


def _own_words(lines: Iterable[Line]) -> str:
    """What the launcher itself said, on one line."""
    return " ".join(line.text[:_WORDS].strip() for line in lines if line.stream == "e" and line.rank is None)


def _worker(rank: str, code: str, said: list[Line]) -> str:
    if int(code) < 0:
        return "rank %s was killed by %s" % (rank, _name(-int(code)))
    return "rank %s ended with exit code %s%s" % (rank, code, _exception(said, int(rank)))


def _exception(said: list[Line], rank: int | None) -> str:
    """The last exception that *rank* (or anybody, for None) printed, as the end of a sentence."""
    said_there = [_EXCEPTION.match(line.text) for line in said if rank is None or line.rank == rank]
    found = [match.group(1) for match in said_there if match]
    return ": " + found[-1] if found else ""


def _last(said: list[Line]) -> str:
    found = [line.text.strip() for line in said if line.text.strip(" -")]
    return ": " + found[-1] if found else ""


def _known_signal(number: int) -> bool:
    return number in {item.value for item in signal.Signals}


def _name(number: int) -> str:
    return signal.Signals(number).name if _known_signal(number) else "signal %d" % number
