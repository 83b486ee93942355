"""Register sets and signal frames of Linux, by their offsets in the kernel's structures."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import FormatError
from machtrace.formats.elf.core.registers import layout_of, read_registers
from machtrace.model.arch import Arch
from machtrace.targets.gdbremote.stacks import REACH, interrupted_sp
from machtrace.targets.linux.blocked import waiting_registers

# sys/user.h
X86_64 = [
    "r15",
    "r14",
    "r13",
    "r12",
    "rbp",
    "rbx",
    "r11",
    "r10",
    "r9",
    "r8",
    "rax",
    "rcx",
    "rdx",
    "rsi",
    "rdi",
    "orig_rax",
    "rip",
    "cs",
    "eflags",
    "rsp",
    "ss",
    "fs_base",
    "gs_base",
    "ds",
    "es",
    "fs",
    "gs",
]
I386 = [
    "ebx",
    "ecx",
    "edx",
    "esi",
    "edi",
    "ebp",
    "eax",
    "ds",
    "es",
    "fs",
    "gs",
    "orig_eax",
    "eip",
    "cs",
    "eflags",
    "esp",
    "ss",
]
# asm/ptrace.h
AARCH64 = [*(f"x{n}" for n in range(29)), "fp", "lr", "sp", "pc", "pstate"]
ARM = [*(f"r{n}" for n in range(13)), "sp", "lr", "pc", "cpsr", "orig_r0"]


@pytest.mark.parametrize(
    ("arch", "names", "word"),
    [
        (Arch.X86_64, X86_64, "Q"),
        (Arch.I386, I386, "I"),
        (Arch.ARM64, AARCH64, "Q"),
        (Arch.ARM, ARM, "I"),
    ],
)
def test_each_register_has_its_number(arch, names, word):
    """Every register with a DWARF number, with the value at its offset."""
    values = {name: 0x1000 + index for index, name in enumerate(names)}
    registers = read_registers(struct.pack(f"<{len(names)}{word}", *values.values()), "thread")
    assert registers.arch is arch
    assert registers.pc == values.get("rip", values.get("eip", values.get("pc")))
    assert registers.sp == values.get("rsp", values.get("esp", values.get("sp")))
    for number, name in enumerate(arch.registers.names):
        if name in values:
            assert registers.get(number) == values[name], name
        else:
            assert registers.get(number) is None, name


@pytest.mark.parametrize("size", [0, 8, 215, 217, 512])
def test_register_sets_are_identified_by_size(size):
    with pytest.raises(FormatError):
        read_registers(bytes(size), "thread")


def signal_frame(layout, *, start, size, saved, flags=0, link=0, uc_flags=7):
    """Build the bytes of a struct ucontext, up to the saved stack pointer."""
    word = "Q" if layout.words.size // len(layout.dwarf) == 8 else "I"
    width = struct.calcsize(word)
    head = struct.pack(f"<3{word}", uc_flags, link, start)
    head += struct.pack("<I", flags).ljust(width, b"\0") + struct.pack(f"<{word}", size)
    return head.ljust(2 * width + layout.signal_sp, b"\xaa") + struct.pack(f"<{word}", saved)


LAYOUTS = [layout_of(size) for size in (216, 68, 272, 72)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.arch.value)
def test_the_interrupted_stack_pointer_is_found_on_its_stack(layout):
    """At any address, if it is within the stack that the frame names."""
    frame = signal_frame(layout, start=0x10000, size=0x4000, saved=0x7FFF0000)
    for before in (0, 64, 4096):
        stack = memoryview(b"\xcc" * before + frame)
        assert interrupted_sp(stack, 0x12340, layout) == 0x7FFF0000
        assert interrupted_sp(stack, 0x14000, layout) is None
        assert interrupted_sp(stack, 0xFFF8, layout) is None


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.arch.value)
@pytest.mark.parametrize(
    "changed",
    [{"link": 8}, {"uc_flags": 8}, {"flags": 0x10}, {"size": 1 << 31}, {"saved": 0x11000}],
)
def test_bytes_without_the_kernels_constants_are_not_a_signal_frame(layout, changed):
    """Each field that the kernel always writes is altered."""
    fields = {"start": 0x10000, "size": 0x4000, "saved": 0x7FFF0000} | changed
    stack = memoryview(b"\xcc" * 64 + signal_frame(layout, **fields))
    assert interrupted_sp(stack, 0x12340, layout) is None


def test_nested_signals_on_one_stack():
    """The outermost handler's frame leads back to the thread's own stack."""
    layout = layout_of(216)
    inner = signal_frame(layout, start=0x10000, size=0x4000, saved=0x13000)
    outer = signal_frame(layout, start=0x10000, size=0x4000, saved=0x7FFF0000)
    stack = memoryview(inner + b"\xcc" * 400 + outer)
    assert interrupted_sp(stack, 0x12340, layout) == 0x7FFF0000


@given(st.binary(max_size=2000), st.integers(0, (1 << 64) - 1))
def test_any_bytes_give_a_stack_pointer_or_none(data, sp):
    for layout in LAYOUTS:
        width = 8 * layout.words.size // len(layout.dwarf)
        found = interrupted_sp(memoryview(data), sp % (1 << width), layout)
        assert found is None or 0 <= found < 1 << width


def test_search_is_bounded():
    """Bytes far above the stack pointer are not searched."""
    layout = layout_of(216)
    frame = signal_frame(layout, start=0x10000, size=0x4000, saved=0x7FFF0000)
    stack = memoryview(b"\xcc" * REACH + frame)
    assert interrupted_sp(stack, 0x12340, layout) is None


def test_registers_of_a_blocked_thread_from_proc():
    """``syscall`` of proc(5): a number, six arguments, the stack pointer, the program counter."""
    text = "202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd1000 0x7f0000001234\n"
    registers = waiting_registers(text, Arch.X86_64)
    assert registers is not None
    assert (registers.sp, registers.pc) == (0x7FFD1000, 0x7F0000001234)
    assert registers.fp is None
    assert waiting_registers("running\n", Arch.X86_64) is None
    assert waiting_registers("", Arch.X86_64) is None
    assert waiting_registers("-1 0x10 0x20\n", Arch.X86_64) is not None
