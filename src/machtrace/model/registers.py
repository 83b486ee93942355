"""A thread's registers."""

from __future__ import annotations

from collections.abc import Mapping

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
