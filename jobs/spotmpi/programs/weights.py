"""Pretrained weights from a file of the user; nothing is downloaded."""

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spotmpi.checkpoint.state import decode
from spotmpi.programs.checkpoint import PARAMETERS
from spotmpi.programs.exits import Fatal

Read = Callable[[Path], Mapping[str, Any]]


class Weights(NamedTuple):
    """The arrays to load, by the model's names, and the file's SHA-256."""

    arrays: dict[str, Any]
    sha256: str

    def describe(self, total: int) -> dict[str, str]:
        """A description for the context line; *total* is the number of the model's arrays."""
        return {"sha256": self.sha256, "arrays": f"{len(self.arrays)} of {total}"}


def read_weights(path: Path, read: Read, shapes: Mapping[str, tuple[int, ...]], required: Sequence[str]) -> Weights:
    """The arrays in *path* that a model with *shapes* has; *required* are names that must be among them.

    *read* returns the file's arrays by the model's names. The file may contain more than the model has (a classifier).
    Raises Fatal for a file that is missing, of another format, for another model or of other shapes.
    """
    if not path.is_file():
        raise Fatal(f"--weights {path}: file not found")
    try:
        contents = read(path)
    except Fatal:
        raise
    except Exception as problem:  # each format raises errors of its own
        raise Fatal(
            f"--weights {path}: not readable as weights ({_first_line(problem)}); use another file"
        ) from problem
    arrays = {name: value for name, value in contents.items() if name in shapes}
    missing = [name for name in required if name not in arrays]
    if missing:
        names = ", ".join(sorted(contents)[:3]) or "nothing"
        raise Fatal(f"--weights {path}: it has no {missing[0]}, but {names} ...; use weights of this model")
    for name, value in arrays.items():
        if tuple(value.shape) != shapes[name]:
            raise Fatal(
                f"--weights {path}: {name} has shape {tuple(value.shape)}, the model {shapes[name]}; "
                "use weights for these classes and this width"
            )
    with path.open("rb") as file:
        return Weights(arrays, hashlib.file_digest(file, "sha256").hexdigest())


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of a NumPy archive, or of a checkpoint's ``state.safetensors``."""
    if path.suffix == ".safetensors":
        contents: dict[str, Any] = decode(bytearray(path.read_bytes()))
    elif not zipfile.is_zipfile(path):
        raise ValueError("not a NumPy archive")
    else:
        with np.load(path, allow_pickle=False) as arrays:
            contents = dict(arrays)
    return {name.removeprefix(PARAMETERS).lstrip("/"): value for name, value in contents.items()}


def _first_line(problem: Exception) -> str:
    return str(problem).partition("\n")[0][:200] or type(problem).__name__
