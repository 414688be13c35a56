"""The command line."""

import atexit
import gc

# Imports make many objects and hardly any garbage: looking for some at the usual rate takes a quarter of a start, and
# once more when the process ends 14 ms of a run.
gc.set_threshold(100_000, 50, 50)
atexit.register(gc.freeze)
