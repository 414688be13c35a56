"""The process of a run's agent on this machine: in its own session, so that no terminal ends it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Self

from spotmpi.agent import handover
from spotmpi.core.errors import SpotmpiError
from spotmpi.core.names import rank_source

if TYPE_CHECKING:
    from spotmpi.core.names import RunPaths

# Variables that a launcher sets for its ranks: where spotmpi is itself a rank, its own launchers must not see them.
_RANK_VARIABLES = re.compile(
    r"(OMPI_COMM_WORLD|OMPI_UNIVERSE|PMIX|PRTE|TORCHELASTIC)_.*"
    r"|OMPI_MCA_(ess(_base_.*)?|pmix|initial_wdir|orte_(app_num|ess_.*|hnp_uri|launch|local_daemon_uri|.*_session_dir))"
    r"|RANK|LOCAL_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
)


def start(paths: RunPaths, lock: int, log: IO[str]) -> None:
    """Start the agent of a run, which inherits the open *lock*."""
    _start([str(paths.folder)], subprocess.DEVNULL, log, [lock])


class WaitingAgent:
    """An agent without a run yet, which ends with the context where it gets none.

    Its start takes as long as the models of a spec, and has another core.
    """

    def __enter__(self) -> Self:
        self._connection, theirs = handover.pair()
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError, SpotmpiError):  # a start at the submission has the same error
            self._process = _start(["--wait"], theirs.fileno(), subprocess.DEVNULL)
        theirs.close()
        return self

    def hand_over(self, paths: RunPaths, lock: int, log: IO[str]) -> bool:
        """Give it a run; False where it cannot take one."""
        if self._process is None:
            return False
        return handover.hand_over(self._connection, str(paths.folder), lock, log.fileno())

    def __exit__(self, *error: object) -> None:
        self._connection.close()


def _start(arguments: list[str], stdin: int, log: IO[str] | int, files: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not _RANK_VARIABLES.fullmatch(key)}
    return subprocess.Popen(
        # Importable from its working directory: PYTHONPATH stays as the user set it for the program.
        [sys.executable, "-S", "-E", "-m", "spotmpi.agent", *arguments],
        stdin=stdin,
        stdout=log,
        stderr=log,
        cwd=rank_source(),
        env=environment,
        pass_fds=files,
        start_new_session=True,
    )
