"""What identifies the arguments of a data set: the same in any process, or refused."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from spotmpi.core.errors import InputError
from spotmpi.entries.values import token

NAMES = {"ada", "bob", "eve", "joe"}


@dataclass
class Choice:
    names: Any


class Pair(NamedTuple):
    first: Any
    second: int = 1


class Frame:
    """A data frame as `pickle` and Dask take those of pandas: its columns are arrays of objects."""

    def __init__(self, cells: list[Any]) -> None:
        self.columns = {"names": np.array([*cells, None], dtype=object)}

    def __repr__(self) -> str:
        return "<frame>"


HIDDEN: dict[str, Any] = {
    "an array of objects": np.array([NAMES, 1], dtype=object),
    "an array of dictionaries": np.array([{"names": NAMES}], dtype=object),
    "a structured array": np.array([(1, frozenset(NAMES))], dtype=[("number", "i4"), ("names", "O")]),
    "a cell of a data frame": Frame([NAMES]),
    "a list in a cell": [Frame([[NAMES]])],
    "a frozen set in a dataclass": Choice(frozenset(NAMES)),
}
STABLE: dict[str, Any] = {
    "slice": slice(NAMES, 5, 2),
    "slices": [slice(1, frozenset(NAMES)), slice(3)],
    "sets": {"a": NAMES, "b": frozenset(NAMES)},
    "pair": Pair(NAMES),
    "choice": Choice(NAMES),
    "array": np.array([{"ada"}, None, "text"], dtype=object),
    "frame": Frame(["ada", ["bob"]]),
}


def tokens() -> str:
    return "\n".join(f"{name} {token(value, name)}" for name, value in STABLE.items())


@pytest.mark.parametrize("value", HIDDEN.values(), ids=HIDDEN)
def test_a_set_whose_order_would_count_is_refused_by_its_members(value: object) -> None:
    """Its key was another one in each process, so that the data set was built again and again."""
    with pytest.raises(InputError) as failure:
        token(value, "raw")
    (problem,) = failure.value.problems
    assert problem.field == "raw" and "\n" not in str(problem)
    assert "set of 'ada', 'bob', 'eve', ... in " in problem.remedy and "use a sorted list" in problem.remedy


def outputs_by_hash_seed(*arguments: str) -> set[str]:
    """The outputs that a program of Python has with three hash seeds."""
    path = os.pathsep.join(sys.path)
    return {
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }


def test_what_is_not_refused_has_the_same_key_in_each_process() -> None:
    script = "from tests.unit.entries.test_values import tokens; print(tokens())"
    outputs = outputs_by_hash_seed("-c", script)
    assert len(outputs) == 1, outputs


def test_each_part_of_a_slice_counts() -> None:
    """Dask took its text, in which a large array is abridged."""
    one, other = np.arange(5000), np.arange(5000)
    other[2500] = 0
    assert token(slice(one), "rows") != token(slice(other), "rows")
    assert len({token(each, "rows") for each in (slice(1), slice(1, None, 2), slice(1, 2), slice("1"))}) == 4


SCRIPT = """
import enum
from spotmpi.entries.code import identify
from spotmpi.entries.values import token

class Colour(enum.Enum):
    RED, BLUE, GREEN = 1, 2, 3

class Point:
    def __init__(self, x):
        self.x, self.tags = x, {"a", "b", x}
    def __eq__(self, other):
        return self.x == other.x
    def __hash__(self):
        return hash(self.x)

def rows(raw, choice):
    return raw

points = [Point(x) for x in "abcd"]
sets = set(Colour), {*points}, [frozenset(points)], {"k": {*points, Colour.RED}}, {(Colour.RED, 1), *points}
for choice in (Colour.RED, points[0], *sets):
    print(identify(rows, {"choice": choice}).digest, token(choice, "choice"))
different = {*points[:2]}, {*points[1:3]}, set(Colour), {Colour.RED}
print(len({identify(rows, {"choice": choice}).digest for choice in different}))
"""


@pytest.mark.extensive("three interpreters, for classes that only a script has")
def test_objects_of_classes_of_a_script_have_the_same_key_in_each_process(tmp_path: Path) -> None:
    """Dask pickles them with their classes, in bytes that differ, and sets were in the order of these."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    outputs = outputs_by_hash_seed(str(script))
    assert len(outputs) == 1, outputs
    assert outputs.pop().splitlines()[-1] == "4"
