"""Walking many stacks of one process: what every way of doing so offers, and Python's own.

How a frame was found and what its address is, in one byte: for stacks kept as columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from machtrace.model.address import PacMask
from machtrace.model.memory import LayeredMemory, MemoryReader
from machtrace.model.snapshot import ThreadSnapshot
from machtrace.model.stack import AddressChain, AddressKind, Dispute, FrameTrust, Gap, Stop, Walk
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.walker import walk

TRUSTS = tuple(FrameTrust)
"""By code divided by :data:`KIND_COUNT`."""

KINDS = tuple(AddressKind)
"""By the rest of that division."""

KIND_COUNT = len(KINDS)

_CODES = {
    (trust, kind): KIND_COUNT * number + index
    for number, trust in enumerate(TRUSTS)
    for index, kind in enumerate(KINDS)
}


def code_of(trust: FrameTrust, kind: AddressKind) -> int:
    """The byte for both."""
    return _CODES[trust, kind]


@dataclass(frozen=True, slots=True)
class Collected:
    """A stack that was walked, without its frames; see :class:`~machtrace.model.stack.Walk`."""

    kept: int
    """How many frames were collected of it."""
    stop: Stop
    gap: Gap | None = None
    physical_remainder: AddressChain | None = None
    disputes: Mapping[int, tuple[Dispute, ...]] = field(default_factory=dict)
    """Of those kept frames that have any, by number."""
    is_plain: bool = False
    """Whether the walk ended at a root, and its frames are all that there is to say."""


def collected(walked: Walk) -> Collected:
    """All that ``walked`` says beside its frames' addresses, trusts and kinds."""
    return Collected(
        kept=len(walked.addresses),
        stop=walked.stop,
        gap=walked.gap,
        physical_remainder=walked.physical_remainder,
        disputes={
            number: frame.disputed_by
            for number, frame in enumerate(walked.addresses)
            if frame.disputed_by
        },
    )


class ThreadWalker(Protocol):
    """Walks stacks of one process, one after the other; not for use by several threads at once."""

    def walk(self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit, /) -> Walk:
        """What :func:`~machtrace.unwinder.walker.walk` returns. Raises nothing.

        Args:
            thread: whose stack it is.
            rest: what is known of memory besides that stack, which is looked at first.
            limit: which addresses of a deeper stack are kept.
        """
        ...

    def collect(
        self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit, /
    ) -> Collected:
        """The same, and the frames go behind those that were collected before."""
        ...

    def take(self) -> tuple[bytes, bytes]:
        """Addresses (8 bytes each, as this machine orders them) and codes of what was collected.

        It begins anew after that.
        """
        ...


class PythonWalker:
    """By Python alone. A :class:`ThreadWalker`."""

    __slots__ = ("_addresses", "_codes", "_mask", "_rules")

    def __init__(self, rules: RuleCache, mask: PacMask) -> None:
        self._rules = rules
        self._mask = mask
        self._addresses = array("Q")
        self._codes = bytearray()

    def walk(self, thread: ThreadSnapshot, rest: MemoryReader, limit: FrameLimit) -> Walk:
        """See :meth:`ThreadWalker.walk`."""
        memory = LayeredMemory((thread.stack, rest))
        return walk(thread.registers, memory, self._rules, self._mask, limit)

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
