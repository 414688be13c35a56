"""What is downloaded of a run's folder: its program may have left anything there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spotmpi.agent import record
from spotmpi.agent.files import remove_folder
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import RunPaths
from spotmpi.core.wording import Echo, printable

_FOLDERS = ("logs", "attempts")  # of the record
_MAX_SKIPPED = 8  # entries that a message names
_HERE = RunPaths(Path())
# What is decided on this machine, or asked of AWS from it: no download brings it.
OWN = (_HERE.own.name, _HERE.keep.name, _HERE.bill.name, _HERE.nodes.name, record.LOCK)


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Raise SpotmpiError with the remedy where the disk of a folder does not take what is written to it."""
    try:
        yield
    except OSError as error:
        if error.errno not in record.DISK_FULL:
            raise
        place = names.display_path(folder.absolute())
        raise SpotmpiError(f"{place} cannot be written: {error.strerror}; free space there, then try again") from error


def remove_unfit_records(new: RunPaths) -> dict[str, str]:
    """Remove the links in a downloaded record, and folders in the place of its files; the names, and why.

    Followers write to the record: a link would lead what a pod prints to other files of the folder, such as its plan,
    which says where the run belongs.
    """
    own = (new.events, new.metrics, new.spec, new.plan, new.summary, new.bill, new.nodes, new.agent_log)
    files = {path.name for path in own}
    entries = [each for each in new.folder.iterdir() if each.name in {*files, *_FOLDERS} or each.name.startswith(".")]
    entries += [each for name in _FOLDERS for each in _below(new.folder / name)]
    unfit = {each: "is a link in the record" for each in entries if each.is_symlink()}
    unfit |= {each: "is not a file" for each in entries if each.name in files and each not in unfit and each.is_dir()}
    for each in unfit:
        remove(each)
    return {str(each.relative_to(new.folder)): reason for each, reason in unfit.items()}


def _below(folder: Path) -> list[Path]:
    """Everything below a folder, links themselves; nothing where it is a link."""
    walked = os.walk(folder) if not folder.is_symlink() else ()
    return [Path(place, name) for place, folders, files in walked for name in (*folders, *files)]


def report_skipped(skipped: dict[str, str], run: str, echo: Echo) -> None:
    """Say which entries of a run's folder were left out, and why."""
    if skipped:
        shown = {name if name.isprintable() else ascii(name): reason for name, reason in skipped.items()}
        entries = [f"{name} ({printable(reason)})" for name, reason in sorted(shown.items())[:_MAX_SKIPPED]]
        more = [f"and {len(skipped) - _MAX_SKIPPED} more"] if len(skipped) > _MAX_SKIPPED else []
        echo(f"skipped in the download of {run}: {', '.join([*entries, *more])}")


def remove(entry: Path) -> None:
    """Delete a file, a link itself, or a folder."""
    if entry.is_dir() and not entry.is_symlink():
        remove_folder(entry)
    else:
        entry.unlink()
