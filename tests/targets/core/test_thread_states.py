"""Thread commands of every flavour give the right registers."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import CoreFileError
from machtrace.formats.macho import thread_state as states
from machtrace.formats.macho.core.crash import core_cause, crashed_thread
from machtrace.formats.macho.core.file import parse_core
from machtrace.formats.macho.header import (
    CPU_TYPE_ARM,
    CPU_TYPE_ARM64,
    CPU_TYPE_I386,
    CPU_TYPE_X86_64,
)
from machtrace.formats.macho.thread_state import parse_thread_state, thread_command
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from tests.support.writers.macho_core import CoreSegment, assemble_core, thread_state

ARM64 = pack("<33Q2I", *range(100, 133), 0x6000_0000, 1)
ARM32 = pack("<17I", *range(100, 117))
X86_64 = pack("<21Q", *range(100, 121))
I386 = pack("<16I", *range(100, 116))
UNIFIED_SIZE = 8 + len(ARM64)


def parsed(arch, *parts, mask=PacMask()):
    """Parse a thread command with these states."""
    data = b"".join(parts)
    command = pack("<2I", 4, 8 + len(data)) + data
    return parse_thread_state(memoryview(command), arch, mask=mask, source="test")


def named(state):
    """Return the known registers by their names."""
    names = state.registers.arch.registers.names
    return {names[n]: v for n, v in enumerate(state.registers.values) if v is not None}


def test_arm64():
    """x0 to x28, fp, lr, sp are 0 to 31; pc is separate."""
    state = parsed(Arch.ARM64, thread_state(6, ARM64))
    expected = {f"x{n}": 100 + n for n in range(29)} | {"fp": 129, "lr": 130, "sp": 131}
    assert named(state) == expected
    assert state.registers.pc == 132
    assert state.exception is None


def test_arm64_unified():
    """A unified state has the same registers after a second header."""
    inner = thread_state(6, ARM64)
    assert parsed(Arch.ARM64, thread_state(1, inner)) == parsed(Arch.ARM64, inner)


@pytest.mark.parametrize(
    "parts",
    [
        [thread_state(1, ARM32)],
        [thread_state(9, ARM32)],
        [thread_state(1, thread_state(1, ARM32).ljust(UNIFIED_SIZE, b"\0"))],
        [thread_state(1, thread_state(9, ARM32).ljust(UNIFIED_SIZE, b"\0"))],
        [thread_state(2, bytes(260)), thread_state(1, ARM32)],
    ],
    ids=["bare", "flavour 9", "unified old", "unified", "behind VFP"],
)
def test_arm(parts):
    """Flavour 1 is bare registers or a unified state, depending on its size."""
    state = parsed(Arch.ARMV7, *parts)
    expected = {f"r{n}": 100 + n for n in range(13)} | {"sp": 113, "lr": 114}
    assert named(state) == expected
    assert state.registers.pc == 115
    assert state.registers.arch is Arch.ARMV7


def test_a_watch_is_called_arm_in_cores():
    """64-bit registers in a 32-bit arm core are those of an arm64_32 process."""
    unified = thread_state(1, thread_state(6, ARM64))
    state = parsed(Arch.ARM, unified)
    assert state.registers.arch is Arch.ARM64_32
    assert state.registers.sp == 131
    core = parse_core(
        memoryview(assemble_core(CPU_TYPE_ARM, wide=False, threads=[unified])), "test"
    )
    assert core.arch is Arch.ARM64_32


@pytest.mark.parametrize(
    "parts",
    [
        [thread_state(4, X86_64)],
        [thread_state(7, thread_state(4, X86_64))],
        [thread_state(23, X86_64 + bytes(32))],
        [thread_state(5, bytes(524)), thread_state(9, bytes(24)), thread_state(4, X86_64)],
    ],
    ids=["bare", "unified", "full", "behind others"],
)
def test_x86_64(parts):
    """Darwin's order of registers becomes DWARF's."""
    state = parsed(Arch.X86_64, *parts)
    order = ("rax", "rbx", "rcx", "rdx", "rdi", "rsi", "rbp", "rsp")
    expected = dict(zip(order, range(100, 108), strict=True))
    expected |= {f"r{n}": 100 + n for n in range(8, 16)}
    assert named(state) == expected
    assert state.registers.pc == 116


@pytest.mark.parametrize(
    "parts",
    [[thread_state(1, I386)], [thread_state(7, thread_state(1, I386).ljust(176, b"\0"))]],
    ids=["bare", "unified"],
)
def test_i386(parts):
    """The numbering is that of the System V psABI: esp is 4, ebp 5."""
    state = parsed(Arch.I386, *parts)
    order = ("eax", "ebx", "ecx", "edx", "edi", "esi", "ebp", "esp")
    assert named(state) == dict(zip(order, range(100, 108), strict=True))
    assert (state.registers.sp, state.registers.fp, state.registers.pc) == (107, 106, 110)


def test_only_the_pc_is_stripped():
    """A signed pc becomes an address; lr, fp and sp are unchanged."""
    values = [0] * 29 + [0x0123_0001_6000_0000, 0xAB1F_8001_8000_0004, 0x1_6000_0000]
    signed = pack("<33Q2I", *values, 0x9A3F_8001_8A00_1000, 0, 0)
    registers = parsed(Arch.ARM64E, thread_state(6, signed), mask=PacMask.of_width(47)).registers
    assert registers.pc == 0x1_8A00_1000
    assert (registers.fp, registers.lr) == (0x0123_0001_6000_0000, 0xAB1F_8001_8000_0004)


def test_exceptions():
    """Fault address, syndrome and number of each flavour, also unified."""
    arm64 = parsed(
        Arch.ARM64, thread_state(6, ARM64), thread_state(7, pack("<Q2I", 0xDEAD, 0x9200_0046, 1))
    )
    assert (arm64.exception.fault_address, arm64.exception.syndrome) == (0xDEAD, 0x9200_0046)
    assert arm64.exception.is_abort
    second = parsed(
        Arch.ARM64, thread_state(10, pack("<2Q", 0xBEEF, 0xF200_0001)), thread_state(6, ARM64)
    )
    assert (second.exception.fault_address, second.exception.is_trap) == (0xBEEF, True)
    arm = parsed(
        Arch.ARM, thread_state(1, ARM32), thread_state(3, pack("<3I", 4, 5, 0xCAFE))
    ).exception
    assert (arm.number, arm.syndrome, arm.fault_address) == (4, 5, 0xCAFE)
    fault = pack("<2HIQ", 14, 2, 6, 0xF00D)
    for parts in ([thread_state(6, fault)], [thread_state(9, thread_state(6, fault))]):
        wide = parsed(Arch.X86_64, thread_state(4, X86_64), *parts).exception
        assert (wide.number, wide.syndrome, wide.fault_address) == (14, 6, 0xF00D)
        assert wide.is_abort
    narrow = parsed(
        Arch.I386, thread_state(1, I386), thread_state(3, pack("<2H2I", 6, 0, 0, 0))
    ).exception
    assert narrow.is_trap


def test_a_thread_in_a_system_call_has_no_fault():
    """A thread blocked in the kernel is neither trapped nor aborted."""
    waiting = pack("<Q2I", 0x1_0000_0000, 0x5600_0080, 0)
    exception = parsed(Arch.ARM64, thread_state(6, ARM64), thread_state(7, waiting)).exception
    assert not exception.is_trap
    assert not exception.is_abort


WAITING = thread_state(7, pack("<Q2I", 0, 0x5600_0080, 0))
TRAPPED = thread_state(7, pack("<Q2I", 0, 0xF200_0001, 0))
PAGED_IN = thread_state(7, pack("<Q2I", 0x1000, 0x9200_0007, 0))
WILD = thread_state(7, pack("<Q2I", 0xDEAD_0000, 0x9200_0046, 0))


@pytest.mark.parametrize(
    ("exceptions", "crashed"),
    [
        ([WAITING, TRAPPED, PAGED_IN], 2),
        ([PAGED_IN, WAITING, WILD], 3),
        ([WILD, TRAPPED], 2),
        ([PAGED_IN, WAITING], 1),
        ([WILD, WILD], None),
        ([PAGED_IN, PAGED_IN], None),
        ([WAITING, WAITING], None),
        ([b"", b""], None),
    ],
)
def test_a_trap_or_an_invalid_access_marks_the_crashed_thread(exceptions, crashed):
    """A trap has precedence; two threads of a kind mark none."""
    core = assemble_core(
        CPU_TYPE_ARM64,
        threads=[thread_state(6, ARM64) + exception for exception in exceptions],
        segments=[CoreSegment(MemoryRegion(Avma(0x1000), bytes(4096)))],
    )
    assert crashed_thread(parse_core(memoryview(core), "test")) == crashed


def crash_of(exception, arch_state=None, cputype=CPU_TYPE_ARM64):
    """Return the cause of the crashed thread of a core with one exception state."""
    state = thread_state(6, ARM64) if arch_state is None else arch_state
    core = parse_core(
        memoryview(
            assemble_core(
                cputype,
                threads=[state + exception],
                segments=[CoreSegment(MemoryRegion(Avma(0x1000), bytes(4096)))],
            )
        ),
        "test",
    )
    crashed = crashed_thread(core)
    return None if crashed is None else core_cause(core, crashed)


def arm64_state(far, esr):
    """Return an arm64 exception state."""
    return thread_state(7, pack("<Q2I", far, esr, 0))


def x86_state(trap, error, address):
    """Return an x86_64 exception state."""
    return thread_state(6, pack("<2HIQ", trap, 0, error, address))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            arm64_state(0x10, 0x9200_0046),
            "EXC_BAD_ACCESS (SIGSEGV) at 0x10: KERN_INVALID_ADDRESS, near null",
        ),
        (
            arm64_state(1 << 50, 0x9200_0004),
            "EXC_BAD_ACCESS (SIGSEGV) at 0x4000000000000: KERN_INVALID_ADDRESS",
        ),
        (
            arm64_state(0xDEAD_0000, 0x9200_004F),
            "EXC_BAD_ACCESS (SIGBUS) at 0xdead0000: KERN_PROTECTION_FAILURE",
        ),
        (
            arm64_state(0xDEAD_0003, 0x9200_0021),
            "EXC_BAD_ACCESS (SIGBUS) at 0xdead0003: EXC_ARM_DA_ALIGN",
        ),
        # Whether anything was mapped there, or of which protection, only the process knew.
        (arm64_state(0xDEAD_0000, 0x9200_0046), "EXC_BAD_ACCESS at 0xdead0000"),
        (arm64_state(0, 0xF200_0001), "EXC_BREAKPOINT (SIGTRAP): EXC_ARM_BREAKPOINT"),
        (arm64_state(0, 0x7200_0000), "EXC_BAD_ACCESS (SIGBUS): EXC_ARM_PAC_FAIL"),
        (arm64_state(0x1234, 0x9200_0046), None),
        (arm64_state(0, 0x5600_0080), None),
    ],
)
def test_an_arm64_exception_is_derived_as_far_as_it_is_proven(state, text):
    """The access to memory that the core has may have been a page that the kernel then loaded."""
    cause = crash_of(state)
    assert (None if cause is None else str(cause)) == text


@pytest.mark.parametrize(
    ("state", "text", "lldb"),
    [
        (
            x86_state(13, 0, 0),
            "EXC_BAD_ACCESS (SIGSEGV): EXC_I386_GPFLT",
            "EXC_BAD_ACCESS (code=EXC_I386_GPFLT, address=0x0)",
        ),
        (
            x86_state(6, 0, 0xF00D),
            "EXC_BAD_INSTRUCTION (SIGILL): EXC_I386_INVOP",
            "EXC_BAD_INSTRUCTION (code=EXC_I386_INVOP, subcode=0x0)",
        ),
        (
            x86_state(14, 7, 0xDEAD_0000),
            "EXC_BAD_ACCESS (SIGBUS) at 0xdead0000: KERN_PROTECTION_FAILURE",
            "EXC_BAD_ACCESS (code=2, address=0xdead0000)",
        ),
        (x86_state(14, 6, 0xDEAD_0000), "EXC_BAD_ACCESS at 0xdead0000", "EXC_BAD_ACCESS"),
        (
            x86_state(14, 4, 0),
            "EXC_BAD_ACCESS (SIGSEGV) at 0x0: KERN_INVALID_ADDRESS, a null pointer",
            "EXC_BAD_ACCESS (code=1, address=0x0)",
        ),
    ],
)
def test_an_x86_exception_is_derived_as_far_as_it_is_proven(state, text, lldb):
    cause = crash_of(state, thread_state(4, X86_64), CPU_TYPE_X86_64)
    assert (str(cause), cause.lldb_text) == (text, lldb)


def test_flags_and_fault_registers_are_the_state_s():
    state = parsed(
        Arch.ARM64,
        thread_state(6, pack("<33Q2I", *range(33), 0x6000_0000, 0)),
        arm64_state(0xDEAD, 0x9200_0046),
    )
    assert state.flags == (("cpsr", 0x6000_0000),)
    assert state.fault_registers == (("far", 0xDEAD), ("esr", 0x9200_0046))
    for arch, others in (
        (Arch.ARM64, (("cpsr", 5), ("far", 6), ("esr", 0x9200_0046))),
        (Arch.X86_64, (("rflags", 0x202), ("cr2", 7), ("err", 6), ("trap", 14))),
    ):
        command = thread_command(RegisterSet.of(arch, pc=1, sp=2), others)
        written = parse_thread_state(memoryview(command), arch, source="test")
        assert (*written.flags, *written.fault_registers) == others


def test_unknown_flavours_are_skipped_by_their_stated_length():
    state = parsed(
        Arch.ARM64, thread_state(99, bytes(40)), thread_state(6, ARM64), thread_state(28, b"")
    )
    assert state.registers.sp == 131


def test_a_state_truncated_after_the_registers_is_read():
    state = parsed(Arch.ARM64, thread_state(6, ARM64), thread_state(17, bytes(528))[:100])
    assert state.registers.sp == 131


@pytest.mark.parametrize(
    ("arch", "parts"),
    [
        (Arch.ARM64, [thread_state(6, ARM64)[:-1]]),
        (Arch.ARM64, [thread_state(6, ARM64[:256])]),
        (Arch.ARM64, [thread_state(4, X86_64)]),
        (Arch.X86_64, [thread_state(7, thread_state(4, X86_64)[:-8])]),
        (Arch.X86_64, [thread_state(1, I386)]),
        (Arch.I386, [thread_state(4, X86_64)]),
        (Arch.ARM, []),
        (Arch.ARM64, [b"\6\0\0"]),
        (Arch.ARM64, [pack("<2I", 6, 0xFFFF_FFFF)]),
    ],
)
def test_a_state_without_general_registers_is_an_error(arch, parts):
    """Missing registers are an error with an offset, never zeros."""
    with pytest.raises(CoreFileError, match="thread"):
        parsed(arch, *parts)


@pytest.mark.parametrize("cut", [8, 12, 16, 100, 270])
def test_a_truncated_last_state_leaves_the_other_threads(cut):
    threads = [thread_state(6, ARM64), thread_state(6, ARM64)]
    whole = assemble_core(CPU_TYPE_ARM64, threads=threads)
    end = 32 + 2 * (8 + len(threads[0]))
    core = parse_core(memoryview(whole[: end - 280 + cut]), "test.core")
    assert core.threads[0].state.registers.sp == 131
    assert isinstance(core.threads[1].state, CoreFileError)
    assert "test.core at 0x" in str(core.threads[1].state)


@settings(deadline=None)  # a busy machine is slow
@given(st.binary(max_size=400), st.sampled_from(list(Arch)))
def test_any_bytes_are_a_state_or_an_error(data, arch):
    try:
        state = parse_thread_state(memoryview(data), arch, source="random")
    except CoreFileError:
        return
    assert len(state.registers.values) == len(state.registers.arch.registers.names)


ASSERTIONS = {
    "arm64-apple-macos13.0": f"""
    #include <mach/thread_status.h>
    _Static_assert(ARM_THREAD_STATE64 == {states.ARM_THREAD_STATE64}, "");
    _Static_assert(ARM_THREAD_STATE == {states.ARM_THREAD_STATE}, "");
    _Static_assert(ARM_THREAD_STATE32 == {states.ARM_THREAD_STATE32}, "");
    _Static_assert(ARM_EXCEPTION_STATE == {states.ARM_EXCEPTION_STATE}, "");
    _Static_assert(ARM_EXCEPTION_STATE64 == {states.ARM_EXCEPTION_STATE64}, "");
    _Static_assert(sizeof(arm_thread_state64_t) == {states.ARM64_STATE.size}, "");
    _Static_assert(offsetof(arm_thread_state64_t, __pc) == 256, "");
    _Static_assert(offsetof(arm_unified_thread_state_t, uts) == 8, "");
    _Static_assert(sizeof(arm_unified_thread_state_t) == {UNIFIED_SIZE}, "");
    _Static_assert(offsetof(arm_exception_state64_t, __esr) == 8, "");
    _Static_assert(sizeof(arm_exception_state64_t) == 16, "");
    """,
    "armv7-apple-ios9.0": f"""
    #include <mach/thread_status.h>
    _Static_assert(sizeof(arm_thread_state_t) == {states.ARM_STATE.size}, "");
    _Static_assert(offsetof(arm_thread_state_t, __pc) == 60, "");
    _Static_assert(offsetof(arm_exception_state_t, __far) == 8, "");
    """,
    "x86_64-apple-macos13.0": f"""
    #include <mach/thread_status.h>
    _Static_assert(x86_THREAD_STATE64 == {states.X86_THREAD_STATE64}, "");
    _Static_assert(x86_THREAD_STATE32 == {states.X86_THREAD_STATE32}, "");
    _Static_assert(x86_THREAD_STATE == {states.X86_THREAD_STATE}, "");
    _Static_assert(x86_EXCEPTION_STATE == {states.X86_EXCEPTION_STATE}, "");
    _Static_assert(x86_EXCEPTION_STATE64 == {states.X86_EXCEPTION_STATE64}, "");
    _Static_assert(sizeof(x86_thread_state64_t) == {states.X86_64_STATE.size}, "");
    _Static_assert(offsetof(x86_thread_state64_t, __rip) == 128, "");
    _Static_assert(offsetof(x86_thread_state64_t, __rdi) == 32, "");
    _Static_assert(offsetof(x86_exception_state64_t, __faultvaddr) == 8, "");
    """,
    "i386-apple-macos10.12": f"""
    #include <mach/thread_status.h>
    _Static_assert(sizeof(x86_thread_state32_t) == {states.I386_STATE.size}, "");
    _Static_assert(offsetof(x86_thread_state32_t, __eip) == {4 * states.I386_EIP}, "");
    _Static_assert(offsetof(x86_exception_state32_t, __faultvaddr) == 8, "");
    """,
}


@pytest.mark.peer
@pytest.mark.parametrize("triple", sorted(ASSERTIONS))
def test_layouts_equal_apples_headers(triple, check_headers):
    """A compiler for Darwin evaluates every flavour, size and offset used here."""
    assert check_headers(triple, ASSERTIONS[triple]) == ""


@pytest.mark.peer
def test_the_check_of_layouts_can_fail(check_headers):
    wrong = ASSERTIONS["i386-apple-macos10.12"].replace("== 40", "== 44")
    assert "__eip" in check_headers("i386-apple-macos10.12", wrong)


def test_cpu_types_choose_the_flavours():
    """The same number is another state on another CPU."""
    for cputype, state, sp in (
        (CPU_TYPE_ARM, thread_state(1, ARM32), 113),
        (CPU_TYPE_I386, thread_state(1, I386), 107),
        (CPU_TYPE_X86_64, thread_state(4, X86_64), 107),
    ):
        wide = cputype == CPU_TYPE_X86_64
        core = assemble_core(cputype, wide=wide, threads=[state])
        (thread,) = parse_core(memoryview(core), "test").threads
        assert thread.state.registers.sp == sp
