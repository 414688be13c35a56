"""What runs in the pods of a worker pool: scheduler, workers, and their launcher on one machine."""

import gc
import sys

# Python looks for the main module (`-m` in the place of its name): this is a process of a pool, no driver. To import
# Dask takes half a second, a tenth of it searches for garbage, which imports hardly make. `collect_garbage` ends this.
if sys.argv[:1] == ["-m"]:
    gc.disable()


def collect_garbage() -> None:
    """Search for garbage from now on, except in what has been imported."""
    gc.freeze()
    gc.enable()
