"""The stack scan, the last resort: search the stack for a word that may be a return address.

It is tried where neither a table nor the code nor a plausible frame pointer leads to the caller. A
word is accepted if it is in code and follows a call, which must be able to lead to the frame if its
target is known. Which of several such words is the return address is not known; the lowest one is
used. The frame is marked (:attr:`~machtrace.model.stack.FrameTrust.SCAN`), and unwinding resumes
above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, PacMask
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.unwinder.call_sites import CallMatch, CallSites
from machtrace.unwinder.rules import AtCfa, RegisterOffset, UnwindRule

SCANNED = 1 << 14
"""Bytes that are scanned for one frame without a request: more than nearly every frame has."""
SCANNED_ON_REQUEST = 1 << 24
_CHUNK = 1 << 12
_CANDIDATES = 256
"""Words in code that are checked for one frame."""


def scan(
    sites: CallSites,
    registers: RegisterSet,
    memory: MemoryReader,
    mask: PacMask,
    callee: Avma,
    *,
    size: int = SCANNED,
) -> UnwindRule | None:
    """Return the rule by which a word on the stack is the return address; None without one.

    On x86 the word's address is exact: the caller's stack pointer is above it. Elsewhere the frame
    record is searched, and the stack pointer is only a lower bound.

    Args:
        sites: the calls in the process's code.
        registers: those of the frame.
        memory: the snapshot's.
        mask: removes signatures.
        callee: an address in the frame's function.
        size: bytes to scan.
    """
    arch, sp = registers.arch, registers.sp
    if sp is None:
        return None
    word = arch.pointer_size
    sp += -sp % word
    checked = 0
    previous = 0
    for offset, value in _words(memory, sp, size, word):
        address = mask.strip(value)
        record, previous = previous, value
        if not sites.rules.is_code(Avma(address - 1)):
            continue
        at = sp + offset
        if arch.has_link_register and not (record > at and record % word == 0):
            continue
        checked += 1
        if checked > _CANDIDATES:
            return None
        if sites.match(address, callee) <= CallMatch.UNKNOWN:
            continue
        return _rule(registers, offset + sp - (registers.sp or 0), record)
    return None


def _rule(registers: RegisterSet, offset: int, record: int) -> UnwindRule:
    """Return the rule for a return address ``offset`` bytes above sp, after the word ``record``."""
    arch = registers.arch
    word = arch.pointer_size
    at = (registers.sp or 0) + offset
    numbers = arch.registers
    is_record = arch.has_link_register or (
        # The frame pointer was pushed if it does not point upwards and the word does.
        at < record < at + SCANNED and record % word == 0 and not (registers.fp or 0) > at
    )
    saved = ((numbers.fp, AtCfa(-2 * word)),) if is_record and offset else ()
    return UnwindRule(RegisterOffset(numbers.sp, offset + word), AtCfa(-word), saved)


def _words(memory: MemoryReader, start: int, size: int, word: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and value of words, up to the end of the stack."""
    form = "Q" if word == 8 else "I"  # noqa: PLR2004 - bytes
    at, chunk = start, _CHUNK
    while at < start + size:
        try:
            data = memory.read(Avma(at), chunk)
        except MemoryReadError:
            if chunk == word:
                return
            chunk = max(word, chunk >> 3)
            continue
        for index, value in enumerate(unpack_from(f"<{chunk // word}{form}", data)):
            yield at - start + index * word, value
        at += chunk
