"""Pretrained weights from a file that the user gives, and only from there."""

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spotmpi.programs.ending import Fatal

Read = Callable[[Path], Mapping[str, Any]]
_CHECKPOINT_PREFIX = "parameters/"


class Weights(NamedTuple):
    """The arrays to take over, by the model's own names, and the file's SHA-256."""

    arrays: dict[str, Any]
    sha256: str

    def described(self, wanted: int) -> dict[str, str]:
        """What the context line says about them; *wanted* is how many arrays the model has."""
        return {"sha256": self.sha256, "arrays": f"{len(self.arrays)} of {wanted}"}


def read_weights(path: Path, read: Read, shapes: Mapping[str, tuple[int, ...]], least: Sequence[str]) -> Weights:
    """Those arrays of *path* that a model with *shapes* has; *least* are the names that must be among them.

    *read* gives the file's arrays by the model's names. The file may hold more than the model has (a classifier).
    Raises Fatal for a file that is missing, of another format, for another model or of other shapes.
    """
    if not path.is_file():
        raise Fatal(f"--weights {path}: no such file")
    try:
        found = read(path)
    except Fatal:
        raise
    except Exception as problem:  # each format has errors of its own, all of them mean the same here
        raise Fatal(
            f"--weights {path}: not readable as weights ({_first_line(problem)}); give another file"
        ) from problem
    arrays = {name: value for name, value in found.items() if name in shapes}
    lacking = [name for name in least if name not in arrays]
    if lacking:
        held = ", ".join(sorted(found)[:3]) or "nothing"
        raise Fatal(f"--weights {path}: no {lacking[0]} in it, it holds {held} ...; give weights of this model")
    for name, value in arrays.items():
        if tuple(value.shape) != shapes[name]:
            raise Fatal(
                f"--weights {path}: {name} has shape {tuple(value.shape)}, the model {shapes[name]}; "
                "give weights for these classes and this width"
            )
    with path.open("rb") as file:
        return Weights(arrays, hashlib.file_digest(file, "sha256").hexdigest())


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of a NumPy archive, also of a checkpoint's ``state.npz``."""
    if not zipfile.is_zipfile(path):
        raise ValueError("no NumPy archive")
    with np.load(path, allow_pickle=False) as arrays:
        return {name.removeprefix(_CHECKPOINT_PREFIX).lstrip("/"): arrays[name] for name in arrays.files}


def _first_line(problem: Exception) -> str:
    return str(problem).partition("\n")[0][:200] or type(problem).__name__
