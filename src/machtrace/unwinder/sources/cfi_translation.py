"""From rows of the call-frame table to unwind rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from machtrace.formats.dwarf import cfi_rows as dwarf
from machtrace.formats.dwarf import operations
from machtrace.errors import DwarfError
from machtrace.model.arch import ARM_DOUBLES, Arch
from machtrace.unwinder.rules import (
    AtCfa,
    AtExpression,
    Cfa,
    CfaPlus,
    ExpressionValue,
    InRegister,
    Lost,
    Recovery,
    RegisterOffset,
    UnwindRule,
)

_PROGRAM_COUNTERS = frozenset({"rip", "eip", "pc"})
_OFFSET_LIMIT = 1 << 63
_SWAPPED = {4: 5, 5: 4}
_NOT_KEPT = -1
_ARM_DOUBLES = range(256, 256 + len(ARM_DOUBLES))
"""d0 to d31 (*DWARF for the Arm Architecture*, "DWARF register names")."""
_ARM_SINGLES = range(64, 96)
"""s0 to s31, the halves of d0 to d15, which GCC saves two by two."""
_ARM_DWARF_GENERAL = 16


@dataclass(frozen=True, slots=True)
class RegisterNumbering:
    """Which register a number in a section means."""

    arch: Arch
    is_darwin_eh_frame: bool = False
    """Apple's i386 has ebp as 4 and esp as 5 in ``__eh_frame``, the other way round than the
    psABI and than its own ``__debug_frame`` (``libunwind.h``: ``UNW_X86_EBP``, ``UNW_X86_ESP``;
    LLVM's ``DWARFFlavour``: ``X86_32_DarwinEH``, ``X86_32_Generic``)."""

    @property
    def is_swapped(self) -> bool:
        """Whether numbers must be translated."""
        return self.is_darwin_eh_frame and self.arch is Arch.I386

    def register(self, number: int) -> int:
        """The number that :class:`~machtrace.model.registers.RegisterSet` uses."""
        if self.arch.is_arm and number >= _ARM_DWARF_GENERAL:
            return _arm_double(number)
        return _SWAPPED.get(number, number) if self.is_swapped else number

    def expression(self, expression: bytes) -> bytes:
        """``expression`` with its registers renumbered.

        Raises:
            DwarfError: it is malformed.
        """
        if not self.is_swapped:
            return expression
        renumbered = bytearray(expression)
        for offset, operation in operations.read_operations(expression, self.arch.pointer_size):
            number = operation.code - operations.BREG0
            if number in _SWAPPED:
                renumbered[offset] = operations.BREG0 + _SWAPPED[number]
            elif operation.code == operations.BREGX and operation.operand in _SWAPPED:
                # Its number is one byte; where it was padded to more, the first holds it all.
                renumbered[offset + 1] ^= operation.operand ^ _SWAPPED[operation.operand]
        return bytes(renumbered)


def rule_of(row: dwarf.CallFrameRow, numbering: RegisterNumbering) -> UnwindRule:
    """The rule that ``row`` states.

    A register that the row does not name, or calls unchanged, is left out where the ABI preserves
    it. A return address that it does not name is still in its register.

    Raises:
        DwarfError: an offset is beyond any address space.
    """
    translation = _Translation(numbering, keeps_all=row.is_signal_frame)
    kept = _registers_of_a_walk(numbering.arch)
    return_address: Recovery | None = None
    registers: list[tuple[int, Recovery]] = []
    for number, rule in row.registers:
        own = numbering.register(number)
        recovery = translation.recovery(own, rule)
        if number == row.return_column:
            return_address = recovery
        if own in kept and not translation.is_preserved(own, rule):
            registers.append((own, recovery))
    if return_address is None:
        return_address = InRegister(numbering.register(row.return_column))
    return UnwindRule(
        translation.cfa(row.cfa),
        return_address,
        tuple(registers),
        is_signal_frame=row.is_signal_frame,
    )


def _arm_double(number: int) -> int:
    if number in _ARM_DOUBLES:
        return ARM_DOUBLES[number - _ARM_DOUBLES.start]
    half = number - _ARM_SINGLES.start
    # The even half lies where the whole does.
    return ARM_DOUBLES[half // 2] if number in _ARM_SINGLES and half % 2 == 0 else _NOT_KEPT


@cache
def _registers_of_a_walk(arch: Arch) -> frozenset[int]:
    """Those that a walk keeps; others are of coprocessors, or pc itself."""
    names = enumerate(arch.registers.names)
    return frozenset(n for n, name in names if name and name not in _PROGRAM_COUNTERS)


@dataclass(frozen=True, slots=True)
class _Translation:
    numbering: RegisterNumbering
    keeps_all: bool

    def cfa(self, rule: dwarf.CfaRule) -> Cfa:
        match rule:
            case dwarf.CfaRegister(register, offset):
                return RegisterOffset(self.numbering.register(register), _checked(offset))
            case dwarf.CfaExpression(expression):
                return ExpressionValue(self.numbering.expression(expression))

    def recovery(  # noqa: PLR0911 - one branch a kind
        self, own: int, rule: dwarf.RegisterRule
    ) -> Recovery:
        match rule:
            case dwarf.Offset(offset):
                return AtCfa(_checked(offset))
            case dwarf.Undefined():
                return Lost()
            case dwarf.SameValue():
                return InRegister(own)
            case dwarf.ValueOffset(offset):
                return CfaPlus(_checked(offset))
            case dwarf.InOtherRegister(register):
                return InRegister(self.numbering.register(register))
            case dwarf.Expression(expression):
                return AtExpression(self.numbering.expression(expression))
            case dwarf.ValueExpression(expression):
                return ExpressionValue(self.numbering.expression(expression))

    def is_preserved(self, own: int, rule: dwarf.RegisterRule) -> bool:
        """Whether a step keeps the register's value anyhow. The stack pointer becomes the CFA."""
        if not isinstance(rule, dwarf.SameValue):
            return False
        numbers = self.numbering.arch.registers
        return own != numbers.sp and (self.keeps_all or own in numbers.callee_saved)


def _checked(offset: int) -> int:
    if not -_OFFSET_LIMIT <= offset < _OFFSET_LIMIT:
        raise DwarfError(f"offset {offset} from the CFA", source="call-frame information", offset=0)
    return offset
