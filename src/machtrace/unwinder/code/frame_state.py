"""The known state of a frame before one instruction of its function.

It is a row of DWARF's call-frame table with more columns, computed from instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, TypeGuard

from machtrace.frozen import dataclass
from machtrace.unwinder.code.calling_convention import (
    CallerValue,
    FromCfa,
    Machine,
    Number,
    Value,
    from_cfa,
    in_common,
    is_same,
    with_part,
)
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    InsertConstant,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Trap,
    Writes,
)
from machtrace.unwinder.rules import AtCfa, InRegister, Lost, Recovery, RegisterOffset, UnwindRule

MAX_DISTANCE = 1 << 40
"""The largest distance in a frame; bounds the numbers that hostile arithmetic makes."""
MAX_SLOTS = 256
"""Words of a frame that are tracked: thirty registers, and some copies of them."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameState:
    """Values of registers, by :attr:`Machine.indices`, and of words, by offset from the CFA."""

    machine: Machine
    values: tuple[Value | None, ...]
    slots: Mapping[int, Value]

    @classmethod
    def at_entry(cls, machine: Machine, *, with_volatile: bool) -> FrameState:
        """Return the state at the first instruction of a function.

        ``with_volatile``: whether to track which caller-saved registers are unchanged.
        """
        forgotten = () if with_volatile else machine.volatile
        values: list[Value | None] = [
            None if register in forgotten else machine.caller_values[register]
            for register in machine.tracked
        ]
        values[machine.sp] = from_cfa(machine.entry_sp)
        slots = {}
        if machine.return_address.register not in machine.indices:
            slots[machine.entry_sp] = machine.return_address
        return cls(machine, tuple(values), slots)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, FrameState):
            return NotImplemented
        return self.values == other.values and (
            self.slots is other.slots or self.slots == other.slots
        )

    __hash__ = None  # type: ignore[assignment]  # equal states may differ in their slots' order

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that equal states share if their slots were filled in the same order.

        Valid as long as one of them exists.
        """
        slots = self.slots
        return (*map(id, self.values), *slots, *map(id, slots.values()))

    def value(self, register: int) -> Value | None:
        """Return the value of a register, by DWARF number."""
        index = self.machine.indices.get(register)
        return None if index is None else self.values[index]

    @property
    def sp_offset(self) -> int | None:
        """The offset from the CFA to sp; None if unknown."""
        sp = self.values[self.machine.sp]
        return sp.offset if isinstance(sp, FromCfa) else None

    @property
    def return_address(self) -> Recovery | None:
        """The location of the return address; None if unknown."""
        wanted = self.machine.return_address
        return self._recovery(wanted.register, wanted)

    def _recovery(self, register: int, wanted: CallerValue) -> Recovery | None:
        if self.value(register) == wanted:
            return InRegister(register)
        saved = self._saved(wanted)
        if saved is not None:
            return saved
        for index, value in enumerate(self.values):
            if value == wanted:
                return InRegister(self.machine.tracked[index])
        return None

    def _saved(self, wanted: CallerValue) -> AtCfa | None:
        for at, value in self.slots.items():
            if value is wanted:
                return AtCfa(at)
        return None

    def is_restored(self, return_register: int) -> bool | None:
        """Return whether a function may return in this state; None if sp is unknown."""
        offset, machine = self.sp_offset, self.machine
        if offset is None:
            return None
        returns_to = self.value(return_register)
        if return_register not in machine.indices:
            returns_to = self.slots.get(machine.entry_sp)
        return (
            offset == machine.entry_sp
            and returns_to == machine.return_address
            and self.values[machine.fp] == machine.caller_values[machine.fp]
        )

    def rule(
        self, *, keeps_volatile: bool = False, prefers_memory: bool = False
    ) -> UnwindRule | None:
        """Return the rule for the caller's registers; None if the return address is unknown.

        Args:
            keeps_volatile: include the caller-saved registers that are unchanged. The compiler
                knows which outlined code changes, and keeps values in the others.
            prefers_memory: recover from memory what is in both memory and its register: during a
                call the register may belong to another frame.
        """
        return_address = self.return_address
        if return_address is None:
            return None
        for base in self.machine.cfa_bases:
            value = self.values[base]
            if isinstance(value, FromCfa):
                cfa = RegisterOffset(base, -value.offset)
                break
        else:
            return None
        registers: list[tuple[int, Recovery]] = []
        for register in self.machine.callee_saved:
            wanted = self.machine.caller_values[register]
            is_kept = self.value(register) == wanted
            saved = self._saved(wanted) if prefers_memory or not is_kept else None
            if saved is not None or not is_kept:
                registers.append((register, saved or self._recovery(register, wanted) or Lost()))
        if keeps_volatile:
            registers += [
                (register, InRegister(register))
                for register in self.machine.volatile
                if self.values[register] is self.machine.caller_values[register]
            ]
        return UnwindRule(cfa, return_address, tuple(registers))

    def after(self, instruction: Effect) -> FrameState:
        """Return the state after an instruction that falls through; itself if nothing changes.

        After a call, it is the state on its return.
        """
        return self._after[type(instruction)](self, instruction)

    def _after_writes(self, writes: Writes) -> FrameState:
        values, indices = self.values, self.machine.indices
        changed: list[Value | None] | None = None
        for register in writes.registers:
            index = indices.get(register)
            if index is not None and values[index] is not None:
                if changed is None:
                    changed = list(values)
                changed[index] = None
        return self if changed is None else FrameState(self.machine, tuple(changed), self.slots)

    def _after_add(self, add: AddConstant) -> FrameState:
        value = self.values[add.source]
        return self._with(((add.destination, self._sum(value, add.amount)),))

    def _after_move(self, move: MoveRegister) -> FrameState:
        return self._with(((move.destination, self.values[move.source]),))

    def _after_set(self, instruction: SetConstant) -> FrameState:
        return self._with(((instruction.destination, Number(instruction.value)),))

    def _after_insert(self, insert: InsertConstant) -> FrameState:
        value = with_part(self.values[insert.destination], insert.value, insert.shift)
        return self._with(((insert.destination, value),))

    def _after_add_register(self, add: AddRegister) -> FrameState:
        factor = self.values[add.register]
        added = add.sign * (factor.value << add.shift) if isinstance(factor, Number) else None
        return self._with(((add.destination, self._sum(self.values[add.source], added)),))

    def _unchanged(self, _: Effect) -> FrameState:
        return self

    def _after_call(self, _: Call) -> FrameState:
        sp = self.sp_offset
        state = self
        if sp is not None and self.slots and min(self.slots) < sp:
            # Memory below sp belongs to the callee.
            slots = {offset: value for offset, value in self.slots.items() if offset >= sp}
            state = FrameState(self.machine, self.values, slots)
        return state._after_writes(self.machine.written_by_calls)

    def _with(self, changes: Iterable[tuple[int, Value | None]]) -> FrameState:
        values: list[Value | None] | None = None
        for register, value in changes:
            index = self.machine.indices.get(register)
            if index is None or is_same(self.values[index], value):
                continue
            if values is None:
                values = list(self.values)
            values[index] = value
        return self if values is None else FrameState(self.machine, tuple(values), self.slots)

    def _store(self, store: Store) -> FrameState:
        base = self.values[store.base]
        slots = self.slots
        if isinstance(base, FromCfa):
            slots = self._stored_at(base.offset + store.offset, store)
        values = self.values
        if store.write_back:
            values = self._with(((store.base, self._sum(base, store.write_back)),)).values
        if slots is self.slots and values is self.values:
            return self
        return FrameState(self.machine, values, slots)

    def _stored_at(self, start: int, store: Store) -> Mapping[int, Value]:
        """Return the slots that a store writes: whole words of values worth tracking."""
        machine, slots, size = self.machine, self.slots, store.size
        end = start + size * len(store.registers)
        changed: dict[int, Value] | None = None
        # Only sp and fp are bases of registers' save slots: other pointers into the frame are the
        # program's, and loops advance them.
        if slots and store.base in (machine.sp, machine.fp):
            word = machine.word
            for at in range(-((machine.longest - 1 - start) // word) * word, end, word):
                if at in slots and at + machine.size_of(slots[at]) > start:
                    changed = dict(slots) if changed is None else changed
                    del changed[at]
        for i, register in enumerate(store.registers):
            value = None if register is None else self.value(register)
            if self._is_worth_keeping(value) and size >= machine.size_of(value):
                at = start + i * size
                changed = dict(slots) if changed is None else changed
                if at % machine.word == 0 and len(changed) < MAX_SLOTS:
                    changed[at] = value
        return slots if changed is None or changed == slots else changed

    def _load(self, load: Load) -> FrameState:
        base = self.values[load.base]
        changes: list[tuple[int, Value | None]] = []
        for i, register in enumerate(load.registers):
            if register is None:
                continue
            value: Value | None = None
            if isinstance(base, FromCfa):
                at = base.offset + load.offset + i * load.size
                value = self.slots.get(at)
                if value is not None and not (
                    self._fits(value, register, load.size) and self._is_kept_at(at, value)
                ):
                    value = None
            changes.append((register, value))
        if load.write_back:
            changes.append((load.base, self._sum(base, load.write_back)))
        return self._with(changes)

    def join(self, other: FrameState) -> FrameState:
        """Return what both states have in common; itself if that is all it has."""
        if self is other:
            return self
        values, slots = self.values, self.slots
        if values is not other.values:
            values = in_common(values, other.values)
        if slots is not other.slots:
            common = {at: value for at, value in slots.items() if other.slots.get(at) == value}
            slots = slots if len(common) == len(slots) else common
        if values is self.values and slots is self.slots:
            return self
        return FrameState(self.machine, values, slots)

    def contradicts(self, other: FrameState) -> bool:
        """Return whether no compiler joins both states: sp, or the return address, differs."""
        machine = self.machine
        mine, its = self.values[machine.sp], other.values[machine.sp]
        if mine is not None and its is not None and not is_same(mine, its):
            return True
        wanted = machine.return_address
        if self.value(wanted.register) == wanted == other.value(wanted.register):
            return False
        saved = self._saved(wanted)
        if saved is not None and other.slots.get(saved.offset) == wanted:
            return False
        if self.return_address is None or other.return_address is None:
            return False
        return self.join(other).return_address is None

    def _is_worth_keeping(self, value: Value | None) -> TypeGuard[Value]:
        """Return False for arguments, which unoptimised code stores by the dozen."""
        if isinstance(value, CallerValue):
            return value.register not in self.machine.volatile_set
        return isinstance(value, FromCfa)

    def _is_kept_at(self, at: int, value: Value) -> bool:
        """Return whether a register is saved at ``at``, and not just pushed to make room."""
        if not isinstance(value, CallerValue):
            return True
        saved = self._saved(value)
        return saved is None or saved.offset == at

    def _fits(self, value: Value, register: int, loaded: int) -> bool:
        """Return whether a load into a register reads a whole stored value."""
        machine = self.machine
        size = machine.size_of(value)
        return loaded >= size and (size > machine.word) == (register in machine.doubles)

    def _sum(self, value: Value | None, amount: int | None) -> Value | None:
        if amount is None:
            return None
        if isinstance(value, FromCfa):
            half = 1 << (8 * self.machine.word - 1)
            offset = value.offset + (amount + half) % (2 * half) - half
            return from_cfa(offset) if abs(offset) < MAX_DISTANCE else None
        if isinstance(value, Number):
            return Number((value.value + amount) % (1 << 8 * self.machine.word))
        return value if amount == 0 else None

    _after: ClassVar[Mapping[type[Effect], Callable[..., FrameState]]] = {
        Store: _store,
        Load: _load,
        Writes: _after_writes,
        Call: _after_call,
        AddConstant: _after_add,
        MoveRegister: _after_move,
        SetConstant: _after_set,
        InsertConstant: _after_insert,
        AddRegister: _after_add_register,
        Jump: _unchanged,
        IndirectJump: _unchanged,
        Return: _unchanged,
        Trap: _unchanged,
    }
