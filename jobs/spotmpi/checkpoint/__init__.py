"""Checkpoints for any program, as those of spotmpi's own programs: complete or absent, in memory and on the run volume.

    found = spotmpi.checkpoint.load()
    for iteration in range(found.iteration + 1 if found else 1, 1001):
        ...
        spotmpi.checkpoint.save(iteration, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

This room needs Python 3.8, and numpy or torch only for states that have arrays of them.
"""

from spotmpi.checkpoint.session import Loaded, load, save
from spotmpi.checkpoint.store import WrongIdentity, read

__all__ = ["Loaded", "WrongIdentity", "load", "read", "save"]
