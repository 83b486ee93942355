"""The nodes of a whole log at once, as columns, if none of its records is damaged.

The numbers of nodes follow from their callers', so that a chain is computed node by node; but each
chain states the number that it begins at, so that all of them are computed side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]
SCATTER = 0x9E3779B1
SPREAD = 0x9E3779B97F4A7C15
MAX_VARINT = 10
_MAX_LAST_BYTE = 1
_MORE = 128
"""The bit that another byte follows."""
_SIDE_BY_SIDE = 256
"""Nodes of a chain that are computed with those of other chains; longer ones are few."""
_NO_IMAGE = -1


class NodeColumns(NamedTuple):
    """Nodes in the order in which they were stored, callers first."""

    number: Numbers
    caller: npt.NDArray[np.int64]
    """The index of the caller, or -1 for the root."""
    image: npt.NDArray[np.int64]
    offset: Numbers


def node_columns(
    payloads: Sequence[memoryview], starts: Mapping[int, tuple[int, int]], bits: int
) -> NodeColumns | None:
    """Return the nodes of a log's records; None if any of them is damaged.

    Args:
        payloads: of the records.
        starts: by number of an image, its index and start (Avma).
        bits: of the numbers of nodes.
    """
    used = [payload for payload in payloads if len(payload)]
    if any(payload[-1] >= _MORE for payload in used):
        return None
    data = np.frombuffer(b"".join(used), np.uint8)
    values = varints(data)
    if values is None or not len(values):
        return None
    bounds = np.cumsum([len(payload) for payload in used])
    ends = np.cumsum(data < _MORE)[bounds - 1]
    chains = _chains(values.tolist(), ends.tolist())
    if chains is None:
        return None
    heads, counts, places, firsts = (np.array(chain, np.int64) for chain in chains)
    addresses = _addresses(values, places, firsts, starts)
    if addresses is None:
        return None
    image, offset, address = addresses
    parents = values[heads]
    first = np.cumsum(counts) - counts
    number = _numbers(parents, first, counts, address, values[places], bits)
    caller = np.arange(len(places)) - 1
    known = _index_of(number, parents)
    if known is None or (parents >> np.uint64(bits)).any() or (known >= first).any():
        return None
    caller[first] = known
    return NodeColumns(number, caller, image, offset)


def varints(data: npt.NDArray[np.uint8]) -> Numbers | None:
    """Return the unsigned LEB128 numbers in some bytes; None if one is invalid."""
    if not len(data):
        return np.zeros(0, np.uint64)
    # A number ends with the first byte without the bit.
    ends = np.flatnonzero(data < _MORE)
    if not len(ends) or ends[-1] != len(data) - 1:
        return None
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > MAX_VARINT:
        return None
    values = (data[starts] & 127).astype(np.uint64)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        digits = data[starts[longer] + place]
        if place == MAX_VARINT - 1 and (digits > _MAX_LAST_BYTE).any():
            return None
        values[longer] |= (digits & 127).astype(np.uint64) << np.uint64(7 * place)
    return values


def _chains(
    values: Sequence[int], ends: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """Return the places of chains, their counts, the places of nodes, and records' first nodes."""
    heads: list[int] = []
    counts: list[int] = []
    places: list[int] = []
    firsts: list[int] = []
    at = 0
    try:
        for end in ends:
            image = 0
            firsts.append(len(places))
            while at < end:
                count = values[at + 1]
                if not 0 < count < end - at:
                    return None
                heads.append(at)
                counts.append(count)
                at += 2
                for _ in range(count):
                    places.append(at)
                    if values[at + 1] & 1:
                        image = values[at + 2]
                        at += 1
                    at += 2 if image else 3
            if at != end:
                return None
    except IndexError:
        return None
    return heads, counts, places, firsts


def _addresses(
    values: Numbers,
    places: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.int64],
    starts: Mapping[int, tuple[int, int]],
) -> tuple[npt.NDArray[np.int64], Numbers, Numbers] | None:
    """Return images, offsets and addresses of nodes; None if an image is unknown."""
    code = values[places + 1]
    is_changed = (code & np.uint64(1)) != 0
    stated = np.zeros(len(places), np.uint64)
    stated[is_changed] = values[places[is_changed] + 2]
    # An image is valid up to the next one, or to the end of its record.
    begins = is_changed.copy()
    begins[firsts[firsts < len(places)]] = True
    last = np.maximum.accumulate(np.where(begins, np.arange(len(places)), 0))
    numbers, inverse = np.unique(stated[last], return_inverse=True)
    rows = [starts.get(number) if number else (_NO_IMAGE, 0) for number in numbers.tolist()]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    image = np.array([index for index, _ in known], np.int64)[inverse]
    offset = code >> np.uint64(1)
    outside = np.flatnonzero(image == _NO_IMAGE)
    offset[outside] = values[places[outside] + 2 + is_changed[outside]]
    return image, offset, np.array([start for _, start in known], np.uint64)[inverse] + offset


def _numbers(
    parents: Numbers,
    first: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    address: Numbers,
    distance: Numbers,
    bits: int,
) -> Numbers:
    """Return the numbers of nodes, chain by chain."""
    mask, half = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    scatter = np.uint64(SCATTER)
    step = ((address ^ address >> np.uint64(32)) * np.uint64(SPREAD) >> np.uint64(64 - bits)) + (
        distance
    )
    number = np.zeros(len(address), np.uint64)
    order = np.argsort(-counts, kind="stable")
    begins, lengths, before = first[order], counts[order], parents[order]
    active = len(order)
    for place in range(min(int(lengths[0]), _SIDE_BY_SIDE)):
        while lengths[active - 1] <= place:
            active -= 1
        rows = begins[:active] + place
        scattered = before[:active] * scatter & mask
        before = ((scattered ^ scattered >> half) * scatter) + step[rows] & mask
        number[rows] = before
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        if length <= _SIDE_BY_SIDE:
            break
        node = int(number[begin + _SIDE_BY_SIDE - 1])
        rest = slice(begin + _SIDE_BY_SIDE, begin + length)
        chain = []
        for each in step[rest].tolist():
            scattered_node = node * SCATTER & int(mask)
            scattered_node = (scattered_node ^ scattered_node >> int(half)) * SCATTER
            node = scattered_node + each & int(mask)
            chain.append(node)
        number[rest] = chain
    return number


def _index_of(number: Numbers, wanted: Numbers) -> npt.NDArray[np.int64] | None:
    """Return the index of each wanted number, -1 for 0; None if one is absent or there twice."""
    order = np.argsort(number)
    ordered = number[order]
    if not ordered[0] or (ordered[1:] == ordered[:-1]).any():
        return None
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    is_root = wanted == 0
    if ((ordered[at] != wanted) & ~is_root).any():
        return None
    return np.where(is_root, -1, order[at])
