"""Arrays on GPUs in the state of a checkpoint: copied on the GPU at once, and to the host by a thread, later.

Of 208 MB a copy on an H200 takes 0.7 ms, and one to the host 24 to 200 ms, or 4 to 6 ms to pages that are locked.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

# Begins to copy bytes on a GPU, from one of them on, to a buffer on the host, in any thread; gives what waits for it.
Begin = Callable[[int, memoryview], Callable[[], None]]


class DeviceArray:
    """A copy of an array, or of a tensor, on a GPU: *type* as NumPy writes it, such as ``<f4``, and *shape*.

    Its *nbytes* bytes are those from *start* on of what *begin* copies to the host, which other arrays may have too.
    """

    def __init__(self, type_: str, shape: Tuple[int, ...], nbytes: int, begin: Begin, start: int = 0) -> None:
        self.type = type_
        self.shape = shape
        self.begin = begin
        self.start = start
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
        self.begin(self.start, data)()
        return data


def on_host(value: Any) -> Any:
    """*value*, a `DeviceArray` as an array of NumPy."""
    if not isinstance(value, DeviceArray):
        return value
    import numpy

    return numpy.frombuffer(value.bytes_on_host(), value.dtype).reshape(value.shape)


class Transfer(NamedTuple):
    """What comes to the host at once: *size* bytes that *begin* copies from *start* on, to *place* in a buffer."""

    begin: Begin
    start: int
    place: int
    size: int


def transfers(places: Sequence[Tuple[DeviceArray, int]]) -> List[Transfer]:
    """The transfers of arrays to their places in a buffer, in order.

    What is adjacent on the GPU and in the buffer is one: 142 copies kept the interpreter from the thread that trains.
    """
    joined: List[Transfer] = []
    for array, place in places:
        begin, start, to, size = joined[-1] if joined else Transfer(array.begin, array.start, place, 0)
        if (begin, start + size, to + size) == (array.begin, array.start, place):
            joined[-1:] = [Transfer(begin, start, to, size + len(array))]
        else:
            joined.append(Transfer(array.begin, array.start, place, len(array)))
    return joined


def fill(buffer: memoryview, first: int, end: int, pending: Sequence[Transfer]) -> None:
    """Copy what *pending* has for the bytes of *buffer* from *first* to before *end*, and wait for it."""
    waits = []
    for begin, start, place, size in pending:
        low, high = max(first, place), min(end, place + size)
        if low < high:
            waits.append(begin(start + low - place, buffer[low:high]))
    for wait in waits:
        wait()


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
        for number, copy in enumerate(_torch_copies(torch, [values[place] for place in places])):
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
    """Copies of tensors of one type on one GPU, made at once, one behind the other."""
    device, kind = tensors[0].device, tensors[0].dtype
    try:
        with torch.no_grad():
            flat = torch._utils._flatten_dense_tensors(tensors)  # the loop over them is its own, as DDP uses it
    except (torch.cuda.OutOfMemoryError, NotImplementedError):  # the latter of rare types, such as of 8 bits
        return [None] * len(tensors)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(device))
    try:
        type_ = torch.empty(0, dtype=kind).numpy().dtype.str
    except TypeError:  # NumPy has no such type, as bfloat16; what is in the state is a tensor then
        type_ = ""
    begin, copies, start = _torch_transfer(torch, flat.view(torch.uint8), done), [], 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        copies.append(DeviceArray(type_, tuple(tensor.shape), nbytes, begin, start))
        start += nbytes
    return copies


def _torch_transfer(torch: Any, copy: Any, done: Any) -> Begin:
    """What copies bytes of *copy*, which is complete at the event *done*, to the host, in a stream of its own."""

    def begin(start: int, data: memoryview) -> Callable[[], None]:
        if not data:
            return lambda: None
        stream = _stream(copy.device, lambda: torch.cuda.Stream(copy.device))
        with torch.cuda.device(copy.device), torch.cuda.stream(stream):
            stream.wait_event(done)
            torch.frombuffer(data, dtype=torch.uint8).copy_(copy[start : start + len(data)], non_blocking=True)
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

    def begin(start: int, data: memoryview) -> Callable[[], None]:
        if not data:
            return lambda: None
        with copy.device:
            stream = _stream(copy.device.id, lambda: cupy.cuda.Stream(non_blocking=True))
            stream.wait_event(done)
            address = ctypes.c_void_p(numpy.frombuffer(data, numpy.uint8).ctypes.data)
            (copy.data + start).copy_to_host_async(address, len(data), stream)
        return stream.synchronize  # type: ignore[no-any-return]

    return DeviceArray(array.dtype.str, array.shape, copy.nbytes, begin)


_streams: Dict[Any, Any] = {}  # by GPU: in which copies come to the host


def _stream(device: Any, make: Callable[[], Any]) -> Any:
    if device not in _streams:
        _streams[device] = make()
    return _streams[device]
