"""Stacks of threads at functions' first instructions, from what breakpoints report.

There the direct caller is known for certain: the link register on arm64, the word at the stack
pointer on x86. Its callers are walked as in a snapshot, in the part of the stack that was read,
which is chosen by thread: as much as the thread's earlier stacks needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import LayeredMemory, MemoryReader, MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.model.stack import StopReason, Walk
from machtrace.targets.gdbremote.breakpoints import CallStop
from machtrace.unwinder.frame_limit import FrameLimit
from machtrace.unwinder.thread_walker import ThreadWalker
from machtrace.unwinder.unwinder import Unwinder

FIRST_WINDOW = 1024
"""Bytes of a thread's stack that are read at its first call."""
MAX_WINDOW_SIZE = 1 << 14
"""Bytes that are read with each call at most; the rest is read for the stacks that need it."""
MAX_BYTES = 1 << 22
"""Bytes of a stack that are read at most."""
_POINTER = 8
_FRAMES = FrameLimit(1 << 16)
_ROUND = 256


class CallStack(NamedTuple):
    """Return addresses of a call, the innermost first."""

    addresses: tuple[int, ...]
    is_whole: bool
    needed: int | None = None
    """Bytes of the stack from its pointer on that lead further; None if no more would help."""


class CallStacks:
    """Walks the stacks of one process at calls.

    Args:
        snapshot: the images of the process; threads are not needed.
        unwinder: whose rules are used, and cached.
    """

    def __init__(self, snapshot: Snapshot, unwinder: Unwinder) -> None:
        self._arch: Arch = snapshot.process.arch
        self._mask: PacMask = snapshot.process.pointer_mask
        self._walker: ThreadWalker = unwinder.walker(snapshot)
        self._memory: MemoryReader = snapshot.memory
        self._windows: dict[int, int] = {}

    def use(self, snapshot: Snapshot, unwinder: Unwinder) -> None:
        """Continue with other images."""
        self._walker, self._memory = unwinder.walker(snapshot), snapshot.memory

    def window(self, thread: int) -> int:
        """Return how many bytes of a thread's stack to read with its next call."""
        return self._windows.get(thread, FIRST_WINDOW)

    def walk(self, call: CallStop) -> CallStack:
        """Return the stack of a call, as far as what was read of it leads."""
        registers = call.registers
        stack = _joined(registers.sp or 0, call.memory)
        caller = self._caller(registers, stack)
        if caller is None:
            return CallStack((), is_whole=False, needed=self._grow(call.thread, _POINTER))
        rest = LayeredMemory((RegionMemory(call.memory), self._memory))
        walked = self._walk(call.thread, registers, stack, rest)
        addresses = [frame.address for frame in walked.addresses]
        if addresses[1:2] != [caller.pc]:
            # No rule for the function, or a wrong one: begin inside the call itself.
            inside = RegisterSet(caller.arch, Avma(max(0, caller.pc - 1)), caller.values)
            walked = self._walk(call.thread, inside, stack, rest)
            addresses = [
                registers.pc,
                caller.pc,
                *(address.address for address in walked.addresses[1:]),
            ]
        is_whole = walked.stop.is_complete and walked.gap is None
        return CallStack(tuple(addresses[1:]), is_whole, self._needed(call.thread, stack, walked))

    def _caller(self, registers: RegisterSet, stack: MemoryRegion) -> RegisterSet | None:
        """Return the direct caller's registers at its return; None if its address was not read."""
        if registers.lr is not None:
            return RegisterSet(registers.arch, self._mask.strip(registers.lr), registers.values)
        size, numbers = self._arch.pointer_size, self._arch.registers
        word = bytes(stack.data[:size])
        if len(word) < size:
            return None
        values = list(registers.values)
        values[numbers.sp] = (registers.sp or 0) + size
        return RegisterSet(registers.arch, Avma(int.from_bytes(word, "little")), tuple(values))

    def _walk(
        self, thread: int, registers: RegisterSet, stack: MemoryRegion, rest: MemoryReader
    ) -> Walk:
        copied = ThreadSnapshot(
            info=ThreadInfo(id=ThreadId(thread), index=1), registers=registers, stack=stack
        )
        return self._walker.walk(copied, rest, _FRAMES)

    def _needed(self, thread: int, stack: MemoryRegion, walked: Walk) -> int | None:
        """Return how much of a stack to read for its next frames; None if that does not help."""
        stop, have = walked.stop, len(stack.data)
        if stop.reason is not StopReason.UNREADABLE or have >= MAX_BYTES:
            return None
        reached = have if stop.at is None else stop.at - stack.start
        if not 0 <= reached <= MAX_BYTES:
            return None
        return self._grow(thread, max(2 * have, reached + _ROUND))

    def _grow(self, thread: int, size: int) -> int:
        size = min(MAX_BYTES, max(FIRST_WINDOW, -(-size // _ROUND) * _ROUND))
        self._windows[thread] = min(MAX_WINDOW_SIZE, max(size, self.window(thread)))
        return size


def _joined(start: int, regions: Iterable[MemoryRegion]) -> MemoryRegion:
    """Return the bytes from an address on, as far as regions have them."""
    parts: list[bytes] = []
    at = start
    for region in sorted(regions, key=lambda each: each.start):
        if region.start <= at < region.end:
            parts.append(bytes(region.data[at - region.start :]))
            at = region.end
    return MemoryRegion(Avma(start), b"".join(parts))
