"""Errors that a user can fix, on their way through other processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from spotmpi.aws.errors import CallError
from spotmpi.core.errors import InputError, NotPermitted, Problem, RunInUse, SpotmpiError, UnknownRun
from spotmpi.spec.source import WrongKeys, from_values
from spotmpi.study.study import WrongStudy

PROBLEM = Problem("nodes", 0, "at least 1")


def wrong_keys() -> WrongKeys:
    with pytest.raises(WrongKeys) as caught:
        from_values({"command": ["x"], "nods": 3})
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        CallError("a", "b", "c"),
        InputError([PROBLEM]),
        UnknownRun([PROBLEM, PROBLEM]),
        wrong_keys(),
        SpotmpiError("a"),
        NotPermitted("b"),
        RunInUse("c"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_on_the_other_side_of_a_pickle(error: SpotmpiError) -> None:
    """Pools of processes and notebooks send what their workers raise."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert vars(copy.copy(error)) == vars(error)
    assert issubclass(WrongStudy, InputError)
