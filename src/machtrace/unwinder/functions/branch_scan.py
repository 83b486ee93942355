"""A search of an image's code for direct jumps and calls, in bulk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from machtrace.errors import MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.memory import ImageContents
from machtrace.unwinder.step_budget import StepBudget

CHUNK = 1 << 20
"""Bytes of code searched at once."""
SEARCH_LIMIT = 64 << 20
"""Bytes of code searched for one address: B reaches 128 MiB, but outlined code is near its
callers."""
STEPS_A_CHUNK = 1200
"""Steps per chunk, which numpy searches in a millisecond."""
_STEPS_LEFT = 2 * STEPS_A_CHUNK
"""Steps that a search leaves for the code that it is for."""
CALLS_SEARCH_LIMIT = 256 << 20
"""Bytes of code per image that are searched for calls."""

_OPCODE_MASK = np.uint32(0xFC000000)
_B = np.uint32(0x14000000)
_BL = np.uint32(0x94000000)
_DISTANCE_MASK = np.uint32(0x03FFFFFF)
_DISTANCE_WORDS = 1 << 26


def jumps_to(
    target: Svma,
    contents: ImageContents,
    sections: Sequence[tuple[int, int]],
    budget: StepBudget | None = None,
) -> Iterator[Svma | None]:
    """Yield the addresses of unconditional jumps (B) to ``target``, near ones first.

    None is the last if not all code could be searched.

    Args:
        target: where they lead.
        contents: the image.
        sections: the (start, end) of its code.
        budget: the search ends before it is exhausted.
    """
    chunks = [
        (start, min(start + CHUNK, end))
        for low, end in sections
        for start in range(max(low, target - SEARCH_LIMIT), min(end, target + SEARCH_LIMIT), CHUNK)
    ]
    chunks.sort(key=lambda chunk: abs(chunk[0] + CHUNK // 2 - target))
    is_whole = len(chunks) <= SEARCH_LIMIT // CHUNK
    for start, end in chunks[: SEARCH_LIMIT // CHUNK]:
        steps = STEPS_A_CHUNK * (end - start) // CHUNK + 64
        if budget is not None and (budget.left < steps + _STEPS_LEFT or not budget.afford(steps)):
            is_whole = False
            break
        try:
            at, distances = _branches(contents, start, end, _B)
        except MemoryReadError:  # other chunks may be readable
            is_whole = False
            continue
        # Relative to the chunk, so that no address has to fit in 63 bits.
        jumps = at[at + distances == (target - start) // 4]
        yield from (Svma(start + 4 * int(index)) for index in jumps)
    if not is_whole:
        yield None


def call_targets(
    contents: ImageContents, sections: Sequence[tuple[int, int]]
) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield arrays of the Svmas that code calls (BL), in no order.

    In each of the ``sections``, (start, end), the search ends at the first unreadable chunk; in
    total, after :data:`CALLS_SEARCH_LIMIT` bytes.
    """
    left = CALLS_SEARCH_LIMIT
    for start, stated_end in sections:
        end = min(stated_end, start + left)
        left -= end - start
        for low in range(start, end, CHUNK):
            try:
                at, distances = _branches(contents, low, min(low + CHUNK, end), _BL)
            except MemoryReadError:
                break
            offsets = np.unique(4 * (at + distances))
            # The wide addition is modulo 2**64, as two's complement distances need.
            yield offsets.astype(np.uint64) + np.uint64(low)


def _branches(
    contents: ImageContents, start: int, end: int, opcode: np.uint32
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the indices of words with ``opcode``, and their distances, in words from ``start``."""
    data = contents.read_svma(Svma(start), (end - start) & ~3)
    words = np.frombuffer(data, "<u4")
    at = np.flatnonzero((words & _OPCODE_MASK) == opcode)
    distances = (words[at] & _DISTANCE_MASK).astype(np.int64)
    distances[distances >= _DISTANCE_WORDS // 2] -= _DISTANCE_WORDS
    return at.astype(np.int64), distances
