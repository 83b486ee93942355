"""Swift async continuations: the stack that a program means where its functions can suspend.

A Swift async function keeps a frame record like any other, but sets bit 60 of the frame pointer
that it saves there, and stores its context in the word below the record. A context begins with
the parent's context and the address where the parent goes on. Sources: swift's *ABI/AsyncFrame*
conventions as Apple's ``thread_stack_pcs.c`` reads them (Libc, ``__thread_stack_async_pcs``).
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, PacMask
from machtrace.model.memory import MemoryReader
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Stop, StopReason
from machtrace.unwinder.cycle import CycleDetector

TAG_SHIFT = 60
"""The tag is the top four bits of a saved frame pointer, and exactly 1; kernel pointers have 15."""

ADDRESS_BITS = (1 << TAG_SHIFT) - 1
"""What of a tagged frame pointer is not tag."""

CONTEXT_BELOW_RECORD = 8
"""The context's place: this many bytes below the frame record."""


def is_async_frame_pointer(saved: int) -> bool:
    """Whether a frame pointer, as stored in a record, marks the record as an async function's."""
    return saved >> TAG_SHIFT == 1


def continuations(
    record: Avma, memory: MemoryReader, mask: PacMask, keep: Callable[[FrameAddress], None]
) -> Stop:
    """Give ``keep`` each place where a caller of an async function will go on, innermost first.

    ``record`` is the address of the function's frame record. Raises nothing: the stop says where
    memory, or the chain, ended.
    """
    cycle = CycleDetector()
    try:
        context = mask.strip(_word(memory, record - CONTEXT_BELOW_RECORD))
        while context:
            if context % 8:
                return Stop(StopReason.MISALIGNED, context)
            if cycle.has_passed(context):
                return Stop(StopReason.NO_PROGRESS, context)
            resume = mask.strip(_word(memory, context + 8))
            if not resume:
                break
            keep(FrameAddress(resume, FrameTrust.ASYNC, AddressKind.ASYNC_RESUME))
            context = mask.strip(_word(memory, context))
    except MemoryReadError as error:
        return Stop(StopReason.UNREADABLE, Avma(error.address))
    return Stop(StopReason.ROOT)


def _word(memory: MemoryReader, address: int) -> int:
    return int.from_bytes(memory.read(Avma(address), 8), "little")
