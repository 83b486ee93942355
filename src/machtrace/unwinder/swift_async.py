"""Swift async continuations: the stack that a program means where its functions can suspend.

A Swift async function keeps a frame record like any other, but sets bit 60 of the frame pointer
that it saves there, and stores its context in the word below the record. A context begins with
the parent's context and the address where the parent goes on. Sources: swift's *ABI/AsyncFrame*
conventions as Apple's ``thread_stack_pcs.c`` reads them (Libc, ``__thread_stack_async_pcs``).
"""

from __future__ import annotations

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, PacMask
from machtrace.model.memory import MemoryReader
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Stop, StopReason

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
    record: Avma, memory: MemoryReader, mask: PacMask, limit: int
) -> tuple[tuple[FrameAddress, ...], Stop]:
    """Where the callers of an async function will go on, innermost first.

    ``record`` is the address of the function's frame record. At most ``limit`` are followed.
    Raises nothing: what was found before memory ended is kept, and the stop says where it did.
    """
    found: list[FrameAddress] = []
    seen: set[int] = set()
    try:
        context = mask.strip(_word(memory, record - CONTEXT_BELOW_RECORD))
        while context:
            if context % 8:
                return tuple(found), Stop(StopReason.MISALIGNED, context)
            if context in seen:
                return tuple(found), Stop(StopReason.NO_PROGRESS, context)
            seen.add(context)
            resume = mask.strip(_word(memory, context + 8))
            if not resume:
                break
            if len(found) >= limit:
                return tuple(found), Stop(StopReason.DEPTH_LIMIT, resume)
            found.append(FrameAddress(resume, FrameTrust.ASYNC, AddressKind.ASYNC_RESUME))
            context = mask.strip(_word(memory, context))
    except MemoryReadError as error:
        return tuple(found), Stop(StopReason.UNREADABLE, Avma(error.address))
    return tuple(found), Stop(StopReason.ROOT)


def _word(memory: MemoryReader, address: int) -> int:
    return int.from_bytes(memory.read(Avma(address), 8), "little")
