"""What is known of a frame before one instruction of its function, for AArch64.

A value is what a register or a word of the stack holds, said in terms of the frame: a register
as the caller left it, a distance from the canonical frame address (CFA: sp at the function's
entry), or a number. None is anything else. The state is a row of DWARF's call-frame table with
more in it, worked out from instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from machtrace.unwind.arm64_effects import (
    FP,
    LR,
    SP,
    VECTORS,
    AddConstant,
    AddRegister,
    Call,
    InsertConstant,
    Instruction,
    Load,
    MoveRegister,
    SetConstant,
    Store,
    Writes,
)
from machtrace.unwind.rules import AtCfa, InRegister, Lost, Recovery, RegisterOffset, UnwindRule

_MASK_64 = (1 << 64) - 1
_WORD = 8
MAX_DISTANCE = 1 << 40
"""A frame is not this big; hostile arithmetic does not make numbers grow for ever."""
MAX_SLOTS = 256
"""Words of a frame that are followed at most: of thirty registers, and some copies of them."""


@dataclass(frozen=True, slots=True)
class CallerValue:
    """What the register held when the function was entered."""

    register: int


@dataclass(frozen=True, slots=True)
class FromCfa:
    """The canonical frame address plus ``offset``."""

    offset: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number that instructions put there."""

    value: int


Value = CallerValue | FromCfa | Number

_FIRST_SAVED_VECTOR = VECTORS + 8
_TRACKED = (*range(32), *range(_FIRST_SAVED_VECTOR, _FIRST_SAVED_VECTOR + 8))
_PLACE = {register: place for place, register in enumerate(_TRACKED)}
CALLEE_SAVED = (*range(19, LR), *range(_FIRST_SAVED_VECTOR, _FIRST_SAVED_VECTOR + 8))
"""What a caller finds unchanged; x18 is the platform's, and nobody saves it."""
_VOLATILE = tuple(range(19))
_RETURN_ADDRESS = CallerValue(LR)
_CFA_BASES = (SP, *range(FP, 18, -1), *range(18), LR)
"""Where the CFA is looked for: sp, fp, a base pointer, anywhere."""
# x0 and x1 carry results; the others either do not matter after a call or, in calls that the
# compiler made for itself (outlined code, stack probes), are known to it to have survived.
_LOST_IN_CALLS = (0, 1, LR)


@dataclass(frozen=True, slots=True, eq=False)
class FrameState:
    """Values of registers, by :data:`_PLACE`, and of words in memory, by distance from the CFA."""

    values: tuple[Value | None, ...]
    slots: Mapping[int, Value]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, FrameState):
            return NotImplemented
        return self.values == other.values and (
            self.slots is other.slots or self.slots == other.slots
        )

    __hash__ = None  # type: ignore[assignment]

    def value(self, register: int) -> Value | None:
        """What a register holds, by DWARF number."""
        place = _PLACE.get(register)
        return None if place is None else self.values[place]

    @property
    def sp_offset(self) -> int | None:
        """From the CFA to sp; None where it is not known."""
        sp = self.values[SP]
        return sp.offset if isinstance(sp, FromCfa) else None

    @property
    def return_address(self) -> Recovery | None:
        """Where the return address is; None where that is not known."""
        return self._recovery(LR, _RETURN_ADDRESS)

    def _recovery(self, register: int, wanted: CallerValue) -> Recovery | None:
        if self.values[_PLACE[register]] == wanted:
            return InRegister(register)
        saved = self._saved(wanted)
        if saved is not None:
            return saved
        for place, value in enumerate(self.values):
            if value == wanted:
                return InRegister(_TRACKED[place])
        return None

    def _saved(self, wanted: CallerValue) -> AtCfa | None:
        return next((AtCfa(at) for at, value in self.slots.items() if value == wanted), None)

    def is_restored(self, return_register: int) -> bool | None:
        """Whether a function may return so; None where sp is not known."""
        offset = self.sp_offset
        if offset is None:
            return None
        return (
            offset == 0
            and self.value(return_register) == _RETURN_ADDRESS
            and self.values[FP] == CallerValue(FP)
        )

    def rule(
        self, *, keeps_volatile: bool = False, prefers_memory: bool = False
    ) -> UnwindRule | None:
        """How to get the caller's registers from here; None where that is not known.

        Args:
            keeps_volatile: say too which of the registers that calls may change were not changed.
                The compiler knows that of code that it outlined, and keeps values in them.
            prefers_memory: take from memory what is there, even if it is still in its register:
                where the register is another frame's business by now.
        """
        return_address = self.return_address
        if return_address is None:
            return None
        for base in _CFA_BASES:
            value = self.values[base]
            if isinstance(value, FromCfa):
                cfa = RegisterOffset(base, -value.offset)
                break
        else:
            return None
        registers: list[tuple[int, Recovery]] = []
        for register in CALLEE_SAVED:
            wanted = CallerValue(register)
            is_kept = self.values[_PLACE[register]] == wanted
            saved = self._saved(wanted) if prefers_memory or not is_kept else None
            if saved is not None or not is_kept:
                registers.append((register, saved or self._recovery(register, wanted) or Lost()))
        if keeps_volatile:
            registers += [
                (register, InRegister(register))
                for register in _VOLATILE
                if self.values[register] == CallerValue(register)
            ]
        return UnwindRule(cfa, return_address, tuple(registers))

    def after(self, instruction: Instruction) -> FrameState:
        """The state behind an instruction that goes on to the next; itself where nothing changes.

        Of a call: the state after it returned.
        """
        match instruction:
            case Store():
                return self._store(instruction)
            case Load():
                return self._load(instruction)
            case Writes(registers):
                return self._with((register, None) for register in registers)
            case Call():
                return self._with((register, None) for register in _LOST_IN_CALLS)
            case _:
                return self._with(self._assigned(instruction))

    def _assigned(self, instruction: Instruction) -> tuple[tuple[int, Value | None], ...]:
        match instruction:
            case AddConstant(destination, source, amount):
                return ((destination, _sum(self.values[source], amount)),)
            case MoveRegister(destination, source):
                return ((destination, self.values[source]),)
            case SetConstant(destination, number):
                return ((destination, Number(number)),)
            case InsertConstant(destination, part, shift):
                return ((destination, _insert(self.values[destination], part, shift)),)
            case AddRegister(destination, source, register, shift, sign):
                factor = self.values[register]
                added = sign * (factor.value << shift) if isinstance(factor, Number) else None
                return ((destination, _sum(self.values[source], added)),)
            case _:
                return ()

    def _with(self, changes: Iterable[tuple[int, Value | None]]) -> FrameState:
        values: list[Value | None] | None = None
        for register, value in changes:
            place = _PLACE.get(register)
            if place is None or self.values[place] == value:
                continue
            if values is None:
                values = list(self.values)
            values[place] = value
        return self if values is None else FrameState(tuple(values), self.slots)

    def _store(self, store: Store) -> FrameState:
        state = self
        base = self.values[store.base]
        if isinstance(base, FromCfa):
            start = base.offset + store.offset
            end = start + store.size * len(store.registers)
            # Only sp and fp lead to places where registers are saved for good: other pointers
            # into the frame belong to the program's variables, and loops move them on.
            overwrites = store.base in (SP, FP)
            slots = {
                offset: value
                for offset, value in self.slots.items()
                if not overwrites or offset + _WORD <= start or offset >= end
            }
            for i, register in enumerate(store.registers):
                value = None if register is None else self.value(register)
                if store.size >= _WORD and _is_worth_keeping(value) and len(slots) < MAX_SLOTS:
                    slots[start + i * store.size] = value
            if slots != self.slots:
                state = FrameState(self.values, slots)
        if not store.write_back:
            return state
        return state._with([(store.base, _sum(base, store.write_back))])

    def _load(self, load: Load) -> FrameState:
        base = self.values[load.base]
        changes: list[tuple[int, Value | None]] = []
        for i, register in enumerate(load.registers):
            if register is None:
                continue
            value: Value | None = None
            if isinstance(base, FromCfa) and load.size >= _WORD:
                value = self.slots.get(base.offset + load.offset + i * load.size)
            changes.append((register, value))
        if load.write_back:
            changes.append((load.base, _sum(base, load.write_back)))
        return self._with(changes)

    def join(self, other: FrameState) -> FrameState:
        """What is known where either may hold; itself if that is as much as it says."""
        if self is other:
            return self
        values, slots = self.values, self.slots
        if values is not other.values:
            joined = tuple(
                # Most are the same objects, which is a quick thing to see.
                [m if m is i or m == i else None for m, i in zip(values, other.values, strict=True)]
            )
            values = values if joined == values else joined
        if slots is not other.slots:
            common = {at: value for at, value in slots.items() if other.slots.get(at) == value}
            slots = slots if len(common) == len(slots) else common
        if values is self.values and slots is self.slots:
            return self
        return FrameState(values, slots)

    def contradicts(self, other: FrameState) -> bool:
        """Whether no compiler lets both come together: sp, or the return address, elsewhere."""
        mine, its = self.values[SP], other.values[SP]
        if mine is not None and its is not None and mine != its:
            return True
        if self.values[LR] == _RETURN_ADDRESS == other.values[LR]:
            return False
        saved = self._saved(_RETURN_ADDRESS)
        if saved is not None and other.slots.get(saved.offset) == _RETURN_ADDRESS:
            return False
        if self.return_address is None or other.return_address is None:
            return False
        return self.join(other).return_address is None


ENTRY = FrameState(
    tuple(FromCfa(0) if register == SP else CallerValue(register) for register in _TRACKED), {}
)
"""At the first instruction of a function."""
ENTRY_WITHOUT_VOLATILE = FrameState(
    tuple(None if place in _VOLATILE else value for place, value in enumerate(ENTRY.values)), {}
)
"""The same where it does not matter which of the registers that calls may change are changed."""


def _sum(value: Value | None, amount: int | None) -> Value | None:
    if amount is None:
        return None
    if isinstance(value, FromCfa):
        offset = value.offset + amount
        return FromCfa(offset) if abs(offset) < MAX_DISTANCE else None
    if isinstance(value, Number):
        return Number((value.value + amount) & _MASK_64)
    return value if amount == 0 else None


def _insert(value: Value | None, part: int, shift: int) -> Value | None:
    if not isinstance(value, Number):
        return None
    return Number(value.value & ~(0xFFFF << shift) | part << shift)


def _is_worth_keeping(value: Value | None) -> TypeGuard[Value]:
    """Not the arguments, which unoptimised code stores by the dozen."""
    if isinstance(value, CallerValue):
        return value.register > _VOLATILE[-1]
    return isinstance(value, FromCfa)
