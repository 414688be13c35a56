"""Which errors end a run, which only an attempt, and how a run ended: the same for every reader."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from spotmpi.agent import outcomes, record
from spotmpi.agent.files import error_text
from spotmpi.agent.outcomes import INTERRUPTION, NOT_RETRYABLE, Outcome, outcome_of_error, run_outcome


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        FileNotFoundError("the image has no mpirun on PATH"),
        PermissionError(errno.EACCES, "Permission denied"),
        FileNotFoundError(),
        NotADirectoryError(),
        OSError("the code in user.tgz cannot be unpacked"),
    ],
    ids=str,
)
def test_a_permanent_error_ends_the_run(error: OSError) -> None:
    assert outcome_of_error(error) == Outcome(NOT_RETRYABLE, error_text(error))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left"), "/runs/r-1: No space left; free some space, then resume the run"),
        (
            OSError(errno.EFBIG, "Too large", "/a"),
            "/a: Too large; raise the limit of the size of files (ulimit -f), then resume the run",
        ),
        (
            OSError(errno.EMFILE, "Too many open files", "/a"),
            "/a: Too many open files; raise the limit of open files (ulimit -n)",
        ),
        (
            OSError(errno.E2BIG, "Argument list too long", "sh"),
            "sh: Argument list too long; an argument or variable may have 128 KiB: write longer ones to a file, and "
            "send its path",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/b"), "/b: Permission denied"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "Connection reset by peer"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("all tries failed: [Errno 111] Connection refused"), "all tries failed: Connection refused"),
        (OSError("damaged"), "damaged"),
    ],
    ids=str,
)
def test_the_reason_names_the_file_and_what_helps_on_a_full_disk_or_beyond_a_limit(error: OSError, reason: str) -> None:
    assert outcome_of_error(error, "/runs/r-1").reason == reason


def test_a_run_folder_that_is_gone_is_the_reason_and_not_the_file_that_was_looked_for_in_it(tmp_path: Path) -> None:
    gone = str(tmp_path / "r-1")
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", gone + "/attempts")

    assert outcome_of_error(error, gone).reason == f"the run folder {gone} was moved or deleted"
    assert outcome_of_error(error, str(tmp_path)).reason == f"{gone}/attempts: No such file or directory"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ESTALE, "Stale file handle"),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    ],
    ids=str,
)
def test_an_error_that_may_pass_ends_the_attempt(error: OSError) -> None:
    remedy = "; raise the limit of open files (ulimit -n)" if error.errno == errno.EMFILE else ""
    assert outcome_of_error(error) == Outcome(INTERRUPTION, f"{error_text(error)}{remedy}")


@pytest.mark.parametrize(
    ("evidence", "outcome"),
    [
        ({}, None),
        ({"recorded": record.STARTED}, None),
        ({"recorded": record.STARTED, "writer_alive": False}, record.LOST),
        ({"writer_alive": False}, record.LOST),
        *[({"recorded": kind, "writer_alive": False}, kind) for kind in record.TERMINAL],
        *[({"recorded": kind, "deleted": True, "condition": "Failed"}, kind) for kind in record.TERMINAL],
        ({"cause": outcomes.SUCCEEDED}, record.SUCCEEDED),
        ({"cause": outcomes.STOPPED}, record.STOPPED),
        *[({"cause": cause}, record.FAILED) for cause in (outcomes.FAILURE, INTERRUPTION, NOT_RETRYABLE)],
        ({"condition": "Completed"}, record.SUCCEEDED),
        ({"condition": "Failed"}, record.FAILED),
        ({"deleted": True}, record.STOPPED),
        ({"deleted": True, "condition": "Failed"}, record.STOPPED),
        ({"given_up": True, "deleted": True}, record.FAILED),
    ],
)
def test_the_best_evidence_of_a_runs_end_decides(evidence: dict[str, Any], outcome: str | None) -> None:
    assert run_outcome(**evidence) == outcome
