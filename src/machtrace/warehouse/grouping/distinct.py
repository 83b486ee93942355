"""Numbers of distinct devices that can be added up: the smallest hashes of a set.

A sketch has the :data:`MAX_COUNT` smallest of the 64-bit hashes of what it counts. It is exact
until it is full; then the largest hash shows how densely hashes lie, with a standard error of 4 %.
The sketch of a union is the smallest hashes of both, so that counts of days and builds can be
joined in any order. K. Beyer et al., "On synopses for distinct-value estimation under multiset
operations", SIGMOD 2007.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

MAX_COUNT = 512
_SPACE = float(1 << 64)

Hashes: TypeAlias = npt.NDArray[np.uint64]
Groups: TypeAlias = npt.NDArray[np.int64]


def hashes_of(texts: Iterable[str]) -> Hashes:
    """Return the hash of each text."""
    digests = (blake2b(text.encode("utf-8", "replace"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def smallest(group: Groups, value: Hashes) -> tuple[Groups, Hashes]:
    """Return the sketches of groups, by group in ascending order.

    Args:
        group: the group of each value.
        value: hashes, in any order, also several times.
    """
    order = np.lexsort((value, group))
    group, value = group[order], value[order]
    is_new = np.ones(len(group), np.bool_)
    is_new[1:] = (group[1:] != group[:-1]) | (value[1:] != value[:-1])
    group, value = group[is_new], value[is_new]
    begins = np.flatnonzero(np.diff(group, prepend=group[:1] - 1))
    rank = np.arange(len(group)) - np.repeat(begins, np.diff(begins, append=len(group)))
    return group[rank < MAX_COUNT], value[rank < MAX_COUNT]


def counts(group: Groups, value: Hashes, groups: int) -> npt.NDArray[np.int64]:
    """Return how many values each group has had.

    Args:
        group: the group of each value of its sketch: see :func:`smallest`.
        value: the sketches.
        groups: the number of groups.
    """
    size = np.bincount(group, minlength=groups)
    largest = np.zeros(groups, np.uint64)
    np.maximum.at(largest, group, value)
    share = np.maximum(largest.astype(np.float64) / _SPACE, 1 / _SPACE)
    return np.where(size < MAX_COUNT, size, np.round((MAX_COUNT - 1) / share)).astype(np.int64)
