"""The lines by which a training program talks to the agent that watches it.

A line is one JSON object on stdout whose key ``spotmpi`` names what it says; every other line is plain output.
Standard library only and Python 3.8 or newer: programs and agents in any image share this file.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any, Sequence

KEY = "spotmpi"

CONTEXT = "context"  # once at start: world_size, hosts, versions, samples_per_iteration, total_iterations, work
RESUMED = "resumed"  # after a checkpoint was loaded: iteration, path
# Every reporting interval: iteration, time, epoch, seconds (one per iteration), waited (for batches, seconds),
# ranks (the seconds of every rank, packed), any scalars; cut (true) where notice came in the middle of one.
METRIC = "metric"
EVALUATION = "evaluation"  # outside timed windows: iteration, any scalars
CHECKPOINT = "checkpoint"  # a checkpoint is whole: iteration, path, seconds, reason (timer, notice, end)
RESULT = "result"  # once at the end: iteration, final scalars, parameters (checksum)
FATAL = "fatal"  # starting again cannot help: reason

# What no group of a pattern can be called: keys that only our own lines can fill, or that the record fills itself.
TAKEN = frozenset({"seconds", "waited", "ranks", "cut", "hosts", "versions", "t", "attempt", "node", "kind"})

KINDS = (CONTEXT, RESUMED, METRIC, EVALUATION, CHECKPOINT, RESULT, FATAL)

DEPTH = 16  # levels of lists and objects in a line of ours; a program has no use for more than three
_DIGITS = 20  # of an integer that is still taken for one: 64 bits have fewer
_AGES = 1e9  # seconds; nothing takes 30 years

# Exit codes that an agent and a program share.
INTERRUPTED = 75  # the machine went away: start again, counted as an interruption
FAILED = 1  # counted as a failure
NOT_RETRYABLE = 78  # starting again cannot help

REASON_LENGTH = 2000  # characters; agents refuse messages above 64 kB, which no encoding makes of so many

# What the agent puts into the environment of every rank.
ENV_RUN = "SPOTMPI_RUN"
ENV_ATTEMPT = "SPOTMPI_ATTEMPT"
ENV_WORLD_SIZE = "SPOTMPI_WORLD_SIZE"
ENV_HOSTS = "SPOTMPI_HOSTS"  # distinct hosts to expect
ENV_CHECKPOINT_PATH = "SPOTMPI_CHECKPOINT_PATH"
ENV_CHECKPOINT_EVERY = "SPOTMPI_CHECKPOINT_EVERY"  # seconds
ENV_CHECKPOINT_KEEP = "SPOTMPI_CHECKPOINT_KEEP"
ENV_DATA = "SPOTMPI_DATA"
ENV_PID_FILE = "SPOTMPI_PID_FILE"  # rank 0 writes its pid here once it can take SIGUSR1
ENV_TENSORBOARD = "SPOTMPI_TENSORBOARD"


def bounded(reason: str) -> str:
    """The *reason* in at most `REASON_LENGTH` characters: of a longer one its beginning and its end."""
    if len(reason) <= REASON_LENGTH:
        return reason
    left_out = " ... (%d characters left out) ... " % (len(reason) - REASON_LENGTH)
    kept = (REASON_LENGTH - len(left_out)) // 2
    return reason[:kept] + left_out + reason[-kept:]


def encode(kind: str, **values: Any) -> str:
    """The line, without its end, that says *kind* with *values* (JSON types; NaN and infinity become null)."""
    return json.dumps({KEY: kind, **_finite(values)}, separators=(",", ":"), allow_nan=False)


def decode(text: str) -> tuple[str, dict[str, Any]] | None:
    """The (kind, values) that a line says, or None when it is plain output, as is one whose values are of no use."""
    if not text.startswith("{") or '"%s"' % KEY not in text:
        return None
    try:
        values = read_json(text)
    except ValueError:
        return None
    kind = values.pop(KEY, None)
    return (kind, values) if kind in KINDS and sound(kind, values) else None


def read_json(text: str) -> Any:
    """The JSON value in *text*, whoever wrote it, such that nobody who works with it can stumble.

    A number that a float cannot hold is None, an integer of 20 digits or more is a float, and half a surrogate pair is
    a question mark.

    Raises:
        ValueError: *text* is no JSON, or nested more than `DEPTH` levels deep.
    """
    try:
        value = _READER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > DEPTH or "\\ud" in text or "\\uD" in text:
        return _plain(value, DEPTH)
    return value


def number(text: str) -> int | float | None:
    """The number that *text* says; None for one that a float cannot hold, such as nan, ValueError for no number."""
    try:
        return _whole(text)
    except ValueError:
        return _real(text)


def sound(kind: str, values: dict[str, Any]) -> bool:
    """Whether the values of a line that others reckon with are of their type."""
    timed = kind != METRIC or _are_seconds(values.get("seconds"))  # a checkpoint's are a single number
    return timed and all(fits(values[key]) for key, fits in _FITTING.items() if key in values)


def pack(rows: Sequence[Sequence[float]]) -> str:
    """Rows of numbers, all of one length, as text: little-endian float32 in base64."""
    flat = [value for row in rows for value in row]
    return base64.b64encode(struct.pack("<%df" % len(flat), *flat)).decode("ascii")


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, (dict, list)) and not depth:
        raise ValueError("nested more than %d levels deep" % DEPTH)
    if isinstance(value, dict):
        return {_encodable(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth - 1) for item in value]
    return _encodable(value) if isinstance(value, str) else value


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_count(value: Any) -> bool:
    return value is None or (_is_whole(value) and value > 0)


def _are_seconds(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [None] * (value is not None)
    return all(isinstance(each, (int, float)) and 0 <= each < _AGES for each in numbers)


def _is_duration(value: Any) -> bool:
    return value is None or _are_seconds([value])


def _are_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _are_versions(value: Any) -> bool:
    return value is None or isinstance(value, dict)


_FITTING = {
    "iteration": _is_whole,
    "total_iterations": _is_count,
    "samples_per_iteration": _is_count,
    "hosts": _are_texts,
    "versions": _are_versions,
    "waited": _is_duration,
}


def _real(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _whole(text: str) -> int | float | None:
    return int(text) if len(text) < _DIGITS else _real(text)


_READER = json.JSONDecoder(parse_int=_whole, parse_float=_real, parse_constant=lambda text: None)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
