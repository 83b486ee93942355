"""Many strings out of one block of them, each ended by a NUL."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError

LONGEST_NAME = 1 << 16
_SHARED_NAMES = 4
"""How many times over a block may be used before its strings must be overlapping on purpose."""


def names_at(strings: bytes, offsets: npt.NDArray[np.int64], source: str) -> list[str]:
    r"""The strings at ``offsets``, at most 64 KiB of each; empty where one is beyond the block.

    Bytes that are no UTF-8 are shown as ``\x..``.

    Raises:
        MachOError: together they are many times as long as the block, which only a made-up file
            has.
    """
    room = _SHARED_NAMES * len(strings) + len(offsets)
    names: dict[int, str] = {}
    for at in np.unique(offsets).tolist():
        if not 0 <= at < len(strings):
            names[at] = ""
            continue
        end = strings.find(b"\0", at, at + LONGEST_NAME)
        if end < 0:
            end = min(len(strings), at + LONGEST_NAME)
        room -= end - at
        if room < 0:
            raise MachOError("names overlap", source=source, offset=at)
        names[at] = strings[at:end].decode("utf-8", "backslashreplace")
    return [names[at] for at in offsets.tolist()]
