"""The command line."""

import gc

# Imports make many objects and hardly any garbage: looking for some at the usual pace takes a quarter of a start.
gc.set_threshold(100_000, 50, 50)
