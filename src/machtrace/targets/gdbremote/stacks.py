"""Copies stacks: from each stack pointer to the stack's end, all of them in few round trips."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from machtrace.formats.elf.core.registers import RegisterLayout, layout_for
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.targets.gdbremote.memory import RemoteMemory
from machtrace.targets.gdbremote.replies import RemoteRegion, parse_region
from machtrace.targets.gdbremote.session import GdbSession
from machtrace.targets.shared.proc_maps import Mapping
from machtrace.targets.shared.thread_copy import RED_ZONE, STACK_GAP, has_red_zone

UNBOUNDED = 1 << 26
"""Bytes of all stacks together that are copied if their ends are unknown.

What follows a stack is mostly not there, but a machine without memory protection has it all."""
_FIRST_STEP = 1 << 14
_MAX_STEP = 1 << 18
"""Bytes of one step: the most that is requested in vain after the end of a stack."""
_MAX_PARTS = 8
"""Adjoining regions that one stack may consist of."""

REACH = 64 * 1024
"""Bytes of a stack that are searched for a signal frame."""

_MAX_UC_FLAGS = 7
"""Three bits are in use."""

_SS_FLAGS_KNOWN = 0x80000003
"""``SS_ONSTACK``, ``SS_DISABLE`` and ``SS_AUTODISARM``; no other exists."""

_MAX_SIZE = 1 << 30
"""Bytes; no alternate stack is near that size."""


class RemoteStackReader:
    """Copies the stacks of a stopped process.

    Args:
        session: with the stub.
        memory: what it reads.
        arch: of the process.
        mappings: if the stub has them; else the region of each stack pointer is queried.
    """

    def __init__(
        self,
        session: GdbSession,
        memory: RemoteMemory,
        arch: Arch,
        mappings: Sequence[Mapping] = (),
    ) -> None:
        self._session = session
        self._memory = memory
        self._arch = arch
        self._readable = [mapping for mapping in mappings if mapping.is_readable]
        self._starts = [one.start for one in self._readable]
        self._cached: dict[int, bytes] = {}

    def requests(self, pointers: Sequence[int]) -> list[bytes]:
        """Return the first requests of :meth:`read`, to send them along with others."""
        return [] if self._readable else [b"qMemoryRegionInfo:%x" % sp for sp in pointers]

    def add_replies(self, pointers: Sequence[int], replies: Sequence[bytes]) -> None:
        """Cache the replies to :meth:`requests`."""
        self._cached.update(zip(pointers, replies, strict=False))

    def read(self, pointers: Sequence[int], limit: int) -> list[MemoryRegion]:
        """Read at most ``limit`` bytes of the stack at each of ``pointers``; empty if not readable.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub does not answer.
        """
        red_zone = RED_ZONE if has_red_zone(self._arch) else 0
        known = self._bounds(pointers)
        ranges: list[tuple[int, int]] = []
        unbounded: list[int] = []
        for index, (sp, bounds) in enumerate(zip(pointers, known, strict=True)):
            if bounds is None:
                unbounded.append(index)
                ranges.append((sp, 0))
                continue
            start = max(bounds[0], sp - red_zone)
            ranges.append((start, max(0, min(bounds[1] - start, limit))))
        found = self._memory.read_many(ranges)
        regions = [
            MemoryRegion(Avma(start), data) for (start, _), data in zip(ranges, found, strict=True)
        ]
        for index, region in self._read_unbounded(pointers, unbounded, red_zone, limit):
            regions[index] = region
        return regions

    def read_interrupted(
        self, stacks: Sequence[tuple[int, MemoryRegion]], limit: int
    ) -> list[MemoryRegion]:
        """Read stacks interrupted by signals whose handlers run on alternate stacks.

        Args:
            stacks: stack pointers and what was copied there.
            limit: bytes of each at most.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub does not answer.
        """
        layout = layout_for(self._arch)
        if layout is None:
            return []
        saved = [
            interrupted_sp(memoryview(region.data)[:REACH], sp, layout) for sp, region in stacks
        ]
        return [r for r in self.read([sp for sp in saved if sp], limit) if len(r.data)]

    def _bounds(self, pointers: Sequence[int]) -> list[tuple[int, int] | None]:
        """Return the bounds of each stack; None if unknown."""
        if self._readable:
            return [self._mapped(sp) for sp in pointers]
        regions = self._regions(pointers)
        bounds: list[tuple[int, int] | None] = [
            (region.start, region.end) if region is not None and region.is_readable else None
            for region in regions
        ]
        self._bound_overflowed(bounds, pointers, regions)
        open_ends = [
            index for index, region in enumerate(regions) if region is not None and region.is_stack
        ]
        for _ in range(_MAX_PARTS):
            ends = [known[1] for index in open_ends if (known := bounds[index]) is not None]
            following = self._regions(ends)
            left: list[int] = []
            for index, end, region in zip(open_ends, ends, following, strict=True):
                known = bounds[index]
                if (
                    known
                    and region
                    and region.is_stack
                    and region.is_readable
                    and region.start == end
                ):
                    bounds[index] = known[0], region.end
                    left.append(index)
            open_ends = left
        return bounds

    def _bound_overflowed(
        self,
        bounds: list[tuple[int, int] | None],
        pointers: Sequence[int],
        regions: Sequence[RemoteRegion | None],
    ) -> None:
        """Set the bounds of stacks whose pointers are below them, in the gap that guards them."""
        guards = {
            index: region.end
            for index, (sp, region) in enumerate(zip(pointers, regions, strict=True))
            if region is not None and not region.is_readable and region.end - sp <= STACK_GAP
        }
        above = self._regions(list(guards.values()))
        for (index, end), region in zip(guards.items(), above, strict=True):
            if region is not None and region.is_readable and region.start == end:
                bounds[index] = end, region.end

    def _mapped(self, sp: int) -> tuple[int, int]:
        index = bisect_right(self._starts, sp) - 1
        if index < 0 or sp >= self._readable[index].end:
            above = self._readable[index + 1] if index + 1 < len(self._readable) else None
            if above is None or above.start - sp > STACK_GAP:
                return sp, sp
            return above.start, above.end
        return self._readable[index].start, self._readable[index].end

    def _regions(self, pointers: Sequence[int]) -> list[RemoteRegion | None]:
        unknown = [sp for sp in dict.fromkeys(pointers) if sp not in self._cached]
        requests = [b"qMemoryRegionInfo:%x" % sp for sp in unknown]
        self.add_replies(unknown, self._session.ask_all(requests))
        found = [parse_region(self._cached[sp]) for sp in pointers]
        return [
            one if one is not None and one.start <= sp < one.end else None
            for sp, one in zip(pointers, found, strict=True)
        ]

    def _read_unbounded(
        self, pointers: Sequence[int], indexes: Sequence[int], red_zone: int, limit: int
    ) -> Iterator[tuple[int, MemoryRegion]]:
        """Read in growing steps, each up to the first unreadable page."""
        starts = {index: max(0, pointers[index] - red_zone) for index in indexes}
        held: dict[int, bytearray] = {index: bytearray() for index in indexes}
        left, step, budget = list(indexes) if limit else [], _FIRST_STEP, UNBOUNDED
        while left:
            largest = min(step, budget // len(left))
            ranges = [
                (starts[index] + len(held[index]), min(largest, limit - len(held[index])))
                for index in left
            ]
            found = self._memory.read_many(ranges)
            following: list[int] = []
            for index, (_, size), data in zip(left, ranges, found, strict=True):
                held[index] += data
                budget -= len(data)
                if len(data) == size and size > 0 and len(held[index]) < limit:
                    following.append(index)
                elif not held[index] and starts[index] < pointers[index]:
                    starts[index] = pointers[index]  # nothing is there below the stack pointer
                    following.append(index)
            left, step = following, min(step * 2, _MAX_STEP)
        for index in indexes:
            yield index, MemoryRegion(Avma(starts[index]), bytes(held[index]))


def interrupted_sp(stack: memoryview, sp: int, layout: RegisterLayout) -> int | None:
    """Return the stack pointer that a signal saved, an Avma; None without an alternate stack.

    A handler on the alternate stack leaves a ``struct ucontext`` there: no ``uc_link``, a
    ``uc_stack`` that is the alternate stack itself, and the stack pointer to return to
    (``asm-generic/ucontext.h``, ``asm/ucontext.h``, ``asm/sigcontext.h``).

    Args:
        stack: bytes from a little below ``sp`` upwards; only :data:`REACH` of them are searched.
        sp: the stack pointer, an Avma.
        layout: the registers' layout.
    """
    size = layout.words.size // len(layout.dwarf)
    end = min(len(stack), REACH) // size * size
    words = np.frombuffer(stack[:end], np.dtype(f"<u{size}"))
    saved_at = layout.signal_sp // size
    count = len(words) - saved_at - 2
    if count <= 0:
        return None
    # uc_flags, uc_link, and uc_stack: ss_sp, ss_flags (with padding), ss_size.
    uc_flags, uc_link, ss_sp, ss_flags, ss_size = (words[at : at + count] for at in range(5))
    here = words.dtype.type(sp)
    below = np.flatnonzero((uc_link == 0) & (uc_flags <= _MAX_UC_FLAGS) & (ss_sp <= here))
    matches = below[here - ss_sp[below] < np.minimum(ss_size[below], _MAX_SIZE)]
    for index in matches.tolist():
        start, length = int(ss_sp[index]), int(ss_size[index])
        saved = int(words[index + 2 + saved_at])
        if length > _MAX_SIZE or int(ss_flags[index]) & 0xFFFFFFFF & ~_SS_FLAGS_KNOWN:
            continue
        # Inside: a signal that came while another's handler ran.
        if not start <= saved < start + length:
            return saved
    return None
