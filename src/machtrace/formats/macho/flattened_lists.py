"""Lists of different lengths as columns, one list behind the other."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[np.intp]


def flattened(counts: npt.NDArray[np.int64]) -> tuple[Rows, Rows]:
    """For each element of lists of these lengths: which list it is in, and its place in it."""
    of_list = np.repeat(np.arange(len(counts)), counts)
    return of_list, np.arange(len(of_list)) - np.repeat(np.cumsum(counts) - counts, counts)


def bounded(counts: npt.NDArray[Any], most: int) -> npt.NDArray[np.int64]:
    """``counts`` without those by which all together, from the first on, exceed ``most``."""
    found = np.where(counts <= most, counts, 0).astype(np.int64)
    return np.where(np.cumsum(found) <= most, found, 0)
