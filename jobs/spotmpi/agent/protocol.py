"""The lines by which a training program reports to the agent that runs it.

A line is one JSON object on stdout whose key ``spotmpi`` names its kind; every other line is plain output.
Standard library only and Python 3.8 or newer: programs and agents in any image share this file.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from typing import Any, Callable, Mapping, Sequence

KEY = "spotmpi"

CONTEXT = "context"  # once at start: world_size, hosts, versions, samples_per_iteration, total_iterations, work
RESUMED = "resumed"  # after a checkpoint was loaded: iteration, path
# Every reporting interval: iteration, time, epoch, seconds (one per iteration), waited (seconds, for batches),
# ranks (the seconds of every rank, packed), any scalars; interrupted (true) where notice ended the interval early.
METRIC = "metric"
EVALUATION = "evaluation"  # outside timed windows: iteration, any scalars
CHECKPOINT = "checkpoint"  # a checkpoint is whole: iteration, path, seconds, reason (timer, notice, end)
RESULT = "result"  # once at the end: iteration, final scalars, parameters (checksum)
FATAL = "fatal"  # starting again cannot help: reason
# From every rank that takes batches of a stream, with counts since it began: rank, ranks, workers, batches, bytes,
# seconds, waited (seconds, for batches), preparing (seconds of workers), in_flight (chunks) and skipped (batches); and
# source: the digest of the source list.
# After a long wait also pending: batch, rows, worker and seconds of what it waits for; such a line is not progress.
STREAM = "stream"
STREAM_SOURCE = "source.json"  # in the folder of the stream: the source list of the run

LINE_KEYS = frozenset({"t", "uptime", "attempt", "member", "kind"})  # of a line of the record, not of the training
# Keys that no group of a metrics pattern may use: only protocol lines can fill them, or the record fills them itself.
RESERVED_KEYS = LINE_KEYS | {"seconds", "waited", "ranks", "interrupted", "hosts", "versions"}

_START = b'{"spotmpi":'
_RANK_END = re.compile(r'\{"spotmpi":"rank_end","rank":(\d{1,9}),"code":(-?[1-9]\d{0,2})\}$')
KINDS = (CONTEXT, RESUMED, METRIC, EVALUATION, CHECKPOINT, RESULT, FATAL, STREAM)
STREAM_COUNTS = (
    "rank",
    "ranks",
    "workers",
    "batches",
    "bytes",
    "seconds",
    "waited",
    "preparing",
    "in_flight",
    "skipped",
)
_POSTPROCESS_COUNTS = ("postprocess_workers", "postprocessing")  # of a stream that has such workers

STRONG, WEAK = "strong", "weak"  # scaling: whether more ranks share the batch, or each brings its own

MAX_REPORT = 1 << 24  # bytes of a protocol line: the seconds of 300 iterations on 10,000 ranks
MAX_DEPTH = 16  # levels of lists and objects in a protocol line; programs need three
_MAX_DIGITS = 20  # integers with as many become floats; 64 bits have fewer
_MAX_SECONDS = 1e9  # 30 years

# Exit codes that an agent and a program share.
INTERRUPTED = 75  # the machine went away; counted as an interruption, and tried again
FAILED = 1  # counted as a failure, and tried again
KILLED = 137  # of the launcher of another node: a failure that tells nothing about its machine
NOT_RETRYABLE = 78  # starting again cannot help

REASON_LENGTH = 2000  # characters; agents refuse messages above 64 kB, which no encoding of so many reaches

# What the agent puts into the environment of every rank.
ENV_RUN = "SPOTMPI_RUN"
ENV_ATTEMPT = "SPOTMPI_ATTEMPT"
ENV_WORLD_SIZE = "SPOTMPI_WORLD_SIZE"
ENV_HOSTS = "SPOTMPI_HOSTS"  # distinct hosts to expect
ENV_GPUS = "SPOTMPI_GPUS"  # of each rank, where the run asks for any
ENV_MOST_RANKS = "SPOTMPI_MOST_RANKS"  # the world size of the most nodes that the run may have, where it may have fewer
ENV_CHECKPOINT_PATH = "SPOTMPI_CHECKPOINT_PATH"
ENV_CHECKPOINT_EVERY = "SPOTMPI_CHECKPOINT_EVERY"  # seconds
ENV_CHECKPOINT_KEEP = "SPOTMPI_CHECKPOINT_KEEP"
CHECKPOINT_EVERY, CHECKPOINT_KEEP = 600.0, 3  # of specs, and of programs that are run by hand
ENV_CHECKPOINT_MEMORY = "SPOTMPI_CHECKPOINT_MEMORY"  # iterations, or seconds as in 10s
ENV_CHECKPOINT_MEMORY_PATH = "SPOTMPI_CHECKPOINT_MEMORY_PATH"  # of each node alone
ENV_DATA = "SPOTMPI_DATA"
ENV_INIT = "SPOTMPI_INIT"  # the folder of the model to start from
ENV_PID_FILE = "SPOTMPI_PID_FILE"  # rank 0 writes its pid here once it can take SIGUSR1
ENV_TENSORBOARD = "SPOTMPI_TENSORBOARD"

# The TLS files of a run: PEM texts of an authority, of a certificate that it issued, and of its key.
TLS_CA = "ca.pem"
TLS_CERTIFICATE = "cert.pem"
TLS_KEY = "key.pem"
TLS_FILES = (TLS_CA, TLS_CERTIFICATE, TLS_KEY)

# The workers of pools and streams: how scheduler and workers are reached, by drivers and ranks inside the run too.
ENV_POOL = "SPOTMPI_POOL"  # tls://host:port
ENV_POOL_TLS = "SPOTMPI_POOL_TLS"  # the folder with the TLS files
ENV_POOL_CONTROL = "SPOTMPI_POOL_CONTROL"  # a local pool's file for the number of workers that it shall have
POOL_PORT = 8786  # of the scheduler in a pod
ENV_POOL_WORKER = "SPOTMPI_POOL_WORKER"  # the number of the worker that this process is

# Streams: what a rank needs besides the address of the scheduler.
ENV_STREAM = "SPOTMPI_STREAM"  # the table [stream] as JSON
ENV_STREAM_FOLDER = "SPOTMPI_STREAM_FOLDER"  # of the source list and the results, in the run folder


def counted(count: int, what: str, several: str = "") -> str:
    """A number with its noun: "1 node", "2 nodes"; *several* is a plural that does not end in an s alone.

    What a record has in place of a number is shown as it is.
    """
    number = f"{count:,}" if isinstance(count, int) else count
    return f"{number} {what if count == 1 else several or what + 's'}"


def dollars(value: float, sign: str = "$") -> str:
    """A sum of US dollars, in a column of them without a *sign*; one that is less than a cent is not nothing."""
    return f"< {sign}0.01" if 0 < value < 0.005 else f"{sign}{value:,.2f}"


def duration(value: float) -> str:
    """The shortest spelling of a duration in seconds, as specs write it: "90s", "10m"; a measured time is "90 s"."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if value and value % length == 0:
            return "%d%s" % (value // length, unit)
    text = str(int(value)) if value == int(value) else repr(value)
    if "e" in text:  # durations have no exponents
        from decimal import Decimal

        text = "{:f}".format(Decimal(text))
    return "%ss" % text


def truncate(reason: str) -> str:
    """The *reason* in at most `REASON_LENGTH` characters: a longer one loses its middle."""
    if len(reason) <= REASON_LENGTH:
        return reason
    omission = " ... (%d characters left out) ... " % (len(reason) - REASON_LENGTH)
    length = (REASON_LENGTH - len(omission)) // 2
    return reason[:length] + omission + reason[-length:]


def is_report(start: bytes) -> bool:
    """Whether a line of output that begins with *start* is to be a protocol line, as `encode` writes it."""
    return start.startswith(_START)


def encode(kind: str, **values: Any) -> str:
    """The line, without its end, that reports *kind* with *values* (JSON types; NaN and infinity become null)."""
    return json.dumps({KEY: kind, **_finite(values)}, separators=(",", ":"), allow_nan=False)


def decode(text: str) -> tuple[str, dict[str, Any]] | None:
    """The (kind, values) of a protocol line, or None for plain output, such as a line with invalid values."""
    if not text.startswith("{") or '"%s"' % KEY not in text:
        return None
    try:
        values = read_json(text)
    except ValueError:
        return None
    kind = values.pop(KEY, None)
    return (kind, values) if kind in KINDS and valid(kind, values) else None


def read_rank_end(text: str) -> tuple[str, int, int] | None:
    """What a rank that has failed printed last, its number, and its exit code, negative for a signal.

    A rank wrapper adds them to the rank's output. None for other lines.
    """
    end = _RANK_END.search(text) if text.endswith("}") else None
    return (text[: end.start()], int(end.group(1)), int(end.group(2))) if end else None


def read_json(text: str) -> Any:
    """The JSON value in *text*, which may come from any program, made safe to work with.

    A number that a float cannot hold is None, an integer of 20 digits or more is a float, and half a surrogate pair is
    a question mark.

    Raises:
        ValueError: *text* is not JSON, or nested more than `MAX_DEPTH` levels deep.
    """
    try:
        value = _READER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return _plain(value) if "\\ud" in text or "\\uD" in text else value


def number(text: str) -> int | float | None:
    """The number in *text*; None for one that a float cannot hold, such as nan, ValueError where it is not a number."""
    try:
        return _whole(text)
    except ValueError:
        return _real(text)


def valid(kind: str, values: dict[str, Any]) -> bool:
    """Whether the values that other parts compute with have the right types."""
    valid_seconds = kind != METRIC or _is_seconds_list(values.get("seconds"))  # a checkpoint's are a single number
    if kind == STREAM:
        counts = [values.get(key) for key in STREAM_COUNTS] + [values.get(key, 0) for key in _POSTPROCESS_COUNTS]
        if not all(map(_is_amount, counts)):
            return False
    if values.get("iteration", 0) is None or not valid_seconds:
        return False
    return all(check(values[key]) for key, check in _CHECKS.items() if values.get(key) is not None)


def without_unfit(values: dict[str, Any], checks: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    """*values* without those that their check refuses; None is the value of what is not known."""
    unfit = {key for key, check in checks.items() if values.get(key) is not None and not check(values[key])}
    return {key: value for key, value in values.items() if key not in unfit}


def pack(rows: Sequence[Sequence[float]]) -> str:
    """Rows of numbers, all of one length, as text: little-endian float32 in base64."""
    flat = [value for row in rows for value in row]
    return base64.b64encode(struct.pack("<%df" % len(flat), *flat)).decode("ascii")


def _check_depth(value: Any) -> None:
    """Refuse lists and objects that are nested too deeply: level by level, four times as fast as a copy."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        parts = [part for part in level if isinstance(part, (dict, list))]
        if not parts:
            return
        level = [item for part in parts for item in (part.values() if isinstance(part, dict) else part)]
    raise ValueError("nested more than %d levels deep" % MAX_DEPTH)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_encodable(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _encodable(value) if isinstance(value, str) else value


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def is_whole(value: Any) -> bool:
    """Whether *value* is a whole number of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_count(value: Any) -> bool:
    return is_whole(value) and value > 0


def _is_seconds_list(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [None] * (value is not None)
    return all(isinstance(each, (int, float)) and 0 <= each < _MAX_SECONDS for each in numbers)


def _is_duration(value: Any) -> bool:
    return _is_seconds_list([value])


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 63


def is_text(value: Any) -> bool:
    """Whether *value* is a string."""
    return isinstance(value, str)


def are_texts(value: Any) -> bool:
    """Whether *value* is a list of strings."""
    return isinstance(value, list) and all(map(is_text, value))


def is_object(value: Any) -> bool:
    """Whether *value* is a JSON object."""
    return isinstance(value, dict)


_CHECKS = {
    "iteration": is_whole,
    "total_iterations": _is_count,
    "samples_per_iteration": _is_count,
    "hosts": are_texts,
    "versions": is_object,
    "waited": _is_duration,
    "uptime": _is_duration,
}


def _real(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _whole(text: str) -> int | float | None:
    return int(text) if len(text) < _MAX_DIGITS else _real(text)


_READER = json.JSONDecoder(parse_int=_whole, parse_float=_real, parse_constant=lambda text: None)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
