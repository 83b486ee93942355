"""The only executor of unwind rules."""

from __future__ import annotations

from functools import cache

from machtrace.errors import DwarfError, MemoryReadError
from machtrace.formats.dwarf.expression import evaluate
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from machtrace.model.stack import Stop, StopReason
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
from machtrace.unwinder.step_budget import StepBudget
from machtrace.unwinder.swift_async import ADDRESS_BITS, is_async_frame_pointer

NULL_PAGE = 0x1000
"""The lowest Avma with code; a "return address" below it ends a stack, or is a null call."""

THUMB_BIT = 1
"""The bit of a 32-bit arm code address that is set for Thumb instructions."""


@cache
def _preserved_runs(arch: Arch) -> tuple[slice, ...]:
    """Return the registers that calls preserve, as runs of numbers that a step copies whole."""
    runs: list[slice] = []
    for number in arch.registers.callee_saved:
        if runs and runs[-1].stop == number:
            runs[-1] = slice(runs[-1].start, number + 1)
        else:
            runs.append(slice(number, number + 1))
    return tuple(runs)


class _UnknownRegisterError(Exception):
    """A rule needs a register that the walk has lost."""


def step(
    rule: UnwindRule,
    registers: RegisterSet,
    memory: MemoryReader,
    mask: PacMask,
    budget: StepBudget | None = None,
) -> RegisterSet | Stop:
    """Return the caller's registers, or the reason why there are none. Raises nothing.

    ``registers`` are those of the frame that ``rule`` is for. Their frame pointer may carry Swift's
    async tag and their link register a signature; ``mask`` removes both where they are used as
    addresses. The caller's pc is the address of an instruction: on 32-bit arm, the lowest bit of a
    return address only selects Thumb. Expressions spend from ``budget``; None for a walk's.
    """
    try:
        return _Frame(rule, registers, memory, mask, budget).caller()
    except _UnknownRegisterError:
        return Stop(StopReason.NO_RULE, registers.pc)
    except MemoryReadError as error:
        return Stop(StopReason.UNREADABLE, Avma(error.address))
    except DwarfError:
        return Stop(StopReason.NO_RULE, registers.pc)


def locations(
    rule: UnwindRule, registers: RegisterSet, memory: MemoryReader, mask: PacMask
) -> tuple[Avma | None, Avma | None]:
    """Return the CFA and the address of the saved return address.

    None for an unknown CFA, and for a return address that is not in memory.

    See :func:`step`.
    """
    return _Frame(rule, registers, memory, mask, None).locations()


class _Frame:
    """One application of a rule; ``cfa`` is computed once."""

    __slots__ = ("_budget", "_cfa", "_mask", "_memory", "_registers", "_rule", "_saved", "_word")

    def __init__(
        self,
        rule: UnwindRule,
        registers: RegisterSet,
        memory: MemoryReader,
        mask: PacMask,
        budget: StepBudget | None,
    ) -> None:
        self._rule = rule
        self._registers = registers
        self._memory = memory
        self._mask = mask
        self._budget = budget
        self._word = registers.arch.pointer_size
        self._saved = registers.arch.saved_register_size
        self._cfa = 0

    def caller(self) -> RegisterSet | Stop:
        rule, registers = self._rule, self._registers
        numbers = registers.arch.registers
        if isinstance(rule.return_address, Lost):
            return Stop(StopReason.ROOT)
        base = rule.cfa
        if isinstance(base, RegisterOffset) and base.register == numbers.fp and registers.fp == 0:
            return Stop(StopReason.ROOT)
        self._cfa = self._canonical_frame_address(base)
        if self._cfa % self._word:
            return Stop(StopReason.MISALIGNED, Avma(self._cfa))
        pc = self._mask.strip(self._recover(rule.return_address))
        if registers.arch.is_arm:
            pc = Avma(pc & ~THUMB_BIT)
        if pc < NULL_PAGE and not rule.is_signal_frame:  # a signal may interrupt a null call
            return Stop(StopReason.ROOT)
        values = self._preserved()
        values[numbers.sp] = self._cfa
        for number, recovery in rule.registers:
            if number >= len(values):  # a signal frame has registers that were not captured
                values += [None] * (min(number + 1, len(numbers.names)) - len(values))
            if number < len(values):
                size = self._saved * 2 if number in numbers.doubles else self._saved
                values[number] = self._recover_or_lose(recovery, size)
        return RegisterSet(registers.arch, pc, tuple(values))

    def locations(self) -> tuple[Avma | None, Avma | None]:
        recovery = self._rule.return_address
        try:
            self._cfa = self._canonical_frame_address(self._rule.cfa)
        except (_UnknownRegisterError, MemoryReadError, DwarfError):
            return None, None
        cfa, at = Avma(self._cfa), None
        if isinstance(recovery, AtCfa):
            at = Avma(self._cfa + recovery.offset)
        elif isinstance(recovery, AtExpression):
            try:
                at = Avma(self._evaluate(recovery.expression, (self._cfa,)))
            except (_UnknownRegisterError, MemoryReadError, DwarfError):
                at = None
        return cfa, at

    def _preserved(self) -> list[int | None]:
        """Return the caller's registers before the rule's recoveries."""
        values = self._registers.values
        if self._rule.is_signal_frame:
            return list(values)
        preserved: list[int | None] = [None] * len(values)
        for run in _preserved_runs(self._registers.arch):
            preserved[run] = values[run]
        return preserved

    def _canonical_frame_address(self, cfa: Cfa) -> int:
        if isinstance(cfa, RegisterOffset):
            return self._address_in(cfa.register) + cfa.offset
        return self._evaluate(cfa.expression, ())

    def _address_in(self, number: int) -> Avma:
        value = self._value_in(number)
        if is_async_frame_pointer(value):
            value &= ADDRESS_BITS  # no x86-64 mask removes it
        return self._mask.strip(value)

    def _value_in(self, number: int) -> int:
        value = self._registers.get(number)
        if value is None:
            raise _UnknownRegisterError
        return value

    def _recover_or_lose(self, recovery: Recovery, size: int) -> int | None:
        """Recover a register other than pc; the walk continues without one that is unavailable."""
        try:
            return self._recover(recovery, size)
        except (_UnknownRegisterError, MemoryReadError, DwarfError):
            return None

    def _recover(self, recovery: Recovery, size: int | None = None) -> int:
        if isinstance(recovery, AtCfa):  # nearly always, and quicker to test than a pattern
            return self._load(self._cfa + recovery.offset, size)
        match recovery:
            case CfaPlus(offset):
                return self._cfa + offset
            case InRegister(number, offset):
                return self._value_in(number) + offset
            case AtExpression(expression):
                return self._load(self._evaluate(expression, (self._cfa,)), size)
            case ExpressionValue(expression):
                return self._evaluate(expression, (self._cfa,))
            case Lost():
                raise _UnknownRegisterError

    def _evaluate(self, expression: bytes, initial: tuple[int, ...]) -> int:
        """Evaluate an expression; a register's starts with the CFA (DWARF 5, section 6.4.2.3)."""
        if self._budget is None:
            self._budget = StepBudget()
        return evaluate(
            expression,
            self._registers,
            self._memory,
            initial=initial,
            pointer_size=self._word,
            spend=self._budget.spend,
        )

    def _load(self, address: int, size: int | None) -> int:
        word = self._memory.read(Avma(address), size or self._saved)
        return int.from_bytes(word, "little")
