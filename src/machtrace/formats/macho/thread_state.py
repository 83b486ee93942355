"""Thread states: in thread commands of cores, and as the kernel returns them.

An ``LC_THREAD`` or ``LC_UNIXTHREAD`` repeats, after ``cmd`` and ``cmdsize``,
``{flavor, count, state}``, ``count`` in words of four bytes (``mach-o/loader.h``: ``struct
thread_command``). A flavour's fields depend on the CPU: ``mach/arm/thread_status.h`` and
``mach/arm/_structs.h``, ``mach/i386/thread_status.h`` and ``mach/i386/_structs.h``. A unified
flavour wraps another one with a second ``{flavor, count}``.

``thread_get_state`` returns the same states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from struct import Struct
from typing import NamedTuple

from machtrace.errors import CoreFileError
from machtrace.formats.macho.load_commands import LC_THREAD
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet

# mach/arm/thread_status.h
ARM_THREAD_STATE = 1
ARM_EXCEPTION_STATE = 3
ARM_THREAD_STATE64 = 6
ARM_EXCEPTION_STATE64 = 7
ARM_THREAD_STATE32 = 9
ARM_EXCEPTION_STATE64_V2 = 10

# mach/i386/thread_status.h
X86_THREAD_STATE32 = 1
X86_EXCEPTION_STATE32 = 3
X86_THREAD_STATE64 = 4
X86_EXCEPTION_STATE64 = 6
X86_THREAD_STATE = 7
X86_EXCEPTION_STATE = 9
X86_THREAD_FULL_STATE64 = 23

STATE_HEADER = Struct("<2I")
"""``flavor`` and ``count``."""
ARM64_STATE = Struct("<33Q2I")
"""``arm_thread_state64``: x0 to x28, fp, lr, sp, pc; cpsr, flags."""
ARM_STATE = Struct("<17I")
"""``arm_thread_state``: r0 to r12, sp, lr, pc, cpsr."""
X86_64_STATE = Struct("<21Q")
"""``x86_thread_state64``: rax, rbx, rcx, rdx, rdi, rsi, rbp, rsp, r8 to r15, rip, rflags, …"""
I386_STATE = Struct("<16I")
"""``i386_thread_state``: eax, ebx, ecx, edx, edi, esi, ebp, esp, ss, eflags, eip, cs, …"""

X86_64_ORDER = (0, 3, 2, 1, 5, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
"""DWARF numbers of the registers that :data:`X86_64_STATE` begins with; rip is next."""
I386_ORDER = (0, 3, 1, 2, 7, 6, 5, 4)
"""The same for :data:`I386_STATE`, by the System V psABI; ss, eflags, eip follow."""
I386_EIP = 10
"""The index of eip in :data:`I386_STATE`."""

_FLAGS = {
    "x0": ("cpsr", 33 * 8, 4),
    "r0": ("cpsr", 16 * 4, 4),
    "rax": ("rflags", 17 * 8, 8),
    "eax": ("eflags", 9 * 4, 4),
}
"""Names, offsets in a state and sizes of flags registers, by the first register's name."""

# Up to the program counter; later fields are not read.
_ARM64_REGISTERS = Struct("<33Q")
_ARM_REGISTERS = Struct("<16I")
_X86_64_REGISTERS = Struct("<17Q")
_I386_REGISTERS = Struct("<11I")

_EXCEPTION64 = Struct("<Q2I")
_EXCEPTION64_V2 = Struct("<2Q")
_EXCEPTION_ARM = Struct("<3I")
_EXCEPTION_X86_64 = Struct("<2HIQ")
_EXCEPTION_I386 = Struct("<2H2I")

_ESR_CLASS_SHIFT = 26
_ARM64_TRAPS = frozenset(
    {0x0D, 0x0E, 0x1C, 0x22, 0x26, 0x2C, 0x3C}
)  # BTI, illegal state, PAC, pc and sp alignment, floating point, BRK: xnu's arm64/proc_reg.h
_ARM64_ABORTS = frozenset({0x20, 0x24})  # instruction and data abort from user code
_ARM_TRAPS = frozenset({1})  # T_UNDEF: xnu's arm/trap.h
_ARM_ABORTS = frozenset({3, 4})  # T_PREFETCH_ABT, T_DATA_ABT
_X86_TRAPS = frozenset({3, 4, 5, 6, 8, 10, 11, 12, 13, 16, 17, 19})  # xnu's i386/trap.h
_X86_ABORTS = frozenset({14})  # T_PAGE_FAULT


@dataclass(frozen=True, slots=True)
class ExceptionState:
    """The exception state: why a thread last entered the kernel, usually not for a fault."""

    fault_address: Avma
    """``far`` or ``faultvaddr``: the address of an aborted memory access; otherwise often stale."""
    syndrome: int
    """``esr`` (arm64), ``fsr`` (arm) or ``err`` (x86)."""
    number: int
    """``exception`` (arm, arm64) or ``trapno`` (x86)."""
    is_trap: bool
    """Whether the program cannot continue: a breakpoint or undefined instruction, a failed
    pointer authentication, a misaligned pc."""
    is_abort: bool
    """Whether the hardware aborted a memory access: a crash, or a page that the kernel then
    loaded."""


@dataclass(frozen=True, slots=True)
class ThreadState:
    """The registers in one thread command."""

    registers: RegisterSet
    """pc without signature or tag; the others unchanged. The architecture is that of the state:
    arm64_32 for 64-bit registers in a 32-bit core."""
    exception: ExceptionState | None
    flags: tuple[tuple[str, int], ...] = ()
    """The name and value of the flags register, if the state has it."""

    @property
    def fault_registers(self) -> tuple[tuple[str, int], ...]:
        """Names and values of the exception state's registers, as crash reports name them."""
        exception = self.exception
        if exception is None:
            return ()
        if self.registers.arch.is_arm64 or self.registers.arch.is_arm:
            return (("far", exception.fault_address), ("esr", exception.syndrome))
        return (
            ("cr2", exception.fault_address),
            ("err", exception.syndrome),
            ("trap", exception.number),
        )


class _State(NamedTuple):
    flavour: int
    offset: int
    """Bytes from the start of the command."""
    data: memoryview


def parse_thread_state(
    command: memoryview, arch: Arch, *, mask: PacMask = PacMask(), source: str, offset: int = 0
) -> ThreadState:
    """Parse a thread command, including ``cmd`` and ``cmdsize``.

    States of other flavours (floating point, vectors, debug registers) are skipped by their count.
    ``arch`` is the core's; ``mask`` removes signatures from pc. ``offset`` is the command's in
    ``source``, for errors.

    Raises:
        CoreFileError: no state has general registers, or it is truncated.
    """
    registers: RegisterSet | None = None
    exception: ExceptionState | None = None
    flags: tuple[tuple[str, int], ...] = ()
    cut: CoreFileError | None = None
    try:
        for state in _states(command, source, offset):
            inner = _unwrap(state, arch)
            if registers is None and (registers := _registers(inner, arch, mask)) is not None:
                flags = _flags(inner, registers.arch)
            exception = exception or _exception(inner, arch)
    except CoreFileError as error:
        # A truncated vector state after complete general registers does no harm.
        cut = error
    if registers is not None:
        return ThreadState(registers, exception, flags)
    raise cut or CoreFileError(
        f"a thread without general registers of {arch.value}", source=source, offset=offset
    )


def _states(command: memoryview, source: str, offset: int) -> Iterator[_State]:
    at = 8
    while at + STATE_HEADER.size <= len(command):
        flavour, count = STATE_HEADER.unpack_from(command, at)
        at += STATE_HEADER.size
        if count * 4 > len(command) - at:
            raise CoreFileError(
                f"thread state of flavour {flavour} claims {count * 4} bytes, "
                f"{len(command) - at} are there",
                source=source,
                offset=offset + at,
            )
        yield _State(flavour, at, command[at : at + count * 4])
        at += count * 4


def _unwrap(state: _State, arch: Arch) -> _State:
    """Unwrap a unified state; return any other unchanged."""
    if len(state.data) < STATE_HEADER.size:
        return state
    flavour, count = STATE_HEADER.unpack_from(state.data)
    if STATE_HEADER.size + count * 4 > len(state.data):
        return state
    if _is_x86(arch):
        wraps = state.flavour in (X86_THREAD_STATE, X86_EXCEPTION_STATE)
    else:
        # On 32-bit arm, the same flavour was once the bare registers, 17 words.
        wraps = state.flavour == ARM_THREAD_STATE and len(state.data) != ARM_STATE.size
    if not wraps:
        return state
    inner = state.data[STATE_HEADER.size : STATE_HEADER.size + count * 4]
    return _State(flavour, state.offset + STATE_HEADER.size, inner)


def _is_x86(arch: Arch) -> bool:
    return arch in (Arch.X86_64, Arch.X86_64H, Arch.I386)


def _registers(state: _State, arch: Arch, mask: PacMask) -> RegisterSet | None:
    flavour, size = state.flavour, len(state.data)
    if _is_x86(arch):
        if arch is Arch.I386:
            narrow = flavour == X86_THREAD_STATE32 and size >= _I386_REGISTERS.size
            return _i386(state) if narrow else None
        wide = flavour in (X86_THREAD_STATE64, X86_THREAD_FULL_STATE64)
        return _x86_64(state, arch) if wide and size >= _X86_64_REGISTERS.size else None
    if flavour == ARM_THREAD_STATE64 and size >= _ARM64_REGISTERS.size:
        # A watch's core is marked arm for its 32-bit addresses, but its registers have 64 bits.
        return _arm64(state, arch if arch.is_arm64 else Arch.ARM64_32, mask)
    narrow = flavour in (ARM_THREAD_STATE, ARM_THREAD_STATE32) and not arch.is_arm64
    return _arm(state, arch) if narrow and size >= _ARM_REGISTERS.size else None


def _flags(state: _State, arch: Arch) -> tuple[tuple[str, int], ...]:
    name, offset, size = _FLAGS[arch.registers.names[0]]
    value = int.from_bytes(state.data[offset : offset + size], "little")
    # Writers that do not know them write 0.
    return ((name, value),) if value and len(state.data) >= offset + size else ()


def _arm64(state: _State, arch: Arch, mask: PacMask) -> RegisterSet:
    *general, pc = _ARM64_REGISTERS.unpack_from(state.data)
    return RegisterSet(arch, mask.strip(pc), tuple(general))


def _arm(state: _State, arch: Arch) -> RegisterSet:
    *general, pc = _ARM_REGISTERS.unpack_from(state.data)
    return RegisterSet(arch, Avma(pc), tuple(general))


def _x86_64(state: _State, arch: Arch) -> RegisterSet:
    *general, pc = _X86_64_REGISTERS.unpack_from(state.data)
    return _permuted(arch, X86_64_ORDER, general, pc)


def _i386(state: _State) -> RegisterSet:
    values = _I386_REGISTERS.unpack_from(state.data)
    return _permuted(Arch.I386, I386_ORDER, values[:8], values[I386_EIP])


def _permuted(
    arch: Arch, order: tuple[int, ...], general: list[int] | tuple[int, ...], pc: int
) -> RegisterSet:
    by_number = dict(zip(order, general, strict=True))
    return RegisterSet(arch, Avma(pc), tuple(by_number[number] for number in range(len(order))))


def _exception(state: _State, arch: Arch) -> ExceptionState | None:
    flavour, data = state.flavour, state.data
    if _is_x86(arch):
        return _x86_exception(flavour, data)
    if flavour == ARM_EXCEPTION_STATE64 and len(data) >= _EXCEPTION64.size:
        address, syndrome, number = _EXCEPTION64.unpack_from(data)
    elif flavour == ARM_EXCEPTION_STATE64_V2 and len(data) >= _EXCEPTION64_V2.size:
        address, syndrome = _EXCEPTION64_V2.unpack_from(data)
        number = 0
    elif flavour == ARM_EXCEPTION_STATE and len(data) >= _EXCEPTION_ARM.size:
        number, syndrome, address = _EXCEPTION_ARM.unpack_from(data)
        return ExceptionState(
            Avma(address), syndrome, number, number in _ARM_TRAPS, number in _ARM_ABORTS
        )
    else:
        return None
    kind = (syndrome >> _ESR_CLASS_SHIFT) & 0x3F
    return ExceptionState(
        Avma(address), syndrome, number, kind in _ARM64_TRAPS, kind in _ARM64_ABORTS
    )


def _x86_exception(flavour: int, data: memoryview) -> ExceptionState | None:
    if flavour == X86_EXCEPTION_STATE64 and len(data) >= _EXCEPTION_X86_64.size:
        number, _, syndrome, address = _EXCEPTION_X86_64.unpack_from(data)
    elif flavour == X86_EXCEPTION_STATE32 and len(data) >= _EXCEPTION_I386.size:
        number, _, syndrome, address = _EXCEPTION_I386.unpack_from(data)
    else:
        return None
    return ExceptionState(
        Avma(address), syndrome, number, number in _X86_TRAPS, number in _X86_ABORTS
    )


_COMMAND_HEADER = Struct("<2I")
_WORD = 4
_U16, _U32 = (1 << 16) - 1, (1 << 32) - 1
_ARM64_GENERAL = 32
"""x0 to x28, fp, lr and sp: also the order of DWARF's numbers."""
_ARM_GENERAL = 15


def thread_command(registers: RegisterSet, others: Sequence[tuple[str, int]] = ()) -> bytes:
    """Return an ``LC_THREAD`` with the general registers; unknown ones are 0.

    ``others`` are flags and fault registers, as in :class:`ThreadState`; with fault registers, it
    has an exception state, too.
    """
    known = dict(others)
    command = bytearray(_general_state(registers))
    name, offset, size = _FLAGS[registers.arch.registers.names[0]]
    at = _COMMAND_HEADER.size + STATE_HEADER.size + offset
    command[at : at + size] = (known.get(name, 0) % (1 << 8 * size)).to_bytes(size, "little")
    if registers.arch is Arch.X86_64 and "cr2" in known:
        fields = (known.get("trap", 0) & _U16, 0, known.get("err", 0) & _U32, known["cr2"])
        state = _EXCEPTION_X86_64.pack(*fields)
        command += STATE_HEADER.pack(X86_EXCEPTION_STATE64, len(state) // _WORD) + state
    elif registers.arch.is_arm64 and "far" in known:
        state = _EXCEPTION64.pack(known["far"], known.get("esr", 0) & _U32, 0)
        command += STATE_HEADER.pack(ARM_EXCEPTION_STATE64, len(state) // _WORD) + state
    _COMMAND_HEADER.pack_into(command, 0, LC_THREAD, len(command))
    return bytes(command)


def _general_state(registers: RegisterSet) -> bytes:
    arch = registers.arch
    if arch.is_arm64:
        return _command(ARM_THREAD_STATE64, ARM64_STATE, _inorder(registers, _ARM64_GENERAL, 64))
    if arch in (Arch.X86_64, Arch.X86_64H):
        values = [registers.get(number) or 0 for number in X86_64_ORDER]
        return _command(X86_THREAD_STATE64, X86_64_STATE, _fitted([*values, registers.pc], 64))
    if arch is Arch.I386:
        values = [registers.get(number) or 0 for number in I386_ORDER]
        values += [0] * (I386_EIP - len(values))
        return _command(X86_THREAD_STATE32, I386_STATE, _fitted([*values, registers.pc], 32))
    return _command(ARM_THREAD_STATE, ARM_STATE, _inorder(registers, _ARM_GENERAL, 32))


def _inorder(registers: RegisterSet, count: int, width: int) -> list[int]:
    values = [registers.get(number) or 0 for number in range(count)]
    return _fitted([*values, registers.pc], width)


def _fitted(values: list[int], width: int) -> list[int]:
    mask = (1 << width) - 1
    return [value & mask for value in values]


def _command(flavour: int, layout: Struct, values: list[int]) -> bytes:
    """Return ``values`` padded with zeros: the fields after pc are unknown."""
    fields = len(layout.unpack(bytes(layout.size)))
    state = layout.pack(*values, *(0,) * (fields - len(values)))
    size = _COMMAND_HEADER.size + STATE_HEADER.size + len(state)
    return (
        _COMMAND_HEADER.pack(LC_THREAD, size)
        + STATE_HEADER.pack(flavour, len(state) // _WORD)
        + state
    )


_BLANK_COMMAND_HEADER = bytes(8)


def read_native_state(data: bytes, arch: Arch, mask: PacMask, source: str) -> RegisterSet:
    """Return the registers in ``data``: ``arm_thread_state64_t`` or ``x86_thread_state64_t``.

    Args:
        data: the state, whose size is a multiple of four.
        arch: the process's architecture.
        mask: removes signatures from pc and sp, which arm64e callers receive signed.
        source: the name in errors.

    Raises:
        CoreFileError: the state is truncated.
    """
    flavour = ARM_THREAD_STATE64 if arch.is_arm64 else X86_THREAD_STATE64
    command = _BLANK_COMMAND_HEADER + STATE_HEADER.pack(flavour, len(data) // 4) + data
    registers = parse_thread_state(memoryview(command), arch, mask=mask, source=source).registers
    sp = registers.sp
    if not arch.is_arm64 or sp is None or mask.strip(sp) == sp:
        return registers
    place = arch.registers.sp
    values = (*registers.values[:place], mask.strip(sp), *registers.values[place + 1 :])
    return replace(registers, values=values)
