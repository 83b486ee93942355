"""A Mach-O program run instruction by instruction, with the true stack at each.

The truth needs no unwinder: calls push what they will return to, returns pop it. Of every caller
the registers are kept as they were at its call, since those that calls preserve must be
recovered so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import pack

from unicorn import arm64_const as arm64
from unicorn import x86_const as x86
from unicorn.unicorn_const import UC_ARCH_X86, UC_HOOK_CODE, UC_MODE_64

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc, UcError

from machtrace.errors import MemoryReadError
from machtrace.macho.contents import FileContents
from machtrace.model.address import Avma
from machtrace.model.registers import RegisterSet
from machtrace.target.emulator_cpu import new_cpu
from machtrace.target.shadow_stack import is_call, is_return

OUTSIDE = Avma(0x20000000)
"""The return address of the outermost frame; in no image."""
STACK_START = 0x16F000000
STACK_SIZE = 0x400000
_PAGE = 0x1000
_LONGEST = 15
"""Bytes of an instruction at most."""

_ARM64_NUMBERS = (*range(32), *range(72, 80))
_ARM64_REGISTERS = (
    arm64.UC_ARM64_REG_PC,
    *(getattr(arm64, f"UC_ARM64_REG_X{number}") for number in range(31)),
    arm64.UC_ARM64_REG_SP,
    *(getattr(arm64, f"UC_ARM64_REG_D{number}") for number in range(8, 16)),
)
_X86_NUMBERS = tuple(range(16))
_X86_REGISTERS = (
    x86.UC_X86_REG_RIP,
    *(
        getattr(x86, f"UC_X86_REG_{name}")
        for name in ("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP")
    ),
    *(getattr(x86, f"UC_X86_REG_R{number}") for number in range(8, 16)),
)


class EmulatedMemory:
    """The emulator's memory, as walks read it."""

    __slots__ = ("_cpu",)

    def __init__(self, cpu: Uc) -> None:
        self._cpu = cpu

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`MemoryReader.read`."""
        try:
            return bytes(self._cpu.mem_read(address, size))
        except (UcError, OverflowError, ValueError):
            raise MemoryReadError(address, size) from None


@dataclass(frozen=True, slots=True)
class TrueFrame:
    """A caller, as it was when it called."""

    return_address: Avma
    registers: RegisterSet
    """With sp as it is for the caller: before a call pushes anything."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The program before one instruction."""

    registers: RegisterSet
    memory: EmulatedMemory
    callers: tuple[TrueFrame, ...]
    """Innermost first; the last is :data:`OUTSIDE`."""

    @property
    def addresses(self) -> tuple[Avma, ...]:
        """What a perfect walk finds: pc, then return addresses."""
        return (self.registers.pc, *(frame.return_address for frame in self.callers))


class EmulatedRun:
    """One run of a program, from its entry until that returns, traps or reaches a limit."""

    def __init__(self, contents: FileContents, patches: Mapping[int, bytes] | None = None) -> None:
        """``patches``: bytes to write over the program's, by Svma, as dyld would."""
        self._contents = contents
        self._patches = patches or {}
        self._arch = contents.image.arch
        self._is_arm64 = self._arch.is_arm64
        self._numbers = _ARM64_NUMBERS if self._is_arm64 else _X86_NUMBERS
        self._names = _ARM64_REGISTERS if self._is_arm64 else _X86_REGISTERS
        self._cpu = new_cpu() if self._is_arm64 else Uc(UC_ARCH_X86, UC_MODE_64)
        self._callers: list[TrueFrame] = []
        self._pending: TrueFrame | None = None
        self._returned = False
        self.instructions = 0
        """That were run."""

    def run(self, visit: Callable[[Moment], None], *, limit: int = 200_000) -> None:
        """Run, and show ``visit`` each moment.

        Raises:
            AssertionError: the program faulted, did not end in ``limit`` instructions, or returned
                to where it was not called from; then there is no truth to compare with.
        """
        cpu, image = self._cpu, self._contents.image
        assert image.entry is not None, "the program has no entry"  # noqa: S101
        self._load()
        self._callers = [self._outermost()]
        memory = EmulatedMemory(cpu)
        failures: list[BaseException] = []

        def hook(_: Uc, address: int, size: int, __: object) -> None:
            if address == OUTSIDE:
                cpu.emu_stop()
                return
            try:
                visit(self._moment(Avma(address), size, memory))
            except BaseException as error:  # noqa: BLE001 (unicorn would swallow it)
                failures.append(error)
                cpu.emu_stop()

        cpu.hook_add(UC_HOOK_CODE, hook)
        try:
            cpu.emu_start(image.header_svma + image.entry.entryoff, OUTSIDE, count=limit)
        except UcError as error:
            if not self._stands_at_trap():
                raise AssertionError(f"the program faulted: {error}") from error
        if failures:
            raise failures[0]
        assert self.instructions < limit, "the program did not end"  # noqa: S101

    def _load(self) -> None:
        for segment in self._contents.image.segments:
            if segment.vmsize and segment.name != "__PAGEZERO":
                self._cpu.mem_map(segment.vmaddr, -(-segment.vmsize // _PAGE) * _PAGE)
                data = self._contents.read_file(segment.fileoff, segment.filesize)
                self._cpu.mem_write(segment.vmaddr, bytes(data))
        for address, patch in self._patches.items():
            self._cpu.mem_write(address, patch)
        self._cpu.mem_map(STACK_START, STACK_SIZE)
        self._cpu.mem_map(OUTSIDE, _PAGE)

    def _outermost(self) -> TrueFrame:
        """Set the registers as whoever calls the entry leaves them, and say what those are."""
        numbers = self._arch.registers
        top = STACK_START + STACK_SIZE - 0x1000
        for name, number in zip(self._names[1:], self._numbers, strict=True):
            # Registers have values of their own, so that a wrong one cannot pass for the right.
            if number in numbers.callee_saved and number not in (numbers.sp, numbers.fp):
                self._cpu.reg_write(name, 0x5EED_0000 + 0x101 * number)
        if self._is_arm64:
            self._cpu.reg_write(arm64.UC_ARM64_REG_LR, OUTSIDE)
            self._cpu.reg_write(arm64.UC_ARM64_REG_SP, top)
        else:
            self._cpu.mem_write(top - 8, pack("<Q", OUTSIDE))
            self._cpu.reg_write(x86.UC_X86_REG_RSP, top - 8)
        values = list(self._registers().values)
        values[numbers.sp] = top
        return TrueFrame(OUTSIDE, RegisterSet(self._arch, OUTSIDE, tuple(values)))

    def _stands_at_trap(self) -> bool:
        pc = self._cpu.reg_read(self._names[0])
        code = bytes(self._cpu.mem_read(pc, 4))
        return (code[3] == 0xD4) if self._is_arm64 else code.startswith(b"\x0f\x0b")  # noqa: PLR2004

    def _registers(self) -> RegisterSet:
        pc, *values = self._cpu.reg_read_batch(self._names)
        kept: list[int | None] = [None] * len(self._arch.registers.names)
        for number, value in zip(self._numbers, values, strict=True):
            kept[number] = value
        return RegisterSet(self._arch, Avma(pc), tuple(kept))

    def _moment(self, address: Avma, size: int, memory: EmulatedMemory) -> Moment:
        if self._pending is not None:
            self._callers.insert(0, self._pending)
        elif self._returned:
            back = self._callers.pop(0).return_address
            assert back == address, f"returned to {address:#x}, not {back:#x}"  # noqa: S101
        self.instructions += 1
        registers = self._registers()
        # Of an instruction that only traps, unicorn does not know the size.
        code = memory.read(address, min(size, _LONGEST))
        calls, self._returned = self._kind(code)
        self._pending = None
        if calls:
            self._pending = TrueFrame(Avma(address + size), registers)
        return Moment(registers, memory, tuple(self._callers))

    def _kind(self, code: bytes) -> tuple[bool, bool]:
        """Whether an instruction calls, and whether it returns."""
        if self._is_arm64:
            word = int.from_bytes(code, "little")
            return is_call(word), is_return(word)
        code = code.lstrip(_X86_PREFIXES)
        is_indirect_call = code[0] == 0xFF and (code[1] >> 3) & 7 == 2  # noqa: PLR2004
        return code[0] == 0xE8 or is_indirect_call, code[0] in (0xC2, 0xC3)  # noqa: PLR2004


_X86_PREFIXES = bytes((0x2E, 0x3E, 0x66, 0xF2, 0xF3, *range(0x40, 0x50)))
