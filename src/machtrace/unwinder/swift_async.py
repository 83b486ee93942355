"""Swift async continuations: the logical stack of functions that can suspend.

A Swift async function makes a frame record like any other, but sets bit 60 of the frame pointer
that it saves there, and stores its context in the word below the record. A context begins with the
parent's context and the address where the parent resumes. Sources: swift's *ABI/AsyncFrame*
conventions as Apple's ``thread_stack_pcs.c`` reads them (Libc, ``__thread_stack_async_pcs``).
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.errors import MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, PacMask
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Stop, StopReason
from machtrace.unwinder.frame_limit import CycleDetector
from machtrace.unwinder.rules import AtCfa, UnwindRule

TAG_SHIFT = 60
"""The tag is the top four bits of a saved frame pointer, and exactly 1; kernel pointers have 15."""

ADDRESS_BITS = (1 << TAG_SHIFT) - 1
"""The bits of a tagged frame pointer below the tag."""

_ALIGNMENT = 8
_USER_BITS = 48
"""The most bits of a program's address; if the target has no mask, more may remain after
masking."""

CONTEXT_BELOW_RECORD = 8
"""The context is this many bytes below the frame record."""


def is_async_frame_pointer(saved: int) -> bool:
    """Return whether a frame pointer, as stored in a record, marks an async function's record."""
    return saved >> TAG_SHIFT == 1


def _marks_a_record(saved: int) -> bool:
    """Return the same for a register, which may hold any number in code without frame pointers."""
    address = saved & ADDRESS_BITS
    return is_async_frame_pointer(saved) and not (address >> _USER_BITS or address % _ALIGNMENT)


@dataclass(frozen=True, slots=True)
class AsyncEntry:
    """The first continuation of an async function's frame."""

    context: Avma
    """The context, or the address at which it is stored."""
    is_stored: bool
    resumed: Avma | None = None
    """See :func:`continuations`."""

    def follow(
        self, memory: MemoryReader, mask: PacMask, add: Callable[[FrameAddress], None]
    ) -> Stop:
        """Pass each continuation to ``add``; see :func:`continuations`."""
        try:
            context = _word(memory, self.context) if self.is_stored else self.context
        except MemoryReadError as error:
            return Stop(StopReason.UNREADABLE, Avma(error.address))
        return continuations(mask.strip(context), memory, mask, add, resumed=self.resumed)


def async_entry(
    here: FrameAddress, rule: UnwindRule, registers: RegisterSet, caller: RegisterSet
) -> AsyncEntry | None:
    """Return the continuations of ``here``, a frame that ``rule`` left for ``caller``.

    None if Swift's compiler did not mark its function as async.
    """
    known = rule.async_context
    if known is not None and not rule.is_signal_frame:
        if isinstance(known.location, AtCfa):
            return AsyncEntry(Avma((caller.sp or 0) + known.location.offset), is_stored=True)
        context = registers.get(known.location.register)
        if context is None or known.entered is None:
            return None
        return AsyncEntry(
            Avma(context), is_stored=False, resumed=Avma(here.address - known.entered)
        )
    saved, fp = caller.fp, caller.arch.registers.fp
    if saved is None or not _marks_a_record(saved) or caller.sp is None:
        return None
    for number, recovery in rule.registers:
        if number == fp and isinstance(recovery, AtCfa):
            record = caller.sp + recovery.offset
            return AsyncEntry(Avma(record - CONTEXT_BELOW_RECORD), is_stored=True)
    return None


def continuations(
    context: Avma,
    memory: MemoryReader,
    mask: PacMask,
    add: Callable[[FrameAddress], None],
    *,
    resumed: Avma | None = None,
) -> Stop:
    """Pass each address at which a caller of an async function resumes to ``add``, innermost first.

    The returned stop states where memory, or the chain, ended. Raises nothing.

    Args:
        context: the function's context.
        memory: the process's memory.
        mask: the mask of its pointers.
        add: called with each address.
        resumed: the start of a function just entered: a context that resumes there is its callee's.
    """
    cycle = CycleDetector()
    try:
        while context:
            if context % 8:
                return Stop(StopReason.MISALIGNED, context)
            if cycle.has_passed(context):
                return Stop(StopReason.NO_PROGRESS, context)
            resume = mask.strip(_word(memory, context + 8))
            if not resume:
                break
            if resume != resumed:
                add(FrameAddress(resume, FrameTrust.ASYNC, AddressKind.ASYNC_RESUME))
            resumed = None
            context = mask.strip(_word(memory, context))
    except MemoryReadError as error:
        return Stop(StopReason.UNREADABLE, Avma(error.address))
    return Stop(StopReason.ROOT)


def _word(memory: MemoryReader, address: int) -> int:
    return int.from_bytes(memory.read(Avma(address), 8), "little")
