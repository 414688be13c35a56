"""What a program saves comes back as it was, from bytes that depend on nothing else."""

from __future__ import annotations

import json
import signal
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spotmpi.checkpoint.state import bytes_of, decode, encode


class Moments(NamedTuple):
    """As the states of optimizers in optax are."""

    first: int
    second: int


class Metres(np.ndarray[Any, Any]):
    """An array that means more than its numbers, as those of astropy with their units."""


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
ARRAYS = arrays.arrays(
    arrays.scalar_dtypes() | arrays.unicode_string_dtypes(max_len=4), arrays.array_shapes(min_dims=0, min_side=0)
)
KEYS = st.text(st.sampled_from("ab/'"), max_size=3) | st.integers(-9, 99)
STATES = st.recursive(
    PLAIN
    | st.builds(bytearray, st.binary(max_size=8))
    | ARRAYS
    | ARRAYS.map(lambda array: array[()]).filter(lambda value: isinstance(value, np.generic)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)


def data_of(state: Any) -> bytearray:
    return bytearray(b"".join(map(bytes_of, encode(state))))


def equal(one: Any, other: Any) -> bool:
    """Whether two states are the same to the bit, and in the order of keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return repr(one) == repr(other)


@given(STATES)
def test_every_state_comes_back_bit_for_bit(state: Any) -> None:
    assert equal(decode(data_of(state)), state)


@given(STATES)
def test_the_same_state_gives_the_same_bytes(state: Any) -> None:
    assert data_of(state) == data_of(decode(data_of(state)))


def test_numbers_in_the_other_order_of_bytes_are_no_numbers_for_other_readers() -> None:
    array = np.array([1, 2], ">i4")
    data = data_of({"a": array})

    assert b'"dtype":"U8","shape":[8]' in data and equal(decode(data), {"a": array})


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4])
def test_arrays_of_the_types_that_jax_adds_come_back_as_such(kind: Any) -> None:
    array = np.arange(4).reshape(2, 2).astype(kind)
    data = data_of({"a": array, "scalar": array[1, 1]})

    assert equal(decode(data), {"a": array, "scalar": array[1, 1]})
    assert (b'"dtype":"BF16","shape":[2,2]' in data) == (kind is ml_dtypes.bfloat16)


@given(st.lists(ARRAYS, min_size=1, max_size=5))
@example([np.array("", "<U3"), np.array(0)])
def test_the_bytes_are_a_safetensors_file(values: list[Any]) -> None:
    """By the specification of the format: the length of the header, the header, and tensors without gaps."""
    data = data_of({f"name {place}": value for place, value in enumerate(values)})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")

    assert data[8:9] == b"{" and all(isinstance(value, str) for value in metadata.values())
    sections = sorted(tensor["data_offsets"] for tensor in header.values())
    assert len(sections) == len(values) and sections[0][0] == 0
    assert [end for _, end in sections[:-1]] == [start for start, _ in sections[1:]]
    assert sections[-1][1] == len(data) - 8 - length
    for tensor in header.values():
        width = 1 if tensor["dtype"] == "BOOL" else int(tensor["dtype"].lstrip("FIU")) // 8
        start, end = tensor["data_offsets"]
        assert end - start == width * int(np.prod(tensor["shape"]))
        assert (8 + length + start) % width == 0 or start == end, "it is aligned for readers that map it"


def test_arrays_that_come_back_can_be_written_to_and_share_nothing() -> None:
    one = np.zeros(3)
    state = decode(data_of({"a": one, "b": one}))
    state["a"][0] = 1

    assert one[0] == state["b"][0] == 0


def test_an_array_is_taken_as_it_is_in_memory_whatever_its_strides() -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)

    assert equal(decode(data_of(array.T)), array.T.copy())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"model": {"rate": object()}},
            "the state has a value of type object at model/rate, which a checkpoint cannot hold: save dicts",
        ),
        ({"words": np.array(["a", None])}, "a value of type ndarray of object at words"),
        (
            {("a", "b"): 1},
            "a value of type dict, which a checkpoint cannot hold: save dicts with names or numbers as keys",
        ),
        ([{1, 2}], "a value of type set at 0,"),
        ({"rows": np.zeros(2, [("a", "i4")])}, r"a value of type ndarray of \[\('a', '<i4'\)\] at rows"),
        ({"known": np.ma.array([1, 2], mask=[False, True])}, "a value of type MaskedArray of int64 at known"),
        ({"length": np.ones(2).view(Metres)}, "a value of type Metres of float64 at length"),
        ({"phase": signal.Signals.SIGUSR1}, "a value of type Signals at phase"),
        ({"adam": Moments(1, 2)}, "a value of type Moments at adam"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(state: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encode(state)
