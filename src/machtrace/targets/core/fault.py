"""The memory at the address of a failed access, as far as a core's mappings prove it."""

from __future__ import annotations

from bisect import bisect_right

from machtrace.formats.elf.core.file import ElfCore, MappedRange
from machtrace.formats.elf.core.notes import FILE_PAGE
from machtrace.model.cause import Cause
from machtrace.model.text import counted

_STACK_GAP = 1 << 20
"""``stack_guard_gap``: 256 pages below a growing stack, in which the kernel maps nothing."""
_ACCESSES = frozenset({"SEGV_MAPERR", "SEGV_ACCERR", "SEGV_BNDERR", "SEGV_PKUERR"})


def address_region(cause: Cause, core: ElfCore) -> str:
    """Return the memory at the address of ``cause`` in words; empty unless the core proves it."""
    address = cause.address
    if address is None or cause.code_name not in _ACCESSES or cause.signal != "SIGSEGV":
        return ""
    if cause.region:
        return cause.region
    number = bisect_right(core.mapped, int(address), key=lambda region: region.start) - 1
    region = core.mapped[number] if number >= 0 else None
    above = core.mapped[number + 1] if number + 1 < len(core.mapped) else None
    if region is None or address >= region.end:
        return _below_stack(address, above, core)
    if not region.permissions and above is not None and above.start == region.end:
        thread = _thread_on(above, core, region)
        if thread is not None:
            return f"in the guard pages of the stack of thread {thread}"
    return _mapping(address, region, core)


def _below_stack(address: int, above: MappedRange | None, core: ElfCore) -> str:
    if above is None or above.start - address > _STACK_GAP:
        return ""
    thread = _thread_on(above, core, MappedRange(above.start - _STACK_GAP, above.start, ""))
    if thread is None:
        return ""
    distance = counted(above.start - address, "byte")
    return f"{distance} below the stack of thread {thread}"


def _thread_on(stack: MappedRange, core: ElfCore, guard: MappedRange) -> int | None:
    """Return the index of the thread whose stack pointer is in ``stack`` or has overflowed it."""
    for thread, noted in zip(core.threads, core.noted_threads, strict=True):
        sp = thread.registers.sp or 0
        if guard.start <= sp < guard.end or stack.start <= sp < stack.end:
            return noted.index or thread.index
    return None


def _mapping(address: int, region: MappedRange, core: ElfCore) -> str:
    permissions = "".join(flag if flag in region.permissions else "-" for flag in "rwx")
    for mapping in core.facts.file_mappings:
        if mapping.start <= address < mapping.end:
            name = mapping.path.rpartition("/")[2]
            offset = mapping.offset // FILE_PAGE * FILE_PAGE + address - mapping.start
            return f"in {name} + {offset:#x} of the file, mapped {permissions}"
    return f"in memory mapped {permissions}"
