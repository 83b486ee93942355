"""The known state of a frame before one instruction of its function.

It is a row of DWARF's call-frame table with more columns, computed from instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, TypeGuard

from machtrace.formats.dwarf import operations
from machtrace.frozen import dataclass
from machtrace.unwinder.code.calling_convention import (
    MOVED,
    CallerValue,
    FromCfa,
    Index,
    Machine,
    Number,
    Value,
    depends_on_moved,
    from_cfa,
    in_common,
    is_moved,
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
    LoadIndexed,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    StoreIndexed,
    Trap,
    Writes,
)
from machtrace.unwinder.rules import (
    AtCfa,
    AtExpression,
    Cfa,
    ExpressionValue,
    InRegister,
    Lost,
    Recovery,
    RegisterOffset,
    UnwindRule,
)

MAX_SLOTS = 256
"""Words of a frame that are tracked: thirty registers, and some copies of them."""

_LOST = Lost()


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
        return sp.offset if isinstance(sp, FromCfa) and not is_moved(sp.offset) else None

    @property
    def return_address(self) -> Recovery | None:
        """The location of the return address; None if unknown."""
        wanted = self.machine.return_address
        return self._recovery(wanted.register, wanted)

    def _recovery(
        self, register: int, wanted: CallerValue, *, prefers_memory: bool = True
    ) -> Recovery | None:
        machine, values = self.machine, self.values
        index = machine.indices.get(register)
        is_unchanged = index is not None and values[index] is wanted
        if is_unchanged and not prefers_memory:
            return machine.unchanged[register]
        at = self._slot_of(wanted)
        if is_unchanged:
            sp = values[machine.sp]
            if at is None or (isinstance(sp, FromCfa) and at < sp.offset):
                return machine.unchanged[register]
        if at is not None and (saved := self._at_slot(at)) is not None:
            return saved
        for place, value in enumerate(values):
            if value is wanted:
                return InRegister(machine.tracked[place])
        return None

    def _at_slot(self, at: int) -> AtCfa | AtExpression | None:
        if not is_moved(at):
            return AtCfa(at)
        sp = self.values[self.machine.sp]
        if not isinstance(sp, FromCfa) or not is_moved(sp.offset):
            return None
        return AtExpression(operations.register_plus(self.machine.sp, at - sp.offset))

    def _slot_of(self, wanted: CallerValue) -> int | None:
        """Return the offset at which a register is saved."""
        for at, value in self.slots.items():
            if value is wanted:
                return at
        return None

    def is_restored(self, return_register: int) -> bool | None:
        """Return whether a function may return in this state; None if sp is unknown."""
        offset, machine = self.sp_offset, self.machine
        if offset is None:
            return None
        returns_to = self.value(return_register)
        if return_register not in machine.indices:
            returns_to = self.slots.get(offset)  # above its first location with arguments popped
        is_popped = offset >= machine.entry_sp and return_register not in machine.indices
        return (
            (offset == machine.entry_sp or is_popped)
            and returns_to == machine.return_address
            and self.values[machine.fp] == machine.caller_values[machine.fp]
        )

    def rule(
        self, *, keeps_volatile: bool = False, prefers_memory: bool = True
    ) -> UnwindRule | None:
        """Return the rule for the caller's registers; None if the return address is unknown.

        Args:
            keeps_volatile: include the caller-saved registers that are unchanged. The compiler
                knows which outlined code changes, and keeps values in the others.
            prefers_memory: recover a register that appears unchanged from where it was saved. It
                may have been changed on a path that was not followed (to a case of a switch, in
                outlined code), or belong to a callee.
        """
        return_address = self.return_address
        if return_address is None:
            return None
        cfa = self._cfa()
        if cfa is None:
            return None
        registers: list[tuple[int, Recovery]] = []
        for register in self.machine.callee_saved:
            wanted = self.machine.caller_values[register]
            recovery = self._recovery(register, wanted, prefers_memory=prefers_memory)
            if recovery is not self.machine.unchanged[register]:
                registers.append((register, recovery or _LOST))
        if keeps_volatile:
            registers += [
                (register, InRegister(register))
                for register in self.machine.volatile
                if self.values[register] is self.machine.caller_values[register]
            ]
        return UnwindRule(cfa, return_address, tuple(registers))

    def _cfa(self) -> Cfa | None:
        for base in self.machine.cfa_bases:
            value = self.values[base]
            if isinstance(value, FromCfa) and not is_moved(value.offset):
                return RegisterOffset(base, -value.offset)
        sp = self.values[self.machine.sp]
        if not isinstance(sp, FromCfa):
            return None
        # sp was moved by an unknown amount; its value before may be saved relative to it.
        number = self.machine.sp
        for at, saved in self.slots.items():
            if is_moved(at) and isinstance(saved, FromCfa) and not is_moved(saved.offset):
                location = operations.register_plus(number, at - sp.offset)
                return ExpressionValue(location + operations.load_plus(-saved.offset))
        for register, value in zip(self.machine.tracked, self.values, strict=True):
            if isinstance(value, Index):
                location = operations.register_plus(number, MOVED + value.offset - sp.offset)
                location += operations.plus_register_times(register, value.scale)
                return ExpressionValue(location + operations.load_plus(-value.saved))
        return None

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
        if changed is None:
            return self
        if changed[self.machine.sp] is None and values[self.machine.sp] is not None:
            return self._with_moved_sp(changed)
        return FrameState(self.machine, tuple(changed), self.slots)

    def _after_add(self, add: AddConstant) -> FrameState:
        value = self.values[add.source]
        return self._with(((add.destination, self.machine.plus(value, add.amount)),))

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
        return self._with(((add.destination, self.machine.plus(self.values[add.source], added)),))

    def _unchanged(self, _: Effect) -> FrameState:
        return self

    def _after_call(self, _: Call) -> FrameState:
        sp = self.values[self.machine.sp]
        state = self
        if isinstance(sp, FromCfa) and self.slots and min(self.slots) < sp.offset:
            # Memory below sp belongs to the callee.
            slots = {at: value for at, value in self.slots.items() if at >= sp.offset}
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
        if values is None:
            return self
        sp = self.machine.sp
        if values[sp] is None and self.values[sp] is not None:
            return self._with_moved_sp(values)
        return FrameState(self.machine, tuple(values), self.slots)

    def _with_moved_sp(self, values: list[Value | None]) -> FrameState:
        """Return the state with sp at an unknown distance from where it was.

        What is known relative to an earlier such address is forgotten.
        """
        values = [None if depends_on_moved(value) else value for value in values]
        values[self.machine.sp] = from_cfa(MOVED)
        slots = self.slots
        if any(is_moved(at) or depends_on_moved(value) for at, value in slots.items()):
            slots = {
                at: value
                for at, value in slots.items()
                if not is_moved(at) and not depends_on_moved(value)
            }
        return FrameState(self.machine, tuple(values), slots)

    def _store(self, store: Store) -> FrameState:
        base = self.values[store.base]
        slots = self.slots
        if isinstance(base, FromCfa):
            slots = self._stored_at(base.offset + store.offset, store)
        values = self.values
        if store.write_back:
            moved = self._with(((store.base, self.machine.plus(base, store.write_back)),))
            values = moved.values
            slots = slots if moved.slots is self.slots else moved.slots
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
            changes.append((load.base, self.machine.plus(base, load.write_back)))
        return self._with(changes)

    def _store_indexed(self, store: StoreIndexed) -> FrameState:
        base, value = self.values[store.base], self.value(store.register)
        is_saved = isinstance(value, FromCfa) and not is_moved(value.offset)
        if not is_saved or not isinstance(base, FromCfa) or not is_moved(base.offset):
            return self
        index = Index(store.scale, base.offset + store.offset - MOVED, value.offset)  # type: ignore[union-attr]
        return self._with(((store.index, index),))

    def _load_indexed(self, load: LoadIndexed) -> FrameState:
        base, index = self.values[load.base], self.values[load.index]
        value: Value | None = None
        if isinstance(base, FromCfa) and isinstance(index, Index):
            offset = base.offset + load.offset - MOVED
            if (index.scale, index.offset) == (load.scale, offset):
                value = from_cfa(index.saved)
        return self._with(((load.register, value),))

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
        sp = self.machine.sp
        if values[sp] is None and depends_on_moved(self.values[sp] or other.values[sp]):
            joined = FrameState(self.machine, values, slots)
            if self.values[sp] is not None and other.values[sp] is not None:
                joined = joined._with_moved_sp(list(values))
            return self if joined == self else joined
        return FrameState(self.machine, values, slots)

    def contradicts(self, other: FrameState) -> bool:
        """Return whether no compiler joins both states: sp, or the return address, differs."""
        machine = self.machine
        mine, its = self.values[machine.sp], other.values[machine.sp]
        if mine is not None and its is not None and not is_same(mine, its):
            return not (depends_on_moved(mine) and depends_on_moved(its))
        wanted = machine.return_address
        if self.value(wanted.register) == wanted == other.value(wanted.register):
            return False
        saved = self._slot_of(wanted)
        if saved is not None and other.slots.get(saved) == wanted:
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
        return self._slot_of(value) in (None, at)

    def _fits(self, value: Value, register: int, loaded: int) -> bool:
        """Return whether a load into a register reads a whole stored value."""
        machine = self.machine
        size = machine.size_of(value)
        return loaded >= size and (size > machine.word) == (register in machine.doubles)

    _after: ClassVar[Mapping[type[Effect], Callable[..., FrameState]]] = {
        Store: _store,
        Load: _load,
        StoreIndexed: _store_indexed,
        LoadIndexed: _load_indexed,
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
