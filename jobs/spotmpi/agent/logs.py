"""Reads lines of the logs in a run folder; agents only write them, and start without what reading needs. Pure."""

from __future__ import annotations

from datetime import datetime

from . import record


def read_log_line(line: str, before: float) -> tuple[float, int | None, str, str]:
    """The time (Unix seconds), rank, stream and text of a line of a log, without its end.

    A line that a crash left incomplete is text of stdout, at the time of the line *before*.
    """
    try:
        stamp, rank, stream, text = line.split(" ", 3)
        moment = datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
        return moment, None if rank == "-" else int(rank), stream, text
    except (ValueError, OverflowError):
        return before, None, "o", line


def missing_lines(line: str) -> int:
    """For how many missing lines a line of a log stands; 0 for a line of output."""
    head, _, count = line.partition(" - %s " % record.MISSING)
    count = count.rstrip("\n")
    return int(count) if " " not in head and count.isdecimal() and len(count) < 20 else 0
