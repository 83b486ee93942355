"""The facts about a CPU that a run in the emulator needs; ``architectures`` has a class for each.

To add one: derive from :class:`EmulatedCpu` in ``architectures.py`` and name the class
in ``_CLASSES``.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib import import_module

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc, uclib

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet

_CLASSES = {
    Arch.ARM64: "EmulatedArm64",
    Arch.ARM64E: "EmulatedArm64",
    Arch.X86_64: "EmulatedX86",
    Arch.I386: "EmulatedX86",
    Arch.ARMV7: "EmulatedArm",
    Arch.ARMV7S: "EmulatedArm",
    Arch.ARMV7K: "EmulatedArm",
}
"""Class of :mod:`tests.support.emulated.architectures`, by architecture; each imports this."""


class Transfer(Enum):
    """The possible effect of an instruction on the stack of calls."""

    NONE = "none"
    """Nothing; direct jumps too."""
    CALL = "call"
    RETURN = "return"
    JUMP = "indirect jump"
    """A return in disguise, as by ``longjmp``, or none: that depends on where it leads."""


class EmulatedCpu(ABC):
    """A CPU with its registers by DWARF number, before it has any memory."""

    instruction_set: str
    """As ``rich`` and people name it."""
    longest_instruction: int
    """Bytes."""
    return_slot: int
    """Bytes that a call pushes."""

    def __init__(self, uc: Uc, arch: Arch, pc: int, registers: Sequence[tuple[int, int]]) -> None:
        """``pc`` and the seconds of ``registers`` are unicorn's, the firsts DWARF's numbers."""
        self.uc = uc
        self.arch = arch
        self.pc = pc
        self._unicorn = dict(registers)
        self._numbers = tuple(number for number, _ in registers)
        self._batch = _Batch(uc, (pc, *(name for _, name in registers)))
        self._template: list[int | None] = [None] * len(arch.registers.names)
        self._sp = self._unicorn[arch.registers.sp]

    def registers(self) -> RegisterSet:
        """Return the registers as a walk reads them."""
        return self.register_set(self.raw_registers())

    def raw_registers(self) -> tuple[int, ...]:
        """Pc and all others, quicker; see :meth:`register_set`."""
        return self._batch.read()

    def write_raw(self, raw: Sequence[int]) -> None:
        """Set pc and all others, as :meth:`raw_registers` returns them."""
        self._batch.write(raw)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The DWARF number of each of :meth:`raw_registers` but the first, which is pc."""
        return self._numbers

    def register_set(self, raw: tuple[int, ...]) -> RegisterSet:
        """Return the result of :meth:`raw_registers` as a register set."""
        values = self._template.copy()
        for number, value in zip(self._numbers, raw[1:], strict=True):
            values[number] = value
        return RegisterSet(self.arch, Avma(raw[0]), tuple(values))

    def with_registers(self, raw: tuple[int, ...], *, pc: int, sp: int) -> RegisterSet:
        """Return a copy with another pc and sp."""
        found = self.register_set(raw)
        values = list(found.values)
        values[self.arch.registers.sp] = sp
        return RegisterSet(self.arch, Avma(pc), tuple(values))

    def write(self, number: int, value: int) -> None:
        """Set a register, by DWARF number."""
        self.uc.reg_write(self._unicorn[number], value)

    def read(self, number: int) -> int:
        """Return one register, by DWARF number."""
        value: int = self.uc.reg_read(self._unicorn[number])
        return value

    @property
    def sp(self) -> int:
        """The stack pointer."""
        value: int = self.uc.reg_read(self._sp)
        return value

    @property
    def program_counter(self) -> int:
        """Where the CPU stands, as a code address."""
        value: int = self.uc.reg_read(self.pc)
        return value

    def start_address(self, address: int) -> int:
        """Return the start address for unicorn, to run the code at ``address``."""
        return address

    def enter(self, top: int, outside: int) -> None:
        """Set registers and stack as the caller of a program's entry leaves them.

        ``top`` is the caller's sp and frame pointer; its frame record is zeros, and so the last.
        ``outside`` is what the entry returns to.
        """
        numbers = self.arch.registers
        for number in self._numbers:
            # Registers have values of their own, so that a wrong one cannot pass for the right.
            if number in numbers.callee_saved and number not in (numbers.sp, numbers.fp):
                self.write(number, 0x5EED_0000 + 0x101 * number)
        self.write(numbers.fp, top)
        self.call_from(top, outside)

    def signed(self, value: int, key: int, discriminator: int) -> int:
        """``value`` as a pointer signed with key 0 to 3 (IA, IB, DA, DB).

        Raises:
            ValueError: the architecture signs no pointers.
        """
        raise ValueError(f"{self.arch.value} signs no pointers: {value:#x}, {key}, {discriminator}")

    @abstractmethod
    def call_from(self, top: int, outside: int) -> None:
        """Set sp, and the return address in its location, as by a call with sp at ``top``."""

    @abstractmethod
    def transfer(self, code: bytes) -> Transfer:
        """Return the possible effect of the instruction ``code`` on the stack of calls."""

    @abstractmethod
    def is_trap(self, code: bytes) -> bool:
        """Return whether ``code`` starts with the instruction that ends a program."""

    @abstractmethod
    def decoder(self, address: int) -> tuple[int, int]:
        """Capstone's architecture and mode for the code at ``address``."""

    def instructions(self, code: bytes, address: int) -> Iterator[tuple[int, int, str]]:
        """(Avma, size, text) of each instruction in ``code``."""
        import capstone  # type: ignore[import-untyped]

        for found in capstone.Cs(*self.decoder(address)).disasm(code, address):
            yield found.address, found.size, f"{found.mnemonic} {found.op_str}".strip()


def emulated_cpu(arch: Arch) -> EmulatedCpu:
    """Create a CPU of ``arch``.

    Raises:
        KeyError: there is none of this architecture.
    """
    architectures = import_module("tests.support.emulated.architectures")
    cpu: EmulatedCpu = getattr(architectures, _CLASSES[arch])(arch)
    return cpu


class _Batch:
    """Registers read together: thirty times as quick as the binding's own way."""

    __slots__ = ("_count", "_handle", "_names", "_pointers", "_values")

    def __init__(self, uc: Uc, names: Sequence[int]) -> None:
        self._count = len(names)
        self._handle = uc._uch  # noqa: SLF001 (the binding offers no other way)
        self._names = (ctypes.c_int * self._count)(*names)
        self._values = (ctypes.c_uint64 * self._count)()
        size = ctypes.sizeof(ctypes.c_uint64)
        start = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * self._count)(
            *(start + size * index for index in range(self._count))
        )

    def read(self) -> tuple[int, ...]:
        uclib.uc_reg_read_batch(self._handle, self._names, self._pointers, self._count)
        return tuple(self._values)

    def write(self, values: Sequence[int]) -> None:
        self._values[:] = list(values)
        uclib.uc_reg_write_batch(self._handle, self._names, self._pointers, self._count)
