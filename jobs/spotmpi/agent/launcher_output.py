"""The output of a launcher: its lines with rank and stream, and what the last of them say about how it ended.

Patterns of ends are compiled where they are used, which Python remembers: a start does not wait for them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import launchers, protocol

_SIGNALED = r"rank (\d{1,9}) with PID \d+ on node \S+ exited on\s+signal (\d{1,9})"
_EXITED = r"(?:@\d+|\[\d+,\d+\]),(\d{1,9})\]\s+Exit code:\s+(\d{1,9})"  # Open MPI 5, 4
_TORCHRUN = r"rank\s+: (\d{1,9}) \(local_rank: \d+\)\s+exitcode\s+: (-?\d{1,9}) \(pid"
_LOST_DAEMON = r"lost communication with a remote daemon\..*?Remote daemon: \S+ on node (\S+)"
# Open MPI 5's mpirun on Slurm, with the wait status of the srun that runs its daemons.
_SRUN = r"srun returned non-zero exit status \((\d{1,9})\) from launching the per-node daemon"
# What srun prints without slurmctld, which no program can help: strings of slurm_errno.c.
_NO_CONTROLLER = r"srun: error: .*?(?:Unable to contact slurm controller|Socket timed out on send/recv operation)"
_CALLED = r'process rank (\d{1,9}) with PID \d+ on node \S+ calling "abort"'  # Open MPI 5
_ABORTED = _CALLED + r"|MPI_ABORT was invoked on rank (\d{1,9}) in communicator MPI_COMM_WORLD"  # 4
_NO_FINALIZE = r"process rank (\d{1,9}) with PID \d+ on node \S+ exiting improperly"
_OF_TORCH = r"^\[rank\d+\]: "  # in front of each line of a traceback, after torch.distributed.init_process_group
_EXCEPTION = r"(?:\[\S+\] \*\*\* (?=MPI_ERR_))?((?:MPI_ERR_\w+|\w[\w.]*(?:Error|Exception|Interrupt|Exit))\b.*)"
# Python's own lines where it has no such program.
_NOT_FOUND = r"(\S+: (?:can't open file '.*|No module named \S+|Error while finding module specification for .*))"
# Parent and child both put ssh into a process group of its own; the parent warns where it is late (open-mpi/ompi#2957).
_HARMLESS = r"\[\S+\] plm:\w+: Warning: setpgid\(\d+,\d+\) failed in parent\b"

SCHEDULER_END = "node 0: the scheduler "  # how a pool's launcher begins the line that says why its scheduler ended
SCHEDULER_SIGNALED = "was ended by SIGTERM or SIGINT from outside of the run"  # a scheduler exits with 0 then
_MPIRUN_SIGNALED = "exited with 1 and named no rank, as after SIGTERM, SIGINT or SIGHUP from outside of the run"
_MAX_MESSAGE = 20  # lines of an exception, such as PyTorch's with the name of each parameter that differs
_MAX_OWN_LINE = 1000  # characters; no launcher prints longer lines itself


class Line(NamedTuple):
    """One line of output; ``stream`` is o or e, ``rank`` None where the launcher does not tag it."""

    rank: int | None
    stream: str
    text: str


MAX_LINE = 1 << 20  # bytes; a longer line is split, unless it is a report (`protocol.MAX_REPORT`)
_MAX_STATE = 2048  # bytes of a progress bar

_TAG = re.compile(
    rb"\[\d{1,9},(\d{1,9})\]<std(out|err)>(\+?): ?"
)  # with a plus the line goes on (see `rank_wrapper.Tagger`)
_BREAK = re.compile(rb"\n|\[\d{1,9},(\d{1,9})\]<std(out|err)>:")  # the end of a piece of output
_PARTIAL_TAG = re.compile(rb"\[[\d,\]<>a-z]{0,30}\Z")


class LineSplitter:
    """Splits the bytes that arrive on one pipe into lines; a part without its newline waits for the rest."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._buffer = b""
        self._parts: dict[tuple[bytes, bytes], bytearray] = {}  # of unfinished lines, by rank and stream

    def feed(self, data: bytes) -> list[Line]:
        """The lines that *data* completes."""
        parts = (self._buffer + data).split(b"\n")
        self._buffer = parts.pop()
        while len(self._buffer) > MAX_LINE and len(self._buffer) > (limit := _limit(self._buffer)):
            parts.append(self._buffer[:limit])
            self._buffer = self._buffer[limit:]
        return [line for part in parts for each in _of_ranks(part) for line in self._line(each)]

    def states(self) -> list[Line]:
        """What unfinished lines with carriage returns show now: progress bars, which may end after hours."""
        bars = [(*source, data) for source, data in self._parts.items() if b"\r" in data]
        shown = [_tagged(rank, stream, _end(data)) for rank, stream, data in bars]
        return shown + ([Line(None, self._stream, _visible_text(_end(self._buffer)))] if b"\r" in self._buffer else [])

    def end(self) -> list[Line]:
        """The unfinished lines, when the pipe has closed."""
        data, self._buffer = self._buffer, b""
        lines = [line for part in _of_ranks(data) for line in self._line(part)] if data else []
        unfinished, self._parts = self._parts, {}
        return lines + [_tagged(rank, stream, data) for (rank, stream), data in unfinished.items()]

    def _line(self, data: bytes) -> Iterator[Line]:
        tag = _TAG.match(data)
        if not tag:
            yield Line(None, self._stream, _visible_text(data))
            return
        source = tag.group(1), tag.group(2)
        whole = self._parts.pop(source, bytearray())
        whole += data[tag.end() :]
        if tag.group(3) and len(whole) < _limit(whole):
            self._parts[source] = whole
        else:
            yield _tagged(*source, whole)


class PieceSplitter:
    """Assembles lines from a pipe where every piece of a rank's output is tagged, as Open MPI 4's mpirun does.

    A piece is one write of a rank, or a part of it: it may end in the middle of a line, and pieces of other ranks come
    in between. What follows the tag's colon is the output itself, without a space.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._buffer = b""
        self._source: tuple[bytes, bytes] | None = None  # rank and stream of the current piece
        self._parts: dict[tuple[bytes, bytes] | None, bytearray] = {}  # of unfinished lines

    def feed(self, data: bytes) -> list[Line]:
        """The lines that *data* completes."""
        data = self._buffer + data
        partial = _PARTIAL_TAG.search(data)
        data, self._buffer = (data[: partial.start()], data[partial.start() :]) if partial else (data, b"")
        lines, begin = [], 0
        for end in _BREAK.finditer(data):
            lines += self._piece(data[begin : end.start()])
            begin = end.end()
            if end.group() == b"\n":
                lines.append(self._line(self._source))
                self._source = None
            else:
                self._source = end.group(1), end.group(2)
        return lines + self._piece(data[begin:])

    def states(self) -> list[Line]:
        """As `LineSplitter.states`."""
        bars = [(source, data) for source, data in self._parts.items() if source and b"\r" in data]
        return [_tagged(*source, _end(data)) for source, data in bars]

    def end(self) -> list[Line]:
        """The unfinished lines, when the pipe has closed."""
        data, self._buffer = self._buffer, b""
        lines = self._piece(data)
        return lines + [self._line(source) for source in list(self._parts)]

    def _piece(self, data: bytes) -> list[Line]:
        """Add *data* to the current line; the lines that this makes too long."""
        whole = self._parts.get(self._source, bytearray())
        if data:
            whole += data
            self._parts[self._source] = whole
        return [self._line(self._source)] if len(whole) > _limit(whole) else []

    def _line(self, source: tuple[bytes, bytes] | None) -> Line:
        data = self._parts.pop(source, bytearray())
        return _tagged(*source, data) if source else Line(None, self._stream, _visible_text(data))


def describe(node: int, code: int, lines: Iterable[Line], launcher: str = "torchrun") -> str:
    """Why node *node*'s launcher ended with *code* (negative: killed by that signal); *lines* are its last `Line`s.

    The mpirun of Open MPI 5 says nothing when a signal ends it, and names each rank that fails.
    """
    errors = [line for line in lines if line.stream == "e"]
    own = [line.text for line in errors if line.rank is None and line.text.strip()]
    if launchers.is_mpi(launcher) and code == 1 and all(map(is_harmless, own)):
        return "mpirun on node %d %s" % (node, _MPIRUN_SIGNALED)
    what = "the command" if launcher == "none" else "the launcher"
    return protocol.truncate(_diagnose("%s on node %d" % (what, node), code, errors))


def process_reason(code: int, lines: Iterable[Line]) -> str:
    """How a process that starts no ranks ended, as a predicate, with its last message in *lines*."""
    return protocol.truncate(_reason(code, [line for line in lines if line.stream == "e"]))


def rank_end(rank: int, code: int, lines: Iterable[Line]) -> str:
    """Why a rank ended with *code* (negative: killed by that signal), of whose launcher *lines* are the last."""
    return protocol.truncate(_worker(str(rank), str(code), [line for line in lines if line.stream == "e"]))


def exception_of_rank(lines: Iterable[Line]) -> tuple[int, str] | None:
    """The first rank whose last output on stderr is an exception with a traceback, and its first line; or None."""
    texts: dict[int, list[str]] = {}
    for line in lines:
        if line.stream == "e" and line.rank is not None:
            texts.setdefault(line.rank, []).append(re.sub(_OF_TORCH, "", line.text))
    found = [(rank, _uncaught(of_rank)) for rank, of_rank in texts.items()]
    return next(((rank, protocol.truncate(exception)) for rank, exception in found if exception), None)


def _uncaught(texts: list[str]) -> str | None:
    """The exception of the last traceback in *texts*, unless more follows than the lines of a message may be."""
    starts = [number for number, text in enumerate(texts) if text.startswith("Traceback (most recent call last):")]
    after = texts[starts[-1] + 1 :] if starts else []
    number = next((number for number, text in enumerate(after) if text.strip() and not text[0].isspace()), None)
    return after[number] if number is not None and len(after) - number <= _MAX_MESSAGE else None


def exception_hint(rank: int, exception: str, seconds: float, patience: float | None) -> str:
    """Why nothing may have happened for *seconds* after an *exception*; after *patience*, if any, the attempt ends."""
    return (
        "rank %d has printed %s, and there was no progress for %g s. If it was not caught, MPI_Finalize waits for the "
        "other ranks: with `python -m mpi4py` instead of `python` all end at once%s"
    ) % (rank, exception, seconds, _end_of_wait(patience))


def lone_hint(lone: str, seconds: float, patience: float | None) -> str:
    """As `exception_hint`, where one rank is *lone*."""
    text = "%s, and there was no progress for %g s. If these wait for it, as in a collective, they wait for ever%s"
    return text % (lone, seconds, _end_of_wait(patience))


def _end_of_wait(patience: float | None) -> str:
    return "; the attempt ends after limits.no_progress (%s)" % protocol.duration(patience) if patience else ""


def is_harmless(text: str) -> bool:
    """Whether a line is a harmless warning of mpirun."""
    return re.match(_HARMLESS, text) is not None


def process_end(code: int) -> str:
    """How a process with this exit *code* ended (negative: killed by that signal), as a predicate."""
    return "was killed by %s" % _name(-code) if code < 0 else "ended with exit code %d" % code


def effective_exit_code(code: int, lines: Iterable[Line]) -> int:
    """The exit code that counts: launchers print more than their own *code* says.

    torchrun prints that of the first worker. mpirun of Open MPI 5 exits with 0 after it has lost a host, and after
    Slurm has cancelled its daemons, as for a job that is put back into the queue.
    """
    output = _launcher_output(lines)
    worker = re.findall(_TORCHRUN, output) if code else []
    if worker:
        return int(worker[-1][1])
    if re.search(_SIGNALED, output) or re.search(_EXITED, output):
        return code
    srun = _srun_exit_code(output)
    was_cancelled = srun is not None and (srun < 0 or srun - 128 in (signal.SIGTERM, signal.SIGKILL))
    is_alone = srun is not None and re.search(_NO_CONTROLLER, output)
    if re.search(_LOST_DAEMON, output) or was_cancelled or is_alone:
        return protocol.INTERRUPTED
    return code or srun or 0


def _of_ranks(line: bytes) -> list[bytes]:
    """A line, or its parts where ranks have ended without a line end: Open MPI 5's mpirun adds none to their output."""
    tag = _TAG.match(line)
    if not tag or line.find(b"]<std", tag.end()) < 0:
        return [line]
    job, stream = line[1 : line.index(b",")], tag.group(2)
    return re.split(rb"(?<=.)(?<!<std(?:out|err)>: )(?=\[%s,\d{1,9}\]<std%s>: )" % (job, stream), line)


def _limit(line: bytes | bytearray) -> int:
    """The bytes that a line may have which begins like *line*, with or without a tag."""
    start = bytes(line[:100])
    tag = _TAG.match(start)
    return protocol.MAX_REPORT if protocol.is_report(start[tag.end() :] if tag else start) else MAX_LINE


def _end(data: bytes | bytearray) -> bytes | bytearray:
    """The end of a line, with all that a progress bar shows."""
    return data[-_MAX_STATE:]


def _tagged(rank: bytes, stream: bytes, data: bytes | bytearray) -> Line:
    return Line(int(rank), "o" if stream == b"out" else "e", _visible_text(data))


def _visible_text(data: bytes | bytearray) -> str:
    """What a terminal would show of a line with carriage returns: the last state of a progress bar."""
    parts = [part for part in data.decode("utf-8", "replace").replace("\0", "").split("\r") if part]
    return parts[-1] if parts else ""


def _diagnose(launcher: str, code: int, lines: list[Line]) -> str:
    """Why the *launcher* ended: by what it has printed itself last, else by its exit *code*."""
    scheduler = [line.text for line in lines if line.rank is None and line.text.startswith(SCHEDULER_END)]
    if scheduler:
        return scheduler[-1]
    output = _launcher_output(lines)
    worker = re.findall(_TORCHRUN, output)
    if worker:
        rank, exit_code = worker[-1]
        return _worker(rank, exit_code, lines)
    killed = re.search(_SIGNALED, output)
    if killed:
        return "rank %s was killed by %s" % (killed.group(1), _name(int(killed.group(2))))
    exited = re.search(_EXITED, output)
    if exited:
        rank = int(exited.group(1))
        return "rank %d ended with exit code %s%s" % (rank, exited.group(2), _exception(lines, rank))
    lost = re.search(_LOST_DAEMON, output)
    if lost:
        return "lost %s: mpirun's daemon on it no longer answers" % lost.group(1)
    srun = _srun_exit_code(output)
    if srun is not None:
        alone = " without slurmctld, which did not answer it" if re.search(_NO_CONTROLLER, output) else ""
        return "the srun of mpirun's daemons %s%s" % (_reason(srun, []), alone)
    aborted = re.search(_ABORTED, output)
    if aborted:
        rank = int(aborted.group(1) or aborted.group(2))
        return "rank %d called MPI_Abort with %d%s" % (rank, code, _exception(lines, rank))
    no_finalize = re.search(_NO_FINALIZE, output)
    if no_finalize:
        return "rank %s ended without MPI_Finalize" % no_finalize.group(1)
    return "%s %s" % (launcher, _reason(code, lines))


def _srun_exit_code(output: str) -> int | None:
    """How the srun of mpirun's daemons ended (negative: killed by that signal), where mpirun has printed that."""
    found = re.search(_SRUN, output)
    if found is None:
        return None
    status = int(found.group(1))
    return -(status & 0x7F) or status >> 8


def _reason(code: int, lines: list[Line]) -> str:
    if code < 0:
        return process_end(code)
    if code > 128 and _known_signal(code - 128):
        return "ended with exit code %d (%s)" % (code, _name(code - 128))
    return "ended with exit code %d%s" % (code, _exception(lines, None) or _last(lines))


def _launcher_output(lines: Iterable[Line]) -> str:
    """What the launcher itself printed, joined to one line."""
    return " ".join(line.text[:_MAX_OWN_LINE].strip() for line in lines if line.stream == "e" and line.rank is None)


def _worker(rank: str, code: str, lines: list[Line]) -> str:
    if int(code) < 0:
        return "rank %s was killed by %s" % (rank, _name(-int(code)))
    return "rank %s ended with exit code %s%s" % (rank, code, _exception(lines, int(rank)))


def _exception(lines: list[Line], rank: int | None) -> str:
    """The last exception that *rank* (or any, for None) printed, as the end of a sentence; or what Python lacked."""
    texts = [re.sub(_OF_TORCH, "", line.text) for line in lines if rank is None or line.rank == rank]
    matches = [re.match(_EXCEPTION, text) or re.match(_NOT_FOUND, text) for text in texts]
    exceptions = [match.group(1) for match in matches if match]
    last = exceptions[-1] if exceptions else _uncaught(texts)
    return ": " + last if last else ""


def _last(lines: list[Line]) -> str:
    texts = [line.text.strip() for line in lines if line.text.strip(" -") and not is_harmless(line.text)]
    return ": " + texts[-1] if texts else ""


def _known_signal(number: int) -> bool:
    return number in {item.value for item in signal.Signals}


def _name(number: int) -> str:
    return signal.Signals(number).name if _known_signal(number) else "signal %d" % number
