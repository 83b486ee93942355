"""The memory at the address of a failed access, as far as a core's mappings prove it."""

from __future__ import annotations

from bisect import bisect_right

from machtrace.formats.elf.core.file import ElfCore, ElfCoreThread, MappedRange
from machtrace.formats.elf.core.notes import FILE_PAGE
from machtrace.model.cause import Cause, below_stack, stack_name

_ACCESSES = frozenset({"SEGV_MAPERR", "SEGV_ACCERR", "SEGV_BNDERR", "SEGV_PKUERR"})


def address_region(cause: Cause, core: ElfCore, thread: ElfCoreThread) -> str:
    """Return the memory at the address of ``cause`` in words; empty unless the core proves it.

    ``thread`` is the one that was stopped.
    """
    address = cause.address
    if address is None or cause.code_name not in _ACCESSES or cause.signal != "SIGSEGV":
        return ""
    if cause.region:
        return cause.region
    number = bisect_right(core.mapped, int(address), key=lambda region: region.start) - 1
    region = core.mapped[number] if number >= 0 else None
    above = core.mapped[number + 1] if number + 1 < len(core.mapped) else None
    stacks = [
        (stack_name(other.id, is_own=other is thread), other.registers.sp or 0)
        for other in (thread, *core.threads)
    ]
    if region is None or address >= region.end:
        return "" if above is None else below_stack(address, above.start, above.end, stacks)
    if not region.permissions and above is not None and above.start == region.end:
        owners = [stack for stack, sp in stacks if region.start <= sp < above.end]
        if owners:
            return f"in the guard pages of {owners[0]}"
    return _mapping(address, region, core)


def _mapping(address: int, region: MappedRange, core: ElfCore) -> str:
    permissions = "".join(flag if flag in region.permissions else "-" for flag in "rwx")
    for mapping in core.facts.file_mappings:
        if mapping.start <= address < mapping.end:
            name = mapping.path.rpartition("/")[2]
            offset = mapping.offset // FILE_PAGE * FILE_PAGE + address - mapping.start
            return f"in {name} + {offset:#x} of the file, mapped {permissions}"
    return f"in memory mapped {permissions}"
