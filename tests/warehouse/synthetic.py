"""Synthetic stacks of a fleet: functions with call sites, some popular, below some threads' starts.

The kinds are those of the format's trial: ``diverse`` has about 65 % distinct stacks of 28 frames,
``crashes`` about 18 % of 21.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FUNCTIONS, SITES, MAX_DEPTH = 20_000, 6, 96
_STARTS = (12, 14, 6, 5, 7, 4, 9, 11)
_SHARES = (0.45, 0.1, 0.15, 0.1, 0.08, 0.05, 0.04, 0.03)
_SAME_AND_END = {"diverse": (0.72, 1 / 19), "crashes": (0.93, 1 / 12)}
INSTRUCTIONS = 52
"""Bytes between call sites."""


class Stacks(NamedTuple):
    """Stacks behind each other, each from the outermost frame inwards."""

    frames: npt.NDArray[np.uint32]
    """Numbers of call sites."""
    starts: npt.NDArray[np.int64]
    """The first frame of each stack, and the end of the last."""


def stacks(count: int, kind: str, seed: int = 7) -> Stacks:
    """Return some stacks."""
    same, end = _SAME_AND_END[kind]
    random = np.random.default_rng(seed)
    callee = (FUNCTIONS * random.random((FUNCTIONS, SITES)) ** 2.2).astype(np.uint32)
    starts = [random.integers(0, FUNCTIONS * SITES, size).astype(np.uint32) for size in _STARTS]
    thread = random.choice(len(starts), size=count, p=_SHARES)
    table = np.zeros((count, MAX_DEPTH), np.uint32)
    depth = np.zeros(count, np.int64)
    function = np.zeros(count, np.uint32)
    for number, prefix in enumerate(starts):
        rows = thread == number
        table[rows, : len(prefix)] = prefix
        depth[rows], function[rows] = len(prefix), (number * 997) % FUNCTIONS
    alive = np.arange(count)
    while len(alive):
        site = np.minimum(random.geometric(same, size=len(alive)) - 1, SITES - 1).astype(np.uint32)
        caller = function[alive]
        table[alive, depth[alive]] = caller * SITES + site
        depth[alive] += 1
        function[alive] = callee[caller, site]
        alive = alive[(random.random(len(alive)) > end) & (depth[alive] < MAX_DEPTH)]
    inside = np.arange(MAX_DEPTH)[None, :] < depth[:, None]
    return Stacks(table[inside], np.concatenate((np.zeros(1, np.int64), np.cumsum(depth))))
