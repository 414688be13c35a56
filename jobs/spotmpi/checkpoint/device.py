"""Arrays on GPUs in the state of a checkpoint: copied on the GPU at once, and to the host by a thread, later.

Of 208 MB a copy on an H200 takes 2 ms, and one to the host 24 to 200 ms, or 4 to 6 ms to pages that are locked.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple


class DeviceArray:
    """A copy of an array, or of a tensor, on a GPU: *type* as NumPy writes it, such as ``<f4``, and *shape*.

    *begin* begins to copy its *nbytes* bytes into a buffer on the host, in any thread, and gives what waits for that.
    """

    def __init__(
        self, type_: str, shape: Tuple[int, ...], nbytes: int, begin: Callable[[memoryview], Callable[[], None]]
    ) -> None:
        self.type = type_
        self.shape = shape
        self.begin = begin
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
        self.begin(data)()
        return data


def on_host(value: Any) -> Any:
    """*value*, a `DeviceArray` as an array of NumPy."""
    if not isinstance(value, DeviceArray):
        return value
    import numpy

    return numpy.frombuffer(value.bytes_on_host(), value.dtype).reshape(value.shape)


def copy_on_device(values: Sequence[Any]) -> List[Optional[DeviceArray]]:
    """Copies of CuPy arrays and PyTorch tensors on their GPUs; None for what is not on one, or has no room there."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    copies: List[Optional[DeviceArray]] = [None] * len(values)
    tensors: Dict[Any, List[int]] = {}
    for place, value in enumerate(values):
        if torch is not None and isinstance(value, torch.Tensor):
            if value.is_cuda:
                tensors.setdefault((value.device, value.dtype), []).append(place)
        elif cupy is not None and isinstance(value, cupy.ndarray):
            copies[place] = _cupy_copy(cupy, value)
    for places in tensors.values():
        for number, copy in enumerate(_torch_copies(torch, [values[place].detach() for place in places])):
            copies[places[number]] = copy
    return copies


def page_lock(memory: mmap.mmap) -> Callable[[], None]:
    """Let GPUs write to *memory* themselves, as only to pages that stay where they are; what ends that.

    It has to end before the memory is unmapped. Where the driver refuses, it copies through pages of its own.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        runtime = torch.cuda.cudart()
        if int(runtime.cudaHostRegister(address, len(memory), 0)) == 0:
            return lambda: runtime.cudaHostUnregister(address)
        with contextlib.suppress(RuntimeError):  # the next kernel would be told of it
            torch.zeros(1, device="cuda")
    elif cupy is not None:
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            cupy.cuda.runtime.hostRegister(address, len(memory), 0)
            return lambda: cupy.cuda.runtime.hostUnregister(address)
    return lambda: None


def _torch_copies(torch: Any, tensors: List[Any]) -> Sequence[Optional[DeviceArray]]:
    """Copies of tensors of one type on one GPU, made at once: one by one, 142 of them took rank 0 9 ms and not 2."""
    device, kind, sizes = tensors[0].device, tensors[0].dtype, [tensor.numel() for tensor in tensors]
    try:
        flat = torch.empty(sum(sizes), dtype=kind, device=device)
    except torch.cuda.OutOfMemoryError:
        return [None] * len(tensors)
    flats = flat.split(sizes)
    targets = [flats[number].view(tensor.shape) for number, tensor in enumerate(tensors)]
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(targets, tensors)
    else:
        for number, tensor in enumerate(tensors):
            targets[number].copy_(tensor)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(device))
    try:
        type_ = torch.empty(0, dtype=kind).numpy().dtype.str
    except TypeError:  # NumPy has no such type, as bfloat16; what is in the state is a tensor then
        type_ = ""
    copies = [each.view(torch.uint8) for each in flats]
    return [
        DeviceArray(type_, tuple(tensor.shape), copies[number].numel(), _torch_transfer(torch, copies[number], done))
        for number, tensor in enumerate(tensors)
    ]


def _torch_transfer(torch: Any, copy: Any, done: Any) -> Callable[[memoryview], Callable[[], None]]:
    """What begins to copy the bytes of *copy*, which is complete at the event *done*, in a stream of its own."""

    def begin(data: memoryview) -> Callable[[], None]:
        if not data:
            return lambda: None
        stream = _stream(copy.device, lambda: torch.cuda.Stream(copy.device))
        with torch.cuda.device(copy.device), torch.cuda.stream(stream):
            stream.wait_event(done)
            torch.frombuffer(data, dtype=torch.uint8).copy_(copy, non_blocking=True)
        return stream.synchronize  # type: ignore[no-any-return]

    return begin


def _cupy_copy(cupy: Any, array: Any) -> Optional[DeviceArray]:
    """A copy of an array on its GPU, read later in a stream of its own; None where its memory does not suffice."""
    import numpy

    try:
        copy = array.copy(order="C").reshape(-1).view(numpy.uint8)
    except cupy.cuda.memory.OutOfMemoryError:
        return None
    done = cupy.cuda.Event()
    done.record()

    def begin(data: memoryview) -> Callable[[], None]:
        if not data:
            return lambda: None
        with copy.device:
            stream = _stream(copy.device.id, lambda: cupy.cuda.Stream(non_blocking=True))
            stream.wait_event(done)
            address = ctypes.c_void_p(numpy.frombuffer(data, numpy.uint8).ctypes.data)
            copy.data.copy_to_host_async(address, len(data), stream)
        return stream.synchronize  # type: ignore[no-any-return]

    return DeviceArray(array.dtype.str, array.shape, copy.nbytes, begin)


_streams: Dict[Any, Any] = {}  # by GPU: in which copies come to the host


def _stream(device: Any, make: Callable[[], Any]) -> Any:
    if device not in _streams:
        _streams[device] = make()
    return _streams[device]
