"""The state of a program as bytes, and back: dicts and lists of arrays, tensors, bytes, text and numbers.

The bytes are a safetensors file: its tensors by their path in the state, and the structure around them as metadata.
The same state gives the same bytes.
"""

from __future__ import annotations

import enum
import functools
import importlib
import json
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from spotmpi.checkpoint.device import DeviceArray, copy_on_device

_EXTENDED = "ml_dtypes"  # the package of types that NumPy does not have
_METADATA, _TREE = "__metadata__", "spotmpi"
# The types that the format has names for; others are stored as bytes, and their own names are in the structure.
_KINDS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
Node = Tuple[Any, ...]  # its kind, and what `_restore` makes the value of
Part = Union[memoryview, DeviceArray]


class _Entry(NamedTuple):
    """One tensor of the file."""

    kind: str
    shape: Tuple[int, ...]
    data: Any  # a `Part`, or a CuPy array or PyTorch tensor on a GPU
    nbytes: int
    width: int  # bytes of an element


def encode(state: Any) -> list[Part]:
    """The parts of the file for *state*, in order; those of arrays and tensors on the host share its memory.

    Those on a GPU have been copied there.

    Raises:
        TypeError: it has a value of another type; the text names its place.
    """
    entries: Dict[str, _Entry] = {}
    tree = _flatten(state, (), entries)
    ordered = sorted(entries.items(), key=lambda item: -item[1].width)  # so that each is aligned
    header = _header(tree, tuple((name, entry.kind, entry.shape, entry.nbytes) for name, entry in ordered))
    return [memoryview(header), *_parts([entry.data for _, entry in ordered])]


@functools.lru_cache(maxsize=2)
def _header(tree: Node, tensors: Tuple[Tuple[str, str, Tuple[int, ...], int], ...]) -> bytes:
    """What the file begins with; a program saves the same structure again and again, while its GPU waits."""
    header: Dict[str, Any] = {_METADATA: {_TREE: json.dumps(tree, separators=(",", ":"))}}
    offset = 0
    for name, kind, shape, nbytes in tensors:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _parts(values: List[Any]) -> List[Part]:
    """*values*, those on a GPU copied there, or to the host where it has no room."""
    if all(isinstance(value, (memoryview, DeviceArray)) for value in values):
        return values
    parts: List[Part] = []
    copies = copy_on_device(values)
    for place, value in enumerate(values):
        part = value if isinstance(value, (memoryview, DeviceArray)) else copies[place]
        parts.append(_host_bytes(value) if part is None else part)
    return parts


def bytes_of(part: Part) -> memoryview:
    """The bytes of a part of a file."""
    return part.bytes_on_host() if isinstance(part, DeviceArray) else part


def decode(data: bytearray) -> Any:
    """The state in the bytes of a file that `encode` gave the parts of."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start].decode())
    return _restore(json.loads(header[_METADATA][_TREE]), header, memoryview(data)[start:])


def _flatten(value: Any, path: Tuple[str, ...], entries: Dict[str, _Entry]) -> Node:
    """The structure of *value*; its tensors go to *entries*."""
    if isinstance(value, DeviceArray):
        return _flatten_device_array(value, value.type, len(value), path, entries)
    numpy, torch, cupy = (sys.modules.get(name) for name in ("numpy", "torch", "cupy"))
    if cupy is not None and isinstance(value, cupy.ndarray):
        return _flatten_device_array(value, value.dtype.str, value.nbytes, path, entries)
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        array = numpy.asarray(value, order="C")
        type_ = _type_name(numpy, array.dtype) if _is_plain(numpy, value) else None
        if type_ is not None:
            data = memoryview(array.reshape(-1).view(numpy.uint8))
            kind = "array" if isinstance(value, numpy.ndarray) else "scalar"
            name = array.dtype.name if array.dtype.isnative else ""  # the format has no other order of bytes
            entry = _entry(name, array.dtype.itemsize, array.shape, data, len(data))
            return kind, _add(entry, path, entries), type_, array.shape
    elif torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_nested or value.is_meta:
            raise _unsupported(value, "a sparse, quantized, nested or meta tensor", path)
        value = value.detach().resolve_conj().resolve_neg()
        kind = str(value.dtype).partition(".")[2]
        data = value if value.is_cuda else _host_bytes(value)
        entry = _entry(kind, value.element_size(), tuple(value.shape), data, value.numel() * value.element_size())
        return "tensor", _add(entry, path, entries), kind, tuple(value.shape)
    elif isinstance(value, (bytes, bytearray)):
        entry = _entry("uint8", 1, (len(value),), memoryview(value), len(value))
        return "bytes" if isinstance(value, bytes) else "bytearray", _add(entry, path, entries)
    elif value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)):
        return "value", json.dumps(value)  # as text: 1, 1.0 and True are equal
    elif isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        return "dict", tuple((key, _flatten(item, (*path, str(key)), entries)) for key, item in value.items())
    elif isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):  # of named ones, as in optax
        kind = "list" if isinstance(value, list) else "tuple"
        return kind, tuple(_flatten(item, (*path, str(place)), entries) for place, item in enumerate(value))
    raise _unsupported(value, "a value of type " + type(value).__name__, path)


def _flatten_device_array(
    value: Any, type_: str, nbytes: int, path: Tuple[str, ...], entries: Dict[str, _Entry]
) -> Node:
    """The structure of an array on a GPU, of which there may be hundreds while the GPU waits."""
    entry = _entry(*_name_and_width(type_), value.shape, value, nbytes)
    return "array", _add(entry, path, entries), type_, value.shape


@functools.lru_cache(maxsize=None)
def _name_and_width(type_: str) -> Tuple[str, int]:
    """NumPy's name of a type, and the bytes of an element."""
    import numpy

    found = numpy.dtype(type_)
    return found.name, found.itemsize


def _unsupported(value: Any, kind: str, path: Tuple[str, ...]) -> TypeError:
    """The error for a value that no checkpoint can hold."""
    remedy = "save dicts with names or numbers as keys, lists, numbers, text, bytes, arrays of numbers, dense tensors"
    if hasattr(value, "dtype"):
        kind = "%s of %s" % (kind, value.dtype)
    return TypeError(
        "the state has %s%s, which a checkpoint cannot hold: %s"
        % (kind, " at " + "/".join(path) if path else "", remedy)
    )


def _is_plain(numpy: Any, value: Any) -> bool:
    """Whether it is no array that means more than its numbers, such as a mask, a unit or the product of matrices."""
    return not isinstance(value, numpy.ndarray) or type(value) in (numpy.ndarray, numpy.memmap)


def _type_name(numpy: Any, type_: Any) -> Optional[str]:
    """The name of an array's type, which gives it back; None of one that has none, such as objects and records."""
    if type_.type.__module__ == _EXTENDED:  # as bfloat16 of JAX; the `str` of float8_e5m2 is no type of NumPy
        return "%s.%s" % (_EXTENDED, type_.name)
    return str(type_.str) if not type_.hasobject and numpy.dtype(type_.str) == type_ else None


def _type(numpy: Any, name: str) -> Any:
    """The type that `_type_name` gave the *name* of."""
    if name.startswith(_EXTENDED):
        return numpy.dtype(getattr(importlib.import_module(_EXTENDED), name.partition(".")[2]))
    return numpy.dtype(name)


def _host_bytes(value: Any) -> memoryview:
    """The bytes of a tensor, or of a CuPy array."""
    if hasattr(value, "get"):
        import numpy

        return memoryview(value.get(order="C").reshape(-1).view(numpy.uint8))
    import torch

    return memoryview(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _entry(type_: str, width: int, shape: Tuple[int, ...], data: Any, nbytes: int) -> _Entry:
    if type_ in _KINDS:
        return _Entry(_KINDS[type_], shape, data, nbytes, width)
    return _Entry("U8", (nbytes,), data, nbytes, 1)


def _add(entry: _Entry, path: Tuple[str, ...], entries: Dict[str, _Entry]) -> str:
    """The name under which *entry* is in *entries* now."""
    name = "/".join(path) or "state"
    while name in entries or name == _METADATA:
        name += "'"
    entries[name] = entry
    return name


def _restore(node: Node, header: Dict[str, Any], data: memoryview) -> Any:
    """What `_flatten` made *node* of."""
    kind, value, *described = node
    if kind == "value":
        return json.loads(value)
    if kind == "dict":
        return {key: _restore(item, header, data) for key, item in value}
    if kind in ("list", "tuple"):
        items: List[Any] = [_restore(item, header, data) for item in value]
        return items if kind == "list" else tuple(items)
    start, end = header[value]["data_offsets"]
    if kind in ("bytes", "bytearray"):
        return bytes(data[start:end]) if kind == "bytes" else bytearray(data[start:end])
    if kind == "tensor":
        return _tensor(bytearray(data[start:end]), *described)
    import numpy

    type_, shape = described
    array = numpy.frombuffer(bytearray(data[start:end]), _type(numpy, type_)).reshape(shape)
    return array if kind == "array" else array[()]


def _tensor(data: bytearray, type_: str, shape: List[int]) -> Any:
    import torch

    kind = getattr(torch, type_)
    flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.reshape(shape)
