"""Arrays on GPUs in the state of a checkpoint: copied on the GPU at once, and to the host by a thread, later.

Of 208 MB a copy on an H200 takes 2 to 3 ms, and one to the host 24 to 160 ms, for which training would wait.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional, Tuple


class DeviceArray:
    """A copy of an array, or of a tensor, on a GPU: *type* as NumPy writes it, such as ``<f4``, and *shape*.

    *fill* copies its *nbytes* bytes into a buffer on the host, in any thread.
    """

    def __init__(self, type_: str, shape: Tuple[int, ...], nbytes: int, fill: Callable[[memoryview], None]) -> None:
        self.type = type_
        self.shape = shape
        self.fill = fill
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._nbytes

    @property
    def dtype(self) -> Any:
        """Its type in NumPy."""
        import numpy

        return numpy.dtype(self.type)

    def bytes_on_host(self) -> memoryview:
        """Its bytes, in memory of their own."""
        data = memoryview(bytearray(self._nbytes))
        self.fill(data)
        return data


def on_host(value: Any) -> Any:
    """*value*, a `DeviceArray` as an array of NumPy."""
    if not isinstance(value, DeviceArray):
        return value
    import numpy

    return numpy.frombuffer(value.bytes_on_host(), value.dtype).reshape(value.shape)


def copy_on_device(value: Any) -> Optional[DeviceArray]:
    """A copy of a CuPy array or PyTorch tensor on its GPU; None of what is not on one, or where there is no room."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_copy(torch, value) if value.is_cuda else None
    if cupy is not None and isinstance(value, cupy.ndarray):
        return _cupy_copy(cupy, value)
    return None


def _torch_copy(torch: Any, tensor: Any) -> Optional[DeviceArray]:
    """A copy of a tensor on its GPU, read later in a stream of its own; None where its memory does not suffice."""
    device = tensor.device
    try:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    except torch.cuda.OutOfMemoryError:
        return None
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(device))

    def fill(data: memoryview) -> None:
        if not data:
            return
        stream = torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(done)
            torch.frombuffer(data, dtype=torch.uint8).copy_(copy)  # waits for it

    try:
        type_ = torch.empty(0, dtype=tensor.dtype).numpy().dtype.str
    except TypeError:  # NumPy has no such type, as bfloat16; what is in the state is a tensor then
        type_ = ""
    return DeviceArray(type_, tuple(tensor.shape), copy.numel(), fill)


def _cupy_copy(cupy: Any, array: Any) -> Optional[DeviceArray]:
    """A copy of an array on its GPU, read later in a stream of its own; None where its memory does not suffice."""
    import numpy

    try:
        copy = array.copy(order="C").reshape(-1).view(numpy.uint8)
    except cupy.cuda.memory.OutOfMemoryError:
        return None
    done = cupy.cuda.Event()
    done.record()

    def fill(data: memoryview) -> None:
        if not data:
            return
        with copy.device:
            stream = cupy.cuda.Stream(non_blocking=True)
            stream.wait_event(done)
            copy.get(stream=stream, out=numpy.frombuffer(data, numpy.uint8))
            stream.synchronize()

    return DeviceArray(array.dtype.str, array.shape, copy.nbytes, fill)
