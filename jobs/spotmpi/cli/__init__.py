"""The command line."""

import atexit
import gc
import sys
from types import TracebackType


def _report_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print what `main` does not catch, but no traceback of Ctrl-C while the command line is imported."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _report_uncaught

# Imports make many objects and hardly any garbage: looking for some at the usual rate takes a quarter of a start, and
# once more when the process ends 14 ms of a run.
gc.set_threshold(100_000, 50, 50)
atexit.register(gc.freeze)
