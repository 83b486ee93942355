"""Unwind rules as ``_native``'s loop takes them: those that only add to registers and load words.

Importing this raises ImportError where the package was installed without its extensions.
"""

from __future__ import annotations

from machtrace._native import _walk
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.frame_codes import code_of
from machtrace.unwinder.rule_cache import CACHE_LIMIT
from machtrace.unwinder.rules import (
    AtCfa,
    CfaPlus,
    InRegister,
    Lost,
    Recovery,
    RegisterOffset,
    UnwindRule,
)
from machtrace.unwinder.step import THUMB_BIT

_REGISTERS = 128
"""``MACHTRACE_REGISTERS``."""
_LARGEST_OFFSET = (1 << 31) - 1
ADDRESS_BITS = (1 << 64) - 1
"""Of the words that the loop reckons with."""
_SIZES = (4, 8)
"""Bytes that the loop loads."""


class NativeRules:
    """The rules of a process, again, in a table for the loop.

    They are worked out by :class:`~machtrace.unwinder.rule_cache.RuleCache`. The table takes
    32 to 64 bytes an address, and 32 to some 200 for each different rule.
    """

    __slots__ = ("_arch", "_last", "_numbers", "table")

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._numbers: dict[tuple[UnwindRule, FrameTrust], int] = {}
        self._last: dict[FrameTrust, tuple[UnwindRule, int]] = {}
        registers = arch.registers
        self.table = _walk.RuleTable(
            sp=registers.sp,
            fp=registers.fp,
            pointer_size=arch.pointer_size,
            register_count=len(registers.names),
            code_bits=ADDRESS_BITS & ~THUMB_BIT if arch.is_arm else ADDRESS_BITS,
            preserved=bytes(registers.callee_saved),
        )
        """What the loop looks at."""

    def learn(self, lookup: int, *, interrupted: bool, rule: UnwindRule, trust: FrameTrust) -> bool:
        """Let ``rule`` hold at ``lookup``; whether that could be."""
        if interrupted and trust is FrameTrust.FRAME_POINTER:
            return False  # a guess, whose thread is looked at first
        if len(self.table) >= CACHE_LIMIT:
            self.table.clear()
            self._numbers.clear()
            self._last.clear()
        number = self._number(rule, trust)
        if number is None:
            return False
        self.table.add(lookup, interrupted, number)
        return True

    def _number(self, rule: UnwindRule, trust: FrameTrust) -> int | None:
        # A few rules serve most functions, and to compare rules takes longer than to find one.
        same = self._last.get(trust)
        if same is not None and same[0] is rule:
            return same[1]
        number = self._numbers.get((rule, trust))
        if number is None:
            number = self._define(rule, trust)
            if number is None:
                return None
            self._numbers[rule, trust] = number
        self._last[trust] = rule, number
        return number

    def _define(self, rule: UnwindRule, trust: FrameTrust) -> int | None:
        cfa = rule.cfa
        if rule.is_signal_frame or rule.async_context is not None:
            return None
        if not isinstance(cfa, RegisterOffset):
            return None
        if not 0 <= cfa.register < _REGISTERS or abs(cfa.offset) > _LARGEST_OFFSET:
            return None
        return_address = self._recovery(0, rule.return_address, self._arch.saved_register_size)
        saved = []
        for number, recovery in rule.registers:
            if number >= len(self._arch.registers.names):
                continue  # a step leaves it out, too
            size = self._arch.saved_register_size
            if number in self._arch.registers.doubles:
                size *= 2
            saved.append(self._recovery(number, recovery, size))
        registers = tuple(one for one in saved if one is not None)
        if return_address is None or len(registers) < len(saved) or len(saved) >= _REGISTERS:
            return None
        return self.table.define(
            cfa.register,
            cfa.offset,
            return_address,
            registers,
            code_of(trust, rule.caller_kind),
            trust is FrameTrust.FRAME_POINTER,
        )

    @staticmethod
    def _recovery(number: int, recovery: Recovery, size: int) -> _walk.Recovery | None:
        """None where it is a matter for :func:`~machtrace.unwinder.step.step`."""
        source = 0
        match recovery:
            case AtCfa(offset):
                place = _walk.AT_CFA
            case CfaPlus(offset):
                place = _walk.CFA_PLUS
            case InRegister(source, offset):
                place = _walk.IN_REGISTER
            case Lost():
                place, offset = _walk.LOST, 0
            case _:
                return None
        if abs(offset) > _LARGEST_OFFSET or not 0 <= source < _REGISTERS or size not in _SIZES:
            return None
        return number, place, source, size, offset
