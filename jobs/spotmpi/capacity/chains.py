"""How capacity comes and goes in a pool: a Markov chain of levels and ages, fitted to what was observed. Pure.

A *level* is the number of allowed sizes that a pool can hold, 0 for none. What has lasted for a while lasts longer: the
hazard of a change falls tenfold in the first hours, for capacity and for its absence, in every trace that we have. So
each level is two states, young and old. Three ages are no better there: the cost differs by less than 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Matrix = NDArray[np.float64]

OLD_AFTER = 3600.0  # seconds
# What is assumed before anything was observed: changes per hour of a young and an old level, as they are in the middle
# of the traces in tests/traces. It weighs as much as so many hours of observation of a state.
_YOUNG, _OLD, _WEIGHT = 1.2, 0.12, 6.0


def levels(available: NDArray[Any], sizes: Sequence[int]) -> Indices:
    """The level of each count of *available* nodes: how many of the ascending *sizes* it can hold."""
    return np.asarray(np.searchsorted(np.asarray(sizes), available, side="right"))


def states(level: Indices, step: float) -> Indices:
    """The state of pools at each tick of *step* seconds (last axis): twice the level, plus 1 after its first hour.

    Nodes that are there at the first tick are old, as most are at any time. Absence is young then: a wait costs little.
    """
    ticks = np.arange(level.shape[-1])
    changed = np.zeros(level.shape, dtype=bool)
    changed[..., 1:] = level[..., 1:] != level[..., :-1]
    first = np.where(level[..., :1] > 0, -math.ceil(OLD_AFTER / step), 0)
    since = np.maximum.accumulate(np.where(changed, ticks, first), axis=-1)
    return np.asarray(2 * level + ((ticks - since) * step >= OLD_AFTER))


def fit(state: Indices, level_count: int, step: float) -> Matrix:
    """The chain of one step of *step* seconds, fitted to the *state* of a pool at consecutive ticks."""
    counts = np.zeros((2 * level_count, level_count))
    np.add.at(counts, (state[:-1], state[1:] // 2), 1.0)
    weight = _WEIGHT * 3600.0 / step
    share = (counts + weight * _assumed(level_count, step)) / (counts.sum(axis=1, keepdims=True) + weight)
    chain = np.zeros((2 * level_count, 2 * level_count))
    chain[:, 0::2] = share
    aging = min(1.0, step / OLD_AFTER)
    for level in range(level_count):
        young, old = 2 * level, 2 * level + 1
        chain[young, young], chain[young, old] = share[young, level] * (1 - aging), share[young, level] * aging
        chain[old, young], chain[old, old] = 0.0, share[old, level]
    return chain


def returns(chain: Matrix, size: int, steps: int) -> Matrix:
    """The chances that nodes for the size of this index are there before and after *steps*, but not at all between."""
    there = np.arange(len(chain)) // 2 > size
    both = np.outer(there, there)
    kept = np.linalg.matrix_power(np.where(both, chain, 0.0), steps)
    return np.asarray(np.where(both, np.maximum(np.linalg.matrix_power(chain, steps) - kept, 0.0), 0.0))


def _assumed(level_count: int, step: float) -> Matrix:
    """The chances of each level after a step from each state, without any observation: changes go to the next level."""
    assumed = np.zeros((2 * level_count, level_count))
    for state in range(2 * level_count):
        level, old = divmod(state, 2)
        change = 1 - np.exp(-(_OLD if old else _YOUNG) * step / 3600.0)
        others = [other for other in (level - 1, level + 1) if 0 <= other < level_count]
        assumed[state, others] = change / len(others)
        assumed[state, level] = 1 - change
    return assumed
