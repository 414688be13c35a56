"""Takes checkpoints in memory of arrays on a GPU and compares each with the same arrays on the host.

mpirun -np 1 python -m scripts.gpu_checkpoints torch|cupy
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from typing import Any

from spotmpi.agent import protocol
from spotmpi.checkpoint.memory import Memory
from spotmpi.checkpoint.state import bytes_of, encode
from spotmpi.checkpoint.store import Store

_SIZE = 50_000_000  # bytes of the largest array: several pieces with a digest of their own


def main(framework: str) -> None:
    """Raise AssertionError where a checkpoint is not what the arrays were when it was taken."""
    arrays = _torch_arrays() if framework == "torch" else _cupy_arrays()
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="spotmpi-gpu-check-")
    try:
        memory = Memory(folder + "/memory", "1", "check")
        store = Store(folder + "/volume", 1, {}, "check", memory)
        store.prepare()
        for iteration in range(1, 5):  # both files are written over
            on_host = {name: value.get() if framework == "cupy" else value.cpu() for name, value in arrays.items()}
            expected = _content(on_host)
            assert _content(arrays) == expected, "other bytes than of the arrays on the host"
            store.remember(iteration, {}, arrays)
            for value in arrays.values():
                value *= 3  # training goes on
            memory.wait()
            found = store.newest()
            assert found is not None and found.manifest["iteration"] == iteration, "it is not complete"
            assert _content(found.state) == expected, "the checkpoint has other bytes"
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(protocol.encode(protocol.RESULT, checkpoints=4) + "\n")


def _content(state: Any) -> bytes:
    return b"".join(bytes(bytes_of(part)) for part in encode(state))


def _torch_arrays() -> dict[str, Any]:
    import torch

    values = {
        "large": torch.randn(_SIZE // 4),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 4).t(),
        "bfloat16": torch.randn(5, 7).bfloat16(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5),
        "integers": torch.arange(9),
    }
    return {name: value.to("cuda") for name, value in values.items()}


def _cupy_arrays() -> dict[str, Any]:
    import cupy

    return {
        "large": cupy.random.randn(_SIZE // 4, dtype="f4"),
        "transposed": cupy.random.randn(3, 4).T,
        "empty": cupy.empty((0, 3), "f4"),
        "scalar": cupy.array(3.5),
        "integers": cupy.arange(9),
    }


if __name__ == "__main__":
    main(sys.argv[1])
