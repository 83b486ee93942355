"""Walkers of many stacks of one process: their interface, and the one in Python."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import field
from typing import Protocol

from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.model.memory import LayeredMemory, MemoryReader
from machtrace.model.snapshot import ThreadSnapshot
from machtrace.model.stack import AddressChain, AddressKind, Dispute, FrameTrust, Gap, Stop, Walk
from machtrace.unwinder import walker
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.rule_cache import RuleCache

TRUSTS = tuple(FrameTrust)
"""The trust of a frame, by its code divided by :data:`KIND_COUNT`."""

KINDS = tuple(AddressKind)
"""The kind of a frame's address, by the remainder of that division."""

KIND_COUNT = len(KINDS)

_CODES = {
    (trust, kind): KIND_COUNT * number + index
    for number, trust in enumerate(TRUSTS)
    for index, kind in enumerate(KINDS)
}


def code_of(trust: FrameTrust, kind: AddressKind) -> int:
    """Return the byte that has the trust and the kind of a frame, for stacks in columns."""
    return _CODES[trust, kind]


@dataclass(frozen=True, slots=True)
class Collected:
    """A walk without its frames; see :class:`~machtrace.model.stack.Walk`."""

    frame_count: int
    """The number of its frames that were collected."""
    stop: Stop
    gap: Gap | None = None
    physical_remainder: AddressChain | None = None
    disputes: Mapping[int, tuple[Dispute, ...]] = field(default_factory=dict)
    """The disputes of those frames, by frame number."""
    is_plain: bool = False
    """Whether it has no gap, disputes or async frames."""


def collected(walk: Walk) -> Collected:
    """Return ``walk`` without the addresses, trusts and kinds of its frames."""
    return Collected(
        frame_count=len(walk.addresses),
        stop=walk.stop,
        gap=walk.gap,
        physical_remainder=walk.physical_remainder,
        disputes={
            number: frame.disputed_by
            for number, frame in enumerate(walk.addresses)
            if frame.disputed_by
        },
    )


class ThreadWalker(Protocol):
    """Walks stacks of one process in sequence; not thread-safe."""

    def walk(self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit, /) -> Walk:
        """Walk a thread's stack; see :func:`~machtrace.unwinder.walker.walk`. Raises nothing.

        Args:
            thread: the thread.
            rest: the memory besides the thread's stack, which is read first.
            limit: the maximum number of addresses, at both ends.
        """
        ...

    def collect(
        self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit, /
    ) -> Collected:
        """Walk a thread's stack, and append its frames to those collected before."""
        ...

    def take(self) -> tuple[bytes, bytes]:
        """Return addresses (8 bytes each, in native order) and codes of all collected frames.

        They are removed from the collection.
        """
        ...


class PythonWalker:
    """The walker in Python. A :class:`ThreadWalker`."""

    __slots__ = ("_addresses", "_codes", "_mask", "_rules")

    def __init__(self, rules: RuleCache, mask: PacMask) -> None:
        self._rules = rules
        self._mask = mask
        self._addresses = array("Q")
        self._codes = bytearray()

    def walk(self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit) -> Walk:
        """See :meth:`ThreadWalker.walk`."""
        memory = LayeredMemory((thread.stack, rest))
        return walker.walk(thread.registers, memory, self._rules, self._mask, limit)

    def collect(self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit) -> Collected:
        """See :meth:`ThreadWalker.collect`."""
        walked = self.walk(thread, rest, limit)
        for frame in walked.addresses:
            self._addresses.append(frame.address)
            self._codes.append(code_of(frame.trust, frame.kind))
        return collected(walked)

    def take(self) -> tuple[bytes, bytes]:
        """See :meth:`ThreadWalker.take`."""
        taken = self._addresses.tobytes(), bytes(self._codes)
        self._addresses = array("Q")
        self._codes = bytearray()
        return taken
