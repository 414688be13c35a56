"""The option `debug`: batches that a second worker prepares too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from spotmpi.streams.debug import difference
from spotmpi.streams.errors import StreamError
from tests.unit.streams.conftest import InProcess
from tests.unit.streams.flow import PREFIX

TIMES = np.array(["2020-01-01", "NaT"], "M8[D]")


def objects(*values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


class Plain:
    """A value that has no equality of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass
class Sparse:
    """Refuses to be an array, as PyTorch's sparse tensors and those of eight bits do."""

    values: list[int]

    def __array__(self, *arguments: Any) -> Any:
        raise TypeError("can't convert Sparse layout tensor to numpy")


class Ambiguous:
    """As a sparse matrix of SciPy: `==` gives one value for each element."""

    def __eq__(self, other: object) -> Any:
        return np.array([True, True])

    __hash__ = None  # type: ignore[assignment]


class Tensor:
    """As one of PyTorch in bfloat16 on a GPU, of which numpy makes an array after two conversions only."""

    def __init__(self, values: list[float], dtype: str = "torch.bfloat16", device: str = "cuda") -> None:
        self.values, self.dtype, self.device = values, dtype, device

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return Tensor(self.values, self.dtype, "cpu")

    def float(self) -> Tensor:
        return Tensor(self.values, "torch.float32", self.device)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if (self.dtype, self.device) != ("torch.float32", "cpu"):
            raise TypeError(f"can't convert {self.dtype} on {self.device} to numpy")
        return np.array(self.values, np.float32)


@pytest.mark.parametrize(("share", "checked"), [(1.0, 40), (0.25, 10), (0.0, 0), (1e-9, 1)])
def test_the_sample_has_the_first_batch_and_a_share_of_the_others(
    make_stream: Any, workers: InProcess, share: float, checked: int
) -> None:
    stream = make_stream(prepare=PREFIX + "double", debug=share, workers=2)
    assert len(list(stream)) == 40
    assert len(workers.avoided) == checked
    assert workers.in_flight == 0


def test_another_worker_prepares_the_sample(make_stream: Any, workers: InProcess) -> None:
    list(make_stream(prepare=PREFIX + "double", debug=1.0, workers=3))
    assert set(workers.avoided) == {0}  # which this process is


def test_a_prepare_with_state_ends_the_run_with_batch_rows_and_values(make_stream: Any) -> None:
    with pytest.raises(StreamError) as error:
        list(make_stream(prepare=PREFIX + "count_calls", debug=1e-9, workers=2, prefetch=1))
    first, second = (int(word.strip("],;")) for word in str(error.value).split("values: [0] is ")[1].split()[0:3:2])
    assert first < second
    assert str(error.value) == (
        f"{PREFIX}count_calls is not a function of its arguments: for batch 0 ({PREFIX}numbers rows 0 to 0) "
        f"worker 0 and worker 0 have different values: [0] is {first}, then {second}; remove state, clocks and random "
        "numbers that do not come from `seed`"
    )


def test_a_skipped_batch_of_the_sample_is_compared_by_what_replaces_it(make_stream: Any, workers: InProcess) -> None:
    list(make_stream(prepare=PREFIX + "fail_at_7", on_error="skip", debug=1.0, workers=2))
    assert len(workers.avoided) == 40


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"x": np.arange(3)}, {"x": np.arange(3)}, None),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), None),
        ((1, "a", b"b"), (1, "a", b"b"), None),
        (float("nan"), float("nan"), None),
        (TIMES, TIMES.copy(), None),
        (TIMES - TIMES[0], TIMES - TIMES[0], None),
        (TIMES, np.array(["2020-01-01", "2020-01-02"], "M8[D]"), "[1] is NaT, then 2020-01-02 (1 of 2 values differs)"),
        ({"x": objects(1.5, float("nan"), None, "a")}, {"x": objects(1.5, float("nan"), None, "a")}, None),
        (objects(1, None), objects(1, 2), "[1] is a NoneType, then a int (1 of 2 values differs)"),
        ({"ids": objects(np.arange(2), None)}, {"ids": objects(np.arange(2), None)}, None),
        (
            {"ids": objects(np.arange(2), np.array([3, 4]))},
            {"ids": objects(np.arange(2), np.array([3, 5]))},
            "['ids'][1][1] is 4, then 5 (1 of 2 values differs) (1 of 2 values differs)",
        ),
        (objects({"n": [1, float("nan")]}), objects({"n": [1, float("nan")]}), None),
        (np.array(float("nan")), np.array(float("nan")), None),
        (np.array([(1, float("nan"))], "i4,f4"), np.array([(1, float("nan"))], "i4,f4"), None),
        (
            np.array([(1, 2.0)], "i4,f4"),
            np.array([(1, 3.0)], "i4,f4"),
            "['f1'][0] is 2.0, then 3.0 (1 of 1 value differs)",
        ),
        (np.array([[""], ["b"]]), np.array([[""], ["c"]]), "[1, 0] is 'b', then 'c' (1 of 2 values differs)"),
        (Plain(np.arange(2)), Plain(np.arange(2)), None),
        ({"p": Plain(1)}, {"p": Plain(2)}, "['p']['value'] is 1, then 2"),
        (Ambiguous(), Ambiguous(), None),
        (Sparse([1, 2]), Sparse([1, 2]), None),
        ({"x": Sparse([1, 2])}, {"x": Sparse([1, 3])}, "['x'] is Sparse(values=[1, 2]), then Sparse(values=[1, 3])"),
        (Tensor([1.0, np.nan]), Tensor([1.0, np.nan]), None),
        ({1.5, 2}, {2, 1.5}, None),
        (
            {"x": np.array([[1, 2], [3, 4]])},
            {"x": np.array([[1, 2], [5, 6]])},
            "['x'][1, 0] is 3, then 5 (2 of 4 values differ)",
        ),
        ([np.zeros(2)], [np.zeros(3)], "[0] is float64 of shape (2,), then float64 of shape (3,)"),
        ({"x": 1}, {"y": 1}, "the batch has the keys ['x'], then ['y']"),
        ([1], [1, 2], "the batch has 1 item, then 2"),
        ({"x": [1, "a"]}, {"x": [1, "b"]}, "['x'][1] is 'a', then 'b'"),
        (1, "1", "the batch is a int, then a str"),
        ("a" * 80, "b", f"the batch is '{'a' * 56}..., then 'b'"),
    ],
)
def test_a_difference_has_its_place_and_both_values(first: Any, second: Any, expected: str | None) -> None:
    assert difference(first, second) == expected
