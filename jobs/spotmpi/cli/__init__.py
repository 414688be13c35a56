"""The command line."""

import atexit
import gc
import os
import sys
from types import TracebackType


def _report_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print what `main` does not catch, but no traceback of Ctrl-C while the command line is imported."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


def prefer_own_packages() -> None:
    """Find packages of PYTHONPATH after those of an environment that uv or pipx has made for spotmpi alone.

    They are for programs, as modules of HPC sites and ROS set it, and mostly of another Python.
    """
    from spotmpi.agent.files import is_file  # imports take long enough for a Ctrl-C: first the hook for it

    if any(is_file(f"{sys.prefix}/{each}") for each in ("uv-receipt.toml", "pipx_metadata.json")):
        added = os.environ["PYTHONPATH"].split(os.pathsep)
        sys.path.sort(key={os.path.abspath(each) for each in added}.__contains__)  # noqa: PTH100


sys.excepthook = _report_uncaught
if os.environ.get("PYTHONPATH"):
    prefer_own_packages()

# Imports make many objects and hardly any garbage: looking for some at the usual rate takes a quarter of a start, and
# once more when the process ends 14 ms of a run.
gc.set_threshold(100_000, 50, 50)
atexit.register(gc.freeze)
