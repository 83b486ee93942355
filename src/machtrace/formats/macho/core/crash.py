"""The thread that crashed and its exception, as far as a core's exception states prove them.

A core has no exception, only each thread's exception state: why the thread last entered the kernel.
xnu makes the exception from that state (``osfmk/arm64/sleh.c``, ``osfmk/i386/trap.c``); for an
access its code is the result of ``vm_fault``, which the state proves only in part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from machtrace.errors import FormatError
from machtrace.formats.macho.core.file import CoreFile
from machtrace.formats.macho.thread_state import ExceptionState, ThreadState
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.cause import Cause, below_stack, mach_cause, stack_name
from machtrace.model.registers import RegisterSet

_ESR_CLASS_SHIFT = 26
_SYSTEM_CALLS = frozenset({0x00, 0x11, 0x15})
"""Classes of which lldb prints nothing: no exception, and system calls."""
_ESR_CLASSES = {
    0x01: "ESR_EC_WFI_WFE",
    0x03: "ESR_EC_MCR_MRC_CP15_TRAP",
    0x04: "ESR_EC_MCRR_MRRC_CP15_TRAP",
    0x05: "ESR_EC_MCR_MRC_CP14_TRAP",
    0x06: "ESR_EC_LDC_STC_CP14_TRAP",
    0x07: "ESR_EC_TRAP_SIMD_FP",
    0x09: "ESR_EC_PTRAUTH_INSTR_TRAP",
    0x0C: "ESR_EC_MCRR_MRRC_CP14_TRAP",
    0x0E: "ESR_EC_ILLEGAL_INSTR_SET",
    0x18: "ESR_EC_MSR_TRAP",
    0x1C: "ESR_EC_PAC_FAIL",
    0x20: "ESR_EC_IABORT_EL0",
    0x21: "ESR_EC_IABORT_EL1",
    0x22: "ESR_EC_PC_ALIGN",
    0x24: "ESR_EC_DABORT_EL0",
    0x25: "ESR_EC_DABORT_EL1",
    0x26: "ESR_EC_SP_ALIGN",
    0x28: "ESR_EC_FLOATING_POINT_32",
    0x2C: "ESR_EC_FLOATING_POINT_64",
    0x2F: "ESR_EC_SERROR_INTERRUPT",
    0x30: "ESR_EC_BKPT_REG_MATCH_EL0",
    0x31: "ESR_EC_BKPT_REG_MATCH_EL1",
    0x32: "ESR_EC_SW_STEP_DEBUG_EL0",
    0x33: "ESR_EC_SW_STEP_DEBUG_EL1",
    0x34: "ESR_EC_WATCHPT_MATCH_EL0",
    0x35: "ESR_EC_WATCHPT_MATCH_EL1",
    0x38: "ESR_EC_BKPT_AARCH32",
    0x3C: "ESR_EC_BRK_AARCH64",
    0x3F: "ESR_EC_PRIV",
}
"""xnu's names, by ``EC`` of the syndrome register (``osfmk/arm64/proc_reg.h``)."""
_FAULT_STATUS = 0x3F
_PERMISSION_FAULTS = range(0x0C, 0x10)
_ALIGNMENT_FAULT = 0x21
_X86_PAGE_FAULT = 14
_X86_PRESENT = 1
_INVALID_ADDRESS, _PROTECTION_FAILURE = 1, 2
_ARM_ALIGNMENT = 0x101
_USER_END = 1 << 47
"""The end of a 64-bit process's half of the address space, on x86_64 and at most on arm64."""
_WITHOUT_TAG = (1 << 56) - 1
"""xnu ignores the top byte of an arm64 address, as the processor does."""
_UNMAPPED_START = 0x1000
"""No 64-bit program has its first page; most have none of the first 4 GB."""
_WITH_ERROR = -1
"""Stands for the processor's error code."""
_X86_EXCEPTIONS: dict[int, tuple[str, tuple[int, ...]]] = {
    1: ("EXC_BREAKPOINT", (1, 0)),
    3: ("EXC_BREAKPOINT", (2, 0)),
    4: ("EXC_ARITHMETIC", (2, 0)),
    5: ("EXC_SOFTWARE", (7, 0)),
    6: ("EXC_BAD_INSTRUCTION", (1, 0)),
    10: ("EXC_BAD_INSTRUCTION", (10, _WITH_ERROR)),
    11: ("EXC_BAD_INSTRUCTION", (11, _WITH_ERROR)),
    12: ("EXC_BAD_INSTRUCTION", (12, _WITH_ERROR)),
    13: ("EXC_BAD_ACCESS", (13, _WITH_ERROR)),
    16: ("EXC_ARITHMETIC", (5,)),
    19: ("EXC_ARITHMETIC", (8,)),
}
"""By trap number. A division by zero is number 0, as a state without any exception is."""


def crashed_thread(core: CoreFile) -> int | None:
    """Return the index of the crashed thread; None if the core shows none.

    "process metadata" may state it. Otherwise the exception states are examined: first for a fatal
    trap, then for an aborted access to missing memory. Aborts of pages that the kernel then loaded
    leave the same state in other threads, so several candidates give none. A process that called
    ``abort`` has neither.
    """
    for thread, noted in zip(core.threads, core.metadata.threads, strict=False):
        if noted.crashed:
            return thread.index
    regions = core.memory.regions
    mask = core.pointer_mask

    def is_unmapped_access(exception: ExceptionState) -> bool:
        address = mask.strip(exception.fault_address)
        return exception.is_abort and regions.region_at(address) is None

    tests: tuple[Callable[[ExceptionState], bool], ...] = (
        lambda exception: exception.is_trap,
        is_unmapped_access,
        lambda exception: exception.is_abort,
    )
    for test in tests:
        indices = [
            thread.index
            for thread in core.threads
            if isinstance(thread.state, ThreadState)
            and thread.state.exception is not None
            and test(thread.state.exception)
        ]
        if indices:
            return indices[0] if len(indices) == 1 else None
    return None


def core_cause(core: CoreFile, index: int) -> Cause | None:
    """Return the exception of the crashed thread ``index``; None if its state proves none.

    An aborted access to memory that the core has may have succeeded afterwards.
    """
    state = core.threads[index - 1].state
    if not isinstance(state, ThreadState) or state.exception is None:
        return None
    exception = state.exception
    address = core.pointer_mask.strip(exception.fault_address)
    is_stated = any(thread.crashed for thread in core.metadata.threads)
    is_missing = exception.is_abort and core.memory.regions.region_at(address) is None
    if not (is_stated or exception.is_trap or is_missing):
        return None
    cause = cause_of_state(exception, state.registers)
    if cause is None or cause.address is None or cause.region:
        return cause
    stacks = [
        (stack_name(thread.index, is_own=thread.index == index), thread.state.registers.sp or 0)
        for thread in (core.threads[index - 1], *core.threads)
        if isinstance(thread.state, ThreadState)
    ]
    regions = core.memory.regions.regions
    above = next((region for region in regions if region.start > cause.address), None)
    if above is None or not is_missing:
        return cause
    return replace(cause, region=below_stack(cause.address, above.start, above.end, stacks))


def with_trap(cause: Cause | None, state: ThreadState | FormatError) -> Cause | None:
    """Add the arm64 processor's exception class to a thread's cause, as lldb does.

    Args:
        cause: the thread's, if it crashed.
        state: its registers.
    """
    exception = state.exception if isinstance(state, ThreadState) else None
    if exception is None or not isinstance(state, ThreadState) or not state.registers.arch.is_arm64:
        return cause
    kind = (exception.syndrome >> _ESR_CLASS_SHIFT) & 0x3F
    if kind in _SYSTEM_CALLS:
        return cause
    trap = _ESR_CLASSES.get(kind, "Unknown Exception Class")
    return replace(cause or Cause(), trap=trap, trap_address=exception.fault_address)


def cause_of_state(exception: ExceptionState, registers: RegisterSet) -> Cause | None:
    """Return the exception that the state of a crashed thread leads to; None if it proves none.

    A thread that called ``abort`` crashed in a system call, whose state has no exception.
    """
    arch = registers.arch
    if arch in (Arch.X86_64, Arch.X86_64H, Arch.I386):
        return _x86_cause(exception, arch)
    if arch.is_arm64:
        return _arm64_cause(exception, registers)
    if exception.is_abort:
        return _access(exception, arch, code=None)
    return mach_cause("EXC_BAD_INSTRUCTION", (), arch) if exception.is_trap else None


def _x86_cause(exception: ExceptionState, arch: Arch) -> Cause | None:
    if exception.number == _X86_PAGE_FAULT:
        # A page that is present was refused.
        code = _PROTECTION_FAILURE if exception.syndrome & _X86_PRESENT else None
        return _access(exception, arch, code)
    known = _X86_EXCEPTIONS.get(exception.number)
    if known is None:
        return None
    name, codes = known
    return mach_cause(
        name,
        tuple(exception.syndrome if code == _WITH_ERROR else code for code in codes),
        arch,
    )


def _arm64_cause(  # noqa: PLR0911 - one for each exception class
    exception: ExceptionState, registers: RegisterSet
) -> Cause | None:
    arch, pc = registers.arch, registers.pc
    match (exception.syndrome >> _ESR_CLASS_SHIFT) & 0x3F:
        case 0x20 | 0x24:  # instruction and data abort
            status = exception.syndrome & _FAULT_STATUS
            if status == _ALIGNMENT_FAULT:
                return _access(exception, arch, _ARM_ALIGNMENT)
            return _access(
                exception, arch, _PROTECTION_FAILURE if status in _PERMISSION_FAULTS else None
            )
        case 0x3C:  # BRK
            return mach_cause("EXC_BREAKPOINT", (1, pc), arch)
        case 0x1C:  # a failed authentication
            return mach_cause("EXC_BAD_ACCESS", (0x105,), arch)
        case 0x22:  # a misaligned pc
            return mach_cause("EXC_BAD_ACCESS", (_ARM_ALIGNMENT, pc), arch)
        case 0x26:  # a misaligned sp
            return mach_cause("EXC_BAD_ACCESS", (0x103, registers.sp or 0), arch)
        case 0x2C:
            return mach_cause("EXC_ARITHMETIC", (), arch)
        case _:
            return None


def _access(exception: ExceptionState, arch: Arch, code: int | None) -> Cause:
    """Return the cause of a failed access; ``code`` is None if the processor did not prove it."""
    address = exception.fault_address
    if arch.is_arm64:
        address = Avma(address & _WITHOUT_TAG)
    if code is None and (
        address < _UNMAPPED_START or (arch.pointer_size == 8 and address >= _USER_END)  # noqa: PLR2004 (bytes)
    ):
        code = _INVALID_ADDRESS
    if code is not None:
        return mach_cause("EXC_BAD_ACCESS", (code, address), arch)
    return replace(mach_cause("EXC_BAD_ACCESS", (), arch), address=address)
