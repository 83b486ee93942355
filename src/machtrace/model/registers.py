"""A thread's registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch


@dataclass(frozen=True, slots=True)
class RegisterSet:
    """A thread's registers, or those that unwinding recovered for a caller.

    ``values`` is indexed by DWARF register number (32-bit arm's d0 to d31 by
    :data:`~machtrace.model.arch.ARM_DOUBLES`). None, and an index beyond the end, stand for a
    register that was not captured or not recovered. ``pc`` is separate, as DWARF has no number for
    it on some architectures.
    """

    arch: Arch
    pc: Avma
    values: tuple[int | None, ...]

    @classmethod
    def of(
        cls,
        arch: Arch,
        *,
        pc: int,
        sp: int,
        fp: int | None = None,
        lr: int | None = None,
        general: Mapping[int, int] | None = None,
    ) -> RegisterSet:
        """Build a set from registers by name, and others by DWARF number."""
        numbers = arch.registers
        known = dict(general or {}) | {numbers.sp: sp}
        if fp is not None:
            known[numbers.fp] = fp
        if numbers.lr is not None and lr is not None:
            known[numbers.lr] = lr
        known = {n: value for n, value in known.items() if 0 <= n < len(numbers.names)}
        return cls(arch, Avma(pc), tuple(known.get(n) for n in range(1 + max(known))))

    def __repr__(self) -> str:
        names = self.arch.registers.names
        named = zip(names, self.values, strict=False)
        registers = " ".join(f"{name}={value:#x}" for name, value in named if value is not None)
        return f"RegisterSet({self.arch.value}: pc={self.pc:#x} {registers})"

    def get(self, number: int) -> int | None:
        """Return the register with this DWARF number; None if it is unknown."""
        return self.values[number] if 0 <= number < len(self.values) else None

    def named(self) -> Iterator[tuple[str, int]]:
        """Yield names and values of the known registers, pc included, by DWARF number."""
        numbers = self.arch.registers
        pc = "eip" if self.arch is Arch.I386 else "pc" if numbers.lr is not None else "rip"
        yield from [
            (name, value)
            for name, value in zip(numbers.names, self.values, strict=False)
            if value is not None and name and name != pc
        ]
        yield pc, self.pc

    @property
    def sp(self) -> int | None:
        """The stack pointer, an :data:`Avma`."""
        return self.values[self.arch.registers.sp]  # every set has it

    @property
    def fp(self) -> int | None:
        """The frame pointer, with tags."""
        return self.get(self.arch.registers.fp)

    @property
    def lr(self) -> int | None:
        """The link register, with its signature; None without one."""
        number = self.arch.registers.lr
        return None if number is None else self.get(number)


_ROWS: dict[str, tuple[tuple[str, ...], ...]] = {
    "rip": (
        ("rax", "rbx", "rcx", "rdx"),
        ("rdi", "rsi", "rbp", "rsp"),
        ("r8", "r9", "r10", "r11"),
        ("r12", "r13", "r14", "r15"),
        ("rip", "rflags", "cr2"),
    ),
    "eip": (
        ("eax", "ebx", "ecx", "edx"),
        ("edi", "esi", "ebp", "esp"),
        ("ss", "eflags", "eip", "cs"),
        ("ds", "es", "fs", "gs"),
        ("cr2",),
    ),
    "x0": (
        *(tuple(f"x{number}" for number in range(first, first + 4)) for first in range(0, 28, 4)),
        ("x28", "fp", "lr"),
        ("sp", "pc", "cpsr"),
        ("far", "esr"),
    ),
    "r0": (
        *(tuple(f"r{number}" for number in range(first, first + 4)) for first in range(0, 12, 4)),
        ("r12", "sp", "lr", "pc"),
        ("cpsr",),
    ),
}
"""Rows of crash reports, by a register that only this architecture has."""
_NAME_WIDTH = 6


def register_rows(registers: Sequence[tuple[str, int]], pointer_size: int) -> Iterator[str]:
    """Yield registers in the rows of crash reports, those that these lack four a row."""
    left = dict(registers)
    rows = next((rows for name, rows in _ROWS.items() if name in left), ())
    digits = 2 * pointer_size

    def text(names: Sequence[str]) -> str:
        return " ".join(f"{name:>{_NAME_WIDTH}s}: 0x{left.pop(name):0{digits}x}" for name in names)

    for row in rows:
        if names := [name for name in row if name in left]:
            yield text(names)
    while left:
        yield text([*left][:4])
