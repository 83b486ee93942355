"""A model of a published method that names each distinct stack once, by a hash of its addresses.

It is that of 得物 iOS函数调用栈及符号化调优实践 (xie.infoq.cn/article/c71f0fa9ae664abca60d539de),
whose listing runs in a hook of each privacy API of an iOS app. Only what identifies a stack and
what selects its frames is modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor

POINTER_MASK = 0x0000_000F_FFFF_FFFF
APP_PREFIX = "/private/var/containers/Bundle/Application/"


def key(frames: Sequence[int], *, most: int | None = None, task: int | None = None) -> int:
    """Return what stands for a stack: its addresses, innermost first, combined by exclusive or.

    Args:
        frames: The return addresses.
        most: How many frames are read.
        task: The number of the Swift task, if a frame is that of an asynchronous function.
    """
    if task is not None:
        return task
    return reduce(xor, frames[:most], 0)


def without_signature(pointer: int) -> int:
    """Return the address in a pointer that may be signed."""
    return pointer & POINTER_MASK


@dataclass(frozen=True)
class Text:
    """The code of an image in memory."""

    path: str
    start: int
    size: int

    def has(self, address: int) -> bool:
        """Whether an address counts as one of this image."""
        return self.start <= address <= self.start + self.size

    @property
    def is_of_the_app(self) -> bool:
        """Whether the image's frames are shown."""
        return self.path.startswith(APP_PREFIX)
