"""Tensors and arrays in batches: tensors travel as arrays, which pickle does not copy as it copies tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TensorData:
    """The array of a tensor."""

    array: Any


def pack(batch: Any) -> Any:
    """The batch with its tensors as arrays; those that have no array, such as those on a GPU, stay as they are.

    Arrays become writable, as those of images that were decoded are not: PyTorch warns of others.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is None:  # then it has neither
        return batch

    def convert(value: Any) -> Any:
        if isinstance(value, numpy.ndarray):
            return value if value.flags.writeable else value.copy()
        if torch is None or not isinstance(value, torch.Tensor) or value.requires_grad:
            return value
        try:
            return TensorData(value.numpy())
        except (RuntimeError, TypeError):
            return value

    return _map(convert, batch)


def to_host(value: Any) -> Any:
    """A value with its tensors in the memory of the host, without gradients."""
    torch = sys.modules.get("torch")
    if torch is None:
        return value
    return _map(lambda each: each.detach().cpu() if isinstance(each, torch.Tensor) else each, value)


def unpack(batch: Any) -> Any:
    """The inverse of `pack`."""
    return _map(_tensor, batch)


def _tensor(value: Any) -> Any:
    if not isinstance(value, TensorData):
        return value
    import torch

    return torch.from_numpy(value.array)


def _map(convert: Callable[[Any], Any], value: Any) -> Any:
    """*value* with what is in its dictionaries, lists and tuples converted."""
    if type(value) is dict:
        return {key: _map(convert, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(convert, item) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named one
        return value._make(_map(convert, item) for item in value)
    return convert(value)
